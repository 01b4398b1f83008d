"""Products with a sparse weight matrix, and whether they are faster than the dense ones.

y = W x + b for every row x, with W stored as its nonzeros: the time is proportional to their number, plus the time to read x
and write y.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.errors import InputError, ShapeError
from unifews.kernels import LANES, native

Floats = NDArray[np.float32]
Longs = NDArray[np.int64]

FEW_ROWS = 256  # up to this number the kernel iterates over the weights in their order (weights.cpp)
MARGIN = 1.15  # by which the packed product must be faster by the estimate
# Time of the kernel relative to AVX2, compared with the dense product of the same machine, measured where they break even.
_PACE = {"base": 3.0, "avx2": 1.0, "avx512": 1.25}


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """The nonzeros of a weight matrix [f_out, f_in], output by output.

    Output j reads the inputs ``indices[indptr[j]:indptr[j + 1]]``.

    >>> PackedWeight.pack(np.array([[0, 2, 0], [0, 0, 0]])).dense().tolist()
    [[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]]
    """

    indptr: Longs
    indices: NDArray[np.int32]
    values: Floats
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        outputs, inputs = self.shape
        if min(self.shape) < 1:
            raise ShapeError(f"a weight matrix has at least one output and one input; got the shape {list(self.shape)}.")
        for name, kind in (("indptr", np.int64), ("indices", np.int32), ("values", np.float32)):
            object.__setattr__(self, name, _flat(getattr(self, name), name, kind))
        if len(self.indptr) != outputs + 1:
            raise ShapeError(f"`indptr` has {len(self.indptr):,} values; {outputs:,} outputs need {outputs + 1:,}.")
        if self.indptr[0] != 0 or (np.diff(self.indptr) < 0).any() or self.indptr[-1] != len(self.indices):
            raise InputError(f"`indptr` must be sorted, from 0 to the number of weights, {len(self.indices):,}.")
        if len(self.values) != len(self.indices):
            raise ShapeError(f"{len(self.values):,} weights for {len(self.indices):,} indices; give one per index.")
        if len(self.indices) and not 0 <= int(self.indices.min()) <= int(self.indices.max()) < inputs:
            raise InputError(
                f"`indices` run from {self.indices.min():,} to {self.indices.max():,}; inputs are 0 to {inputs - 1:,}."
            )

    @classmethod
    def pack(cls, dense: Any) -> PackedWeight:
        """The nonzeros of a matrix [f_out, f_in]."""
        matrix = np.asarray(dense, dtype=np.float32)
        if matrix.ndim != 2:
            raise ShapeError(f"a weight matrix is [f_out, f_in]; got the shape {list(matrix.shape)}.")
        output, index = np.nonzero(matrix)
        indptr = np.concatenate([[0], np.cumsum(np.bincount(output, minlength=len(matrix)))])
        return cls(indptr, index.astype(np.int32), matrix[output, index], matrix.shape)

    def dense(self) -> Floats:
        matrix = np.zeros(self.shape, dtype=np.float32)
        np.add.at(matrix, (np.repeat(np.arange(self.shape[0]), np.diff(self.indptr)), self.indices), self.values)
        return matrix

    @property
    def density(self) -> float:
        """Weights kept, as a fraction of all."""
        return len(self.values) / (self.shape[0] * self.shape[1])


def worth(n: int, f_in: int, f_out: int, density: float, *, packing: bool = False) -> bool:
    """Whether the kernel `sparse_linear` of n rows is faster than the dense product, with this fraction of the weights kept.

    `packing`: include the time of packing the matrix for this product alone. The estimates are nanoseconds of one thread,
    measured on an AVX2 server against MKL, those of the dense product rounded down. They are constants, so that a model
    returns the same bits in every call.

    >>> worth(64_000, 512, 512, 0.1), worth(64_000, 512, 512, 0.9)
    (True, False)
    >>> worth(512, 512, 512, 0.1), worth(512, 512, 512, 0.1, packing=True)
    (True, False)
    """
    weights = f_in * f_out * density
    if n <= FEW_ROWS:
        padded = -(-n // LANES) * LANES
        packed = 2_500 + padded * (1.0 * f_out + 0.085 * weights)
    else:
        packed = 14 * weights + n * (0.35 * f_in + 0.25 * f_out + 0.036 * weights)
    if packing:
        packed += 2_500 + 8 * f_in * f_out
    # With few rows, reading all weights from memory dominates.
    dense = 3_000 + 0.1 * f_in * f_out + n * (0.35 * f_in + 0.022 * f_in * f_out)
    return packed * _PACE[native.level()] * MARGIN < dense


def worth_gradient(n: int, f_in: int, f_out: int, density: float) -> bool:
    """Whether the kernel `weight_gradient` of n rows is faster than the dense product gᵀ x, with this fraction of the weights.

    As `worth`, in nanoseconds of one thread.

    >>> worth_gradient(64_000, 512, 512, 0.1), worth_gradient(64_000, 512, 512, 0.9)
    (True, False)
    """
    weights = f_in * f_out * density
    sampled = 5_000 + 40 * weights + n * (0.35 * (f_in + f_out) + 0.04 * weights)
    return sampled * _PACE[native.level()] * MARGIN < 3_000 + n * (0.35 * f_in + 0.022 * f_in * f_out)


def _flat(values: Any, name: str, kind: type) -> NDArray[Any]:
    array = np.asarray(values)
    if array.ndim != 1:
        raise ShapeError(f"`{name}` is a list of numbers; got the shape {list(array.shape)}.")
    if kind is not np.float32 and array.size and array.dtype.kind not in "iu":
        raise InputError(f"`{name}` holds {array.dtype.name} values; it must have integers.")
    if kind is np.int32 and array.size and not 0 <= int(array.min()) <= int(array.max()) < 2**31:
        raise InputError(f"`{name}` run from {array.min():,} to {array.max():,}; inputs are counted from 0 and below 2^31.")
    return np.ascontiguousarray(array, dtype=kind)
