"""Cells of an experiment, each done once: what the ledger holds is taken from there, the rest is carried out and kept.

A cell is anything with an id that can be carried out in a process of its own (`Cell`); a mapping of settings is a training.

    outcomes = run_cells([{"dataset": "cora", "model": "gcn", "edge_sparsity": s} for s in (0.5, 0.8)], Ledger("runs"))
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Protocol

from unifews.errors import UnifewsError
from unifews.experiments.cell import trainings
from unifews.experiments.workers import carried_out, side_by_side
from unifews.training.checks import whole
from unifews.training.ledger import Busy, Ledger

Record = dict[str, Any]
Outcome = Record | UnifewsError
"""The record of a cell, or why there is none."""
Tell = Callable[[float, str], None]
"""Called by a cell as it goes on: the part of it that is done, 0 to 1, and a few words on what it is at."""


class Cell(Protocol):
    """A piece of work. It is pickled to get to the process that carries it out."""

    @property
    def id(self) -> str:
        """Under which its record is found in the ledger: it changes with whatever changes the result."""

    @property
    def what(self) -> str:
        """It in a few words."""

    @property
    def cost(self) -> float:
        """How long it may take, in a unit that all cells of a call share: time that is left is told by it."""

    def run(self, ledger: Ledger, tell: Tell) -> Record:
        """Carry it out, append the record to the ledger and return it."""


@dataclass(frozen=True)
class Status:
    """How far a call of `run_cells` is."""

    done: int
    of: int
    running: tuple[str, ...]
    """What each running cell is, and what it is at."""
    seconds_left: float | None
    """An estimate; None while there is nothing to tell it by."""


Progress = Callable[[Status], None]


def run_cells(
    cells: Sequence[Cell | Mapping[str, Any]],
    ledger: Ledger,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    later: float = 0.0,
) -> list[Outcome]:
    """Records of all cells, in their order.

    Settings of trainings are those of `train`, the dataset among them; all are checked, and their datasets loaded, before
    anything starts. A cell that turns out impossible later than that leaves its error in its place, and the others go on.
    Whatever stops the call, finished cells are in the ledger, as are finished seeds of trainings: the same call goes on there.
    Calls of several processes may share a ledger: a cell that one of them is at is done by it alone, others do theirs first and
    then wait for its record.
    `jobs` of them run at a time, in processes that share out the cores; a script that asks for several stands under
    ``if __name__ == "__main__":``, as each process reads it again. `later`: what the caller has to do afterwards costs, which
    counts in the time that is left.
    """
    jobs = whole("jobs", jobs, 1)
    ledger.check()
    given = iter(trainings([cell for cell in cells if isinstance(cell, Mapping)]))
    wanted: list[Cell] = [next(given) if isinstance(cell, Mapping) else cell for cell in cells]
    ids = {cell.id for cell in wanted}
    found: dict[str, Outcome] = {record["id"]: record for record in ledger.records() if record["id"] in ids}
    for done in found:  # a stop between keeping a record and clearing away its seeds
        ledger.drop_partial(done)
    todo = list({cell.id: cell for cell in wanted if cell.id not in found}.values())
    board = _Board(todo, len(ids), progress, later)
    if todo:
        work = side_by_side(todo, ledger, jobs, board.tell) if min(jobs, len(todo)) > 1 else _here(todo, ledger, board.tell)
        with closing(work) as outcomes:
            for number, outcome in outcomes:
                found[todo[number].id] = outcome
                board.finish(number)
    return [found[cell.id] for cell in wanted]


def _here(
    todo: Sequence[Cell], ledger: Ledger, tell: Callable[[int, float, str], None]
) -> Generator[tuple[int, Outcome], None, None]:
    turns = deque((number, False) for number in range(len(todo)))
    while turns:
        number, wait = turns.popleft()
        tell(number, 0.0, "")
        try:
            outcome: Outcome = carried_out(todo[number], ledger, wait, partial(tell, number))
        except Busy:
            turns.append((number, True))
            continue
        except UnifewsError as error:
            outcome = error
        yield number, outcome


class _Board:
    """What is going on, and how long it will take."""

    def __init__(self, todo: Sequence[Cell], of: int, progress: Progress | None, later: float) -> None:
        self.todo, self.of, self.progress, self.later = todo, of, progress, later
        self.began = perf_counter()
        self.finished: set[int] = set()
        self.first: dict[int, float] = {}
        """How far running cells were when they started: seeds of an earlier call took none of our time."""
        self.part: dict[int, float] = {}
        self.words: dict[int, str] = {}

    def tell(self, number: int, part: float, words: str) -> None:
        if words:
            self.first.setdefault(number, part)
        self.part[number], self.words[number] = part, words
        self._show()

    def finish(self, number: int) -> None:
        self.part[number] = 1.0
        self.finished.add(number)
        self._show()

    def _show(self) -> None:
        if self.progress is None:
            return
        running = tuple(
            f"{self.todo[number].what}{words and f', {words}'}"
            for number, words in self.words.items() if number not in self.finished
        )  # fmt: skip
        self.progress(Status(self.of - len(self.todo) + len(self.finished), self.of, running, self._left()))

    def _left(self) -> float | None:
        done = sum(self.todo[number].cost * (part - self.first.get(number, 0.0)) for number, part in self.part.items())
        left = self.later + sum(cell.cost * (1 - self.part.get(number, 0.0)) for number, cell in enumerate(self.todo))
        return left * (perf_counter() - self.began) / done if done else None
