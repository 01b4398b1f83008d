"""Column-parallel propagation: every worker has the whole graph and some of the columns; hops need no communication."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import numpy as np

from unifews.core.trace import HopTrace
from unifews.kernels import LANES, MAX_BLOCKS
from unifews.propagation import local
from unifews.propagation.assembly import Assembly, GroupRecord
from unifews.propagation.budget import Budget, Target
from unifews.propagation.checkpoint import Checkpoint, budget_state, resumed
from unifews.propagation.engines import BlockEngine, Engine, FullEngine
from unifews.propagation.planner import Requirements
from unifews.propagation.rows import Rows, shared_basis, write
from unifews.propagation.sampling import Sample, fades
from unifews.propagation.shared import Report, SharedWork
from unifews.propagation.tiles import Shape
from unifews.propagation.view import View
from unifews.resources import Progress
from unifews.storage import state_files
from unifews.storage.journal import Journal, folder_of, open_journal

_COORDINATES = "coordinates"


def dealt(width: int, least: int, workers: int) -> list[Shape]:
    """Groups of columns, of like size: at least so many, and as many for each worker."""
    blocks = -(-width // LANES)
    count = max(-(-blocks // MAX_BLOCKS), least, workers)
    count = min(-(-count // workers) * workers, blocks)
    ends = [number * blocks // count for number in range(count + 1)]
    return [Shape(LANES * a, min(LANES * b, width) - LANES * a, b - a) for a, b in pairwise(ends)]


def by_columns(common: SharedWork, needs: Requirements, every_hop: bool, groups: int | None, progress: Progress | None) -> None:
    """Propagate into the working folder; the manifest then has a `summary`."""
    began, group, op, width = perf_counter(), common.group, needs.op, needs.features.f
    shapes = _shapes(common, needs, groups)
    blocks = sum(shape.blocks for shape in shapes)
    if group.size > len(shapes):
        raise group.refuse(
            f"{group.size} workers are too many for {len(shapes)} group{'s' if len(shapes) > 1 else ''} of columns ({width:,} "
            f"features make {blocks} of {LANES} at most); start {len(shapes)}, or partition the nodes with partition='nodes' "
            f"(--partition nodes)."
        )
    common.keep(shapes=[[shape.column, shape.width, shape.blocks] for shape in shapes])
    basis = shared_basis(common, needs.task)
    view = View(needs.features, basis, op)
    budgets = _budgets(common, needs, view, shapes)
    op.release()
    mine = list(range(len(shapes)))[group.rank :: group.size]
    done: dict[int, GroupRecord] = {}
    with group.agreed():
        for turn, number in enumerate(mine):
            report = local.later(progress, turn * op.hops, len(mine) * op.hops)
            done[number] = _one(common, needs, every_hop, view, shapes[number], budgets[number], report)
    gathered = group.all_gather({number: each.to_dict() for number, each in done.items()})
    by_worker = [{int(number): GroupRecord.of_dict(kept) for number, kept in worker.items()} for worker in gathered]
    parts = [worker[number] for number in range(len(shapes)) for worker in by_worker if number in worker]
    assembly = Assembly(needs, basis, parts)
    write(common, assembly, _rows(common, needs, shapes), _together(by_worker, parts), began)


def _shapes(common: SharedWork, needs: Requirements, groups: int | None) -> list[Shape]:
    """The groups of the call that was interrupted, or of this one: on them the result depends, not on the workers."""
    kept = common.get("shapes")
    if kept:
        return [Shape(*each) for each in kept]
    least, workers = (needs.grouped, common.group.size) if groups is None else (groups, 1)
    return dealt(needs.features.f, least, workers)


def _budgets(common: SharedWork, needs: Requirements, view: View, shapes: list[Shape]) -> list[Budget | None]:
    """One plan for all groups. Nothing is handed over from one that is done to the next, as it is where they come one after
    the other: they are under way at the same time, and results must not depend on how many workers there are."""
    budget, group, op = needs.budget, common.group, needs.op
    if not isinstance(budget, Target) or len(shapes) == 1:
        return [None if budget is None else replace(budget) if isinstance(budget, Target) else budget for _ in shapes]
    kept = common.get("budgets")
    if kept is None:
        sample = Sample(op, inherit=False)
        weight = float(op.scheme.influence(op.hops)[0])
        fading = np.zeros((op.hops, len(shapes)))
        for number in range(group.rank, len(shapes), group.size):
            fading[:, number] = fades(op, view, [shapes[number]], sample)
        group.all_reduce(fading)
        divided = budget.divide([sample.first(view, [shape], weight) for shape in shapes], fading)
        common.keep(budgets=[budget_state(each) for each in divided])
        return [*divided]
    return resumed(budget, kept)


def _one(
    common: SharedWork,
    needs: Requirements,
    every_hop: bool,
    view: View,
    shape: Shape,
    budget: Budget | None,
    report: Report,
) -> GroupRecord:
    """The hops of one group, into a folder of its own."""
    op = needs.op
    with _own(common, shape) as work, work.writing():
        file = work.folder / _COORDINATES
        kept = work.get("done")
        if kept:
            if state_files.checksum(file) != kept["crc"]:
                raise state_files.damaged(file)
            return GroupRecord.of_dict(kept)
        state = Checkpoint(work, shape, every_hop)
        engine: Engine
        if budget is None:
            engine = FullEngine(op, view, [shape])
        else:
            engine = BlockEngine(op, view, [shape], budget, needs.task.config.inherit, by_feature=needs.task.by_feature)
        outcome = local.run(engine, False, report, state)
        done = GroupRecord.of(outcome, state_files.save(file, [outcome.values]))
        work.record(done=done.to_dict(), state=None)
        Checkpoint.clear(work)
        return done


def _name(common: SharedWork, shape: Shape) -> Path:
    return common.folder / f"columns-{shape.column}"


def _own(common: SharedWork, shape: Shape) -> AbstractContextManager[Journal]:
    return open_journal(_name(common, shape), {"columns": [shape.column, shape.width, shape.blocks]})


def _together(workers: list[dict[int, GroupRecord]], parts: list[GroupRecord]) -> list[HopTrace]:
    """The hops of all groups; a hop takes as long as the worker that needs most for it."""
    seconds = [local.added([done.hops for done in worker.values()]) for worker in workers if worker]
    longest = [max(hop.seconds for hop in same) for same in zip(*seconds, strict=True)]
    hops = local.added([each.hops for each in parts])
    return [replace(hop, seconds=most) for hop, most in zip(hops, longest, strict=True)]


def _rows(common: SharedWork, needs: Requirements, shapes: list[Shape]) -> Rows:
    """This worker's share of the rows, with all their columns."""
    files = [folder_of(_name(common, shape)) / _COORDINATES for shape in shapes]
    for first, last in needs.features.chunks()[common.group.rank :: common.group.size]:
        read = [state_files.rows(file, first, last, shape.width) for file, shape in zip(files, shapes, strict=True)]
        yield np.arange(first, last), read
