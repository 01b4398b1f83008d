"""What a command shows: results on stdout (tables or JSON), notes and progress on stderr, by the first of several workers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import typer

from unifews.errors import InputError, MissingFileError
from unifews.resources import Progress, launched

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from unifews.distributed.communicator import ProcessGroup
    from unifews.experiments.runner import Progress as CellsProgress
    from unifews.experiments.runner import Status
    from unifews.training.api import Watch
    from unifews.training.ledger import Ledger
    from unifews.training.loop import Epoch

Json = dict[str, Any]
"""A record or report as it is written to JSON."""
Update = Callable[[str, int, int | None], None]
"""Text, steps done, total number of steps (None: unknown)."""

_WIDTH = 112  # columns of a table that is not printed to a terminal
_LOG_INTERVAL = 60.0  # seconds between progress lines where stderr is no terminal
_SKIPPED_LINES = 8  # skipped lines of a ledger that are reported one by one


# --------------------------------------------------------------------------------------------------------------- stdout


def echo(*lines: object) -> None:
    """Print lines to stdout as they are."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def print_json(value: Mapping[str, Any]) -> None:
    echo(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN; they are written as strings."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and value - value != 0 else value


def new_table(titles: Sequence[str], *, right: Sequence[str] = (), wrap: Sequence[str] = ()) -> Table:
    """A table with these columns; `right`: aligned to the right, `wrap`: may be broken into several lines."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for title in titles:
        table.add_column(title, justify="right" if title in right else "left", no_wrap=title not in wrap)
    return table


def rich_console() -> Console:
    """Prints to stdout."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)


def print_table(table: Table, *, wrap: bool = False) -> None:
    """Print a table at its full width, so that no digit is cut off; `wrap`: at the width of the terminal."""
    console = rich_console()
    if not wrap:
        console.width = max(console.width, console.measure(table, options=console.options.update(width=1000)).maximum)
    console.print(table)


# --------------------------------------------------------------------------------------------------------------- stderr


def note(message: str) -> None:
    sys.stderr.write(f"note: {message}\n")


def report_skipped(ledger: Ledger) -> None:
    """Report which lines of a ledger cannot be read: their runs are not reused."""
    skipped = ledger.skipped()
    for number, why in skipped[:_SKIPPED_LINES]:
        note(f"line {number} of {ledger.path} {why}, so the run in it is not known any more; delete the line.")
    if len(skipped) > _SKIPPED_LINES:
        note(f"{len(skipped) - _SKIPPED_LINES:,} more lines of {ledger.path} are skipped.")


@contextmanager
def progress_bar(text: str) -> Iterator[Update | None]:
    """A progress bar on stderr that is removed when done; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress as rich
    from rich.console import Console
    from rich.table import Column

    # The text comes last: it is what may be cut off in a narrow terminal.
    column = rich.TextColumn(
        "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
    )
    columns = (rich.BarColumn(bar_width=24), rich.MofNCompleteColumn(), rich.TimeElapsedColumn(), column)
    with rich.Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as shown:
        task = shown.add_task(text, total=None)
        yield lambda text, done, total: shown.update(task, description=text, completed=done, total=total)


@contextmanager
def progress(text: str) -> Iterator[Progress | None]:
    """A progress bar of one piece of work."""
    with progress_bar(text) as update:
        yield None if update is None else lambda done, total: update(text, done, total)


@contextmanager
def status() -> Iterator[Callable[[str], None]]:
    """Shows what is being done, without a number of steps."""
    with progress_bar("") as update:
        yield lambda text: None if update is None else update(text, 0, None)


@contextmanager
def training_progress(name: str, seed: int, seeds: int, first: str = "propagating") -> Iterator[tuple[Progress | None, Watch]]:
    """`progress` and `watch` of `train`: a bar, or a line per minute in a log. `first`: what precedes the first epoch."""
    with progress_bar(f"{name}: {first}") as update:
        show = update or _log_every_minute("epochs")

        def watch(number: int, epoch: Epoch) -> None:
            which = f"{name}: seed {seed + number} ({number + 1} of {seeds})"
            show(f"{which}, {epoch_summary(epoch)}", epoch.number + 1, epoch.of)

        yield None if update is None else lambda done, total: update(f"{name}: {first}", done, total), watch


@contextmanager
def cells_progress(text: str) -> Iterator[CellsProgress]:
    """`progress` of `run_cells`: a bar, or a line per minute in a log."""
    with progress_bar(text) as update:
        show = update or _log_every_minute("runs")

        def watch(cells: Status) -> None:
            parts = [time_left(cells.seconds_left), "; ".join(cells.running)]
            show(", ".join(part for part in parts if part), cells.done, cells.of)

        yield watch


def _log_every_minute(unit: str) -> Update:
    """Notes on stderr: none in the first minute, then at most one per minute."""
    last = perf_counter()

    def log(text: str, done: int, total: int | None) -> None:
        nonlocal last
        if done != total and perf_counter() - last >= _LOG_INTERVAL:
            last = perf_counter()
            note(f"{text} ({done} of {total} {unit})")

    return log


def time_left(seconds: float | None) -> str:
    """An estimate in seconds, minutes or hours; empty if unknown."""
    if not seconds:
        return ""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s left"
    return f"about {seconds / 60:.0f} min left" if seconds < 5400 else f"about {seconds / 3600:.1f} h left"


def epoch_summary(epoch: Epoch) -> str:
    """Loss, validation score and fraction of weights kept."""
    best = f" (best {epoch.best:.1f})" if epoch.best >= 0 else ""  # negative until the weights have their target sparsity
    kept = f", {epoch.kept / epoch.weights:.0%} of weights kept" if epoch.kept < epoch.weights else ""
    return f"loss {epoch.loss:.3f}, validation {epoch.val:.1f}{best}{kept}"


# --------------------------------------------------------------------------------------------------------- output files


def check_output(
    path: Path,
    suffixes: Sequence[str] = (),
    *,
    overwrite: bool = False,
    inputs: Sequence[Path] = (),
    option: str = "--out",
) -> None:
    """Fail early if `path` cannot be written. `suffixes`: of a file; without them it is a folder."""
    if suffixes and path.suffix not in suffixes:
        raise InputError(f"{option} {path} must end in {' or '.join(suffixes)}.")
    if not path.parent.is_dir():
        raise MissingFileError(f"cannot write {path}: there is no folder {path.parent}.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {path}: the folder {path.parent} is write-protected.")
    if not path.exists():
        return
    if suffixes and path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder.")
    if any(other.exists() and path.samefile(other) for other in inputs):
        raise InputError(f"{path} is one of the inputs; choose another {option}.")
    if not overwrite:
        replace = "add --overwrite to replace it, or " if option == "--out" else ""
        raise InputError(f"{path} already exists; {replace}choose another {option}.")


def check_page(out: Path) -> None:
    """Fail early if an HTML page cannot be written; a file that is not such a page is not replaced."""
    from unifews.report.tables import check_file

    check_output(out, (".html",), overwrite=True)
    check_file(out)


# -------------------------------------------------------------------------------------------------------------- workers


class Workers:
    """The processes that torchrun has started, or the only one."""

    def __init__(self, group: ProcessGroup | None) -> None:
        self.group = group

    @property
    def is_first(self) -> bool:
        """Whether this process reports for all."""
        return self.group is None or self.group.rank == 0

    def agreed(self) -> AbstractContextManager[None]:
        """A block that succeeds in all processes or fails in all."""
        return nullcontext() if self.group is None else self.group.agreed()


@contextmanager
def workers(wanted: bool = False) -> Iterator[Workers]:
    """The process group if torchrun has started one, or if it is `wanted`: then a single process is a group too."""
    if not (wanted or launched()):
        yield Workers(None)
        return
    from unifews.distributed.communicator import ReportedElsewhere
    from unifews.distributed.communicator import workers as process_group

    try:
        with process_group() as group:
            yield Workers(group)
    except ReportedElsewhere as error:
        raise typer.Exit(2) from error
