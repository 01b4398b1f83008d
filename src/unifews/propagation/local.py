"""Propagation in memory: many hops over tiles, unpruned or pruned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.budget import Budget, Messages
from unifews.core.diffusion import Diffusion
from unifews.core.entry import Entries
from unifews.core.schemes import Scheme, keep_factor
from unifews.core.trace import HopTrace
from unifews.kernels import LANES, native
from unifews.propagation.features import Floats
from unifews.propagation.tiles import Tile, cut
from unifews.propagation.view import View

Progress = Callable[[int, int], None]

_SAMPLE_EDGES = 4096
_HUGE = 2.0**55  # sizes beyond this are brought down before their squares can overflow


@dataclass(frozen=True)
class Operator:
    """One hop S of a scheme on a graph, as the kernels want it."""

    diffusion: Diffusion
    scheme: Scheme
    hops: int
    threads: int

    @cached_property
    def keep(self) -> Floats:
        return keep_factor(self.diffusion, self.scheme.skip)

    @cached_property
    def gain(self) -> Floats:
        return self.diffusion.target * self.diffusion.source

    @cached_property
    def coefficients(self) -> Floats:
        return self.scheme.coefficients(self.hops).astype(np.float32)

    @cached_property
    def accumulate(self) -> bool:
        """Whether hops before the last one are part of the output."""
        return bool(np.any(self.coefficients[:-1] != 0) or self.coefficients[-1] != 1)

    @property
    def grows(self) -> bool:
        """Whether values can outgrow float32: an identity skip may double them at every hop."""
        return self.scheme.skip.startswith("identity") and self.hops > 30

    @property
    def edges(self) -> dict[str, Any]:
        graph = self.diffusion.graph
        return {
            "start": graph.indptr[:-1], "end": graph.indptr[1:], "indices": graph.indices, "weight": graph.weight
        }  # fmt: skip

    @cached_property
    def fan(self) -> tuple[Floats, NDArray[np.int64]]:
        """For each node: the largest factor of its messages, and their number."""
        n = self.diffusion.graph.num_nodes
        reach, fanout = np.empty(n, dtype=np.float32), np.empty(n, dtype=np.int64)
        native.fan(**self.edges, target=self.diffusion.target, reach=reach, fanout=fanout, threads=self.threads)
        return reach, fanout

    @cached_property
    def send(self) -> NDArray[np.float64]:
        """Σ_u T[u,v]/source[v] over the receivers u of v: turns block sizes into the mean message size."""
        graph = self.diffusion.graph
        rows = np.repeat(self.diffusion.target, graph.degree)
        values = rows if graph.weight is None else rows * graph.weight
        return np.bincount(graph.indices, weights=values, minlength=graph.num_nodes).astype(np.float64)

    def column(self, phi: Floats, unit: float = 1.0) -> Floats:
        """h(S)φ for the stationary vector, exactly, in multiples of `unit`; float32 [n]."""
        theta = self.scheme.coefficients(self.hops)
        if self.scheme.skip == "diagonal":  # S φ = φ
            return phi * np.float32(theta.sum() * unit)
        diffusion = self.diffusion
        # A few powers of two in hand keep the column from outgrowing float32 before `unit` brings it down.
        q, lift = phi * diffusion.source, 1.0
        total = (theta[0] * unit) * q.astype(np.float64)
        for hop in range(1, self.hops + 1):
            after = np.empty_like(q)
            native.column_hop(**self.edges, keep=self.keep, gain=self.gain, q=q, q_out=after, threads=self.threads)
            q = after
            if float(q.max(initial=0.0)) > _HUGE:
                q, lift = q * np.float32(1 / _HUGE), lift * _HUGE
            if theta[hop]:
                total += (theta[hop] * lift * unit) * q.astype(np.float64)
        return np.asarray(total / diffusion.source, dtype=np.float32)


def stationary(diffusion: Diffusion) -> Floats:
    """φ = d^r, the fixed point T φ = φ of every diffusion (its rows sum to d^r by construction); float32 [n]."""
    cached = diffusion.__dict__.get("_stationary")
    if cached is None:
        cached = diffusion.__dict__["_stationary"] = (diffusion.degree**diffusion.r).astype(np.float32)
    return cached  # type: ignore[no-any-return]


@dataclass
class Outcome:
    """What an engine hands back: the coordinates and the hops' records."""

    values: Floats
    hops: list[HopTrace]
    exponent: int = 0
    """The true values are ``values · 2^exponent`` (growth beyond float32 was scaled away)."""
    snapshots: list[Floats] | None = None


def unpruned(op: Operator, view: View, every_hop: bool, progress: Progress | None) -> Outcome:
    """All entries, tile after tile: one tile's buffers suffice, and a narrow one may stay in the cache."""
    n, m, width = op.diffusion.graph.num_nodes, op.diffusion.graph.num_edges, view.width
    carried = _Carried.of(op, view)
    shapes = cut(width)
    seconds = np.zeros(op.hops)
    result = None if len(shapes) == 1 else np.empty((n, width), dtype=np.float32)
    snapshots = [np.empty((n, width), dtype=np.float32) for _ in range(op.hops + 1)] if every_hop else None
    exponents = []
    square = np.zeros(n, dtype=np.float32) if op.grows else None
    for number, shape in enumerate(shapes):
        tile = Tile(n, shape, accumulate=op.accumulate, lazy=False)
        exponent = 0
        view.fill(tile)
        if tile.out is not None:
            np.multiply(tile.buffers[0], op.coefficients[0], out=tile.out)
        for hop in range(op.hops):
            began = perf_counter()
            if snapshots is not None:
                _finish(tile, op, hop, snapshots[hop], accumulated=False)
            native.full_hop(
                **op.edges, blocks=shape.blocks, keep=op.keep, gain=op.gain, q=tile.buffers[hop % 2],
                q_out=tile.buffers[(hop + 1) % 2], coefficient=op.coefficients[hop + 1], out=tile.out, square=square,
                threads=op.threads,
            )  # fmt: skip
            if square is not None:
                if float(square.max(initial=0.0)) > _HUGE**2:
                    exponent += tile.shrink()
                square[:] = 0
            seconds[hop] += perf_counter() - began
            if progress:
                progress(number * op.hops + hop + 1, len(shapes) * op.hops)
        if snapshots is not None:
            _finish(tile, op, op.hops, snapshots[op.hops], accumulated=False)
        if result is None:
            result = _take(tile, op, carried)
        else:
            _finish(tile, op, op.hops, result, carried)
        exponents.append(exponent)
    assert result is not None
    for shape, exponent in zip(shapes, exponents, strict=True):  # one common scale for all columns
        if exponent < max(exponents):
            result[:, shape.column : shape.column + shape.width] *= np.float32(2.0 ** (exponent - max(exponents)))
    # Counted against the input's own axes: those that were dropped are entries too, and removed ones.
    f, removed = view.features.f, None if view.basis is None else 0.0
    hops = [HopTrace(hop, m * f, m * width, 0, m * width, m * f, 0, removed, float(seconds[hop])) for hop in range(op.hops)]
    return Outcome(result, hops, max(exponents), snapshots)


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
    engine = (_NodeEngine if entries == "node" else _BlockEngine)(op, view, entries, inherit)
    input_width = view.features.f
    influence = op.scheme.influence(op.hops)
    sample = _Sample(op, inherit) if budget.needs_sample else None
    hops: list[HopTrace] = []
    snapshots = [engine.snapshot(0)] if every_hop else None
    for hop in range(op.hops):
        began = perf_counter()
        engine.rescale()
        # Magnitudes are in stored units here; a threshold is told in true ones.
        weight = float(influence[hop])
        mean = weight * engine.mean() if budget.needs_mean else 0.0
        seen = sample.look(engine, weight, input_width) if sample else None
        delta = budget.threshold(hop, seen, mean, engine.unit)
        if sample:
            sample.remember(delta)
        counts = engine.hop(hop, delta / weight if weight else np.inf)
        record = HopTrace(hop, *counts, threshold=delta / engine.unit, seconds=perf_counter() - began)
        budget.record(hop, 1 - record.sparsity)
        hops.append(record)
        if snapshots is not None:
            snapshots.append(engine.snapshot(hop + 1))
        if progress:
            progress(hop + 1, op.hops)
    return Outcome(engine.result(), hops, engine.exponent, snapshots)


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

    def look(self, engine: _Engine, scale: float, input_width: int) -> Messages:
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


class _Engine:
    """What the two pruned engines share."""

    unit = 1.0
    """True values are the stored ones times this; a power of two."""
    exponent = 0

    def __init__(self, op: Operator, view: View, entries: Entries, inherit: bool) -> None:
        self.op, self.view, self.inherit = op, view, inherit
        self.width, self.input_width = view.width, view.features.f
        self.tiles: list[Tile] = []

    def sizes(self, nodes: NDArray[Any]) -> tuple[Floats, Floats]:
        """Block sizes of these nodes [k, decisions], and the features each decision covers [decisions]."""
        raise NotImplementedError

    def mean(self) -> float:
        """Mean message size over all entries, in stored units."""
        raise NotImplementedError

    def hop(self, hop: int, delta: float) -> tuple[int, int, int, int, int, int]:
        """One hop pruned at |T[u,v]|·size < δ (stored units); (entries, kept, zeros, macs, dense macs, zero macs)."""
        raise NotImplementedError

    def rescale(self) -> None:
        raise NotImplementedError

    def snapshot(self, hop: int) -> Floats:
        """S^hop Z as it stands, without the stationary part; float32 [n, width]."""
        values = np.empty((self.op.diffusion.graph.num_nodes, self.width), dtype=np.float32)
        for tile in self.tiles:
            _finish(tile, self.op, hop, values, accumulated=False)
        return values

    def result(self) -> Floats:
        """The output; the tiles' memory is given up on the way, so the whole never stands twice."""
        carried = _Carried.of(self.op, self.view, self.unit)
        if len(self.tiles) == 1:
            return _take(self.tiles.pop(), self.op, carried)
        values = np.empty((self.op.diffusion.graph.num_nodes, self.width), dtype=np.float32)
        while self.tiles:
            _finish(self.tiles.pop(), self.op, self.op.hops, values, carried)
        return values


class _BlockEngine(_Engine):
    """One decision per (edge, block) or (edge, feature)."""

    def __init__(self, op: Operator, view: View, entries: Entries, inherit: bool) -> None:
        super().__init__(op, view, entries, inherit)
        graph = op.diffusion.graph
        self.by_feature = entries == "feature"
        self.current = 0  # which of the two size tables is this hop's
        for shape in cut(view.width):
            tile = Tile(graph.num_nodes, shape, accumulate=op.accumulate, lazy=True, by_feature=self.by_feature)
            view.fill(tile)
            self.tiles.append(tile)
        self.zero = [self._zeros(tile) for tile in self.tiles]
        self.lagging = [0.0] * len(self.tiles)  # the largest message a block left behind could send
        self.alive: list[NDArray[np.uint8] | None] = [None] * len(self.tiles)
        if inherit:
            per_edge = [2 * tile.shape.blocks if self.by_feature else 1 for tile in self.tiles]
            self.alive = [np.full(graph.num_edges * size, 255, dtype=np.uint8) for size in per_edge]

    def _zeros(self, tile: Tile) -> list[int]:
        """Entries of the first hop that are exactly zero, per block."""
        fanout = self.op.fan[1]
        if not self.by_feature:
            return [int(fanout[tile.size[0][:, block] == 0].sum()) for block in range(tile.shape.blocks)]
        return [
            int(fanout @ (tile.buffers[0][:, LANES * b : LANES * b + width] == 0).sum(axis=1))
            for b, width in enumerate(tile.shape.widths().tolist())
        ]

    def sizes(self, nodes: NDArray[Any]) -> tuple[Floats, Floats]:
        width = np.concatenate([tile.shape.widths() for tile in self.tiles])
        if self.by_feature:
            values = np.concatenate([self._values(tile, nodes) for tile in self.tiles], axis=1)
            return np.abs(values), np.ones(values.shape[1], dtype=np.float32)
        parts = [tile.size[self.current][nodes] for tile in self.tiles]
        size = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        real = width > 0
        return (size if real.all() else size[:, real]), width[real].astype(np.float32)

    def _values(self, tile: Tile, nodes: NDArray[Any]) -> Floats:
        """Scaled values of some nodes at this hop [k, width] (feature form only: blocks may be lagging)."""
        assert tile.stamp is not None
        age = self._hop - tile.stamp[nodes].astype(np.int64)
        even = (tile.stamp[nodes] % 2 == 0).repeat(LANES, axis=1)
        stored = np.where(even, tile.buffers[0][nodes], tile.buffers[1][nodes])
        factor = self.op.keep[nodes][:, None] ** age
        values: Floats = stored * factor.repeat(LANES, axis=1).astype(np.float32)
        return values[:, : tile.shape.width]

    _hop = 0

    def mean(self) -> float:
        op = self.op
        entries = op.diffusion.graph.num_edges * sum(int((t.shape.widths() > 0).sum()) for t in self.tiles)
        if not entries:
            return 0.0
        total = sum(float((op.send @ tile.size[self.current]).sum()) for tile in self.tiles)
        if self.by_feature:
            # Sizes are block maxima here; the mean over features needs the values themselves.
            everyone = np.arange(op.diffusion.graph.num_nodes)
            entries = op.diffusion.graph.num_edges * self.width
            total = sum(float((op.send @ np.abs(self._values(tile, everyone))).sum()) for tile in self.tiles)
        return total / entries

    def hop(self, hop: int, delta: float) -> tuple[int, int, int, int, int, int]:
        op = self.op
        m = op.diffusion.graph.num_edges
        reach, fanout = op.fan
        kept = zeros = macs = zero_macs = 0
        for number, (tile, alive) in enumerate(zip(self.tiles, self.alive, strict=True)):
            now, later = self.current, 1 - self.current
            zero_by_block = self.zero[number]
            kept_by_block, self.zero[number], self.lagging[number] = native.pruned_hop(
                **op.edges, blocks=tile.shape.blocks, width=tile.shape.width, hop=hop, keep=op.keep, gain=op.gain,
                target=op.diffusion.target, reach=reach, fanout=fanout, delta=delta, rouse=bool(self.lagging[number] >= delta),
                by_feature=self.by_feature, size=tile.size[now], top=tile.top[now], size_out=tile.size[later],
                top_out=tile.top[later], alive=alive, even=tile.buffers[0], odd=tile.buffers[1], stamp=tile.stamp, out=tile.out,
                coefficient=op.coefficients, threads=op.threads,
            )  # fmt: skip
            for kept_here, zero_here, width in zip(kept_by_block, zero_by_block, tile.shape.widths().tolist(), strict=True):
                if width:  # padding blocks are all zero and are nobody's entries
                    each = 1 if self.by_feature else width
                    kept, macs = kept + kept_here, macs + kept_here * each
                    zeros, zero_macs = zeros + zero_here, zero_macs + zero_here * each
        self.current = 1 - self.current
        self._hop = hop + 1
        decisions = self.input_width if self.by_feature else -(-self.input_width // LANES)
        return m * decisions, kept, zeros, macs, m * self.input_width, zero_macs

    def rescale(self) -> None:
        peak = max((float(tile.top[self.current].max(initial=0.0)) for tile in self.tiles), default=0.0)
        if peak < _HUGE:
            return
        for tile in self.tiles:
            shift = tile.shrink()
        self.lagging = [value * 2.0**-shift for value in self.lagging]
        self.unit *= 2.0**-shift
        self.exponent += shift


class _NodeEngine(_Engine):
    """One decision per edge, by the norm of the whole row ([P] Algorithm 1): survivors are compacted, then summed."""

    def __init__(self, op: Operator, view: View, entries: Entries, inherit: bool) -> None:
        super().__init__(op, view, entries, inherit)
        graph = op.diffusion.graph
        self.square = np.zeros(graph.num_nodes, dtype=np.float32)
        for shape in cut(view.width):
            tile = Tile(graph.num_nodes, shape, accumulate=op.accumulate, lazy=False)
            view.fill(tile, self.square)
            if tile.out is not None:
                np.multiply(tile.buffers[0], op.coefficients[0], out=tile.out)
            self.tiles.append(tile)
        self.indices = np.array(graph.indices)
        self.weight = None if graph.weight is None else np.array(graph.weight)
        self.end = np.array(graph.indptr[1:])

    @property
    def norm(self) -> Floats:
        return np.sqrt(self.square)

    def sizes(self, nodes: NDArray[Any]) -> tuple[Floats, Floats]:
        return np.sqrt(self.square[nodes])[:, None], np.array([self.width], dtype=np.float32)

    def mean(self) -> float:
        m = self.op.diffusion.graph.num_edges
        return float(self.op.send @ self.norm) / m if m else 0.0

    def hop(self, hop: int, delta: float) -> tuple[int, int, int, int, int, int]:
        op, graph = self.op, self.op.diffusion.graph
        start = graph.indptr[:-1]
        norm = self.norm
        zeros = int(op.fan[1][norm == 0].sum())
        given = (
            {"end": self.end, "indices": self.indices, "weight": self.weight}
            if self.inherit
            else {"end": graph.indptr[1:], "indices": graph.indices, "weight": graph.weight}
        )
        kept = native.select_edges(
            start=start, **given, norm=norm, target=op.diffusion.target, delta=delta, end_out=self.end,
            indices_out=self.indices, weight_out=self.weight, threads=op.threads,
        )  # fmt: skip
        self.square[:] = 0
        for tile in self.tiles:
            native.full_hop(
                start=start, end=self.end, indices=self.indices, weight=self.weight, blocks=tile.shape.blocks,
                keep=op.keep, gain=op.gain, q=tile.buffers[hop % 2], q_out=tile.buffers[(hop + 1) % 2],
                coefficient=op.coefficients[hop + 1], out=tile.out, square=self.square, threads=op.threads,
            )  # fmt: skip
        m, f = graph.num_edges, self.input_width
        return m, kept, zeros, kept * self.width, m * f, zeros * f

    def rescale(self) -> None:
        if float(self.square.max(initial=0.0)) < _HUGE**2:
            return
        for tile in self.tiles:
            shift = tile.shrink()
        self.square *= np.float32(4.0**-shift)
        self.unit *= 2.0**-shift
        self.exponent += shift


@dataclass(frozen=True)
class _Carried:
    """The stationary part after propagation, h(S)φ · cᵀ, to be added to the finished values."""

    column: Floats
    direction: Floats

    @classmethod
    def of(cls, op: Operator, view: View, unit: float = 1.0) -> _Carried | None:
        if view.phi is None or view.direction is None:
            return None
        return cls(op.column(view.phi, unit), view.direction)


def _finish(
    tile: Tile, op: Operator, hop: int, result: Floats, carried: _Carried | None = None, *, accumulated: bool = True
) -> None:
    shape = tile.shape
    native.finish(
        blocks=shape.blocks, width=shape.width, hop=hop, keep=op.keep, source=op.diffusion.source,
        offset=carried.column if carried else None,
        direction=carried.direction[shape.column : shape.column + shape.width] if carried else None,
        even=tile.buffers[0], odd=tile.buffers[1], stamp=tile.stamp, out=tile.out if accumulated else None,
        coefficient=op.coefficients, result=result, column0=0 if result is tile.room else shape.column, threads=op.threads,
    )  # fmt: skip


def _take(tile: Tile, op: Operator, carried: _Carried | None) -> Floats:
    """The finished values of a matrix that is one tile, in the tile's own memory where the width allows."""
    _finish(tile, op, op.hops, tile.room, carried)
    room = tile.room
    tile.buffers.clear()
    return room if room.shape[1] == tile.shape.width else np.ascontiguousarray(room[:, : tile.shape.width])
