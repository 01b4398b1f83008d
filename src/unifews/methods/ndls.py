"""NDLS: a node stops being smoothed once its features are near those of the limit.

With T the diffusion and x row-normalised, X^(k) = T^k X tends to X^∞, known in closed form: per connected component
X^∞[u] = d(u)^r · Σ_v d(v)^(1-r) X[v] / Σ_v d(v). Node v stops at the first k with ‖X^(k)[v] - X^∞[v]‖ < ε, at `hops` at
last, and its embedding is the mean over j < k of (1-own)·X^(j)[v] + own·X[v].

Differences from the authors' code: a row that has stopped is not computed again, its neighbours read its last value, so
what is counted is what is multiplied; running sums instead of every power, so three matrices like the embedding in memory;
X^∞ per component, not assuming one. Their third stage, smoothing the predictions (to the depth that is best on the test
set), is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from unifews.core.config import option
from unifews.core.trace import HopTrace, Trace
from unifews.kernels import describe, threads_to_use
from unifews.methods.base import PropagationTask, Propagator
from unifews.methods.registry import method
from unifews.methods.selection import missed
from unifews.propagation.features import Floats, sparse_times
from unifews.propagation.result import Propagated

_CHUNK = 1 << 22  # values of a chunk of rows

Stops = Callable[[int, NDArray[np.int64], NDArray[np.float64]], NDArray[np.bool_]]
"""(k, rows, their distances from X^∞) → which of them have now stopped."""


@method(
    "ndls",
    prunes=("depth",),
    backbones=("sgc",),
    paper="Zhang et al., Node Dependent Local Smoothing for Scalable Graph Learning, NeurIPS 2021",
    defaults={"r": 0.0},
)
@dataclass(frozen=True)
class Ndls(Propagator):
    """Node-dependent numbers of hops; nothing is random."""

    undirected: ClassVar[bool] = True
    random: ClassVar[bool] = False
    epsilon: float = option(0.03, "distance ε from the limit at which a node stops", ge=0)
    own: float = option(0.15, "weight of a node's own features", ge=0, le=1)
    normalise: bool = option(True, "normalise the rows of X")

    def propagate(self, task: PropagationTask) -> Propagated:
        """`threshold` is ε; a requested sparsity is met by choosing it."""
        began = perf_counter()
        smoothing = _Smoothing(task, self)
        depth: NDArray[np.int64] | None = None
        notes: tuple[str, ...] = ()
        if task.edge_sparsity is not None:
            depth = _depths(smoothing.distances(), task.graph.degree, task)
            notes = (f"finding ε took an unpruned run of {task.hops * task.dense_macs:,} MACs more, not counted",)
        epsilon = self.epsilon if task.threshold is None else task.threshold
        setup = perf_counter() - began

        def stops(k: int, rows: NDArray[np.int64], far: NDArray[np.float64]) -> NDArray[np.bool_]:
            return far < epsilon if depth is None else np.asarray(depth[rows] <= k)

        values, trace = smoothing.run(stops)
        notes += missed(self.card, task.edge_sparsity, trace.edge_sparsity, "nodes of a hub's size stop together")
        return task.result(
            values, Trace(trace.hops, task.requested, describe(smoothing.threads), setup_seconds=setup, notes=notes)
        )


class _Smoothing:
    """X^(0), X^(1), … and the distance of each row from X^∞."""

    def __init__(self, task: PropagationTask, method: Ndls) -> None:
        self.task, self.own, self.threads = task, method.own, threads_to_use(None)
        self.scale = np.ones(task.graph.num_nodes, dtype=np.float32)
        if method.normalise:
            for first, last in task.features.chunks():
                size = np.abs(task.features.rows(first, last)).sum(axis=1)
                self.scale[first:last] = 1 / np.where(size > 0, size, 1)
        self.diffusion = task.diffusion.to_scipy().astype(np.float32)
        self.limit, self.component = self._limits()

    def start(self) -> Floats:
        """A copy of X with normalised rows."""
        x = np.zeros((self.task.graph.num_nodes, self.task.features.f), dtype=np.float32)
        self.task.features.add_scaled(self.scale, x)
        return x

    def _limits(self) -> tuple[Floats, NDArray[np.int64]]:
        """Σ_v d(v)^(1-r) X[v] / Σ_v d(v) of each component, float32 [components, f]; and the component of each node."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        graph, r, degree = self.task.graph, self.task.diffusion.r, self.task.diffusion.degree
        count, component = connected_components(graph.to_scipy(), directed=False)
        total = np.bincount(component, weights=degree, minlength=count)
        weight = (self.scale * degree ** (1 - r) / total[component]).astype(np.float32)
        features, ends = self.task.features, np.zeros((count, self.task.features.f), dtype=np.float32)
        for first, last in features.chunks():
            rows = np.arange(first, last)
            members = csr_array((weight[rows], (component[rows], rows - first)), shape=(count, last - first))
            ends += members @ features.rows(first, last)
        return ends, component.astype(np.int64)

    def distance(self, now: Floats, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """‖X^(k)[v] - X^∞[v]‖ of some rows; float64 [rows]."""
        scale, found = self.task.diffusion.degree**self.task.diffusion.r, []
        for some in self._chunks(rows):
            off = now[some] - scale[some, None].astype(np.float32) * self.limit[self.component[some]]
            found.append(np.sqrt(np.einsum("ij,ij->i", off, off, dtype=np.float64)))
        return np.concatenate(found) if found else np.zeros(0)

    def _chunks(self, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Chunks of the rows, so that temporary arrays are small."""
        step = max(1, _CHUNK // self.task.features.f)
        return [rows[at : at + step] for at in range(0, len(rows), step)]

    def distances(self) -> NDArray[np.float64]:
        """Of all rows after 0, 1, .. hops - 1 hops, without stopping; float64 [hops, n]."""
        now = self.start()
        rows = np.arange(len(now))
        found = [self.distance(now, rows)]
        for _ in range(1, self.task.hops):
            now = sparse_times(self.diffusion, now, self.threads)
            found.append(self.distance(now, rows))
        return np.stack(found)

    def run(self, stops: Stops) -> tuple[Floats, Trace]:
        task, degree = self.task, self.task.graph.degree
        now = self.start()
        total = np.zeros_like(now)
        depth = np.full(len(now), task.hops, dtype=np.int64)
        rows, hops = np.arange(len(now)), []
        for k in range(task.hops):
            began = perf_counter()
            halted = stops(k, rows, self.distance(now, rows))
            depth[rows[halted]] = k
            rows = rows[~halted]
            for some in self._chunks(rows):
                total[some] += now[some]
            if len(rows) == len(now):
                now = sparse_times(self.diffusion, now, self.threads)
            elif len(rows):
                now[rows] = sparse_times(self.diffusion[rows], now, self.threads)
            kept = int(degree[rows].sum())
            macs = kept * task.features.f
            seconds = perf_counter() - began
            hops.append(HopTrace(k, task.graph.num_edges, kept, 0, macs, task.dense_macs, 0, None, seconds))
            if task.progress:
                task.progress(k + 1, task.hops)
        total *= ((1 - self.own) / np.maximum(depth, 1)).astype(np.float32)[:, None]
        task.features.add_scaled(self.scale * np.where(depth == 0, 1, self.own).astype(np.float32), total)
        return total, Trace(tuple(hops))


def _depths(distances: NDArray[np.float64], degree: NDArray[np.int64], task: PropagationTask) -> NDArray[np.int64]:
    """Hops of each node, by the one ε that meets the requested sparsity: first k below it, `hops` if there is none.

    K(v) > k iff the least of v's distances up to k is at least ε, so every (k, v) is a step of size d(v) at a known ε.
    """
    least = np.minimum.accumulate(distances, axis=0)
    order = np.argsort(-least, axis=None, kind="stable")
    work = np.cumsum(np.broadcast_to(degree, least.shape).ravel()[order])
    budget = (1 - (task.edge_sparsity or 0.0)) * task.hops * task.graph.num_edges
    active = np.zeros(least.size, dtype=bool)
    active[order[: int(np.searchsorted(work, budget, side="right"))]] = True
    return np.asarray(active.reshape(least.shape).sum(axis=0))
