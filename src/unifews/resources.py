"""Cores and memory of this machine, sizes as text ("2GB"), an ordered thread map, and the types of progress callbacks."""

from __future__ import annotations

import ctypes
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from unifews.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]  # steps done, steps in all
StageProgress = Callable[[str, int, int], None]  # the current stage, steps or bytes done, in all

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:e[0-9]+)?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)
_DEFAULT = 2_000_000_000  # bytes; more would not be much faster
_MAX_THREADS = 4  # more would wait for the disk
_MIN_FREE = 24_000_000  # bytes; with less, chunks would be too small
_PER_THREAD = 8_000_000  # bytes for a thread to be started
_RESIDENT = 150_000_000  # bytes assumed for this process where the system does not provide its size
_PER_EDGE = 200  # bytes that one edge of a chunk takes, with everything derived from it
_CHUNK = (1 << 14, 1 << 20)  # fewest and most edges of a chunk


def report(progress: StageProgress | None, stage: str, done: int, total: int) -> None:
    """Call `progress`, if there is one."""
    if progress is not None:
        progress(stage, done, total)


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse_bytes(value: str | int | float, name: str) -> int:
    """Bytes of "500MB", "2GB", "1.5GiB" or a number.

    >>> parse_bytes("2GB", "memory"), parse_bytes("1GiB", "memory"), parse_bytes(5e8, "memory")
    (2000000000, 1073741824, 500000000)
    """
    found = _AMOUNT.fullmatch(str(value)) if not isinstance(value, bool) else None
    number = int(float(found[1]) * _UNITS[(found[2] or "").lower()]) if found else 0
    if number < 1:
        raise InputError(f"`{name}` is an amount such as 500MB, 2GB or 1.5GiB; got {value!r}.")
    return number


def parse_count(value: str | int | float, name: str) -> int:
    """A whole number, which may be written as 2e9 or 2_000_000.

    >>> parse_count("2e9", "edges"), parse_count("1_000", "edges")
    (2000000000, 1000)
    """
    try:
        return int(value)
    except ValueError:
        pass
    try:
        number = float(value)
        if number == int(number):
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise InputError(f"`{name}` is a whole number such as 2000000 or 2e6; got {value!r}.")


def format_bytes(size: float) -> str:
    """
    >>> format_bytes(999), format_bytes(1_500_000), format_bytes(26e9)
    ('999 bytes', '1.5 MB', '26 GB')
    """
    if size < 1000:
        return f"{size:.0f} bytes"
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if size < 999.5 or unit == "TB":
            break
    return f"{size:.0f} {unit}" if size >= 9.95 else f"{size:.1f} {unit}"


class Memory(NamedTuple):
    """The memory that may be used, and how it is divided among threads."""

    total: int
    threads: int
    share: int
    """Bytes for the data of one thread; there is a share for each thread, and two for results that wait or are written."""

    @classmethod
    def of(cls, memory: str | int | None, beside: int = 0, what: str = "this") -> Memory:
        """`memory` bytes in all, less those of the process and `beside`; two gigabytes beyond the process if None."""
        total = resident() + _default() if memory is None else parse_bytes(memory, "memory")
        taken = resident() + beside
        free = total - taken
        if free < _MIN_FREE:
            raise InputError(
                f"memory={format_bytes(total)} is too little for {what}: {format_bytes(taken)} are in use before it starts, "
                f"and it needs at least {format_bytes(_MIN_FREE)} more. "
                f"Give {format_bytes(1.05 * (taken + _MIN_FREE))} or more."
            )
        threads = max(1, min(cores(), _MAX_THREADS, int(free / _PER_THREAD) - 2))
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
    except (ValueError, OSError, AttributeError):  # not provided by this system
        return 2 * _DEFAULT


def available() -> int:
    """Bytes of memory that this process can still allocate: what is available, within the limit set on the process."""
    free = installed()
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) << 10
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            free = min(free, max(0, limit - _statm(0, 0)))
    except (OSError, ValueError, LookupError, ImportError):  # not provided by this system
        pass
    return free


def resident() -> int:
    """Bytes of memory this process has."""
    return _statm(1, _RESIDENT)


def keep_freed() -> bool:
    """Make the allocator retain freed memory for reuse; returns whether the system supports it.

    By default, the allocator returns every array of some megabytes to the system and requests it anew at each training step,
    and the system clears it page by page: 8 % of the time of an epoch on cora, 38 % on physics (benchmarks/freed.py). The
    cost is fragmentation, up to as much memory again, so arrays larger than a 64th of the machine's memory still
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


def in_order(work: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """work(item) of each item, in order, on several threads. At most `threads` results are in progress or waiting.

    `ThreadPoolExecutor.map` starts everything at once, so that results accumulate in memory where the consumer is slower.
    """
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def launched() -> bool:
    """Whether torchrun, or its like, has started this process as one of several."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
