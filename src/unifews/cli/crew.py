"""Commands that torchrun starts once per worker, with one voice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import typer

from unifews.distributed.launch import launched

if TYPE_CHECKING:
    from unifews.distributed.group import ProcessGroup


class Crew:
    """The workers of a command, or the one process that it is."""

    def __init__(self, group: ProcessGroup | None) -> None:
        self.group = group

    @property
    def is_first(self) -> bool:
        """Who speaks for all."""
        return self.group is None or self.group.rank == 0

    def agreed(self) -> AbstractContextManager[None]:
        """All workers get through the block, or none."""
        return nullcontext() if self.group is None else self.group.agreed()


@contextmanager
def crew(wanted: bool = False) -> Iterator[Crew]:
    """All workers where torchrun has started some, or where they are `wanted`: then one alone will do."""
    if not (wanted or launched()):
        yield Crew(None)
        return
    from unifews.distributed.group import ReportedElsewhere, workers

    try:
        with workers() as group:
            yield Crew(group)
    except ReportedElsewhere as error:
        raise typer.Exit(2) from error
