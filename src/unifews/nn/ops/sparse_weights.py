"""Products with a weight matrix of which some entries are kept, forward and backward, as torch operators.

    unifews::sparse_linear    y = x (W ⊙ keep)ᵀ + b, and with the transposed pattern the gradient ∂x = g (W ⊙ keep)
    unifews::weight_gradient  ∂W = (gᵀ x) ⊙ keep, computed at the kept weights only

Each multiplies by the kept weights where that is faster than the dense product (`worth`, `worth_gradient`). They support
`torch.compile`, `FlopCounterMode` and double backward, not `torch.func`; CPU, float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.flop_counter import register_flop_formula
from torch.utils.weak import WeakTensorKeyDictionary

from unifews.errors import InputError
from unifews.kernels import native
from unifews.kernels.packed_weight import PackedWeight, worth, worth_gradient
from unifews.nn.ops import call_kernel

_patterns = WeakTensorKeyDictionary()


class Pattern(NamedTuple):
    """Where a matrix W [outputs, inputs] keeps its weights: row by row, and column by column for the transposed product.

    Output i reads the inputs ``indices[indptr[i]:indptr[i + 1]]``; `at` are the positions of these weights in W, row by row.
    Input j is read by the outputs ``back_indices[back_indptr[j]:back_indptr[j + 1]]``; `back_at`: positions in Wᵀ.
    """

    indptr: Tensor
    indices: Tensor
    at: Tensor
    back_indptr: Tensor
    back_indices: Tensor
    back_at: Tensor

    @classmethod
    def of(cls, keep: Tensor, input_axis: int = 1) -> Pattern:
        """From a mask [outputs, inputs], or [inputs, outputs] if `input_axis` is 0; cached while it is not written to."""
        version = -1 if keep.is_inference() else keep._version
        found = _patterns.get(keep)  # type: ignore[no-untyped-call]
        if found is None or found[0] != version:
            rows, columns = _compressed(keep), _compressed(keep.t().contiguous())
            found = _patterns[keep] = version, (cls(*rows, *columns) if input_axis == 1 else cls(*columns, *rows))
        pattern: Pattern = found[1]
        return pattern


def _compressed(keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Bounds of the rows, columns, and positions of the entries of a mask that are True."""
    at = keep.flatten().nonzero().flatten()
    bounds = torch.zeros(len(keep) + 1, dtype=torch.int64)
    torch.cumsum(keep.sum(dim=1), 0, out=bounds[1:])
    return bounds, (at % max(keep.shape[1], 1)).int(), at


def sparse_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, pattern: Pattern | None = None, *, sampled: bool = False
) -> Tensor:
    """x Wᵀ + b, [rows, outputs]; x [rows, inputs], W [outputs, inputs] with many zeros.

    `pattern`: where weights are kept; W is zero elsewhere. None = where W is not zero.
    `sampled`: ∂W only at the kept weights, zero elsewhere; otherwise ∂W = gᵀ x is dense.
    """
    if x.dtype != torch.float32 or x.device.type != "cpu":
        raise InputError(f"the kernels need float32 on the CPU; x is {x.dtype} on {x.device}; convert it.")
    out: Tensor = torch.ops.unifews.sparse_linear(x, weight, bias, list(pattern or ()), sampled and pattern is not None)
    return out


@torch.library.custom_op("unifews::sparse_linear", mutates_args=())
def _sparse_linear(x: Tensor, weight: Tensor, bias: Tensor | None, pattern: Sequence[Tensor], sampled: bool) -> Tensor:
    if not _is_worth_packing(len(x), weight, pattern):
        return torch.nn.functional.linear(x, weight, bias)
    packed: dict[str, Any]
    if pattern:
        indptr, indices, at, *_ = pattern
        packed = dict(indptr=indptr, indices=indices, values=weight.detach().contiguous().view(-1)[at])
    else:
        found = PackedWeight.pack(weight.detach().contiguous().numpy())
        packed = dict(indptr=found.indptr, indices=found.indices, values=found.values)
    out = x.new_empty(len(x), len(weight))
    call_kernel(native.sparse_linear, dict(out=out), x=x, **packed, bias=bias, relu=False)
    return out


def _is_worth_packing(rows: int, weight: Tensor, pattern: Sequence[Tensor]) -> bool:
    """Whether the product by the kept weights is faster, with the time of packing them where there is no pattern."""
    outputs, inputs = weight.shape
    if not min(rows, outputs, inputs):
        return False
    kept = len(pattern[2]) if pattern else int(weight.count_nonzero())
    return worth(rows, inputs, outputs, kept / weight.numel(), packing=not pattern)


@_sparse_linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, pattern: Sequence[Tensor], sampled: bool) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


def _sparse_linear_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, pattern, ctx.sampled = inputs
    ctx.save_for_backward(x if weight.requires_grad else None, weight if x.requires_grad else None, *pattern)


def _sparse_linear_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, weight, *pattern = ctx.saved_tensors
    to_x = to_weight = None
    if ctx.needs_input_grad[0]:
        to_x = torch.ops.unifews.sparse_linear(grad, weight.t(), None, [*pattern[3:], *pattern[:3]], ctx.sampled)
    if ctx.needs_input_grad[1]:
        to_weight = torch.ops.unifews.weight_gradient(grad, x, pattern) if ctx.sampled else grad.t() @ x
    return to_x, to_weight, grad.sum(0) if ctx.needs_input_grad[2] else None, [None] * len(pattern), None


_sparse_linear.register_autograd(_sparse_linear_backward, setup_context=_sparse_linear_context)


@torch.library.custom_op("unifews::weight_gradient", mutates_args=())
def _weight_gradient(grad: Tensor, x: Tensor, pattern: Sequence[Tensor]) -> Tensor:
    """(gᵀ x) ⊙ keep, [outputs, inputs]; g [rows, outputs], x [rows, inputs]."""
    indptr, indices, at, *_ = pattern
    out = x.new_zeros(grad.shape[1], x.shape[1])
    if len(at) and worth_gradient(len(x), x.shape[1], grad.shape[1], len(at) / out.numel()):
        values = x.new_empty(len(at))
        call_kernel(native.weight_gradient, dict(out=values), x=x, g=grad, indptr=indptr, indices=indices)
    else:
        values = (grad.t() @ x).reshape(-1)[at]
    out.view(-1)[at] = values
    return out


@_weight_gradient.register_fake
def _(grad: Tensor, x: Tensor, pattern: Sequence[Tensor]) -> Tensor:
    return x.new_empty(grad.shape[1], x.shape[1])


def _weight_gradient_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    grad, x, pattern = inputs
    ctx.save_for_backward(grad if x.requires_grad else None, x if grad.requires_grad else None, *pattern)


def _weight_gradient_backward(ctx: Any, direction: Tensor) -> tuple[Any, ...]:
    grad, x, *pattern = ctx.saved_tensors
    kept = torch.zeros_like(direction).view(-1).index_add(0, pattern[2], direction.reshape(-1)[pattern[2]]).view_as(direction)
    back = [*pattern[3:], *pattern[:3]]
    to_grad = torch.ops.unifews.sparse_linear(x, kept, None, pattern, True) if ctx.needs_input_grad[0] else None
    to_x = torch.ops.unifews.sparse_linear(grad, kept.t(), None, back, True) if ctx.needs_input_grad[1] else None
    return to_grad, to_x, [None] * len(pattern)


_weight_gradient.register_autograd(_weight_gradient_backward, setup_context=_weight_gradient_context)


# ---------------------------------------------------------------------------------------------------------------- flops


@register_flop_formula(torch.ops.unifews.sparse_linear, get_raw=True)  # type: ignore[untyped-decorator]
def _sparse_linear_flops(x: Tensor, weight: Tensor, bias: Any, pattern: Sequence[Tensor], *rest: Any, **extra: Any) -> int:
    """A multiply and an add per row and kept weight; per weight where values are unknown (fake tensors)."""
    packed = not isinstance(weight, FakeTensor) and _is_worth_packing(x.shape[0], weight, pattern)
    kept = len(pattern[2]) if pattern else int(weight.count_nonzero()) if packed else 0
    return 2 * x.shape[0] * (kept if packed else weight.numel())


@register_flop_formula(torch.ops.unifews.weight_gradient, get_raw=True)  # type: ignore[untyped-decorator]
def _weight_gradient_flops(grad: Tensor, x: Tensor, pattern: Sequence[Tensor], **extra: Any) -> int:
    whole, kept = grad.shape[1] * x.shape[1], int(pattern[2].shape[0])
    sparse = kept and worth_gradient(x.shape[0], x.shape[1], grad.shape[1], kept / whole)
    return 2 * x.shape[0] * (kept if sparse else whole)
