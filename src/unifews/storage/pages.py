"""Pages of memory-mapped files, released to the system during a task.

A page of a mapped file that was read counts as memory of this process until the system reclaims it, and a graph of six
gigabytes is read once per hop. Releasing pages is cheap: they remain in the system's page cache as long as there is memory, and
are mapped from there when they are read again.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from numpy.typing import NDArray

from unifews.resources import mapped

_INTERVAL = 0.005  # seconds between checks: a pass over edges maps up to ten gigabytes a second
_SHARE = 1 / 32  # of the limit at which mapped pages are released
_ROOM = 2.0  # times that is set aside for them: between checks, and while some are released, others are mapped


class MappedPages:
    """The mapped files of a task, whose pages can be released."""

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []

    def add(self, *arrays: NDArray[Any] | None) -> None:
        found = (mapping_of(array) for array in arrays if array is not None)
        self._maps += [each for each in found if each is not None and not any(each is known for known in self._maps)]

    def remove(self, array: NDArray[Any]) -> None:
        self._maps = [each for each in self._maps if each is not mapping_of(array)]

    def release(self) -> None:
        """Release all pages. The maps are shared, so whatever was written to them is in the file."""
        for each in self._maps if hasattr(mmap, "MADV_DONTNEED") else []:
            each.madvise(mmap.MADV_DONTNEED)

    @contextmanager
    def within(self, limit: float) -> Iterator[None]:
        """In this block, pages are released whenever they take more than 1/32 of `limit` bytes of memory."""
        if not hasattr(mmap, "MADV_DONTNEED"):  # a system that counts and reclaims in its own way
            yield
            return
        done = Event()
        self.release()
        other = mapped()  # of libraries

        def watch() -> None:
            while not done.wait(_INTERVAL):
                if mapped() - other > _SHARE * limit:
                    self.release()

        thread = Thread(target=watch, name="unifews-pages", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def room(limit: float) -> int:
    """Bytes of a `limit` that are set aside for mapped pages."""
    return int(_ROOM * _SHARE * limit)


def mapping_of(array: NDArray[Any]) -> mmap.mmap | None:
    """The map of a file that an array is part of; None for other arrays and for private (copy-on-write) maps."""
    at: Any = array
    while at is not None and not isinstance(at, mmap.mmap):
        if getattr(at, "mode", None) == "c":
            return None
        at = getattr(at, "base", None)
    return at
