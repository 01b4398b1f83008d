"""The computation of some nodes: which rows each step has to compute for them, and the edges into those rows."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from unifews.kernels import LANES
from unifews.nn.edges import LayerEdges
from unifews.serving.graph_steps import ProgramEdges
from unifews.serving.products import forward_adjacency
from unifews.serving.program import ALL_NODE_OPS, GRAPH_OPS, Program, Step

Nodes = NDArray[np.int64]
_ALL_NODES_FROM = 0.5  # fraction of the nodes from which all rows are computed


@dataclass(frozen=True, eq=False)
class SubgraphEdges:
    """The edges into some nodes."""

    senders: Nodes | None
    """The nodes whose rows the edges refer to, receivers first; None = all nodes."""
    edges: LayerEdges
    """`number`: the position of each edge in the graph's own list."""


@dataclass(eq=False)
class SubgraphPlan:
    """What to compute: rows by value number (None = all), and edges by step number."""

    rows: dict[int, Nodes | None] = field(default_factory=dict)
    edges_into: dict[int, SubgraphEdges] = field(default_factory=dict)
    sums_before_weights: set[int] = field(default_factory=set)
    """Steps computed as (T x) Wᵀ instead of T (x Wᵀ): equal up to rounding, with fewer rows."""
    work: int = 0
    """Estimated multiply-adds."""


class SubgraphPlanner:
    """Plans for one program on one graph."""

    def __init__(self, program: Program, edges: ProgramEdges, *, sparse: bool) -> None:
        """`sparse`: whether the features are a sparse matrix."""
        self._program, self._edges, self._sparse = program, edges, sparse
        self._uses = program.uses
        self.whole = 0
        """Estimated multiply-adds for all nodes."""
        self._widths = program.widths
        for number, step in enumerate(program.steps, start=1):
            rows = edges.num_nodes
            if step.op in GRAPH_OPS:
                rows += edges.of_step(number).edges.count
            self.whole += rows * (step.weight.kept if step.op == "linear" else self._widths[number])

    def plan(self, nodes: Nodes, known: Container[int] = ()) -> SubgraphPlan:
        """For these distinct nodes; `known`: steps whose results are already computed."""
        # Zeros that are never touched cost nothing; every function resets what it writes to zero.
        place = np.zeros(self._edges.num_nodes, np.int64)
        plan, requested = SubgraphPlan(), _RequestedRows(self._edges.num_nodes, place)
        requested.add(len(self._program.steps), nodes)
        later: list[Nodes | None] = []  # rows of later steps that inherit the edges kept by an earlier one
        for number in range(len(self._program.steps), 0, -1):
            step = self._program.steps[number - 1]
            if not requested.has(number):  # its only reader was computed without it
                continue
            decides = step.op in GRAPH_OPS and not self._edges.of_step(number).known and step.settings["inherit"]
            if decides and later:
                requested.add(number, later[-1])
            rows = plan.rows[number] = requested.of(number)
            if decides:
                later.append(rows)
            count = self._edges.num_nodes if rows is None else len(rows)
            if number in known:
                continue
            plan.work += count * (step.weight.kept if step.op == "linear" else self._widths[number])
            if step.op in ALL_NODE_OPS or rows is None:
                for value in step.inputs:
                    requested.add(value, None)
            elif step.op not in GRAPH_OPS:
                for value in step.inputs:
                    requested.add(value, rows)
            else:
                self._add_neighbours(plan, requested, number, step, rows, place)
        plan.rows[0] = None
        return plan

    def _add_neighbours(
        self, plan: SubgraphPlan, requested: _RequestedRows, number: int, step: Step, rows: Nodes, place: Nodes
    ) -> None:
        step_edges = self._edges.of_step(number)
        edges = step_edges.sending if step.op == "diffuse" and step_edges.known else step_edges.edges
        if step.op != "diffuse" and step.settings["heads"] > LANES:
            for value in step.inputs:
                requested.add(value, None)
            return
        value = step.inputs[0]
        count = int((edges.adjacency.end[rows] - edges.adjacency.start[rows]).sum())
        plan.work += count * self._widths[value]
        if step_edges.known and self._is_cheaper_before_weights(step, count, rows):
            plan.sums_before_weights.add(number)
            value = self._program.steps[value - 1].inputs[0]
            if value == 0:  # all features are in memory: edges refer to them directly
                a = edges.adjacency
                start, end = a.start[rows], a.end[rows]
                part = LayerEdges(
                    forward_adjacency(start, end, a.indices), edges.weight, _loops_of(edges.loop, rows), edges.number
                )
                plan.edges_into[number] = SubgraphEdges(None, part)
                return
        edges_into = plan.edges_into[number] = _edges_into(edges, rows, place)
        requested.add(value, edges_into.senders)
        for other in step.inputs[1:]:
            requested.add(other, rows if other != value else edges_into.senders)

    def _is_cheaper_before_weights(self, step: Step, count: int, rows: Nodes) -> bool:
        """Whether T (x Wᵀ) is cheaper as (T x) Wᵀ on these rows, which have `count` incoming edges."""
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
        senders = min(count, self._edges.num_nodes) + len(rows)
        return count * inputs + 2 * len(rows) * weights < senders * weights + count * sent


def upstream(program: Program, numbers: Iterable[int]) -> set[int]:
    """These steps and all that they depend on."""
    found: set[int] = set()
    waiting = [number for number in numbers if number]
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting += [value for value in program.steps[number - 1].inputs if value]
    return found


def hidden_layers(program: Program, edges: ProgramEdges) -> frozenset[int]:
    """The steps whose results the last layer reads, and that depend on neighbours themselves; none if there is one layer.

    With them stored for all nodes, some nodes cost one neighbourhood. Not where a layer inherits the edges that magnitudes of
    another one keep.
    """
    steps = program.steps
    sums = {number for number, step in enumerate(steps, start=1) if step.op in GRAPH_OPS}
    if not sums or any(step.op in ALL_NODE_OPS for step in steps) or not all(edges.of_step(n).known for n in sums):
        return frozenset()
    feeds: set[int] = set()  # values that some sum over neighbours depends on
    for number in sums:
        feeds |= upstream(program, steps[number - 1].inputs)
    last = [number for number in range(1, len(steps) + 1) if number not in feeds]
    read = {value for number in last for value in steps[number - 1].inputs if value in feeds}
    return frozenset(value for value in read if upstream(program, [value]) & sums)


class _RequestedRows:
    """The rows of each value that other steps need."""

    def __init__(self, num_nodes: int, place: Nodes) -> None:
        self._requests: dict[int, list[Nodes | None]] = {}
        self._num_nodes, self._place = num_nodes, place

    def add(self, value: int, rows: Nodes | None) -> None:
        self._requests.setdefault(value, []).append(rows)

    def has(self, value: int) -> bool:
        return value in self._requests

    def of(self, value: int) -> Nodes | None:
        """All of them without duplicates, those of the first request first; None = all nodes."""
        requests = self._requests[value]
        found = requests[0]
        for more in requests[1:]:
            if found is None or more is None:
                return None
            if more is not found:
                found = np.concatenate([found, _not_among(more, found, self._place)])
                self._place[found] = 0
        return None if found is None or len(found) > _ALL_NODES_FROM * self._num_nodes else found


def _not_among(numbers: Nodes, known: Nodes, place: Nodes) -> Nodes:
    """The distinct numbers that are not among the known ones; overwrites `place` at both."""
    order = np.arange(1, len(numbers) + 1)
    place[numbers] = order  # of equal numbers, the last one wins
    place[known] = 0
    found: Nodes = numbers[place[numbers] == order]
    place[numbers] = 0
    return found


def _edges_into(edges: LayerEdges, rows: Nodes, place: Nodes) -> SubgraphEdges:
    a = edges.adjacency
    start, end = a.start.numpy()[rows], a.end.numpy()[rows]
    count = end - start
    last = count.cumsum()
    at = np.repeat(start - last + count, count) + np.arange(last[-1] if len(last) else 0)
    sending = a.indices.numpy()[at].astype(np.int64)
    senders = np.concatenate([rows, _not_among(sending, rows, place)])
    place[senders] = np.arange(len(senders))
    local = place[sending].astype(np.int32)
    place[senders] = 0
    positions = torch.from_numpy(at)
    adjacency = forward_adjacency(*map(torch.from_numpy, (last - count, last, local)))
    weight = None if edges.weight is None else edges.weight[positions]
    return SubgraphEdges(senders, LayerEdges(adjacency, weight, _loops_of(edges.loop, rows), positions))


def _loops_of(loop: torch.Tensor | None, rows: Nodes) -> torch.Tensor | None:
    return None if loop is None else loop[torch.from_numpy(rows)]
