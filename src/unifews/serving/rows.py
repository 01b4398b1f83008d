"""The steps that look at one row at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from unifews.serving.program import Step

_KINDS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "relu": lambda x, _: x.relu(),
    "elu": lambda x, slope: functional.elu(x, slope),
    "leaky_relu": lambda x, slope: functional.leaky_relu(x, slope),
    "gelu": lambda x, _: functional.gelu(x),
    "gelu_tanh": lambda x, _: functional.gelu(x, approximate="tanh"),
    "sigmoid": lambda x, _: x.sigmoid(),
    "tanh": lambda x, _: x.tanh(),
    "silu": lambda x, _: functional.silu(x),
    "selu": lambda x, _: functional.selu(x),
    "softplus": lambda x, _: functional.softplus(x),
}


def by_row(step: Step, values: Sequence[Tensor], threads: int, out: Tensor | None = None) -> Tensor:
    """What a step gives for these rows of its values. No value is written to; `out` is room that a step may use."""
    x = values[0]
    if step.op == "linear":
        return step.weight.times(x, step.tensor("bias"), relu=step.settings["relu"], threads=threads, out=out)
    x = x.to_dense() if x.layout != torch.strided else x
    if step.op == "rotate":
        axes = step.tensor("axes")
        assert axes is not None
        return x @ axes
    if step.op == "activate":
        return _KINDS[step.settings["kind"]](x, step.settings["slope"])
    if step.op == "cat":
        return torch.cat([value.to_dense() for value in values], dim=1)
    if step.op == "product":
        return x * values[1].to_dense()
    if step.op == "max":
        for value in values[1:]:
            x = torch.maximum(x, value.to_dense())
        return x
    if step.op == "mean_heads":
        return x.view(len(x), step.settings["heads"], -1).mean(dim=1)
    if step.op == "normalize":
        return functional.normalize(x, p=2.0, dim=-1, eps=step.settings["eps"])
    if step.op == "layer_norm":
        return functional.layer_norm(x, x.shape[1:], step.tensor("scale"), step.tensor("shift"), step.settings["eps"])
    if step.op == "softmax":
        return x.log_softmax(dim=1) if step.settings["log"] else x.softmax(dim=1)
    found = _sum(step, values) if step.op == "sum" else _affine(step, x)
    return found.relu() if step.settings["relu"] else found


def _sum(step: Step, values: Sequence[Tensor]) -> Tensor:
    out: Tensor | None = None
    for value, factor in zip(values, step.settings["factors"], strict=True):
        dense = value.to_dense()
        scaled = dense if factor == 1 or out is not None else dense * factor
        out = scaled if out is None else torch.add(out, scaled, alpha=factor)
    assert out is not None
    return out


def _affine(step: Step, x: Tensor) -> Tensor:
    mean, scale, shift = (step.tensor(name) for name in ("mean", "scale", "shift"))
    x = x if mean is None else x - mean
    if scale is not None:
        return x * scale if shift is None else torch.addcmul(shift, x, scale)
    return x if shift is None else x + shift
