"""All rows in an order that keeps what is made of them in the cache: a few thousand go through many steps at a time.

A step that sums neighbours needs all rows of its input, so steps come in levels: what a level makes is written to memory only
where a later one needs it. The sums of a layer's neighbours, on their way to the next layer's weights, are not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from unifews.kernels import LANES, native
from unifews.nn.edges import Edges
from unifews.nn.frozen import messages
from unifews.nn.frozen.program import Program, Step
from unifews.nn.frozen.weights import sparse_rows

_FLOATS = 1 << 21  # of the widest value that are made at a time: they stay in the cache


@dataclass
class Level:
    """Numbers of the steps that are made together."""

    whole: list[int] = field(default_factory=list)
    """First, each on all rows."""
    parts: list[int] = field(default_factory=list)
    """Then, a few rows at a time."""


def levels(program: Program, whole: set[int]) -> list[Level]:
    """The steps by level; `whole`: those that take all rows at once."""
    steps, widths = program.steps, program.widths
    level = [0] * (len(steps) + 1)
    for number, step in enumerate(steps, start=1):
        before = max(level[value] for value in step.inputs)
        level[number] = before + (step.op == "diffuse" or number in whole)
    for number in range(len(steps), 0, -1):
        step = steps[number - 1]
        if step.op == "linear" and widths[number] > widths[step.inputs[0]]:  # what widens is made late
            used = [(level[n] - (s.op == "diffuse" or n in whole)) for n, s in enumerate(steps, start=1) if number in s.inputs]
            level[number] = min(used, default=level[number])
    found = [Level() for _ in range(max(level) + 1)]
    for number in range(1, len(steps) + 1):
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
        ]  # fmt: skip
        last = len(program.steps)
        found.append({value for value, number in users if number not in inside} | ({last} & inside))
    return found


def rows_at_a_time(widest: int) -> int:
    return max(256, _FLOATS // max(widest, 1))


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
        self._step, self._y, self._edges, self._threads = step, y.contiguous(), edges, threads
        columns = messages.columns_of(step)
        self._columns = None if columns is None or len(columns) == y.shape[1] else columns.numpy()
        count = y.shape[1] if self._columns is None else len(self._columns)
        self._blocks = max(1, -(-count // LANES))
        self._table = self._y
        if self._columns is not None or y.shape[1] != self._blocks * LANES or self._y.data_ptr() % 64:
            self._table = y.new_empty(len(y), self._blocks * LANES)
            native.pick_columns(self._y.numpy(), self._columns, self._blocks, self._table.numpy(), threads)

    def rows(self, first: int, last: int, out: Tensor | None = None) -> Tensor:
        """The step's result for these rows."""
        a, here = self._edges.adjacency, slice(first, last)
        weight, loop = self._edges.weight, self._edges.loop
        y = self._y[here]
        out = torch.empty_like(y) if out is None else out
        native.diffuse(
            start=a.start[here].numpy(), end=a.end[here].numpy(), indices=a.indices.numpy(),
            weight=None if weight is None else weight.numpy(), blocks=self._blocks, columns=self._columns,
            table=self._table.numpy(), y=y.numpy(), loop=None if loop is None else loop[here].numpy(), out=out.numpy(),
            threads=self._threads,
        )  # fmt: skip
        return messages.finished(self._step, out)
