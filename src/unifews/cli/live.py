"""Trainings as they go on, on stderr: one with its hops and every epoch, or many with what runs and the time left."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from unifews.cli.output import note
from unifews.resources import Progress

if TYPE_CHECKING:
    from unifews.experiments.runner import Progress as CellsProgress
    from unifews.experiments.runner import Status
    from unifews.training.api import Watch
    from unifews.training.loop import Epoch

_MINUTE = 60.0  # seconds


@contextmanager
def training(
    what: str, seed: int, seeds: int, first: str = "propagating"
) -> Iterator[tuple[Progress | None, Watch | None]]:  # fmt: skip
    """`progress` and `watch` for `train`, shown as one line that vanishes; a line a minute where stderr is no terminal.

    `first`: what comes before the first epoch.
    """

    def which(number: int) -> str:
        return f"{what}: seed {seed + number} ({number + 1} of {seeds})"

    if not sys.stderr.isatty():
        minutes = _Minutes()

        def log(number: int, epoch: Epoch) -> None:
            if minutes.is_over():
                note(f"{which(number)}, epoch {epoch.number + 1} of {epoch.of}, {told(epoch)}")

        yield None, log
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), MofNCompleteColumn(),
        TextColumn("{task.fields[told]}"), TimeElapsedColumn(),
    )  # fmt: skip
    with Bar(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(f"{what}: {first}", total=None, told="")

        def progress(done: int, total: int) -> None:
            shown.update(task, completed=done, total=total)

        def watch(number: int, epoch: Epoch) -> None:
            shown.update(task, description=which(number), completed=epoch.number + 1, total=epoch.of, told=told(epoch))

        yield progress, watch


@contextmanager
def cells(what: str) -> Iterator[CellsProgress | None]:
    """`progress` for `run_cells`: a bar that vanishes, `what` before it starts; a line a minute where stderr is no terminal."""
    if not sys.stderr.isatty():
        minutes = _Minutes()

        def log(status: Status) -> None:
            if status.done < status.of and minutes.is_over():
                words = [f"{status.done} of {status.of} runs", time_left(status.seconds_left), "; ".join(status.running)]
                note(", ".join(word for word in words if word))

        yield log
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    # What runs comes last: it is what may be cut off where a terminal is narrow.
    runs = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
    columns = (BarColumn(bar_width=16), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[left]}"), runs)
    with Bar(*columns, console=Console(stderr=True), transient=True, expand=True) as shown:
        task = shown.add_task(what, total=None, left="")

        def progress(status: Status) -> None:
            shown.update(
                task, description="; ".join(status.running), completed=status.done, total=status.of,
                left=time_left(status.seconds_left),
            )  # fmt: skip

        yield progress


class _Minutes:
    """When it is time for another line in a log: not in the first minute, and once in every other."""

    def __init__(self) -> None:
        self.told = perf_counter()

    def is_over(self) -> bool:
        over = perf_counter() - self.told >= _MINUTE
        self.told = perf_counter() if over else self.told
        return over


def time_left(seconds: float | None) -> str:
    """An estimate in words, no finer than it is: nothing, seconds, minutes or hours."""
    if not seconds:
        return ""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s left"
    return f"about {seconds / 60:.0f} min left" if seconds < 5400 else f"about {seconds / 3600:.1f} h left"


def told(epoch: Epoch) -> str:
    """What an epoch has to say for itself."""
    best = f" (best {epoch.best:.1f})" if epoch.best >= 0 else ""  # no epoch counts before the weights are sparse enough
    kept = f", {epoch.kept / epoch.weights:.0%} of weights kept" if epoch.kept < epoch.weights else ""
    return f"loss {epoch.loss:.3f}, validation {epoch.val:.1f}{best}{kept}"
