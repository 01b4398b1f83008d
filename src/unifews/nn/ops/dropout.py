"""Dropout bound by memory bandwidth: torch's own on the CPU takes longer than the pruned products of a layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unifews.kernels import native
from unifews.nn.ops import call_kernel

_MIN_VALUES = 1 << 12  # below, a call costs more than it saves
_RANGE = 1 << 32  # of the random numbers


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """``x / (1 - p)``, each value zero with probability p; x itself unless `training`.

    Like `torch.nn.functional.dropout`, which is called for what the kernel does not support (other devices and types, compiled
    models), but with other random numbers. They follow torch's seed and do not depend on the number of threads. No mask is
    stored: the random number of a value is a hash of a seed and its position, recomputed in the backward pass.
    """
    if not training or p == 0:
        return x
    on_kernel = x.dtype == torch.float32 and x.device.type == "cpu" and x.layout == torch.strided and p < 1
    if not on_kernel or x.numel() < _MIN_VALUES or torch.compiler.is_compiling():
        return torch.nn.functional.dropout(x, p)
    out: Tensor = _Dropout.apply(x, int(torch.randint(2**63 - 1, ())), p)  # type: ignore[no-untyped-call]
    return out


class _Dropout(torch.autograd.Function):
    """Linear and its own transpose. Not a `custom_op`: the first call of one imports torch's compiler, which takes seconds."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seed: int, p: float) -> Tensor:
        ctx.draw = seed, p
        x = x.detach().contiguous()
        out = torch.empty_like(x)
        call_kernel(native.dropout, dict(out=out), x=x, seed=seed, level=min(round(p * _RANGE), _RANGE - 1), scale=1 / (1 - p))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return _Dropout.apply(grad, *ctx.draw), None, None  # type: ignore[no-untyped-call]
