"""A frozen model as a program: a list of steps from a closed set of operations, checked for consistency, and its builder."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from unifews.core.schemes import scheme_from_plain
from unifews.errors import InputError
from unifews.nn.edges import Norm
from unifews.nn.thinning import EdgeRule
from unifews.serving.products import Weight

Form = Literal["all", "columns", "edges", "block", "feature"]
"""Which products of the messages a step computes: all; those of some columns; those of some edges; those of magnitude ≥ δ,
by blocks of 16 columns of an edge, or by single columns."""
Settings = Mapping[str, Any]
"""Settings of a step by name; `OPS` lists the names and checks the values."""
Arrays = Mapping[str, Tensor | Weight]

MAX_STEPS = 10_000
MAX_WIDTH = 1 << 20
ACTIVATIONS = ("relu", "elu", "leaky_relu", "gelu", "gelu_tanh", "sigmoid", "tanh", "silu", "selu", "softplus")


class InvalidModel(Exception):
    """A program, or what a file holds, is inconsistent; the message continues "the model ..."."""


@dataclass(frozen=True, eq=False)
class Layer(ABC):
    """A function of some values and the graph, of all nodes at once, that runs with its own code.

    Abstract, so that a program does not import what that code needs (`unifews.serving.tracer.OwnLayer`).
    """

    path: str
    kind: str
    width: int
    """Columns of its result."""
    weights: tuple[int, int]
    """Weights kept, and entries of the matrices they are in."""
    weighted: bool
    """Whether it takes edge weights."""

    @abstractmethod
    def run(self, values: Sequence[Tensor], edge_index: Tensor, edge_weight: Tensor | None) -> Tensor:
        """[n, width]."""

    def __repr__(self) -> str:
        return f"{self.kind} at {self.path}"


@dataclass(frozen=True, eq=False)
class Step:
    """One operation. Value 0 is the feature matrix, value i the result of the i-th step, counted from 1."""

    op: str
    inputs: tuple[int, ...]
    settings: Settings = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)

    def tensor(self, name: str) -> Tensor | None:
        """A vector or matrix by name; None if the step has none of that name."""
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
        """Whether the result depends on edge weights."""
        return bool(self.settings["layer"].weighted if self.op == "layer" else self.settings.get("weighted"))


@dataclass(frozen=True, eq=False)
class Program:
    """Steps in order; the result is that of the last one."""

    features: int
    """Columns of the input features."""
    steps: tuple[Step, ...]
    weighted: bool = False
    """Whether it takes edge weights."""
    thinning: EdgeRule | None = None
    """Which edges of a graph exist for its steps; None = all."""

    @cached_property
    def widths(self) -> list[int]:
        """Columns of every value, after checking that each step can be computed from its inputs."""
        if not 1 <= len(self.steps) <= MAX_STEPS:
            raise InvalidModel(f"has {len(self.steps):,} steps; a program has 1 to {MAX_STEPS:,}")
        widths = [self.features]
        for number, step in enumerate(self.steps, start=1):
            try:
                widths.append(_width(step, widths))
            except InvalidModel as problem:
                raise InvalidModel(f"step {number} ({step.op}) {problem}") from None
        return widths

    @property
    def uses(self) -> list[int]:
        """How many steps read each value; the program's result counts as one more reader."""
        counts = [0] * (len(self.steps) + 1)
        for step in self.steps:
            for value in step.inputs:
                counts[value] += 1
        counts[-1] += 1
        return counts

    @property
    def decides(self) -> bool:
        """Whether it compares magnitudes with thresholds, so that rounding may decide about a product near the threshold."""
        return any(step.settings.get("form") in ("block", "feature") for step in self.steps)


# ------------------------------------------------------------------------------------------------ checks of steps

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


_PROPAGATION = {
    *("scheme", "hops", "r", "edge_sparsity", "threshold", "relative_threshold"),
    *("entries", "basis", "rank", "deflate", "inherit", "focus"),
    *("max_error", "error_norm", "degree", "precision"),
}
"""Arguments of `propagate` that a file may hold, those of earlier versions included.
With `max_error` every graph is propagated to the same estimated error."""


def is_propagation(value: Any) -> bool:
    """Whether these are keyword arguments of `propagate` as a file holds them; `propagate` itself checks the values."""
    if not isinstance(value, dict) or not set(value) <= _PROPAGATION:
        return False
    plain = (bool, int, float, str, type(None))
    if not all(isinstance(one, plain) for name, one in value.items() if name != "scheme"):
        return False
    try:
        scheme_from_plain(value.get("scheme"))
    except InputError:
        return False
    return True


def _is_factors(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_number, value))


@dataclass(frozen=True)
class Op:
    """Signature of an operation: number of inputs (least, most), all its settings, its arrays, and the width of its result."""

    inputs: tuple[int, int]
    settings: Mapping[str, Check] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    width: Callable[[Step, Sequence[int]], int] = lambda step, widths: widths[0]


def _same(step: Step, widths: Sequence[int]) -> int:
    if len(set(widths)) != 1:
        raise InvalidModel(f"needs inputs of equal width; they have {', '.join(map(str, widths))} columns")
    return widths[0]


def _linear(step: Step, widths: Sequence[int]) -> int:
    weight = step.arrays["weight"]
    if not isinstance(weight, Weight) or weight.shape[1] != widths[0]:
        raise InvalidModel(f"needs a weight with {widths[0]} inputs")
    _need(step, "bias", (weight.shape[0],))
    return weight.shape[0]


def _rotate(step: Step, widths: Sequence[int]) -> int:
    axes = step.tensor("axes")
    if axes is None or axes.ndim != 2 or axes.shape[0] != widths[0] or axes.dtype != torch.float32:
        raise InvalidModel(f"needs axes of {widths[0]} columns")
    return int(axes.shape[1])


def _sum(step: Step, widths: Sequence[int]) -> int:
    if len(step.settings["factors"]) != len(widths):
        raise InvalidModel(f"has {len(step.settings['factors'])} factors for {len(widths)} values")
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
        raise InvalidModel(f"has {heads} heads for {widths[0]} columns")
    return widths[0] // heads


def _pruned(step: Step, widths: Sequence[int]) -> int:
    form, nodes = step.settings["form"], step.settings["nodes"]
    columns, removed = step.tensor("columns"), step.tensor("removed")
    if (columns is None) == (form == "columns") or (removed is None) == (form == "edges"):
        raise InvalidModel(f"has arrays that do not match its form {form!r}")
    if columns is not None:
        _need(step, "columns", (widths[0],), torch.bool)
    if removed is not None:
        ends = removed[[0, -1]].tolist() if len(removed) else [0, 0]
        if removed.dtype != torch.int64 or removed.ndim != 1 or not nodes:
            raise InvalidModel("needs the removed edges as int64 keys, and the number of nodes")
        if bool((removed.diff() <= 0).any()) or ends[0] < 0 or ends[1] >= nodes * nodes:
            raise InvalidModel(f"removes edges that a graph of {nodes:,} nodes does not have")
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
_ATTENDING: dict[str, Check] = {**_PRUNED, "heads": _is_count, "slope": _is_number, "loops": _is_flag, "renormalize": _is_flag}
_DIFFUSING: dict[str, Check] = {
    **{"norm": _one_of(*get_args(Norm)), "loops": _or_none(_is_number), "weighted_loops": _or_none(_is_number)},
    **{"weighted": _is_flag, "relu": _is_flag, "renormalize": _is_flag, **_PRUNED},
}
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
    "diffuse": Op((1, 1), _DIFFUSING, (), ("columns", "removed", "bias"), _diffuse),
    "gat": Op((1, 1), _ATTENDING, ("source", "target"), ("columns", "removed"), _gat),
    "gatv2": Op((2, 2), _ATTENDING, ("att",), ("columns", "removed"), _gat),
    "layer": Op(
        (1, _MANY), {"layer": lambda value: isinstance(value, Layer)}, width=lambda step, widths: step.settings["layer"].width
    ),
    "propagate": Op((1, 1), {"how": is_propagation, "exponent": lambda value: type(value) is int and abs(value) < 2**31}),
}
_DEFAULTS: Settings = {"relu": False, "weighted_loops": None, "renormalize": False}


def with_defaults(op: str, settings: Settings) -> Settings:
    """The settings of a step in a file, completed by defaults of settings that earlier releases did not write."""
    known = OPS[op].settings if op in OPS else {}
    return {name: value for name, value in _DEFAULTS.items() if name in known} | dict(settings)


GRAPH_OPS = ("diffuse", "gat", "gatv2")
ALL_NODE_OPS = ("propagate", "layer")
"""Steps that are computed for all nodes, once per graph."""


def _need(step: Step, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
    """Check the shape and type of an optional array."""
    found = step.arrays.get(name)
    if found is None:
        return
    if not isinstance(found, Tensor) or tuple(found.shape) != shape or found.dtype != dtype:
        raise InvalidModel(f"needs {name} of shape {list(shape)}")


def _width(step: Step, widths: Sequence[int]) -> int:
    op = OPS.get(step.op) if isinstance(step.op, str) else None
    if op is None:
        raise InvalidModel("is not an operation of this release")
    least, most = op.inputs
    if not least <= len(step.inputs) <= most:
        raise InvalidModel(f"has {len(step.inputs)} inputs; it takes {least} to {most}")
    if not all(type(value) is int and 0 <= value < len(widths) for value in step.inputs):
        raise InvalidModel(f"refers to values {list(step.inputs)!r}, some of which are not computed yet")
    if set(step.settings) != set(op.settings):
        raise InvalidModel(f"has settings {sorted(step.settings)}; it takes {sorted(op.settings)}")
    for name, check in op.settings.items():
        if not check(step.settings[name]):
            raise InvalidModel(f"cannot have {name} = {str(step.settings[name])[:40]!r}")
    if not set(op.required) <= set(step.arrays) <= {*op.required, *op.optional}:
        raise InvalidModel(f"has arrays {sorted(step.arrays)}; it takes {sorted({*op.required, *op.optional})}")
    width = op.width(step, [widths[value] for value in step.inputs])
    if not 1 <= width <= MAX_WIDTH:
        raise InvalidModel(f"returns {width:,} columns; a value has 1 to {MAX_WIDTH:,}")
    return width


# ------------------------------------------------------------------------------------------------------------------- building


@dataclass(frozen=True)
class StepValue:
    """Stands for a matrix [n, width] while a program is built: the number of its step."""

    number: int


class ProgramBuilder:
    """Appends steps and tracks the width of every value."""

    def __init__(self, features: int) -> None:
        self.steps: list[Step] = []
        self._widths = [features]

    def width(self, value: int) -> int:
        return self._widths[value]

    def add(
        self, op: str, inputs: Sequence[int], settings: Settings | None = None, arrays: Mapping[str, Any] | None = None
    ) -> int:
        """Append a step; returns the number of its value."""
        plain = {
            name: value if isinstance(value, Weight) else _detached(value)
            for name, value in (arrays or {}).items()
            if value is not None
        }
        step = Step(op, tuple(inputs), settings or {}, plain)
        self.steps.append(step)
        self._widths.append(OPS[op].width(step, [self._widths[value] for value in inputs]))
        return len(self.steps)

    def linear(self, x: int, weight: Tensor, bias: Tensor | None) -> int:
        return self.add("linear", [x], {"relu": False}, {"weight": Weight.of(weight), "bias": bias})

    def affine(self, x: int, **arrays: Tensor | None) -> int:
        width = self.width(x)
        spread = {name: None if a is None else _detached(a).flatten().expand(width).contiguous() for name, a in arrays.items()}
        return self.add("affine", [x], {"relu": False}, spread)

    def activate(self, x: int, kind: str, slope: float = 0.0) -> int:
        return self.add("activate", [x], {"kind": kind, "slope": float(slope)})

    def sum(self, values: Sequence[int], factors: Sequence[float] | None = None) -> int:
        return self.add("sum", values, {"factors": [float(f) for f in factors or [1.0] * len(values)], "relu": False})


def _detached(value: Any) -> Tensor:
    """A float copy on the CPU: training may continue and write to the model's own tensors."""
    tensor = value.detach().cpu() if isinstance(value, Tensor) else torch.as_tensor(value)
    return (tensor.float() if tensor.is_floating_point() else tensor).contiguous().clone()
