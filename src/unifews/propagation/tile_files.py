"""`max_error` in files: tile after tile, each recorded when it is finished, out of core or by workers that share the columns.

The tiles are those of memory (`lanczos`), and so is their result, to the bit. A hop gathers rows of one iterate, which is in
memory. It writes the next one and reads all earlier ones row after row, so that those which memory does not hold are
memory-mapped files; the one that a hop has written is then copied to memory, where the next hop gathers it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.distributed.communicator import Communicator
from unifews.kernels import SLACK
from unifews.kernels.formats import RowFormat, StoredRows
from unifews.propagation.chebyshev import Economised, chebyshev_tile
from unifews.propagation.features import FeatureMatrix, Floats
from unifews.propagation.folder import FolderStore
from unifews.propagation.lanczos import (
    Goal,
    NotReached,
    Outcome,
    TileResult,
    column_sums,
    fill_isolated,
    propagate_tile,
)
from unifews.propagation.store import GroupResult
from unifews.propagation.symmetric import SymmetricOperator
from unifews.propagation.tiles import Shape
from unifews.storage import state_files
from unifews.storage.pages import MappedPages

_LINE = 64  # bytes of a cache line, on which steps begin


@dataclass(frozen=True)
class TileRun:
    """All tiles, or the error of the first one that did not reach the goal."""

    groups: list[GroupResult]
    workers: list[Outcome]
    """The tiles of each."""
    error: float | None

    @property
    def outcome(self) -> Outcome:
        return _outcome(self.groups)


class TileColumns(FeatureMatrix):
    """The columns of a tile, in the row ranges of the whole matrix: over these sums add up."""

    def __init__(self, whole: FeatureMatrix, shape: Shape, layout: Path | None) -> None:
        """`layout`: a file that has them, float32 [n, blocks · 16]."""
        self.is_torch, self.device, self.sparse = False, None, None
        self._columns = slice(shape.column, shape.column + shape.width)
        self.dense = None if whole.dense is None else whole.dense[:, self._columns]
        self.n, self.f, self.exponent = whole.n, shape.width, whole.exponent
        self._whole, self._shape, self._layout = whole, shape, layout

    def chunks(self, columns: int | None = None) -> list[tuple[int, int]]:
        return self._whole.chunks(columns)

    def rows(self, first: int, last: int) -> Floats:
        if self._layout is None:
            return super().rows(first, last) if self.dense is not None else self._whole.rows(first, last)[:, self._columns]
        laid = state_files.rows(self._layout, first, last, self._shape.padded)
        return np.ascontiguousarray(laid[:, : self.f])

    def some(self, rows: NDArray[Any]) -> Floats:
        return super().some(rows) if self.dense is not None else self._whole.some(rows)[:, self._columns]


class TileFiles:
    """Mapped files of a tile: iterates but for the first ones, which stay in memory, and columns that are propagated again.

    Tiles take turns to use the files.
    """

    def __init__(self, folder: Path, held: int, pages: MappedPages | None) -> None:
        """`held`: how many iterates stay in memory."""
        self.folder, self.held, self.pages = folder, held, pages
        self._buffers: dict[str, NDArray[np.uint8]] = {}
        self._again = 0

    def begin(self) -> None:
        """The next tile: what the last one allocated is free."""
        self._again = 0

    def iterate(self, number: int, format: RowFormat, n: int, blocks: int) -> StoredRows | None:
        if number < self.held:
            return None
        row = format.empty(1, blocks)
        buffer, stride = self._buffer(f"iterate-{number}", n * row.nbytes), row.rows.shape[1]
        begin = -(-n * stride // _LINE) * _LINE
        rows = buffer[: n * stride].reshape(n, stride)
        steps = buffer[begin : begin + n * row.steps.size].reshape(n, -1) if row.steps.size else row.steps
        return StoredRows(np.asarray(rows), np.asarray(steps))

    def allocate(self, n: int, columns: int) -> Floats:
        self._again += 1
        size = 4 * n * columns
        return self._buffer(f"again-{self._again}", size)[:size].view(np.float32).reshape(n, columns)

    def _buffer(self, name: str, size: int) -> NDArray[np.uint8]:
        size += _LINE + 4 * SLACK
        if name not in self._buffers or len(self._buffers[name]) < size:
            if self.pages and name in self._buffers:
                self.pages.remove(self._buffers.pop(name))
            state_files.allocate(self.folder / name, size)
            self._buffers[name] = np.memmap(self.folder / name, np.uint8, "r+", shape=(size,))
            if self.pages:
                self.pages.add(self._buffers[name])
        return self._buffers[name]


def sums_of(store: FolderStore, op: SymmetricOperator, features: FeatureMatrix) -> NDArray[np.float64]:
    """Σ weight·q and Σ weight·q² of all columns [2, f], by the first worker, once, for all."""
    if store.rows_comm.size > 1:
        return column_sums(op, features)
    sums, file = np.empty((2, features.f)), store.folder / "sums"
    with store.comm.agreed():
        if store.journal:
            crc = store.journal.get("sums")
            if crc is None:
                sums[:] = column_sums(op, features)
                store.journal.record(sums=state_files.save(file, [sums]))
            else:
                state_files.load(file, [sums], crc)
    store.comm.broadcast(sums)
    return sums


def run_tiles(
    op: SymmetricOperator,
    features: FeatureMatrix,
    goal: Goal,
    shapes: list[Shape],
    store: FolderStore,
    comm: Communicator,
    laid: dict[int, tuple[Path, int]],
    files: TileFiles | None,
    report: Callable[[int, int], None],
) -> TileRun:
    """Propagate the tiles that the store does not have yet; workers take turns, or each has its rows of all of them.

    `laid`: files of columns, by the first.
    """
    way, memory = Economised.of(op.hop) if goal.method == "chebyshev" else None, list[Floats]()
    sums = sums_of(store, op, features)
    store.release(op.hop)
    op.release()
    has_all_columns = store.rows_comm.size > 1
    mine = list(range(len(shapes))) if has_all_columns else list(range(len(shapes)))[comm.rank :: comm.size]
    done: dict[int, GroupResult] = {}
    unreached: dict[int, float] = {}
    with nullcontext() if has_all_columns else comm.agreed():
        for turn, number in enumerate(mine):
            shape = shapes[number]
            with store.group([shape]) as place:
                found = place.finished()
                if found is None:
                    file, crc = laid.get(shape.column, (None, 0))
                    if file is not None and state_files.checksum(file) != crc:
                        raise state_files.damaged(file)
                    columns, own = TileColumns(features, shape, file), sums[:, shape.column : shape.column + shape.width]
                    values = place.allocate(features.n, shape.width)
                    if files is not None:
                        files.begin()
                    here, mine_goal = Shape(0, shape.width, shape.blocks), replace(goal, steps=goal.of_tile(shape))
                    try:
                        if way is None:
                            results = propagate_tile(op, columns, here, own, mine_goal, values)
                        else:
                            results = [chebyshev_tile(op, columns, here, own, way, mine_goal, values, memory)]
                    except NotReached as error:
                        unreached[number] = error.args[0]
                        break
                    fill_isolated(op, columns, values)
                    traffic = op.traffic(shape.width)
                    found = place.keep(values, lambda peak, crc: _result(results, shape, peak, crc, traffic))  # noqa: B023
                    report(turn + 1, len(mine))
            done[number] = found
    gathered: list[Any] = comm.all_gather([{n: each.to_dict() for n, each in done.items()}, unreached])
    failed = {int(number): error for _, errors in gathered for number, error in errors.items()}
    shares = [{int(number): GroupResult.of_dict(each) for number, each in worker.items()} for worker, _ in gathered]
    all_groups = {number: group for share in shares for number, group in share.items()}
    groups = [all_groups[number] for number in sorted(all_groups)]
    outcomes = [_outcome(list(share.values())) for share in shares]
    return TileRun(groups, outcomes, failed[min(failed)] if failed else None)


def _outcome(groups: list[GroupResult]) -> Outcome:
    return Outcome([TileResult.of_dict(tile) for group in groups for tile in group.tiles or []])


def _result(
    tiles: list[TileResult], shape: Shape, peak: float, crc: int, traffic: tuple[list[int], list[int]] | None
) -> GroupResult:
    placed = [TileResult.of_dict(tile.to_dict(), shape.column) for tile in tiles]
    return GroupResult([], 0, traffic=traffic, peak=peak, crc=crc, tiles=[tile.to_dict() for tile in placed])
