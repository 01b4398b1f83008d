"""The working folder of a task that several workers share: the first keeps its manifest, each has folders of its own in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.distributed.communicator import ProcessGroup, restarts
from unifews.errors import InputError
from unifews.storage import state_files
from unifews.storage.atomic import naming
from unifews.storage.journal import KIND, Journal, folder_of, open_journal

Report = Callable[[int], None]


@dataclass(frozen=True)
class DistributedOptions:
    """Output file, and everything the result depends on."""

    out: Path
    task: dict[str, Any]
    """For JSON."""
    inputs: Sequence[Path]
    overwrite: bool = False
    restart: bool = False
    checkpoint_every_hop: bool = False


class SharedWork:
    """What all workers know of a task. Every method is called by each of them."""

    def __init__(self, group: ProcessGroup, folder: Path, work: Journal | None) -> None:
        self.group, self.folder, self.work = group, folder, work

    def get(self, step: str) -> Any:
        """What the first worker's manifest knows of a step."""
        return self.group.all_gather(self.work.get(step) if self.work else None)[0]

    def keep(self, **done: Any) -> None:
        if self.work:
            self.work.record(**done)

    def remove(self) -> None:
        if self.work:
            self.work.remove()

    @property
    def is_first(self) -> bool:
        return self.work is not None


@contextmanager
def shared(group: ProcessGroup, order: DistributedOptions) -> Iterator[SharedWork]:
    """The working folder of a result, which all workers must see."""
    folder = folder_of(order.out)
    restart = order.restart and not restarts()
    with ExitStack() as stack:
        work = None
        with group.agreed():
            if group.rank == 0:
                work = stack.enter_context(open_journal(order.out, order.task, order.inputs, restart=restart))
        with group.agreed():
            if not KIND.describes(folder):
                raise InputError(f"there is no {folder} there; all workers need one folder to write to, on a shared disk.")
        yield SharedWork(group, folder, work)


class SharedArray:
    """A `.npy` matrix of float32 that several workers write rows of."""

    def __init__(self, file: Path, shape: tuple[int, int]) -> None:
        self.file, self.shape = file, shape

    def create(self) -> None:
        state_files.write_header(self.file, np.dtype(np.float32), self.shape)
        os.truncate(self.file, state_files.HEADER + 4 * self.shape[0] * self.shape[1])

    def put(self, rows: Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]) -> None:
        """Numbers of rows, ascending, and their values, some at a time; down to the disk."""
        step = 4 * self.shape[1]
        with naming(self.file), self.file.open("r+b") as out:
            for numbers, values in rows:
                ends = np.flatnonzero(np.diff(numbers) != 1) + 1
                for first, last in zip([0, *ends], [*ends, len(numbers)], strict=True):
                    out.seek(state_files.HEADER + step * int(numbers[first]))
                    out.write(values[first:last].data)
            out.flush()
            os.fsync(out.fileno())
