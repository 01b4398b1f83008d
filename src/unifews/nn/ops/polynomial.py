"""A polynomial of the matrix T of a layer as one torch operator.

    unifews::polynomial    Σ_k θ_k T^k x

By Horner's scheme: y = θ_K x, then y ← T y + θ_k x for k = K-1, ..., 0. The gradient of x is the same polynomial of Tᵀ, so
nothing is stored for it, and rows are padded once, not at every hop. CPU, float32; T has no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from unifews.kernels import native
from unifews.nn.edges import Adjacency
from unifews.nn.ops import call_kernel, operator
from unifews.nn.ops.gather import _both, _check, _cropped, _padded
from unifews.nn.ops.memory import empty


def polynomial(x: Tensor, terms: Sequence[float], adjacency: Adjacency, weight: Tensor | None, loop: Tensor | None) -> Tensor:
    """Σ_k terms[k] T^k x, [n, f], T = edges with these weights + diag(loop)."""
    _check(x)
    out: Tensor = _polynomial(x, list(terms), weight, loop, *_both(adjacency))
    return out


@operator("unifews::polynomial")
def _polynomial(
    x: Tensor,
    terms: Sequence[float],
    weight: Tensor | None,
    loop: Tensor | None,
    start: Tensor,
    end: Tensor,
    indices: Tensor,
    back_start: Tensor,
    back_end: Tensor,
    back_indices: Tensor,
    back_order: Tensor,
    forward_order: Tensor,
) -> Tensor:
    rows, blocks = _padded(x)
    y = rows * terms[-1]
    buffers = [empty(*rows.shape) for _ in range(min(len(terms) - 1, 2))]
    for hop, term in enumerate(reversed(terms[:-1])):
        table, out = (y if hop == 0 else buffers[(hop + 1) % 2]), buffers[hop % 2]
        layout = dict(start=start, end=end, indices=indices, weight=weight, blocks=blocks, columns=None, table=table, y=table)
        call_kernel(native.diffuse, dict(out=out), **layout, loop=loop, rest=None)
        if term:
            out.add_(rows, alpha=term)
        y = out
    return _cropped(y, x.shape[1])


@_polynomial.register_fake
def _(x: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(x)


def _context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.terms, *structure = inputs
    ctx.save_for_backward(*structure)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    weight, loop, start, end, indices, back_start, back_end, back_indices, back_order, forward_order = ctx.saved_tensors
    back = (back_start, back_end, back_indices, start, end, indices, forward_order, back_order)
    back_weight = None if weight is None else weight[back_order]
    return torch.ops.unifews.polynomial(grad, ctx.terms, back_weight, loop, *back), *[None] * 11


_polynomial.register_autograd(_backward, setup_context=_context)


@register_flop_formula(torch.ops.unifews.polynomial)  # type: ignore[untyped-decorator]
def _flops(x: Any, terms: Any, weight: Any, loop: Any, start: Any, end: Any, indices: Any, *rest: Any, **extra: Any) -> int:
    """A multiply and an add per edge, column and hop."""
    return 2 * int(indices[0]) * int(x[1]) * (len(terms) - 1)
