"""Dropout bound by memory bandwidth: torch's own on the CPU draws its random numbers on one thread."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unifews.kernels import native
from unifews.nn.ops import call_kernel, takes_kernel
from unifews.nn.ops.memory import empty

_RANGE = 1 << 32  # of the random numbers


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """``x / (1 - p)``, each value zero with probability p; x itself unless `training`.

    Like `torch.nn.functional.dropout`, which is called for what the kernel does not support (`takes_kernel`), but with other
    random numbers. They follow torch's seed and do not depend on the number of threads. No mask is stored: the random number of
    a value is a hash of a seed and its position, recomputed in the backward pass.
    """
    if not training or p == 0:
        return x
    if not takes_kernel(x) or not 0 < p < 1:
        return torch.nn.functional.dropout(x, p)
    out: Tensor = _Dropout.apply(x, int(torch.randint(2**63 - 1, ())), p)  # type: ignore[no-untyped-call]
    return out


class _Dropout(torch.autograd.Function):
    """Linear and its own transpose. Not a `custom_op`: the first call of one imports torch's compiler, which takes seconds."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seed: int, p: float) -> Tensor:
        ctx.draw = seed, p
        x = x.detach().contiguous()
        out = empty(*x.shape)
        call_kernel(native.dropout, dict(out=out), x=x, seed=seed, level=min(round(p * _RANGE), _RANGE - 1), scale=1 / (1 - p))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return _Dropout.apply(grad, *ctx.draw), None, None  # type: ignore[no-untyped-call]
