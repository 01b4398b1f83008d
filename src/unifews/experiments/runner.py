"""Runs cells of experiments, each once: records that the ledger holds are reused, the others are computed and appended to it.

A cell is any piece of work with an id that a process of its own can run (`Cell`); a mapping of settings is a training.

    results = run_cells([{"dataset": "cora", "model": "gcn", "edge_sparsity": s} for s in (0.5, 0.8)], Ledger("runs"))
"""

from __future__ import annotations

import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from os import PathLike, fspath
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from unifews.core.checks import check_count
from unifews.datasets.dataset import Dataset
from unifews.datasets.load import load_dataset
from unifews.errors import InputError, UnifewsError
from unifews.kernels import threads_to_use
from unifews.resources import keep_freed
from unifews.training.job import TrainingJob
from unifews.training.ledger import Busy, Ledger
from unifews.training.spec import TrainSpec

if TYPE_CHECKING:
    from unifews.training.loop import Epoch

Record = dict[str, Any]
Outcome = Record | UnifewsError
"""The record of a cell, or the error that it ended with."""
Advance = Callable[[float, str], None]
"""Called by a running cell with the fraction of it that is done, 0 to 1, and its current step: "seed 3, epoch 7"."""
_Work = Generator[tuple[int, Outcome], None, None]
"""(number of a cell, its outcome) as cells finish."""

_EPOCH_OVERHEAD = 1e7  # multiply-adds that the fixed cost of an epoch corresponds to
_THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_EXIT_SECONDS = 5.0  # to wait for a worker process to exit


class Cell(Protocol):
    """A piece of work. It is pickled to be sent to a worker process."""

    @property
    def id(self) -> str:
        """Of its record in the ledger: it changes with whatever changes the result."""

    @property
    def what(self) -> str:
        """A short description for progress and error messages."""

    @property
    def cost(self) -> float:
        """Estimated time, in a unit that all cells of a call share; the remaining time is estimated from it."""

    def run(self, ledger: Ledger, advance: Advance) -> Record:
        """Compute the record, append it to the ledger and return it."""


# ------------------------------------------------------------------------------------------------------------- trainings


@dataclass(frozen=True)
class TrainingCell:
    """One call of `train`."""

    spec: TrainSpec
    source: str | Dataset
    """The dataset, or the name or path it is loaded from."""
    data_id: str
    """Fingerprint of the dataset."""
    cost: float

    @property
    def id(self) -> str:
        return self.spec.id_of(self.data_id)

    @property
    def what(self) -> str:
        spec = self.spec
        amounts = [f"{side} {value:g}" for side in ("edge", "weight") if (value := getattr(spec, f"{side}_sparsity"))]
        return " ".join([spec.dataset, spec.model, spec.method if spec.prunes else "unpruned", *amounts])

    def run(self, ledger: Ledger, advance: Advance) -> Record:
        """See `Cell`; seeds that an interrupted call finished are not trained again."""

        def watch(number: int, epoch: Epoch) -> None:
            part = (number + epoch.number / epoch.of) / self.spec.seeds
            advance(part, f"seed {self.spec.seed + number}, epoch {epoch.number + 1}")

        job = TrainingJob.prepare(dataset_of(self.source), self.spec, data_id=self.data_id)
        return job.train(ledger, watch=watch).to_dict()


def training_cells(cells: Sequence[Mapping[str, Any]]) -> list[TrainingCell]:
    """A cell for each mapping of settings; all settings are checked first, then the datasets are loaded and checked."""
    _loaded.cache_clear()  # files may have changed since the last call
    specs = []
    for cell in cells:
        if "dataset" not in cell:
            raise InputError(f"a training needs a `dataset`; {dict(cell)} has none.")
        specs.append(TrainSpec.of({**cell, "dataset": ""}))
    made: list[TrainingCell] = []
    job: TrainingJob | None = None
    for cell, spec in zip(cells, specs, strict=True):
        source = fspath(cell["dataset"]) if isinstance(cell["dataset"], PathLike) else cell["dataset"]
        data = dataset_of(source)
        spec = replace(spec, dataset=data.name)
        # Consecutive cells mostly share dataset and seeds: the dataset is fingerprinted and split once for all of them.
        job = job.with_spec(spec) if job is not None and job.data is data else TrainingJob.prepare(data, spec)
        made.append(TrainingCell(spec, source, job.data_id, spec.seeds * spec.recipe.epochs * epoch_cost(data, spec)))
    return made


def epoch_cost(data: Dataset, spec: TrainSpec) -> float:
    """Approximate multiply-adds of an epoch, the unit of `Cell.cost`."""
    recipe, nodes, features = spec.recipe, data.num_nodes, data.num_features
    entries = getattr(data.x, "nnz", nodes * features) if spec.is_layered else nodes * features
    weights = entries * recipe.width + nodes * recipe.width * (recipe.width * max(recipe.layers - 2, 0) + data.num_classes)
    messages = data.graph.num_edges * recipe.width * recipe.layers if spec.is_layered else 0
    return float(_EPOCH_OVERHEAD + 3 * (weights + messages))  # one product forward, two backward


def dataset_of(source: str | Dataset) -> Dataset:
    """The dataset of a cell; the one loaded last is cached."""
    return source if isinstance(source, Dataset) else _loaded(source)


@lru_cache(maxsize=1)
def _loaded(source: str) -> Dataset:
    return load_dataset(source)


# --------------------------------------------------------------------------------------------------------------- running


@dataclass(frozen=True)
class Status:
    """Progress of a call of `run_cells`."""

    done: int
    of: int
    running: tuple[str, ...]
    """Each running cell and its current step."""
    seconds_left: float | None
    """An estimate; None before the first measurement."""


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

    Settings are those of `train`, including the dataset; all are checked, and their datasets loaded, before the first training
    starts. A cell that fails later has its error in its place, and the others continue. If the call is interrupted, finished
    cells and finished seeds of trainings are in the ledger: the same call continues there. Processes may share a ledger: each
    cell is run by one of them, the others run theirs first and then wait for its record.

    `jobs` cells run at a time, in processes that divide the cores among them; a script with ``jobs > 1`` needs
    ``if __name__ == "__main__":``, as each process imports it. `later`: cost of the caller's work after this call, included in
    the remaining time.
    """
    jobs = check_count("jobs", jobs)
    ledger.check()
    given = iter(training_cells([cell for cell in cells if isinstance(cell, Mapping)]))
    wanted: list[Cell] = [next(given) if isinstance(cell, Mapping) else cell for cell in cells]
    ids = {cell.id for cell in wanted}
    found: dict[str, Outcome] = {record["id"]: record for record in ledger.records() if record["id"] in ids}
    for done in found:  # left over if a call was interrupted between appending a record and deleting its seeds
        ledger.drop_partial(done)
    todo = list({cell.id: cell for cell in wanted if cell.id not in found}.values())
    monitor = _Monitor(todo, len(ids), progress, later)
    if todo:
        parallel = min(jobs, len(todo)) > 1
        work = _in_workers(todo, ledger, jobs, monitor.update) if parallel else _in_process(todo, ledger, monitor.update)
        with closing(work) as outcomes:
            for number, outcome in outcomes:
                found[todo[number].id] = outcome
                monitor.finish(number)
    return [found[cell.id] for cell in wanted]


class _Monitor:
    """Collects the progress of cells and estimates the remaining time."""

    def __init__(self, todo: Sequence[Cell], of: int, progress: Progress | None, later: float) -> None:
        self.todo, self.of, self.progress, self.later = todo, of, progress, later
        self.began = perf_counter()
        self.finished: set[int] = set()
        self.first: dict[int, float] = {}
        """The fraction at which running cells started: seeds of an earlier call took no time of this one."""
        self.part: dict[int, float] = {}
        self.step: dict[int, str] = {}

    def update(self, number: int, part: float, step: str) -> None:
        if step:
            self.first.setdefault(number, part)
        self.part[number], self.step[number] = part, step
        self._show()

    def finish(self, number: int) -> None:
        self.part[number] = 1.0
        self.finished.add(number)
        self._show()

    def _show(self) -> None:
        if self.progress is None:
            return
        running = tuple(
            f"{self.todo[number].what}{step and f', {step}'}"
            for number, step in self.step.items()
            if number not in self.finished
        )
        self.progress(Status(self.of - len(self.todo) + len(self.finished), self.of, running, self._seconds_left()))

    def _seconds_left(self) -> float | None:
        done = sum(self.todo[number].cost * (part - self.first.get(number, 0.0)) for number, part in self.part.items())
        left = self.later + sum(cell.cost * (1 - self.part.get(number, 0.0)) for number, cell in enumerate(self.todo))
        return left * (perf_counter() - self.began) / done if done else None


def _run_once(cell: Cell, ledger: Ledger, wait: bool, advance: Advance) -> Record:
    """The record of a cell; `Busy` if another process runs it and `wait` is false."""
    waiting = partial(advance, 0.0, "waiting for another process")
    return ledger.once(cell.id, lambda: cell.run(ledger, advance), wait=wait, waiting=waiting)


def _in_process(todo: Sequence[Cell], ledger: Ledger, update: Callable[[int, float, str], None]) -> _Work:
    """One cell after another in this process."""
    queue = deque((number, False) for number in range(len(todo)))  # and whether to wait for another process that runs it
    while queue:
        number, wait = queue.popleft()
        update(number, 0.0, "")
        try:
            outcome: Outcome = _run_once(todo[number], ledger, wait, partial(update, number))
        except Busy:
            queue.append((number, True))
            continue
        except UnifewsError as error:
            outcome = error
        yield number, outcome


# --------------------------------------------------------------------------------------------------------------- workers


def _in_workers(todo: Sequence[Cell], ledger: Ledger, jobs: int, update: Callable[[int, float, str], None]) -> _Work:
    """Cells in worker processes, which end with the iterator, however it ends."""
    jobs = min(jobs, len(todo))
    queue = deque((number, False) for number in range(len(todo)))
    workers = []
    try:
        with _cores_divided(jobs):
            workers = [_Worker(ledger) for _ in range(jobs)]
        by_pipe = {worker.pipe: worker for worker in workers}
        for worker in workers:
            worker.send_next(todo, queue)
            update(worker.number, 0.0, "")
        while busy := [pipe for pipe, worker in by_pipe.items() if worker.number >= 0]:
            for pipe in wait(busy):
                worker = by_pipe[pipe]  # type: ignore[index]
                kind, *content = worker.receive(todo)
                if kind == "progress":
                    update(worker.number, *content)
                    continue
                if kind == "failed":
                    raise content[0]
                number = worker.number
                if kind == "busy":
                    queue.append((number, True))
                worker.send_next(todo, queue)
                if kind == "done":
                    yield number, content[0]
                if worker.number >= 0:
                    update(worker.number, 0.0, "")
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """A worker process and the pipe to it."""

    def __init__(self, ledger: Ledger) -> None:
        context = get_context("spawn")  # a fork would copy torch's locks without the threads that hold them
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_worker_main, args=(other, ledger), daemon=True)
        self.process.start()
        other.close()
        self.number = -1
        """Of the cell it runs; -1 = none."""

    def send_next(self, todo: Sequence[Cell], queue: deque[tuple[int, bool]]) -> None:
        """The next cell of the queue, if there is one."""
        self.number, wait = queue.popleft() if queue else (-1, False)
        if self.number >= 0:
            self.pipe.send((todo[self.number], wait))

    def receive(self, todo: Sequence[Cell]) -> tuple[Any, ...]:
        """The next message of `_worker_main`."""
        try:
            message: tuple[Any, ...] = self.pipe.recv()
        except (EOFError, ConnectionError) as error:
            self.process.join(_EXIT_SECONDS)
            raise UnifewsError(
                f"the worker process of {todo[self.number].what} exited with code {self.process.exitcode}: out of memory, or a "
                f'script that calls this outside of `if __name__ == "__main__":`. Finished cells are in the ledger; repeat the '
                f"call to continue, with fewer jobs if memory is short."
            ) from error
        return message

    def stop(self) -> None:
        self.pipe.close()
        self.process.kill()  # nothing is lost: finished cells are in the ledger
        self.process.join(_EXIT_SECONDS)


def _worker_main(pipe: Connection, ledger: Ledger) -> None:
    """Runs the cells that arrive until the pipe is closed."""
    keep_freed()
    for stop in (signal.SIGINT, signal.SIGTERM):  # may reach all processes; the parent stops its workers
        signal.signal(stop, signal.SIG_IGN)
    with suppress(EOFError, ConnectionError):
        while True:
            cell, wait = pipe.recv()
            try:
                record = _run_once(cell, ledger, wait, lambda part, step: pipe.send(("progress", part, step)))
            except ConnectionError:  # the parent is gone
                return
            except Busy:
                pipe.send(("busy",))
            except UnifewsError as error:
                pipe.send(("done", error))
            except Exception as error:
                pipe.send(("failed", _picklable(error)))
            else:
                pipe.send(("done", record))


def _picklable(error: Exception) -> Exception:
    """The error itself if it can be pickled, else its message."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


@contextmanager
def _cores_divided(jobs: int) -> Iterator[None]:
    """Processes started inside get their part of the cores, and threads that sleep while they wait."""
    before = {name: os.environ.get(name) for name in (*_THREAD_LIMITS, "OMP_WAIT_POLICY")}
    os.environ.update(dict.fromkeys(_THREAD_LIMITS, str(max(1, threads_to_use(None) // jobs))))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
