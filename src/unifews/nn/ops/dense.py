"""Products of dense features and dense weights, with results in huge pages."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unifews.nn.ops import takes_kernel
from unifews.nn.ops.memory import empty


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b, as `torch.nn.functional.linear`, which is called for what is not float32 [n, inputs] on the CPU."""
    others = [weight] if bias is None else [weight, bias]
    fits = x.ndim == weight.ndim == 2 and x.shape[1] == weight.shape[1] and takes_kernel(x)
    if not fits or any(value.dtype != torch.float32 or value.device.type != "cpu" for value in others):
        return torch.nn.functional.linear(x, weight, bias)
    out: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        out = empty(len(x), len(weight))
        return torch.mm(x, weight.t(), out=out) if bias is None else torch.addmm(bias, x, weight.t(), out=out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        to_x = to_weight = None
        if ctx.needs_input_grad[0]:
            to_x = grad @ weight if torch.is_grad_enabled() else torch.mm(grad, weight, out=empty(*x.shape))
        if ctx.needs_input_grad[1]:
            to_weight = grad.t() @ x
        return to_x, to_weight, grad.sum(0) if ctx.needs_input_grad[2] else None
