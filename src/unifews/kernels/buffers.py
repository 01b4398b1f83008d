"""Memory of large arrays: on huge pages, and used again by the next array of about the same size.

The first access to new memory is a page fault, and the system clears the page: a propagation in 8 bits spent a fifth of its
time on that. So the memory of a large array goes to a cache when nothing refers to the array any more, as in torch's
allocators of accelerators. The cache holds at most a sixteenth of the machine's memory, and the system may take its pages
at any time (MADV_FREE), as it does when memory is short; `release_memory` returns all of it at once.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from unifews.resources import installed

LARGE = 1 << 20
"""Bytes of an array that is taken from here; smaller ones are left to NumPy."""
_PAGE = 2 << 20  # bytes of a huge page
_WASTE = 1.25  # times larger than needed: memory that is used again, at most
_PART = 16  # of the machine's memory may be cached: one part of so many


class _Cache:
    """Freed memory, the oldest first."""

    def __init__(self) -> None:
        self.free: list[mmap.mmap] = []
        self.retained = True
        self.lock = threading.RLock()  # an array may be collected while this thread is in here

    def take(self, size: int) -> mmap.mmap:
        """At least `size` bytes, with any content."""
        with self.lock:
            fitting = [each for each in self.free if size <= len(each) <= max(_WASTE * size, size + _PAGE)]
            if fitting:
                found = min(reversed(fitting), key=len)
                self.free = [each for each in self.free if each is not found]
                return found
        try:
            return _map(size)
        except OSError:
            self.clear()
        try:
            return _map(size)
        except OSError as error:
            raise MemoryError(f"{size:,} bytes cannot be allocated: {error}") from None

    def give(self, memory: mmap.mmap) -> None:
        if not self.retained or not _advise(memory, "MADV_FREE"):
            return
        with self.lock:
            free, most = [*self.free, memory], installed() // _PART
            while sum(map(len, free)) > most:
                free.pop(0)
            self.free = free

    def clear(self) -> None:
        self.free = []


def _map(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, **({"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}))
    _advise(memory, "MADV_HUGEPAGE")
    return memory


def _advise(memory: mmap.mmap, advice: str) -> bool:
    """Whether the system has taken the advice."""
    if not hasattr(mmap, advice):
        return False
    try:
        memory.madvise(getattr(mmap, advice))
    except OSError:  # a kernel without it
        return False
    return True


class _Owner:
    """What arrays refer to; returns the memory when the last of them is gone."""

    def __init__(self, size: int) -> None:
        rounded = -(-size // _PAGE) * _PAGE
        self.memory = _cache.take(rounded + _PAGE)
        start = np.frombuffer(self.memory, dtype=np.uint8).ctypes.data
        self.__array_interface__ = {"data": (start + -start % _PAGE, False), "shape": (size,), "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        memory: mmap.mmap | None = getattr(self, "memory", None)
        if memory is not None:
            _cache.give(memory)


def large(size: int) -> NDArray[np.uint8]:
    """`size` bytes with any content, at the start of a huge page."""
    return np.asarray(_Owner(size))


def release_memory() -> None:
    """Return the memory that is kept for later calls to the system.

    Arrays of a megabyte or more leave their memory to the next call, up to a sixteenth of the machine's memory. The system
    takes it back by itself when memory is short.
    """
    _cache.clear()


@contextmanager
def nothing_cached() -> Iterator[None]:
    """Inside, freed memory is returned to the system at once: where the size of the process is limited."""
    before, _cache.retained = _cache.retained, False
    _cache.clear()
    try:
        yield
    finally:
        _cache.retained = before


_cache = _Cache()


def _new_cache() -> None:
    global _cache
    _cache = _Cache()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_cache)  # the lock may have been held by another thread
