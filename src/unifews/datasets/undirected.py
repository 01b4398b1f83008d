"""Undirected graphs from published edge lists: both directions of every edge, no copies, no self-loops.

In memory where 16 bytes per listed edge are bearable; else through files, a range of targets at a time, so that a graph of
billions of edges needs about a gigabyte of memory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core import csr
from unifews.core.graph import Graph
from unifews.errors import FileFormatError

BUCKET = 1 << 27  # edges sorted at a time: 1 GB of keys
_GROUPS = 1 << 16  # ranges of targets that edges are counted by, before buckets are cut


def undirected(source: NDArray[Any], target: NDArray[Any], num_nodes: int) -> Graph:
    """The undirected graph of the listed edges. Shapes: integers [m] each. Needs 16 bytes per listed edge."""
    m = len(source)
    _check(source, target, num_nodes)
    keys = np.empty(2 * m, dtype=np.int64)
    for part in csr.chunks(m):
        csr.pack(source[part], target[part], num_nodes, out=keys[part])
        csr.pack(target[part], source[part], num_nodes, out=keys[m + part.start : m + part.stop])
    rows = csr.compress_keys(keys, num_nodes)
    return Graph(rows.indptr, rows.indices, None, rows.loops // 2, _symmetric=True)


def undirected_on_disk(
    edges: NDArray[Any],
    num_nodes: int,
    folder: Path,
    *,
    bucket: int = BUCKET,
    progress: Callable[[int, int], None] | None = None,
) -> Graph:
    """The same for edges [2, m] that may be a memory map, saved as the graph folder `folder` and opened from there.

    Edges are dealt into buckets by target, each of which is a file, sorted when its turn comes. Takes twice 16 bytes of
    disk per listed edge while it runs, in the folder's parent.
    """
    m = edges.shape[1]
    bits, shift = max(1, (num_nodes - 1).bit_length()), max(0, (num_nodes - 1).bit_length() - 16)
    parts = list(csr.chunks(m))
    steps = 2 * len(parts)
    groups = np.zeros(min(_GROUPS, (num_nodes - 1 >> shift) + 1), dtype=np.int64)
    loops = 0
    for step, part in enumerate(parts):
        ends = np.asarray(edges[:, part])
        _check(ends[0], ends[1], num_nodes)
        edge = ends[:, ends[0] != ends[1]]
        loops += ends.shape[1] - edge.shape[1]
        groups += np.bincount((edge >> shift).ravel(), minlength=len(groups))
        _tell(progress, step, steps)
    number = (np.cumsum(groups) - groups) // bucket  # bucket of each group, not decreasing
    buckets = np.unique(number)
    number = np.searchsorted(buckets, number)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.", suffix=".tmp") as place:
        spills = [Path(place, f"{i}.keys") for i in range(len(buckets))]
        files = [spill.open("wb") for spill in spills]
        try:
            for step, part in enumerate(parts):
                ends = np.asarray(edges[:, part]).astype(np.int64)
                ends = ends[:, ends[0] != ends[1]]
                both = np.concatenate([ends, ends[::-1]], axis=1)
                home = number[both[1] >> shift]
                keys = both[1] << bits | both[0]
                order = np.argsort(home, kind="stable")
                cuts = np.searchsorted(home[order], np.arange(1, len(buckets)))
                for file, piece in zip(files, np.split(keys[order], cuts), strict=True):
                    piece.tofile(file)
                _tell(progress, len(parts) + step, steps)
        finally:
            for file in files:
                file.close()
        indices = Path(place, "indices")
        degree = np.zeros(num_nodes + 1, dtype=np.int64)
        with indices.open("wb") as out:
            for spill in spills:
                keys = np.fromfile(spill, dtype=np.int64)
                spill.unlink()
                csr.sort(keys)
                keys = keys[: csr.distinct(keys)]
                for part in csr.chunks(len(keys)):
                    rows, counts = np.unique(keys[part] >> bits, return_counts=True)
                    degree[rows + 1] += counts
                    (keys[part] & ((1 << bits) - 1)).astype(csr.index_dtype(num_nodes)).tofile(out)
        indptr = np.cumsum(degree)
        stored: NDArray[Any] = np.empty(0, dtype=csr.index_dtype(num_nodes))
        if indptr[-1]:
            stored = np.memmap(indices, dtype=csr.index_dtype(num_nodes), mode="r", shape=(int(indptr[-1]),))
        Graph(indptr, stored, None, loops, _symmetric=True).save(folder)
        del stored
    return Graph.open(folder)


def _check(source: NDArray[Any], target: NDArray[Any], num_nodes: int) -> None:
    for ends in (source, target):
        if len(ends) and (ends.min() < 0 or ends.max() >= num_nodes):
            wrong = ends.min() if ends.min() < 0 else ends.max()
            raise FileFormatError(
                f"an edge names node {wrong}, but nodes are numbered 0 to {num_nodes - 1}: the file is damaged. Get it again."
            )


def _tell(progress: Callable[[int, int], None] | None, step: int, steps: int) -> None:
    if progress is not None:
        progress(step + 1, steps)
