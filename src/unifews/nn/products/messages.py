"""Messages of any layer, computed by its own code: those that are not kept are set to zero."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from unifews.core.entry import survives
from unifews.nn.edges import LayerEdges
from unifews.nn.products import Multiplied, Product
from unifews.nn.products.diffusion import block_norms

_SAMPLE = 1 << 17  # messages from which the magnitudes of columns are estimated


@dataclass(eq=False)
class MessageProduct(Product):
    """Messages [rows, width] in the caller's order, self-loops included; the result is not summed yet."""

    rows: Tensor
    edges: LayerEdges
    """`number`: the row of each edge."""
    alive: Tensor | None
    operand: Tensor | None = None
    """x[v] of messages factor · x[v], [rows, width], of layers that add self-loops and normalise their factors."""
    sums: bool = False
    """Whether the layer adds the messages up, so that those that are not kept need not be read: `columns` and `dropped` then
    say which, and the result has all of them."""
    columns: Tensor | None = field(default=None, init=False)
    """int64: the only columns to be added up; None = all."""
    dropped: Tensor | None = field(default=None, init=False)
    """bool [rows]: the messages of edges that a selection by edges leaves out, for sums in which a zero is not neutral."""

    @property
    def width(self) -> int:
        return self.rows.shape[1]

    @cached_property
    def _sent(self) -> Tensor:
        """The messages between different nodes, [m, width]."""
        return self.rows.detach()[self.edges.number]

    @property
    def _is_loop(self) -> Tensor:
        """bool [rows]: the messages of a node to itself."""
        return torch.ones(len(self.rows), dtype=torch.bool, device=self.rows.device).index_fill(0, self.edges.number, False)

    @property
    def _has_loops(self) -> bool:
        return len(self.rows) != len(self.edges.number)

    def column_sizes(self) -> Tensor:
        """From evenly spaced messages where there are many: enough to compare columns."""
        number = self.edges.number
        rows, factor = self.rows.detach(), 1.0
        if len(number) > _SAMPLE:
            number = number[:: len(number) // _SAMPLE]
            factor = (len(self.edges.number) / len(number)) ** 0.5
        size: Tensor = rows[number].norm(dim=0) * factor
        return size

    def edge_sizes(self) -> Tensor:
        size: Tensor = self.rows.detach().norm(dim=1)[self.edges.number]
        return size

    def mean_values(self, size: Tensor) -> Tensor:
        return torch.cat([size[size >= 0], self.rows.detach()[self._is_loop].norm(dim=1)])

    def entry_sizes(self, lanes: int) -> Tensor:
        padded = block_norms(self._sent, lanes)
        return padded if self.alive is None else torch.where(self.alive[:, None], padded, -1.0)

    def _in_columns(self, columns: Tensor | None) -> Tensor:
        if columns is None:
            return self.rows
        if self.sums and not self._has_loops:
            self.columns = columns
            return self.rows
        keep = torch.zeros(self.width, dtype=torch.bool, device=self.rows.device).index_fill(0, columns, True)
        return self.rows * keep if not self._has_loops else self._masked(keep.expand(len(self._sent), -1))

    def _in_columns_renormalized(self, columns: Tensor) -> Tensor:
        out = self._in_columns(columns)
        if self.operand is None:
            return out
        others = torch.ones(self.width, dtype=torch.bool, device=out.device).index_fill(0, columns, False)
        return torch.where(self._is_loop[:, None] & others, self.operand, out)

    def _along(self, keep: Tensor) -> Tensor:
        none = torch.zeros(len(self.rows), dtype=torch.bool, device=keep.device)
        self.dropped = none.index_put((self.edges.number,), ~keep)
        return self.rows if self.sums else self.rows * ~self.dropped[:, None]

    def _at_least(self, delta: float, lanes: int) -> Multiplied:
        kept = survives(None, self.entry_sizes(lanes), delta, zeros=True)
        keep = kept.repeat_interleave(lanes, dim=1)[:, : self.width]
        sends = keep.any(dim=1)
        return Multiplied(self._masked(keep), int(sends.sum()), int(keep.sum()), sends)

    def _masked(self, keep: Tensor) -> Tensor:
        """The messages, zero where keep [m, width] is not set."""
        every = torch.ones_like(self.rows, dtype=torch.bool)
        every[self.edges.number] = keep
        return self.rows * every
