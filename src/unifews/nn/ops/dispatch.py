"""Operators of torch around our kernels, and the way past them where torch has nothing to do with a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode


class Operator:
    """A kernel that torch differentiates, compiles and counts.

    Where nothing is differentiated, compiled or counted the kernel is called itself: the first call of an operator imports
    torch's compiler, which takes longer than a thousand predictions.
    """

    def __init__(self, name: str, kernel: Callable[..., Any]) -> None:
        self._kernel = kernel
        made = torch.library.custom_op(name, kernel, mutates_args=())
        self.register_fake, self.register_autograd = made.register_fake, made.register_autograd
        library, _, own = name.partition("::")
        self._operator = getattr(getattr(torch.ops, library), own)

    def __call__(self, *args: Any) -> Any:
        seen = torch.is_grad_enabled() or torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None
        if seen:
            return self._operator(*args)
        return self._kernel(*(arg.detach() if isinstance(arg, Tensor) else arg for arg in args))


def operator(name: str) -> Callable[[Callable[..., Any]], Operator]:
    """The decorated kernel is torch's operator of this name, ``"library::name"``."""
    return lambda kernel: Operator(name, kernel)
