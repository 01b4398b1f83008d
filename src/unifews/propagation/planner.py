"""The plan of an out-of-core propagation, made before it starts: groups of columns, passes, bytes, time (docs/adr/0019)."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from unifews.errors import InputError
from unifews.kernels import LANES
from unifews.propagation.budget import Absolute, Budget, Target
from unifews.propagation.features import FeatureMatrix
from unifews.propagation.lanczos import MOST_HOPS, Goal, parts_of, tile_shapes
from unifews.propagation.sampling import PILOT_HOPS
from unifews.propagation.task import PropagationTask
from unifews.propagation.tiles import Shape, cut
from unifews.resources import format_bytes
from unifews.storage.pages import room

LARGE = 512 << 20  # bytes of values from which saving memory is worth a second pass over the edges
_NODE = 40  # bytes of factors and counts, one number per node each
_CARRIED = 28  # bytes while hops of the stationary part are added up, where there are any
_FIXED = 80 << 20  # bytes of rows on their way, whatever the graph
_ITERATES = 16  # iterates of a tile that disk is checked for; few need more
_BEFORE, _DURING = 88, 32  # with `max_error`, bytes per node of degrees and factors before the first hop, and during hops
_AGAIN = 0.25  # of a tile's columns may be propagated again
_TRIAL = 8 << 20  # bytes written to see how fast the disk is


def in_memory_groups(task: PropagationTask, width: int, budget: Budget | None) -> list[list[Shape]]:
    """The tiles of `width` columns, in groups that are propagated one after the other (docs/adr/0007).

    A propagation works on three copies of its values; only one group of columns stands three times. Leading columns fade
    more slowly than trailing ones, so groups with thresholds of their own also lose less. Decisions about whole rows and
    thresholds relative to the mean of all columns need all columns at once.
    """
    if budget is not None and (task.config.entries == "node" or not isinstance(budget, Target | Absolute)):
        return [cut(width)]
    return [[shape] for shape in cut(width, least_groups(task, width, budget))]


def least_groups(task: PropagationTask, width: int, budget: Budget | None) -> int:
    """Where there is one tile, and it is large, two are made, at the price of a second pass over the edges."""
    return 2 if budget is not None and task.features.n * width * 4 > LARGE else 1


class Requirements:
    """What the task needs where all of its columns are propagated, as a function of how they are grouped."""

    def __init__(self, task: PropagationTask) -> None:
        self.task, self.op, self.features = task, task.op, task.features
        self.budget = task.budget_on(task.features.f)

    def state(self, blocks: int) -> int:
        """Bytes that hops of a group change."""
        graph, copies = self.op.diffusion.graph, 3 if self.op.accumulate else 2
        size = graph.num_nodes * 4 * LANES * blocks * copies
        if self.budget is not None:
            size += graph.num_nodes * (11 * blocks + 8)
            if self.task.config.inherit:
                size += graph.num_edges * (2 * blocks if self.task.by_feature else 1)
        return size

    def sum(self, blocks: int) -> int:
        """Bytes of a group's output, which may add up in a file."""
        return self.op.diffusion.graph.num_nodes * 4 * LANES * blocks if self.op.accumulate else 0

    def memory(self, blocks: int, outside: bool = False) -> int:
        """Bytes of memory while a group is propagated, its output in memory or outside."""
        graph, f = self.op.diffusion.graph, self.features.f
        node = _NODE + (_CARRIED if self.task.carries else 0)
        size = self.state(blocks) + graph.num_nodes * node + _FIXED + 24 * f * f
        if outside:
            size -= self.sum(blocks)
        if graph.weight is not None:
            size += 8 * graph.num_edges  # while degrees are summed up
        if self.task.by_feature:
            size += 2 * LANES * graph.num_nodes
        if self.budget is not None and self.op.grows:
            size += 200 * blocks * graph.num_nodes  # while values are brought down
        return size

    def moved(self, columns: int) -> float:
        """Bytes of rows that the hops of so many columns gather, read and write."""
        kept = 1 - self.budget.sparsity if isinstance(self.budget, Target) else 1.0
        return 4.0 * columns * self.op.hops * (kept * self.op.graph.num_edges + 3 * self.op.graph.num_nodes)


class TileRequirements(Requirements):
    """The same with `max_error`: iterates of a tile in the format that takes most, and its result.

    The tiles are those of memory: others would have other results.
    """

    def __init__(self, task: PropagationTask, goal: Goal) -> None:
        super().__init__(task)
        n, self.shapes = task.features.n, tile_shapes(task.features.f, task.features.n)
        widest, self.hops = self.shapes[0], goal.degree or min(task.op.hops, MOST_HOPS)
        parts = [(format, parts_of(widest, format, n)[0].blocks) for format in goal.formats]
        sizes = [n * format.empty(1, blocks).nbytes for format, blocks in parts]  # bytes of an iterate, with its steps
        self.iterate, self.narrowest = max(sizes), sizes[0]
        if goal.method == "chebyshev":  # its three tiles are few nodes', and in memory
            self.hops, self.iterate = max(task.op.hops, 1), 3 * self.iterate

    def memory(self, blocks: int, outside: bool = False) -> int:
        """Bytes of memory where no iterate is held but the one that is gathered."""
        graph, f = self.op.graph, self.features.f
        size = max(self.iterate + graph.num_nodes * _DURING, graph.num_nodes * _BEFORE) + _FIXED + 16 * f
        size += 0 if outside else self.values
        return size + (8 * graph.num_edges if graph.weight is not None else 0)

    @property
    def values(self) -> int:
        """Bytes of a tile's result."""
        return 4 * self.features.n * self.shapes[0].width

    def moved(self, columns: int) -> float:
        return columns * self.expected * (self.op.graph.num_edges + 0.5 * self.expected * self.op.graph.num_nodes)

    @property
    def expected(self) -> int:
        """Hops of a tile, as a rule at most."""
        return min(self.hops, _ITERATES - 1)


@dataclass(frozen=True)
class Plan:
    """How the columns are grouped, and what that takes."""

    groups: list[Shape]
    memory: int
    """Bytes of memory at the worst moment, beside what the process had before; mapped files have the rest."""
    outside: bool
    """Whether what a group adds up to does so in a file."""
    disk: int
    """Bytes of disk at the worst moment, the result included."""
    passes: int
    """Over the edges."""
    read: int
    """Bytes, each pass over edges and features counted, in memory or not."""
    written: int
    """Bytes, without what is kept on the way."""
    seconds: float
    """An estimate from how fast this disk and this memory were in a quick trial."""
    held: int | None = None
    """With `max_error`, earlier iterates of a tile that memory holds; others are in files."""

    def __str__(self) -> str:
        blocks = max(shape.blocks for shape in self.groups)
        took = f"{self.seconds:.0f} s" if self.seconds < 90 else f"{self.seconds / 60:.0f} min"
        kept = ", where sums add up too" if self.held is None else ", where a tile's result and iterates are too"
        return (
            f"{sum(shape.width for shape in self.groups):,} columns in {len(self.groups)} "
            f"group{'s' if len(self.groups) > 1 else ''} of up to {blocks * LANES}; "
            f"{'' if self.held is None else 'as a rule at most '}{self.passes:,} passes over the edges; "
            f"{format_bytes(self.read)} to read, {format_bytes(self.written)} to write; {format_bytes(self.memory)} of memory, "
            f"{format_bytes(self.disk)} of disk{kept if self.outside else ''}; about {took}"
        )

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "groups": [[shape.column, shape.width, shape.blocks] for shape in self.groups]}

    @classmethod
    def of_dict(cls, kept: dict[str, Any]) -> Plan:
        return cls(**{**kept, "groups": [Shape(*shape) for shape in kept["groups"]]})


def enough(memory: int) -> float:
    """A limit that leaves so many bytes beside the room of mapped pages, and is enough as `format_bytes` shows it."""
    needed = 1.02 * memory / (1 - room(1e9) / 1e9)
    unit = 1000.0
    while needed >= 999 * unit:
        unit *= 1000
    step = unit / 10 if needed < 9.9 * unit else unit
    return math.ceil(needed / step) * step


def make(needs: Requirements, limit: int, taken: int) -> Plan:
    """The plan with the fewest groups that keeps to `limit` bytes of memory, of which `taken` are gone; no time yet."""
    width = needs.features.f
    most, fewest = -(-width // LANES), least_groups(needs.task, width, needs.budget)  # as in memory, wherever that fits
    for outside in (False, True):
        for least in range(fewest, max(most, fewest) + 1):
            shapes = cut(width, least)
            memory = needs.memory(max(shape.blocks for shape in shapes), outside)
            if memory + taken + room(limit) <= limit:
                return _described(needs, shapes, memory, outside)
    n, least_memory = needs.op.diffusion.graph.num_nodes, needs.memory(1, outside=True)
    raise InputError(
        f"memory={format_bytes(limit)} is too little for {n:,} nodes: {format_bytes(taken)} are in use before it begins, "
        f"and {LANES} columns at a time need {format_bytes(least_memory)}. "
        f"Give {format_bytes(enough(taken + least_memory))} or more."
    )


def make_tiles(needs: TileRequirements, limit: int, taken: int) -> Plan:
    """The plan with `max_error`: what memory is left holds the result of a tile and earlier iterates of it."""
    widest, n, f = needs.shapes[0], needs.features.n, needs.features.f
    for outside in (False, True):
        memory = needs.memory(widest.blocks, outside)
        if memory + taken + room(limit) <= limit:
            break
    else:
        raise InputError(
            f"memory={format_bytes(limit)} is too little for {n:,} nodes: {format_bytes(taken)} are in use before it begins, "
            f"and max_error, which propagates {widest.width} columns at a time, needs {format_bytes(memory)}. "
            f"Give {format_bytes(enough(taken + memory))} or more, or write edge_sparsity= instead of max_error=."
        )
    held = min((limit - taken - room(limit) - memory) // max(needs.iterate, 1), needs.hops + 1)
    values, count, hops = 4 * n * f, len(needs.shapes), needs.expected
    laid = sum(4 * shape.padded * n for shape in needs.shapes) if count > 1 else 0
    again = int(2 * _AGAIN * needs.values)
    iterates = max(hops + 1 - held, 0) * needs.narrowest + again + (needs.values if outside else 0)
    graph = needs.op.graph
    edges = graph.num_edges * (graph.indices.itemsize + (4 if graph.weight is not None else 0)) + 8 * n
    read = count * hops * edges + 2 * n * _row_bytes(needs.features) + laid + values
    disk = max(laid + values // count + iterates, 2 * values + iterates) + (1 << 20)
    memory += held * needs.iterate
    return Plan(needs.shapes, memory, outside, disk, count * hops, read, laid + 2 * values, 0.0, held)


def _described(needs: Requirements, shapes: list[Shape], memory: int, outside: bool) -> Plan:
    op, graph, features = needs.op, needs.op.diffusion.graph, needs.features
    n, count = graph.num_nodes, len(shapes)
    values = 4 * n * features.f
    laid = sum(4 * LANES * shape.blocks * n for shape in shapes) if count > 1 else 0
    blocks = max(shape.blocks for shape in shapes)
    state = 2 * needs.state(blocks) + (needs.sum(blocks) if outside else 0)
    divided = isinstance(needs.budget, Target) and count > 1
    passes = count * op.hops + (needs.budget is not None)
    passes += count * min(PILOT_HOPS + 1, op.hops) if divided else 0
    passes += count * op.hops if needs.task.carries else 0
    over_features = 2 + needs.task.rotates + needs.task.deflates + (count if divided else 0)
    edges = graph.num_edges * (graph.indices.itemsize + (4 if graph.weight is not None else 0)) + 8 * n
    read = passes * edges + over_features * n * _row_bytes(features) + laid + values
    disk = max(laid + values // count + state, 2 * values) + (1 << 20)
    return Plan(shapes, memory, outside, disk, passes, read, laid + 2 * values, 0.0)


def _row_bytes(features: FeatureMatrix) -> int:
    assert features.dense is not None
    return features.f * int(features.dense.itemsize)


def seconds(plan: Plan, needs: Requirements, folder: Path, limit: int) -> float:
    """How long the plan will take, by a quick trial of the disk in `folder` and of the memory."""
    block = np.ones(_TRIAL // 8)
    other = block.copy()
    began = perf_counter()
    for _ in range(4):
        np.copyto(other, block)
    memory = 2 * 4 * block.nbytes / max(perf_counter() - began, 1e-6)
    file = folder / "trial"
    began = perf_counter()
    with file.open("wb") as out:
        out.write(block.data)
        out.flush()
        os.fsync(out.fileno())
    disk = block.nbytes / max(perf_counter() - began, 1e-6)
    file.unlink()
    graph, moved = needs.op.diffusion.graph, needs.moved(sum(shape.padded for shape in plan.groups))
    inputs = graph.num_edges * graph.indices.itemsize + graph.num_nodes * _row_bytes(needs.features)
    # What fits memory is read from the disk once; what does not, at every pass.
    from_disk = plan.read if inputs > limit else min(plan.read, inputs + plan.written)
    return float((from_disk + plan.written) / disk + (plan.read - from_disk + moved) / memory)
