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
from unifews.propagation.budget import Absolute, Budget, Target
from unifews.propagation.certify import Prices
from unifews.propagation.engines import BlockEngine, Engine, FullEngine, NodeEngine
from unifews.propagation.operator import HopOperator
from unifews.propagation.sampling import divided
from unifews.propagation.tiles import Floats, Shape, cut
from unifews.propagation.view import View
from unifews.resources import Progress
from unifews.theory.certificates import Certificate

LARGE = 512 << 20  # bytes of values from which saving memory is worth a second pass over the edges


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


def propagate_groups(
    op: HopOperator,
    view: View,
    budget: Budget | None = None,
    *,
    entries: Entries = "block",
    inherit: bool = False,
    every_hop: bool = False,
    progress: Progress | None = None,
    prices: Prices | None = None,
) -> GroupResult:
    """All groups of columns, one after the other: unpruned, or only the entries that reach δ, decided hop by hop."""
    groups = grouped(op, view, entries, budget)
    budgets = divided(op, view, groups, budget)
    into = None
    if budget is None and len(groups) > 1:
        into = np.empty((op.diffusion.graph.num_nodes, view.width), dtype=np.float32)
    outcomes: dict[int, GroupResult] = {}
    # The trailing columns go first: they need least, and the leading ones make good use of what is left over.
    order = range(len(groups)) if budget is None else range(len(groups) - 1, -1, -1)
    for turn, number in enumerate(order):
        shapes, own = groups[number], budgets[number]
        if own is None:
            engine: Engine = FullEngine(op, view, shapes)
        elif entries == "node":
            engine = NodeEngine(op, view, shapes, own, inherit, prices)
        else:
            engine = BlockEngine(op, view, shapes, own, inherit, prices, by_feature=entries == "feature")
        outcomes[number] = run(engine, every_hop, later(progress, turn * op.hops, len(groups) * op.hops), into=into)
        if own is not None and number:
            following = budgets[number - 1]
            assert following is not None
            following.inherit(own)
    return _joined(groups, [outcomes[number] for number in range(len(groups))], into)


def later(progress: Progress | None, before: int, steps: int) -> Callable[[int], None]:
    """Progress of one group of columns, as progress of all groups."""
    return lambda done: progress(before + done, steps) if progress else None


def grouped(op: HopOperator, view: View, entries: Entries, budget: Budget | None) -> list[list[Shape]]:
    """The tiles, in groups that are propagated one after the other (docs/adr/0007).

    A propagation works on three copies of its values; only one group of columns stands three times. Leading columns fade
    more slowly than trailing ones, so groups with thresholds of their own also lose less. Where there is one tile, and it is
    large, two are made, at the price of a second pass over the edges. Decisions about whole rows and thresholds
    relative to the mean of all columns need all columns at once.
    """
    if budget is not None and (entries == "node" or not isinstance(budget, Target | Absolute)):
        return [cut(view.width)]
    large = budget is not None and op.diffusion.graph.num_nodes * view.width * 4 > LARGE
    return [[shape] for shape in cut(view.width, least=2 if large else 1)]


def _joined(groups: list[list[Shape]], outcomes: list[GroupResult], into: Floats | None) -> GroupResult:
    """The columns of all groups side by side, their counts added up; the thresholds shown are those of the leading columns."""
    if len(groups) == 1:
        return outcomes[0]
    shapes = [shape for group in groups for shape in group]
    hops = added([outcome.hops for outcome in outcomes])
    values, growth = _side_by_side(shapes, [(outcome.values, outcome.growth) for outcome in outcomes], into)
    snapshots = [_side_by_side(shapes, list(parts)) for parts in zip(*(outcome.snapshots for outcome in outcomes), strict=True)]
    certificates = [each for outcome in outcomes for each in outcome.certificates]
    return GroupResult(values, hops, growth, snapshots, 1 if into is not None else len(groups), certificates)


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


def _side_by_side(shapes: list[Shape], parts: list[tuple[Floats, int]], into: Floats | None = None) -> tuple[Floats, int]:
    """Columns of several parts, each with its own growth, as one matrix with one; `into` has them already."""
    values = np.concatenate([part for part, _ in parts], axis=1) if into is None else into
    growth = np.array([grown for _, grown in parts])
    _level(values, shapes, growth)
    return values, int(growth.max())


def _level(values: Floats, shapes: list[Shape], growth: NDArray[np.int64]) -> None:
    """Bring the columns of all tiles to the scale of the one that grew most."""
    for shape, grown in zip(shapes, growth.tolist(), strict=True):
        if grown < growth.max():
            values[:, shape.column : shape.column + shape.width] *= np.float32(math.ldexp(1, grown - int(growth.max())))


class Checkpointer(Protocol):
    """Saves the state of the hops, so that another process can resume."""

    def resume(self, engine: Engine) -> list[HopTrace]:
        """Bring the engine to where it was; the hops done."""

    def save(self, engine: Engine, hops: list[HopTrace]) -> None:
        """Called after every hop but the last."""


def run(
    engine: Engine,
    every_hop: bool,
    report: Callable[[int], None],
    keeper: Checkpointer | None = None,
    into: Floats | None = None,
) -> GroupResult:
    """All hops of one engine."""
    op = engine.op
    hops = keeper.resume(engine) if keeper else []
    snapshots = [(engine.snapshot(0), 0)] if every_hop else []
    for hop in range(len(hops), op.hops):
        began = perf_counter()
        hops.append(replace(engine.hop(hop), seconds=perf_counter() - began))
        if every_hop:
            snapshots.append((engine.snapshot(hop + 1), engine.growth))
        if keeper and hop + 1 < op.hops:
            keeper.save(engine, hops)
        report(hop + 1)
    values = engine.result(into)
    certificates = [engine.certificate] if engine.certificate else []
    return GroupResult(values, hops, engine.growth, snapshots, certificates=certificates)
