"""The axes a propagation runs on.

Propagation is linear, so ``P = h(S) X`` can be computed on rotated features and rotated back:

    X = φ cᵀ + Z Vᵀ + (what is dropped),        h(S) X ≈ (h(S) φ) cᵀ + (h(S) Z) Vᵀ

* **V, principal axes** (eigenvectors of XᵀX, largest first): the energy sits in the leading columns, most entries become
  tiny, and neighbours in a block are of like size, so deciding by the block costs little against deciding by the feature.
* **φ cᵀ, the stationary part**: φ = d^r is the fixed point of every diffusion (T φ = φ), the state that propagation tends
  to. It is the same for all classes, yet it is what hubs mostly send. It is carried exactly, as one column, so only the
  departures from it are ever pruned, and a node that loses all its messages keeps the average instead of nothing.
* **Dropped axes**: for wide features only the leading `rank` axes are propagated; ``‖X - φcᵀ - Z Vᵀ‖_F`` is known exactly
  and bounds the error it causes, since ‖T‖₂ ≤ 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unifews.core.entry import BLOCK
from unifews.propagation.features import Features, Floats

GRAM_LIMIT = 1024  # up to here the full spectrum comes from an f × f Gram matrix
WIDE_RANK = 256  # axes kept of wider features when the caller leaves it to us
ENERGY = 0.995  # share of ‖X‖² the leading axes must hold when the whole spectrum is known
_SAMPLE = 32_768  # rows that decide the axes; any orthonormal V is exact, a good one is only better


@dataclass(frozen=True)
class Basis:
    axes: Floats
    """V, float32 [f, k], orthonormal columns, most energetic first."""
    mean: Floats | None
    """c, float32 [f]: the features of the stationary part; None = it is not split off."""
    macs: int
    """Multiply-adds spent on finding the axes."""

    @property
    def rank(self) -> int:
        return int(self.axes.shape[1])


def principal(x: Features, phi: Floats | None, rank: int | None, threads: int) -> Basis:
    """Principal axes of X - φcᵀ, with c = Xᵀφ / φᵀφ, the best fit of the stationary part."""
    mean = None
    if phi is not None:
        mean = x.transposed_times(phi[:, None], threads)[:, 0] / np.float32(np.dot(phi, phi))
    if x.f <= GRAM_LIMIT:
        axes, macs = _from_gram(x, phi, mean, rank)
    else:
        axes, macs = _from_sketch(x, phi, mean, min(rank or WIDE_RANK, x.f), threads)
    return Basis(np.ascontiguousarray(axes, dtype=np.float32), mean, macs + (x.nnz if phi is not None else 0))


def _from_gram(x: Features, phi: Floats | None, mean: Floats | None, rank: int | None) -> tuple[NDArray[np.float64], int]:
    """All axes by the eigenvectors of the Gram matrix of a sample of rows."""
    stride = max(1, x.n // _SAMPLE)
    gram = np.zeros((x.f, x.f))
    taken = 0
    for first, last in x.chunks():
        rows = x.rows(first, last)[::stride]
        if phi is not None and mean is not None:
            rows = rows - phi[first:last:stride, None] * mean
        gram += rows.T @ rows
        taken += len(rows)
    energy, axes = np.linalg.eigh(gram)
    energy, axes = np.maximum(energy[::-1], 0), axes[:, ::-1]
    if rank is None:
        share = np.cumsum(energy) / max(energy.sum(), np.finfo(float).tiny)
        enough = int(np.searchsorted(share, ENERGY)) + 1
        rank = min(x.f, -(-enough // BLOCK) * BLOCK)
    return axes[:, :rank], taken * x.f * x.f


def _from_sketch(
    x: Features, phi: Floats | None, mean: Floats | None, rank: int, threads: int
) -> tuple[NDArray[np.float64], int]:
    """Leading axes by a randomised range finder with two power iterations (Halko, Martinsson & Tropp 2011).

    X stays sparse: it is only ever multiplied from either side by a thin dense matrix.
    """
    size = min(x.f, x.n, rank + BLOCK)
    sketch = np.random.default_rng(20250713).standard_normal((x.f, size), dtype=np.float32)
    for _ in range(2):
        y = _minus(x.times(sketch, threads), phi, mean, sketch)
        z = x.transposed_times(y, threads)
        if phi is not None and mean is not None:
            z -= mean[:, None] * (phi @ y)
        sketch = _orthonormal(z)
    y = _minus(x.times(sketch, threads), phi, mean, sketch)
    _, turn = np.linalg.eigh((y.T @ y).astype(np.float64))
    axes = sketch @ turn[:, ::-1][:, :rank]
    return axes, 5 * x.nnz * size + 3 * x.f * size * size + x.n * size * size


def _minus(y: Floats, phi: Floats | None, mean: Floats | None, v: Floats) -> Floats:
    """(X - φcᵀ) v, given y = X v."""
    if phi is not None and mean is not None:
        y -= phi[:, None] * (mean @ v)
    return y


def _orthonormal(z: Floats) -> Floats:
    """An orthonormal basis of the columns of z, through its small Gram matrix, twice for accuracy (Cholesky-QR2 style)."""
    for _ in range(2):
        energy, turn = np.linalg.eigh((z.T @ z).astype(np.float64))
        good = energy > energy[-1] * 1e-10
        z = z @ (turn[:, good] / np.sqrt(energy[good])).astype(np.float32)
    return z
