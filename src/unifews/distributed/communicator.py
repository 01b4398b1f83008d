"""The processes that work on one task: how they communicate, and how they fail together.

`SingleProcess` is one process alone. `ProcessGroup` are the processes that torchrun has started, by way of torch.distributed:
gloo, since what is exchanged lies in main memory. Messages are JSON, never pickles. Torch is imported when a group is joined.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from itertools import count
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unifews.errors import InputError, UnifewsError
from unifews.resources import launched as launched

# A worker may be at its hops for hours while another waits for it; one that has died is noticed at once.
_PATIENCE = timedelta(days=7)
_times = count()  # that this process has joined a group


class ReportedElsewhere(UnifewsError):
    """An error that another worker already reports to the user."""


class Communicator(Protocol):
    """All workers. Every method is called by each of them, in the same order; arrays are numpy's, and contiguous."""

    rank: int
    size: int

    def all_gather(self, value: Any) -> list[Any]:
        """The JSON values of all workers, by rank."""

    def all_reduce(self, array: NDArray[Any]) -> NDArray[Any]:
        """The sum over all workers, in place; exact where only one of them has anything but zeros."""

    def maximum(self, value: float) -> float:
        """The largest value of any worker."""

    def broadcast(self, array: NDArray[Any]) -> None:
        """The first worker's array, in place."""

    def all_to_all(self, array: NDArray[Any], sent: NDArray[np.int64], received: NDArray[np.int64]) -> NDArray[Any]:
        """Rows for each worker, one worker's after the other's, `sent` of each; those that came, `received` of each."""

    def barrier(self) -> None:
        """Until all workers have come this far."""

    def agreed(self) -> AbstractContextManager[None]:
        """All workers get through the block, or none: what goes wrong for one of them is raised by all. Nothing is exchanged
        inside."""

    def refuse(self, message: str) -> UnifewsError:
        """The error for what all workers find wrong alike; rank 0 reports it."""


class SingleProcess:
    """The only worker."""

    rank, size = 0, 1

    def all_gather(self, value: Any) -> list[Any]:
        return [json.loads(json.dumps(value))]

    def all_reduce(self, array: NDArray[Any]) -> NDArray[Any]:
        return array

    def maximum(self, value: float) -> float:
        return value

    def broadcast(self, array: NDArray[Any]) -> None:
        pass

    def all_to_all(self, array: NDArray[Any], sent: NDArray[np.int64], received: NDArray[np.int64]) -> NDArray[Any]:
        return array

    def barrier(self) -> None:
        pass

    def agreed(self) -> AbstractContextManager[None]:
        return nullcontext()

    def refuse(self, message: str) -> UnifewsError:
        return InputError(message)


class ProcessGroup:
    """Processes that torch.distributed connects; `process_group` is torch's, None = its default one."""

    def __init__(self, process_group: Any) -> None:
        import torch
        import torch.distributed as dist

        self.process_group, self._dist, self._tensor = process_group, dist, torch.from_numpy
        self.rank, self.size = dist.get_rank(process_group), dist.get_world_size(process_group)

    def all_gather(self, value: Any) -> list[Any]:
        text = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
        lengths = np.zeros(self.size, dtype=np.int64)
        lengths[self.rank] = len(text)
        self.all_reduce(lengths)
        table = np.zeros((self.size, int(lengths.max())), dtype=np.uint8)
        table[self.rank, : len(text)] = text
        self.all_reduce(table)
        return [json.loads(row[:length].tobytes()) for row, length in zip(table, lengths.tolist(), strict=True)]

    def all_reduce(self, array: NDArray[Any]) -> NDArray[Any]:
        if array.size:
            with self._listening():
                self._dist.all_reduce(self._tensor(array), group=self.process_group)
        return array

    def maximum(self, value: float) -> float:
        largest = np.array([value])
        with self._listening():
            self._dist.all_reduce(self._tensor(largest), self._dist.ReduceOp.MAX, group=self.process_group)
        return float(largest[0])

    def broadcast(self, array: NDArray[Any]) -> None:
        with self._listening():
            self._dist.broadcast(self._tensor(array), group=self.process_group, group_src=0)

    def all_to_all(self, array: NDArray[Any], sent: NDArray[np.int64], received: NDArray[np.int64]) -> NDArray[Any]:
        came = np.empty((int(received.sum()), *array.shape[1:]), dtype=array.dtype)
        with self._listening():
            self._dist.all_to_all_single(
                self._tensor(came),
                self._tensor(np.ascontiguousarray(array)),
                received.tolist(),
                sent.tolist(),
                group=self.process_group,
            )
        return came

    def barrier(self) -> None:
        self.all_reduce(np.zeros(1, dtype=np.int64))

    @contextmanager
    def agreed(self) -> Iterator[None]:
        failure: UnifewsError | OSError | None = None
        try:
            yield
        except (UnifewsError, OSError) as error:
            failure = error
        gathered = self.all_gather(None if failure is None else str(failure))
        failed = [rank for rank, message in enumerate(gathered) if message is not None]
        if not failed:
            return
        if self.rank == 0:
            raise failure or InputError(f"worker {failed[0]} failed: {gathered[failed[0]]}")
        raise ReportedElsewhere(gathered[failed[0]]) from failure

    def refuse(self, message: str) -> UnifewsError:
        return InputError(message) if self.rank == 0 else ReportedElsewhere(message)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """A worker that is gone, in one sentence."""
        try:
            yield
        except RuntimeError as error:  # what torch.distributed raises, whatever went wrong
            kind = UnifewsError if self.rank == 0 else ReportedElsewhere
            raise kind(
                "another worker was lost. Finished work is saved: torchrun --max-restarts=3 restarts by itself, and the "
                "same command resumes where it stopped."
            ) from error


def check_same(comm: Communicator, facts: dict[str, Any]) -> None:
    """An error unless all workers were given the same; `facts` by name."""
    gathered = comm.all_gather(facts)
    for rank, other in enumerate(gathered):
        for name in sorted(gathered[0].keys() | other.keys()):
            one, another = gathered[0].get(name), other.get(name)
            if one != another:
                raise comm.refuse(
                    f"workers disagree on {name}: worker 0 has {_short(one)}, worker {rank} has {_short(another)}. "
                    f"Start all of them with the same command, on the same files."
                )


def restarts() -> int:
    """How many times torchrun has started all workers again, after one was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


@contextmanager
def workers() -> Iterator[ProcessGroup]:
    """The workers this process belongs to; one that was not started by torchrun is alone."""
    import torch.distributed as dist
    from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]
    from torch.distributed.rendezvous import rendezvous

    if dist.is_initialized():  # the caller's own, perhaps of graphics processors
        yield ProcessGroup(None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo"))
        return
    store, rank, size = next(iter(rendezvous("env://", timeout=_PATIENCE))) if launched() else (HashStore(), 0, 1)
    # The store outlives groups and restarts: new members must not find addresses of earlier ones.
    store = PrefixStore(f"unifews {restarts()} {next(_times)}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=_PATIENCE)
    try:
        yield ProcessGroup(None)
    finally:
        dist.destroy_process_group()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
