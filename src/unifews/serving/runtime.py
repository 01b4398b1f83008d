"""Running a program on a graph: for all nodes, or for some nodes and the neighbourhood they depend on."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unifews.core.graph import Graph
from unifews.core.schemes import scheme_from_plain
from unifews.kernels import limit_threads, threads_to_use
from unifews.serving.graph_steps import (
    ProgramEdges,
    StepEdges,
    add_bias_and_relu,
    columns_of,
    only,
    renormalized,
    sum_neighbours,
)
from unifews.serving.products import gather, in_blocks, sparse_rows
from unifews.serving.program import ALL_NODE_OPS, GRAPH_OPS, Layer, Program, Step
from unifews.serving.rows import (
    StreamedSum,
    StreamedSumOfLinear,
    by_row,
    fused_linears,
    levels,
    needed_later,
    part_of,
    rows_at_a_time,
)
from unifews.serving.subgraph import Nodes, SubgraphPlan, upstream

_ONE_THREAD = 1 << 24  # multiply-adds up to which starting other threads takes longer than it saves


@dataclass(frozen=True, eq=False)
class ValueRows:
    """Rows of one value; `rows`: their nodes, None = all nodes."""

    x: Tensor
    rows: Nodes | None

    def at(self, wanted: Nodes | None) -> Tensor:
        """The rows of these nodes, in this order."""
        if wanted is None or self.rows is wanted:
            assert wanted is not None or self.rows is None
            return self.x
        if self.rows is None:
            return _rows_of(self.x, wanted)
        if len(self.rows) >= len(wanted) and np.array_equal(self.rows[: len(wanted)], wanted):
            return self.x[: len(wanted)]
        order = np.argsort(self.rows)
        return self.x[torch.from_numpy(order[np.searchsorted(self.rows, wanted, sorter=order)])]


class BoundGraph:
    """Features and edges that a program runs on, with the results that are computed once per graph."""

    def __init__(self, x: Tensor, edges: ProgramEdges) -> None:
        self.x, self.edges = x, edges
        self.known: dict[int, Tensor] = {}
        """Results of steps for all nodes, by step number: those in `ALL_NODE_OPS`, and hidden layers that `predict` reads."""
        self.work = 0
        """Estimated multiply-adds of the calls of `predict` since x was last written to."""
        self._version = self._current

    @property
    def _current(self) -> int:
        """Version of x, which increases when torch writes to it."""
        return 0 if self.x.is_inference() else self.x._version

    def refresh(self) -> None:
        """Discard what was computed from earlier values of x."""
        if self._version != self._current:
            self._version, self.work = self._current, 0
            self.known.clear()
            self.__dict__.pop("table", None)

    @cached_property
    def table(self) -> Tensor:
        """The features in whole blocks, as the kernels need them."""
        return in_blocks(self.x)


class ProgramRun:
    """One forward pass of a program."""

    def __init__(self, program: Program, bound: BoundGraph, threads: int | None) -> None:
        self._program, self._bound, self._threads = program, bound, threads_to_use(threads)
        self._edges = bound.edges
        self._kept_edges: Tensor | None = None
        """bool [m]: the edges kept by the last step that compares with a threshold, for steps that inherit them; None = all."""

    @torch.no_grad()
    def all(self) -> Tensor:
        """The result for every node."""
        if any(not self._edges.of_step(n).known for n, s in enumerate(self._program.steps, start=1) if s.op in GRAPH_OPS):
            return self._in_order(SubgraphPlan())  # edges kept by one step are those of the next, so steps run in order
        with using_threads(self._threads):
            return self._stream()

    def _stream(self) -> Tensor:
        program, n = self._program, len(self._bound.x)
        alone = {number for number, step in enumerate(program.steps, start=1) if step.op in ("gat", "gatv2", *ALL_NODE_OPS)}
        values: dict[int, ValueRows] = {0: ValueRows(self._bound.x, None)}
        inside = fused_linears(program)
        order = levels(program, alone, inside)
        for at, (level, read_later) in enumerate(zip(order, needed_later(program, order), strict=True)):
            single = len(level.parts) == 1 and level.parts[0] not in inside
            for number in level.whole + level.parts if single else level.whole:
                values[number] = ValueRows(self._step(number, program.steps[number - 1], values, None, SubgraphPlan()), None)
            if level.parts and not single:
                self._by_parts(level.parts, read_later, values, n, inside)
            to_come = [number for after in order[at + 1 :] for number in after.whole + after.parts]
            later = {value for number in to_come for value in program.steps[number - 1].inputs}
            for value in list(values):
                if value not in later and value != len(program.steps):
                    del values[value]
        return values[len(program.steps)].x

    def _by_parts(
        self, numbers: list[int], read_later: set[int], values: dict[int, ValueRows], n: int, inside: dict[int, int]
    ) -> None:
        """Compute the steps of one level, some rows at a time; values that are read later are stored."""
        program, widths = self._program, self._program.widths
        sums: dict[int, StreamedSum] = {}
        for number in numbers:
            step = program.steps[number - 1]
            if number in inside:
                edges, product = self._edges.of_step(number).sending, program.steps[inside[number] - 1]
                sums[number] = StreamedSumOfLinear(step, product, values[0].x, edges)
            elif step.op == "diffuse":
                y = _dense(values[step.inputs[0]].x)
                sums[number] = StreamedSum(step, y, self._edges.of_step(number).sending)
        out = {number: torch.empty(n, widths[number]) for number in read_later}
        size = rows_at_a_time(max(widths[number] for number in numbers))
        for first in range(0, n, size):
            last = min(first + size, n)
            made: dict[int, Tensor] = {}
            for number in numbers:
                step, buffer = program.steps[number - 1], out[number][first:last] if number in out else None
                if number in sums:
                    made[number] = sums[number].rows(first, last, buffer)
                else:
                    given = [made[v] if v in made else part_of(values[v].x, first, last) for v in step.inputs]
                    made[number] = by_row(step, given, out=buffer)
                if buffer is not None and made[number].data_ptr() != buffer.data_ptr():
                    buffer.copy_(made[number])
        values.update({number: ValueRows(tensor, None) for number, tensor in out.items()})

    @torch.no_grad()
    def some(self, plan: SubgraphPlan, nodes: Nodes) -> Tensor:
        """The result for the nodes of the plan."""
        if plan.work < _ONE_THREAD:
            self._threads = 1
        return self._in_order(plan, nodes)

    @torch.no_grad()
    def store_hidden(self, numbers: Collection[int]) -> None:
        """Compute these steps for all nodes and store their results in the bound graph."""
        program, known = self._program, self._bound.known
        needed = upstream(program, numbers)
        with using_threads(self._threads):
            values: dict[int, ValueRows] = {0: ValueRows(self._bound.x, None)}
            for number in sorted(needed):
                step = program.steps[number - 1]
                values[number] = ValueRows(self._step(number, step, values, None, SubgraphPlan()), None)
                later = {value for other in needed if other > number for value in program.steps[other - 1].inputs}
                values = {value: rows for value, rows in values.items() if not value or value in later or value in numbers}
            known.update({number: _dense(values[number].x) for number in numbers})

    def _in_order(self, plan: SubgraphPlan, nodes: Nodes | None = None) -> Tensor:
        with using_threads(self._threads):
            values: dict[int, ValueRows] = {0: ValueRows(self._bound.x, None)}
            left = self._program.uses
            for number, step in enumerate(self._program.steps, start=1):
                if nodes is not None and number not in plan.rows:
                    continue
                rows = plan.rows.get(number)
                values[number] = ValueRows(self._step(number, step, values, rows, plan), rows)
                for value in step.inputs:
                    left[value] -= 1
                    if value and not left[value]:
                        values.pop(value, None)
            return values[len(self._program.steps)].at(nodes)

    def _step(self, number: int, step: Step, values: dict[int, ValueRows], rows: Nodes | None, plan: SubgraphPlan) -> Tensor:
        known = self._bound.known
        if step.op in ALL_NODE_OPS or number in known:
            if number not in known:
                given = [values[value].at(None) for value in step.inputs]
                known[number] = self._layer(step, given) if step.op == "layer" else self._propagated(step, given[0])
            return _rows_of(known[number], rows)
        if step.op not in GRAPH_OPS:
            return by_row(step, [values[value].at(rows) for value in step.inputs])
        if number in plan.sums_before_weights:
            return self._sum_before_weights(number, step, values, plan)
        step_edges = self._edges.of_step(number)
        if rows is None or number not in plan.edges_into:
            out = self._graph_step(step, [_dense(values[value].at(None)) for value in step.inputs], step_edges)
            return _rows_of(out, rows)
        return self._graph_step_on(number, step, values, rows, plan, step_edges)

    def _layer(self, step: Step, given: list[Tensor]) -> Tensor:
        layer: Layer = step.settings["layer"]
        return layer.run([_dense(value) for value in given], self._edges.edge_index, self._edges.edge_weight)

    def _propagated(self, step: Step, x: Tensor) -> Tensor:
        from unifews.nn.decoupled import dense_rows  # imported here: only decoupled models need propagation
        from unifews.propagation import propagate

        edges, how = self._edges, dict(step.settings["how"])
        graph = edges.graph
        if graph is None:
            graph = Graph.from_edge_index(edges.edge_index, num_nodes=edges.num_nodes, edge_weight=edges.edge_weight)
        features: Any = x
        if x.layout != torch.strided:
            from scipy.sparse import csr_array

            features = csr_array((x.values().numpy(), x.col_indices().numpy(), x.crow_indices().numpy()), shape=tuple(x.shape))
        out = propagate(graph, features, **{**how, "scheme": scheme_from_plain(how["scheme"])}, threads=self._threads)
        rows = dense_rows(out.embedding)
        exponent = step.settings["exponent"]
        return rows if out.exponent == exponent else rows * math.ldexp(1.0, out.exponent - exponent)

    # -------------------------------------------------------------------------------------------------------- neighbours

    def _graph_step(self, step: Step, given: list[Tensor], step_edges: StepEdges) -> Tensor:
        """A step that sums over neighbours, on all nodes."""
        if step_edges.known:
            edges = step_edges.sending if step.op == "diffuse" else step_edges.edges
            return sum_neighbours(step, given, edges, step_edges.keep, known=True)[0]
        inherited = self._kept_edges if step.settings["inherit"] else None
        edges = step_edges.edges if inherited is None else only(step_edges.edges, inherited)
        out, used = sum_neighbours(step, given, edges, None, known=False)
        assert used is not None
        self._kept_edges = used if inherited is None else inherited.masked_scatter(inherited, used)
        return out

    def _graph_step_on(
        self, number: int, step: Step, values: dict[int, ValueRows], rows: Nodes, plan: SubgraphPlan, step_edges: StepEdges
    ) -> Tensor:
        """The same on the rows of these nodes."""
        edges_into = plan.edges_into[number]
        sent, *others = step.inputs
        given = [_dense(values[sent].at(edges_into.senders)), *(_dense(values[value].at(rows)) for value in others)]
        edges = edges_into.edges
        if step_edges.known:
            keep = None if step_edges.keep is None or step.op == "diffuse" else step_edges.keep[edges.number]
            return sum_neighbours(step, given, edges, keep, known=True)[0]
        if step.settings["inherit"] and self._kept_edges is not None:
            edges = only(edges, self._kept_edges[edges.number])
        out, used = sum_neighbours(step, given, edges, None, known=False)
        assert used is not None
        self._kept_edges = torch.zeros(step_edges.edges.count, dtype=torch.bool)
        self._kept_edges[edges.number[used]] = True
        return out

    def _sum_before_weights(self, number: int, step: Step, values: dict[int, ValueRows], plan: SubgraphPlan) -> Tensor:
        """(T x) Wᵀ for T (x Wᵀ) in the columns that are sent; the others are loop·(x Wᵀ)."""
        made = self._program.steps[step.inputs[0] - 1]
        edges_into, source = plan.edges_into[number], values[made.inputs[0]]
        rows = plan.rows[number]
        edges, columns = edges_into.edges, columns_of(step)
        if edges_into.senders is None:
            around = gather(self._bound.table, edges.adjacency, edges.weight)[:, : source.x.shape[1]]
            own = source.at(rows)
        else:
            given = source.at(edges_into.senders)
            around, own = gather(given, edges.adjacency, edges.weight), given[: edges.adjacency.num_nodes]
        loop = edges.loop
        if columns is None or len(columns) == made.weight.shape[0]:
            total = around if loop is None else torch.addcmul(around, loop[:, None], own)
            return add_bias_and_relu(step, made.weight.times(total.contiguous(), None, relu=False))
        if loop is None:
            out = torch.zeros(len(around), made.weight.shape[0])
        else:
            y = made.weight.times(own.contiguous(), None, relu=False)
            out = renormalized(step, y * loop[:, None], y, edges)
        if len(columns):
            out[:, columns] += made.weight.rows(columns.numpy()).times(around.contiguous(), None, relu=False)
        return add_bias_and_relu(step, out)


def _dense(x: Tensor) -> Tensor:
    return x.to_dense() if x.layout != torch.strided else x


def _rows_of(x: Tensor, rows: Nodes | None) -> Tensor:
    if rows is None:
        return x
    at = torch.from_numpy(rows)
    if x.layout == torch.strided:
        return x[at]
    start, end = x.crow_indices()[:-1][at].numpy(), x.crow_indices()[1:][at].numpy()
    count = end - start
    bounds = np.concatenate([[0], count.cumsum()])
    where = torch.from_numpy(np.repeat(start - bounds[:-1], count) + np.arange(bounds[-1]))
    return sparse_rows(torch.from_numpy(bounds), x.col_indices()[where], x.values()[where], (len(rows), x.shape[1]))


@contextmanager
def using_threads(threads: int) -> Iterator[None]:
    """Limit torch and the kernels to this many threads inside the context."""
    before = torch.get_num_threads()
    if before != threads:
        torch.set_num_threads(threads)
    try:
        with limit_threads(threads):
            yield
    finally:
        if before != threads:
            torch.set_num_threads(before)
