"""NIGCN: the embedding of a node is a mean over random walks, the shorter the more neighbours it has.

From node v walks of ℓ(v) = ⌊τ·ln(2m/√(d_min·d(v))) / ln√(2m/n)⌋ steps over D^-1 Ā (m directed edges and loops);
what a walk visits at step i counts w_i, w_0 = 1, w_i = w_(i-1)·ω/i^ρ, over the number of walks: on average
Σ_{i ≤ ℓ(v)} w_i (D^-1 Ā)^i X / Σ_i w_i. There are ⌊8·ln(1/(.01·ε))/ε + 1⌋ walks from each node, but none starts once more than
1/ε² different nodes were visited. The product with those nodes' features is what multiplies: different nodes × features.

Differences from the authors' code: a node whose walks ended early is averaged over the walks it did (`compat=True`: over all
planned ones, so its features are too small); every node gets an embedding, not only labelled ones; random numbers do not depend
on threads. A requested sparsity replaces 1/ε²: walks end once that many nodes were visited.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unifews.core.config import option, reported_as
from unifews.core.trace import HopTrace, Trace
from unifews.errors import InputError
from unifews.kernels import threads_to_use
from unifews.methods.base import PropagationTask, Propagator
from unifews.methods.registry import method
from unifews.methods.selection import missed
from unifews.propagation.features import Floats, sparse_times
from unifews.propagation.result import Propagated

_TERMS = 512  # of the normaliser
_WALKS = 1 << 18  # walks carried out together
_CELLS = 1 << 21  # (node, visited node) pairs of a table
_SAMPLE = 4096  # nodes sampled to find how many visits a sparsity allows

Numbers = NDArray[np.int64]


@method(
    "nigcn",
    prunes=("depth", "edges"),
    backbones=("sgc",),
    paper="Huang et al., Node-wise Diffusion for Scalable Graph Learning, WWW 2023",
    defaults={"r": 0.0},
)
@dataclass(frozen=True)
class Nigcn(Propagator):
    """The authors' settings for Cora."""

    unweighted: ClassVar[bool] = True
    omega: float = option(1.15, "ω of the weights of steps", gt=0)
    rho: float = option(0.06, "ρ of the weights of steps", ge=0)
    tau: float = option(1.7, "τ of the length of walks", gt=0)
    epsilon: float = option(0.02, "ε of the number of walks", gt=0, le=1)
    compat: bool = option(False, "average over all planned walks, as in the authors' code")

    def propagate(self, task: PropagationTask) -> Propagated:
        """`hops` is the longest walk; `threshold` is ε. The trace has a single product for all hops."""
        began, graph, r = perf_counter(), task.graph, task.diffusion.r
        if r:
            raise InputError(f"method 'nigcn' walks over D^-1 (A + I), which is r=0; got r={r}. Leave it out, or take 'agp'.")
        with reported_as(epsilon="threshold"):
            epsilon = self.epsilon if task.threshold is None else replace(self, epsilon=task.threshold).epsilon
        walks = _Walks(task, self, int(8 * math.log(100 / epsilon) / epsilon + 1), task.seed)
        limit: float = 1 / epsilon**2
        if task.edge_sparsity is not None:
            budget = (1 - task.edge_sparsity) * task.hops * graph.num_edges / graph.num_nodes
            walks, limit = walks.within(budget, task.edge_sparsity)
        setup, began = perf_counter() - began, perf_counter()
        values, kept = walks.gather(limit, self.compat)
        entries = task.hops * graph.num_edges
        seconds = perf_counter() - began
        hop = HopTrace(0, entries, kept, 0, kept * task.features.f, task.hops * task.dense_macs, 0, None, seconds)
        notes: tuple[str, ...] = (f"{task.hops} hops are one product here, with what walks have visited",)
        more = hop.sparsity > (task.edge_sparsity or 0.0)
        why = "walks do not visit more than this" if more else f"the sample of {_SAMPLE:,} nodes was not representative"
        notes += missed(self.card, task.edge_sparsity, hop.sparsity, why)
        return task.result(values, Trace((hop,), task.requested, "numpy", setup_seconds=setup, notes=notes))


@dataclass(frozen=True)
class _Walks:
    """Walks from every node."""

    task: PropagationTask
    method: Nigcn
    count: int
    """Walks from each node."""
    seed: int

    @cached_property
    def length(self) -> Numbers:
        """ℓ(v), int64 [n]."""
        graph, degree = self.task.graph, self.task.diffusion.degree
        twice = 2.0 * (graph.num_edges + graph.num_nodes)
        reach = np.log(twice / np.sqrt(degree.min() * degree)) / math.log(math.sqrt(twice / graph.num_nodes))
        return np.asarray(np.minimum(np.floor(self.method.tau * reach), self.task.hops), dtype=np.int64)

    @cached_property
    def weight(self) -> NDArray[np.float64]:
        """w_i / Σ w, float64 [512]."""
        step = np.arange(1, _TERMS)
        log = np.concatenate([[0], np.cumsum(math.log(self.method.omega) - self.method.rho * np.log(step))])
        return np.asarray(np.exp(log - np.logaddexp.reduce(log)))

    def visits(self, sources: Numbers, number: int) -> NDArray[np.int32]:
        """Nodes visited, int32 [steps + 1, sources, walks]; a walk that is over stays where it started."""
        graph, rng = self.task.graph, np.random.default_rng((self.seed, number))
        length = self.length[sources]
        at = np.broadcast_to(sources[:, None], (len(sources), self.count)).astype(np.int32)
        path = [at]
        for step in range(1, int(length.max(initial=0)) + 1):
            # One of d(v) places, the last of which is the node itself.
            degree = graph.degree[at]
            place = (rng.random(at.shape, dtype=np.float32) * (degree + 1)).astype(np.int64)
            loops = place >= degree
            edge = np.minimum(graph.indptr[at] + place, graph.num_edges - 1)
            moved = np.where(loops, at, graph.indices[edge]) if graph.num_edges else at
            at = moved.astype(np.int32)
            over = step > length
            path.append(np.where(over[:, None], sources[:, None].astype(np.int32), at) if over.any() else at)
        return np.stack(path)

    def chunks(self, nodes: Numbers) -> Iterator[tuple[int, Numbers]]:
        """Some nodes at a time, numbered; neither depends on the machine, so neither do the random numbers."""
        rows = max(1, min(_WALKS // self.count, _CELLS // self.task.graph.num_nodes if self.is_dense else _WALKS))
        for number, at in enumerate(range(0, len(nodes), rows)):
            yield number, nodes[at : at + rows]

    def new_nodes(self, path: NDArray[np.int32]) -> Numbers:
        """Different nodes, the source apart, after 1, 2, … walks; int64 [sources, walks]."""
        steps, sources, walks = path.shape
        nodes = path.transpose(1, 2, 0).reshape(sources, walks * steps)  # in the order of the walks
        order = np.argsort(nodes, axis=1, kind="stable")
        nodes = np.take_along_axis(nodes, order, axis=1)
        first = np.ones(nodes.shape, dtype=bool)
        first[:, 1:] = nodes[:, 1:] != nodes[:, :-1]
        first &= nodes != path[0, :, :1]
        row, at = np.nonzero(first)
        found = np.bincount(row * walks + order[row, at] // steps, minlength=sources * walks).reshape(sources, walks)
        return np.asarray(np.cumsum(found, axis=1))

    def table(self, path: NDArray[np.int32], counts: NDArray[np.float64], live: NDArray[np.bool_]) -> Any:
        """What each node counts for each source, a sparse matrix [sources, n]; `live` [steps + 1, sources]."""
        from scipy.sparse import csr_array

        n, sources = self.task.graph.num_nodes, path.shape[1]
        row = np.broadcast_to(np.arange(sources)[:, None], path.shape)[live].ravel()
        nodes = path[live].ravel()
        each = (self.weight[: len(path), None, None] * counts)[live].ravel()
        if self.is_dense:
            dense = np.bincount(row * n + nodes, each, sources * n).reshape(sources, n)
            return csr_array(dense.astype(np.float32))
        found = csr_array((each, (row, nodes)), shape=(sources, n))  # adds up nodes visited twice
        found.eliminate_zeros()
        return found.astype(np.float32)

    @property
    def is_dense(self) -> bool:
        """Whether walks visit so many of all nodes that counting in a dense table is faster than sorting the visits."""
        return self.task.graph.num_nodes <= 4 * self.count * int(self.length.max() + 1)

    def within(self, budget: float, requested: float) -> tuple[_Walks, float]:
        """Walks, and the number of different nodes at which they end, for `budget` such nodes on average."""
        n = self.task.graph.num_nodes
        rng = np.random.default_rng((self.seed, n))
        nodes = np.arange(n) if n <= _SAMPLE else np.sort(rng.choice(n, _SAMPLE, replace=False))
        count = min(self.count, math.ceil(budget / 4) + 4)
        while True:
            some = _Walks(self.task, self.method, count, self.seed)
            new = np.concatenate([some.new_nodes(some.visits(part, number)) for number, part in some.chunks(nodes)])
            if new[:, -1].mean() >= 1.3 * budget or count == self.count:  # more than needed, so that limits decide
                break
            count = min(self.count, 2 * count)
        once = float(new[:, 0].mean())
        if once > budget * 1.01:
            most = 1 - once * n / (self.task.hops * max(self.task.graph.num_edges, 1))
            raise InputError(
                f"method 'nigcn' cannot remove {requested:.1%}: a single walk from each node already visits {once:.1f} others, "
                f"so {most:.1%} is the most it can remove here. Ask for less, or take method='unifews'."
            )
        low, high = 0.0, float(new.max(initial=0)) + 1
        for _ in range(40):
            middle = (low + high) / 2
            ends = np.take_along_axis(new, _ends(new, _limits(middle, nodes, self.seed))[:, None] - 1, axis=1)
            low, high = (middle, high) if ends.mean() < budget else (low, middle)
        return some, low

    def gather(self, limit: float, compat: bool) -> tuple[Floats, int]:
        """Features of every node by its walks, float32 [n, f], and how many (node, other node) products that took."""
        task, n = self.task, self.task.graph.num_nodes
        features = task.features
        x = features.sparse if features.sparse is not None else features.rows(0, n)
        values, kept = np.empty((n, features.f), dtype=np.float32), 0
        nodes = np.arange(n)
        for number, part in self.chunks(nodes):
            path = self.visits(part, number)
            done = np.full(len(part), self.count)
            if min(n - 1, self.count * int(self.length.max())) > limit:  # else no walk can end early
                done = _ends(self.new_nodes(path), _limits(limit, part, self.seed))
            counts = np.where(np.arange(self.count) < done[:, None], 1 / (self.count if compat else done[:, None]), 0.0)
            table = self.table(path, counts, np.arange(len(path))[:, None] <= self.length[part])
            itself = int((table[np.arange(len(part)), part] != 0).sum())
            kept += int(table.nnz) - itself
            if features.sparse is not None:
                values[part] = (table @ x).toarray()
            else:
                values[part] = sparse_times(table, x, threads_to_use(None))
            if task.progress:
                task.progress(int(part[-1]) + 1, n)
        return values, kept


def _limits(limit: float, nodes: Numbers, seed: int) -> NDArray[np.float64]:
    """An integer number of nodes for each source, `limit` on average: one for all would meet a sparsity only roughly."""
    shift = np.random.default_rng((seed, 1)).random(int(nodes[-1]) + 1)[nodes] if len(nodes) else np.zeros(0)
    return np.floor(limit + shift)


def _ends(new: Numbers, limits: NDArray[np.float64]) -> Numbers:
    """How many walks a source does: up to the first with which it has visited more nodes than its limit."""
    over = new > limits[:, None]
    return np.asarray(np.where(over.any(axis=1), over.argmax(axis=1) + 1, new.shape[1]))
