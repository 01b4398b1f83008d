"""Multi-head attention and its products: by kernels on the CPU, by torch on other devices, with equal results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from unifews.core.entry import survives
from unifews.kernels import LANES
from unifews.nn.edges import Adjacency, LayerEdges
from unifews.nn.ops import attention
from unifews.nn.ops.attention import Lanes, all_lanes
from unifews.nn.ops.dots import query_scores
from unifews.nn.ops.linear import times
from unifews.nn.products import Multiplied, Product, unsent

_MAX_SAMPLE = 1 << 21  # entries for a quantile
_CHUNK = 1 << 24  # message values in memory at a time on the portable path


@dataclass(frozen=True, eq=False)
class HeadRows:
    """Rows of several heads: for the kernels in the layout `lanes`, else [n, heads·channels], head after head."""

    x: Tensor
    heads: int
    channels: int
    lanes: Lanes | None

    @classmethod
    def of(cls, x: Tensor, heads: int) -> HeadRows:
        """From x [n, heads·channels]."""
        channels = x.shape[1] // heads
        if not _has_kernels(x, heads) or not channels:
            return cls(x, heads, channels, None)
        lanes = all_lanes(heads, channels)
        return cls(attention.take_columns(x, lanes.slots, lanes.places), heads, channels, lanes)

    @classmethod
    def from_linear(
        cls, x: Tensor, weight: Tensor, bias: Tensor | None, heads: int, *, sparse_weight: bool = False
    ) -> HeadRows:
        """Rows x Wᵀ + b: permuting the rows of W costs less than permuting the columns of the product."""
        channels = len(weight) // heads
        if not _has_kernels(weight, heads) or not channels:
            return cls(times(x, weight, bias, sparse_weight=sparse_weight), heads, channels, None)
        lanes = all_lanes(heads, channels)
        places = lanes.places.long()
        weight = weight.new_zeros(len(lanes.slots), weight.shape[1]).index_copy(0, places, weight)
        bias = None if bias is None else bias.new_zeros(len(lanes.slots)).index_copy(0, places, bias)
        return cls(times(x, weight, bias, sparse_weight=sparse_weight), heads, channels, lanes)

    def padded(self, n: int) -> HeadRows:
        """n rows, the last ones zero."""
        return self if len(self.x) == n else replace(self, x=torch.nn.functional.pad(self.x, (0, 0, 0, n - len(self.x))))

    @property
    def width(self) -> int:
        return self.heads * self.channels

    @cached_property
    def by_head(self) -> Tensor:
        """[n, heads, channels]."""
        with torch.set_grad_enabled(self.x.requires_grad):  # may be computed first in a decision, without gradients
            x = self.x if self.lanes is None else attention.take_columns(self.x, self.lanes.places, self.lanes.slots)
            return x.view(-1, self.heads, self.channels)

    def columns(self, columns: Tensor) -> Tensor:
        """These columns of ``[n, heads·channels]``."""
        if self.lanes is None:
            return self.x[:, columns]
        slots = self.lanes.places[columns]
        back = torch.full((self.x.shape[1],), -1, dtype=torch.int32)
        back[slots.long()] = torch.arange(len(columns), dtype=torch.int32)
        return attention.take_columns(self.x, slots, back)

    def dots(self, *att: Tensor) -> list[Tensor]:
        """⟨x[u,h], att[h]⟩ of every node and head, [n, heads], for each att [heads, channels]."""
        if self.lanes is None:
            return [torch.einsum("nhc,hc->nh", self.by_head, a) for a in att]
        column = torch.arange(self.width, device=self.x.device)
        matrix = torch.cat(
            [a.new_zeros(self.width, self.heads).index_put((column, column // self.channels), a.flatten()) for a in att], dim=1
        )
        rows = matrix.new_zeros(self.x.shape[1], matrix.shape[1]).index_copy(0, self.lanes.places.long(), matrix)
        return list(torch.split(self.x @ rows, self.heads, dim=1))  # type: ignore[no-untyped-call]

    @property
    def norms(self) -> Tensor:
        """‖x[u]‖ of all heads, [n]; empty slots are zeros."""
        found: Tensor = torch.linalg.vector_norm(self.x.detach(), dim=1)
        return found


@dataclass(frozen=True, eq=False)
class AttentionProduct(Product):
    """Σ_v α[u,v]·x[v] over the kept entries + α[u,u]·x[u], by head; [n, heads·channels].

    The magnitude of an edge is the authors' a·s: a = ‖α[e]‖₂ / heads, s = ‖x[v]‖; that of an entry is ‖α[e, head]·x[v]‖. The
    edges are those that the softmax runs over.
    """

    x: HeadRows
    alpha: Tensor
    """[m, heads], after dropout."""
    own: Tensor | None
    """α[u,u], [n, heads], after dropout."""
    size: Tensor
    """α before dropout, without gradient: decisions are taken on it."""
    edges: LayerEdges
    alive: None = None

    @property
    def width(self) -> int:
        return self.x.width

    def column_sizes(self) -> Tensor:
        return column_sizes(self.x, self.size, self.edges.adjacency)

    def edge_sizes(self) -> Tensor:
        sent = self.x.norms[self.edges.adjacency.indices.long()]
        size: Tensor = torch.linalg.vector_norm(self.size, dim=1) / self.x.heads * sent
        return size

    def mean_values(self, size: Tensor) -> Tensor:
        """s, not a·s, self-loops included, as in the authors' code."""
        norm = self.x.norms
        sent = norm[self.edges.adjacency.indices.long()]
        return sent if self.own is None else torch.cat([sent, norm])

    def entry_sizes(self, lanes: int) -> Tensor:
        edges, blocks = self.edges, -(-self.width // lanes)
        stride = max(1, edges.whole * blocks // _MAX_SAMPLE)
        size = entry_sizes(self.x, self.size[::stride], edges.adjacency.indices[::stride].long(), lanes)
        return torch.cat([size, size.new_full(((edges.whole - edges.count) // stride, blocks), -1.0)])

    def _in_columns(self, columns: Tensor | None) -> Tensor:
        return gather(self.x, self.alpha, self.own, self.edges.adjacency, columns=columns)

    def _in_columns_renormalized(self, columns: Tensor) -> Tensor:
        """Without attention dropout, which would remove the only term."""
        out, others = self._in_columns(columns), unsent(columns, self.width)
        own, there = self.x.columns(others), self.edges.has_loop
        return out.index_copy(1, others, own if bool(there.all()) else there[:, None] * own)

    def _along(self, keep: Tensor) -> Tensor:
        adjacency, at = self.edges.adjacency, None if bool(keep.all()) else keep.nonzero().flatten()
        return gather(self.x, self.alpha, self.own, adjacency if at is None else adjacency.only(keep), at=at)

    def _at_least(self, delta: float, lanes: int) -> Multiplied:
        out, macs, used = gather_at_least(self.x, self.alpha, self.size, self.own, self.edges.adjacency, delta, lanes)
        return Multiplied(out, int(used.sum()), macs, used)


def scores(
    x: HeadRows, y: HeadRows, att: Tensor, slope: float, adjacency: Adjacency, *, loops: bool
) -> tuple[Tensor, Tensor | None]:
    """att_h · LeakyReLU(x[v,h] + y[u,h]) for every edge, [m, heads], and for every node with itself, [n, heads]; att [heads,
    channels]."""
    if x.lanes is not None:
        flat = attention.take_columns(att.reshape(1, -1), x.lanes.slots, x.lanes.places)[0]
        return attention.head_scores(x.x, y.x, flat, slope, x.heads, x.lanes.lane, adjacency, loops=loops)
    sender, receiver = adjacency.indices.long(), adjacency.receivers

    def some(sent: Tensor, received: Tensor, att: Tensor, at: slice) -> Tensor:
        z = torch.nn.functional.leaky_relu(sent[sender[at]] + received[receiver[at]], slope)
        return (z * att).sum(-1)

    parts = [_checkpointed(some, x.by_head, y.by_head, att, at) for at in _chunks(len(sender), x.width)]
    own = (torch.nn.functional.leaky_relu(x.by_head + y.by_head, slope) * att).sum(-1) if loops else None
    return torch.cat(parts) if parts else x.x.new_zeros(0, x.heads), own


def dot_scores(x: HeadRows, y: HeadRows, adjacency: Adjacency, *, loops: bool) -> tuple[Tensor, Tensor | None]:
    """⟨x[v,h], y[u,h]⟩ for every edge, [m, heads], and for every node with itself, [n, heads]."""
    own = (x.by_head * y.by_head).sum(-1) if loops else None
    if x.lanes is not None:
        return query_scores(x.x, y.x, x.heads, x.lanes.lane, adjacency), own
    sender, receiver = adjacency.indices.long(), adjacency.receivers

    def some(sent: Tensor, received: Tensor, at: slice) -> Tensor:
        return (sent[sender[at]] * received[receiver[at]]).sum(-1)

    parts = [_checkpointed(some, x.by_head, y.by_head, at) for at in _chunks(len(sender), x.width)]
    return torch.cat(parts) if parts else x.x.new_zeros(0, x.heads), own


def softmax(score: Tensor, own: Tensor | None, loop: Tensor | None, adjacency: Adjacency) -> tuple[Tensor, Tensor | None]:
    """Softmax over the edges into each node and its loop[u] self-loops: α [m, heads], and of the loops [n, heads]."""
    if _has_kernels(score, score.shape[1]):
        return attention.row_softmax(score, own, loop, adjacency)
    receiver, shape = adjacency.receivers, (adjacency.num_nodes, score.shape[1])
    most = score.new_full(shape, -torch.inf)
    if own is not None and loop is not None:
        most = torch.where(loop[:, None] > 0, own.detach(), most)
    most = most.scatter_reduce(0, receiver[:, None].expand_as(score), score.detach(), "amax")
    most = most.nan_to_num(neginf=0.0, posinf=torch.inf)
    power = (score - most[receiver]).exp()
    total = torch.zeros_like(most).index_add(0, receiver, power) + 1e-16
    if own is None or loop is None:
        return power / total[receiver], None
    mine = torch.where(loop[:, None] > 0, loop[:, None] * (torch.where(loop[:, None] > 0, own, most) - most).exp(), 0.0)
    total = total + mine
    return power / total[receiver], mine / total


def gather(
    x: HeadRows,
    alpha: Tensor,
    own: Tensor | None,
    adjacency: Adjacency,
    *,
    at: Tensor | None = None,
    columns: Tensor | None = None,
) -> Tensor:
    """Σ_e α[e,h]·x[v,h] over the edges, in these columns (None: all) + own[u,h]·x[u,h] in all; [n, heads·channels].

    `at` [edges]: row of alpha of each edge; None: in order.
    """
    if columns is not None and len(columns) == x.width:
        columns = None
    if x.lanes is None or (columns is not None and not len(columns)):
        sent = _portable(x, alpha, adjacency, at, columns)
        return sent if own is None else sent + (own[:, :, None] * x.by_head).flatten(1)
    sub = x.lanes if columns is None else Lanes.of(x.heads, x.channels, columns.tolist())
    return attention.head_diffuse(x.x, alpha, own, x.lanes, sub, adjacency, at)


def gather_at_least(
    x: HeadRows, alpha: Tensor, size: Tensor, own: Tensor | None, adjacency: Adjacency, delta: float, lanes: int
) -> tuple[Tensor, int, Tensor]:
    """`gather` over the entries (edge, `lanes` columns) of magnitude ≥ δ; their multiply-adds, and bool [m]: edges with any.

    Magnitudes are size·‖x‖, where `size` [m, heads] is alpha before dropout.
    """
    sender, receiver, width = adjacency.indices.long(), adjacency.receivers, x.width
    total, used = 0, torch.zeros(len(sender), dtype=torch.bool, device=x.x.device)
    out = torch.zeros(adjacency.num_nodes, width, dtype=x.x.dtype, device=x.x.device)

    def some(rows: Tensor, alpha: Tensor, at: slice, kept: Tensor) -> Tensor:
        message = (alpha[at][:, :, None] * rows[sender[at]]).flatten(1) * kept
        return torch.zeros_like(out).index_add(0, receiver[at], message)

    for at in _chunks(len(sender), width):
        kept = survives(None, entry_sizes(x, size[at], sender[at], lanes), delta, zeros=True)
        used[at] = kept.any(1)
        kept = kept.repeat_interleave(lanes, dim=1)[:, :width]
        total += int(kept.sum())
        out = out + _checkpointed(some, x.by_head, alpha, at, kept)
    return out if own is None else out + (own[:, :, None] * x.by_head).flatten(1), total, used


@torch.no_grad()
def entry_sizes(x: HeadRows, alpha: Tensor, sender: Tensor, lanes: int) -> Tensor:
    """α·‖x[v]‖ of every entry (edge, `lanes` columns), [edges, blocks]."""
    message = (alpha[:, :, None] * x.by_head[sender]).flatten(1)
    padded = torch.nn.functional.pad(message, (0, -message.shape[1] % lanes))
    return padded.abs() if lanes == 1 else padded.view(len(padded), -1, lanes).norm(dim=2)


@torch.no_grad()
def column_sizes(x: HeadRows, alpha: Tensor, adjacency: Adjacency) -> Tensor:
    """‖messages in column c‖ = (Σ_e α[e, head]²·x[v,c]²)^½, [heads·channels]."""
    if x.lanes is not None:
        return attention.column_squares(x.x, alpha, x.lanes.lane, adjacency)[x.lanes.places.long()].sqrt()
    none = torch.zeros(adjacency.num_nodes, x.heads, dtype=x.x.dtype, device=x.x.device)
    sent = none.index_add(0, adjacency.indices.long(), alpha.square())
    size: Tensor = torch.einsum("nh,nhc->hc", sent, x.by_head.square()).flatten().sqrt()
    return size


def _portable(x: HeadRows, alpha: Tensor, adjacency: Adjacency, at: Tensor | None, columns: Tensor | None) -> Tensor:
    """Any device and precision: messages of a chunk of edges at a time, recomputed for the gradient."""
    sender, receiver, width = adjacency.indices.long(), adjacency.receivers, x.width
    alpha = alpha if at is None else alpha[at]
    columns = torch.arange(width, device=x.x.device) if columns is None else columns
    head = columns // max(x.channels, 1)
    out = torch.zeros(adjacency.num_nodes, len(columns), dtype=x.x.dtype, device=x.x.device)

    def some(rows: Tensor, alpha: Tensor, here: slice) -> Tensor:
        return torch.zeros_like(out).index_add(0, receiver[here], alpha[here][:, head] * rows[sender[here]])

    rows = x.by_head.flatten(1)[:, columns]
    for here in _chunks(len(sender), len(columns)):
        out = out + _checkpointed(some, rows, alpha, here)
    return out.new_zeros(adjacency.num_nodes, width).index_copy(1, columns, out)


def _has_kernels(x: Tensor, heads: int) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32 and heads <= LANES


def _chunks(edges: int, width: int) -> list[slice]:
    step = max(1, _CHUNK // max(width, 1))
    return [slice(at, at + step) for at in range(0, edges, step)]


def _checkpointed(make: Callable[..., Tensor], *args: Any) -> Tensor:
    """Call with activation checkpointing: recomputed for the gradient instead of storing intermediate values."""
    if not torch.is_grad_enabled():
        plain: Tensor = make(*args)
        return plain
    made: Tensor = checkpoint(make, *args, use_reentrant=False, preserve_rng_state=False)
    return made
