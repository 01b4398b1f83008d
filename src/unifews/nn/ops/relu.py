"""ReLU that keeps one bit per value for the backward pass instead of its result."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unifews.kernels import LANES, native
from unifews.nn.ops import call_kernel, takes_kernel
from unifews.nn.ops.memory import empty


def relu(x: Tensor) -> Tensor:
    """max(x, 0), as `torch.relu`, which is called for what the kernel does not support (`takes_kernel`)."""
    if not takes_kernel(x):
        return torch.relu(x)
    out: Tensor = _Relu.apply(x)  # type: ignore[no-untyped-call]
    return out


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.detach().contiguous()
        out, bits = empty(*x.shape), torch.empty(-(-x.numel() // LANES), dtype=torch.uint16)
        call_kernel(native.relu, dict(out=out, bits=bits), x=x)
        ctx.save_for_backward(bits)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        out: Tensor = _Masked.apply(grad, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return out


class _Masked(torch.autograd.Function):
    """x where a bit is set, else 0: linear and its own transpose."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: Tensor) -> Tensor:
        ctx.save_for_backward(bits)
        x = x.detach().contiguous()
        out = empty(*x.shape)
        call_kernel(native.masked, dict(out=out), x=x, bits=bits)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return _Masked.apply(grad, *ctx.saved_tensors), None  # type: ignore[no-untyped-call]
