"""Multi-head attention as torch operators: compiled kernels forward and backward, no messages in memory.

    unifews::head_scores   s[e,h] = Σ_{c of h} att[c]·LeakyReLU(x[v,c] + y[u,c]) over the edges e = (v → u)
    unifews::row_softmax   α[e,h], over the edges into a node and its self-loop
    unifews::head_diffuse  out[u,c] = α[u, head of c]·x[u,c] + Σ_e α[e, head of c]·x[v,c], the sum in some columns only
    unifews::take_columns  columns in another order

Rows have the layout of `Lanes`. Values of edges are [m, heads], those of self-loops [n, heads]. CPU, float32, up to 16 heads.
They support `torch.compile` and `FlopCounterMode`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from unifews.kernels import LANES, native
from unifews.nn.edges import Adjacency
from unifews.nn.ops import call_kernel, operator
from unifews.nn.ops.memory import empty

_CHUNK = 64  # rows per partial sum of the kernels


@dataclass(frozen=True, eq=False)
class Lanes:
    """Layout of the columns of several heads in blocks of 16: lane k of every block belongs to head ``lane[k]``.

    The factors of an edge are then spread over the lanes once for all blocks, and sums by head are sums by lane. Lanes are
    distributed in proportion to the columns of the heads, so few slots are empty.
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

    def among(self, other: Lanes) -> Tensor:
        """The slot of another layout for each slot of this one, int32; -1 = empty."""
        return torch.where(self.slots < 0, -1, other.places[self.slots.clamp(min=0).long()])


@lru_cache(64)
def all_lanes(heads: int, channels: int) -> Lanes:
    return Lanes.of(heads, channels)


def head_scores(
    x: Tensor, y: Tensor, att: Tensor, slope: float, heads: int, lane: Sequence[int], adjacency: Adjacency, *, loops: bool
) -> tuple[Tensor, Tensor | None]:
    """Scores of the edges [m, heads] and, with `loops`, of every node with itself [n, heads]."""
    a = adjacency
    keep = torch.is_grad_enabled() and any(value.requires_grad for value in (x, y, att))
    score, own, _, _ = _head_scores(
        x, y, att, slope, heads, lane, loops, keep, a.start, a.end, a.indices, a.back_start, a.back_end, a.back_order
    )
    return score, own if loops else None


def row_softmax(score: Tensor, own: Tensor | None, loop: Tensor | None, adjacency: Adjacency) -> tuple[Tensor, Tensor | None]:
    """Softmax over the edges into each node and its loop[u] self-loops of score `own`; the latter as their sum."""
    alpha, mine = _row_softmax(score, own, loop, adjacency.start, adjacency.end)
    return alpha, None if loop is None else mine


def head_diffuse(
    x: Tensor, alpha: Tensor, own: Tensor | None, lanes: Lanes, sent: Lanes, adjacency: Adjacency, at: Tensor | None = None
) -> Tensor:
    """Σ_e α[e, head]·x[v] into every receiver, in the columns that `sent` has, + own[u, head]·x[u] in all; [n, width].

    x has the layout `lanes`, the result has its columns in order. `at` [m]: row of alpha of each edge.
    """
    a = adjacency
    at_back = a.back_order if at is None else at[a.back_order]
    pick = None if sent is lanes else sent.among(lanes)
    out: Tensor = _head_diffuse(
        x,
        alpha,
        own,
        at,
        at_back,
        pick,
        sent.slots,
        sent.lane,
        lanes.slots,
        lanes.places,
        lanes.lane,
        a.start,
        a.end,
        a.indices,
        a.back_start,
        a.back_end,
        a.back_indices,
    )
    return out


def take_columns(x: Tensor, index: Tensor, back: Tensor) -> Tensor:
    """out[:, c] = x[:, index[c]], 0 where the index is negative; `back` is the inverse."""
    out: Tensor = _take_columns(x, index, back)
    return out


def column_squares(x: Tensor, alpha: Tensor, lane: Sequence[int], adjacency: Adjacency) -> Tensor:
    """Σ_e α[e, head]²·x[v,c]² of every column, [columns]."""
    rows, blocks = _rows(x), x.shape[1] // LANES
    partial = rows.new_empty(-(-len(x) // _CHUNK), x.shape[1])
    layout = dict(start=adjacency.back_start, end=adjacency.back_end, at=adjacency.back_order, heads=alpha.shape[1])
    call_kernel(native.column_squares, dict(partial=partial), **layout, lane=_lanes(lane), blocks=blocks, alpha=alpha, x=rows)
    return partial.sum(0, dtype=torch.float64).float()


# --------------------------------------------------------------------------------------------------------------- scores


@operator("unifews::head_scores")
def _head_scores(
    x: Tensor,
    y: Tensor,
    att: Tensor,
    slope: float,
    heads: int,
    lane: Sequence[int],
    loops: bool,
    signs: bool,
    start: Tensor,
    end: Tensor,
    indices: Tensor,
    back_start: Tensor,
    back_end: Tensor,
    back_order: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (m, n), blocks = (len(indices), len(start)), x.shape[1] // LANES
    score, own = x.new_empty(m, heads), x.new_empty(n if loops else 0, heads)
    bits, own_bits = (torch.empty(rows if signs else 0, blocks, dtype=torch.int16) for rows in (m, len(own)))
    layout = dict(start=start, end=end, indices=indices, heads=heads, lane=_lanes(lane), blocks=blocks)
    values = dict(x=_rows(x), y=_rows(y), att=_rows(att), slope=slope)
    signed = dict(signs=_bits(bits) if signs else None, own_signs=_bits(own_bits) if signs and loops else None)
    call_kernel(native.attention_scores, dict(score=score, own=own if loops else None), **layout, **values, **signed)
    return score, own, bits, own_bits


@_head_scores.register_fake
def _(
    x: Tensor,
    y: Tensor,
    att: Tensor,
    slope: float,
    heads: int,
    lane: Sequence[int],
    loops: bool,
    signs: bool,
    start: Tensor,
    end: Tensor,
    indices: Tensor,
    *structure: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (m, n), blocks = (indices.shape[0], start.shape[0] if loops else 0), x.shape[1] // LANES
    bits, own_bits = (x.new_empty(rows if signs else 0, blocks, dtype=torch.int16) for rows in (m, n))
    return x.new_empty(m, heads), x.new_empty(n, heads), bits, own_bits


def _scores_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, y, att, slope, heads, lane, loops, _, start, end, _, back_start, back_end, back_order = inputs
    ctx.mark_non_differentiable(*output[2:])
    ctx.save_for_backward(x, y, att, start, end, back_start, back_end, back_order, *output[2:])
    ctx.slope, ctx.heads, ctx.lane, ctx.loops = slope, heads, lane, loops


def _scores_backward(ctx: Any, grad: Tensor, own: Tensor | None, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, y, att, start, end, back_start, back_end, back_order, bits, own_bits = ctx.saved_tensors
    own, own_bits = (own, own_bits) if ctx.loops else (None, None)
    layout = (ctx.slope, ctx.heads, ctx.lane)
    slopes = torch.ops.unifews.head_slopes
    to_x, by_x = slopes(grad, own, bits, own_bits, x, att, *layout, back_start, back_end, back_order)
    to_y, by_y = slopes(grad, own, bits, own_bits, y, att, *layout, start, end, None)
    return to_x, to_y, by_x + by_y, *[None] * 11


_head_scores.register_autograd(_scores_backward, setup_context=_scores_context)


@operator("unifews::head_slopes")
def _head_slopes(
    grad: Tensor,
    own_grad: Tensor | None,
    signs: Tensor,
    own_signs: Tensor | None,
    x: Tensor,
    att: Tensor,
    slope: float,
    heads: int,
    lane: Sequence[int],
    start: Tensor,
    end: Tensor,
    at: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The gradient of `head_scores` for one side, and its part of the gradient of att.

    LeakyReLU(z) = g·z with g = 1 or slope, so with s = Σ_e grad·g over the edges of a row its own gradient is att ⊙ s, and
    that of att is Σ x ⊙ s over both sides.
    """
    out, partial = empty(*x.shape), x.new_empty(-(-len(x) // _CHUNK), x.shape[1])
    layout = dict(start=start, end=end, at=at, heads=heads, lane=_lanes(lane), blocks=x.shape[1] // LANES, grad=grad)
    values = dict(own_grad=own_grad, signs=_bits(signs), own_signs=None if own_signs is None else _bits(own_signs), x=_rows(x))
    call_kernel(native.attention_slopes, dict(out=out, partial=partial), **layout, **values, att=_rows(att), slope=slope)
    return out, partial.sum(0, dtype=torch.float64).float()


@_head_slopes.register_fake
def _(
    grad: Tensor, own_grad: Tensor | None, signs: Tensor, own_signs: Tensor | None, x: Tensor, att: Tensor, *rest: Any
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(att)


# -------------------------------------------------------------------------------------------------------------- softmax


@operator("unifews::row_softmax")
def _row_softmax(score: Tensor, own: Tensor | None, loop: Tensor | None, start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    heads = score.shape[1]
    alpha, mine = score.new_empty(score.shape), score.new_empty(0 if loop is None else len(start), heads)
    layout = dict(start=start, end=end, heads=heads, score=score, own=own)
    call_kernel(native.row_softmax, dict(alpha=alpha, own_alpha=None if loop is None else mine), **layout, loop=loop)
    return alpha, mine


@_row_softmax.register_fake
def _(score: Tensor, own: Tensor | None, loop: Tensor | None, start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    return score.new_empty(score.shape), score.new_empty(0 if loop is None else start.shape[0], score.shape[1])


def _softmax_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, _, loop, start, end = inputs
    ctx.loops = loop is not None
    ctx.save_for_backward(*output, start, end)


def _softmax_backward(ctx: Any, grad: Tensor, own_grad: Tensor | None) -> tuple[Tensor | None, ...]:
    alpha, mine, start, end = ctx.saved_tensors
    own, own_grad = (mine, own_grad) if ctx.loops else (None, None)
    to_score, to_own = torch.ops.unifews.row_softmax_back(alpha, own, grad, own_grad, start, end)
    return to_score, to_own if ctx.loops else None, None, None, None


_row_softmax.register_autograd(_softmax_backward, setup_context=_softmax_context)


@operator("unifews::row_softmax_back")
def _row_softmax_back(
    alpha: Tensor, own: Tensor | None, grad: Tensor, own_grad: Tensor | None, start: Tensor, end: Tensor
) -> tuple[Tensor, Tensor]:
    out, mine = alpha.new_empty(alpha.shape), alpha.new_empty(0 if own is None else len(own), alpha.shape[1])
    layout = dict(start=start, end=end, heads=alpha.shape[1], alpha=alpha, own_alpha=own, grad=grad)
    call_kernel(native.row_softmax_back, dict(out=out, own_out=None if own is None else mine), **layout, own_grad=own_grad)
    return out, mine


@_row_softmax_back.register_fake
def _(alpha: Tensor, own: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    return alpha.new_empty(alpha.shape), alpha.new_empty(0 if own is None else own.shape[0], alpha.shape[1])


# ------------------------------------------------------------------------------------------------------------- products


@operator("unifews::head_diffuse")
def _head_diffuse(
    x: Tensor,
    alpha: Tensor,
    own: Tensor | None,
    at: Tensor | None,
    at_back: Tensor,
    pick: Tensor | None,
    sent: Tensor,
    sent_lane: Sequence[int],
    slots: Tensor,
    places: Tensor,
    lane: Sequence[int],
    start: Tensor,
    end: Tensor,
    indices: Tensor,
    back_start: Tensor,
    back_end: Tensor,
    back_indices: Tensor,
) -> Tensor:
    rows, heads, width = _rows(x), alpha.shape[1], len(places)
    table = rows if pick is None else _taken(rows, pick)
    out = empty(len(start), width)
    layout = dict(start=start, end=end, indices=indices, at=at, heads=heads, lane=_lanes(sent_lane))
    values = dict(blocks=table.shape[1] // LANES, alpha=alpha, own=own, head=_lanes(lane)[places.numpy() % LANES])
    call_kernel(native.head_diffuse, dict(out=out), **layout, **values, from_=places, base=rows, table=table, place=sent)
    return out


@_head_diffuse.register_fake
def _(
    x: Tensor,
    alpha: Tensor,
    own: Any,
    at: Any,
    at_back: Any,
    pick: Any,
    sent: Any,
    sent_lane: Any,
    slots: Any,
    places: Tensor,
    lane: Any,
    start: Tensor,
    *rest: Tensor,
) -> Tensor:
    return x.new_empty(start.shape[0], places.shape[0])


def _diffuse_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, alpha, own, at, at_back, pick, sent, sent_lane, slots, _, lane, *structure = inputs
    ctx.lane, ctx.sent_lane = lane, sent_lane
    ctx.save_for_backward(x, alpha, own, at, at_back, pick, sent, slots, *structure)


def _diffuse_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, alpha, own, at, at_back, pick, sent, slots, *structure = ctx.saved_tensors
    to_x, to_alpha, to_own = torch.ops.unifews.head_diffuse_back(
        grad, x, alpha, own, at, at_back, pick, sent, ctx.sent_lane, slots, ctx.lane, *structure
    )
    return to_x, to_alpha, None if own is None else to_own, *[None] * 14


_head_diffuse.register_autograd(_diffuse_backward, setup_context=_diffuse_context)


@operator("unifews::head_diffuse_back")
def _head_diffuse_back(
    grad: Tensor,
    x: Tensor,
    alpha: Tensor,
    own: Tensor | None,
    at: Tensor | None,
    at_back: Tensor,
    pick: Tensor | None,
    sent: Tensor,
    sent_lane: Sequence[int],
    slots: Tensor,
    lane: Sequence[int],
    start: Tensor,
    end: Tensor,
    indices: Tensor,
    back_start: Tensor,
    back_end: Tensor,
    back_indices: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `head_diffuse` for x, alpha and own: the transposed product, and dot products of x with the gradient."""
    rows, grad, heads = _rows(x), grad.contiguous(), alpha.shape[1]
    back = _taken(grad, sent)  # the gradient in the layout of the columns sent
    blocks = back.shape[1] // LANES
    to_x = empty(*rows.shape)
    head = _lanes(lane)[np.arange(x.shape[1]) % LANES]
    place = np.arange(x.shape[1], dtype=np.int32) if pick is None else pick.numpy()
    layout = dict(start=back_start, end=back_end, indices=back_indices, at=at_back, heads=heads, lane=_lanes(sent_lane))
    values = dict(blocks=blocks, alpha=alpha, own=own, head=head, from_=slots, base=grad, table=back, place=place)
    call_kernel(native.head_diffuse, dict(out=to_x), **layout, **values)
    to_alpha = alpha.new_empty(alpha.shape) if at is None else alpha.new_zeros(alpha.shape)
    layout = dict(start=start, end=end, indices=indices, at=at)
    values = dict(heads=heads, lane=_lanes(sent_lane), blocks=blocks, x=(rows if pick is None else _taken(rows, pick)).numpy())
    call_kernel(native.head_dots, dict(out=to_alpha), **layout, **values, y=back)
    to_own = alpha.new_empty(0 if own is None else len(own), heads)
    if own is not None:
        call_kernel(native.own_dots, dict(out=to_own), heads=heads, lane=_lanes(lane), from_=slots, x=rows, y=grad)
    return to_x, to_alpha, to_own


@_head_diffuse_back.register_fake
def _(grad: Tensor, x: Tensor, alpha: Tensor, own: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    to_own = alpha.new_empty(0 if own is None else own.shape[0], alpha.shape[1])
    return torch.empty_like(x), alpha.new_empty(alpha.shape), to_own


@operator("unifews::take_columns")
def _take_columns(x: Tensor, index: Tensor, back: Tensor) -> Tensor:
    return _taken(x.detach().contiguous(), index)


@_take_columns.register_fake
def _(x: Tensor, index: Tensor, back: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], index.shape[0])


def _take_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _take_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    index, back = ctx.saved_tensors
    return torch.ops.unifews.take_columns(grad, back, index), None, None


_take_columns.register_autograd(_take_backward, setup_context=_take_context)


# -------------------------------------------------------------------------------------------------------------- layout


def _taken(x: Tensor, index: Tensor) -> Tensor:
    out = empty(len(x), len(index))
    call_kernel(native.take_columns, dict(out=out), x=x, index=index)
    return out


def _rows(x: Tensor) -> Tensor:
    """Contiguous rows, aligned to a cache line, as the kernels need them."""
    x = x.detach().contiguous()
    return x if x.data_ptr() % 64 == 0 else x.clone()


def _numbers(values: Tensor | None) -> Any:
    return None if values is None else values.detach().contiguous().numpy()


def _bits(signs: Tensor) -> NDArray[np.uint16]:
    found: NDArray[np.uint16] = signs.numpy().view(np.uint16)
    return found


def _lanes(lane: Sequence[int]) -> NDArray[np.int32]:
    return np.array(lane, dtype=np.int32)


# ---------------------------------------------------------------------------------------------------------------- flops


@register_flop_formula(torch.ops.unifews.head_scores)  # type: ignore[untyped-decorator]
def _scores_flops(
    x: Any,
    y: Any,
    att: Any,
    slope: Any,
    heads: Any,
    lane: Any,
    loops: bool,
    signs: Any,
    start: Any,
    end: Any,
    indices: Any,
    *rest: Any,
    **extra: Any,
) -> int:
    """A multiply and an add per edge, loop and column; padding counts."""
    return 2 * (int(indices[0]) + int(start[0]) * loops) * int(x[1])


@register_flop_formula(torch.ops.unifews.head_diffuse)  # type: ignore[untyped-decorator]
def _diffuse_flops(
    x: Any,
    alpha: Any,
    own: Any,
    at: Any,
    at_back: Any,
    pick: Any,
    sent: Any,
    sent_lane: Any,
    slots: Any,
    places: Any,
    lane: Any,
    start: Any,
    end: Any,
    indices: Any,
    *rest: Any,
    **extra: Any,
) -> int:
    return 2 * (int(indices[0]) * int(sent[0]) + (0 if own is None else int(start[0]) * int(places[0])))
