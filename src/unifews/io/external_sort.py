"""Graph folders from edge lists larger than memory: an external sort, by target.

count        one pass over the edges: the number of nodes and where edges end, which cuts the nodes into buckets that fit memory
distribute   one pass: every edge, and its reverse where the graph is undirected, is appended as a 64-bit key to its bucket
sort         bucket after bucket: sort the keys, merge copies, append to indices.npy, indptr.npy and weight.npy

The arrays are those that `Graph.from_edge_index(…)`, and `.undirected()`, make in memory, bit for bit. Each pass records how
far it has come in the journal of its working folder, with checksums of the files, so that the next call continues from there.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from unifews.core import csr, graph_folder
from unifews.core.checks import check_proportion
from unifews.core.checks import count as number_of
from unifews.core.graph import Graph
from unifews.errors import GraphError, InputError
from unifews.io import edge_buckets
from unifews.io.edge_buckets import BucketedKeys, Buckets, EdgeCounts, SortedRun
from unifews.io.edge_lists import EdgeList
from unifews.resources import Memory, StageProgress, format_bytes, in_order, report
from unifews.storage import state_files
from unifews.storage.journal import Journal
from unifews.storage.npy import open_array
from unifews.storage.state_files import AppendedFiles


class EdgeSource(ABC):
    """Edges that can be read chunk by chunk, in any order, on several threads, and again."""

    weighted: bool
    """Whether edges have weights."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of chunks."""

    @abstractmethod
    def read(self, chunk: int) -> EdgeList:
        """One chunk, checked (`edge_lists.check`)."""

    def sample(self) -> tuple[EdgeList, float] | None:
        """A sample of the edges, and how many edges each of it stands for; None where counting all is cheap enough."""
        return None

    def drop(self, chunks: int) -> None:  # noqa: B027 - most sources have nothing to free
        """The first `chunks` are not needed any more."""


class _BucketPlan(TypedDict):
    """The first step of a sort in the journal."""

    num_nodes: int
    share: int
    """Bytes of memory for a bucket."""
    cuts: list[int]


class _Distributed(TypedDict):
    """The second step."""

    done: int
    """Chunks."""
    edges: int
    loops: int
    files: dict[str, list[int]]


class _Sorted(TypedDict):
    """The third step."""

    done: int
    """Buckets."""
    edges: int
    given: int
    ones: bool
    """Whether all weights are 1."""
    files: dict[str, list[int]]


def build(
    journal: Journal,
    name: str,
    source: EdgeSource,
    memory: Memory,
    *,
    num_nodes: int | None = None,
    undirected: bool = False,
    progress: StageProgress | None = None,
) -> Path:
    """The graph of these edges as the folder `name` in a working folder, complete; or as an earlier call has built it."""
    if journal.get(name) is None:
        builder = _Builder(journal, name, source, memory, undirected, progress)
        with journal.writing():
            buckets = builder.plan(num_nodes)
            builder.distribute(buckets)
            builder.sort(buckets)
            builder.finish(buckets)
    return journal.folder / name


def added(journal: Journal, name: str) -> int:
    """Reverse edges that the list did not have, of a graph that `build` has finished."""
    state: _Sorted = journal.get(f"{name} sorted")
    return state["edges"] - state["given"]


def disk_needed(num_edges: int, num_nodes: int, weighted: bool, undirected: bool) -> int:
    """Maximum of the bytes of disk, when all keys are distributed; sorting frees more than it takes."""
    return num_edges * (1 + undirected) * (12 if weighted else 8) + 8 * (num_nodes + 1)


def check_share(journal: Journal, planned: int, memory: Memory) -> None:
    """An error if interrupted work was planned for buckets of more memory than there is now."""
    if planned > 1.05 * memory.share:
        needed = (planned - memory.share) * (memory.threads + 2) + memory.total
        raise InputError(
            f"the interrupted work in {journal.folder} was planned for more than {format_bytes(memory.total)}. "
            f"Give {format_bytes(needed)}, or start over with restart=True (--restart)."
        )


class _Builder:
    """The construction of one graph folder."""

    def __init__(
        self,
        journal: Journal,
        name: str,
        source: EdgeSource,
        memory: Memory,
        undirected: bool,
        progress: StageProgress | None,
    ) -> None:
        self.journal, self.name, self.source, self.memory = journal, name, source, memory
        self.undirected, self.progress = undirected, progress
        self.graph = journal.folder / name
        self.buckets = journal.folder / f"{name}-buckets"
        self.per_key = edge_buckets.PER_WEIGHTED if source.weighted else edge_buckets.PER_KEY

    # ---------------------------------------------------------------------------------------------------------- count

    def plan(self, num_nodes: int | None) -> Buckets:
        """Cut the nodes into buckets, or take the recorded cuts."""
        plan: _BucketPlan | None = self.journal.get(f"{self.name} plan")
        if plan is None:
            plan = self._counted(num_nodes)
            self.buckets.mkdir(exist_ok=True)
            self.graph.mkdir(exist_ok=True)
            self.journal.record(**{f"{self.name} plan": plan})
        check_share(self.journal, plan["share"], self.memory)
        return Buckets.of(plan["num_nodes"], plan["cuts"])

    def _counted(self, num_nodes: int | None) -> _BucketPlan:
        sample, share = self.source.sample(), self.memory.share
        counts = EdgeCounts(self.undirected)
        with self.journal.reading():
            if sample is None:
                for done, ends in enumerate(in_order(self.source.read, range(len(self.source)), self.memory.threads), 1):
                    counts.add(ends)
                    report(self.progress, "counting edges", done, len(self.source))
            else:
                counts.add(sample[0])
                counts.groups = np.ceil(counts.groups * sample[1]).astype(np.int64)
                share = int(0.75 * share)  # a sample may be off
            edges = int(counts.groups.sum()) // (1 + self.undirected)
            n = self._num_nodes(counts, num_nodes, edges)
        counts.spread(n)
        directions = " in both directions" if self.undirected else ""
        what = f"sorting {number_of(edges, 'edge')}{directions} of {number_of(n, 'node')}"
        self.journal.check_disk(disk_needed(edges, n, self.source.weighted, self.undirected), what)
        return {"num_nodes": n, "share": self.memory.share, "cuts": edge_buckets.cut(counts, n, share, self.per_key)}

    def _num_nodes(self, counts: EdgeCounts, num_nodes: int | None, edges: int) -> int:
        if num_nodes is None and counts.largest < 0:
            raise GraphError("a graph without edges needs num_nodes, since nothing else gives the number of nodes.")
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

    # ----------------------------------------------------------------------------------------------------- distribute

    def distribute(self, buckets: Buckets) -> None:
        """Append every edge to the files of its bucket."""
        step, total = f"{self.name} distributed", len(self.source)
        recorded: _Distributed | None = self.journal.get(step)
        if recorded is not None and recorded["done"] == total:
            return
        state: _Distributed = recorded or {"done": 0, "edges": 0, "loops": 0, "files": {}}
        files = AppendedFiles(self.buckets, state["files"])
        files.restore((f"{i}.{kind}" for i in range(buckets.number) for kind in ("keys", "weights")), verify=False)

        def bucketed(chunk: int) -> BucketedKeys:
            return edge_buckets.bucketed(self.source.read(chunk), buckets, self.undirected)

        def append(chunk: BucketedKeys) -> None:
            start = 0
            for bucket, end in enumerate(chunk.ends.tolist()):
                if end > start:
                    files.append(f"{bucket}.keys", chunk.keys[start:end])
                    if chunk.weight is not None:
                        files.append(f"{bucket}.weights", chunk.weight[start:end])
                start = end
            state["edges"] += chunk.edges
            state["loops"] += chunk.loops
            state["done"] += 1
            report(self.progress, "distributing edges", state["done"], total)

        chunks = in_order(bucketed, range(state["done"], total), self.memory.threads)
        self.journal.append_resumably(step, state, chunks, append, lambda: self.source.drop(state["done"]))

    # ----------------------------------------------------------------------------------------------------------- sort

    def sort(self, buckets: Buckets) -> None:
        """Append the edges of bucket after bucket to the arrays of the graph."""
        keys = self._keys()
        step = f"{self.name} sorted"
        begin: _Sorted = {"done": 0, "edges": 0, "given": 0, "ones": True, "files": {}}
        state: _Sorted = self.journal.get(step) or begin
        if state["done"] == buckets.number:
            return
        arrays = AppendedFiles(self.graph, state["files"])
        if state["done"]:
            arrays.restore([*arrays.recorded])
        else:
            arrays.create("indptr.npy", np.int64, (buckets.n + 1,))
            arrays.append("indptr.npy", np.zeros(1, dtype=np.int64))
            arrays.create("indices.npy", csr.index_dtype(buckets.n), (0,))
            if self.source.weighted:
                arrays.create("weight.npy", np.float32, (0,))

        def sorted_bucket(bucket: int) -> SortedRun | None:
            size = keys.recorded.get(f"{bucket}.keys", [0])[0] // 8
            if size * self.per_key > 1.3 * self.memory.share:
                return None  # a node with more neighbours than fit memory: `append` sorts it by parts
            weight = keys.read(f"{bucket}.weights", np.float32) if self.source.weighted else None
            return edge_buckets.sort(keys.read(f"{bucket}.keys", np.int64), weight, buckets, bucket, self.undirected)

        def append(run: SortedRun | None) -> None:
            bucket = state["done"]
            ends = np.full(buckets.rows(bucket), state["edges"], dtype=np.int64)
            for part in self._parts(buckets, bucket) if run is None else [run]:
                ends += part.ends
                arrays.append("indices.npy", part.indices)
                if part.weight is not None:
                    arrays.append("weight.npy", part.weight)
                    state["ones"] = state["ones"] and bool((part.weight == 1).all())
                state["edges"] += len(part.indices)
                state["given"] += part.given
            arrays.append("indptr.npy", ends)
            state["done"] += 1
            finished.append(bucket)
            report(self.progress, "sorting edges", state["done"], buckets.number)

        finished: list[int] = []

        def remove() -> None:
            for bucket in finished:
                for kind in ("keys", "weights"):
                    (self.buckets / f"{bucket}.{kind}").unlink(missing_ok=True)
            finished.clear()

        runs = in_order(sorted_bucket, range(state["done"], buckets.number), self.memory.threads)
        self.journal.append_resumably(step, state, runs, append, remove)

    def _keys(self) -> AppendedFiles:
        """The files that `distribute` has written."""
        return AppendedFiles(self.buckets, self.journal.get(f"{self.name} distributed")["files"])

    def _parts(self, buckets: Buckets, bucket: int) -> Iterator[SortedRun]:
        """The sorted edges of a bucket larger than its share of the memory, cut by its keys into parts that are not."""
        keys_file = self.buckets / f"{bucket}.keys"
        weights_file = self.buckets / f"{bucket}.weights" if self.source.weighted else None
        recorded = self._keys().recorded
        for file in (keys_file, weights_file):
            if file is not None and state_files.checksum(file) != recorded[file.name][1]:
                raise state_files.damaged(file)
        size, folder = recorded[keys_file.name][0] // 8, self.buckets / f"{bucket}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        step = max(1, self.memory.share // (2 * self.per_key))
        pivots = _pivots(keys_file, size, step)
        for start in range(0, size, step):
            keys = np.fromfile(keys_file, np.int64, step, offset=8 * start)
            weight = None if weights_file is None else np.fromfile(weights_file, np.float32, step, offset=4 * start)
            if weight is None:
                keys.sort()
                keys = keys[: csr.distinct(keys)]  # an edge may be listed a billion times
            home = np.searchsorted(pivots, keys, side="right")
            for part in np.unique(home):
                state_files.append(folder / f"{part}.keys", keys[home == part], 0)
                if weight is not None:
                    state_files.append(folder / f"{part}.weights", weight[home == part], 0)
        for part in range(len(pivots) + 1):
            if (folder / f"{part}.keys").exists():
                keys, weight = self._part(folder / f"{part}.keys", step)
                yield edge_buckets.sort(keys, weight, buckets, bucket, self.undirected)
        shutil.rmtree(folder)

    def _part(self, file: Path, step: int) -> tuple[NDArray[np.int64], NDArray[np.float32] | None]:
        """Keys of a part of a bucket and, if edges are weighted, their weights."""
        size = file.stat().st_size // 8
        if not self.source.weighted:
            keys = np.empty(0, dtype=np.int64)
            for start in range(0, size, step):  # many only where they are copies of a few
                keys = np.unique(np.concatenate([keys, np.fromfile(file, np.int64, step, offset=8 * start)]))
            return keys, None
        if size * self.per_key > 3 * self.memory.share:
            needed = self.memory.total + (size * self.per_key // 3 - self.memory.share) * (self.memory.threads + 2)
            raise InputError(
                f"an edge is listed so often, up to {size:,} times, that its weights do not fit "
                f"memory={format_bytes(self.memory.total)}. Give {format_bytes(needed)}, or merge its copies first."
            )
        return np.fromfile(file, np.int64), np.fromfile(file.with_suffix(".weights"), np.float32)

    # --------------------------------------------------------------------------------------------------------- finish

    def finish(self, buckets: Buckets) -> None:
        """Complete the folder: the lengths in the headers, and its description."""
        distributed: _Distributed = self.journal.get(f"{self.name} distributed")
        done: _Sorted = self.journal.get(f"{self.name} sorted")
        weighted = self.source.weighted and not done["ones"]
        files = {name: self.graph / f"{name}.npy" for name in ("indptr", "indices", "weight")}
        state_files.write_header(files["indices"], np.dtype(csr.index_dtype(buckets.n)), (done["edges"],), keep=True)
        if weighted:
            state_files.write_header(files["weight"], np.dtype(np.float32), (done["edges"],), keep=True)
        else:
            files["weight"].unlink(missing_ok=True)
        weight = open_array(files["weight"]) if weighted else None
        merged, symmetric = distributed["edges"] - done["given"], True if self.undirected else None
        indptr, indices = open_array(files["indptr"]), open_array(files["indices"])
        graph = Graph(indptr, indices, weight, distributed["loops"], merged, symmetric, _checked=True)
        graph_folder.describe(self.graph, graph.stored())
        self.journal.record(**{self.name: "finished"})
        shutil.rmtree(self.buckets, ignore_errors=True)


def _pivots(file: Path, size: int, step: int) -> NDArray[np.int64]:
    """Keys that cut a file into parts of half of `step`, from a sample of it."""
    every = max(1, size // 200_000)
    taken = [np.fromfile(file, np.int64, step, offset=8 * start)[::every] for start in range(0, size, step)]
    sample = np.sort(np.concatenate(taken)) & ~1  # an edge is in the same part as its reverse
    parts = 2 * -(-size // step)
    return np.unique(sample[np.arange(1, parts) * len(sample) // parts])
