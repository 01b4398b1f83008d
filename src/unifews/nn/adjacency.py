"""The edges of a layer, laid out for both directions of a product."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unifews.errors import GraphError, ShapeError


@dataclass(frozen=True, eq=False)
class Adjacency:
    """n nodes and m edges, by receiver for the product and by sender for its gradient.

    Row u receives from ``indices[start[u] : end[u]]``; row v sends to ``back_indices[back_start[v] : back_end[v]]``.
    ``order`` [m] brings values from the caller's edge order to this one, ``back_order`` from this one to the reversed lists,
    ``forth_order`` back from those.
    """

    start: Tensor
    end: Tensor
    indices: Tensor
    order: Tensor
    back_start: Tensor
    back_end: Tensor
    back_indices: Tensor
    back_order: Tensor
    forth_order: Tensor

    @property
    def num_nodes(self) -> int:
        return len(self.start)

    @property
    def num_edges(self) -> int:
        return len(self.indices)

    @property
    def receivers(self) -> Tensor:
        """The receiver of every edge, int64 [m], sorted."""
        return torch.repeat_interleave(self.end - self.start, output_size=self.num_edges)

    def only(self, keep: Tensor) -> Adjacency:
        """The edges where keep [m] is set, in the same order; costs O(m)."""
        back = keep[self.back_order]
        position = keep.long().cumsum(0) - 1
        back_order = position[self.back_order[back]]
        (start, end), (back_start, back_end) = (
            _left(first, last, flags) for first, last, flags in
            ((self.start, self.end, keep), (self.back_start, self.back_end, back))
        )  # fmt: skip
        return Adjacency(
            start, end, self.indices[keep], self.order[keep], back_start, back_end, self.back_indices[back],
            back_order, _inverse(back_order),
        )  # fmt: skip

    @property
    def keys(self) -> Tensor:
        """What an edge is known by whatever its position: receiver · n + sender, int64 [m]."""
        return self.receivers * self.num_nodes + self.indices

    def has_edges_of(self, other: Adjacency) -> bool:
        """Whether these are the same edges between the same number of nodes, in any order."""
        if self is other:
            return True
        if (self.num_nodes, self.num_edges, self.indices.device) != (other.num_nodes, other.num_edges, other.indices.device):
            return False
        if not torch.equal(self.start, other.start):
            return False
        return torch.equal(self.indices, other.indices) or torch.equal(self.keys.sort().values, other.keys.sort().values)

    def carry(self, keep: Tensor, other: Adjacency) -> Tensor | None:
        """keep [m] for the edges of another adjacency, matched by their ends; one that is not here stays.

        None = no edge goes.
        """
        gone = self.keys[~keep]
        if other.num_nodes != self.num_nodes or not len(gone):
            return None
        return ~torch.isin(other.keys, gone)

    @classmethod
    def build(cls, edge_index: Tensor, num_nodes: int) -> Adjacency:
        """From edge_index [2, m]; row 0 sends, row 1 receives."""
        if edge_index.ndim != 2 or edge_index.shape[0] != 2:
            raise ShapeError(f"`edge_index` has shape {list(edge_index.shape)}; it is [2, edges], senders and receivers.")
        if num_nodes >= 2**31:
            raise GraphError(f"layers train on graphs of up to 2^31 - 1 nodes; this one has {num_nodes:,}.")
        if edge_index.numel() and (int(edge_index.min()) < 0 or int(edge_index.max()) >= num_nodes):
            wrong = int(edge_index.min()) if int(edge_index.min()) < 0 else int(edge_index.max())
            raise GraphError(f"`edge_index` names node {wrong}, but x has {num_nodes:,} rows, numbered from 0.")
        sender, receiver = edge_index
        order = torch.argsort(receiver, stable=True)
        sender, receiver = sender[order], receiver[order]
        back_order = torch.argsort(sender, stable=True)
        start, end = _rows(receiver, num_nodes)
        back_start, back_end = _rows(sender, num_nodes)
        indices, back_indices = sender.int().contiguous(), receiver[back_order].int().contiguous()
        return cls(start, end, indices, order, back_start, back_end, back_indices, back_order, _inverse(back_order))


def _rows(sorted_ends: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    count = torch.bincount(sorted_ends, minlength=num_nodes)
    end = count.cumsum(0)
    return end - count, end


def _left(start: Tensor, end: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Row bounds after the edges without a flag are taken out."""
    before = torch.nn.functional.pad(keep.long().cumsum(0), (1, 0))
    return before[start], before[end]


def _inverse(order: Tensor) -> Tensor:
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    return inverse
