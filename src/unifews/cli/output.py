"""What a person sees: results on stdout, as tables or as JSON; progress and notes on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unifews.errors import InputError, MissingFileError
from unifews.resources import Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


Stages = Callable[[str, int, int], None]  # what is going on, done, in all

_WIDTH = 112  # of tables that do not go to a terminal


def console(table: Table | None = None) -> Console:
    """Where results are printed, wide enough for `table`: a terminal may wrap a row, but digits are never cut off."""
    from rich.console import Console

    found = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    if table is not None:
        found.width = max(found.width, Console(width=1000).measure(table).maximum)
    return found


def check_page(out: Path) -> None:
    """A page that cannot be written should come to light before the work is done."""
    if out.suffix != ".html":
        raise InputError(f"--out {out} must end in .html, the format it is written in.")
    if not out.parent.is_dir():
        raise MissingFileError(f"cannot write {out}: there is no folder {out.parent}.")
    from unifews.report.tables import check_file

    check_file(out)


def note(sentence: str) -> None:
    sys.stderr.write(f"note: {sentence}\n")


def print_json(value: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(_finite(value), indent=2, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    """JSON knows no infinity; it is written as a string."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and value - value != 0 else value


@contextmanager
def bar(what: str) -> Iterator[Progress | None]:
    """A progress bar on stderr that vanishes when done; None where stderr is no terminal."""
    with stages(what) as update:
        yield None if update is None else lambda done, total: update(what, done, total)


@contextmanager
def stages(what: str) -> Iterator[Stages | None]:
    """A progress bar that says what is going on, `what` at first; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=None)
        yield lambda stage, done, total: shown.update(task, description=stage, completed=done, total=total)


@contextmanager
def stage() -> Iterator[Callable[[str], None]]:
    """Says on stderr what is going on, one line that is overwritten; silent where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield lambda text: status.update(text)
