"""What several attention heads multiply, as torch operators: compiled kernels forward and backward, no message in memory.

    unifews::head_scores   s[e,h] = Σ_{c of h} att[c]·LeakyReLU(x[v,c] + y[u,c]) over the edges e = (v → u)
    unifews::row_softmax   α[e,h], over the edges into a node and its own loop
    unifews::head_diffuse  out[u,c] = α[u, head of c]·x[u,c] + Σ_e α[e, head of c]·x[v,c], the sum in some columns only
    unifews::take_columns  columns in another order

Rows are laid out as in `Lanes`. Values by edge are [m, heads], those of loops [n, heads]. CPU, float32, up to
16 heads. `torch.compile` and `FlopCounterMode` work on them.
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

from unifews.kernels import LANES, native, threads_to_use
from unifews.nn.adjacency import Adjacency
from unifews.nn.ops.dispatch import operator

_CHUNK = 64  # rows of one line of the kernels' partial sums


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

    def among(self, other: Lanes) -> Tensor:
        """Where another layout has what is in each slot of this one, int32; -1 = empty."""
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
    """Softmax over the edges into each node and its loop[u] loops, all of the score `own`; of those, the sum."""
    alpha, mine = _row_softmax(score, own, loop, adjacency.start, adjacency.end)
    return alpha, None if loop is None else mine


def head_diffuse(
    x: Tensor, alpha: Tensor, own: Tensor | None, lanes: Lanes, sent: Lanes, adjacency: Adjacency, at: Tensor | None = None
) -> Tensor:
    """Σ_e α[e, head]·x[v] into every receiver, in the columns that `sent` has, + own[u, head]·x[u] in all; [n, width].

    x has the layout `lanes`, the result has its columns in order. `at` [m]: where in alpha an edge's factors are.
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
    """out[:, c] = x[:, index[c]], 0 where the index is negative; `back` is the way back."""
    out: Tensor = _take_columns(x, index, back)
    return out


def column_squares(x: Tensor, alpha: Tensor, lane: Sequence[int], adjacency: Adjacency) -> Tensor:
    """Σ_e α[e, head]²·x[v,c]² of every column, [columns]."""
    rows, blocks = _rows(x), x.shape[1] // LANES
    partial = rows.new_empty(-(-len(x) // _CHUNK), x.shape[1])
    native.column_squares(
        start=adjacency.back_start.numpy(),
        end=adjacency.back_end.numpy(),
        at=adjacency.back_order.numpy(),
        heads=alpha.shape[1],
        lane=_lanes(lane),
        blocks=blocks,
        alpha=_numbers(alpha),
        x=rows.numpy(),
        partial=partial.numpy(),
        threads=threads_to_use(None),
    )
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
    native.attention_scores(
        start=start.numpy(),
        end=end.numpy(),
        indices=indices.numpy(),
        heads=heads,
        lane=_lanes(lane),
        blocks=blocks,
        x=_rows(x).numpy(),
        y=_rows(y).numpy(),
        att=_rows(att).numpy(),
        slope=slope,
        score=score.numpy(),
        own=own.numpy() if loops else None,
        signs=_bits(bits) if signs else None,
        own_signs=_bits(own_bits) if signs and loops else None,
        threads=threads_to_use(None),
    )
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
    """The gradient of `head_scores` for one side, and the part of att's that comes from it.

    LeakyReLU(z) = g·z with g = 1 or slope, so with s = Σ_e grad·g over the edges of a row its own gradient is att ⊙ s, and
    that of att is Σ x ⊙ s over both sides.
    """
    out, partial = torch.empty_like(x), x.new_empty(-(-len(x) // _CHUNK), x.shape[1])
    native.attention_slopes(
        start=start.numpy(),
        end=end.numpy(),
        at=None if at is None else at.numpy(),
        heads=heads,
        lane=_lanes(lane),
        blocks=x.shape[1] // LANES,
        grad=_numbers(grad),
        own_grad=_numbers(own_grad),
        signs=_bits(signs),
        own_signs=None if own_signs is None else _bits(own_signs),
        x=_rows(x).numpy(),
        att=_rows(att).numpy(),
        slope=slope,
        out=out.numpy(),
        partial=partial.numpy(),
        threads=threads_to_use(None),
    )
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
    native.row_softmax(
        start=start.numpy(),
        end=end.numpy(),
        heads=heads,
        score=_numbers(score),
        own=_numbers(own),
        loop=_numbers(loop),
        alpha=alpha.numpy(),
        own_alpha=None if loop is None else mine.numpy(),
        threads=threads_to_use(None),
    )
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
    native.row_softmax_back(
        start=start.numpy(),
        end=end.numpy(),
        heads=alpha.shape[1],
        alpha=_numbers(alpha),
        own_alpha=_numbers(own),
        grad=_numbers(grad),
        own_grad=_numbers(own_grad),
        out=out.numpy(),
        own_out=None if own is None else mine.numpy(),
        threads=threads_to_use(None),
    )
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
    out = x.new_empty(len(start), width)
    native.head_diffuse(
        start=start.numpy(),
        end=end.numpy(),
        indices=indices.numpy(),
        at=None if at is None else at.numpy(),
        heads=heads,
        lane=_lanes(sent_lane),
        blocks=table.shape[1] // LANES,
        alpha=_numbers(alpha),
        own=_numbers(own),
        head=_lanes(lane)[places.numpy() % LANES],
        from_=places.numpy(),
        base=rows.numpy(),
        table=table.numpy(),
        place=sent.numpy(),
        out=out.numpy(),
        threads=threads_to_use(None),
    )
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
    """Of `head_diffuse`, to x, alpha and own: back along the edges, and dots of what was sent with what came back."""
    rows, grad, heads, threads = _rows(x), grad.contiguous(), alpha.shape[1], threads_to_use(None)
    back = _taken(grad, sent)  # the gradient in the layout of what was sent
    blocks = back.shape[1] // LANES
    to_x = torch.empty_like(rows)
    native.head_diffuse(
        start=back_start.numpy(),
        end=back_end.numpy(),
        indices=back_indices.numpy(),
        at=at_back.numpy(),
        heads=heads,
        lane=_lanes(sent_lane),
        blocks=blocks,
        alpha=_numbers(alpha),
        own=_numbers(own),
        head=_lanes(lane)[np.arange(x.shape[1]) % LANES],
        from_=slots.numpy(),
        base=grad.numpy(),
        table=back.numpy(),
        place=np.arange(x.shape[1], dtype=np.int32) if pick is None else pick.numpy(),
        out=to_x.numpy(),
        threads=threads,
    )
    to_alpha = alpha.new_empty(alpha.shape) if at is None else alpha.new_zeros(alpha.shape)
    native.head_dots(
        start=start.numpy(),
        end=end.numpy(),
        indices=indices.numpy(),
        at=None if at is None else at.numpy(),
        heads=heads,
        lane=_lanes(sent_lane),
        blocks=blocks,
        x=(rows if pick is None else _taken(rows, pick)).numpy(),
        y=back.numpy(),
        out=to_alpha.numpy(),
        threads=threads,
    )
    to_own = alpha.new_empty(0 if own is None else len(own), heads)
    if own is not None:
        native.own_dots(heads, _lanes(lane), slots.numpy(), rows.numpy(), grad.numpy(), to_own.numpy(), threads)
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
    out = x.new_empty(len(x), len(index))
    native.take_columns(x.numpy(), index.numpy(), out.numpy(), threads_to_use(None))
    return out


def _rows(x: Tensor) -> Tensor:
    """As the kernels want rows: one after the other, from a cache line on."""
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
