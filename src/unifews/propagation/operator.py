"""One hop of a scheme on a graph, in the form the kernels want it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.diffusion import Diffusion
from unifews.core.graph import Graph
from unifews.core.schemes import Scheme, keep_factor
from unifews.kernels import native
from unifews.propagation.tiles import SHIFT, Edges, Floats, Tile, edges_of, full_hop

HUGE = 2.0**55  # sizes beyond this are brought down by 2^SHIFT before their squares can overflow


@dataclass(frozen=True)
class HopOperator:
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
    def phi(self) -> Floats:
        """The stationary vector of the diffusion, float32 [n]."""
        return stationary(self.diffusion)

    def release(self) -> None:
        """Keep no more than hops need."""
        _ = self.keep, self.gain, self.diffusion.target, self.diffusion.source
        self.diffusion.release()

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
    def graph(self) -> Graph:
        """All edges there are; those of `edges` are the ones that are summed up here."""
        return self.diffusion.graph

    def at(self, values: NDArray[Any], nodes: NDArray[Any]) -> NDArray[Any]:
        """Values of some nodes, one row of `values` each."""
        return np.asarray(values[nodes])

    @property
    def rows(self) -> int:
        """Rows that are computed here, the first ones; others are copies of what other workers compute."""
        return self.diffusion.graph.num_nodes

    def refresh(self, values: Floats) -> None:
        """Bring the copies up to date; here all rows are computed."""

    def traffic(self, width: int, sent: list[int]) -> tuple[list[int], list[int]] | None:
        """Bytes sent at each hop of `width` columns, and what unpruned hops send; None: there is one worker."""
        return None

    def most(self, value: float) -> float:
        """The largest of what any part of the graph finds; here all of it is one part."""
        return value

    @property
    def edges(self) -> Edges:
        return edges_of(self.diffusion.graph)

    @property
    def factors(self) -> dict[str, Any]:
        """Factors of rows and messages, as pruned hops take them."""
        reach, fanout = self.fan
        rows = {"keep": self.keep, "gain": self.gain, "target": self.diffusion.target}
        return {**rows, "reach": reach, "fanout": fanout, "coefficient": self.coefficients}

    def full_hop(self, tile: Tile, hop: int, square: Floats | None, edges: Edges | None = None) -> None:
        """One hop of a tile over all edges, or over the given ones; adds up the squares of its rows."""
        q, q_out, coefficient = tile.buffers[hop % 2], tile.buffers[(hop + 1) % 2], self.coefficients[hop + 1]
        factors = {"keep": self.keep, "gain": self.gain, "coefficient": coefficient}
        full_hop(edges or self.edges, q, q_out, self.threads, **factors, out=tile.out, square=square)

    @cached_property
    def fan(self) -> tuple[Floats, NDArray[np.int64]]:
        """For each node: the largest factor of its messages, and their number."""
        return self._fan()

    def _fan(self) -> tuple[Floats, NDArray[np.int64]]:
        """The same among the edges here."""
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

    def powers(self, phi: Floats) -> Iterator[tuple[Floats, int]]:
        """S^l φ for the stationary vector φ and l = 0..L, exactly, as (column, e) with the true column 2^e times that."""
        if self.scheme.skip == "diagonal":  # S φ = φ
            yield from [(phi, 0)] * (self.hops + 1)
            return
        source = self.diffusion.source
        q, exponent = phi * source, 0
        yield phi, 0
        for _ in range(self.hops):
            q = self.column_hop(q)
            if self.most(float(q.max(initial=0.0))) > HUGE:
                q, exponent = q * np.float32(2.0**-SHIFT), exponent + SHIFT
            yield q / source, exponent

    def column_hop(self, q: Floats) -> Floats:
        """One hop of a single column of scaled values; float32 [n]."""
        self.refresh(q)
        after = np.empty_like(q)
        native.column_hop(**self.edges, keep=self.keep, gain=self.gain, q=q, q_out=after, threads=self.threads)
        return after

    def settled(self, phi: Floats) -> tuple[NDArray[Any], int]:
        """h(S)φ = Σ θ_l S^l φ, as (column, e) with the true column 2^e times that; floats [n]."""
        theta = self.scheme.coefficients(self.hops)
        if self.scheme.skip == "diagonal":
            return phi * np.float32(theta.sum()), 0
        total, exponent = np.zeros(len(phi)), 0
        for weight, (column, grown) in zip(theta.tolist(), self.powers(phi), strict=True):
            total, exponent = np.ldexp(total, exponent - grown), grown
            total += weight * column.astype(np.float64)
        return total, exponent

    def column(self, phi: Floats, exponent: int) -> Floats:
        """h(S)φ over 2^exponent; float32 [n]."""
        column, grown = self.settled(phi)
        return lowered(column, exponent - grown)

    def alone(self, exponent: int, hop: int | None = None) -> Floats:
        """h(keep) = Σ θ_l keep^l over 2^exponent, what a value becomes at a node that receives nothing; float32 [n].

        With `hop`, that power of keep alone.
        """
        theta = self.scheme.coefficients(self.hops) if hop is None else np.eye(1, hop + 1, hop)[0]
        with np.errstate(divide="ignore"):  # keep may be 0, and its powers must not overflow before they are scaled
            log = np.log2(self.keep.astype(np.float64))
        total = np.full(len(log), math.ldexp(float(theta[0]), -exponent))
        for power, weight in enumerate(theta.tolist()):
            if power and weight:
                total += weight * np.exp2(power * log - exponent)
        return total.astype(np.float32)


def lowered(column: NDArray[Any], exponent: int) -> Floats:
    """column / 2^exponent; float32, without a copy where it is that already."""
    return np.asarray(np.ldexp(column, -exponent) if exponent else column, dtype=np.float32)


def stationary(diffusion: Diffusion) -> Floats:
    """φ = d^r, the fixed point T φ = φ of every diffusion (row u of Ā sums to d(u)); float32 [n]."""
    return (diffusion.degree**diffusion.r).astype(np.float32)
