"""Propagation in memory: many hops over tiles, unpruned or pruned."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from unifews.core.entry import Entries
from unifews.core.trace import HopTrace
from unifews.kernels import native
from unifews.propagation.budget import Absolute, Budget, Cost, Messages, Target
from unifews.propagation.certify import Price, Prices, certificate
from unifews.propagation.engines import BlockEngine, CarriedRows, Engine, NodeEngine, finish, take
from unifews.propagation.operator import HUGE, HopOperator
from unifews.propagation.tiles import Floats, Shape, Tile, cut
from unifews.propagation.view import View
from unifews.resources import Progress
from unifews.theory.certificates import Certificate

LARGE = 512 << 20  # bytes of values from which saving memory is worth a second pass over the edges
PILOT_HOPS = 3  # hops of one column that show how fast a group of columns fades
_SAMPLE_EDGES = 4096


@dataclass
class GroupResult:
    """What comes out of the hops: coordinates and records."""

    values: Floats
    hops: list[HopTrace]
    growth: int = 0
    """The true values are ``values · 2^growth`` (what would have outgrown float32 was scaled away)."""
    snapshots: list[tuple[Floats, int]] = field(default_factory=list)
    """S^l Z for l = 0..L, each with its own growth, if asked for; without the stationary part."""
    groups: int = 1
    """Groups of columns propagated one after the other."""
    certificates: list[Certificate] = field(default_factory=list)
    """If an error bound was wanted, that of each group."""


def unpruned(op: HopOperator, view: View, every_hop: bool, progress: Progress | None) -> GroupResult:
    """All entries, tile after tile: one tile's buffers suffice, and a narrow one may stay in the cache."""
    n, width = op.diffusion.graph.num_nodes, view.width
    shapes = cut(width)
    seconds = np.zeros(op.hops)
    result = None if len(shapes) == 1 else np.empty((n, width), dtype=np.float32)
    snapshots = [np.empty((n, width), dtype=np.float32) for _ in range(op.hops + 1)] if every_hop else []
    growth = np.zeros((len(shapes), op.hops + 1), dtype=np.int64)  # of each tile at each hop
    square = np.zeros(n, dtype=np.float32) if op.grows else None
    for number, shape in enumerate(shapes):
        tile = Tile(n, shape, accumulate=op.accumulate, lazy=False)
        begin(op, view, tile)
        for hop in range(op.hops):
            began = perf_counter()
            if snapshots:
                finish(tile, op, hop, snapshots[hop], accumulated=False)
            growth[number, hop + 1] = growth[number, hop] + whole_hop(op, tile, hop, square, view.sent)
            seconds[hop] += perf_counter() - began
            if progress:
                progress(number * op.hops + hop + 1, len(shapes) * op.hops)
        carried, growth[number, -1] = CarriedRows.beside([tile], op, view, int(growth[number, -1]))
        if snapshots:
            finish(tile, op, op.hops, snapshots[op.hops], accumulated=False)
        if result is None:
            result = take(tile, op, carried)
        else:
            finish(tile, op, op.hops, result, carried)
    assert result is not None
    _level(result, shapes, growth[:, -1])
    for hop, snapshot in enumerate(snapshots):
        _level(snapshot, shapes, growth[:, hop])
    hops = [whole_trace(op, view, hop, width, float(seconds[hop])) for hop in range(op.hops)]
    grown = [int(value) for value in growth.max(axis=0)]
    return GroupResult(result, hops, grown[-1], list(zip(snapshots, grown, strict=False)))


def begin(op: HopOperator, view: View, tile: Tile) -> None:
    """Fill a tile for unpruned hops."""
    view.fill(tile)
    if tile.out is not None:
        np.multiply(tile.buffers[0], op.coefficients[0], out=tile.out)


def whole_hop(op: HopOperator, tile: Tile, hop: int, square: Floats | None, sent: NDArray[np.float64] | None = None) -> int:
    """One unpruned hop of a tile; by what power of two its values had to be brought down after it."""
    native.full_hop(
        **op.edges,
        blocks=tile.shape.blocks,
        keep=op.keep,
        gain=op.gain,
        q=tile.buffers[hop % 2],
        q_out=tile.buffers[(hop + 1) % 2],
        coefficient=op.coefficients[hop + 1],
        out=tile.out,
        square=square,
        threads=op.threads,
    )
    if hop == 0 and sent is not None:
        _add_sent(op, tile, sent)
    if square is None:
        return 0
    shift = tile.shrink() if op.most(float(square.max(initial=0.0))) > HUGE**2 else 0
    square[:] = 0
    return shift


def whole_trace(op: HopOperator, view: View, hop: int, width: int, seconds: float) -> HopTrace:
    """An unpruned hop of `width` columns.

    Counted against the input's own axes: those that were dropped are entries too, and removed ones.
    """
    m, f = op.graph.num_edges, view.features.f
    return HopTrace(hop, m * f, m * width, 0, m * width, m * f, 0, None if view.basis.axes is None else 0.0, seconds)


def _add_sent(op: HopOperator, tile: Tile, total: NDArray[np.float64]) -> None:
    """total[u] += ‖Σ_v A[u,v]·q[v]‖², seen in the first hop of a tile."""
    before, after = tile.buffers
    for at in range(0, len(total), 4096):
        rows = slice(at, at + 4096)
        sent = (after[rows] - op.keep[rows, None] * before[rows]) / op.gain[rows, None]
        total[rows] += np.einsum("ij,ij->i", sent, sent, dtype=np.float64)


def _level(values: Floats, shapes: list[Shape], growth: NDArray[np.int64]) -> None:
    """Bring the columns of all tiles to the scale of the one that grew most."""
    for shape, grown in zip(shapes, growth.tolist(), strict=True):
        if grown < growth.max():
            values[:, shape.column : shape.column + shape.width] *= np.float32(math.ldexp(1, grown - int(growth.max())))


def pruned(
    op: HopOperator,
    view: View,
    entries: Entries,
    inherit: bool,
    budget: Budget,
    every_hop: bool,
    progress: Progress | None,
    prices: Prices | None = None,
) -> GroupResult:
    """Only the entries that reach δ, decided hop by hop."""
    groups = grouped(op, view, entries, budget)
    budgets = divided(op, view, groups, budget)
    outcomes: list[GroupResult] = []
    # The trailing columns go first: they need least, and the leading ones make good use of what is left over.
    for number, (shapes, own) in enumerate(zip(reversed(groups), reversed(budgets), strict=True)):
        if entries == "node":
            engine: Engine = NodeEngine(op, view, shapes, inherit)
        else:
            engine = BlockEngine(op, view, shapes, inherit, by_feature=entries == "feature")
        engine.prices = prices
        outcomes.insert(0, run(op, engine, own, every_hop, _later(progress, number * op.hops, len(groups) * op.hops)))
        if number + 1 < len(groups):
            budgets[-number - 2].inherit(own)
    return outcomes[0] if len(groups) == 1 else _joined(groups, outcomes)


def _later(progress: Progress | None, before: int, steps: int) -> Callable[[int], None] | None:
    """Progress of one group of columns, as progress of all groups."""
    if progress is None:
        return None
    return lambda done: progress(before + done, steps)


def grouped(op: HopOperator, view: View, entries: Entries, budget: Budget) -> list[list[Shape]]:
    """The tiles, in groups that are propagated one after the other (docs/adr/0007).

    A propagation works on three copies of its values; only one group of columns stands three times. Leading columns fade
    more slowly than trailing ones, so groups with thresholds of their own also lose less. Where there is one tile, and it is
    large, two are made, at the price of a second pass over the edges. Decisions about whole rows and thresholds
    relative to the mean of all columns need all columns at once.
    """
    if entries == "node" or not isinstance(budget, Target | Absolute):
        return [cut(view.width)]
    large = op.diffusion.graph.num_nodes * view.width * 4 > LARGE
    return [[shape] for shape in cut(view.width, least=2 if large else 1)]


def divided(op: HopOperator, view: View, groups: list[list[Shape]], budget: Budget) -> list[Budget]:
    if len(groups) == 1 or not isinstance(budget, Target):
        return [budget] * len(groups)
    sample = Sample(op, inherit=False)
    weight = float(op.scheme.influence(op.hops)[0])
    fading = np.stack([fades(op, view, shapes, sample) for shapes in groups], axis=1)
    return [*budget.divide([sample.first(view, shapes, weight) for shapes in groups], fading)]


def fades(op: HopOperator, view: View, shapes: list[Shape], sample: Sample) -> NDArray[np.float64]:
    """How large messages of these columns are at each hop, as multiples of the first; float64 [hops].

    Seen on one random combination of the columns over the first hops, and extrapolated from the last of them.
    """
    mix = np.zeros(view.width, dtype=np.float32)
    for shape in shapes:
        mix[shape.column : shape.column + shape.width] = np.random.default_rng(shape.column).standard_normal(shape.width)
    q = view.column(mix) * op.diffusion.source
    seen = []
    for _ in range(min(PILOT_HOPS, op.hops - 1) + 1):
        seen.append(float(sample.factor @ np.abs(op.at(q, sample.source))))
        q = op.column_hop(q)
    last = seen[-1] / max(seen[-2], 1e-30) if len(seen) > 1 else 1.0
    size = np.array(seen + [seen[-1] * last**k for k in range(1, op.hops - len(seen) + 1)])
    return np.asarray(size / max(size[0], 1e-30))


def _joined(groups: list[list[Shape]], outcomes: list[GroupResult]) -> GroupResult:
    """The columns of all groups side by side, their counts added up; the thresholds shown are those of the leading columns."""
    shapes = [shape for group in groups for shape in group]
    hops = added([outcome.hops for outcome in outcomes])
    values, growth = _side_by_side(shapes, [(outcome.values, outcome.growth) for outcome in outcomes])
    snapshots = [_side_by_side(shapes, list(parts)) for parts in zip(*(outcome.snapshots for outcome in outcomes), strict=True)]
    certificates = [each for outcome in outcomes for each in outcome.certificates]
    return GroupResult(values, hops, growth, snapshots, len(groups), certificates)


def added(groups: list[list[HopTrace]]) -> list[HopTrace]:
    """The hops of several groups of columns as those of all."""
    return [
        replace(
            parts[0],
            kept=sum(part.kept for part in parts),
            zeros=sum(part.zeros for part in parts),
            macs=sum(part.macs for part in parts),
            zero_macs=sum(part.zero_macs for part in parts),
            seconds=sum(part.seconds for part in parts),
        )
        for parts in zip(*groups, strict=True)
    ]


def _side_by_side(shapes: list[Shape], parts: list[tuple[Floats, int]]) -> tuple[Floats, int]:
    """Columns of several parts, each with its own growth, as one matrix with one."""
    values = np.concatenate([part for part, _ in parts], axis=1)
    growth = np.array([grown for _, grown in parts])
    _level(values, shapes, growth)
    return values, int(growth.max())


class Checkpointer(Protocol):
    """Saves the state of the hops, so that another process can resume."""

    def resume(self, engine: Engine, budget: Budget, sample: Sample | None) -> list[HopTrace]:
        """Bring all of them to where they were; the hops done."""

    def keep(self, engine: Engine, budget: Budget, sample: Sample | None, hops: list[HopTrace]) -> None:
        """Called after every hop."""


def run(
    op: HopOperator,
    engine: Engine,
    budget: Budget,
    every_hop: bool,
    progress: Callable[[int], None] | None,
    keeper: Checkpointer | None = None,
) -> GroupResult:
    """All hops of one engine."""
    features = engine.view.features
    influence = op.scheme.influence(op.hops)
    sample = Sample(op, engine.inherit) if budget.needs_sample else None
    hops = keeper.resume(engine, budget, sample) if keeper else []
    bound = certificate(op.hops) if engine.prices else None
    snapshots = [(engine.snapshot(0), 0)] if every_hop else []
    for hop in range(len(hops), op.hops):
        began = perf_counter()
        engine.rescale()
        # Magnitudes are in stored units here, 2^exponent times smaller than true ones; thresholds are reported in true units.
        exponent = engine.growth + features.exponent
        weight = float(influence[hop])
        mean = weight * engine.mean() if budget.needs_mean else 0.0
        price = engine.prices[hop] if engine.prices else None
        seen = sample.look(engine, weight, features.f, price if budget.needs_cost else None) if sample else None
        delta = budget.threshold(hop, seen, mean, exponent)
        if sample:
            sample.remember(delta)
        counted = engine.hop(hop, delta / weight if weight else math.inf)
        record = replace(counted, threshold=scaled(delta, exponent), seconds=perf_counter() - began)
        if bound and price:
            bound.hop(price.scale * np.sqrt(engine.removed), price.exponent + exponent)
        budget.record(hop, engine.share(record), bound)
        hops.append(record)
        if snapshots:
            snapshots.append((engine.snapshot(hop + 1), engine.growth))
        if keeper:
            keeper.keep(engine, budget, sample, hops)
        if progress:
            progress(hop + 1)
    return GroupResult(engine.result(), hops, engine.growth, snapshots, certificates=[bound] if bound else [])


def scaled(value: float, exponent: int) -> float:
    """value · 2^exponent, infinite where it is too large."""
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.inf


class Sample:
    """Edges spread evenly over the edge list; their messages stand for all of them."""

    def __init__(self, op: HopOperator, inherit: bool) -> None:
        graph = op.graph
        count = min(graph.num_edges, _SAMPLE_EDGES)
        rng = np.random.default_rng(907)
        at = ((np.arange(count) + rng.random(count)) * (graph.num_edges / max(count, 1))).astype(np.int64)
        at = np.minimum(at, max(graph.num_edges - 1, 0))
        self.source = np.asarray(graph.indices[at])
        row = np.searchsorted(graph.indptr, at, side="right") - 1
        self.factor = op.at(op.diffusion.target, row)
        self.row, self.weight = row, None if graph.weight is None else graph.weight[at]
        if self.weight is not None:
            self.factor = self.factor * self.weight
        self.share = graph.num_edges / max(count, 1)
        self.fade = np.square(op.at(op.keep, self.source), dtype=np.float64)
        self.alive: NDArray[np.bool_] | None = None
        self.inherit = inherit

    def look(self, engine: Engine, scale: float, input_width: int, price: Price | None = None) -> Messages:
        size, width = engine.sizes(self.source)
        magnitude = (np.float32(scale) * self.factor)[:, None] * size
        widths = np.broadcast_to(width, magnitude.shape)
        total = float(len(self.source) * input_width)
        usable = magnitude > 0
        if not usable.all():
            total -= float(widths[~usable].sum()) * engine.groups
        if self.inherit:
            if self.alive is None:
                self.alive = np.ones(magnitude.shape, dtype=bool)
            usable &= self.alive
            self.magnitude = magnitude
        if price is not None:
            each = price.cost[self.row].astype(np.float64) * (price.scale**2 * self.share)
            cost = (each if self.weight is None else each * self.weight)[:, None] * np.square(size, dtype=np.float64)
            fade = np.broadcast_to(self.fade[:, None], cost.shape)
            gone = 0.0 if usable.all() else float(cost[~usable].sum())
            return Messages(magnitude[usable], widths[usable], total, Cost(cost[usable], gone, fade[usable], price.exponent))
        if usable.all():
            return Messages(magnitude.ravel(), widths.ravel(), total)
        return Messages(magnitude[usable], widths[usable], total)

    def first(self, view: View, shapes: list[Shape], scale: float) -> Messages:
        """Messages of the first hop in some of the columns, without filling a tile."""
        size, width = view.sizes(self.source, shapes)
        magnitude = (np.float32(scale) * self.factor)[:, None] * size
        total = float(len(self.source) * view.features.f)
        return Messages(magnitude.ravel(), np.broadcast_to(width, magnitude.shape).ravel(), total)

    def remember(self, delta: float) -> None:
        if self.alive is not None:
            self.alive &= self.magnitude >= delta
