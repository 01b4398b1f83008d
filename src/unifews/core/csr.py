"""Compressed rows from edges: sort, merge, check. Arrays in, arrays out; `Graph` is the public API.

An edge v → u becomes one 64-bit key, (u << bits) | v with 2^bits ≥ n, so that sorting keys sorts by target and then
by source, and equal edges become neighbours. Sorting is half the cost: 140 M edges take 5 to 7 s on two cores, and
12 bytes each. Sums of weights need to know where each edge went, which takes an argsort: six times slower.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unifews.kernels import native, threads_to_use
from unifews.storage.pages import MappedPages

MAX_NODES = 2**39  # the largest graph anywhere: pairs of node numbers are sorted as keys of at most 2·39 bits
PACKABLE = 2**31  # maximum number of nodes for which a pair of numbers fits a signed 64-bit key
CHUNK = 1 << 20  # edges handled at a time, so that temporaries are small beside the arrays
PARALLEL = 1 << 22  # keys from which on threads are started
EXAMINED = 1 << 26  # entries examined between two releases of mapped pages
_ALONE = 1 << 17  # entries that one thread examines as fast as several
LOOP = np.iinfo(np.int64).max  # key of a self-loop: sorts behind every edge, where it is cut off


class Csr(NamedTuple):
    """Row u holds the sources of the edges into u: indices[indptr[u]:indptr[u+1]], ascending and distinct."""

    indptr: NDArray[np.int64]  # [n + 1]
    indices: NDArray[Any]  # [m], int32 up to 2^31 - 1 nodes
    weight: NDArray[np.float32] | None  # [m]
    loops: int  # self-loops left out
    merged: int  # surplus copies of an edge


class Examined(NamedTuple):
    """What a pass over compressed rows found: the first place of each fault, -1 = none."""

    pointer: int
    """A row whose bounds decrease or are outside `indices`; the other fields are then undefined."""
    range: int
    """An entry outside 0 … columns - 1."""
    order: int
    """An entry not larger than the one before it in its row: unsorted, or a copy."""
    loop: int
    """An entry equal to its row."""
    weight: int
    """A weight that is NaN, infinite, zero or negative."""
    symmetric: bool
    """Every entry has its reverse, of the same weight; wrong with a chance of 2^-64. Means nothing where a fault was found."""

    @property
    def is_sound(self) -> bool:
        """True when every entry can be read without leaving an array."""
        return self.pointer < 0 and self.range < 0

    @property
    def is_canonical(self) -> bool:
        """True when rows are sound, strictly ascending and without self-loops, and weights are positive and finite."""
        return self.is_sound and max(self.order, self.loop, self.weight) < 0


_KEY = secrets.randbits(64)  # of the hash that `examine` compares sums of; unknown to who makes a file


def examine(
    indptr: NDArray[np.int64], indices: NDArray[Any], weight: NDArray[np.float32] | None = None, columns: int | None = None
) -> Examined:
    """One pass over compressed rows from outside, on every core: may kernels trust them, and are they canonical?

    Shapes: `indptr` int64 [rows + 1], `indices` int32 or int64 [m], `weight` float32 [m], all C-contiguous. Without `columns`
    the matrix is square and its symmetry is found too, from sums of a keyed 64-bit hash of (u, v, w) and of (v, u, w).
    Costs 1-2 ns per entry on two cores; pages of mapped files are released on the way.
    """
    rows = len(indptr) - 1
    step = max(1, rows * EXAMINED // max(1, len(indices)))
    threads = 1 if len(indices) <= _ALONE else threads_to_use(None)
    pages = MappedPages()
    pages.add(indptr, indices, weight)
    faults, balance = [-1] * 5, 0
    for first in range(0, rows, step):
        *found, part = native.check_rows(
            indptr=indptr,
            indices=indices,
            weight=weight,
            first=first,
            last=min(rows, first + step),
            columns=rows if columns is None else columns,
            hashed=columns is None,
            key=_KEY,
            threads=threads,
        )
        faults = [old if old >= 0 else new for old, new in zip(faults, found, strict=True)]
        balance += part
        if rows > step:
            pages.release()
    pointer, outside, order, loop, unweighted = faults
    return Examined(pointer, outside, order, loop, unweighted, columns is None and balance % 2**64 == 0)


def compress(source: NDArray[Any], target: NDArray[Any], weight: NDArray[np.float32] | None, num_nodes: int) -> Csr:
    """Compressed rows of the edges source[e] → target[e]. Copies merge: into one edge, or into the sum of weights."""
    if weight is None and num_nodes <= PACKABLE:
        keys = np.empty(len(source), dtype=np.int64)
        for part in chunks(len(keys)):
            pack(source[part], target[part], num_nodes, out=keys[part])
        return compress_keys(keys, num_nodes)
    return _compress_by_order(source, target, weight, num_nodes)


def pack(source: NDArray[Any], target: NDArray[Any], num_nodes: int, out: NDArray[np.int64]) -> None:
    """Write the key of each edge into `out`."""
    np.copyto(out, target)
    out <<= _bits(num_nodes)
    out |= source
    out[source == target] = LOOP


def compress_keys(keys: NDArray[np.int64], num_nodes: int) -> Csr:
    """Compressed rows of packed edges. Uses `keys` as its working memory: the caller must not need them again."""
    sort(keys)
    edges = int(np.searchsorted(keys, LOOP))
    loops = len(keys) - edges
    keys = keys[: distinct(keys[:edges])]
    bits = _bits(num_nodes)
    indptr = np.searchsorted(keys, np.arange(num_nodes + 1, dtype=np.int64) << bits).astype(np.int64, copy=False)
    indices = np.empty(len(keys), dtype=index_dtype(num_nodes))
    for part in chunks(len(keys)):
        np.bitwise_and(keys[part], (1 << bits) - 1, out=indices[part], casting="unsafe")
    return Csr(indptr, indices, None, loops, edges - len(keys))


def sort(keys: NDArray[np.int64]) -> None:
    """Sort in place, on every core: partition into equal slices of the order, then sort the slices side by side."""
    slices = min(os.cpu_count() or 1, 16)
    if slices == 1 or len(keys) < PARALLEL:
        keys.sort()
        return
    cuts = [len(keys) * i // slices for i in range(1, slices)]
    keys.partition(cuts)
    with ThreadPoolExecutor(slices) as pool:
        list(pool.map(lambda piece: piece.sort(), np.split(keys, cuts)))


def distinct(keys: NDArray[np.int64]) -> int:
    """Move the distinct values of sorted `keys` to the front, in order; their number."""
    write, last = 0, None
    for part in chunks(len(keys)):
        piece = keys[part]
        new = np.empty(len(piece), dtype=bool)
        new[0] = piece[0] != last
        np.not_equal(piece[1:], piece[:-1], out=new[1:])
        last = piece[-1]
        kept = piece[new]  # a copy: writing below `part.start` cannot disturb what is still to be read
        keys[write : write + len(kept)] = kept
        write += len(kept)
    return write


def _compress_by_order(source: NDArray[Any], target: NDArray[Any], weight: NDArray[np.float32] | None, num_nodes: int) -> Csr:
    edge = source != target
    loops = int(len(edge) - np.count_nonzero(edge))
    if loops:
        source, target = source[edge], target[edge]
        weight = None if weight is None else weight[edge]
    # Stable, so that copies are summed in the order given and the same input gives the same bits.
    if num_nodes <= PACKABLE:
        keys = np.empty(len(source), dtype=np.int64)
        pack(source, target, num_nodes, out=keys)
        order = np.argsort(keys, kind="stable")
    else:
        order = np.lexsort((source, target))
    source, target = source[order], target[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
    starts = np.flatnonzero(first)
    if weight is not None:
        weight = weight[order]
        if 0 < len(starts) < len(weight):
            with np.errstate(over="ignore"):  # a sum beyond float32 becomes inf, which `Graph` reports
                weight = np.add.reduceat(weight, starts, dtype=np.float64).astype(np.float32)
    indptr = np.searchsorted(target[starts], np.arange(num_nodes + 1)).astype(np.int64, copy=False)
    indices = source[starts].astype(index_dtype(num_nodes), copy=False)
    return Csr(indptr, indices, weight, loops, len(order) - len(starts))


def targets(indptr: NDArray[np.int64], rows: slice | None = None) -> NDArray[np.int64]:
    """The row number of each entry, i.e. the target of each edge, for all rows or some."""
    lo, hi = (0, len(indptr) - 1) if rows is None else (rows.start, rows.stop)
    return np.repeat(np.arange(lo, hi), np.diff(indptr[lo : hi + 1]))


def row_chunks(indptr: NDArray[np.int64]) -> Iterator[tuple[slice, slice]]:
    """Runs of whole rows of about CHUNK entries: the rows and their entries. A larger row comes alone."""
    row, n = 0, len(indptr) - 1
    while row < n:
        stop = int(np.searchsorted(indptr, indptr[row] + CHUNK, side="right")) - 1
        stop = min(max(stop, row + 1), n)
        yield slice(row, stop), slice(int(indptr[row]), int(indptr[stop]))
        row = stop


def chunks(length: int) -> Iterator[slice]:
    """Slices of at most CHUNK covering range(length)."""
    for start in range(0, length, CHUNK):
        yield slice(start, min(start + CHUNK, length))


def index_dtype(num_nodes: int) -> type[np.int32] | type[np.int64]:
    """The type of node numbers on disk and in memory."""
    return np.int32 if num_nodes <= np.iinfo(np.int32).max else np.int64


def _bits(num_nodes: int) -> int:
    return max(1, (num_nodes - 1).bit_length())
