"""Scipy matrices of arrays that come from files: every offset and index is looked at before a kernel of scipy uses it."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray


def compressed(kind: Any, data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], shape: tuple[int, int]) -> Any:
    """The `kind` (csr_array, csc_array, bsr_array) of these parts, or a ValueError.

    scipy's own check does not look at offsets that fall, nor at any index, where the last offset is 0 or negative.
    """
    for name, numbers in (("indptr", indptr), ("indices", indices)):
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise ValueError(f"{name} is {numbers.dtype.name} {list(numbers.shape)}, and it is a vector of whole numbers")
    if not len(indptr) or indptr[0] != 0 or indptr[-1] > len(indices) or (indptr[1:] < indptr[:-1]).any():
        raise ValueError(f"indptr must rise from 0 to at most {len(indices):,}, the number of indices, and never fall")
    matrix = kind((data, indices, indptr), shape=shape)
    matrix.check_format(full_check=True)
    return matrix
