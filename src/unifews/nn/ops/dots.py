"""Scaled dot products of queries and keys as a torch operator: kernels forward and backward, no messages in memory.

    unifews::query_scores  s[e,h] = ⟨x[v,h], y[u,h]⟩ over the edges e = (v → u)

Rows have the layout of `unifews.nn.ops.attention.Lanes`. CPU, float32, up to 16 heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from unifews.kernels import LANES, native
from unifews.nn.edges import Adjacency
from unifews.nn.ops import call_kernel, operator
from unifews.nn.ops.attention import _lanes, _rows
from unifews.nn.ops.memory import empty


def query_scores(x: Tensor, y: Tensor, heads: int, lane: Sequence[int], adjacency: Adjacency) -> Tensor:
    """⟨x[v,h], y[u,h]⟩ of every edge, [m, heads]."""
    a = adjacency
    structure = (a.start, a.end, a.indices, a.back_start, a.back_end, a.back_indices, a.back_order)
    out: Tensor = _query_scores(x, y, heads, list(lane), *structure)
    return out


@operator("unifews::query_scores")
def _query_scores(
    x: Tensor,
    y: Tensor,
    heads: int,
    lane: Sequence[int],
    start: Tensor,
    end: Tensor,
    indices: Tensor,
    back_start: Tensor,
    back_end: Tensor,
    back_indices: Tensor,
    back_order: Tensor,
) -> Tensor:
    score = x.new_empty(len(indices), heads)
    layout = dict(start=start, end=end, indices=indices, at=None, heads=heads, lane=_lanes(lane))
    call_kernel(native.head_dots, dict(out=score), **layout, blocks=x.shape[1] // LANES, x=_rows(x), y=_rows(y))
    return score


@_query_scores.register_fake
def _(x: Tensor, y: Tensor, heads: int, lane: Any, start: Any, end: Any, indices: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(indices.shape[0], heads)


def _context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, y, ctx.heads, ctx.lane, *structure = inputs
    ctx.save_for_backward(x, y, *structure)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, y, start, end, indices, back_start, back_end, back_indices, back_order = ctx.saved_tensors
    sums = torch.ops.unifews.head_sums
    to_x = sums(y, grad, back_order, ctx.heads, ctx.lane, back_start, back_end, back_indices)
    to_y = sums(x, grad, None, ctx.heads, ctx.lane, start, end, indices)
    return to_x, to_y, *[None] * 9


_query_scores.register_autograd(_backward, setup_context=_context)


@operator("unifews::head_sums")
def _head_sums(
    x: Tensor,
    factor: Tensor,
    at: Tensor | None,
    heads: int,
    lane: Sequence[int],
    start: Tensor,
    end: Tensor,
    indices: Tensor,
) -> Tensor:
    """Σ_e factor[e,h]·x[v,h] in the layout of x: the gradient of `query_scores`. `at` [m]: row of factor of each edge."""
    rows, out = _rows(x), empty(len(start), x.shape[1])
    place = np.arange(x.shape[1], dtype=np.int32)
    layout = dict(start=start, end=end, indices=indices, at=at, heads=heads, lane=_lanes(lane))
    values = dict(blocks=x.shape[1] // LANES, alpha=factor, own=None, head=_lanes(lane)[place % LANES])
    call_kernel(native.head_diffuse, dict(out=out), **layout, **values, from_=place, base=rows, table=rows, place=place)
    return out


@_head_sums.register_fake
def _(x: Tensor, factor: Any, at: Any, heads: Any, lane: Any, start: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(start.shape[0], x.shape[1])


@register_flop_formula(torch.ops.unifews.query_scores)  # type: ignore[untyped-decorator]
def _flops(x: Any, y: Any, heads: Any, lane: Any, start: Any, end: Any, indices: Any, *rest: Any, **extra: Any) -> int:
    """A multiply and an add per edge and column; padding counts."""
    return 2 * int(indices[0]) * int(x[1])
