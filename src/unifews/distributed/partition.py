"""Who has which nodes, and the part of a graph that one worker works on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core import csr
from unifews.core.graph import Graph
from unifews.distributed.communicator import Communicator
from unifews.errors import InputError

_EDGES = 1 << 22  # renumbered at a time


def ranges(graph: Graph, workers: int) -> NDArray[np.int64]:
    """Where each worker's nodes begin and the last one's end, so that each has as many edges and nodes; int64 [workers + 1]."""
    n, indptr = graph.num_nodes, graph.indptr
    if workers > n:
        raise InputError(f"{workers} workers are too many for {n:,} node{'s' if n != 1 else ''}; start fewer.")
    share, bounds = (graph.num_edges + n) / workers, [0]
    for worker in range(1, workers):
        wanted = bisect_left(range(n + 1), share * worker, key=lambda u: int(indptr[u]) + u)
        bounds.append(min(max(wanted, bounds[-1] + 1), n - workers + worker))  # every worker gets at least one
    return np.array([*bounds, n], dtype=np.int64)


def metis(graph: Graph, workers: int) -> NDArray[np.int64]:
    """The worker of each node by METIS, which cuts few edges and takes the graph whole, in memory; int64 [n]."""
    try:
        import pymetis
    except ImportError as error:
        raise InputError(
            "partition='metis' needs pymetis: pip install 'unifews[distributed]'. Or write partition='nodes'."
        ) from error
    both = graph.undirected()
    rows = pymetis.CSRAdjacency(both.indptr, both.indices)
    found = pymetis.part_graph(workers, rows, vweights=both.degree + 1, recursive=False)[1]  # as many edges and nodes for each
    return np.asarray(found, dtype=np.int64)


class Owners:
    """The worker of each node: in ranges, or anyhow."""

    def __init__(self, bounds: NDArray[np.int64] | None, worker: NDArray[Any] | None = None) -> None:
        self.bounds, self.worker = bounds, worker

    @classmethod
    def given(cls, worker: NDArray[Any], n: int, workers: int) -> Owners:
        """The worker of each node [n], each worker having some."""
        if worker.shape != (n,) or worker.dtype.kind not in "iu":
            raise InputError(
                f"`partition` names the worker of each of the {n:,} nodes by a whole number; got {worker.dtype} values of "
                f"shape {list(worker.shape)}."
            )
        lowest, highest = (int(worker.min()), int(worker.max())) if n else (0, 0)
        if lowest < 0 or highest >= workers:
            wrong = lowest if lowest < 0 else highest
            raise InputError(f"`partition` gives nodes to worker {wrong}, but the {workers} workers are 0 to {workers - 1}.")
        missing = np.flatnonzero(np.bincount(worker, minlength=workers) == 0)
        if len(missing):
            raise InputError(
                f"`partition` has no nodes for worker {missing[0]} of {workers}; start as many workers as there are parts."
            )
        return cls(None, worker)

    def of(self, nodes: NDArray[Any]) -> NDArray[np.int64]:
        if self.bounds is not None:
            return np.searchsorted(self.bounds, nodes, side="right") - 1
        assert self.worker is not None
        return np.asarray(self.worker[nodes], dtype=np.int64)

    def nodes(self, worker: int) -> NDArray[np.int64]:
        """Of one worker, ascending."""
        if self.bounds is not None:
            return np.arange(self.bounds[worker], self.bounds[worker + 1])
        assert self.worker is not None
        return np.flatnonzero(self.worker == worker)


@dataclass(frozen=True)
class Part:
    """Some nodes of a graph with the edges into them: rows 0 .. owned, and behind them a row without edges for each node of
    other workers that such an edge begins at. Edges keep their order, so sums come out to the last bit as in the whole graph.
    """

    comm: Communicator
    whole: Graph
    nodes: NDArray[np.int64]
    """Those owned, ascending."""
    graph: Graph
    rows: NDArray[np.int64]
    """Owned rows that others need, worker after worker."""
    sent: NDArray[np.int64]
    """How many of `rows` are for each worker."""
    received: NDArray[np.int64]
    """And how many of the rows behind the owned ones are from each."""

    @property
    def owned(self) -> int:
        return len(self.nodes)

    @classmethod
    def of(cls, whole: Graph, owners: Owners, comm: Communicator) -> Part:
        """The part of this worker. Takes five bytes for each node of the graph while it is made."""
        nodes = owners.nodes(comm.rank)
        there = np.zeros(whole.num_nodes, dtype=bool)
        for _, at in _edges_into(whole, nodes):
            there[whole.indices[at]] = True
        there[nodes] = False
        behind = np.flatnonzero(there)
        owner = owners.of(behind)
        order = np.argsort(owner, kind="stable")
        behind = behind[order]
        received = np.bincount(owner, minlength=comm.size).astype(np.int64)
        each = np.ones(comm.size, dtype=np.int64)
        sent = comm.all_to_all(received, each, each)
        rows = np.searchsorted(nodes, comm.all_to_all(behind, received, sent))
        return cls(comm, whole, nodes, _renumbered(whole, nodes, behind), rows, sent, received)

    def here(self, nodes: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which of these nodes are owned, and the rows they have."""
        if not self.owned:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        row = np.minimum(np.searchsorted(self.nodes, nodes), self.owned - 1)
        which = np.flatnonzero(self.nodes[row] == nodes)
        return which, row[which]

    def gathered(self, values: NDArray[Any], which: NDArray[np.int64], count: int) -> NDArray[Any]:
        """Values of `count` nodes of any worker, of which those here have the numbers `which`."""
        table = np.zeros((count, *values.shape[1:]), dtype=values.dtype)
        table[which] = values
        return self.comm.all_reduce(table)

    @property
    def own(self) -> slice | NDArray[np.int64]:
        """The nodes owned, as numbers to pick rows of a file by."""
        first, last = (int(self.nodes[0]), int(self.nodes[-1]) + 1) if self.owned else (0, 0)
        return slice(first, last) if last - first == self.owned else self.nodes

    def fetch(self, values: NDArray[Any]) -> NDArray[Any]:
        """What others have in the rows that stand behind the owned ones here; `values` holds the owned ones at least."""
        return self.comm.all_to_all(values[self.rows], self.sent, self.received)

    def give_back(self, values: NDArray[Any]) -> NDArray[Any]:
        """The other way: something about each row behind the owned ones to its owner, who gets one for each of `rows`."""
        return self.comm.all_to_all(values, self.received, self.sent)


def _edges_into(graph: Graph, nodes: NDArray[np.int64]) -> Iterator[tuple[slice, Any]]:
    """Some edges at a time: which of those into `nodes`, and where in the graph."""
    first = np.asarray(graph.indptr[nodes])
    length = np.asarray(graph.indptr[nodes + 1]) - first
    end = np.concatenate([[0], np.cumsum(length)])
    at = 0
    while at < len(nodes):
        stop = max(at + 1, int(np.searchsorted(end, end[at] + _EDGES, side="right")) - 1)
        within = slice(int(end[at]), int(end[stop]))
        if nodes[stop - 1] - nodes[at] == stop - 1 - at:  # neighbours in the file too
            yield within, slice(int(first[at]), int(first[at]) + within.stop - within.start)
        else:
            yield within, np.repeat(first[at:stop] - end[at:stop], length[at:stop]) + np.arange(within.start, within.stop)
        at = stop


def _renumbered(graph: Graph, nodes: NDArray[np.int64], behind: NDArray[np.int64]) -> Graph:
    """The edges into `nodes`, which come first, and then the nodes `behind`, without edges."""
    degree = np.asarray(graph.indptr[nodes + 1]) - np.asarray(graph.indptr[nodes])
    indptr = np.concatenate([[0], np.cumsum(degree), np.full(len(behind), degree.sum())]).astype(np.int64)
    index = csr.index_dtype(len(nodes) + len(behind))
    number = np.empty(graph.num_nodes, dtype=index)
    number[nodes] = np.arange(len(nodes))
    number[behind] = len(nodes) + np.arange(len(behind))
    indices = np.empty(int(indptr[-1]), dtype=index)
    weight = None if graph.weight is None else np.empty(len(indices), dtype=np.float32)
    for within, at in _edges_into(graph, nodes):
        indices[within] = number[graph.indices[at]]
        if weight is not None and graph.weight is not None:
            weight[within] = graph.weight[at]
    return Graph(indptr, indices, weight, _checked=True)  # rows are not sorted: numbers of other workers' nodes come last
