"""Graph folders from edge lists larger than memory: an external sort, by target, through files.

count   one pass over the edges: how many nodes there are and where edges end, which cuts the nodes into buckets that fit memory
deal    one pass: every edge, and its reverse where the graph is undirected, goes as a 64-bit key into the file of its bucket
sort    bucket after bucket: sort the keys, merge copies, append to indices.npy, indptr.npy and weight.npy

The arrays are those that `Graph.from_edge_index(…)`, and `.undirected()`, make in memory, bit for bit. Each pass remembers how
far it has come in the manifest of its working folder, with checksums of the files, so that the next call goes on from there.

A key is (target - first node of the bucket) << bits + 1 | source << 1 | whether the edge is a reverse, with 2^bits ≥ n. The
last bit tells what was given from what was added, and so which copies were given.
"""

from __future__ import annotations

import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from unifews.core import csr, store
from unifews.core.checks import count as number_of
from unifews.core.edges import Edges
from unifews.core.graph import Graph
from unifews.core.inorder import in_order
from unifews.core.memory import Memory
from unifews.core.npy import open_array
from unifews.core.sizes import in_words
from unifews.core.work import Work
from unifews.errors import FileFormatError, GraphError, InputError

Progress = Callable[[str, int, int], None]  # what is going on, chunks or buckets done, of how many

_GROUPS = 1 << 16  # runs of nodes that edges are counted by, before buckets are cut
_BITS = 39  # of a node number, at most: the offsets of so many nodes take four terabytes
_PER_KEY = 18  # bytes of memory a key takes while it is sorted and merged
_PER_WEIGHTED = 64  # and one with a weight, which takes an argsort
_PER_ROW = 40  # and a node, whose offset is found
_OFTEN = 2.0  # seconds between notes of how far the work has come
_HEADER = 128  # bytes of a .npy header for a vector of any length


class Source(Protocol):
    """Edges that can be read chunk by chunk, in any order, on several threads, and again."""

    @property
    def weighted(self) -> bool:
        """Whether edges have weights."""

    def __len__(self) -> int:
        """The number of chunks."""

    def read(self, chunk: int) -> Edges:
        """One chunk, checked (`edges.check`)."""

    def sample(self) -> tuple[Edges, float] | None:
        """Edges that stand for the others, each for so many; None where counting all of them is cheap enough."""

    def drop(self, chunks: int) -> None:
        """The first `chunks` are not needed any more."""


def build(
    work: Work,
    name: str,
    source: Source,
    memory: Memory,
    *,
    num_nodes: int | None = None,
    undirected: bool = False,
    progress: Progress | None = None,
) -> Path:
    """The graph of these edges as the folder `name` in a working folder, complete; or what an earlier call has made of it."""
    place = work.folder / name
    if work.get(name) is None:
        tell = progress or (lambda stage, done, total: None)
        builder = _Builder(work, name, source, memory, undirected, tell)
        with work.writing():
            plan = builder.plan(num_nodes)
            builder.deal(plan)
            builder.sort(plan)
            builder.finish(plan)
    return place


def added(work: Work, name: str) -> int:
    """Reverse edges that the list did not have, of a graph that `build` has finished."""
    state = work.get(f"{name} sorted")
    return int(state["edges"] - state["given"])


def disk_needed(num_edges: int, num_nodes: int, weighted: bool, undirected: bool) -> int:
    """Bytes of disk at the worst moment, when all keys are dealt; sorting frees more than it takes."""
    return num_edges * (1 + undirected) * (12 if weighted else 8) + 8 * (num_nodes + 1)


class _Plan(NamedTuple):
    """Which nodes belong to which bucket."""

    n: int
    shift: int  # nodes are looked up in groups of 2^shift
    cuts: NDArray[np.int64]  # [buckets + 1], first node of each bucket, then n
    bucket_of: NDArray[Any]  # of each group

    @staticmethod
    def of(n: int, cuts: list[int]) -> _Plan:
        shift = max(0, _bits(n) - _GROUPS.bit_length() + 1)
        starts = np.arange((n - 1 >> shift) + 1, dtype=np.int64) << shift
        bucket_of = np.searchsorted(cuts[:-1], starts, side="right") - 1
        # Small numbers are sorted by radix.
        return _Plan(n, shift, np.array(cuts, dtype=np.int64), bucket_of.astype(np.uint8 if len(cuts) <= 257 else np.uint16))

    @property
    def buckets(self) -> int:
        return len(self.cuts) - 1

    @property
    def bits(self) -> int:
        return _bits(self.n)

    def rows(self, bucket: int) -> int:
        return int(self.cuts[bucket + 1] - self.cuts[bucket])


class _Dealt(NamedTuple):
    """The keys of a chunk, bucket by bucket."""

    keys: NDArray[np.int64]
    weight: NDArray[np.float32] | None
    ends: NDArray[np.int64]  # [buckets], where each bucket's keys end
    edges: int  # given, less self-loops and what weighs nothing
    loops: int


class _Run(NamedTuple):
    """Sorted edges without copies: all of a bucket, or a stretch of it."""

    indices: NDArray[Any]
    weight: NDArray[np.float32] | None
    ends: NDArray[np.int64]  # [rows], edges up to the end of each row
    given: int  # of these edges were listed themselves, not only their reverse


class _Builder:
    """One graph on its way into a folder."""

    def __init__(self, work: Work, name: str, source: Source, memory: Memory, undirected: bool, tell: Progress) -> None:
        self.work, self.name, self.source, self.memory = work, name, source, memory
        self.undirected, self.tell = undirected, tell
        self.place = work.folder / name
        self.spill = work.folder / f"{name}-buckets"
        self.per_key = _PER_WEIGHTED if source.weighted else _PER_KEY

    # ---------------------------------------------------------------------------------------------------------- count

    def plan(self, num_nodes: int | None) -> _Plan:
        """Cut the nodes into buckets, or take the cuts that were made before."""
        kept = self.work.get(f"{self.name} plan")
        if kept is None:
            kept = self._counted(num_nodes)
            self.spill.mkdir(exist_ok=True)
            self.place.mkdir(exist_ok=True)
            self.work.keep(**{f"{self.name} plan": kept})
        if kept["share"] > 1.05 * self.memory.share:
            needed = (kept["share"] - self.memory.share) * (self.memory.threads + 2) + self.memory.total
            raise InputError(
                f"the interrupted work in {self.work.folder} was planned for more memory than {in_words(self.memory.total)}. "
                f"Give {in_words(needed)}, or start afresh with again=True (--again)."
            )
        return _Plan.of(kept["num_nodes"], kept["cuts"])

    def _counted(self, num_nodes: int | None) -> dict[str, Any]:
        sample, share = self.source.sample(), self.memory.share
        counts = _Counts(self.undirected)
        with self.work.reading():
            if sample is None:
                for done, ends in enumerate(in_order(self.source.read, range(len(self.source)), self.memory.threads), 1):
                    counts.add(ends)
                    self.tell("counting edges", done, len(self.source))
            else:
                counts.add(sample[0])
                counts.groups = np.ceil(counts.groups * sample[1]).astype(np.int64)
                share = int(0.75 * share)  # a sample may be off
            n = self._num_nodes(counts, num_nodes)
        counts.spread(n)
        edges = int(counts.groups.sum()) // (1 + self.undirected)
        self.work.check_disk(disk_needed(edges, n, self.source.weighted, self.undirected), self._what(n, edges))
        return {"num_nodes": n, "share": self.memory.share, "cuts": _cut(counts, n, share, self.per_key)}

    def _num_nodes(self, counts: _Counts, num_nodes: int | None) -> int:
        if num_nodes is None and counts.largest < 0:
            raise GraphError("a graph without edges needs num_nodes, since nothing else says how many nodes it has.")
        n = counts.largest + 1 if num_nodes is None else num_nodes
        if n < 1:
            raise GraphError(f"a graph needs at least one node; got num_nodes={n}.")
        if counts.largest >= n:
            raise GraphError(
                f"an edge names node {counts.largest:,}, but a graph of {number_of(n, 'node')} has numbers 0 … {n - 1:,}; "
                f"num_nodes must be at least {counts.largest + 1:,}."
            )
        if _bits(n) > _BITS:
            raise GraphError(
                f"the largest node number is {max(counts.largest, n - 1):,}, and a graph has at most 2^{_BITS} nodes, numbered "
                f"from 0 without gaps. Number the nodes anew first."
            )
        return n

    def _what(self, n: int, edges: int) -> str:
        return f"sorting {number_of(edges, 'edge')}{' in both directions' if self.undirected else ''} of {number_of(n, 'node')}"

    # ----------------------------------------------------------------------------------------------------------- deal

    def deal(self, plan: _Plan) -> None:
        """Write every edge into the file of its bucket."""
        key = f"{self.name} dealt"
        state = self.work.get(key) or {
            "chunks": 0, "edges": 0, "loops": 0, "bytes": [0] * plan.buckets, "crc": [0] * plan.buckets,
            "weights": [0] * plan.buckets,
        }  # fmt: skip
        total = len(self.source)
        if state["chunks"] == total and self.work.get(key) is not None:
            return
        for bucket in range(plan.buckets):
            _cut_back(self._keys_of(bucket), state["bytes"][bucket])
            if self.source.weighted:
                _cut_back(self._weights_of(bucket), state["bytes"][bucket] // 2)

        def dealt(chunk: int) -> _Dealt:
            return _deal(self.source.read(chunk), plan, self.undirected)

        noted = time.monotonic()
        todo = range(state["chunks"], total)
        for done, piece in enumerate(in_order(dealt, todo, self.memory.threads), todo.start + 1):
            self._append(piece, state)
            state |= {"chunks": done, "edges": state["edges"] + piece.edges, "loops": state["loops"] + piece.loops}
            self.tell("dealing edges", done, total)
            if time.monotonic() - noted > _OFTEN and done < total:
                self.work.keep(**{key: state})
                self.source.drop(done)
                noted = time.monotonic()
        self.work.keep(**{key: state})
        self.source.drop(total)

    def _append(self, piece: _Dealt, state: dict[str, Any]) -> None:
        start = 0
        for bucket, end in enumerate(piece.ends.tolist()):
            if end == start:
                continue
            keys = piece.keys[start:end]
            state["crc"][bucket] = _append(self._keys_of(bucket), keys, state["crc"][bucket])
            state["bytes"][bucket] += keys.nbytes
            if piece.weight is not None:
                weights = piece.weight[start:end]
                state["weights"][bucket] = _append(self._weights_of(bucket), weights, state["weights"][bucket])
            start = end

    def _keys_of(self, bucket: int) -> Path:
        return self.spill / f"{bucket}.keys"

    def _weights_of(self, bucket: int) -> Path:
        return self.spill / f"{bucket}.weights"

    # ----------------------------------------------------------------------------------------------------------- sort

    def sort(self, plan: _Plan) -> None:
        """Append the edges of bucket after bucket to the arrays of the graph."""
        key = f"{self.name} sorted"
        dealt = self.work.get(f"{self.name} dealt")
        state = self.work.get(key) or {
            "buckets": 0, "edges": 0, "given": 0, "ones": True, "crc": {"indptr": 0, "indices": 0, "weight": 0},
            "bytes": {"indptr": 0, "indices": 0, "weight": 0},
        }  # fmt: skip
        if state["buckets"] == plan.buckets:
            return
        self._resume(plan, state)

        def sorted_bucket(bucket: int) -> _Run | None:
            size = dealt["bytes"][bucket]
            if size // 8 * self.per_key > 1.3 * self.memory.share:
                return None  # a node with more neighbours than fit: by stretches, when its turn comes
            keys = _read(self._keys_of(bucket), np.dtype(np.int64), size, dealt["crc"][bucket])
            weight = None
            if self.source.weighted:
                weight = _read(self._weights_of(bucket), np.dtype(np.float32), size // 2, dealt["weights"][bucket])
            return _sorted(keys, weight, plan, bucket, self.undirected)

        noted, finished = time.monotonic(), []
        todo = range(state["buckets"], plan.buckets)
        for bucket, run in zip(todo, in_order(sorted_bucket, todo, self.memory.threads), strict=True):
            ends = np.full(plan.rows(bucket), state["edges"], dtype=np.int64)
            for part in self._stretches(plan, bucket) if run is None else [run]:
                ends += part.ends
                self._write("indices", part.indices, state)
                if part.weight is not None:
                    self._write("weight", part.weight, state)
                    state["ones"] = state["ones"] and bool((part.weight == 1).all())
                state["edges"] += len(part.indices)
                state["given"] += part.given
            self._write("indptr", ends, state)
            del run
            state["buckets"] = bucket + 1
            finished.append(bucket)
            self.tell("sorting edges", bucket + 1, plan.buckets)
            if time.monotonic() - noted > _OFTEN or bucket + 1 == plan.buckets:
                self.work.keep(**{key: state})
                for old in finished:
                    self._keys_of(old).unlink(missing_ok=True)
                    self._weights_of(old).unlink(missing_ok=True)
                noted, finished = time.monotonic(), []

    def _resume(self, plan: _Plan, state: dict[str, Any]) -> None:
        """The arrays as they were at the last note."""
        types = {"indptr": np.dtype(np.int64), "indices": np.dtype(csr.index_dtype(plan.n)), "weight": np.dtype(np.float32)}
        for name, dtype in types.items():
            if name == "weight" and not self.source.weighted:
                continue
            file = self._array(name)
            if not state["buckets"]:
                _write_header(file, dtype, plan.n + 1 if name == "indptr" else 0)
                if name == "indptr":
                    self._write(name, np.zeros(1, dtype=np.int64), state)
            else:
                _cut_back(file, _HEADER + state["bytes"][name])
                if _checksum(file, _HEADER) != state["crc"][name]:
                    raise damaged(file)

    def _write(self, name: str, array: NDArray[Any], state: dict[str, Any]) -> None:
        state["crc"][name] = _append(self._array(name), array, state["crc"][name])
        state["bytes"][name] += array.nbytes

    def _array(self, name: str) -> Path:
        return self.place / f"{name}.npy"

    def _stretches(self, plan: _Plan, bucket: int) -> Iterator[_Run]:
        """A bucket larger than its share of the memory, cut by its keys into stretches that are not."""
        dealt = self.work.get(f"{self.name} dealt")
        keys_file, weights_file = self._keys_of(bucket), self._weights_of(bucket) if self.source.weighted else None
        for file, crc in ((keys_file, dealt["crc"][bucket]), (weights_file, dealt["weights"][bucket])):
            if file is not None and _checksum(file) != crc:
                raise damaged(file)
        size, place = dealt["bytes"][bucket] // 8, self.spill / f"{bucket}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        step = max(1, self.memory.share // (2 * self.per_key))
        pivots = _pivots(keys_file, size, step)
        for start in range(0, size, step):
            keys = np.fromfile(keys_file, np.int64, step, offset=8 * start)
            weight = None if weights_file is None else np.fromfile(weights_file, np.float32, step, offset=4 * start)
            if weight is None:
                keys.sort()
                keys = keys[: csr.distinct(keys)]  # an edge listed a billion times should not stay so long
            home = np.searchsorted(pivots, keys, side="right")
            for part in np.unique(home):
                _append(place / f"{part}.keys", keys[home == part], 0)
                if weight is not None:
                    _append(place / f"{part}.weights", weight[home == part], 0)
        for part in range(len(pivots) + 1):
            file = place / f"{part}.keys"
            if not file.exists():
                continue
            held = file.stat().st_size // 8
            if weights_file is None:
                keys = np.empty(0, dtype=np.int64)
                for start in range(0, held, step):  # many only where they are copies of a few
                    keys = np.unique(np.concatenate([keys, np.fromfile(file, np.int64, step, offset=8 * start)]))
                weight = None
            elif held * self.per_key > 3 * self.memory.share:
                needed = self.memory.total + (held * self.per_key // 3 - self.memory.share) * (self.memory.threads + 2)
                raise InputError(
                    f"an edge is listed so often, up to {held:,} times, that its weights do not fit "
                    f"memory={in_words(self.memory.total)}. Give {in_words(needed)}, or merge its copies first."
                )
            else:
                keys, weight = np.fromfile(file, np.int64), np.fromfile(place / f"{part}.weights", np.float32)
            yield _sorted(keys, weight, plan, bucket, self.undirected)
        shutil.rmtree(place)

    # --------------------------------------------------------------------------------------------------------- finish

    def finish(self, plan: _Plan) -> None:
        """Complete the folder: lengths into headers, and what it holds."""
        dealt, done = self.work.get(f"{self.name} dealt"), self.work.get(f"{self.name} sorted")
        _write_header(self._array("indices"), np.dtype(csr.index_dtype(plan.n)), done["edges"], keep=True)
        weighted = self.source.weighted and not done["ones"]
        if weighted:
            _write_header(self._array("weight"), np.dtype(np.float32), done["edges"], keep=True)
        else:
            self._array("weight").unlink(missing_ok=True)
        indptr, indices = (open_array(self._array(name)) for name in ("indptr", "indices"))
        weight = open_array(self._array("weight")) if weighted else None
        merged = dealt["edges"] - done["given"]
        graph = Graph(indptr, indices, weight, dealt["loops"], merged, True if self.undirected else None)
        store.describe(self.place, graph.stored())
        self.work.keep(**{self.name: "finished"})
        shutil.rmtree(self.spill, ignore_errors=True)


class _Counts:
    """Where edges end, counted by groups of nodes that grow with the largest number seen."""

    def __init__(self, undirected: bool) -> None:
        self.undirected = undirected
        self.largest = -1
        self.shift = 0
        self.groups = np.zeros(_GROUPS, dtype=np.int64)

    def add(self, edges: Edges) -> None:
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


def _cut(counts: _Counts, n: int, share: int, per_key: int) -> list[int]:
    """First nodes of buckets that take `share` bytes each, unless one group takes more; and n."""
    rows = 1 << counts.shift
    most = 1 << 62 - _bits(n)  # rows of a bucket whose keys fit 63 bits
    cuts, filled, first = [0], 0, 0
    for group, edges in enumerate(counts.groups.tolist()):
        takes = edges * per_key + rows * _PER_ROW
        if group > first and (filled + takes > share or (group + 1 - first) * rows > most):
            cuts.append(group * rows)
            filled, first = 0, group
        filled += takes
    return [*cuts, n]


def _deal(edges: Edges, plan: _Plan, undirected: bool) -> _Dealt:
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
    home = plan.bucket_of[target >> plan.shift]
    keys = target - plan.cuts[home]
    keys <<= plan.bits
    keys |= source
    keys <<= 1
    keys[m:] |= 1
    order = np.argsort(home, kind="stable")
    ends = np.cumsum(np.bincount(home, minlength=plan.buckets))
    return _Dealt(keys[order], None if weight is None else weight[order], ends, m, loops)


def _sorted(keys: NDArray[np.int64], weight: NDArray[np.float32] | None, plan: _Plan, bucket: int, undirected: bool) -> _Run:
    """Sorted edges without copies. Uses `keys` as its working memory, and as that of the result."""
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
    rows = np.arange(1, plan.rows(bucket) + 1, dtype=np.int64)
    rows <<= plan.bits
    ends = np.searchsorted(keys, rows).astype(np.int64, copy=False)
    # Written over the keys themselves: a number is never longer than its key, and chunks behind are not touched.
    indices = keys.view(csr.index_dtype(plan.n))[: len(keys)]
    for part in csr.chunks(len(keys)):
        indices[part] = keys[part] & (1 << plan.bits) - 1
    return _Run(indices, weight, ends, given)


def _first(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct ones of sorted keys, and where each begins."""
    new = np.ones(len(keys), dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=new[1:])
    return keys[new], np.flatnonzero(new)


def _pivots(file: Path, size: int, step: int) -> NDArray[np.int64]:
    """Keys that cut a file into stretches of half of `step`, by a sample of it."""
    every = max(1, size // 200_000)
    taken = [np.fromfile(file, np.int64, step, offset=8 * start)[::every] for start in range(0, size, step)]
    sample = np.sort(np.concatenate(taken)) & ~1  # an edge stays with the reverse that gave it
    parts = 2 * -(-size // step)
    return np.unique(sample[np.arange(1, parts) * len(sample) // parts])


def _bits(n: int) -> int:
    return max(1, (n - 1).bit_length())


# --------------------------------------------------------------------------------------------------------------- files


def _append(file: Path, array: NDArray[Any], crc: int) -> int:
    """Append the bytes of an array; the checksum of the file's contents, `crc` before."""
    data = np.ascontiguousarray(array).view(np.uint8).data
    with file.open("ab") as out:
        out.write(data)
    return zlib.crc32(data, crc)


def _read(file: Path, dtype: np.dtype[Any], size: int, crc: int) -> NDArray[Any]:
    if not size:
        return np.empty(0, dtype=dtype)
    if not file.exists() or file.stat().st_size != size:
        raise damaged(file)
    array = np.fromfile(file, dtype)
    if zlib.crc32(array.view(np.uint8).data) != crc:
        raise damaged(file)
    return array


def _checksum(file: Path, start: int = 0) -> int:
    crc = 0
    with file.open("rb") as data:
        data.seek(start)
        while block := data.read(1 << 22):
            crc = zlib.crc32(block, crc)
    return crc


def _cut_back(file: Path, size: int) -> None:
    """Take away what was written after the last note."""
    if not size:
        file.unlink(missing_ok=True)
    elif not file.exists() or file.stat().st_size < size:
        raise damaged(file)
    else:
        os.truncate(file, size)


def damaged(file: Path) -> FileFormatError:
    """The error for a file of the working folder that something else has written."""
    return FileFormatError(f"{file} is not as it was left by the interrupted call. Start afresh with again=True (--again).")


def _write_header(file: Path, dtype: np.dtype[Any], length: int, *, keep: bool = False) -> None:
    """The header of a vector that follows; with `keep`, in the place of the one that is there."""
    with file.open("r+b" if keep else "wb") as out:
        npy.write_array_header_1_0(out, {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": (length,)})
        assert out.tell() == _HEADER
