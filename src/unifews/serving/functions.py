"""Functions of torch as steps. Each converter returns a value, or None for arguments that its step does not support."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from unifews.serving.program import ProgramBuilder, StepValue

ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.ELU: "elu",
    nn.LeakyReLU: "leaky_relu",
    nn.GELU: "gelu",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
    nn.SiLU: "silu",
    nn.SELU: "selu",
    nn.Softplus: "softplus",
}
SLOPES = {"elu": ("alpha", 1.0), "leaky_relu": ("negative_slope", 0.01)}
LAST = (-1, 1)


def _number(arg: Any) -> float | None:
    """A plain number, or a tensor of one."""
    if isinstance(arg, Tensor) and arg.numel() == 1:
        return float(arg)
    return float(arg) if isinstance(arg, int | float) and not isinstance(arg, bool) else None


def _is_row(to: ProgramBuilder, x: StepValue, arg: Any) -> bool:
    """Whether a constant has one number per column."""
    return isinstance(arg, Tensor) and arg.numel() == arg.shape[-1] == to.width(x.number)


def _added(to: ProgramBuilder, a: Any, b: Any, *, alpha: float = 1.0) -> StepValue | None:
    if isinstance(a, StepValue) and isinstance(b, StepValue):
        return StepValue(to.sum([a.number, b.number], [1.0, alpha]))
    if not isinstance(a, StepValue):
        if alpha != 1.0:
            scaled = _multiplied(to, b, alpha)
            return None if scaled is None else _added(to, scaled, a)
        return _added(to, b, a)
    plain = _number(b)
    if plain == 0.0:
        return a
    shift = torch.tensor(plain) if plain is not None else b
    return StepValue(to.affine(a.number, shift=shift * alpha)) if plain is not None or _is_row(to, a, b) else None


def _subtracted(to: ProgramBuilder, a: Any, b: Any, *, alpha: float = 1.0) -> StepValue | None:
    if isinstance(a, StepValue) and _is_row(to, a, b) and alpha == 1.0:
        return StepValue(to.affine(a.number, mean=b))
    return _added(to, a, b, alpha=-alpha)


def _multiplied(to: ProgramBuilder, a: Any, b: Any) -> StepValue | None:
    if isinstance(a, StepValue) and isinstance(b, StepValue):
        return StepValue(to.add("product", [a.number, b.number]))
    a, b = (a, b) if isinstance(a, StepValue) else (b, a)
    plain = _number(b)
    if plain is not None:
        return StepValue(to.sum([a.number], [plain]))
    return StepValue(to.affine(a.number, scale=b)) if _is_row(to, a, b) else None


def _divided(to: ProgramBuilder, a: Any, b: Any) -> StepValue | None:
    plain = _number(b)
    if isinstance(a, StepValue) and (plain or isinstance(b, Tensor)):
        return _multiplied(to, a, 1 / plain if plain else 1 / b)
    return None


def _negated(to: ProgramBuilder, a: StepValue) -> StepValue:
    return StepValue(to.sum([a.number], [-1.0]))


def _linear(to: ProgramBuilder, input: Any, weight: Any, bias: Any = None) -> StepValue | None:
    if not isinstance(input, StepValue) or not isinstance(weight, Tensor) or weight.ndim != 2:
        return None
    return StepValue(to.linear(input.number, weight, bias))


def _times_matrix(to: ProgramBuilder, a: Any, b: Any) -> StepValue | None:
    return _linear(to, a, b.T) if isinstance(b, Tensor) and b.ndim == 2 else None


def _joined(to: ProgramBuilder, tensors: Any, dim: int = 0) -> StepValue | None:
    fits = dim in LAST and all(isinstance(one, StepValue) for one in tensors)
    return StepValue(to.add("cat", [one.number for one in tensors])) if fits else None


def _largest(to: ProgramBuilder, a: Any, b: Any) -> StepValue | None:
    both = isinstance(a, StepValue) and isinstance(b, StepValue)
    return StepValue(to.add("max", [a.number, b.number])) if both else None


def _softmax(log: bool) -> Callable[..., StepValue | None]:
    def convert(to: ProgramBuilder, input: Any, dim: int | None = None, **more: Any) -> StepValue | None:
        plain = dim in LAST and all(value is None or value == 3 for value in more.values())
        return StepValue(to.add("softmax", [input.number], {"log": log})) if plain else None

    return convert


def _normalized(
    to: ProgramBuilder, input: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None
) -> StepValue | None:
    return StepValue(to.add("normalize", [input.number], {"eps": float(eps)})) if p == 2 and dim in LAST else None


def _passed(to: ProgramBuilder, input: Any, *args: Any, **kwargs: Any) -> StepValue:
    return StepValue(input.number)


def _dropped(to: ProgramBuilder, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> StepValue | None:
    return None if training and p else StepValue(input.number)  # dropout in eval mode has no step


def _activated(kind: str) -> Callable[..., StepValue | None]:
    def convert(
        to: ProgramBuilder, input: Any, slope: float | None = None, inplace: bool = False, **more: Any
    ) -> StepValue | None:
        if kind not in SLOPES:
            made = "gelu_tanh" if kind == "gelu" and more.pop("approximate", "none") == "tanh" else kind
            return None if slope is not None or more else StepValue(to.activate(input.number, made))
        name, usual = SLOPES[kind]
        given = more.pop(name, usual if slope is None else slope)
        return None if more else StepValue(to.activate(input.number, kind, given))

    return convert


FUNCTIONS: dict[str, Callable[..., StepValue | None]] = {
    **{name: _added for name in ("add", "add_", "iadd", "radd")},
    **{name: _subtracted for name in ("sub", "sub_", "isub", "subtract")},
    **{name: _multiplied for name in ("mul", "mul_", "imul", "multiply")},
    **{name: _divided for name in ("truediv", "div", "div_", "itruediv", "divide")},
    **{name: _negated for name in ("neg", "negative")},
    **{name: _times_matrix for name in ("matmul", "mm")},
    **{name: _joined for name in ("cat", "concat", "concatenate")},
    **{name: _largest for name in ("max", "maximum")},
    **{name: _dropped for name in ("dropout", "dropout_", "alpha_dropout", "feature_alpha_dropout")},
    **{name: _passed for name in ("contiguous", "clone", "detach", "float")},
    **{name: _activated(name.rstrip("_")) for kind in ACTIVATIONS.values() for name in (kind, kind + "_")},
    "linear": _linear,
    "normalize": _normalized,
    "softmax": _softmax(False),
    "log_softmax": _softmax(True),
}
