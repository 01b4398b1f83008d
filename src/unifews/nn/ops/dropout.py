"""Dropout at the speed of memory: torch's own draws on the CPU take longer than a layer's pruned products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unifews.kernels import native, threads_to_use

_WORTH = 1 << 12  # values: below, a call costs more than it saves
_CHANCES = 1 << 32


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """``x / (1 - p)``, each value zero with probability p; x itself unless `training`.

    As `torch.nn.functional.dropout`, which it calls for what the kernel does not take (other devices and types, compiled
    models), with other draws. They follow torch's seed, and do not depend on the number of threads. No mask is kept:
    a value's draw is made from a seed and its position, on the way back once more.
    """
    if not training or p == 0:
        return x
    on_kernel = x.dtype == torch.float32 and x.device.type == "cpu" and x.layout == torch.strided and p < 1
    if not on_kernel or x.numel() < _WORTH or torch.compiler.is_compiling():
        return torch.nn.functional.dropout(x, p)
    out: Tensor = _Dropout.apply(x, int(torch.randint(2**63 - 1, ())), p)  # type: ignore[no-untyped-call]
    return out


class _Dropout(torch.autograd.Function):
    """Linear and its own transpose. No `custom_op`: the first call of one loads torch's compiler, seconds of a short run."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seed: int, p: float) -> Tensor:
        ctx.draw = seed, p
        x = x.detach().contiguous()
        out = torch.empty_like(x)
        native.dropout(
            x=x.numpy(),
            seed=seed,
            level=min(round(p * _CHANCES), _CHANCES - 1),
            scale=1 / (1 - p),
            out=out.numpy(),
            threads=threads_to_use(None),
        )
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return _Dropout.apply(grad, *ctx.draw), None, None  # type: ignore[no-untyped-call]
