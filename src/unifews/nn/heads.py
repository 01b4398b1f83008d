"""Attention of several heads and the products with it: on the CPU by kernels, elsewhere by torch, to the same result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from unifews.kernels import LANES
from unifews.nn import attention
from unifews.nn.adjacency import Adjacency

_CHUNK = 1 << 24  # message values that the portable path holds at a time


@dataclass(frozen=True, eq=False)
class Lanes:
    """Where the columns of several heads go in blocks of 16: lane k of every block belongs to head ``lane[k]``.

    Then the factors of an edge are spread over the lanes once for all blocks, and what is summed by head is summed lane by
    lane. A head gets lanes by how many columns it has, so few slots stay empty.
    """

    heads: int
    lane: tuple[int, ...]
    slots: Tensor
    """Column of each slot, int32 [16·blocks]; -1 = empty."""
    places: Tensor
    """Slot of each column, int32 [width]; -1 = it has none."""

    @classmethod
    def of(cls, heads: int, channels: int, columns: list[int] | None = None) -> Lanes:
        """For these columns of ``[heads, channels]``, flattened; None = all."""
        mine: list[list[int]] = [[] for _ in range(heads)]
        for column in range(heads * channels) if columns is None else columns:
            mine[column // channels].append(column)
        share = [int(bool(columns_of)) for columns_of in mine]
        for _ in range(LANES - sum(share)):  # to the head that needs the most blocks
            share[max(range(heads), key=lambda h: (-(-len(mine[h]) // max(share[h], 1)), -h))] += 1
        lane = [h for turn in range(LANES) for h in range(heads) if turn < share[h]]
        blocks = max(1, *(-(-len(mine[h]) // share[h]) for h in range(heads) if share[h]))
        slots = torch.full((blocks, LANES), -1, dtype=torch.int32)
        for h in range(heads):
            if mine[h]:
                at = [k for k in range(LANES) if lane[k] == h]
                padded = torch.tensor(mine[h] + [-1] * (blocks * len(at) - len(mine[h])), dtype=torch.int32)
                slots[:, at] = padded.view(blocks, len(at))
        slots = slots.flatten()
        places = torch.full((heads * channels,), -1, dtype=torch.int32)
        full = (slots >= 0).nonzero().flatten()
        places[slots[full].long()] = full.int()
        return cls(heads, tuple(lane), slots, places)


@lru_cache(64)
def all_lanes(heads: int, channels: int) -> Lanes:
    return Lanes.of(heads, channels)


@dataclass(frozen=True, eq=False)
class Rows:
    """x [n, heads·channels] as a layer has it, and as the kernels want it."""

    x: Tensor
    heads: int

    @property
    def channels(self) -> int:
        return self.x.shape[1] // self.heads

    @property
    def has_kernels(self) -> bool:
        return self.x.device.type == "cpu" and self.x.dtype == torch.float32 and self.heads <= LANES and self.channels > 0

    @property
    def lanes(self) -> Lanes:
        return all_lanes(self.heads, self.channels)

    @cached_property
    def packed(self) -> Tensor:
        with torch.set_grad_enabled(self.x.requires_grad):  # a decision may be the first to ask for it, without gradients
            return attention.take_columns(self.x, self.lanes.slots, self.lanes.places)

    @property
    def by_head(self) -> Tensor:
        return self.x.view(-1, self.heads, self.channels)


def scores(
    x: Rows, y: Rows, att: Tensor, slope: float, adjacency: Adjacency, *, loops: bool
) -> tuple[Tensor, Tensor | None]:
    """att_h · LeakyReLU(x[v,h] + y[u,h]) for every edge, [m, heads], and for every node with itself, [n, heads]; att [heads,
    channels]."""
    if x.has_kernels:
        lanes = x.lanes
        flat = attention.take_columns(att.reshape(1, -1), lanes.slots, lanes.places)[0]
        return attention.head_scores(x.packed, y.packed, flat, slope, x.heads, lanes.lane, adjacency, loops=loops)
    sender, receiver = adjacency.indices.long(), adjacency.receivers

    def some(sent: Tensor, received: Tensor, att: Tensor, at: slice) -> Tensor:
        z = torch.nn.functional.leaky_relu(sent[sender[at]] + received[receiver[at]], slope)
        return (z * att).sum(-1)

    parts = [_again(some, x.by_head, y.by_head, att, at) for at in _chunks(len(sender), x.x.shape[1])]
    own = (torch.nn.functional.leaky_relu(x.by_head + y.by_head, slope) * att).sum(-1) if loops else None
    return torch.cat(parts) if parts else x.x.new_zeros(0, x.heads), own


def softmax(score: Tensor, own: Tensor | None, loop: Tensor | None, adjacency: Adjacency) -> tuple[Tensor, Tensor | None]:
    """Over the edges into each node and its loop[u] own loops: α [m, heads], and of the loops [n, heads]."""
    if score.device.type == "cpu" and score.dtype == torch.float32 and score.shape[1] <= LANES:
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
    x: Rows, alpha: Tensor, own: Tensor | None, adjacency: Adjacency, *, at: Tensor | None = None, columns: Tensor | None = None
) -> Tensor:
    """Σ_e α[e,h]·x[v,h] over the edges, in these columns (None: all) + own[u,h]·x[u,h] in all; [n, heads·channels].

    `at` [edges]: where in alpha the factors of an edge are; None: in order.
    """
    if columns is not None and len(columns) == x.x.shape[1]:
        columns = None
    if not x.has_kernels:
        sent = _portable(x, alpha, adjacency, at, columns)
        return sent if own is None else sent + (own[:, :, None] * x.by_head).flatten(1)
    if columns is None:
        lanes = x.lanes
        out = attention.head_gather(x.packed, alpha, own, lanes.lane, adjacency, at)
        return attention.take_columns(out, lanes.places, lanes.slots)
    mine = torch.zeros_like(x.x) if own is None else (own[:, :, None] * x.by_head).flatten(1)
    if not len(columns):
        return mine
    lanes = Lanes.of(x.heads, x.channels, columns.tolist())
    packed = attention.take_columns(x.x, lanes.slots, lanes.places)
    out = attention.head_gather(packed, alpha, None, lanes.lane, adjacency, at)
    return mine + attention.take_columns(out, lanes.places, lanes.slots)


def gather_at_least(
    x: Rows, alpha: Tensor, size: Tensor, own: Tensor | None, adjacency: Adjacency, delta: float, lanes: int
) -> tuple[Tensor, int, Tensor]:
    """`gather` over the entries (edge, `lanes` columns) of size ≥ δ; their multiply-adds, and which edges [m] have any.

    Sizes are those of `size` [m, heads] instead of alpha (the same before dropout), times x.
    """
    sender, receiver, width = adjacency.indices.long(), adjacency.receivers, x.x.shape[1]
    total, used = 0, torch.zeros(len(sender), dtype=torch.bool, device=x.x.device)
    out = torch.zeros(adjacency.num_nodes, width, dtype=x.x.dtype, device=x.x.device)

    def some(rows: Tensor, alpha: Tensor, at: slice, stays: Tensor) -> Tensor:
        message = (alpha[at][:, :, None] * rows[sender[at]]).flatten(1) * stays
        return torch.zeros_like(out).index_add(0, receiver[at], message)

    for at in _chunks(len(sender), width):
        stays = entry_sizes(x, size[at], sender[at], lanes) >= delta
        used[at] = stays.any(1)
        stays = stays.repeat_interleave(lanes, dim=1)[:, :width]
        total += int(stays.sum())
        out = out + _again(some, x.by_head, alpha, at, stays)
    return out if own is None else out + (own[:, :, None] * x.by_head).flatten(1), total, used


@torch.no_grad()
def entry_sizes(x: Rows, alpha: Tensor, sender: Tensor, lanes: int) -> Tensor:
    """α·‖x[v]‖ of every entry (edge, `lanes` columns), [edges, blocks]."""
    message = (alpha[:, :, None] * x.by_head[sender]).flatten(1)
    padded = torch.nn.functional.pad(message, (0, -message.shape[1] % lanes))
    return padded.abs() if lanes == 1 else padded.view(len(padded), -1, lanes).norm(dim=2)


@torch.no_grad()
def column_sizes(x: Rows, alpha: Tensor, adjacency: Adjacency) -> Tensor:
    """‖messages in column c‖ = (Σ_e α[e, head]²·x[v,c]²)^½, [heads·channels]."""
    if x.has_kernels:
        lanes = x.lanes
        return attention.column_squares(x.packed, alpha, lanes.lane, adjacency)[lanes.places.long()].sqrt()
    none = torch.zeros(adjacency.num_nodes, x.heads, dtype=x.x.dtype, device=x.x.device)
    sent = none.index_add(0, adjacency.indices.long(), alpha.square())
    size: Tensor = torch.einsum("nh,nhc->hc", sent, x.by_head.square()).flatten().sqrt()
    return size


def _portable(x: Rows, alpha: Tensor, adjacency: Adjacency, at: Tensor | None, columns: Tensor | None) -> Tensor:
    """Any device and precision: messages of a chunk of edges at a time, made again for their gradient."""
    sender, receiver, width = adjacency.indices.long(), adjacency.receivers, x.x.shape[1]
    alpha = alpha if at is None else alpha[at]
    columns = torch.arange(width, device=x.x.device) if columns is None else columns
    head = columns // max(x.channels, 1)
    out = torch.zeros(adjacency.num_nodes, len(columns), dtype=x.x.dtype, device=x.x.device)

    def some(rows: Tensor, alpha: Tensor, here: slice) -> Tensor:
        return torch.zeros_like(out).index_add(0, receiver[here], alpha[here][:, head] * rows[sender[here]])

    rows = x.x[:, columns]
    for here in _chunks(len(sender), len(columns)):
        out = out + _again(some, rows, alpha, here)
    return torch.zeros_like(x.x).index_copy(1, columns, out)


def _chunks(edges: int, width: int) -> list[slice]:
    step = max(1, _CHUNK // max(width, 1))
    return [slice(at, at + step) for at in range(0, edges, step)]


def _again(make: Callable[..., Tensor], *args: Any) -> Tensor:
    """Call it now, and once more for the gradient instead of keeping what it makes on the way."""
    made: Tensor = checkpoint(make, *args, use_reentrant=False, preserve_rng_state=False)
    return made
