"""Cells side by side: processes that each carry out one after another, sharing out the cores."""

from __future__ import annotations

import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from unifews.errors import UnifewsError
from unifews.kernels import threads_to_use
from unifews.resources import keep_freed
from unifews.training.ledger import Busy, Ledger

if TYPE_CHECKING:
    from unifews.experiments.grid import Cell, Outcome

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_PATIENCE = 5.0  # seconds for a process to end


def side_by_side(
    todo: Sequence[Cell], ledger: Ledger, jobs: int, tell: Callable[[int, float, str], None]
) -> Generator[tuple[int, Outcome], None, None]:  # fmt: skip
    """(number of a cell, what came of it) as they finish; processes end with the iterator, whatever ends it."""
    jobs = min(jobs, len(todo))
    turns = deque((number, False) for number in range(len(todo)))  # and whether to wait for another process that is at it
    workers = []
    try:
        with _cores_shared(jobs):
            workers = [_Worker(ledger) for _ in range(jobs)]
        at = {worker.line: worker for worker in workers}
        for worker in workers:
            worker.give(todo, turns)
            tell(worker.number, 0.0, "")
        while busy := [line for line, worker in at.items() if worker.number >= 0]:
            for line in wait(busy):
                worker = at[line]  # type: ignore[index]
                kind, *said = worker.hear(todo)
                if kind == "at":
                    tell(worker.number, *said)
                    continue
                if kind == "broke":
                    raise said[0]
                number = worker.number
                if kind == "busy":
                    turns.append((number, True))
                worker.give(todo, turns)
                if kind == "done":
                    yield number, said[0]
                if worker.number >= 0:
                    tell(worker.number, 0.0, "")
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A process of ours, and the line to it."""

    def __init__(self, ledger: Ledger) -> None:
        context = get_context("spawn")  # a copy of this process would have torch's threads, but not what they were doing
        self.line, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, ledger), daemon=True)
        self.process.start()
        other.close()
        self.number = -1
        """Of the cell at hand; -1 = none."""

    def give(self, todo: Sequence[Cell], turns: deque[tuple[int, bool]]) -> None:
        """The next cell, if there is one left."""
        self.number, wait = turns.popleft() if turns else (-1, False)
        if self.number >= 0:
            self.line.send((todo[self.number], wait))

    def hear(self, todo: Sequence[Cell]) -> tuple[Any, ...]:
        try:
            said: tuple[Any, ...] = self.line.recv()
        except (EOFError, ConnectionError) as error:
            self.process.join(_PATIENCE)
            raise UnifewsError(
                f"the process that was at {todo[self.number].what} has ended (exit code {self.process.exitcode}): memory may "
                f'have run out, or a script calls this outside of `if __name__ == "__main__":`. What is finished is in the '
                f"ledger; the same call goes on from there, with fewer jobs in less memory."
            ) from error
        return said

    def end(self) -> None:
        self.line.close()
        self.process.kill()  # nothing is lost: what is finished is in the ledger
        self.process.join(_PATIENCE)


def carried_out(cell: Cell, ledger: Ledger, wait: bool, tell: Callable[[float, str], None]) -> dict[str, Any]:
    """The record of a cell, which one process carries out; `Busy` if another is at it and this one is not to `wait`."""
    waiting = partial(tell, 0.0, "waiting for another process")
    return ledger.once(cell.id, lambda: cell.run(ledger, tell), wait=wait, waiting=waiting)


def _serve(line: Connection, ledger: Ledger) -> None:
    """What a worker does: carry out what comes, until nobody is at the other end."""
    keep_freed()
    for stop in (signal.SIGINT, signal.SIGTERM):  # may reach all processes; the first one ends the others
        signal.signal(stop, signal.SIG_IGN)
    with suppress(EOFError, ConnectionError):
        while True:
            cell, wait = line.recv()
            try:
                record = carried_out(cell, ledger, wait, lambda part, words: line.send(("at", part, words)))
            except ConnectionError:  # nobody listens any more
                return
            except Busy:
                line.send(("busy",))
            except UnifewsError as error:
                line.send(("done", error))
            except Exception as error:
                line.send(("broke", _portable(error)))
            else:
                line.send(("done", record))


def _portable(error: Exception) -> Exception:
    """As it is, if it can be sent; else its words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


@contextmanager
def _cores_shared(jobs: int) -> Iterator[None]:
    """Processes started inside have their part of the cores, and threads that sleep while they wait."""
    mine = {name: os.environ.get(name) for name in (*_THREADS, "OMP_WAIT_POLICY")}
    os.environ.update(dict.fromkeys(_THREADS, str(max(1, threads_to_use(None) // jobs))))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        yield
    finally:
        for name, value in mine.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
