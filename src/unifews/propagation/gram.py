"""All principal axes of up to a thousand features: the eigenvectors of the Gram matrix of a sample of rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unifews.propagation.features import FeatureMatrix, Floats, sparse_times
from unifews.propagation.tiles import cut

_SAMPLE = 32_768  # rows that decide the axes; any orthonormal V is exact, a good one is only better


def from_gram(x: FeatureMatrix, phi: Floats | None, mean: Floats | None, rank: int | None, threads: int) -> tuple[Floats, int]:
    """Principal axes of X - φcᵀ, float32 [f, rank], most energetic first, and the multiply-adds it took to find them."""
    if x.sparse is not None:
        gram, macs = _sparse_gram(x, phi, mean, threads)
    else:
        gram, macs = _dense_gram(x, phi, mean), _products(x)
    axes: Floats = np.linalg.eigh(gram)[1][:, ::-1][:, :rank].astype(np.float32)
    return axes, macs + eigen_macs(x.f)


def dense_macs(x: FeatureMatrix) -> int:
    """What finding all axes costs if no entry of X is zero."""
    return _products(x) + eigen_macs(x.f)


def eigen_macs(k: int) -> int:
    """Multiply-adds of a symmetric k × k eigenproblem with its vectors: 9 k³ flops (Golub & Van Loan, 8.3)."""
    return 9 * k**3 // 2


def _products(x: FeatureMatrix) -> int:
    return len(_sample(x)) * x.f * (x.f + 1) // 2  # BLAS makes one half of the symmetric product


def _sample(x: FeatureMatrix) -> NDArray[np.int64]:
    """The rows that decide."""
    stride = max(1, x.n // _SAMPLE)
    return np.concatenate([np.arange(first, last, stride) for first, last in x.chunks()])


def _dense_gram(x: FeatureMatrix, phi: Floats | None, mean: Floats | None) -> NDArray[np.float64]:
    stride = max(1, x.n // _SAMPLE)
    gram = np.zeros((x.f, x.f))
    for first, last in x.chunks():
        rows = x.rows(first, last)[::stride]
        if phi is not None and mean is not None:
            rows = rows - phi[first:last:stride, None] * mean
        gram += rows.T @ rows
    return gram


def _sparse_gram(x: FeatureMatrix, phi: Floats | None, mean: Floats | None, threads: int) -> tuple[NDArray[np.float64], int]:
    """XᵀX with X sparse on one side, one half of it; the stationary part, which is dense, is taken off afterwards."""
    chosen = _sample(x)
    by_column = (x.sparse if len(chosen) == x.n else x.sparse[chosen]).tocsc()
    gram = np.zeros((x.f, x.f))
    macs = 0
    for tile in cut(x.f):
        columns = slice(tile.column, tile.column + tile.width)
        later = by_column[:, tile.column :].T
        part = sparse_times(later, np.asarray(by_column[:, columns].toarray(order="C"), dtype=np.float32), threads)
        gram[tile.column :, columns] = part
        gram[columns, tile.column :] = part.T
        macs += later.nnz * tile.width
    if phi is not None and mean is not None:
        c, phi = mean.astype(np.float64), phi[chosen].astype(np.float64)
        shared = np.outer(by_column.T @ phi, c)
        gram -= shared + shared.T - (phi @ phi) * np.outer(c, c)
    return gram, macs
