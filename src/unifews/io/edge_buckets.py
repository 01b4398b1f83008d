"""Edges as 64-bit keys in buckets by target: the bucket of each edge, and the sorted edges of a bucket. Arrays in, arrays out.

A key is (target - first node of the bucket) << bits + 1 | source << 1 | whether the edge is a reverse, with 2^bits ≥ n. The
last bit distinguishes the edges that were given from those that were added.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unifews.core import csr
from unifews.errors import GraphError
from unifews.io.edge_lists import EdgeList

BITS = 39  # of a node number, at most: the offsets of so many nodes take four terabytes
PER_KEY = 18  # bytes of memory a key takes while it is sorted and merged
PER_WEIGHTED = 64  # and one with a weight, which takes an argsort
_PER_ROW = 40  # and a node, whose offset is found
_GROUPS = 1 << 16  # groups of consecutive nodes that edges are counted by, before buckets are cut


class Buckets(NamedTuple):
    """Which nodes belong to which bucket."""

    n: int
    shift: int  # nodes are looked up in groups of 2^shift
    cuts: NDArray[np.int64]  # [buckets + 1], first node of each bucket, then n
    bucket_of: NDArray[Any]  # of each group

    @staticmethod
    def of(n: int, cuts: list[int]) -> Buckets:
        shift = max(0, bits(n) - _GROUPS.bit_length() + 1)
        starts = np.arange((n - 1 >> shift) + 1, dtype=np.int64) << shift
        bucket_of = np.searchsorted(cuts[:-1], starts, side="right") - 1
        # numpy sorts small integers by radix.
        return Buckets(n, shift, np.array(cuts, dtype=np.int64), bucket_of.astype(np.uint8 if len(cuts) <= 257 else np.uint16))

    @property
    def number(self) -> int:
        return len(self.cuts) - 1

    @property
    def bits(self) -> int:
        return bits(self.n)

    def rows(self, bucket: int) -> int:
        return int(self.cuts[bucket + 1] - self.cuts[bucket])


class BucketedKeys(NamedTuple):
    """The keys of a chunk, bucket by bucket."""

    keys: NDArray[np.int64]
    weight: NDArray[np.float32] | None
    ends: NDArray[np.int64]  # [buckets], where each bucket's keys end
    edges: int  # given, without self-loops and edges of weight 0
    loops: int


class SortedRun(NamedTuple):
    """Sorted edges without copies: all of a bucket, or a part of it."""

    indices: NDArray[Any]
    weight: NDArray[np.float32] | None
    ends: NDArray[np.int64]  # [rows], edges up to the end of each row
    given: int  # of these edges were listed themselves, not only their reverse


class EdgeCounts:
    """Where edges end, counted by groups of nodes that grow with the largest number seen."""

    def __init__(self, undirected: bool) -> None:
        self.undirected = undirected
        self.largest = -1
        self.shift = 0
        self.groups = np.zeros(_GROUPS, dtype=np.int64)

    def add(self, edges: EdgeList) -> None:
        if not len(edges.source):
            return
        self.largest = max(self.largest, int(edges.source.max()), int(edges.target.max()))
        self._widen(self.largest + 1)
        for ends in (edges.target, edges.source)[: 1 + self.undirected]:
            self.groups += np.bincount(ends >> self.shift, minlength=_GROUPS)

    def _widen(self, n: int) -> None:
        while n - 1 >> self.shift >= _GROUPS:
            self.groups = np.concatenate([self.groups.reshape(-1, 2).sum(axis=1), np.zeros(_GROUPS // 2, dtype=np.int64)])
            self.shift += 1

    def spread(self, n: int) -> None:
        """Groups for n nodes, which may be more than were seen."""
        self._widen(n)
        self.groups = self.groups[: (n - 1 >> self.shift) + 1]


def cut(counts: EdgeCounts, n: int, share: int, per_key: int) -> list[int]:
    """First nodes of buckets that take `share` bytes each, unless one group takes more; and n."""
    rows = 1 << counts.shift
    most = 1 << 62 - bits(n)  # rows of a bucket whose keys fit 63 bits
    cuts, filled, first = [0], 0, 0
    for group, edges in enumerate(counts.groups.tolist()):
        takes = edges * per_key + rows * _PER_ROW
        if group > first and (filled + takes > share or (group + 1 - first) * rows > most):
            cuts.append(group * rows)
            filled, first = 0, group
        filled += takes
    return [*cuts, n]


def bucketed(edges: EdgeList, buckets: Buckets, undirected: bool) -> BucketedKeys:
    """The keys of a chunk of edges, in the order of their buckets, and in each in the order given."""
    source, target, weight = edges
    if weight is not None and not weight.all():  # an edge of weight 0 is no edge
        real = weight != 0
        source, target, weight = source[real], target[real], weight[real]
    edge = source != target
    loops = len(edge) - int(np.count_nonzero(edge))
    if loops:
        source, target = source[edge], target[edge]
        weight = None if weight is None else weight[edge]
    m = len(source)
    if undirected:
        source, target = np.concatenate([source, target]), np.concatenate([target, source])
        weight = None if weight is None else np.concatenate([weight, weight])
    home = buckets.bucket_of[target >> buckets.shift]
    keys = target - buckets.cuts[home]
    keys <<= buckets.bits
    keys |= source
    keys <<= 1
    keys[m:] |= 1
    order = np.argsort(home, kind="stable")
    ends = np.cumsum(np.bincount(home, minlength=buckets.number))
    return BucketedKeys(keys[order], None if weight is None else weight[order], ends, m, loops)


def sort(
    keys: NDArray[np.int64], weight: NDArray[np.float32] | None, buckets: Buckets, bucket: int, undirected: bool
) -> SortedRun:
    """Sorted edges without copies. `keys` is overwritten, and its memory is that of the result."""
    if weight is None:
        keys.sort()
        keys = keys[: csr.distinct(keys)]
    else:
        order = np.argsort(keys, kind="stable")  # copies are summed in the order given, as in memory
        keys, starts = _first(keys[order])
        weight = weight[order]
        del order
        if 0 < len(starts) < len(weight):
            with np.errstate(over="ignore"):
                weight = np.add.reduceat(weight, starts, dtype=np.float64).astype(np.float32)
            if not np.isfinite(weight).all():
                raise GraphError("the weights of the copies of an edge add up to more than float32 can hold.")
    given = len(keys) - sum(int(np.count_nonzero(keys[part] & 1)) for part in csr.chunks(len(keys)))
    keys >>= 1
    if undirected and weight is None:
        keys = keys[: csr.distinct(keys)]
    elif undirected and weight is not None:
        keys, starts = _first(keys)
        weight = np.maximum.reduceat(weight, starts) if len(starts) else weight  # of an edge and its reverse
    rows = np.arange(1, buckets.rows(bucket) + 1, dtype=np.int64)
    rows <<= buckets.bits
    ends = np.searchsorted(keys, rows).astype(np.int64, copy=False)
    # Written over the keys themselves: a number is never longer than its key, and later chunks are not touched.
    indices = keys.view(csr.index_dtype(buckets.n))[: len(keys)]
    for part in csr.chunks(len(keys)):
        indices[part] = keys[part] & (1 << buckets.bits) - 1
    return SortedRun(indices, weight, ends, given)


def _first(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct ones of sorted keys, and where each begins."""
    new = np.ones(len(keys), dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=new[1:])
    return keys[new], np.flatnonzero(new)


def bits(n: int) -> int:
    """Bits of a node number among n."""
    return max(1, (n - 1).bit_length())
