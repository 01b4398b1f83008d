"""BatchNorm of node features in training: statistics in one pass over memory, the result in another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unifews.kernels import native
from unifews.nn.ops import call_kernel, takes_kernel
from unifews.nn.ops.memory import empty


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / (variance + eps)^½ · weight + bias by the columns of x [n, f]; updates the running statistics.

    As `torch.nn.functional.batch_norm`, which is called outside training and for what the kernels do not support.
    """
    others = [value for value in (running_mean, running_var, weight, bias) if value is not None]
    fits = training and x.ndim == 2 and len(x) > 1 and takes_kernel(x)
    if not fits or any(value.dtype != torch.float32 or value.device.type != "cpu" for value in others):
        return torch.nn.functional.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    out, mean, variance = _BatchNorm.apply(x, weight, bias, eps)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for running, now in ((running_mean, mean), (running_var, variance * (len(x) / (len(x) - 1)))):
            if running is not None:
                running.mul_(1 - momentum).add_(now.float(), alpha=momentum)
    normalised: Tensor = out
    return normalised


class _BatchNorm(torch.autograd.Function):
    """Returns mean and variance too, float64 [f], without gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        rows, (n, f) = x.detach().contiguous(), x.shape
        mean, variance = torch.empty(f, dtype=torch.float64), torch.empty(f, dtype=torch.float64)
        call_kernel(native.column_moments, dict(mean=mean, variance=variance), x=rows)
        scale = (variance + eps).rsqrt() if weight is None else (variance + eps).rsqrt() * weight
        offset = -mean * scale if bias is None else bias - mean * scale
        out = empty(n, f)
        call_kernel(native.affine, dict(out=out), x=rows, a=scale.float(), c=offset.float())
        ctx.save_for_backward(x, weight, bias, mean, variance)
        ctx.eps = eps
        ctx.mark_non_differentiable(mean, variance)
        return out, mean, variance

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """dx = s·(g - mean(g) - x̂·mean(g·x̂)), s = weight / (variance + eps)^½; in torch operations if it needs a gradient."""
        x, weight, bias, mean, variance = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_gradients(grad, x, weight, bias, ctx.eps), None
        rows, grad, n = x.detach().contiguous(), grad.contiguous(), len(x)
        total, dot = torch.empty_like(mean), torch.empty_like(mean)
        centre = mean.float()
        call_kernel(native.column_dots, dict(total=total, dot=dot), grad=grad, x=rows, mean=centre)
        invert = (variance + ctx.eps).rsqrt()
        to_x = None
        if ctx.needs_input_grad[0]:
            scale = invert if weight is None else invert * weight
            slope = -scale * invert.square() * dot / n
            offset = -scale * total / n - slope * mean
            to_x = empty(*x.shape)
            call_kernel(
                native.affine_pair, dict(out=to_x), grad=grad, x=rows, a=scale.float(), b=slope.float(), c=offset.float()
            )
        to_weight = (dot * invert).float() if ctx.needs_input_grad[1] else None
        return to_x, to_weight, total.float() if ctx.needs_input_grad[2] else None, None


def _gradients(grad: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor | None, ...]:
    """The gradients of x, weight and bias with a graph of their own."""
    given = (x, weight, bias)
    wanted = [value for value in given if value is not None and value.requires_grad]
    out = torch.nn.functional.batch_norm(x, None, None, weight, bias, True, 0.0, eps)
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True))
    return tuple(next(found) if value is not None and value.requires_grad else None for value in given)
