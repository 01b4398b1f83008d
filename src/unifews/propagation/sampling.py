"""A sample of the messages of a hop, and how a budget is divided among groups of columns by it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.distributed.communicator import Communicator
from unifews.propagation.budget import Budget, Messages, Target
from unifews.propagation.operator import HopOperator
from unifews.propagation.tiles import Floats, Shape
from unifews.propagation.view import View

PILOT_HOPS = 3  # hops of one column that show how fast a group of columns fades
_SAMPLE_EDGES = 4096


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
        if graph.weight is not None:
            self.factor = self.factor * graph.weight[at]
        self.alive: NDArray[np.bool_] | None = None
        self.inherit = inherit

    def look(self, sizes: tuple[Floats, Floats], groups: float, scale: float, f: int) -> Messages:
        """Messages of one hop, from `sizes` of the sources and the features in each; `groups` like this have `f` features."""
        size, width = sizes
        magnitude = (np.float32(scale) * self.factor)[:, None] * size
        widths = np.broadcast_to(width, magnitude.shape)
        total = float(len(self.source) * f)
        usable = magnitude > 0
        if not usable.all():
            total -= float(widths[~usable].sum()) * groups
        if self.inherit:
            if self.alive is None:
                self.alive = np.ones(magnitude.shape, dtype=bool)
            usable &= self.alive
            self.magnitude = magnitude
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

    def state(self) -> list[Any] | None:
        """Which of the messages may still be sent, for JSON; None = all."""
        return None if self.alive is None else [list(self.alive.shape), np.packbits(self.alive).tobytes().hex()]

    def resume(self, state: list[Any] | None) -> None:
        if state is not None:
            shape, packed = state
            flat = np.unpackbits(np.frombuffer(bytes.fromhex(packed), dtype=np.uint8), count=math.prod(shape))
            self.alive = flat.reshape(shape).astype(bool)


def divided(
    op: HopOperator, view: View, groups: list[list[Shape]], budget: Budget | None, split: Communicator
) -> list[Budget | None]:
    """The budget of each group of columns, by one plan for all of them; workers of `split` look at some groups each."""
    if len(groups) == 1 or not isinstance(budget, Target):
        return [budget] * len(groups)
    sample = Sample(op, inherit=False)
    weight = float(op.scheme.influence(op.hops)[0])
    fading = np.zeros((op.hops, len(groups)))
    for number in range(split.rank, len(groups), split.size):
        fading[:, number] = fades(op, view, groups[number], sample)
    split.all_reduce(fading)
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
