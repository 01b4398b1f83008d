"""Graph folders from edge lists larger than memory: an external sort, by target, through files.

count   one pass over the edges: how many nodes there are and where edges end, which cuts the nodes into buckets that fit memory
deal    one pass: every edge, and its reverse where the graph is undirected, goes as a 64-bit key into the file of its bucket
sort    bucket after bucket: sort the keys, merge copies, append to indices.npy, indptr.npy and weight.npy

The arrays are those that `Graph.from_edge_index(…)`, and `.undirected()`, make in memory, bit for bit. Each pass remembers how
far it has come in the manifest of its working folder, with checksums of the files, so that the next call goes on from there.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unifews.core import csr, graph_folder
from unifews.core.checks import check_proportion
from unifews.core.checks import count as number_of
from unifews.core.graph import Graph
from unifews.errors import GraphError, InputError
from unifews.io import edge_buckets
from unifews.io.edge_buckets import Buckets, Counts, Dealt, Run
from unifews.io.edge_lists import EdgeList
from unifews.resources import Memory, StageProgress, format_bytes, in_order
from unifews.storage import state_files
from unifews.storage.journal import Work
from unifews.storage.npy import open_array

_OFTEN = 2.0  # seconds between notes of how far the work has come


class Source(Protocol):
    """Edges that can be read chunk by chunk, in any order, on several threads, and again."""

    @property
    def weighted(self) -> bool:
        """Whether edges have weights."""

    def __len__(self) -> int:
        """The number of chunks."""

    def read(self, chunk: int) -> EdgeList:
        """One chunk, checked (`edges.check`)."""

    def sample(self) -> tuple[EdgeList, float] | None:
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
    progress: StageProgress | None = None,
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


class _Builder:
    """One graph on its way into a folder."""

    def __init__(self, work: Work, name: str, source: Source, memory: Memory, undirected: bool, tell: StageProgress) -> None:
        self.work, self.name, self.source, self.memory = work, name, source, memory
        self.undirected, self.tell = undirected, tell
        self.place = work.folder / name
        self.files = work.folder / f"{name}-buckets"
        self.per_key = edge_buckets.PER_WEIGHTED if source.weighted else edge_buckets.PER_KEY

    # ---------------------------------------------------------------------------------------------------------- count

    def plan(self, num_nodes: int | None) -> Buckets:
        """Cut the nodes into buckets, or take the cuts that were made before."""
        kept = self.work.get(f"{self.name} plan")
        if kept is None:
            kept = self._counted(num_nodes)
            self.files.mkdir(exist_ok=True)
            self.place.mkdir(exist_ok=True)
            self.work.keep(**{f"{self.name} plan": kept})
        if kept["share"] > 1.05 * self.memory.share:
            needed = (kept["share"] - self.memory.share) * (self.memory.threads + 2) + self.memory.total
            raise InputError(
                f"the interrupted work in {self.work.folder} was planned for more than {format_bytes(self.memory.total)}. "
                f"Give {format_bytes(needed)}, or start afresh with again=True (--again)."
            )
        return Buckets.of(kept["num_nodes"], kept["cuts"])

    def _counted(self, num_nodes: int | None) -> dict[str, Any]:
        sample, share = self.source.sample(), self.memory.share
        counts = Counts(self.undirected)
        with self.work.reading():
            if sample is None:
                for done, ends in enumerate(in_order(self.source.read, range(len(self.source)), self.memory.threads), 1):
                    counts.add(ends)
                    self.tell("counting edges", done, len(self.source))
            else:
                counts.add(sample[0])
                counts.groups = np.ceil(counts.groups * sample[1]).astype(np.int64)
                share = int(0.75 * share)  # a sample may be off
            edges = int(counts.groups.sum()) // (1 + self.undirected)
            n = self._num_nodes(counts, num_nodes, edges)
        counts.spread(n)
        self.work.check_disk(disk_needed(edges, n, self.source.weighted, self.undirected), self._what(n, edges))
        return {"num_nodes": n, "share": self.memory.share, "cuts": edge_buckets.cut(counts, n, share, self.per_key)}

    def _num_nodes(self, counts: Counts, num_nodes: int | None, edges: int) -> int:
        if num_nodes is None and counts.largest < 0:
            raise GraphError("a graph without edges needs num_nodes, since nothing else says how many nodes it has.")
        if num_nodes is not None and (isinstance(num_nodes, bool) or not isinstance(num_nodes, int | np.integer)):
            raise InputError(f"num_nodes must be an integer; got {num_nodes!r}.")
        n = counts.largest + 1 if num_nodes is None else int(num_nodes)
        if n < 1:
            raise GraphError(f"a graph needs at least one node; got num_nodes={n}.")
        if counts.largest >= n:
            raise GraphError(
                f"an edge names node {counts.largest:,}, but a graph of {number_of(n, 'node')} has numbers 0 … {n - 1:,}; "
                f"num_nodes must be at least {counts.largest + 1:,}."
            )
        if edge_buckets.bits(n) > edge_buckets.BITS:
            raise GraphError(
                f"the largest node number is {max(counts.largest, n - 1):,}, and a graph has at most "
                f"2^{edge_buckets.BITS} nodes, numbered from 0 without gaps. Pass ids=True if these are identifiers."
            )
        if num_nodes is None:
            check_proportion(n, edges)
        return n

    def _what(self, n: int, edges: int) -> str:
        return f"sorting {number_of(edges, 'edge')}{' in both directions' if self.undirected else ''} of {number_of(n, 'node')}"

    # ----------------------------------------------------------------------------------------------------------- deal

    def deal(self, plan: Buckets) -> None:
        """Write every edge into the file of its bucket."""
        key = f"{self.name} dealt"
        state = self.work.get(key) or {
            "chunks": 0, "edges": 0, "loops": 0, "bytes": [0] * plan.number, "crc": [0] * plan.number,
            "weights": [0] * plan.number,
        }  # fmt: skip
        total = len(self.source)
        if state["chunks"] == total and self.work.get(key) is not None:
            return
        for bucket in range(plan.number):
            state_files.cut_back(self._keys_of(bucket), state["bytes"][bucket])
            if self.source.weighted:
                state_files.cut_back(self._weights_of(bucket), state["bytes"][bucket] // 2)

        def dealt(chunk: int) -> Dealt:
            return edge_buckets.deal(self.source.read(chunk), plan, self.undirected)

        noted = time.monotonic()
        todo = range(state["chunks"], total)
        for done, piece in enumerate(in_order(dealt, todo, self.memory.threads), todo.start + 1):
            self._spill(piece, state)
            state |= {"chunks": done, "edges": state["edges"] + piece.edges, "loops": state["loops"] + piece.loops}
            self.tell("dealing edges", done, total)
            if time.monotonic() - noted > _OFTEN and done < total:
                self.work.keep(**{key: state})
                self.source.drop(done)
                noted = time.monotonic()
        self.work.keep(**{key: state})
        self.source.drop(total)

    def _spill(self, piece: Dealt, state: dict[str, Any]) -> None:
        start = 0
        for bucket, end in enumerate(piece.ends.tolist()):
            if end == start:
                continue
            keys = piece.keys[start:end]
            state["crc"][bucket] = state_files.append(self._keys_of(bucket), keys, state["crc"][bucket])
            state["bytes"][bucket] += keys.nbytes
            if piece.weight is not None:
                weights = piece.weight[start:end]
                state["weights"][bucket] = state_files.append(self._weights_of(bucket), weights, state["weights"][bucket])
            start = end

    def _keys_of(self, bucket: int) -> Path:
        return self.files / f"{bucket}.keys"

    def _weights_of(self, bucket: int) -> Path:
        return self.files / f"{bucket}.weights"

    # ----------------------------------------------------------------------------------------------------------- sort

    def sort(self, plan: Buckets) -> None:
        """Append the edges of bucket after bucket to the arrays of the graph."""
        key = f"{self.name} sorted"
        dealt = self.work.get(f"{self.name} dealt")
        state = self.work.get(key) or {
            "buckets": 0, "edges": 0, "given": 0, "ones": True, "crc": {"indptr": 0, "indices": 0, "weight": 0},
            "bytes": {"indptr": 0, "indices": 0, "weight": 0},
        }  # fmt: skip
        if state["buckets"] == plan.number:
            return
        self._resume(plan, state)

        def sorted_bucket(bucket: int) -> Run | None:
            size = dealt["bytes"][bucket]
            if size // 8 * self.per_key > 1.3 * self.memory.share:
                return None  # a node with more neighbours than fit: by stretches, when its turn comes
            keys = state_files.read(self._keys_of(bucket), np.dtype(np.int64), size, dealt["crc"][bucket])
            weight = None
            if self.source.weighted:
                weight = state_files.read(self._weights_of(bucket), np.dtype(np.float32), size // 2, dealt["weights"][bucket])
            return edge_buckets.sort(keys, weight, plan, bucket, self.undirected)

        noted, finished = time.monotonic(), []
        todo = range(state["buckets"], plan.number)
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
            self.tell("sorting edges", bucket + 1, plan.number)
            if time.monotonic() - noted > _OFTEN or bucket + 1 == plan.number:
                self.work.keep(**{key: state})
                for old in finished:
                    self._keys_of(old).unlink(missing_ok=True)
                    self._weights_of(old).unlink(missing_ok=True)
                noted, finished = time.monotonic(), []

    def _resume(self, plan: Buckets, state: dict[str, Any]) -> None:
        """The arrays as they were at the last note."""
        types = {"indptr": np.dtype(np.int64), "indices": np.dtype(csr.index_dtype(plan.n)), "weight": np.dtype(np.float32)}
        for name, dtype in types.items():
            if name == "weight" and not self.source.weighted:
                continue
            file = self._array(name)
            if not state["buckets"]:
                state_files.write_header(file, dtype, (plan.n + 1 if name == "indptr" else 0,))
                if name == "indptr":
                    self._write(name, np.zeros(1, dtype=np.int64), state)
            else:
                state_files.cut_back(file, state_files.HEADER + state["bytes"][name])
                if state_files.checksum(file, state_files.HEADER) != state["crc"][name]:
                    raise state_files.damaged(file)

    def _write(self, name: str, array: NDArray[Any], state: dict[str, Any]) -> None:
        state["crc"][name] = state_files.append(self._array(name), array, state["crc"][name])
        state["bytes"][name] += array.nbytes

    def _array(self, name: str) -> Path:
        return self.place / f"{name}.npy"

    def _stretches(self, plan: Buckets, bucket: int) -> Iterator[Run]:
        """A bucket larger than its share of the memory, cut by its keys into stretches that are not."""
        dealt = self.work.get(f"{self.name} dealt")
        keys_file, weights_file = self._keys_of(bucket), self._weights_of(bucket) if self.source.weighted else None
        for file, crc in ((keys_file, dealt["crc"][bucket]), (weights_file, dealt["weights"][bucket])):
            if file is not None and state_files.checksum(file) != crc:
                raise state_files.damaged(file)
        size, place = dealt["bytes"][bucket] // 8, self.files / f"{bucket}"
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
                state_files.append(place / f"{part}.keys", keys[home == part], 0)
                if weight is not None:
                    state_files.append(place / f"{part}.weights", weight[home == part], 0)
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
                    f"memory={format_bytes(self.memory.total)}. Give {format_bytes(needed)}, or merge its copies first."
                )
            else:
                keys, weight = np.fromfile(file, np.int64), np.fromfile(place / f"{part}.weights", np.float32)
            yield edge_buckets.sort(keys, weight, plan, bucket, self.undirected)
        shutil.rmtree(place)

    # --------------------------------------------------------------------------------------------------------- finish

    def finish(self, plan: Buckets) -> None:
        """Complete the folder: lengths into headers, and what it holds."""
        dealt, done = self.work.get(f"{self.name} dealt"), self.work.get(f"{self.name} sorted")
        state_files.write_header(self._array("indices"), np.dtype(csr.index_dtype(plan.n)), (done["edges"],), keep=True)
        weighted = self.source.weighted and not done["ones"]
        if weighted:
            state_files.write_header(self._array("weight"), np.dtype(np.float32), (done["edges"],), keep=True)
        else:
            self._array("weight").unlink(missing_ok=True)
        indptr, indices = (open_array(self._array(name)) for name in ("indptr", "indices"))
        weight = open_array(self._array("weight")) if weighted else None
        merged = dealt["edges"] - done["given"]
        graph = Graph(indptr, indices, weight, dealt["loops"], merged, True if self.undirected else None, _checked=True)
        graph_folder.describe(self.place, graph.stored())
        self.work.keep(**{self.name: "finished"})
        shutil.rmtree(self.files, ignore_errors=True)


def _pivots(file: Path, size: int, step: int) -> NDArray[np.int64]:
    """Keys that cut a file into stretches of half of `step`, by a sample of it."""
    every = max(1, size // 200_000)
    taken = [np.fromfile(file, np.int64, step, offset=8 * start)[::every] for start in range(0, size, step)]
    sample = np.sort(np.concatenate(taken)) & ~1  # an edge stays with the reverse that gave it
    parts = 2 * -(-size // step)
    return np.unique(sample[np.arange(1, parts) * len(sample) // parts])
