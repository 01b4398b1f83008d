"""Pages of mapped files, given back to the system while work goes on.

A page of a file that was looked at once counts as this process's memory until the system wants it back, and a graph of six
gigabytes is looked at once per hop. Giving pages back costs next to nothing: they stay in the system's cache of files as long
as there is room, and are looked up there again.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from numpy.typing import NDArray

from unifews.resources import mapped

_OFTEN = 0.005  # seconds between looks: a pass over edges maps up to ten gigabytes a second
_SHARE = 1 / 16  # of the limit that mapped pages may take


class Pages:
    """The mapped files of a task; give an array to `add` to have its pages given back too."""

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []

    def add(self, *arrays: NDArray[Any] | None) -> None:
        found = (mapping_of(array) for array in arrays if array is not None)
        self._maps += [each for each in found if each is not None and not any(each is known for known in self._maps)]

    def give_back(self) -> None:
        """Of shared maps only: what was written stays in the file, and nothing else can have been written."""
        for each in self._maps:
            each.madvise(mmap.MADV_DONTNEED)

    @contextmanager
    def within(self, limit: float) -> Iterator[None]:
        """Inside, pages are given back whenever they take more than a small share of `limit` bytes of memory."""
        if not hasattr(mmap, "MADV_DONTNEED"):  # a system that counts and reclaims in its own way
            yield
            return
        done = Event()

        def watch() -> None:
            while not done.wait(_OFTEN):
                if mapped() > _SHARE * limit:
                    self.give_back()

        thread = Thread(target=watch, name="unifews-pages", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def mapping_of(array: NDArray[Any]) -> mmap.mmap | None:
    """The map of a file that an array lies in, unless what is written there is private to this process."""
    at: Any = array
    while at is not None and not isinstance(at, mmap.mmap):
        if getattr(at, "mode", None) == "c":
            return None
        at = getattr(at, "base", None)
    return at
