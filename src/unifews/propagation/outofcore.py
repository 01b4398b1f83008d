"""Out-of-core propagation: graph, features and result stay on disk, columns are loaded in groups (docs/adr/0019).

basis     the axes and the mean, by passes over the rows of X
layout    one pass: the columns of each group, on the axes, into a file of their own
hops      group after group: its file into a tile, all hops in memory, its coordinates into a file
rotation  one pass: the rows of all groups, back on the input's axes, into the result

Each of them records its progress, with checksums, in a working folder beside the result (`unifews.storage.journal`): the next
call resumes there and ends with the same bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from unifews.errors import InputError
from unifews.kernels import LANES, SLACK, aligned
from unifews.propagation import local, planner
from unifews.propagation.assembly import RESULT, Assembly, GroupRecord, basis_of, trace_of
from unifews.propagation.basis import Basis
from unifews.propagation.budget import Budget, Target
from unifews.propagation.checkpoint import Checkpoint, budget_state, resumed
from unifews.propagation.engines import BlockEngine, Engine, FullEngine
from unifews.propagation.features import Floats
from unifews.propagation.planner import Plan, Requirements
from unifews.propagation.result import Propagated
from unifews.propagation.sampling import divided
from unifews.propagation.tiles import Shape, Tile
from unifews.propagation.view import View
from unifews.resources import Progress, format_bytes
from unifews.storage import state_files
from unifews.storage.atomic import check_place, sync
from unifews.storage.journal import Journal, open_journal
from unifews.storage.npy import open_array
from unifews.storage.pages import MappedPages

_OFTEN = 2.0  # seconds between notes of how far a pass over rows has come


@dataclass(frozen=True)
class OutOfCoreOptions:
    """Output file and memory limit."""

    out: Path
    memory: int
    taken: int
    """Bytes of memory the process had before."""
    overwrite: bool = False
    restart: bool = False
    checkpoint_every_hop: bool = False
    """Whether the state of the hops is saved after each of them, whatever time that takes."""
    report: Callable[[Plan], None] | None = None


def out_of_core(
    needs: Requirements,
    order: OutOfCoreOptions,
    task: dict[str, Any],
    inputs: Sequence[Path],
    pages: MappedPages,
    progress: Progress | None,
) -> Propagated:
    """Propagate with no more memory than ordered; the embedding is a memory map of the file written.

    The result depends on `task` (for JSON) and the files `inputs` alone; `pages` are those that the caller gives back in time.
    """
    out = order.out
    with open_journal(out, task, inputs, restart=order.restart) as work:
        if not (work.get("summary") and out.exists() and not (work.folder / RESULT).exists()):  # killed after the last step
            check_place(out, order.overwrite)
            chosen = _planned(work, needs, order)
            with work.writing():
                run = _OutOfCoreRun(work, needs, order, chosen, pages, progress)
                run.all()
                (work.folder / RESULT).replace(out)
        summary = work.get("summary")
        work.remove()
    return Propagated(open_array(out), None, trace_of(summary), summary["exponent"], None, lambda array: array)


def _planned(work: Journal, needs: Requirements, order: OutOfCoreOptions) -> Plan:
    """The plan of this call, or that of the one that was interrupted."""
    kept = work.get("plan")
    if kept is None:
        chosen = planner.make(needs, order.memory, order.taken)
        work.check_disk(chosen.disk, "out-of-core propagation")
        with work.writing():
            chosen = replace(chosen, seconds=planner.seconds(chosen, needs, work.folder, order.memory))
            work.record(plan=chosen.to_dict())
    else:
        chosen = Plan.of_dict(kept)
        if chosen.memory + order.taken > 1.02 * order.memory:
            raise InputError(
                f"the interrupted work in {work.folder} was planned for more than {format_bytes(order.memory)}. "
                f"Give {format_bytes(1.02 * (chosen.memory + order.taken))}, or start over with restart=True (--restart)."
            )
        work.check_disk(chosen.disk, "out-of-core propagation")
    if order.report:
        order.report(chosen)
    return chosen


class _OutOfCoreRun:
    """One propagation on its way into a file."""

    def __init__(
        self,
        work: Journal,
        needs: Requirements,
        order: OutOfCoreOptions,
        chosen: Plan,
        pages: MappedPages,
        progress: Progress | None,
    ) -> None:
        self.work, self.needs, self.order, self.op, self.features = work, needs, order, needs.op, needs.features
        self.groups, self.outside, self.pages, self.progress = chosen.groups, chosen.outside, pages, progress
        self.steps = len(self.groups) * self.op.hops + 2
        self.began = perf_counter()

    def all(self) -> None:
        basis = basis_of(self.work, self.needs.task)
        view = View(self.features, basis, self.op)
        if len(self.groups) > 1:
            view = self._laid_out(view)
        self._tell(1)
        self._hops(view)
        self._rotated(basis)
        self._tell(self.steps)

    def _tell(self, done: int) -> None:
        if self.progress:
            self.progress(done, self.steps)

    def _after(self, before: int, hop: int) -> None:
        self._tell(before + hop)

    # --------------------------------------------------------------------------------------------------------- layout

    def _laid_out(self, view: View) -> View:
        """The columns of each group in a file of their own, [n, blocks · 16]."""
        files = [self._file("columns", shape) for shape in self.groups]
        axes = [None if view.basis.axes is None else view.axes(shape) for shape in self.groups]

        def made(first: int, last: int) -> list[Floats]:
            rows = self.features.rows(first, last)
            return [_on(rows, axis, shape) for axis, shape in zip(axes, self.groups, strict=True)]

        self._pass("layout", files, [LANES * shape.blocks for shape in self.groups], made)
        crc = self.work.get("layout")["crc"]
        laid = {shape.column: (file, sum_) for shape, file, sum_ in zip(self.groups, files, crc, strict=True)}
        return _Laid(view.features, view.basis, view.op, laid)

    def _pass(
        self,
        key: str,
        files: list[Path],
        widths: list[int],
        made: Callable[[int, int], list[Floats]],
        shape: tuple[int, int] | None = None,
    ) -> None:
        """Append what is made of rows after rows to files; `.npy` ones if their shape is given."""
        chunks = self.features.chunks()
        state = self.work.get(key) or {"chunks": 0, "start": 0, "crc": [0] * len(files)}
        if state["chunks"] == len(chunks) and not shape:
            return  # what is read later is compared with its checksum then
        rows = chunks[state["chunks"] - 1][1] if state["chunks"] else 0
        for file, width, crc in zip(files, widths, state["crc"], strict=True):
            if rows:
                state_files.truncate(file, state["start"] + 4 * width * rows)
                if state_files.checksum(file, state["start"]) != crc:
                    raise state_files.damaged(file)
                if shape:
                    state_files.write_header(file, np.dtype(np.float32), shape, keep=True)
            else:
                file.unlink(missing_ok=True)
                if shape:
                    state_files.write_header(file, np.dtype(np.float32), shape)
                    state["start"] = state_files.HEADER
        noted = perf_counter()
        for number in range(state["chunks"], len(chunks)):
            for at, (file, part) in enumerate(zip(files, made(*chunks[number]), strict=True)):
                state["crc"][at] = state_files.append(file, part, state["crc"][at])
            state["chunks"] = number + 1
            if perf_counter() - noted > _OFTEN or number + 1 == len(chunks):
                self.work.record(**{key: state})
                noted = perf_counter()

    @property
    def _sum(self) -> Path:
        return self.work.folder / "sum"

    def _file(self, what: str, shape: Shape) -> Path:
        return self.work.folder / f"{what}-{shape.column}"

    # ----------------------------------------------------------------------------------------------------------- hops

    def _hops(self, view: View) -> None:
        """All hops of all groups, the trailing columns first."""
        done = self.work.get("groups") or {}
        if len(done) == len(self.groups):
            return
        budgets = self._budgets(view)
        self.op.release()
        for number, shape in enumerate(reversed(self.groups)):
            if str(shape.column) in done:
                continue
            own = budgets[-number - 1]
            state = Checkpoint(self.work, shape, self.order.checkpoint_every_hop)
            report = partial(self._after, 1 + number * self.op.hops)
            outcome = local.run(self._engine(view, shape, own), False, report, state)
            each = GroupRecord.of(outcome, state_files.save(self._file("coordinates", shape), [outcome.values]))
            del outcome
            if number + 1 < len(self.groups) and own is not None:
                following = budgets[-number - 2]
                assert following is not None
                following.inherit(own)
            done = {**done, str(shape.column): each.to_dict()}
            self.work.record(groups=done, budgets=[budget_state(budget) for budget in budgets], state=None)
            self._file("columns", shape).unlink(missing_ok=True)
            self._sum.unlink(missing_ok=True)
        Checkpoint.clear(self.work)

    def _budgets(self, view: View) -> list[Budget | None]:
        budget = self.needs.budget
        if budget is None:
            return [None] * len(self.groups)
        kept = self.work.get("budgets")
        if kept is None:
            budgets = divided(self.op, view, [[shape] for shape in self.groups], budget)
            self.work.record(budgets=[budget_state(each) for each in budgets])
            return budgets
        if not isinstance(budget, Target):
            return [budget] * len(self.groups)
        return resumed(budget, kept)

    def _allocate(self, n: int, columns: int) -> Floats:
        """Where a group's output adds up: row after row, so it may well be in a file."""
        if not self.outside:
            return aligned(n, columns)
        state_files.allocate(self._sum, 4 * (n * columns + SLACK))
        buffer = np.memmap(self._sum, np.float32, "r+", shape=(n * columns + SLACK,))
        self.pages.add(buffer)
        return buffer[: n * columns].reshape(n, columns)

    def _engine(self, view: View, shape: Shape, budget: Budget | None) -> Engine:
        if budget is None:
            return FullEngine(self.op, view, [shape], allocate=self._allocate)
        inherit, by_feature = self.needs.task.config.inherit, self.needs.task.by_feature
        return BlockEngine(self.op, view, [shape], budget, inherit, by_feature=by_feature, allocate=self._allocate)

    # ------------------------------------------------------------------------------------------------------- rotation

    def _rotated(self, basis: Basis) -> None:
        """The rows of all groups, back on the input's axes, into the result, and its trace."""
        kept = self.work.get("groups")
        done = [GroupRecord.of_dict(kept[str(shape.column)]) for shape in self.groups]
        assembly = Assembly(self.needs, basis, done)
        files = [self._file("coordinates", shape) for shape in self.groups]
        for file, each in zip(files, done, strict=True):
            if state_files.checksum(file) != each.crc:
                raise state_files.damaged(file)

        def made(first: int, last: int) -> list[Floats]:
            read = [state_files.rows(file, first, last, shape.width) for file, shape in zip(files, self.groups, strict=True)]
            return [assembly.rows(read)]

        n, f = self.features.n, self.features.f
        self._pass("rotation", [self.work.folder / RESULT], [f], made, (n, f))
        sync(self.work.folder / RESULT)
        self.work.record(summary=assembly.summary(local.added([each.hops for each in done]), self.began))


@dataclass
class _Laid(View):
    """A view whose columns have been laid out, group by group."""

    laid: dict[int, tuple[Path, int]]
    """By first column: the file and its checksum."""

    def fill(self, tile: Tile, square: Floats | None = None) -> None:
        began = perf_counter()
        file, expected = self.laid[tile.shape.column]
        width, crc = LANES * tile.shape.blocks, 0
        for first, last in self.features.chunks():
            rows = state_files.rows(file, first, last, width)
            crc = zlib.crc32(rows.view(np.uint8).data, crc)
            self._ingest(tile, rows, first, 0, square)
        if crc != expected:
            raise state_files.damaged(file)
        self.seconds += perf_counter() - began


def _on(rows: Floats, axes: Floats | None, shape: Shape) -> Floats:
    """Rows on the axes of a group, or its own columns of them."""
    if axes is not None:
        return np.asarray(rows @ axes)
    part = np.zeros((len(rows), shape.blocks * LANES), dtype=np.float32)
    part[:, : shape.width] = rows[:, shape.column : shape.column + shape.width]
    return part
