"""The processes that torchrun started: how they communicate, and how they fail together.

Everything goes through torch.distributed: gloo, since what is exchanged lies in main memory. Messages
are JSON, never pickles.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from unifews.distributed.launch import launched, restarts
from unifews.errors import InputError, UnifewsError

# A worker may be at its hops for hours while another waits for it; one that has died is noticed at once.
_PATIENCE = timedelta(days=7)
_times = count()  # that this process has joined a group


class ReportedElsewhere(UnifewsError):
    """An error that another worker already reports to the user."""


class ProcessGroup:
    """All workers. Every method is called by each of them, in the same order; arrays are numpy's, and contiguous."""

    def __init__(self, process_group: Any) -> None:
        self.process_group = process_group
        self.rank, self.size = dist.get_rank(process_group), dist.get_world_size(process_group)

    def gather(self, value: Any) -> list[Any]:
        """The JSON values of all workers, by rank."""
        text = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
        lengths = np.zeros(self.size, dtype=np.int64)
        lengths[self.rank] = len(text)
        self.add(lengths)
        table = np.zeros((self.size, int(lengths.max())), dtype=np.uint8)
        table[self.rank, : len(text)] = text
        self.add(table)
        return [json.loads(row[:length].tobytes()) for row, length in zip(table, lengths.tolist(), strict=True)]

    def add(self, array: NDArray[Any]) -> NDArray[Any]:
        """The sum over all workers, in place; exact where only one of them has anything but zeros."""
        if array.size:
            with self._listening():
                dist.all_reduce(torch.from_numpy(array), group=self.process_group)
        return array

    def most(self, value: float) -> float:
        """The largest value of any worker."""
        largest = torch.tensor([value], dtype=torch.float64)
        with self._listening():
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.process_group)
        return float(largest)

    def from_first(self, array: NDArray[Any]) -> None:
        """The first worker's array, in place."""
        with self._listening():
            dist.broadcast(torch.from_numpy(array), group=self.process_group, group_src=0)

    def swap(self, array: NDArray[Any], sent: NDArray[np.int64], received: NDArray[np.int64]) -> NDArray[Any]:
        """Rows for each worker, one worker's after the other's, `sent` of each; those that came, `received` of each."""
        came = np.empty((int(received.sum()), *array.shape[1:]), dtype=array.dtype)
        with self._listening():
            dist.all_to_all_single(
                torch.from_numpy(came),
                torch.from_numpy(np.ascontiguousarray(array)),
                received.tolist(),
                sent.tolist(),
                group=self.process_group,
            )
        return came

    def wait(self) -> None:
        """Until all workers have come this far."""
        self.add(np.zeros(1, dtype=np.int64))

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """All workers get through the block, or none: what goes wrong for one of them is raised by all. Nothing is exchanged
        inside."""
        failure: UnifewsError | OSError | None = None
        try:
            yield
        except (UnifewsError, OSError) as error:
            failure = error
        gathered = self.gather(None if failure is None else str(failure))
        failed = [rank for rank, message in enumerate(gathered) if message is not None]
        if not failed:
            return
        if self.rank == 0:
            raise failure or InputError(f"worker {failed[0]} failed: {gathered[failed[0]]}")
        raise ReportedElsewhere(gathered[failed[0]]) from failure

    def check_same(self, facts: dict[str, Any]) -> None:
        """An error unless all workers were given the same; `facts` by name."""
        gathered = self.gather(facts)
        for rank, other in enumerate(gathered):
            for name in sorted(gathered[0].keys() | other.keys()):
                one, another = gathered[0].get(name), other.get(name)
                if one != another:
                    raise self.refuse(
                        f"workers disagree on {name}: worker 0 has {_short(one)}, worker {rank} has {_short(another)}. "
                        f"Start all of them with the same command, on the same files."
                    )

    def refuse(self, sentence: str) -> UnifewsError:
        """The error for what all workers find wrong alike; rank 0 reports it."""
        return InputError(sentence) if self.rank == 0 else ReportedElsewhere(sentence)

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


@contextmanager
def workers() -> Iterator[ProcessGroup]:
    """The workers this process belongs to; one that was not started by torchrun is alone."""
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
