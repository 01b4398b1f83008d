"""Randomised push: features sent on by each node to a prefix of its neighbours, the engine of `agp` and `unifews-push`.

Per feature column, node u holds a residue. At each hop it sends to its neighbours v in order of ascending degree:

    exactly       while  |residue| · test > |δ| · d(v)^(1-r)
    by rounding   from there on while  |residue| · test > |δ| · U · d(v)^(1-r),  one uniform U per (node, hop, feature)

Both tests fall with d(v), so what u sends to is a prefix of its sorted list. A residue of at most |δ| is not sent at all.
The list has u itself in it (Ā = A + I). Graphs are undirected and unweighted, so pushing equals pulling.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.diffusion import Diffusion
from unifews.core.graph import Graph
from unifews.core.trace import HopTrace, Trace
from unifews.errors import InputError
from unifews.methods.door import CLOSE, Job, missed
from unifews.methods.registry import Card
from unifews.propagation.result import Propagated
from unifews.resources import Progress

Floats = NDArray[np.float32]
_VALUES = 1 << 20  # (edge, feature) pairs looked at together: they stay in the cache
_SAMPLE = 64  # columns that tell which threshold removes a share
_HALVINGS = 12
_LOWEST, _HIGHEST = -16.0, 1.0  # powers of ten of thresholds


@dataclass(frozen=True)
class Rules:
    """What differs between the schemes."""

    alpha: float | None
    """Teleport of APPNP; None = SGC, on the scaled residue P/d^r where a hop is an average, old/d(v)."""
    skip: bool = False
    """SGC: a node also keeps its own value, with weight 1."""
    inherit: bool = False
    """The sent prefix limits that of the next hop, by midpoints."""
    stop: bool = False
    """A column whose largest values are below its threshold is not propagated."""
    unbiased: bool = True
    """What is sent by rounding is right on average; otherwise it is δ·d(v)^-(1-r), as in the authors' code."""
    test: float = 1.0


@dataclass(frozen=True)
class Pushed:
    """Values and exact counts; int64 [hops] each."""

    values: Floats
    sent: NDArray[np.int64]
    """Products with neighbours."""
    loops: NDArray[np.int64]
    """Products of a node with itself."""
    seconds: NDArray[np.float64]


class Lists:
    """Neighbours by ascending degree, the node itself among them; and where each edge's reverse is."""

    def __init__(self, graph: Graph, r: float) -> None:
        from scipy.sparse import csr_array

        n = graph.num_nodes
        degree = Diffusion(graph, r).degree
        # Pull order: row v lists the senders u, itself included.
        receiver = np.concatenate([np.repeat(np.arange(n), graph.degree), np.arange(n)])
        sender = np.concatenate([graph.indices.astype(np.int64), np.arange(n)])
        order = np.lexsort((sender, receiver))
        self.receiver, self.sender = receiver[order], sender[order]
        self.length = graph.degree + 1
        self.start = np.concatenate([[0], np.cumsum(self.length)[:-1]])
        # Push order: row u lists the receivers by degree. The place of v in u's list is told of the edge u → v.
        by_degree = np.lexsort((self.sender, degree[self.sender], self.receiver))
        listed = self.sender[by_degree]
        self.need = (degree[listed] ** (1 - r)).astype(np.float32)[:, None]
        place = np.arange(len(listed)) - self.start[self.receiver]
        # The rows of both orders hold the same pairs: (receiver, sender) pulled is (sender, receiver) pushed.
        pushed = np.lexsort((self.receiver, listed))  # edges of the push order, sorted by (v, u)
        self.place = place[pushed].astype(np.int32)[:, None]
        self.is_loop = self.receiver == self.sender
        self.loop_place = self.place[self.is_loop]
        self.degree = degree.astype(np.float32)[:, None]
        start = np.append(self.start, self.size)  # np.add.reduceat does the same, six times slower
        self._sum = csr_array((np.ones(self.size, np.float32), np.arange(self.size), start), shape=(n, self.size))

    @property
    def size(self) -> int:
        return len(self.sender)

    def by_row(self, values: NDArray[Any]) -> Floats:
        """Sums over each row of [size, columns], in float32: whole numbers stay exact up to 2^24 neighbours."""
        return np.asarray(self._sum @ values.astype(np.float32, copy=False))


def step(lists: Lists) -> int:
    """Columns that are propagated together; random numbers are drawn for this many, so it must not depend on the machine."""
    return int(min(256, max(1, _VALUES // lists.size)))


def push(
    lists: Lists, x: Floats, hops: int, r: float, rules: Rules, deltas: tuple[Floats, Floats], seed: tuple[int, ...]
) -> Pushed:
    """Propagate the columns x [n, columns]; `deltas` are the thresholds of positive and of negative values, [columns] ≥ 0."""
    rng = np.random.default_rng(seed)
    sent, loops, seconds = np.zeros(hops, dtype=np.int64), np.zeros(hops, dtype=np.int64), np.zeros(hops)
    degree = lists.degree
    old = x.astype(np.float32)
    out = np.zeros_like(old) if rules.alpha is not None else None
    going = (x.max(axis=0) > deltas[0]) | (-x.min(axis=0) > deltas[1]) if rules.stop else np.ones(x.shape[1], dtype=bool)
    still, old = old[:, ~going], old[:, going]
    positive, negative = (delta[going].astype(np.float32) for delta in deltas)
    inverse: Floats = np.float32(1) / degree
    spread, source = degree ** np.float32(r - 1), degree ** np.float32(-r)
    end = np.broadcast_to(lists.length[:, None], old.shape).astype(np.int32)
    exact_limit, limit = end, end
    total = np.zeros_like(old) if out is not None else None
    for hop in range(hops):
        began = perf_counter()
        delta = np.where(old > 0, positive, negative)
        size = np.abs(old)
        sends = size > delta
        with np.errstate(divide="ignore", invalid="ignore"):  # δ = 0: whatever is not zero is sent
            ratio: Floats = np.where(sends, size * np.float32(rules.test) / delta, np.float32(0))
            chance = rng.random(x.shape, dtype=np.float32)[:, going]  # of all columns: none depends on another
            drawn: Floats = np.where(sends, ratio / chance, np.float32(0)).astype(np.float32, copy=False)
        first = np.minimum(_prefix(lists, ratio), exact_limit)
        last = np.maximum(np.minimum(_prefix(lists, drawn), limit), first)
        if rules.inherit:
            exact_limit = np.where(sends, (first + last) // 2, exact_limit)
            limit = np.where(sends, (last + end) // 2, limit)
        pushed = last.sum(axis=1, dtype=np.int64)
        own = int((lists.loop_place < last).sum())
        sent[hop] += int(pushed.sum()) - own
        loops[hop] += own
        signed = np.copysign(delta, old)
        if rules.alpha is None:
            new = _receive(lists, old, inverse, signed, source if rules.unbiased else spread, first, last)
            old = new + old if rules.skip else new
        else:
            assert total is not None
            keep = np.float32(1 - rules.alpha)
            total += np.where(sends, np.float32(rules.alpha) * old, old)
            exact = old * source * keep
            rounded, factor = (signed * source, np.ones_like(spread)) if rules.unbiased else (signed, spread)
            old = _receive(lists, exact, spread, rounded, factor, first, last)
        seconds[hop] = perf_counter() - began
    values = np.empty(x.shape, dtype=np.float32)
    values[:, ~going] = still
    values[:, going] = old if total is None else total + old
    return Pushed(values, sent, loops, seconds)


def zeros(lists: Lists, x: Floats, hops: int) -> NDArray[np.int64]:
    """(edge, feature) pairs of each unpruned hop that multiply zero since no value has come so far; int64 [hops].

    What pruning itself makes zero is removed, not zero; so the values of a pruned run would not tell.
    """
    found, reached, before = np.zeros(hops, dtype=np.int64), x != 0, -1
    for hop in range(hops):
        found[hop] = int(((lists.length - 1) @ ~reached).sum())
        if found[hop] in (0, before):  # nothing more will be reached
            found[hop:] = found[hop]
            break
        before = found[hop]
        reached = lists.by_row(reached[lists.sender]) > 0
    return found


def _prefix(lists: Lists, ratio: Floats) -> NDArray[np.int32]:
    """How many of a node's neighbours pass: those with d(v)^(1-r) < ratio."""
    passes = np.repeat(ratio, lists.length, axis=0) > lists.need
    return lists.by_row(passes).astype(np.int32)


def _receive(
    lists: Lists,
    exact: Floats,
    exact_factor: Floats,
    rounded: Floats,
    rounded_factor: Floats,
    first: NDArray[np.int32],
    last: NDArray[np.int32],
) -> Floats:
    """Σ over the senders u whose list reaches v: factor(v) · exact(u), or past the exact part factor(v) · rounded(u)."""
    u, place = lists.sender, lists.place
    is_exact = place < first[u]
    got = lists.by_row(np.where(is_exact, exact[u], np.float32(0))) * exact_factor
    got += lists.by_row(np.where((place < last[u]) & ~is_exact, rounded[u], np.float32(0))) * rounded_factor
    return np.asarray(got, dtype=np.float32)


# ------------------------------------------------------------------------------------------------------- all the columns


@dataclass(frozen=True)
class Plan:
    """How a method pushes: its rules, and what it measures thresholds by."""

    card: Card
    rules: Rules
    mass: Callable[[Floats], Floats]
    """Weights of the values x [n, columns] that a threshold is a share of the sum of, ≥ 0."""
    scaled: bool = False
    """SGC: the residue is x/d^r, as it should be, and the result is multiplied by d^r."""


def run(job: Job, plan: Plan, threshold: float) -> Propagated:
    """Propagate all columns: by the threshold given, or by the one that removes the share asked for."""
    began = perf_counter()
    lists = Lists(job.graph, job.diffusion.r)
    push_all = _Columns(job, plan, lists)
    setup = perf_counter() - began
    notes: tuple[str, ...] = ()
    if job.edge_sparsity is None:
        values, trace = push_all(threshold, None, job.progress)
    else:
        began = perf_counter()
        threshold = push_all.find(job.edge_sparsity)
        setup += perf_counter() - began
        values, trace = push_all(threshold, None, job.progress)
        off, tries = trace.edge_sparsity - job.edge_sparsity, 0
        while abs(trace.edge_sparsity - job.edge_sparsity) > CLOSE and 0 <= job.edge_sparsity - off < 1 and tries < 3:
            # The sample is not like the whole: ask it for so much less.
            setup += trace.seconds
            threshold = push_all.find(job.edge_sparsity - off)
            values, trace = push_all(threshold, None, job.progress)
            off, tries = off + trace.edge_sparsity - job.edge_sparsity, tries + 1
        notes = (f"found threshold {threshold:.3g} on {min(_SAMPLE, job.features.f)} columns, whose MACs are not counted",)
        notes += missed(plan.card, job.edge_sparsity, trace.edge_sparsity, "no threshold comes closer")
    loops = f"{push_all.loops:,} products of nodes with themselves are not counted"
    return job.done(values, Trace(trace.hops, job.requested, "numpy", setup_seconds=setup, notes=(*notes, loops)))


class _Columns:
    """The columns of the features, pushed some at a time."""

    def __init__(self, job: Job, plan: Plan, lists: Lists) -> None:
        self.job, self.plan, self.lists = job, plan, lists
        self.loops = 0
        self._zeros: dict[tuple[bool, int], NDArray[np.int64]] = {}

    def __call__(self, threshold: float, columns: list[int] | None, progress: Progress | None = None) -> tuple[Floats, Trace]:
        job, width = self.job, step(self.lists)
        f = job.features.f if columns is None else len(columns)
        values = np.empty((job.graph.num_nodes, f if columns is None else 0), dtype=np.float32)
        counts, seconds = np.zeros((3, job.hops), dtype=np.int64), np.zeros(job.hops)
        for first in range(0, f, width):
            last = min(f, first + width)
            if columns is None:
                x = job.features.columns(first, last)
            else:
                x = np.concatenate([job.features.columns(c, c + 1) for c in columns[first:last]], axis=1)
            pushed = self._push(x, threshold, (self.job.seed, first))
            if columns is None:
                values[:, first:last] = pushed.values
            part = columns is None, first
            if part not in self._zeros:
                self._zeros[part] = zeros(self.lists, x, job.hops)
            counts += np.stack([pushed.sent, self._zeros[part], pushed.loops])
            seconds += pushed.seconds
            if progress:
                progress(last, f)
        self.loops = int(counts[2].sum())
        entries = job.graph.num_edges * f
        hops = [
            HopTrace(i, entries, sent, zero, sent, entries, zero, threshold, time)
            for i, (sent, zero, time) in enumerate(zip(counts[0].tolist(), counts[1].tolist(), seconds.tolist(), strict=True))
        ]
        return values, Trace(tuple(hops))

    def _push(self, x: Floats, threshold: float, seed: tuple[int, int]) -> Pushed:
        job, plan, lists = self.job, self.plan, self.lists
        power = lists.degree ** np.float32(job.diffusion.r)
        if plan.scaled:
            x = x / power
        weight = plan.mass(x).astype(np.float64)
        # A sign that does not occur has no mass and never sends, so its threshold does not matter.
        shares = [(weight * (sign * x > 0)).sum(axis=0) for sign in (1, -1)]
        positive, negative = (np.float32(threshold) * share.astype(np.float32) for share in shares)
        with np.errstate(over="ignore", invalid="ignore"):
            pushed = push(lists, x, job.hops, job.diffusion.r, plan.rules, (positive, negative), seed)
        if not np.isfinite(pushed.values).all():
            raise InputError(f"values outgrow float32 over {job.hops} hops of method {plan.card.name!r}; take fewer hops.")
        if plan.scaled:
            np.multiply(pushed.values, power, out=pushed.values)
        return pushed

    def find(self, sparsity: float) -> float:
        """The threshold that removes this share of a few columns: every so many, in order of their size."""
        if sparsity == 0:
            return 0.0
        order = np.argsort(self.job.features.column_squares(), kind="stable")
        picked = order[np.linspace(0, len(order) - 1, min(_SAMPLE, len(order))).round().astype(int)]
        low, high = _LOWEST, _HIGHEST
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            removed = self(10**middle, picked.tolist())[1].edge_sparsity
            low, high = (middle, high) if removed < sparsity else (low, middle)
            if abs(removed - sparsity) < CLOSE / 10:
                return float(10**middle)
        return math.sqrt(10**low * 10**high)
