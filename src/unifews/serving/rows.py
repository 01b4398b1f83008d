"""Steps that compute each row on its own, and the order of all steps that keeps intermediate rows in the cache.

A few thousand rows pass through many steps at a time. A step that sums over neighbours needs all rows of its input, so steps
are grouped in levels: the result of a level is written to memory only where a later level reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from unifews.kernels import LANES
from unifews.nn.edges import LayerEdges
from unifews.serving import graph_steps
from unifews.serving.products import SentColumns, sparse_rows
from unifews.serving.program import Program, Step


def _activate(kind: str, x: Tensor, slope: float) -> Tensor:
    """An activation of `program.ACTIVATIONS`, by its name in torch.nn.functional."""
    if kind == "gelu_tanh":
        return functional.gelu(x, approximate="tanh")
    function: Callable[..., Tensor] = getattr(functional, kind)
    return function(x, slope) if kind in ("elu", "leaky_relu") else function(x)


def by_row(step: Step, values: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
    """The result of a step for these rows of its inputs, which are not modified; `out` is a buffer that a step may use."""
    x = values[0]
    if step.op == "linear":
        return step.weight.times(x, step.tensor("bias"), relu=step.settings["relu"], out=out)
    x = x.to_dense() if x.layout != torch.strided else x
    if step.op == "rotate":
        axes = step.tensor("axes")
        assert axes is not None
        return x @ axes
    if step.op == "activate":
        return _activate(step.settings["kind"], x, step.settings["slope"])
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


# ------------------------------------------------------------------------------------------------------------------ streaming


_NARROW = 0.7  # fraction of columns sent up to which computing the others twice is cheaper than writing them
_FLOATS = 1 << 21  # floats of the widest value computed at a time, which fit into the cache
_MIN_ROWS = 256  # at a time


@dataclass
class Level:
    """Numbers of the steps that are computed together."""

    whole: list[int] = field(default_factory=list)
    """First these, each on all rows."""
    parts: list[int] = field(default_factory=list)
    """Then these, some rows at a time."""


def fused_linears(program: Program) -> dict[int, int]:
    """`diffuse` steps that send some columns of a linear step of the features → that linear step, which is fused into them.

    Only the columns that are sent are written to memory; the self-loop part of the others is recomputed, some rows at a time.
    """
    found, uses = {}, program.uses
    for number, step in enumerate(program.steps, start=1):
        if step.op == "diffuse" and step.settings["form"] == "columns" and step.inputs[0]:
            made, columns = program.steps[step.inputs[0] - 1], step.tensor("columns")
            plain = made.op == "linear" and made.inputs == (0,) and not made.settings["relu"] and uses[step.inputs[0]] == 1
            if plain and columns is not None and 0 < int(columns.sum()) <= _NARROW * len(columns):
                found[number] = step.inputs[0]
    return found


def levels(program: Program, whole: set[int], inside: dict[int, int]) -> list[Level]:
    """The steps by level; `whole`: those that need all rows at once; `inside`: the result of `fused_linears`."""
    steps, widths = program.steps, program.widths
    level = [0] * (len(steps) + 1)
    for number, step in enumerate(steps, start=1):
        before = max(level[value] for value in step.inputs)
        level[number] = before + ((step.op == "diffuse" and number not in inside) or number in whole)
    for number in range(len(steps), 0, -1):
        step = steps[number - 1]
        if step.op == "linear" and widths[number] > widths[step.inputs[0]]:  # a widening step is computed as late as possible
            used = [(level[n] - (s.op == "diffuse" or n in whole)) for n, s in enumerate(steps, start=1) if number in s.inputs]
            level[number] = min(used, default=level[number])
    found = [Level() for _ in range(max(level) + 1)]
    for number in range(1, len(steps) + 1):
        if number in inside.values():
            continue
        here = found[level[number]]
        (here.whole if number in whole else here.parts).append(number)
    return found


def needed_later(program: Program, order: list[Level]) -> list[set[int]]:
    """For each level, the values of its parts that are read outside of them."""
    found = []
    for level in order:
        inside = set(level.parts)
        users = [
            (value, number) for number, step in enumerate(program.steps, start=1) for value in step.inputs if value in inside
        ]
        last = len(program.steps)
        found.append({value for value, number in users if number not in inside} | ({last} & inside))
    return found


def rows_at_a_time(widest: int) -> int:
    return max(_MIN_ROWS, _FLOATS // max(widest, 1))


def part_of(x: Tensor, first: int, last: int) -> Tensor:
    """Rows of a dense or a sparse matrix."""
    if x.layout == torch.strided:
        return x[first:last]
    bounds = x.crow_indices()
    begin, end = int(bounds[first]), int(bounds[last])
    return sparse_rows(
        bounds[first : last + 1] - begin, x.col_indices()[begin:end], x.values()[begin:end], (last - first, x.shape[1])
    )


class StreamedSum:
    """A `diffuse` step whose edges are known, computed some rows at a time."""

    def __init__(self, step: Step, y: Tensor, edges: LayerEdges) -> None:
        self._step, self._edges = step, edges
        self._y, self._rest = y.contiguous(), graph_steps.rest_of(step, edges)
        self._sent = SentColumns.of(self._y, graph_steps.columns_of(step))

    def rows(self, first: int, last: int, out: Tensor | None = None) -> Tensor:
        """The step's result for these rows."""
        y = self._own(first, last)
        out = torch.empty_like(y) if out is None else out
        self._sent.diffuse(self._edges, slice(first, last), y, out, self._rest)
        return graph_steps.add_bias_and_relu(self._step, out)

    def _own(self, first: int, last: int) -> Tensor:
        return self._y[first:last]


class StreamedSumOfLinear(StreamedSum):
    """The same of a fused product x Wᵀ, of which only the columns that are sent are in memory for all rows."""

    def __init__(self, step: Step, made: Step, x: Tensor, edges: LayerEdges) -> None:
        self._step, self._made, self._x, self._edges = step, made, x, edges
        columns, self._rest = graph_steps.columns_of(step), graph_steps.rest_of(step, edges)
        assert columns is not None
        blocks = -(-len(columns) // LANES)
        width, bias = blocks * LANES, made.tensor("bias")
        if bias is not None:
            bias = torch.nn.functional.pad(bias[columns], (0, width - len(columns)))
        table = made.weight.rows(columns.numpy(), width).times(x, bias, relu=False).contiguous()
        self._sent = SentColumns(table, columns.numpy(), blocks)

    def _own(self, first: int, last: int) -> Tensor:
        if self._edges.loop is None:  # never read
            return torch.empty(last - first, self._made.weight.shape[0])
        x = part_of(self._x, first, last)
        return self._made.weight.times(x, self._made.tensor("bias"), relu=False)
