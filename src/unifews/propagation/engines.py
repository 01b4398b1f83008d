"""The ways to run a hop: unpruned, deciding by block or feature, and deciding by the whole row of a node."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.trace import HopTrace
from unifews.errors import GraphError
from unifews.kernels import LANES, aligned, native
from unifews.propagation.budget import Budget
from unifews.propagation.certify import Price, Prices, certificate
from unifews.propagation.operator import HUGE, HopOperator, lowered
from unifews.propagation.sampling import Sample
from unifews.propagation.tiles import Allocate, Edges, Floats, Shape, Tile, scaled
from unifews.propagation.view import View
from unifews.theory.certificates import Certificate

_MAX_EXPONENT = 100  # bits: what is added to values must stay well within the 2^127 of float32


class Engine(ABC):
    """The hops of one group of columns: what changes from hop to hop, and one step of it."""

    growth = 0
    """True values are the stored ones times 2^growth."""
    certificate: Certificate | None = None
    """The bound on the error so far, if one is wanted."""

    def __init__(self, op: HopOperator, view: View, shapes: list[Shape]) -> None:
        self.op, self.view = op, view
        self.first, self.width = shapes[0].column, sum(shape.width for shape in shapes)
        self.tiles: list[Tile] = []
        self.sent: list[int] = []
        """Bytes that all workers have sent at each hop, where some rows that are needed elsewhere are not."""

    def continues(self, hop: int) -> bool:
        """Whether there is another hop after so many."""
        return hop < self.op.hops

    @abstractmethod
    def hop(self, hop: int) -> HopTrace:
        """Advance by one hop; its counts and threshold, without the time."""

    def arrays(self) -> list[NDArray[Any]]:
        """Everything that hops change, to be saved and to be read back in place; `facts` are the rest."""
        held = [part for tile in self.tiles for part in (*tile.buffers, tile.out, tile.stamp, *tile.size, *tile.top)]
        return [part for part in held if part is not None]

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {"growth": self.growth}

    def resume(self, facts: dict[str, Any]) -> None:
        """Continue from the `facts` of another engine, whose `arrays` are read next: here they must have the same shapes."""
        self.growth = facts["growth"]

    def snapshot(self, hop: int) -> Floats:
        """S^hop Z as it stands, without the stationary part; float32 [n, width]."""
        values = np.empty((self.op.diffusion.graph.num_nodes, self.width), dtype=np.float32)
        for tile in self.tiles:
            finish(tile, self.op, hop, values, first=self.first, accumulated=False)
        return values

    def result(self, into: Floats | None = None) -> Floats:
        """The output, of all columns `into` its place if given; the tiles' memory is given up, so it never stands twice."""
        carried, self.growth = CarriedRows.beside(self.tiles, self.op, self.view, self.growth)
        if len(self.tiles) == 1 and into is None:
            return take(self.tiles.pop(), self.op, carried)
        first = self.first if into is None else 0
        values = np.empty((self.op.diffusion.graph.num_nodes, self.width), dtype=np.float32) if into is None else into
        while self.tiles:
            finish(self.tiles.pop(), self.op, self.op.hops, values, carried, first=first)
        return values[:, self.first - first : self.first - first + self.width]


class FullEngine(Engine):
    """Every entry of one tile."""

    def __init__(self, op: HopOperator, view: View, shapes: list[Shape], *, allocate: Allocate = aligned) -> None:
        super().__init__(op, view, shapes)
        (shape,) = shapes
        n = op.diffusion.graph.num_nodes
        tile = Tile(n, shape, accumulate=op.accumulate, lazy=False, allocate=allocate)
        view.fill(tile)
        if tile.out is not None:
            np.multiply(tile.buffers[0], op.coefficients[0], out=tile.out)
        self.tiles.append(tile)
        self.square = np.zeros(n, dtype=np.float32) if op.grows else None

    def hop(self, hop: int) -> HopTrace:
        op, view, (tile,), square = self.op, self.view, self.tiles, self.square
        op.refresh(tile.buffers[hop % 2][:, : self.width])
        op.full_hop(tile, hop, square)
        if hop == 0 and view.sent is not None:
            _add_sent(op, tile, view.sent)
        if square is not None:
            self.growth += tile.shrink() if op.most(float(square.max(initial=0.0))) > HUGE**2 else 0
            square[:] = 0
        # Counted against the input's own axes: those that were dropped are entries too, and removed ones.
        m, f, delta = op.graph.num_edges, view.features.f, None if view.basis.axes is None else 0.0
        return HopTrace(hop, m * f, m * self.width, 0, m * self.width, m * f, 0, delta, seconds=0.0)


def _add_sent(op: HopOperator, tile: Tile, total: NDArray[np.float64]) -> None:
    """total[u] += ‖Σ_v A[u,v]·q[v]‖², seen in the first hop of a tile."""
    before, after = tile.buffers
    for at in range(0, len(total), 4096):
        rows = slice(at, at + 4096)
        sent = (after[rows] - op.keep[rows, None] * before[rows]) / op.gain[rows, None]
        total[rows] += np.einsum("ij,ij->i", sent, sent, dtype=np.float64)


class PrunedEngine(Engine):
    """Only the entries that reach δ, which a budget sets hop by hop."""

    removed: NDArray[np.float64]
    """If an error bound is wanted: what the last hop removed, at its price and squared; float64 [groups of columns]."""

    def __init__(
        self, op: HopOperator, view: View, shapes: list[Shape], budget: Budget, inherit: bool, prices: Prices | None = None
    ) -> None:
        super().__init__(op, view, shapes)
        self.budget, self.inherit, self.prices, self.input_width = budget, inherit, prices, view.features.f
        self.influence = op.scheme.influence(op.hops)
        self.sample = Sample(op, inherit) if budget.needs_sample else None
        self.certificate = certificate(op.hops) if prices else None

    def hop(self, hop: int) -> HopTrace:
        budget, sample, features = self.budget, self.sample, self.view.features
        self.rescale()
        # Magnitudes are in stored units here, 2^exponent times smaller than true ones; thresholds are reported in true units.
        exponent = self.growth + features.exponent
        weight = float(self.influence[hop])
        mean = weight * self.mean() if budget.needs_mean else 0.0
        price, seen = self.prices[hop] if self.prices else None, None
        if sample:
            seen = sample.look(self.sizes(sample.source), self.groups, weight, features.f)
        delta = budget.threshold(hop, seen, mean, exponent)
        if sample:
            sample.remember(delta)
        counted = self.prune(hop, delta / weight if weight else math.inf)
        record = replace(counted, threshold=scaled(delta, exponent))
        if self.certificate and price:
            self.certificate.hop(price.scale * np.sqrt(self.removed), price.exponent + exponent)
        budget.record(hop, self.share(record))
        return record

    @property
    def groups(self) -> float:
        """How many groups of columns like this one there are."""
        return self.view.width / max(self.width, 1)

    def share(self, hop: HopTrace) -> float:
        """What share of the nonzero products a hop of this group kept, if the other groups have as many zeros."""
        work = hop.dense_macs - hop.zero_macs * self.groups
        return hop.macs / work if work > 0 else 0.0

    @abstractmethod
    def sizes(self, nodes: NDArray[Any]) -> tuple[Floats, Floats]:
        """Block sizes of these nodes [k, decisions], and the features each decision covers [decisions]."""

    @abstractmethod
    def mean(self) -> float:
        """Mean message size over all entries, in stored units."""

    @abstractmethod
    def prune(self, hop: int, delta: float) -> HopTrace:
        """One hop pruned at |T[u,v]|·size < δ; the counts, with δ in stored units."""

    @abstractmethod
    def rescale(self) -> None:
        """Before a hop: bring values down, and say so in `growth`, if they are about to outgrow float32."""

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "budget": self.budget.state(), "sample": self.sample and self.sample.state()}

    def resume(self, facts: dict[str, Any]) -> None:
        super().resume(facts)
        self.budget.resume(facts["budget"])
        if self.sample:
            self.sample.resume(facts["sample"])


class BlockEngine(PrunedEngine):
    """One decision per (edge, block) or (edge, feature)."""

    def __init__(
        self,
        op: HopOperator,
        view: View,
        shapes: list[Shape],
        budget: Budget,
        inherit: bool,
        prices: Prices | None = None,
        *,
        by_feature: bool,
        allocate: Allocate = aligned,
    ) -> None:
        super().__init__(op, view, shapes, budget, inherit, prices)
        graph = op.diffusion.graph
        if graph.num_nodes >= 2**32:
            raise GraphError(f"a pruned hop handles up to 2^32 nodes; this graph has {graph.num_nodes:,}. Use entries='node'.")
        self.by_feature = by_feature
        self.current = 0  # which of the two size tables is this hop's
        for shape in shapes:
            tile = Tile(graph.num_nodes, shape, accumulate=op.accumulate, lazy=True, by_feature=by_feature, allocate=allocate)
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

    def prune(self, hop: int, delta: float) -> HopTrace:
        op, m = self.op, self.op.diffusion.graph.num_edges
        # When nothing is sent, every block may lag behind and who is zero stays zero. Sizes are then no longer kept up to
        # date, which is right because an infinite δ never comes down again.
        silent = math.isinf(delta) and op.scheme.skip in ("diagonal", "identity")
        price = self.prices[hop] if self.prices else None
        removed: list[NDArray[np.float64]] = []
        if price:
            quiet = self._quiet_squares(hop) if silent else None
            removed = [price.of(each) for each in quiet] if quiet else [np.zeros(tile.shape.blocks) for tile in self.tiles]
        kept = zeros = macs = zero_macs = 0
        for number, (tile, alive) in enumerate(zip(self.tiles, self.alive, strict=True)):
            zero_by_block, kept_by_block = self.zero[number], [0] * tile.shape.blocks
            bill = price.bill(removed[number]) if price else {}
            if not silent:
                kept_by_block, self.zero[number], self.lagging[number] = native.pruned_hop(
                    **op.edges,
                    **op.factors,
                    **tile.stored,
                    **tile.sizes(self.current),
                    **bill,
                    out=tile.out,
                    hop=hop,
                    delta=delta,
                    rouse=bool(self.lagging[number] >= delta),
                    by_feature=self.by_feature,
                    alive=alive,
                    threads=op.threads,
                )
            if price:
                for block, width in enumerate(tile.shape.widths().tolist()):
                    if kept_by_block[block] + zero_by_block[block] == m * (width if self.by_feature else 1):
                        removed[number][block] = 0  # exactly: nothing was
            for kept_here, zero_here, width in zip(kept_by_block, zero_by_block, tile.shape.widths().tolist(), strict=True):
                if width:  # padding blocks are all zero and count for no entry
                    each = 1 if self.by_feature else width
                    kept, macs = kept + kept_here, macs + kept_here * each
                    zeros, zero_macs = zeros + zero_here, zero_macs + zero_here * each
        self.current = self.current if silent else 1 - self.current
        self._hop = hop + 1
        if price:
            self.removed = np.concatenate(removed)
        decisions = self.input_width if self.by_feature else -(-self.input_width // LANES)
        return HopTrace(hop, m * decisions, kept, zeros, macs, m * self.input_width, zero_macs, threshold=delta, seconds=0.0)

    _quiet: tuple[int, list[NDArray[np.float64]]] | None = None

    def _quiet_squares(self, hop: int) -> list[NDArray[np.float64]]:
        """Squared sizes of all blocks at a hop that sends nothing, [n, blocks] per tile: they decay unrecorded."""
        if self._quiet is None:
            if self.by_feature:
                values = [self._values(tile, np.arange(len(self.op.keep))) for tile in self.tiles]
                squares = [
                    np.add.reduceat(np.square(each, dtype=np.float64), np.arange(0, each.shape[1], LANES), axis=1)
                    for each in values
                ]
            else:
                squares = [np.square(tile.size[self.current], dtype=np.float64) for tile in self.tiles]
            self._quiet = hop, squares
        began, squares = self._quiet
        if self.op.scheme.skip == "identity" or hop == began:
            return squares
        fade = self.op.keep.astype(np.float64)[:, None] ** (2 * (hop - began))
        return [fade * each for each in squares]

    def rescale(self) -> None:
        peak = max((float(tile.top[self.current].max(initial=0.0)) for tile in self.tiles), default=0.0)
        if self.op.most(peak) < HUGE:
            return
        for tile in self.tiles:
            self._rouse(tile)
            shift = tile.shrink()
        self.lagging = [value * 2.0**-shift for value in self.lagging]
        self.growth += shift

    def arrays(self) -> list[NDArray[Any]]:
        return [*super().arrays(), *(part for part in self.alive if part is not None)]

    def facts(self) -> dict[str, Any]:
        return {
            **super().facts(),
            "current": self.current,
            "hop": self._hop,
            "lagging": [float(each) for each in self.lagging],
            "zero": [[int(each) for each in tile] for tile in self.zero],
        }

    def resume(self, facts: dict[str, Any]) -> None:
        super().resume(facts)
        self.current, self._hop = facts["current"], facts["hop"]
        self.lagging, self.zero = facts["lagging"], facts["zero"]

    def _rouse(self, tile: Tile) -> None:
        """Bring all blocks to this hop, as the kernel does with those that send.

        A block that was left behind stands for keep^age times itself, and where keep is 2 that power would outgrow float32
        while the block itself is scaled away.
        """
        assert tile.stamp is not None
        hop, coefficient = self._hop, self.op.coefficients
        by_block = (-1, tile.shape.blocks, LANES)
        buffers, out = [a.reshape(by_block) for a in tile.buffers], None if tile.out is None else tile.out.reshape(by_block)
        for stamp in np.unique(tile.stamp[tile.stamp < hop]).tolist():
            u, b = np.nonzero(tile.stamp == stamp)
            keep = self.op.keep[u]
            stored = buffers[stamp % 2][u, b]
            factor, contributed = np.ones_like(keep), np.full_like(keep, coefficient[stamp])
            for k in range(stamp + 1, hop):
                factor *= keep
                contributed += coefficient[k] * factor
            if out is not None:
                out[u, b] = contributed[:, None] * stored + (out[u, b] if stamp else 0)
            buffers[hop % 2][u, b] = (factor * keep)[:, None] * stored
            tile.stamp[u, b] = hop


class NodeEngine(PrunedEngine):
    """One decision per edge, by the norm of the whole row ([P] Algorithm 1): survivors are compacted, then summed."""

    def __init__(
        self, op: HopOperator, view: View, shapes: list[Shape], budget: Budget, inherit: bool, prices: Prices | None = None
    ) -> None:
        super().__init__(op, view, shapes, budget, inherit, prices)
        graph = op.diffusion.graph
        self.square = np.zeros(graph.num_nodes, dtype=np.float32)
        for shape in shapes:
            tile = Tile(graph.num_nodes, shape, accumulate=op.accumulate, lazy=False)
            view.fill(tile, self.square)
            if view.square is not None:
                view.square[:] = self.square
            if tile.out is not None:
                np.multiply(tile.buffers[0], op.coefficients[0], out=tile.out)
            self.tiles.append(tile)
        self.kept = _copied(op.edges)  # edges of the last hop, and with `inherit` those that may still be kept

    @property
    def norm(self) -> Floats:
        return np.sqrt(self.square)

    def sizes(self, nodes: NDArray[Any]) -> tuple[Floats, Floats]:
        return np.sqrt(self.square[nodes])[:, None], np.array([self.width], dtype=np.float32)

    def mean(self) -> float:
        m = self.op.diffusion.graph.num_edges
        return float(self.op.send @ self.norm) / m if m else 0.0

    def prune(self, hop: int, delta: float) -> HopTrace:
        op, graph = self.op, self.op.diffusion.graph
        norm = self.norm
        zeros = int(op.fan[1][norm == 0].sum())
        # Zeros are passed over, but only δ removes for good: with δ = 0 the lists stay as they are.
        found = _copied(self.kept) if self.inherit and delta == 0 else self.kept
        kept = native.select_edges(
            **(self.kept if self.inherit else op.edges),
            norm=norm,
            target=op.diffusion.target,
            delta=delta,
            **{f"{name}_out": found[name] for name in ("end", "indices", "weight")},
            threads=op.threads,
        )
        if self.prices:
            complete = kept + zeros == graph.num_edges
            self.removed = np.zeros(1) if complete else self._cost(self.prices[hop], norm, found)
        self.square[:] = 0
        for tile in self.tiles:
            op.full_hop(tile, hop, self.square, found)
        m, f = graph.num_edges, self.input_width
        return HopTrace(hop, m, kept, zeros, kept * self.width, m * f, zeros * f, threshold=delta, seconds=0.0)

    def _cost(self, price: Price, norm: Floats, kept: Edges) -> NDArray[np.float64]:
        """The price of the sizes that each row lost: those of all its sources less those of the kept ones."""
        op, graph = self.op, self.op.diffusion.graph
        none, one = np.zeros_like(norm), np.ones_like(norm)
        sums = []
        for lists in (op.edges, kept):
            total = np.empty_like(norm)
            native.column_hop(**lists, keep=none, gain=one, q=norm, q_out=total, threads=op.threads)
            sums.append(total.astype(np.float64))
        everything, sent = sums
        lost = np.where(kept["end"] < graph.indptr[1:], np.maximum(everything - sent, 0) + 1e-6 * everything, 0)
        return np.array([float(price.toll @ np.square(lost))])

    def rescale(self) -> None:
        if float(self.square.max(initial=0.0)) < HUGE**2:
            return
        for tile in self.tiles:
            shift = tile.shrink()
        self.square *= np.float32(4.0**-shift)
        self.growth += shift


def _copied(edges: Edges) -> Edges:
    """With lists of their own for what a selection of edges writes."""
    return {name: array if name == "start" or array is None else np.array(array) for name, array in edges.items()}


@dataclass(frozen=True)
class CarriedRows:
    """The stationary part after propagation, h(S)φ · cᵀ, to be added to the finished values."""

    column: Floats
    direction: Floats

    @classmethod
    def beside(cls, tiles: list[Tile], op: HopOperator, view: View, growth: int) -> tuple[CarriedRows | None, int]:
        """What is to be added to tiles whose values are given over 2^growth, and the growth of both.

        With an identity skip the stationary part may outgrow all that departs from it, and float32: the tiles are brought down
        to its scale then.
        """
        if view.phi is None or view.direction is None:
            return None, growth
        column, grown = op.settled(view.phi)
        peak = op.most(_peak(column)) * max(_peak(view.direction), 1.0)
        while math.frexp(peak)[1] + grown - growth > _MAX_EXPONENT:
            for tile in tiles:
                shift = tile.shrink()
            growth += shift
        return cls(lowered(column, growth - grown), view.direction), growth


def _peak(values: NDArray[Any]) -> float:
    return max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))


def finish(
    tile: Tile,
    op: HopOperator,
    hop: int,
    result: Floats,
    carried: CarriedRows | None = None,
    *,
    first: int = 0,
    accumulated: bool = True,
) -> None:
    """The tile's values after `hop` hops, into its place in a result that begins with column `first`."""
    shape = tile.shape
    native.finish(
        **tile.stored,
        hop=hop,
        keep=op.keep,
        source=op.diffusion.source,
        offset=carried.column if carried else None,
        direction=carried.direction[shape.column : shape.column + shape.width] if carried else None,
        out=tile.out if accumulated else None,
        coefficient=op.coefficients,
        result=result,
        column0=0 if result is tile.buffer else shape.column - first,
        threads=op.threads,
    )


def take(tile: Tile, op: HopOperator, carried: CarriedRows | None) -> Floats:
    """The finished values of a matrix that is one tile, in the tile's own memory where the width allows."""
    finish(tile, op, op.hops, tile.buffer, carried)
    buffer = tile.buffer
    tile.buffers.clear()
    return buffer if buffer.shape[1] == tile.shape.width else np.ascontiguousarray(buffer[:, : tile.shape.width])
