"""torch functions inside the forward pass of one model, computed by this library's kernels.

A model calls ``F.dropout``, ``F.relu``, ``F.batch_norm`` and ``F.linear`` itself or through modules such as `torch.nn.Dropout`.
A `torch.overrides.TorchFunctionMode` sees these calls while `forward` of this model runs, on the thread that runs it, and
nothing else: no attribute of torch or of a module changes (docs/adr/0030-functions-of-a-forward-pass.md).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode

from unifews.nn.ops.batch_norm import batch_norm
from unifews.nn.ops.dense import linear
from unifews.nn.ops.dropout import dropout
from unifews.nn.ops.relu import relu

_MIN_VALUES = 1 << 14  # of the largest tensor given to a model; below, seeing all calls costs more than it saves


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return F.dropout(input, p, training, inplace) if inplace or not 0 <= p <= 1 else dropout(input, p, training)


def _relu(input: Tensor, inplace: bool = False) -> Tensor:
    return F.relu(input, inplace) if inplace else relu(input)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return linear(input, weight, bias)


def _batch_norm(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return batch_norm(input, *args, **kwargs)


FUNCTIONS: Mapping[Any, Callable[..., Tensor]] = {
    F.dropout: _dropout,
    F.relu: _relu,
    torch.relu: _relu,
    Tensor.relu: _relu,
    F.linear: _linear,
    F.batch_norm: _batch_norm,
}
"""Functions of torch, by which ones they are replaced: same arguments, same results up to rounding and random draws."""


class _Mode(TorchFunctionMode):
    """Replaces functions while a frame, the call of a model, is running."""

    def __init__(self, frame: FrameType) -> None:
        super().__init__()
        self.frame: FrameType | None = frame

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = FUNCTIONS.get(func)
        if found is None or not self.is_running:
            return func(*args, **(kwargs or {}))
        return found(*args, **(kwargs or {}))

    @property
    def is_running(self) -> bool:
        """False once the call has ended by a KeyboardInterrupt or its like, after which torch calls no hook."""
        frame: FrameType | None = sys._getframe() if self.frame is not None else None
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        if frame is None:
            self.frame = None
        return frame is not None


class FastFunctions:
    """Hooks of a model that enter a `_Mode` when it is called, and leave it when it returns or raises."""

    def __init__(self) -> None:
        self._entered: dict[int, list[_Mode | None]] = {}  # by thread: one for each running call of the model

    def __getstate__(self) -> dict[str, Any]:
        return {"_entered": {}}

    def attach(self, model: nn.Module) -> None:
        # First of all hooks, so that no other one can raise before it and leave `leave` without its `enter`.
        model.register_forward_pre_hook(self.enter, prepend=True, with_kwargs=True)
        model.register_forward_hook(self.leave, prepend=True, always_call=True)

    def detach(self, model: nn.Module) -> None:
        for hooks in (model._forward_pre_hooks, model._forward_hooks):
            for number in [number for number, hook in hooks.items() if getattr(hook, "__self__", None) is self]:
                del hooks[number]
                model._forward_pre_hooks_with_kwargs.pop(number, None)
                model._forward_hooks_always_called.pop(number, None)

    def enter(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            return
        while isinstance(top := _get_current_function_mode(), _Mode) and not top.is_running:  # type: ignore[no-untyped-call]
            # Left behind by an interrupted call.
            _pop_mode()  # type: ignore[no-untyped-call]
        mode = None
        calls = [each for each in self._entered.get(get_ident(), []) if each is None or each.is_running]
        if _is_large((*args, *kwargs.values())):
            mode = _Mode(sys._getframe(1))
            mode.__enter__()  # type: ignore[no-untyped-call]
        self._entered[get_ident()] = [*calls, mode]

    def leave(self, model: nn.Module, args: Any, out: Any) -> None:
        if torch.compiler.is_compiling():
            return
        calls = self._entered.get(get_ident())
        if not calls:
            return
        mode = calls.pop()
        if not calls:
            del self._entered[get_ident()]
        if mode is not None:
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            mode.frame = None


def functions_of(model: nn.Module) -> FastFunctions | None:
    """The hooks that `FastFunctions.attach` has registered on a model."""
    found = (getattr(hook, "__self__", None) for hook in model._forward_pre_hooks.values())
    return next((each for each in found if isinstance(each, FastFunctions)), None)


def _is_large(values: Iterable[Any]) -> bool:
    return any(isinstance(value, Tensor) and value.numel() >= _MIN_VALUES for value in values)
