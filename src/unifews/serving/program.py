"""What a frozen model does, as a list of steps from a closed set, and whether they fit together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from unifews.nn.edges import Norm
from unifews.serving.layer import Layer
from unifews.serving.schemes import is_propagation
from unifews.serving.weights import Weight

Form = Literal["all", "columns", "edges", "block", "feature"]
"""Which products of the messages a step makes: all; those of some columns; those of some edges; those of a size ≥ δ, by
blocks of 16 columns of an edge, or by single columns."""

MOST_STEPS = 10_000
WIDEST = 1 << 20
ACTIVATIONS = ("relu", "elu", "leaky_relu", "gelu", "gelu_tanh", "sigmoid", "tanh", "silu", "selu", "softplus")


class Unsound(Exception):
    """Steps that do not fit together; the sentence says which."""


@dataclass(frozen=True, eq=False)
class Step:
    """One operation. Value 0 is the features, value i the result of the i-th step, counted from 1."""

    op: str
    inputs: tuple[int, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Tensor | Weight] = field(default_factory=dict)

    def tensor(self, name: str) -> Tensor | None:
        """A vector or matrix by name; None = it has none."""
        found = self.arrays.get(name)
        assert found is None or isinstance(found, Tensor)
        return found

    @property
    def weight(self) -> Weight:
        found = self.arrays["weight"]
        assert isinstance(found, Weight)
        return found

    @property
    def uses_weights(self) -> bool:
        """Whether edge weights, where there are any, change what it does."""
        return bool(self.settings["layer"].weighted if self.op == "layer" else self.settings.get("weighted"))


@dataclass(frozen=True, eq=False)
class Program:
    """Steps in order; the last one gives the result."""

    features: int
    """Columns of what it is given."""
    steps: tuple[Step, ...]
    weighted: bool = False
    """Whether it has a use for edge weights."""

    @cached_property
    def widths(self) -> list[int]:
        """Columns of every value, after checking that each step can do what it says with what it is given."""
        if not 1 <= len(self.steps) <= MOST_STEPS:
            raise Unsound(f"has {len(self.steps):,} steps; a program has 1 to {MOST_STEPS:,}")
        widths = [self.features]
        for number, step in enumerate(self.steps, start=1):
            try:
                widths.append(_width(step, widths))
            except Unsound as problem:
                raise Unsound(f"step {number} ({step.op}) {problem}") from None
        return widths

    @property
    def uses(self) -> list[int]:
        """How many steps need each value; the result counts as one more."""
        counts = [0] * (len(self.steps) + 1)
        for step in self.steps:
            for value in step.inputs:
                counts[value] += 1
        counts[-1] += 1
        return counts

    @property
    def decides(self) -> bool:
        """Whether it compares sizes with thresholds, so that rounding may tip a product of just that size."""
        return any(step.settings.get("form") in ("block", "feature") for step in self.steps)


# --------------------------------------------------------------------------------------------------- what a step may say

Check = Callable[[Any], bool]


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 1e30


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _one_of(*known: str) -> Check:
    return lambda value: isinstance(value, str) and value in known


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _is_delta(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_factors(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_number, value))


@dataclass(frozen=True)
class Op:
    """What a kind of step takes: how many values, which settings (all of them), which arrays."""

    inputs: tuple[int, int]
    settings: Mapping[str, Check] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    width: Callable[[Step, Sequence[int]], int] = lambda step, widths: widths[0]


def _same(step: Step, widths: Sequence[int]) -> int:
    if len(set(widths)) != 1:
        raise Unsound(f"needs values of one width; they have {', '.join(map(str, widths))} columns")
    return widths[0]


def _linear(step: Step, widths: Sequence[int]) -> int:
    weight = step.arrays["weight"]
    if not isinstance(weight, Weight) or weight.shape[1] != widths[0]:
        raise Unsound(f"needs a weight with {widths[0]} inputs")
    _need(step, "bias", (weight.shape[0],))
    return weight.shape[0]


def _rotate(step: Step, widths: Sequence[int]) -> int:
    axes = step.tensor("axes")
    if axes is None or axes.ndim != 2 or axes.shape[0] != widths[0] or axes.dtype != torch.float32:
        raise Unsound(f"needs axes of {widths[0]} columns")
    return int(axes.shape[1])


def _sum(step: Step, widths: Sequence[int]) -> int:
    if len(step.settings["factors"]) != len(widths):
        raise Unsound(f"has {len(step.settings['factors'])} factors for {len(widths)} values")
    return _same(step, widths)


def _rowwise(*names: str) -> Callable[[Step, Sequence[int]], int]:
    def width(step: Step, widths: Sequence[int]) -> int:
        for name in names:
            _need(step, name, (widths[0],))
        return widths[0]

    return width


def _heads(step: Step, widths: Sequence[int]) -> int:
    heads = int(step.settings["heads"])
    if not heads or widths[0] % heads:
        raise Unsound(f"has {heads} heads for {widths[0]} columns")
    return widths[0] // heads


def _pruned(step: Step, widths: Sequence[int]) -> int:
    form, nodes = step.settings["form"], step.settings["nodes"]
    columns, removed = step.tensor("columns"), step.tensor("removed")
    if (columns is None) == (form == "columns") or (removed is None) == (form == "edges"):
        raise Unsound(f"has the wrong arrays for its form {form!r}")
    if columns is not None:
        _need(step, "columns", (widths[0],), torch.bool)
    if removed is not None:
        ends = removed[[0, -1]].tolist() if len(removed) else [0, 0]
        if removed.dtype != torch.int64 or removed.ndim != 1 or not nodes:
            raise Unsound("needs whole numbers for the edges it leaves out, and the number of nodes")
        if bool((removed.diff() <= 0).any()) or ends[0] < 0 or ends[1] >= nodes * nodes:
            raise Unsound(f"leaves out edges that a graph of {nodes:,} nodes does not have")
    return widths[0]


def _diffuse(step: Step, widths: Sequence[int]) -> int:
    _need(step, "bias", (widths[0],))
    return _pruned(step, widths)


def _gat(step: Step, widths: Sequence[int]) -> int:
    heads = step.settings["heads"]
    channels = _heads(step, widths)
    for name in ("source", "target", "att"):
        _need(step, name, (heads, channels))
    if len(widths) == 2:
        _same(step, widths)
    return _pruned(step, widths)


_PRUNED: dict[str, Check] = {
    "flow": _one_of("source_to_target", "target_to_source"),
    "form": _one_of(*get_args(Form)),
    "delta": _or_none(_is_delta),
    "nodes": _is_count,
    "inherit": _is_flag,
}
_ATTENDING: dict[str, Check] = {**_PRUNED, "heads": _is_count, "slope": _is_number, "loops": _is_flag}
_MANY = 1 << 16

OPS: dict[str, Op] = {
    "linear": Op((1, 1), {"relu": _is_flag}, ("weight",), ("bias",), _linear),
    "rotate": Op((1, 1), {}, ("axes",), (), _rotate),
    "affine": Op((1, 1), {"relu": _is_flag}, (), ("mean", "scale", "shift"), _rowwise("mean", "scale", "shift")),
    "activate": Op((1, 1), {"kind": _one_of(*ACTIVATIONS), "slope": _is_number}),
    "sum": Op((1, _MANY), {"factors": _is_factors, "relu": _is_flag}, width=_sum),
    "product": Op((2, 2), width=_same),
    "max": Op((1, _MANY), width=_same),
    "cat": Op((1, _MANY), width=lambda step, widths: sum(widths)),
    "mean_heads": Op((1, 1), {"heads": _is_count}, width=_heads),
    "normalize": Op((1, 1), {"eps": _is_delta}),
    "layer_norm": Op((1, 1), {"eps": _is_delta}, (), ("scale", "shift"), _rowwise("scale", "shift")),
    "softmax": Op((1, 1), {"log": _is_flag}),
    "diffuse": Op(
        (1, 1),
        {
            "norm": _one_of(*get_args(Norm)),
            "loops": _or_none(_is_number),
            "weighted_loops": _or_none(_is_number),
            "weighted": _is_flag,
            "relu": _is_flag,
            **_PRUNED,
        },
        (),
        ("columns", "removed", "bias"),
        _diffuse,
    ),
    "gat": Op((1, 1), _ATTENDING, ("source", "target"), ("columns", "removed"), _gat),
    "gatv2": Op((2, 2), _ATTENDING, ("att",), ("columns", "removed"), _gat),
    "layer": Op(
        (1, _MANY), {"layer": lambda value: isinstance(value, Layer)}, width=lambda step, widths: step.settings["layer"].width
    ),
    "propagate": Op((1, 1), {"how": is_propagation, "exponent": lambda value: type(value) is int and abs(value) < 2**31}),
}
_DEFAULTS: dict[str, Any] = {"relu": False, "weighted_loops": None}


def with_defaults(op: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a step as a file has them; those that it may lack, because steps once had none, are added."""
    known = OPS[op].settings if op in OPS else {}
    return {name: value for name, value in _DEFAULTS.items() if name in known} | dict(settings)


GRAPH_OPS = ("diffuse", "gat", "gatv2")
ON_ALL = ("propagate", "layer")
"""Steps that are made of all nodes, once for a graph."""


def _need(step: Step, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
    """An array, if it is there, has this shape and type."""
    found = step.arrays.get(name)
    if found is None:
        return
    if not isinstance(found, Tensor) or tuple(found.shape) != shape or found.dtype != dtype:
        raise Unsound(f"needs {name} of shape {list(shape)}")


def _width(step: Step, widths: Sequence[int]) -> int:
    op = OPS.get(step.op) if isinstance(step.op, str) else None
    if op is None:
        raise Unsound("is no operation of this release")
    least, most = op.inputs
    if not least <= len(step.inputs) <= most:
        raise Unsound(f"is given {len(step.inputs)} values")
    if not all(type(value) is int and 0 <= value < len(widths) for value in step.inputs):
        raise Unsound(f"refers to values {list(step.inputs)!r}, of which some do not exist yet")
    if set(step.settings) != set(op.settings):
        raise Unsound(f"has settings {sorted(step.settings)}; it takes {sorted(op.settings)}")
    for name, check in op.settings.items():
        if not check(step.settings[name]):
            raise Unsound(f"cannot have {name} = {str(step.settings[name])[:40]!r}")
    if not set(op.required) <= set(step.arrays) <= {*op.required, *op.optional}:
        raise Unsound(f"has arrays {sorted(step.arrays)}; it takes {sorted({*op.required, *op.optional})}")
    width = op.width(step, [widths[value] for value in step.inputs])
    if not 1 <= width <= WIDEST:
        raise Unsound(f"gives {width:,} columns; a value has 1 to {WIDEST:,}")
    return width
