"""Feature matrices cut into tiles of up to 8 blocks of 16 features, the layout the kernels work on.

A tile is ``[n, blocks · 16]`` float32 on cache-line boundaries. Tiles do not depend on each other, except through a
threshold that looks at all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.graph import Graph
from unifews.kernels import LANES, MAX_BLOCKS, aligned, native

Floats = NDArray[np.float32]
Allocate = Callable[[int, int], Floats]
Edges = dict[str, Any]
"""Compressed rows as the kernels take them: `start` and `end` of each row in `indices`, and `weight` or None."""
SHIFT = 48
"""Powers of two by which values that outgrow float32 are brought down."""


@dataclass(frozen=True)
class Shape:
    """How many features a tile has and where they sit in the matrix."""

    column: int
    width: int
    blocks: int

    @property
    def padded(self) -> int:
        return self.blocks * LANES

    def widths(self) -> NDArray[np.int64]:
        """Features in each block; the last one with any may be short, padding has none. int64 [blocks]."""
        return np.clip(self.width - LANES * np.arange(self.blocks), 0, LANES)


def cut(width: int, least: int = 1) -> list[Shape]:
    """The tiles for `width` features: as few as possible but `least`, of like size, at most 15 columns of padding in all."""
    total = -(-width // LANES)
    count = max(-(-total // MAX_BLOCKS), min(least, total))
    step = -(-total // max(count, 1)) * LANES
    shapes = [(at, min(step, width - at)) for at in range(0, width, max(step, 1))]
    return [Shape(at, columns, -(-columns // LANES)) for at, columns in shapes]


def edges_of(graph: Graph) -> Edges:
    return {"start": graph.indptr[:-1], "end": graph.indptr[1:], "indices": graph.indices, "weight": graph.weight}


def full_hop(
    edges: Edges,
    q: Floats,
    q_out: Floats,
    threads: int,
    *,
    keep: Floats | None = None,
    gain: Floats | None = None,
    coefficient: float = 0.0,
    out: Floats | None = None,
    square: Floats | None = None,
    previous: float = 0.0,
) -> None:
    """q_out = keep ∘ q + gain ∘ A q - previous · q_out for tiles [n, blocks · 16], all entries of A; None = 0 and 1.

    Also adds coefficient · q_out to `out` and the squared norm of each row to `square` [n], if given.
    """
    blocks = q.shape[1] // LANES
    sums = {"coefficient": coefficient, "out": out, "square": square, "previous": previous}
    native.full_hop(**edges, blocks=blocks, keep=keep, gain=gain, q=q, q_out=q_out, **sums, threads=threads)


def scaled(value: float, exponent: int) -> float:
    """value · 2^exponent, infinite where it is too large."""
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.inf


class Tile:
    """The values of one tile during a propagation.

    ``buffers`` take turns: hop l reads ``buffers[l % 2]`` and writes the other. With `lazy`, a block that receives
    nothing is left where it is, and ``stamp`` is the hop of each (see Lazy in kernels.h). ``out`` is met row after row;
    `allocate` makes the array.
    """

    def __init__(
        self, n: int, shape: Shape, *, accumulate: bool, lazy: bool, by_feature: bool = False, allocate: Allocate = aligned
    ) -> None:
        self.shape = shape
        columns = shape.blocks * LANES
        self.buffers: list[Floats] = [aligned(n, columns), aligned(n, columns)]
        self.out: Floats | None = allocate(n, columns) if accumulate else None
        self.by_feature = by_feature
        self.stamp: NDArray[np.uint16] | None = None
        self.size: list[Floats] = []
        self.top: list[Floats] = []
        if lazy:
            self.stamp = np.zeros((n, shape.blocks), dtype=np.uint16)
            self.size = [aligned(n, shape.blocks), aligned(n, shape.blocks)]
            self.top = [aligned(n), aligned(n)]

    @property
    def stored(self) -> dict[str, Any]:
        """Where the values are, as the kernels take it."""
        even, odd = self.buffers
        return {"blocks": self.shape.blocks, "width": self.shape.width, "even": even, "odd": odd, "stamp": self.stamp}

    def sizes(self, now: int) -> dict[str, Floats]:
        """The tables of sizes of this hop and the next, as the kernels take them."""
        size, top, later = self.size, self.top, 1 - now
        return {"size": size[now], "top": top[now], "size_out": size[later], "top_out": top[later]}

    @property
    def buffer(self) -> Floats:
        """The array whose memory the finished values may take over."""
        return self.out if self.out is not None else self.buffers[0]

    def shrink(self) -> int:
        """Divide everything by 2^k, exactly, before it outgrows float32; returns k."""
        with np.errstate(all="ignore"):  # uninitialised memory may hold any bits
            for array in [*self.buffers, self.out, *self.size, *self.top]:
                if array is not None:
                    array *= np.float32(2.0**-SHIFT)
        return SHIFT
