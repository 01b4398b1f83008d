"""A training as it goes on, on stderr: the hops of the propagation, then every epoch of every seed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from unifews.cli.output import Progress

if TYPE_CHECKING:
    from unifews.training.api import Watch
    from unifews.training.loop import Epoch


@contextmanager
def training(
    what: str, seed: int, seeds: int, first: str = "propagating"
) -> Iterator[tuple[Progress | None, Watch | None]]:  # fmt: skip
    """`progress` and `watch` for `train`, shown as one line that vanishes; None where stderr is no terminal.

    `first`: what comes before the first epoch.
    """
    if not sys.stderr.isatty():
        yield None, None
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
            which = f"seed {seed + number} ({number + 1} of {seeds})"
            shown.update(task, description=f"{what}: {which}", completed=epoch.number + 1, total=epoch.of, told=told(epoch))

        yield progress, watch


def told(epoch: Epoch) -> str:
    """What an epoch has to say for itself."""
    best = f" (best {epoch.best:.1f})" if epoch.best >= 0 else ""  # no epoch counts before the weights are sparse enough
    kept = f", {epoch.kept / epoch.weights:.0%} of weights kept" if epoch.kept < epoch.weights else ""
    return f"loss {epoch.loss:.3f}, validation {epoch.val:.1f}{best}{kept}"
