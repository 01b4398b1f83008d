"""How an amount of memory is divided among what is in it at the same time."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import NamedTuple

from unifews.core.sizes import as_bytes, in_words
from unifews.errors import InputError
from unifews.resources import cores

_DEFAULT = 2_000_000_000  # more would not be much faster
_THREADS = 4  # more would wait for the disk
_LEAST = 24_000_000  # below this, chunks are so small that nothing gets done
_SHARE = 8_000_000  # what one thread needs to be worth starting
_UNKNOWN = 150_000_000  # this process, where the system does not say how large it is
_PER_EDGE = 200  # bytes that one edge of a chunk takes on its way, with everything derived from it
_CHUNK = (1 << 14, 1 << 20)  # fewest and most edges of a chunk


class Memory(NamedTuple):
    """What may be used, and how it is divided."""

    total: int
    threads: int
    share: int
    """Bytes for what one thread works on; so many shares as threads are at work, and two are waiting or being written."""

    @classmethod
    def of(cls, memory: str | int | None, beside: int = 0, what: str = "this") -> Memory:
        """`memory` bytes in all, of which the process and `beside` take theirs; two gigabytes beyond the process if None."""
        total = resident() + _default() if memory is None else as_bytes(memory, "memory")
        taken = resident() + beside
        free = total - taken
        if free < _LEAST:
            raise InputError(
                f"memory={in_words(total)} is too little for {what}: {in_words(taken)} are taken before it begins, and it "
                f"needs at least {in_words(_LEAST)} more. Give {in_words(1.05 * (taken + _LEAST))} or more."
            )
        threads = max(1, min(cores(), _THREADS, int(free / _SHARE) - 2))
        return cls(total, threads, free // (threads + 2))

    @property
    def chunk(self) -> int:
        """Edges that are read at a time: a power of two."""
        least, most = _CHUNK
        return 1 << (min(max(self.share // _PER_EDGE, least), most)).bit_length() - 1


def _default() -> int:
    """Two gigabytes, or half of what the machine has."""
    return min(_DEFAULT, installed() // 2)


def installed() -> int:
    """Bytes of memory this machine has."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # a system that does not say
        return 2 * _DEFAULT


def available() -> int:
    """Bytes of memory that this process can still take: what the system has to give, within the limit set on the process."""
    free = installed()
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) << 10
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            free = min(free, max(0, limit - _statm(0, 0)))
    except (OSError, ValueError, LookupError, ImportError):  # a system that does not say
        pass
    return free


def resident() -> int:
    """Bytes of memory this process has."""
    return _statm(1, _UNKNOWN)


def keep_freed() -> bool:
    """Memory that is freed stays with this process, ready to be taken again; whether the system can do that.

    Unless told, the allocator gives every array of some megabytes back and asks for it anew at the next step of a training,
    and the system clears it page by page: 8 % of the time of an epoch on cora, 38 % on physics (benchmarks/freed.py). The
    price is room between arrays, up to as much memory again, so arrays larger than a 64th of the machine's memory still
    come and go. The commands that train do this; a program that imports the library decides itself, best at its start.
    """
    trim, mmap, most = -1, -3, (1 << 31) - 1  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h, and of an int
    machine = installed()
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not glibc
        return False
    return bool(mallopt(mmap, min(machine // 64, most)) and mallopt(trim, min(machine // 8, most)))


def mapped() -> int:
    """Bytes of them that are pages of mapped files."""
    return _statm(2, 0)


def _statm(field: int, unknown: int) -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[field])
    except (OSError, ValueError, IndexError):
        return unknown
    return pages * os.sysconf("SC_PAGE_SIZE")
