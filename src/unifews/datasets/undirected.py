"""An undirected graph from an edge list larger than memory: both directions of every edge, no copies, no self-loops.

Edges are dealt into buckets by target, each a file, and a bucket is sorted when its turn comes: 3.2 billion edges need about
three gigabytes of memory, and twice 16 bytes of disk per listed edge while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core import csr
from unifews.core.graph import Graph
from unifews.errors import FileFormatError

BUCKET = 1 << 27  # edges sorted at a time: 1 GB of keys
_GROUPS = 16  # bits of a node number that edges are counted by, before buckets are cut


def build_undirected(
    edges: NDArray[Any],
    num_nodes: int,
    folder: Path,
    *,
    bucket: int = BUCKET,
    progress: Callable[[int, int], None] | None = None,
) -> Graph:
    """The undirected graph of `edges`, integers [2, m], perhaps a memory map: saved at `folder` and opened from there."""
    index = csr.index_dtype(num_nodes)
    bits = max(1, (num_nodes - 1).bit_length())
    shift = max(0, bits - _GROUPS)
    parts = len(list(csr.chunks(edges.shape[1])))
    tell = progress or (lambda done, total: None)

    groups = np.zeros((num_nodes - 1 >> shift) + 1, dtype=np.int64)
    loops = 0
    for done, ends in enumerate(_chunks(edges), 1):
        _check(ends, num_nodes)
        edge = ends[:, ends[0] != ends[1]]
        loops += ends.shape[1] - edge.shape[1]
        groups += np.bincount((edge >> shift).ravel(), minlength=len(groups))
        tell(done, 2 * parts)
    starts = np.cumsum(groups) - groups
    used, bucket_of = np.unique(starts // bucket, return_inverse=True)  # never decreases from one group to the next

    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.", suffix=".tmp") as place, ExitStack() as opened:
        spills = [Path(place, f"{i}.keys") for i in range(len(used))]
        files = [opened.enter_context(spill.open("wb")) for spill in spills]
        for done, ends in enumerate(_chunks(edges), 1):
            edge = ends[:, ends[0] != ends[1]]
            both = np.concatenate([edge, edge[::-1]], axis=1)
            home = bucket_of[both[1] >> shift]
            order = np.argsort(home, kind="stable")
            keys = (both[1] << bits | both[0])[order]
            for file, piece in zip(files, np.split(keys, np.searchsorted(home[order], range(1, len(used)))), strict=True):
                piece.tofile(file)
            tell(parts + done, 2 * parts)
        opened.close()

        degree = np.zeros(num_nodes + 1, dtype=np.int64)
        with Path(place, "indices").open("wb") as out:
            for spill in spills:
                keys = np.fromfile(spill, dtype=np.int64)
                spill.unlink()
                csr.sort(keys)
                keys = keys[: csr.distinct(keys)]
                for part in csr.chunks(len(keys)):
                    rows, counts = np.unique(keys[part] >> bits, return_counts=True)
                    degree[rows + 1] += counts
                    (keys[part] & ((1 << bits) - 1)).astype(index).tofile(out)
        np.cumsum(degree, out=degree)
        m = int(degree[-1])  # no bytes make no map
        indices = np.memmap(Path(place, "indices"), index, "r", shape=(m,)) if m else np.empty(0, index)
        Graph(degree, indices, None, loops, _symmetric=True).save(folder)
    return Graph.open(folder)


def _chunks(edges: NDArray[Any]) -> Iterator[NDArray[np.int64]]:
    for part in csr.chunks(edges.shape[1]):
        yield np.asarray(edges[:, part], dtype=np.int64)


def _check(ends: NDArray[np.int64], num_nodes: int) -> None:
    low, high = int(ends.min()), int(ends.max())
    if low < 0 or high >= num_nodes:
        raise FileFormatError(
            f"an edge names node {low if low < 0 else high}, but nodes are numbered 0 to {num_nodes - 1}: the file is damaged. "
            f"Get it again."
        )
