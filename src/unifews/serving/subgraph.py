"""Which rows each step has to make so that some nodes get their result, and the edges into them."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from unifews.kernels import LANES
from unifews.nn.edges import Edges
from unifews.serving.program import GRAPH_OPS, ON_ALL, Program, Step
from unifews.serving.wiring import Wiring, one_way

Nodes = NDArray[np.int64]
_MOST = 0.5  # share of all nodes from which all of them are made


@dataclass(frozen=True, eq=False)
class Reach:
    """The edges into some nodes."""

    senders: Nodes | None
    """The nodes whose rows the edges refer to, receivers first; None = rows are those of all nodes."""
    edges: Edges
    """Numbered by the position of each in the graph's own list."""


@dataclass(eq=False)
class Plan:
    """What to make of every value: rows by value number (None = all), and edges by step number."""

    rows: dict[int, Nodes | None] = field(default_factory=dict)
    reach: dict[int, Reach] = field(default_factory=dict)
    ahead: set[int] = field(default_factory=set)
    """Steps that sum neighbours before the weights that come first in the program: the same to rounding, on fewer rows."""
    work: int = 0
    """Multiply-adds, roughly."""


class Planner:
    """Plans for one program on one graph."""

    def __init__(self, program: Program, wiring: Wiring, *, sparse: bool) -> None:
        """`sparse`: whether the features are a sparse matrix."""
        self._program, self._wiring, self._sparse = program, wiring, sparse
        self._uses = program.uses
        self._widths = program.widths

    def plan(self, nodes: Nodes, known: Container[int] = ()) -> Plan:
        """For these nodes, each named once; `known`: steps whose results are there."""
        # Zeros that nobody touches cost nothing; every user leaves zeros behind.
        place = np.zeros(self._wiring.num_nodes, np.int64)
        plan, wanted = Plan(), _Wanted(self._wiring.num_nodes, place)
        wanted.add(len(self._program.steps), nodes)
        later: list[Nodes | None] = []  # rows of the next step that goes by what an earlier one has left of the edges
        for number in range(len(self._program.steps), 0, -1):
            step = self._program.steps[number - 1]
            if not wanted.has(number):  # its one user looked past it
                continue
            decides = step.op in GRAPH_OPS and not self._wiring.links(number).known and step.settings["inherit"]
            if decides and later:
                wanted.add(number, later[-1])
            rows = plan.rows[number] = wanted.of(number)
            if decides:
                later.append(rows)
            count = self._wiring.num_nodes if rows is None else len(rows)
            plan.work += count * (step.weight.kept if step.op == "linear" else self._widths[number])
            if number in known:
                continue
            if step.op in ON_ALL or rows is None:
                for value in step.inputs:
                    wanted.add(value, None)
            elif step.op not in GRAPH_OPS:
                for value in step.inputs:
                    wanted.add(value, rows)
            else:
                self._look_around(plan, wanted, number, step, rows, place)
        plan.rows[0] = None
        return plan

    def _look_around(self, plan: Plan, wanted: _Wanted, number: int, step: Step, rows: Nodes, place: Nodes) -> None:
        links = self._wiring.links(number)
        edges = self._wiring.sending(number) if step.op == "diffuse" and links.known else links.edges
        if step.op != "diffuse" and step.settings["heads"] > LANES:
            for value in step.inputs:
                wanted.add(value, None)
            return
        value = step.inputs[0]
        count = int((edges.adjacency.end[rows] - edges.adjacency.start[rows]).sum())
        plan.work += count * self._widths[value]
        if links.known and self._sums_first(step, count, rows):
            plan.ahead.add(number)
            value = self._program.steps[value - 1].inputs[0]
            if value == 0:  # all features are there: edges may refer to them as they are
                a = edges.adjacency
                start, end = a.start[rows], a.end[rows]
                part = Edges(one_way(start, end, a.indices), edges.weight, _at(edges.loop, rows), edges.number)
                plan.reach[number] = Reach(None, part)
                return
        reach = plan.reach[number] = _reach(edges, rows, place)
        wanted.add(value, reach.senders)
        for other in step.inputs[1:]:
            wanted.add(other, rows if other != value else reach.senders)

    def _sums_first(self, step: Step, count: int, rows: Nodes) -> bool:
        """Whether T (x Wᵀ) is cheaper as (T x) Wᵀ on these rows, into which so many edges lead."""
        value = step.inputs[0]
        if step.op != "diffuse" or not value or self._uses[value] != 1:
            return False
        made = self._program.steps[value - 1]
        if made.op != "linear" or made.tensor("bias") is not None or made.settings["relu"]:
            return False
        if made.inputs[0] == 0 and self._sparse:
            return False
        weights, inputs = made.weight.kept, made.weight.shape[1]
        columns = step.tensor("columns")
        sent = made.weight.shape[0] if columns is None else int(columns.sum())
        senders = min(count, self._wiring.num_nodes) + len(rows)
        return count * inputs + 2 * len(rows) * weights < senders * weights + count * sent


class _Wanted:
    """Rows of each value that somebody asked for."""

    def __init__(self, num_nodes: int, place: Nodes) -> None:
        self._asked: dict[int, list[Nodes | None]] = {}
        self._num_nodes, self._place = num_nodes, place

    def add(self, value: int, rows: Nodes | None) -> None:
        self._asked.setdefault(value, []).append(rows)

    def has(self, value: int) -> bool:
        return value in self._asked

    def of(self, value: int) -> Nodes | None:
        """All of them, each once, what was asked for first in front; None = all nodes."""
        asked = self._asked[value]
        found = asked[0]
        for more in asked[1:]:
            if found is None or more is None:
                return None
            if more is not found:
                found = np.concatenate([found, _others(more, found, self._place)])
                self._place[found] = 0
        return None if found is None or len(found) > _MOST * self._num_nodes else found


def _others(numbers: Nodes, known: Nodes, place: Nodes) -> Nodes:
    """The distinct numbers that are not among the known ones; leaves traces in `place`, at numbers and known ones."""
    order = np.arange(1, len(numbers) + 1)
    place[numbers] = order  # of equal ones, the last stays
    place[known] = 0
    found: Nodes = numbers[place[numbers] == order]
    place[numbers] = 0
    return found


def _reach(edges: Edges, rows: Nodes, place: Nodes) -> Reach:
    a = edges.adjacency
    start, end = a.start.numpy()[rows], a.end.numpy()[rows]
    count = end - start
    last = count.cumsum()
    at = np.repeat(start - last + count, count) + np.arange(last[-1] if len(last) else 0)
    sending = a.indices.numpy()[at].astype(np.int64)
    senders = np.concatenate([rows, _others(sending, rows, place)])
    place[senders] = np.arange(len(senders))
    local = place[sending].astype(np.int32)
    place[senders] = 0
    positions = torch.from_numpy(at)
    adjacency = one_way(*map(torch.from_numpy, (last - count, last, local)))
    weight = None if edges.weight is None else edges.weight[positions]
    return Reach(senders, Edges(adjacency, weight, _at(edges.loop, rows), positions))


def _at(loop: torch.Tensor | None, rows: Nodes) -> torch.Tensor | None:
    return None if loop is None else loop[torch.from_numpy(rows)]
