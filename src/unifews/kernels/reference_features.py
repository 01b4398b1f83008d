"""The kernels on sparse feature matrices in plain NumPy: their specification, of the same signatures; `threads` is ignored."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer[Any]]
Floats = NDArray[np.float32]


def dense_columns(indptr: Integers, indices: Integers, values: Floats, first: int, out: Floats, threads: int) -> None:
    """out[u, k] = x[u, first + k]"""
    out[:] = 0
    for u in range(len(out)):
        for e in range(int(indptr[u]), int(indptr[u + 1])):
            if first <= indices[e] < first + out.shape[1]:
                out[u, indices[e] - first] = values[e]


def sparse_column_sums(
    indptr: Integers,
    indices: Integers,
    values: Floats,
    factor: Floats,
    square: Floats,
    sums: NDArray[np.float64],
    threads: int,
) -> None:
    """sums += [Σ_u factor[u]·x[u, k], Σ_u square[u]·x[u, k]²]"""
    rows = np.repeat(np.arange(len(factor)), np.diff(indptr))
    data = values.astype(np.float64)
    sums += [np.bincount(indices, w[rows] * part, sums.shape[1]) for w, part in ((factor, data), (square, data**2))]
