"""One hop on a part of a graph: what must come from other workers first, and no more than some entry needs.

Owners decide what to send, as the kernels do: for each row that another worker needs, its owner knows the largest factor of
that worker's edges from it, so ``size · reach < δ`` means that no entry of that worker is kept, and nothing is sent. There the
block counts as one of size zero, which falls short of every δ just the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.graph import Graph
from unifews.core.trace import HopTrace
from unifews.distributed.partition import Part
from unifews.kernels import LANES
from unifews.kernels.reference_hops import MARGIN
from unifews.propagation.engines import BlockEngine
from unifews.propagation.features import Floats
from unifews.propagation.operator import HopOperator
from unifews.propagation.tiles import Shape, Tile
from unifews.propagation.view import View

_COUNTS = ("entries", "kept", "zeros", "macs", "dense_macs", "zero_macs")  # of a hop, added up over workers
_COMPANY = 1536  # rows; whatever number of them BLAS takes at a time divides this
_SURE = np.float32(1e-30)  # below this δ everything is sent that is not zero: products of subnormals round too coarsely


@dataclass(frozen=True)
class PartitionOperator(HopOperator):
    """One hop on the rows of one worker."""

    part: Part

    @property
    def graph(self) -> Graph:
        return self.part.whole

    def at(self, values: NDArray[Any], nodes: NDArray[Any]) -> NDArray[Any]:
        which, rows = self.part.here(nodes)
        return self.part.gathered(values[rows], which, len(nodes))

    @property
    def rows(self) -> int:
        return self.part.owned

    def refresh(self, values: Floats) -> None:
        values[self.part.owned :] = self.part.fetch(values)

    def traffic(self, width: int, sent: list[int]) -> tuple[list[int], list[int]]:
        rows = int(self.part.comm.all_reduce(np.array([len(self.part.rows)]))[0])
        everything = [4 * width * rows] * self.hops
        return sent or everything, everything

    def most(self, value: float) -> float:
        return self.part.comm.maximum(value)

    @cached_property
    def keep(self) -> Floats:
        """0 for rows of others: nothing of them is carried on here, they are sent anew."""
        keep = super().keep.copy()
        keep[self.part.owned :] = 0
        return keep

    @cached_property
    def _reach(self) -> tuple[Floats, NDArray[np.int64], Floats]:
        part, (reach, fanout) = self.part, self._fan()
        there = part.give_back(reach[part.owned :])
        np.add.at(fanout, part.rows, part.give_back(fanout[part.owned :]))
        np.maximum.at(reach, part.rows, there)
        fanout[part.owned :] = 0  # their owners count them
        return reach, fanout, there

    @property
    def fan(self) -> tuple[Floats, NDArray[np.int64]]:  # type: ignore[override]
        """Of owned nodes among all workers, of the others among the edges here."""
        return self._reach[:2]

    @property
    def there(self) -> Floats:
        """The largest factor, over the edges of the worker it is sent to, of each row of `part.rows`."""
        return self._reach[2]


@dataclass
class PartitionView(View):
    """The rows of one worker, on their way into tiles; those of others are empty until they are sent."""

    op: PartitionOperator

    @property
    def part(self) -> Part:
        return self.op.part

    def fill(self, tile: Tile, square: Floats | None = None) -> None:
        for array in (*tile.buffers, *tile.size, *tile.top):
            array[self.part.owned :] = 0
        axes = None if self.basis.axes is None else self.axes(tile.shape)
        for first, rows in self._some_times(axes):
            self._ingest(tile, rows, first, tile.shape.column if axes is None else 0, square)

    def _times(self, v: Floats) -> Floats:
        column = np.zeros(len(self.diffusion.source), dtype=np.float32)
        for first, rows in self._some_times(v):
            column[first : first + len(rows)] = rows[:, 0]
        return column

    def some(self, nodes: NDArray[Any]) -> Floats:
        which, rows = self.part.here(nodes)
        return self.part.gathered(self.features.some(self.part.nodes[rows]), which, len(nodes))

    def _some_times(self, v: Floats | None) -> Iterator[tuple[int, Floats]]:
        """X · v of the owned rows, or X itself, some at a time, and the number of the first of them.

        BLAS rounds a row by its place among others: those of a range come in the company that they have in the whole matrix,
        and what is not owned goes again.
        """
        features, nodes, own = self.features, self.part.nodes, self.part.own
        step = -(-features.chunks()[0][1] // _COMPANY) * _COMPANY
        if isinstance(own, slice):
            for first in range(own.start - own.start % _COMPANY, own.stop, step):
                last = min(first + step, -(-own.stop // _COMPANY) * _COMPANY, features.n)
                rows = features.rows(first, last) if v is None else features.rows(first, last) @ v
                begin = max(first, own.start)
                yield begin - own.start, rows[begin - first : own.stop - first]
        else:
            for first in range(0, len(nodes), step):
                rows = features.some(nodes[first : first + step])
                yield first, rows if v is None else rows @ v


class PartitionEngine(BlockEngine):
    """Blocks of the rows of one worker."""

    op: PartitionOperator

    @property
    def part(self) -> Part:
        return self.op.part

    def sizes(self, nodes: NDArray[Any]) -> tuple[Floats, Floats]:
        which, rows = self.part.here(nodes)
        size, width = super().sizes(rows)
        return self.part.gathered(size, which, len(nodes)), width

    def prune(self, hop: int, delta: float) -> HopTrace:
        sent = 0 if math.isinf(delta) else sum(self._refresh(tile, hop, np.float32(delta)) for tile in self.tiles)
        mine = super().prune(hop, delta)
        counts = [getattr(mine, name) for name in _COUNTS]
        *total, all_sent = self.part.comm.all_reduce(np.array([*counts, sent], dtype=np.int64)).tolist()
        self.sent.append(all_sent)
        return replace(mine, **dict(zip(_COUNTS, total, strict=True)))

    def _refresh(self, tile: Tile, hop: int, delta: np.float32) -> int:
        """Bring the blocks that some entry here needs, as of this hop; the bytes sent."""
        part, now, owned = self.part, self.current, self.part.owned
        size = tile.size[now][part.rows]
        needed = (size > 0) & ((size * self.op.there[:, None] * MARGIN >= delta) | (delta < _SURE))
        flags = np.packbits(needed, axis=1)
        row, block = np.nonzero(needed)
        lines = np.empty((len(row), 1 + LANES), dtype=np.float32)
        lines[:, 0], lines[:, 1:] = size[row, block], self._blocks(tile, part.rows[row], block, hop)
        real = _real(tile.shape, block)  # the last block may be short
        going = lines[real]

        arriving = np.unpackbits(part.comm.all_to_all(flags, part.sent, part.received), axis=1, count=tile.shape.blocks)
        sent = _by_worker(row, real, part.sent)
        row, block = np.nonzero(arriving)
        real = _real(tile.shape, block)
        lines = np.zeros((len(row), 1 + LANES), dtype=np.float32)
        lines[real] = part.comm.all_to_all(going, sent, _by_worker(row, real, part.received))
        assert tile.stamp is not None
        tile.buffers[hop % 2].reshape(-1, tile.shape.blocks, LANES)[owned + row, block] = lines[:, 1:]
        tile.size[now][owned + row, block] = lines[:, 0]
        tile.stamp[owned + row, block] = hop
        tile.top[now][owned:] = tile.size[now][owned:].max(axis=1)
        return flags.nbytes + going.nbytes

    def _blocks(self, tile: Tile, row: NDArray[np.int64], block: NDArray[np.int64], hop: int) -> Floats:
        """Owned blocks as they are at this hop, though some were left behind; rounded as the kernels do."""
        assert tile.stamp is not None
        by_block = (-1, tile.shape.blocks, LANES)
        stamp = tile.stamp[row, block]
        values = tile.buffers[hop % 2].reshape(by_block)[row, block]
        late = np.flatnonzero(stamp != hop)
        if len(late):
            even, odd = (buffer.reshape(by_block)[row[late], block[late]] for buffer in tile.buffers)
            stored = np.where((stamp[late] % 2 == 0)[:, None], even, odd)
            keep, age = self.op.keep[row[late]], hop - stamp[late].astype(np.int64)
            factor = np.ones_like(keep)
            for step in range(int(age.max())):
                factor = np.where(step < age, factor * keep, factor)
            values[late] = factor[:, None] * stored
        return values

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "sent": self.sent}

    def resume(self, facts: dict[str, Any]) -> None:
        super().resume(facts)
        self.sent = facts["sent"]


def _real(shape: Shape, block: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Of a line for each block, its size and 16 values, those that are no padding."""
    return np.asarray(np.arange(1 + LANES) <= shape.widths()[block][:, None])


def _by_worker(rows: NDArray[np.int64], real: NDArray[np.bool_], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many numbers of the lines of these rows are each worker's, the first `counts[0]` rows being the first one's."""
    owner = np.searchsorted(np.cumsum(counts), rows, side="right")
    return np.bincount(owner, real.sum(axis=1), minlength=len(counts)).astype(np.int64)
