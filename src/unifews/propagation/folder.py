"""The state of a propagation in a working folder beside its result, from which another process resumes (docs/adr/0019, 0020).

    manifest.json            the task, and what all workers share: plan, budgets, trace (`unifews.storage.journal`)
    basis                    the axes and the mean
    layout-COLUMN            the columns of a group on the axes, out of core
    columns-COLUMN.work/     a group of columns: checkpoints, and the coordinates it ends with
    tiles-COLUMN.work/       the same with max_error, without checkpoints
    sums                     with max_error: sums over all columns
    iterate-N, again-N       and mapped files: iterates that memory does not hold, columns that are propagated again
    rows-RANK-of-SIZE.work/  how far a worker has come with its rows of the result
    embedding.npy            the result

Every file has a checksum in a manifest, and a call that resumes ends with the same bytes.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.trace import HopTrace
from unifews.distributed.communicator import Communicator, SingleProcess, restarts
from unifews.errors import FileFormatError, InputError
from unifews.kernels import LANES, SLACK, aligned
from unifews.propagation.basis import Basis
from unifews.propagation.budget import Budget, Target
from unifews.propagation.engines import Engine
from unifews.propagation.operator import HopOperator
from unifews.propagation.store import Budgets, GroupResult, peak_of, plain
from unifews.propagation.task import PropagationTask
from unifews.propagation.tiles import Floats, Shape, Tile
from unifews.propagation.view import View
from unifews.storage import state_files
from unifews.storage.atomic import naming, sync
from unifews.storage.journal import KIND, Journal, folder_of, open_journal
from unifews.storage.pages import MappedPages
from unifews.storage.state_files import AppendedFiles

RESULT = "embedding.npy"
FORM = 3  # of the files in the folder: 1 had a driver for each way of propagating, 2 other steps of int8
_WORTH = 5.0  # seconds of hops between checkpoints, for each second that writing a checkpoint takes


@dataclass(frozen=True)
class FileTarget:
    """The file that a result is written to, and what to do with one that is there, finished or not."""

    out: Path
    overwrite: bool = False
    restart: bool = False
    checkpoint_every_hop: bool = False
    """Whether the state of the hops is saved after each of them, whatever time that takes, or as often as costs little."""


class FolderStore:
    """The working folder of a result, which all workers see. Methods are called by each of them unless they say otherwise."""

    kind = "columns"
    """Of groups of columns, in the names of their folders; "tiles" where `max_error` decides about their hops."""
    outside = False
    """Whether the output of a group adds up in a file."""
    pages: MappedPages | None = None
    """Of mapped files, released during the work."""

    def __init__(self, target: FileTarget, journal: Journal | None, comm: Communicator, rows_comm: Communicator) -> None:
        """`journal`: what all share, of the first worker; `rows_comm`: the workers that each have some rows of every group."""
        self.target, self.journal, self.comm, self.rows_comm = target, journal, comm, rows_comm
        self.folder = folder_of(target.out)

    @classmethod
    @contextmanager
    def open(
        cls,
        target: FileTarget,
        identity: tuple[dict[str, Any], Sequence[Path]],
        comm: Communicator,
        rows_comm: Communicator | None = None,
    ) -> Iterator[FolderStore]:
        """New, or as an earlier call left it, which must have had the same `identity` (`PropagationTask.identity`)."""
        with ExitStack() as stack:
            journal = None
            with comm.agreed():
                if comm.rank == 0:
                    restart = target.restart and not restarts()
                    journal = stack.enter_context(open_journal(target.out, *identity, restart=restart))
                    _check_form(journal)
            store = cls(target, journal, comm, rows_comm or SingleProcess())
            with comm.agreed():
                if not KIND.describes(store.folder):
                    raise InputError(
                        f"there is no {store.folder} there; all workers need one folder to write to, on a shared disk."
                    )
            if journal:
                stack.enter_context(journal.writing())
            yield store

    # ------------------------------------------------------------------------------------------------- what all share

    def get(self, step: str) -> Any:
        """What was recorded of a step, None before it has begun."""
        return self.comm.all_gather(self.journal.get(step) if self.journal else None)[0]

    def record(self, **done: Any) -> None:
        if self.journal:
            self.journal.record(**done)

    def forget(self, **done: Any) -> None:
        """Start the steps over, of which no result is used; called between steps, with what to record of that."""
        self.comm.barrier()
        if self.journal:
            self.journal.record(**done, plan=None, layout=None)
            for folder in self.folder.glob(f"{self.kind}-*"):
                shutil.rmtree(folder)
            for file in [*self.folder.glob("iterate-*"), *self.folder.glob("again-*")]:
                file.unlink()
        self.kind = FolderStore.kind

    def remove(self) -> None:
        if self.journal:
            self.journal.remove()

    def basis(self, task: PropagationTask) -> Basis:
        """As one process finds it: by the first worker, once, for all."""
        file, basis, is_read = self.folder / "basis", None, False
        with self.comm.agreed():
            if self.journal and self.journal.get("basis") is None:
                basis = task.find_basis()
                shapes = [None if array is None else array.shape for array in (basis.axes, basis.mean)]
                facts = {"macs": basis.macs, "seconds": basis.seconds, "crc": state_files.save(file, basis.arrays())}
                self.journal.record(basis={"shapes": shapes, **facts})
        facts = self.get("basis")
        if basis is None:
            axes, mean = (None if shape is None else np.empty(shape, dtype=np.float32) for shape in facts["shapes"])
            basis = Basis(axes, mean, facts["macs"], facts["seconds"])
            is_read = self.journal is not None
        with self.comm.agreed():
            if is_read:
                state_files.load(file, basis.arrays(), facts["crc"])
        for array in basis.arrays():
            self.comm.broadcast(array)
        return basis

    def budgets(self, budget: Budget | None, make: Callable[[], Budgets]) -> Budgets:
        if not isinstance(budget, Target):
            return make()
        kept = self.get("budgets")
        if kept is None:
            made = make()
            self.record(budgets=[each and each.state() for each in made])
            return made
        again = [replace(budget) for _ in kept]
        for each, state in zip(again, kept, strict=True):
            each.resume(state)
        return [*again]

    def release(self, op: HopOperator) -> None:
        op.release()

    # ------------------------------------------------------------------------------------------------ groups of columns

    @contextmanager
    def group(self, shapes: list[Shape]) -> Iterator[_GroupFolder]:
        """Called by the workers of `rows_comm`."""
        (shape,) = shapes
        columns = {"columns": [shape.column, shape.width, shape.blocks]}
        with open_journal(self._name(shape), columns) as journal, (self.journal or journal).writing():
            yield _GroupFolder(self, journal, shape)

    def _name(self, shape: Shape) -> Path:
        worker = f"-worker-{self.rows_comm.rank}" if self.rows_comm.size > 1 else ""
        return self.folder / f"{self.kind}-{shape.column}{worker}"

    def coordinates(self, shape: Shape) -> Path:
        """The coordinates of a group, float32 [rows of this worker, width]."""
        return folder_of(self._name(shape)) / "coordinates"

    def layout(self, shape: Shape) -> Path:
        return self.folder / f"layout-{shape.column}"

    def lay_out(self, view: View, shapes: list[Shape]) -> LaidOutView:
        """The columns of each group, on the axes, in a file of their own [n, blocks · 16]: X is read once for all of them."""
        assert self.journal is not None
        chunks, state = view.features.chunks(), self.journal.get("layout") or {"chunks": 0, "files": {}}
        files = AppendedFiles(self.folder, state["files"])
        axes = [None if view.basis.axes is None else view.axes(shape) for shape in shapes]

        def append(chunk: tuple[int, int]) -> None:
            rows = view.features.rows(*chunk)
            for axis, shape in zip(axes, shapes, strict=True):
                files.append(self.layout(shape).name, _on(rows, axis, shape))
            state["chunks"] += 1

        if state["chunks"] < len(chunks):  # otherwise what is read later is compared with its checksum then
            files.restore([self.layout(shape).name for shape in shapes])
            self.journal.append_resumably("layout", state, chunks[state["chunks"] :], append)
        laid = {shape.column: (self.layout(shape), files.recorded[self.layout(shape).name][1]) for shape in shapes}
        return LaidOutView(view.features, view.basis, view.op, laid)

    # ------------------------------------------------------------------------------------------------------ the result

    def write_rows(
        self,
        shape: tuple[int, int],
        pieces: list[tuple[int, int]],
        numbers: Callable[[int, int], NDArray[np.int64]],
        made: Callable[[int, int], Floats],
    ) -> None:
        """The rows of this worker into the result of this shape, some at a time; `numbers` are theirs, `made` their values."""
        result, comm = SharedRows(self.folder / RESULT, shape), self.comm
        with comm.agreed():
            if self.journal and not self.journal.get("created"):
                result.create()
                self.journal.record(created=True)
        rank = {"rank": comm.rank, "size": comm.size}
        with open_journal(self.folder / "rows-{rank}-of-{size}".format(**rank), rank) as journal:
            state, crc = journal.get("rows") or {"pieces": 0, "crc": 0}, 0
            with comm.agreed():
                for piece in pieces[: state["pieces"]]:
                    crc = zlib.crc32(result.read(numbers(*piece)), crc)
                if crc != state["crc"]:
                    raise state_files.damaged(result.file)

            def append(piece: tuple[int, int]) -> None:
                values = made(*piece)
                result.write(numbers(*piece), values)
                state["crc"] = zlib.crc32(values.data, state["crc"])
                state["pieces"] += 1

            with comm.agreed(), (self.journal or journal).writing():
                journal.append_resumably("rows", state, pieces[state["pieces"] :], append)
                sync(result.file)


class _GroupFolder:
    """The folder of one group of columns: where its hops stand, in two files that take turns, and what they end with.

    Workers that each have some rows save after the same hops; each has the last two states, so that all of them share one.
    """

    def __init__(self, store: FolderStore, journal: Journal, shape: Shape) -> None:
        self.store, self.journal, self.shape, self.comm = store, journal, shape, store.rows_comm
        self.since, self.cost = perf_counter(), 0.0

    def allocate(self, n: int, columns: int) -> Floats:
        if not self.store.outside:
            return aligned(n, columns)
        state_files.allocate(self._sum, 4 * (n * columns + SLACK))
        buffer = np.memmap(self._sum, np.float32, "r+", shape=(n * columns + SLACK,))
        if self.store.pages:
            self.store.pages.add(buffer)
        return buffer[: n * columns].reshape(n, columns)

    def finished(self) -> GroupResult | None:
        done, file = self.journal.get("done"), self.store.coordinates(self.shape)
        if not all(self.comm.all_gather(done is not None)):
            return None
        with self.comm.agreed():
            if state_files.checksum(file) != done["crc"]:
                raise state_files.damaged(file)
        self._clear()
        return GroupResult.of_dict(done)

    def resume(self, engine: Engine) -> list[HopTrace]:
        states = {len(state["hops"]): state for state in self.journal.get("states") or []}
        common = set.intersection(*(set(each) for each in self.comm.all_gather(sorted(states))))
        kept = [states[max(common)]] if common else []
        if len(states) > len(kept):
            self.journal.record(states=kept)  # the others are overwritten next and must not be resumed from
        if not kept:
            return []
        (state,) = kept
        engine.resume(state["engine"])
        with self.comm.agreed():
            state_files.load(self._state(state["slot"]), engine.arrays(), state["crc"])
        return [HopTrace(**hop) for hop in state["hops"]]

    def checkpoint(self, engine: Engine, hops: list[HopTrace]) -> None:
        is_due = self.store.target.checkpoint_every_hop or perf_counter() - self.since >= _WORTH * self.cost
        if not engine.continues(len(hops)) or not self.comm.maximum(float(is_due)):
            return
        began, states = perf_counter(), self.journal.get("states") or []
        slot = 1 - states[-1]["slot"] if states else 0
        crc = state_files.save(self._state(slot), engine.arrays())
        state = {"slot": slot, "crc": crc, "hops": [plain(hop) for hop in hops], "engine": engine.facts()}
        self.journal.record(states=[*states[-1:], state])
        self.since = perf_counter()
        self.cost = self.since - began

    def finish(self, engine: Engine, hops: list[HopTrace]) -> GroupResult:
        values = np.ascontiguousarray(engine.result()[: engine.op.rows])
        return self.keep(values, lambda peak, crc: GroupResult.of(engine, hops, peak, crc))

    def keep(self, values: Floats, made: Callable[[float, int], GroupResult]) -> GroupResult:
        """The values of the group's columns; `made` gives the record of their largest magnitude and their checksum."""
        peak, crc = self.comm.maximum(peak_of(values)), state_files.save(self.store.coordinates(self.shape), [values])
        result = made(peak, crc)
        self.journal.record(done=result.to_dict())
        self.comm.barrier()  # a worker that is lost before all have finished resumes from a state that all have
        self._clear()
        return result

    def _clear(self) -> None:
        for file in (self._state(0), self._state(1), self._sum, self.store.layout(self.shape)):
            file.unlink(missing_ok=True)

    def _state(self, slot: int) -> Path:
        return self.journal.folder / f"state-{slot}"

    @property
    def _sum(self) -> Path:
        return self.journal.folder / "sum"


class SharedRows:
    """A `.npy` matrix of float32 of which several workers write rows."""

    def __init__(self, file: Path, shape: tuple[int, int]) -> None:
        self.file, self.shape = file, shape

    def create(self) -> None:
        state_files.write_header(self.file, np.dtype(np.float32), self.shape)
        os.truncate(self.file, state_files.HEADER + 4 * self.shape[0] * self.shape[1])

    def write(self, numbers: NDArray[np.int64], values: Floats) -> None:
        """Rows of these numbers, ascending."""
        with naming(self.file), self.file.open("r+b") as out:
            for place, first, last in self._runs(numbers):
                out.seek(place)
                out.write(values[first:last].data)

    def read(self, numbers: NDArray[np.int64]) -> bytes:
        if not self.file.exists():
            raise state_files.damaged(self.file)
        parts = []
        with self.file.open("rb") as file:
            for place, first, last in self._runs(numbers):
                file.seek(place)
                parts.append(file.read(4 * self.shape[1] * (last - first)))
        return b"".join(parts)

    def _runs(self, numbers: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
        """Neighbouring rows: where they begin in the file, and which of `numbers` they are."""
        ends = (np.flatnonzero(np.diff(numbers) != 1) + 1).tolist()
        for first, last in zip([0, *ends], [*ends, len(numbers)], strict=True):
            if last > first:
                yield state_files.HEADER + 4 * self.shape[1] * int(numbers[first]), first, last


@dataclass
class LaidOutView(View):
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


def _check_form(journal: Journal) -> None:
    """Refuse the folder of an earlier release, whose files are others."""
    begun = any(journal.get(step) is not None for step in ("plan", "shapes", "owners", "basis"))
    if begun and (journal.get("plan") or {}).get("form") != FORM:
        raise FileFormatError(
            f"{journal.folder} was left by an earlier release of unifews, whose unfinished work this one does not continue. "
            f"Finish it with that release, or start over with restart=True (--restart), or by deleting {journal.folder}."
        )
