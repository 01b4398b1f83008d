"""Propagation into a file: out of core in one process here, and by several workers in `distributed` (docs/adr/0019, 0020).

plan      groups of columns
basis     the axes and the mean, by passes over the rows of X
layout    out of core, one pass: the columns of each group, on the axes, into a file of their own
hops      group after group: into a tile, all hops in memory, its coordinates into a file (with `max_error`: `tile_files`)
rotation  one pass: the rows of all groups, back on the input's axes, into the result

Each of them records its progress in a working folder (`folder`): the next call resumes there and ends with the same bytes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from unifews.core.trace import Trace, Traffic
from unifews.distributed.communicator import Communicator, SingleProcess
from unifews.errors import InputError
from unifews.kernels.buffers import nothing_cached
from unifews.propagation import planner, tolerance
from unifews.propagation.assembly import accuracy_of_dict, accuracy_to_dict, make_trace, trace_of_dict, trace_to_dict
from unifews.propagation.basis import Basis
from unifews.propagation.driver import Schedule, run
from unifews.propagation.features import FeatureMatrix, Floats
from unifews.propagation.folder import FORM, RESULT, FileTarget, FolderStore, LaidOutView
from unifews.propagation.lanczos import Goal, series_of
from unifews.propagation.planner import Plan, Requirements, TileRequirements
from unifews.propagation.result import EstimatedError, Propagated, rotate_back
from unifews.propagation.store import GroupResult, level, remaining
from unifews.propagation.symmetric import SymmetricOperator
from unifews.propagation.task import PropagationTask
from unifews.propagation.tile_files import TileFiles, run_tiles
from unifews.propagation.tiles import Shape, scaled
from unifews.propagation.view import View
from unifews.resources import Progress, format_bytes
from unifews.storage import state_files
from unifews.storage.atomic import check_place
from unifews.storage.npy import open_array
from unifews.storage.pages import MappedPages, room

Needs = TypeVar("Needs", bound=Requirements)


class Arrangement(ABC):
    """Which worker has which rows and which groups of columns."""

    by_columns = False
    """Whether workers have different groups of columns."""
    rows_comm: Communicator = SingleProcess()
    """The workers that each have some rows of every group."""

    def __init__(self, task: PropagationTask, comm: Communicator) -> None:
        self.task, self.comm = task, comm

    @abstractmethod
    def groups(self, store: FolderStore) -> list[Shape]:
        """The groups of columns of this call, or of the one that was interrupted; the store then has them as `plan`."""

    def tiles(self, store: FolderStore, goal: Goal) -> tuple[list[Shape], TileFiles | None]:
        """The same with `max_error`, the tiles of memory, and files for what memory need not hold."""
        raise NotImplementedError(f"{type(self).__name__} has no tiles; max_error is refused for it beforehand.")

    def view(self, store: FolderStore, basis: Basis, groups: list[Shape]) -> View:
        return View(self.task.features, basis, self.task.op)

    def symmetric(self, view: View, files: TileFiles | None) -> tuple[SymmetricOperator, FeatureMatrix]:
        """The operator and the features of a view, as tiles take them."""
        return SymmetricOperator.of(view.op, series_of(view.op), files), view.features

    def pieces(self) -> list[tuple[int, int]]:
        """Rows of the coordinates here that this worker writes to the result, some at a time."""
        return self.task.features.chunks()[self.comm.rank :: self.comm.size]

    def nodes(self, first: int, last: int) -> NDArray[np.int64]:
        """The nodes of these rows."""
        return np.arange(first, last)


class OutOfCore(Arrangement):
    """One process, within a limit of memory."""

    def __init__(
        self, task: PropagationTask, memory: int, taken: int, pages: MappedPages, report: Callable[[Plan], None] | None
    ) -> None:
        """`taken`: bytes of memory the process had before; `pages` are those that the caller releases in time."""
        super().__init__(task, SingleProcess())
        self.memory, self.taken, self.pages, self.report = memory, taken, pages, report

    def groups(self, store: FolderStore) -> list[Shape]:
        return self._plan(store, Requirements(self.task), planner.make).groups

    def tiles(self, store: FolderStore, goal: Goal) -> tuple[list[Shape], TileFiles | None]:
        needs = TileRequirements(self.task, goal)
        plan = self._plan(store, needs, planner.make_tiles)
        return plan.groups, TileFiles(store.folder, plan.held or 0, self.pages)

    def _plan(self, store: FolderStore, needs: Needs, make: Callable[[Needs, int, int], Plan]) -> Plan:
        journal = store.journal
        assert journal is not None
        kept = journal.get("plan")
        if kept is None:
            plan = make(needs, self.memory, self.taken)
            journal.check_disk(plan.disk, "out-of-core propagation")
            plan = replace(plan, seconds=planner.seconds(plan, needs, store.folder, self.memory))
            journal.record(plan={"form": FORM, **plan.to_dict()})
        else:
            plan = Plan.of_dict({name: value for name, value in kept.items() if name != "form"})
            needed = plan.memory + self.taken
            if needed + room(self.memory) > 1.02 * self.memory:
                raise InputError(
                    f"the interrupted work in {store.folder} was planned for more than {format_bytes(self.memory)}. "
                    f"Give {format_bytes(planner.enough(needed))}, or start over with restart=True (--restart)."
                )
            journal.check_disk(plan.disk, "out-of-core propagation")
        if self.report:
            self.report(plan)
        store.outside, store.pages = plan.outside, self.pages
        return plan

    def view(self, store: FolderStore, basis: Basis, groups: list[Shape]) -> View:
        view = super().view(store, basis, groups)
        return store.lay_out(view, groups) if len(groups) > 1 else view


def into_file(
    way: Arrangement,
    target: FileTarget,
    identity: tuple[dict[str, Any], Sequence[Path]],
    progress: Progress | None,
) -> Propagated:
    """Propagate into a file; the embedding is a memory map of it. The result depends on `identity` alone."""
    out, comm = target.out, way.comm
    with nothing_cached(), FolderStore.open(target, identity, comm, way.rows_comm) as store:
        in_place = comm.all_gather(comm.rank == 0 and out.exists() and not (store.folder / RESULT).exists())[0]
        if not (in_place and store.get("summary")):  # else killed after the last step
            with comm.agreed():
                check_place(out, target.overwrite)
            _run(way, store, progress or (lambda done, steps: None))
            if comm.rank == 0:
                (store.folder / RESULT).replace(out)
        summary = store.get("summary")
        store.remove()
        comm.barrier()
    trace, accuracy = trace_of_dict(summary["trace"]), summary.get("accuracy") and accuracy_of_dict(summary["accuracy"])
    return Propagated(open_array(out), None, trace, summary["exponent"], None, lambda array: array, accuracy=accuracy)


def _run(way: Arrangement, store: FolderStore, report: Progress) -> None:
    """All steps, into the working folder, which then has a `summary`."""
    began, task = perf_counter(), way.task
    if not task.is_by_error:
        _propagate(way, store, report, began)
        return
    methods = ("unpruned", "lanczos") if way.rows_comm.size > 1 else tolerance.METHODS  # a polynomial's hops exchange no rows
    with way.comm.agreed():
        own = tolerance.decide(task, methods, measures=False).to_dict()
    made = tolerance.Decision.of_dict(store.get("decision") or way.comm.all_gather(own)[0])  # the first worker's, for all
    reason = store.get("unpruned")
    while reason is None and made.method != "unpruned":
        found = _propagate_tiles(way, store, made, report, began)
        if found is None:
            return
        reason, made = (None, found) if isinstance(found, tolerance.Decision) else (found, made)
    why = reason or made.reason or ""
    way.task = tolerance.unpruned(task)
    _propagate(way, store, report, began, lambda trace: tolerance.unpruned_record(task, trace, made, why, began))


def _propagate_tiles(
    way: Arrangement, store: FolderStore, made: tolerance.Decision, report: Progress, began: float
) -> str | tolerance.Decision | None:
    """With `max_error`; returns why the hops of the scheme are to be run instead, or another method, if they are."""
    task, comm = way.task, way.comm
    with comm.agreed():
        goal = tolerance.goal_of(task, made)
    goal = replace(goal, room=comm.all_gather(goal.room)[0])  # machines may compute differently
    shapes, files = way.tiles(store, goal)
    store.record(decision=made.to_dict())
    steps = len(shapes[comm.rank :: comm.size] if way.by_columns else shapes) + 2
    store.kind = "tiles"
    view = way.view(store, Basis(None, None), shapes)
    report(1, steps)
    laid = view.laid if isinstance(view, LaidOutView) else {}
    run = run_tiles(
        *way.symmetric(view, files), goal, shapes, store, comm, laid, files, lambda done, _: report(1 + done, steps)
    )
    with comm.agreed(), store.journal.reading() if store.journal else nullcontext():
        other = tolerance.missed(task, run.outcome) if run.error is None else tolerance.unreached(task, made, run.error)
        kept = other.to_dict() if isinstance(other, tolerance.Decision) else other
    kept = comm.all_gather(kept)[0]  # machines may compute differently
    if kept is not None:
        store.forget(**{"unpruned" if isinstance(kept, str) else "decision": kept})
        return kept if isinstance(kept, str) else tolerance.Decision.of_dict(kept)
    exponent = _write(way, store, view, shapes, run.groups)
    trace, accuracy = tolerance.record(task, run.outcome, made, began, run.workers)
    _record(store, exponent, replace(trace, traffic=_traffic(run.groups, comm.size)), accuracy)
    report(steps, steps)
    return None


def _record(store: FolderStore, exponent: int, trace: Trace, accuracy: EstimatedError | None = None) -> None:
    estimated = {} if accuracy is None else {"accuracy": accuracy_to_dict(accuracy)}
    store.record(summary={"trace": trace_to_dict(trace), "exponent": exponent, **estimated})


def _propagate(
    way: Arrangement,
    store: FolderStore,
    report: Progress,
    began: float,
    annotate: Callable[[Trace], tuple[Trace, EstimatedError]] | None = None,
) -> None:
    """By groups of columns; `annotate` adds what is recorded where another task was asked for."""
    task, comm = way.task, way.comm
    groups, f = way.groups(store), task.features.f
    mine = groups[comm.rank :: comm.size] if way.by_columns else groups
    steps = len(mine) * task.op.hops + 2
    view = way.view(store, store.basis(task), groups)
    report(1, steps)
    schedule = Schedule(view, [[shape] for shape in groups], task.budget_on(f), way.by_columns)
    outcome = run(task, schedule, store, comm, lambda done, _: report(1 + done, steps))
    exponent = _write(way, store, view, groups, outcome.groups)
    trace = make_trace(
        task,
        view,
        outcome.hops,
        began,
        groups=len(groups) if schedule.budget else 1,
        exponent=exponent,
        extra_macs=task.features.n * f * f if task.rotates else 0,
        traffic=_traffic(outcome.groups, comm.size),
    )
    _record(store, exponent, *(annotate(trace) if annotate else (trace,)))
    report(steps, steps)


def _write(way: Arrangement, store: FolderStore, view: View, groups: list[Shape], done: list[GroupResult]) -> int:
    """Write the result, on the input's axes; the power of two that it is divided by, 0 wherever float32 holds it."""
    features, growth = way.task.features, [each.growth for each in done]
    whole = max(growth) + features.exponent
    peak = max(scaled(each.peak, each.growth - max(growth)) for each in done)
    exponent = remaining(whole, peak) if whole else 0
    scale = np.float32(math.ldexp(1, whole)) if exponent != whole else np.float32(1)

    def made(first: int, last: int) -> Floats:
        parts = [state_files.rows(store.coordinates(shape), first, last, shape.width) for shape in groups]
        level(parts, growth)
        values = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        if scale != 1:
            values *= scale
        return np.ascontiguousarray(rotate_back(values, view.basis.axes))

    store.write_rows((features.n, features.f), way.pieces(), way.nodes, made)
    return exponent


def _traffic(groups: list[GroupResult], workers: int) -> Traffic | None:
    by_group = [each.traffic for each in groups if each.traffic]
    if not by_group:
        return None
    sent, unpruned = (tuple(map(sum, zip_longest(*kind, fillvalue=0))) for kind in zip(*by_group, strict=True))
    return Traffic(workers, sent, unpruned)
