"""All rows in an order that keeps what is made of them in the cache: a few thousand go through many steps at a time.

A step that sums neighbours needs all rows of its input, so steps come in levels: what a level makes is written to memory only
where a later one needs it. The sums of a layer's neighbours, on their way to the next layer's weights, are not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from unifews.kernels import LANES
from unifews.nn.edges import Edges
from unifews.serving import messages
from unifews.serving.program import Program, Step
from unifews.serving.sums import Sent
from unifews.serving.weights import sparse_rows

_NARROW = 0.7  # share of columns up to which making the others twice is cheaper than writing them
_FLOATS = 1 << 21  # of the widest value that are made at a time: they stay in the cache
_FEWEST = 256  # rows at a time


@dataclass
class Level:
    """Numbers of the steps that are made together."""

    whole: list[int] = field(default_factory=list)
    """First, each on all rows."""
    parts: list[int] = field(default_factory=list)
    """Then, a few rows at a time."""


def taken_in(program: Program) -> dict[int, int]:
    """Steps that send some columns of a product of the features, and the step of that product: it is made where it is used.

    Only the columns that are sent are ever written to memory, and what a node keeps of the others is made again, a few rows
    at a time.
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
    """The steps by level; `whole`: those that take all rows at once; `inside`: as `taken_in` gives it."""
    steps, widths = program.steps, program.widths
    level = [0] * (len(steps) + 1)
    for number, step in enumerate(steps, start=1):
        before = max(level[value] for value in step.inputs)
        level[number] = before + ((step.op == "diffuse" and number not in inside) or number in whole)
    for number in range(len(steps), 0, -1):
        step = steps[number - 1]
        if step.op == "linear" and widths[number] > widths[step.inputs[0]]:  # what widens is made late
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
    """For each level, the values of its parts that something outside of them needs."""
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
    return max(_FEWEST, _FLOATS // max(widest, 1))


def part_of(x: Tensor, first: int, last: int) -> Tensor:
    """Rows of a dense or a sparse matrix."""
    if x.layout == torch.strided:
        return x[first:last]
    bounds = x.crow_indices()
    begin, end = int(bounds[first]), int(bounds[last])
    return sparse_rows(
        bounds[first : last + 1] - begin, x.col_indices()[begin:end], x.values()[begin:end], (last - first, x.shape[1])
    )


class Sum:
    """A `diffuse` step whose edges are known, ready for a few rows at a time."""

    def __init__(self, step: Step, y: Tensor, edges: Edges, threads: int) -> None:
        self._step, self._edges, self._threads = step, edges, threads
        self._y = y.contiguous()
        self._sent = Sent.of(self._y, messages.columns_of(step), threads)

    def rows(self, first: int, last: int, out: Tensor | None = None) -> Tensor:
        """The step's result for these rows."""
        y = self._own(first, last)
        out = torch.empty_like(y) if out is None else out
        self._sent.diffuse(self._edges, slice(first, last), y, out, self._threads)
        return messages.finished(self._step, out)

    def _own(self, first: int, last: int) -> Tensor:
        return self._y[first:last]


class SumOfProduct(Sum):
    """The same of a product x Wᵀ of which only the columns that are sent are there as a whole."""

    def __init__(self, step: Step, made: Step, x: Tensor, edges: Edges, threads: int) -> None:
        self._step, self._made, self._x, self._edges, self._threads = step, made, x, edges, threads
        columns = messages.columns_of(step)
        assert columns is not None
        blocks = -(-len(columns) // LANES)
        width, bias = blocks * LANES, made.tensor("bias")
        if bias is not None:
            bias = torch.nn.functional.pad(bias[columns], (0, width - len(columns)))
        table = made.weight.rows(columns.numpy(), width).times(x, bias, relu=False, threads=threads).contiguous()
        self._sent = Sent(table, columns.numpy(), blocks)

    def _own(self, first: int, last: int) -> Tensor:
        if self._edges.loop is None:  # nobody reads it
            return torch.empty(last - first, self._made.weight.shape[0])
        x = part_of(self._x, first, last)
        return self._made.weight.times(x, self._made.tensor("bias"), relu=False, threads=self._threads)
