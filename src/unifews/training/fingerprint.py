"""The identity of data: a hash of the arrays themselves, whatever their name and source."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from unifews.datasets.dataset import Dataset

_READ = 1 << 28  # bytes read of an array: all of a smaller one, evenly spaced pieces of a larger one
_PIECE = 1 << 20


def fingerprint(dataset: Dataset) -> str:
    """Hex digits that change with graph, features, labels, stored splits, the default split and the metric."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{dataset.about.metric} {dataset.about.split} {list(dataset.x.shape)}".encode())
    arrays: list[NDArray[Any] | None] = [dataset.graph.indptr, dataset.graph.indices, dataset.graph.weight, dataset.y]
    arrays += [dataset.x] if isinstance(dataset.x, np.ndarray) else [dataset.x.indptr, dataset.x.indices, dataset.x.data]
    arrays += [part for split in dataset.splits for part in split]
    for array in arrays:
        if array is not None:
            _add(digest, array)
    return digest.hexdigest()


def _add(digest: Any, array: NDArray[Any]) -> None:
    digest.update(f"{array.dtype.str} {list(array.shape)}".encode())
    if array.nbytes <= _READ:
        digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
        return
    rows = array.reshape(len(array), -1)  # no copy: arrays of this size are contiguous
    step = max(1, _PIECE // max(1, rows[:1].nbytes))
    pieces = max(1, _READ // max(1, rows[:step].nbytes))
    for start in np.linspace(0, len(rows) - step, pieces).astype(np.int64):
        digest.update(np.ascontiguousarray(rows[start : start + step]).data.cast("B"))
