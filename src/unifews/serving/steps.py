"""Steps as they are put together: one after the other, each with the width of what it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unifews.serving.program import OPS, Step
from unifews.serving.weights import Weight


@dataclass(frozen=True)
class Value:
    """What stands for a matrix with a row per node: the number of its step."""

    number: int


class Steps:
    """Steps so far."""

    def __init__(self, features: int) -> None:
        self.steps: list[Step] = []
        self._widths = [features]

    def width(self, value: int) -> int:
        return self._widths[value]

    def add(
        self, op: str, inputs: Sequence[int], settings: dict[str, Any] | None = None, arrays: dict[str, Any] | None = None
    ) -> int:
        """One more step; the number of its value."""
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
    """A copy: training may go on, and writes to what the model holds."""
    tensor = value.detach().cpu() if isinstance(value, Tensor) else torch.as_tensor(value)
    return (tensor.float() if tensor.is_floating_point() else tensor).contiguous().clone()
