"""A program on a graph: for all nodes, or for some of them and whoever they need."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unifews.core.graph import Graph
from unifews.kernels import limit_threads, threads_to_use
from unifews.serving import messages, stream
from unifews.serving.layer import Layer
from unifews.serving.program import GRAPH_OPS, ON_ALL, Program, Step
from unifews.serving.rows import by_row
from unifews.serving.schemes import scheme_of
from unifews.serving.subgraph import Nodes, Plan
from unifews.serving.sums import gather, in_blocks
from unifews.serving.weights import sparse_rows
from unifews.serving.wiring import Links, Wiring, only

_ALONE = 1 << 24  # multiply-adds up to which waking other threads takes longer than they save


@dataclass(frozen=True, eq=False)
class Value:
    """Rows of one value; `rows` None = of all nodes."""

    x: Tensor
    rows: Nodes | None

    def at(self, wanted: Nodes | None) -> Tensor:
        """These rows of it, in this order."""
        if wanted is None or self.rows is wanted:
            assert wanted is not None or self.rows is None
            return self.x
        if self.rows is None:
            return _rows_of(self.x, wanted)
        if len(self.rows) >= len(wanted) and np.array_equal(self.rows[: len(wanted)], wanted):
            return self.x[: len(wanted)]
        order = np.argsort(self.rows)
        return self.x[torch.from_numpy(order[np.searchsorted(self.rows, wanted, sorter=order)])]


class Ground:
    """What a program runs on: features and edges, and what of the results depends on nothing else."""

    def __init__(self, x: Tensor, wiring: Wiring) -> None:
        self.x, self.wiring = x, wiring
        self.known: dict[int, Tensor] = {}
        """Results of steps that are made of all nodes, by step number."""

    @cached_property
    def table(self) -> Tensor:
        """The features as the kernels want them."""
        return in_blocks(self.x)


class Run:
    """One pass."""

    def __init__(self, program: Program, ground: Ground, threads: int | None) -> None:
        self._program, self._ground, self._threads = program, ground, threads_to_use(threads)
        self._wiring = ground.wiring
        self._alive: Tensor | None = None
        """Flags of the edges that a step which decides has left to the next; None = all."""

    @torch.no_grad()
    def all(self) -> Tensor:
        """The result of every node."""
        if any(not self._wiring.links(n).known for n, s in enumerate(self._program.steps, start=1) if s.op in GRAPH_OPS):
            return self._go(Plan())  # what one step leaves of the edges is what the next one sees: in order
        with using_threads(self._threads):
            return self._stream()

    def _stream(self) -> Tensor:
        program, n = self._program, len(self._ground.x)
        alone = {number for number, step in enumerate(program.steps, start=1) if step.op in ("gat", "gatv2", *ON_ALL)}
        values: dict[int, Value] = {0: Value(self._ground.x, None)}
        inside = stream.taken_in(program)
        order = stream.levels(program, alone, inside)
        for at, (level, lasting) in enumerate(zip(order, stream.needed_later(program, order), strict=True)):
            for number in level.whole:
                values[number] = Value(self._step(number, program.steps[number - 1], values, None, Plan()), None)
            if len(level.parts) == 1 and level.parts[0] not in inside:
                number = level.parts[0]
                values[number] = Value(self._step(number, program.steps[number - 1], values, None, Plan()), None)
            elif level.parts:
                self._by_parts(level.parts, lasting, values, n, inside)
            to_come = [number for after in order[at + 1 :] for number in after.whole + after.parts]
            later = {value for number in to_come for value in program.steps[number - 1].inputs}
            for value in list(values):
                if value not in later and value != len(program.steps):
                    del values[value]
        return values[len(program.steps)].x

    def _by_parts(
        self, numbers: list[int], lasting: set[int], values: dict[int, Value], n: int, inside: dict[int, int]
    ) -> None:
        """Steps of one level, a few rows at a time; what lasts is added to the values."""
        program, widths = self._program, self._program.widths
        sums: dict[int, stream.Sum] = {}
        for number in numbers:
            step = program.steps[number - 1]
            if number in inside:
                edges, product = self._wiring.sending(number), program.steps[inside[number] - 1]
                sums[number] = stream.SumOfProduct(step, product, values[0].x, edges, self._threads)
            elif step.op == "diffuse":
                y = _dense(values[step.inputs[0]].x)
                sums[number] = stream.Sum(step, y, self._wiring.sending(number), self._threads)
        out = {number: torch.empty(n, widths[number]) for number in lasting}
        size = stream.rows_at_a_time(max(widths[number] for number in numbers))
        for first in range(0, n, size):
            last = min(first + size, n)
            made: dict[int, Tensor] = {}
            for number in numbers:
                step, room = program.steps[number - 1], out[number][first:last] if number in out else None
                if number in sums:
                    made[number] = sums[number].rows(first, last, room)
                else:
                    given = [made[v] if v in made else stream.part_of(values[v].x, first, last) for v in step.inputs]
                    made[number] = by_row(step, given, self._threads, out=room)
                if room is not None and made[number].data_ptr() != room.data_ptr():
                    room.copy_(made[number])
        values.update({number: Value(tensor, None) for number, tensor in out.items()})

    @torch.no_grad()
    def some(self, plan: Plan, nodes: Nodes) -> Tensor:
        """The result of the nodes that the plan was made for."""
        if plan.work < _ALONE:
            self._threads = 1
        return self._go(plan, nodes)

    def _go(self, plan: Plan, nodes: Nodes | None = None) -> Tensor:
        with using_threads(self._threads):
            values: dict[int, Value] = {0: Value(self._ground.x, None)}
            left = self._program.uses
            for number, step in enumerate(self._program.steps, start=1):
                if nodes is not None and number not in plan.rows:
                    continue
                rows = plan.rows.get(number)
                values[number] = Value(self._step(number, step, values, rows, plan), rows)
                for value in step.inputs:
                    left[value] -= 1
                    if value and not left[value]:
                        values.pop(value, None)
            return values[len(self._program.steps)].at(nodes)

    def _step(self, number: int, step: Step, values: dict[int, Value], rows: Nodes | None, plan: Plan) -> Tensor:
        if step.op in ON_ALL:
            known = self._ground.known
            if number not in known:
                given = [values[value].at(None) for value in step.inputs]
                known[number] = self._layer(step, given) if step.op == "layer" else self._propagated(step, given[0])
            return _rows_of(known[number], rows)
        if step.op not in GRAPH_OPS:
            return by_row(step, [values[value].at(rows) for value in step.inputs], self._threads)
        if number in plan.ahead:
            return self._sum_first(number, step, values, plan)
        links = self._wiring.links(number)
        if rows is None or number not in plan.reach:
            out = self._graph_step(number, step, [_dense(values[value].at(None)) for value in step.inputs], links)
            return _rows_of(out, rows)
        return self._part(number, step, values, rows, plan, links)

    def _layer(self, step: Step, given: list[Tensor]) -> Tensor:
        layer: Layer = step.settings["layer"]
        return layer.run([_dense(value) for value in given], self._wiring.edge_index, self._wiring.edge_weight)

    def _propagated(self, step: Step, x: Tensor) -> Tensor:
        return _propagated(step, x, self._wiring, self._threads)

    # -------------------------------------------------------------------------------------------------------- neighbours

    def _graph_step(self, number: int, step: Step, given: list[Tensor], links: Links) -> Tensor:
        """On all nodes."""
        if links.known and step.op == "diffuse":
            out, _ = messages.diffuse(step, given[0], self._wiring.sending(number), known=True)
            return out
        if links.known:
            out, _ = messages.attend(step, *_sides(given), links.edges, links.keep, known=True)
            return out
        alive = self._alive if step.settings["inherit"] else None
        edges = links.edges if alive is None else only(links.edges, alive)
        if step.op == "diffuse":
            out, used = messages.diffuse(step, given[0], edges, known=False)
        else:
            out, used = messages.attend(step, *_sides(given), edges, None, known=False)
        assert used is not None
        self._alive = used if alive is None else alive.masked_scatter(alive, used)
        return out

    def _part(self, number: int, step: Step, values: dict[int, Value], rows: Nodes, plan: Plan, links: Links) -> Tensor:
        """On the rows of these nodes."""
        reach = plan.reach[number]
        first = _dense(values[step.inputs[0]].at(reach.senders))
        given = [first, *(_dense(values[value].at(rows)) for value in step.inputs[1:])]
        edges = reach.edges
        if links.known:
            if step.op == "diffuse":
                return messages.diffuse(step, first, edges, known=True)[0]
            keep = None if links.keep is None else links.keep[edges.number]
            return messages.attend(step, *_sides(given), edges, keep, known=True)[0]
        if step.settings["inherit"] and self._alive is not None:
            edges = only(edges, self._alive[edges.number])
        if step.op == "diffuse":
            out, used = messages.diffuse(step, first, edges, known=False)
        else:
            out, used = messages.attend(step, *_sides(given), edges, None, known=False)
        assert used is not None
        self._alive = torch.zeros(links.edges.count, dtype=torch.bool)
        self._alive[edges.number[used]] = True
        return out

    def _sum_first(self, number: int, step: Step, values: dict[int, Value], plan: Plan) -> Tensor:
        """(T x) Wᵀ for T (x Wᵀ): in the columns that are sent; the others have loop·(x Wᵀ) alone."""
        made = self._program.steps[step.inputs[0] - 1]
        reach, source = plan.reach[number], values[made.inputs[0]]
        rows = plan.rows[number]
        edges, columns = reach.edges, messages.columns_of(step)
        if reach.senders is None:
            around = gather(self._ground.table, edges.adjacency, edges.weight)[:, : source.x.shape[1]]
            own = source.at(rows)
        else:
            given = source.at(reach.senders)
            around, own = gather(given, edges.adjacency, edges.weight), given[: edges.adjacency.num_nodes]
        loop = edges.loop
        if columns is None or len(columns) == made.weight.shape[0]:
            total = around if loop is None else torch.addcmul(around, loop[:, None], own)
            out = made.weight.times(total.contiguous(), None, relu=False, threads=self._threads)
            return messages.finished(step, out)
        if loop is None:
            out = torch.zeros(len(around), made.weight.shape[0])
        else:
            out = made.weight.times(own.contiguous(), None, relu=False, threads=self._threads) * loop[:, None]
        if len(columns):
            sent = made.weight.rows(columns.numpy()).times(around.contiguous(), None, relu=False, threads=self._threads)
            out[:, columns] += sent
        return messages.finished(step, out)


def _sides(given: list[Tensor]) -> tuple[Tensor, Tensor | None]:
    return given[0], given[1] if len(given) > 1 else None


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
    """Inside, torch and the kernels use this many threads."""
    before = torch.get_num_threads()
    if before != threads:
        torch.set_num_threads(threads)
    try:
        with limit_threads(threads):
            yield
    finally:
        if before != threads:
            torch.set_num_threads(before)


# ------------------------------------------------------------------------------------------------------------ decoupled


def _propagated(step: Step, x: Tensor, wiring: Wiring, threads: int) -> Tensor:
    from unifews.nn.decoupled import dense_rows  # all of propagation, which other models start without
    from unifews.propagation import propagate

    graph = wiring.graph
    if graph is None:
        graph = Graph.from_edge_index(wiring.edge_index, num_nodes=wiring.num_nodes, edge_weight=wiring.edge_weight)
    how = dict(step.settings["how"])
    features: Any = x
    if x.layout != torch.strided:
        from scipy.sparse import csr_array

        features = csr_array((x.values().numpy(), x.col_indices().numpy(), x.crow_indices().numpy()), shape=tuple(x.shape))
    out = propagate(graph, features, **{**how, "scheme": scheme_of(how["scheme"])}, threads=threads)
    rows = dense_rows(out.embedding)
    exponent = step.settings["exponent"]
    return rows if out.exponent == exponent else rows * math.ldexp(1.0, out.exponent - exponent)
