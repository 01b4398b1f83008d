"""Propagation in memory: many hops over tiles, unpruned or pruned."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from unifews.core.budget import Budget, Messages
from unifews.core.entry import Entries
from unifews.core.trace import HopTrace
from unifews.kernels import native
from unifews.propagation.engines import BlockEngine, Carried, Engine, NodeEngine, finish, take
from unifews.propagation.operator import HUGE, Operator
from unifews.propagation.tiles import Floats, Shape, Tile, cut
from unifews.propagation.view import View

Progress = Callable[[int, int], None]

_SAMPLE_EDGES = 4096


@dataclass
class Outcome:
    """What comes out of the hops: coordinates and records."""

    values: Floats
    hops: list[HopTrace]
    growth: int = 0
    """The true values are ``values · 2^growth`` (what would have outgrown float32 was scaled away)."""
    snapshots: list[tuple[Floats, int]] = field(default_factory=list)
    """S^l Z for l = 0..L, each with its own growth, if asked for; without the stationary part."""


def unpruned(op: Operator, view: View, every_hop: bool, progress: Progress | None) -> Outcome:
    """All entries, tile after tile: one tile's buffers suffice, and a narrow one may stay in the cache."""
    n, m, width = op.diffusion.graph.num_nodes, op.diffusion.graph.num_edges, view.width
    shapes = cut(width)
    seconds = np.zeros(op.hops)
    result = None if len(shapes) == 1 else np.empty((n, width), dtype=np.float32)
    snapshots = [np.empty((n, width), dtype=np.float32) for _ in range(op.hops + 1)] if every_hop else []
    growth = np.zeros((len(shapes), op.hops + 1), dtype=np.int64)  # of each tile at each hop
    square = np.zeros(n, dtype=np.float32) if op.grows else None
    for number, shape in enumerate(shapes):
        tile = Tile(n, shape, accumulate=op.accumulate, lazy=False)
        view.fill(tile)
        if tile.out is not None:
            np.multiply(tile.buffers[0], op.coefficients[0], out=tile.out)
        for hop in range(op.hops):
            began = perf_counter()
            if snapshots:
                finish(tile, op, hop, snapshots[hop], accumulated=False)
            native.full_hop(
                **op.edges, blocks=shape.blocks, keep=op.keep, gain=op.gain, q=tile.buffers[hop % 2],
                q_out=tile.buffers[(hop + 1) % 2], coefficient=op.coefficients[hop + 1], out=tile.out, square=square,
                threads=op.threads,
            )  # fmt: skip
            growth[number, hop + 1] = growth[number, hop]
            if square is not None:
                if float(square.max(initial=0.0)) > HUGE**2:
                    growth[number, hop + 1] += tile.shrink()
                square[:] = 0
            seconds[hop] += perf_counter() - began
            if progress:
                progress(number * op.hops + hop + 1, len(shapes) * op.hops)
        if snapshots:
            finish(tile, op, op.hops, snapshots[op.hops], accumulated=False)
        carried = Carried.of(op, view, int(growth[number, -1]))
        if result is None:
            result = take(tile, op, carried)
        else:
            finish(tile, op, op.hops, result, carried)
    assert result is not None
    _level(result, shapes, growth[:, -1])
    for hop, snapshot in enumerate(snapshots):
        _level(snapshot, shapes, growth[:, hop])
    # Counted against the input's own axes: those that were dropped are entries too, and removed ones.
    f, delta = view.features.f, None if view.basis is None else 0.0
    hops = [HopTrace(hop, m * f, m * width, 0, m * width, m * f, 0, delta, float(seconds[hop])) for hop in range(op.hops)]
    grown = [int(value) for value in growth.max(axis=0)]
    return Outcome(result, hops, grown[-1], list(zip(snapshots, grown, strict=False)))


def _level(values: Floats, shapes: list[Shape], growth: NDArray[np.int64]) -> None:
    """Bring the columns of all tiles to the scale of the one that grew most."""
    for shape, grown in zip(shapes, growth.tolist(), strict=True):
        if grown < growth.max():
            values[:, shape.column : shape.column + shape.width] *= np.float32(math.ldexp(1, grown - int(growth.max())))


def pruned(
    op: Operator,
    view: View,
    entries: Entries,
    inherit: bool,
    budget: Budget,
    every_hop: bool,
    progress: Progress | None,
) -> Outcome:
    """Only the entries that reach δ, decided hop by hop."""
    engine: Engine = (NodeEngine if entries == "node" else BlockEngine)(op, view, entries, inherit)
    f = view.features.f
    influence = op.scheme.influence(op.hops)
    sample = _Sample(op, inherit) if budget.needs_sample else None
    hops: list[HopTrace] = []
    snapshots = [(engine.snapshot(0), 0)] if every_hop else []
    for hop in range(op.hops):
        began = perf_counter()
        engine.rescale()
        # Magnitudes are in stored units here, 2^exponent times smaller than true ones; a threshold is told in true ones.
        exponent = engine.growth + view.features.exponent
        weight = float(influence[hop])
        mean = weight * engine.mean() if budget.needs_mean else 0.0
        seen = sample.look(engine, weight, f) if sample else None
        delta = budget.threshold(hop, seen, mean, exponent)
        if sample:
            sample.remember(delta)
        counts = engine.hop(hop, delta / weight if weight else math.inf)
        record = HopTrace(hop, *counts, threshold=scaled(delta, exponent), seconds=perf_counter() - began)
        budget.record(hop, 1 - record.sparsity)
        hops.append(record)
        if snapshots:
            snapshots.append((engine.snapshot(hop + 1), engine.growth))
        if progress:
            progress(hop + 1, op.hops)
    return Outcome(engine.result(), hops, engine.growth, snapshots)


def scaled(value: float, exponent: int) -> float:
    """value · 2^exponent, infinite where it is too large."""
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.inf


class _Sample:
    """Edges spread evenly over the edge list; their messages stand for all of them."""

    def __init__(self, op: Operator, inherit: bool) -> None:
        graph = op.diffusion.graph
        count = min(graph.num_edges, _SAMPLE_EDGES)
        rng = np.random.default_rng(907)
        at = ((np.arange(count) + rng.random(count)) * (graph.num_edges / max(count, 1))).astype(np.int64)
        at = np.minimum(at, max(graph.num_edges - 1, 0))
        self.source = np.asarray(graph.indices[at])
        row = np.searchsorted(graph.indptr, at, side="right") - 1
        self.factor = op.diffusion.target[row]
        if graph.weight is not None:
            self.factor = self.factor * graph.weight[at]
        self.alive: NDArray[np.bool_] | None = None
        self.inherit = inherit

    def look(self, engine: Engine, scale: float, input_width: int) -> Messages:
        size, width = engine.sizes(self.source)
        magnitude = (np.float32(scale) * self.factor)[:, None] * size
        widths = np.broadcast_to(width, magnitude.shape)
        total = float(len(self.source) * input_width)
        usable = magnitude > 0
        if not usable.all():
            total -= float(widths[~usable].sum())
        if self.inherit:
            if self.alive is None:
                self.alive = np.ones(magnitude.shape, dtype=bool)
            usable &= self.alive
            self.magnitude = magnitude
        if usable.all():
            return Messages(magnitude.ravel(), widths.ravel(), total)
        return Messages(magnitude[usable], widths[usable], total)

    def remember(self, delta: float) -> None:
        if self.alive is not None:
            self.alive &= self.magnitude >= delta
