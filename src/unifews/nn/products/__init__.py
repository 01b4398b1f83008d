"""Products of a layer with its messages, of which some entries are left out.

A `Product` has a factor and an operand for every edge and knows how to multiply; it does not know how entries are chosen
(`unifews.nn.entries`). There is one class per way to multiply: `diffusion` (T y), `attention` (α by head), `messages` (any PyG
layer).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from unifews.core.entry import BLOCK
from unifews.nn.edges import LayerEdges


@dataclass(frozen=True, eq=False)
class Selection:
    """The entries of a product that are kept, by columns, by edges or by a threshold; without arguments all of them."""

    columns: Tensor | None = None
    """int64: these columns, along every edge."""
    renormalize: bool = False
    """The other columns, of which only the self-loops are left, are normalised by these: T[u,u] = 1, or α[u,u] = 1."""
    edges: Tensor | None = None
    """bool [m]: these edges, in all columns."""
    delta: float | None = None
    """Entries (edge, `lanes` columns) of magnitude ≥ δ."""
    lanes: int = BLOCK
    later: Tensor | None = None
    """bool [m]: the edges that later layers may use, where these are not the ones that send."""


class Multiplied(NamedTuple):
    """A product over the kept entries."""

    out: Tensor
    used: int
    """Number of edges with at least one kept entry."""
    macs: int
    """Multiply-adds."""
    sends: Tensor | None = None
    """bool [m]: the edges with a kept entry, where magnitudes decided; None = as selected."""


class Product(ABC):
    """Σ_e factor_e · operand[v] into every receiver, over m edges e = (v → u)."""

    edges: LayerEdges
    """The m edges that a selection is about."""
    alive: Tensor | None
    """bool [m]: those that earlier layers have kept; None = all."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Columns of the operand."""

    @abstractmethod
    def column_sizes(self) -> Tensor:
        """Magnitudes of the messages by column, [width]."""

    @abstractmethod
    def edge_sizes(self) -> Tensor:
        """|factor| · ‖operand‖ of every edge, [m]."""

    @abstractmethod
    def mean_values(self, size: Tensor) -> Tensor:
        """The values whose mean a relative threshold for edges is a multiple of; `size` [m]: as decided on, negative for
        removed edges."""

    @abstractmethod
    def entry_sizes(self, lanes: int) -> Tensor:
        """Magnitudes of entries (edge, `lanes` columns), [edges, blocks], of evenly spaced edges where there are many; -1 for
        removed edges."""

    def gather(self, kept: Selection) -> Multiplied:
        """The product over the kept entries."""
        if kept.delta is not None:
            return self._at_least(kept.delta, kept.lanes)
        if kept.edges is not None:
            used = int(kept.edges.sum())
            return Multiplied(self._along(kept.edges), used, used * self.width)
        count = self.width if kept.columns is None else len(kept.columns)
        used = self.edges.count if count or kept.columns is None else 0
        if kept.renormalize and kept.columns is not None and count < self.width and self.edges.loop is not None:
            out = self._in_columns_renormalized(kept.columns)
        else:
            out = self._in_columns(kept.columns)
        return Multiplied(out, used, self.edges.count * count)

    @abstractmethod
    def _in_columns(self, columns: Tensor | None) -> Tensor:
        """Over all edges, in these columns; None = all."""

    @abstractmethod
    def _in_columns_renormalized(self, columns: Tensor) -> Tensor:
        """`_in_columns` with the factor 1 for self-loops in the other columns."""

    @abstractmethod
    def _along(self, keep: Tensor) -> Tensor:
        """Along the edges where keep [m] is set."""

    @abstractmethod
    def _at_least(self, delta: float, lanes: int) -> Multiplied:
        """Over the entries (edge, `lanes` columns) of magnitude ≥ δ."""


def unsent(columns: Tensor, width: int) -> Tensor:
    """int64: the other columns of `width`."""
    others = torch.ones(width, dtype=torch.bool, device=columns.device).index_fill_(0, columns, False)
    return others.nonzero().flatten()
