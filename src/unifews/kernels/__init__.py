"""Compiled kernels and their NumPy references: arrays in, arrays out, no I/O.

    native/kernels.h    the meaning of the arrays: tiles of blocks, scaled values, lazily updated blocks
    native/kernels.cpp  hops, compiled for several instruction sets; its parts are decide.h (which entries reach the threshold),
                        lazy.h (blocks that are not updated) and bill.h (bounds on the error)
    native/messages.cpp, attention.cpp, weights.cpp, pointwise.cpp
                        products of layers, attention, sparse weights, dropout
    buffers.py          memory of large arrays
    native/check.cpp    validation of compressed rows from files and users
    native/rows.cpp     hops of recurrences over rows stored in fewer bytes; formats/ has the row formats
    reference_hops.py, reference_layers.py, reference_attention.py, reference_rows.py
                        the same functions in plain NumPy: the specification that tests compare with

`native` is the compiled module; `levels()` lists the instruction sets this processor can run, `use_level` picks one
(the widest is picked at import; the environment variable UNIFEWS_KERNELS overrides it).
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from numpy.typing import NDArray

from unifews.errors import InputError
from unifews.kernels import _native as native  # type: ignore[attr-defined]
from unifews.kernels.buffers import LARGE, large
from unifews.resources import cores

LANES = 16
MAX_BLOCKS = 8
SLACK = 64  # floats past the end of an array that a vector load may read
MAX_THREADS = 1024  # OpenMP aborts the process if more threads are requested than the system can start

__all__ = ["LANES", "MAX_BLOCKS", "aligned", "describe", "limit_threads", "native", "threads_to_use"]

_limit: ContextVar[int | None] = ContextVar("unifews_threads", default=None)

if _level := os.environ.get("UNIFEWS_KERNELS"):
    if _level not in native.levels():
        raise InputError(
            f"UNIFEWS_KERNELS is {_level!r}, but this processor can run {', '.join(native.levels())}; unset it or pick one."
        )
    native.use_level(_level)


def aligned(*shape: int, dtype: type = np.float32, zero: bool = False) -> NDArray[np.float32]:
    """A new array that is aligned to a cache line, with slack behind it for a whole vector load.

    Large ones are on huge pages, which avoids most address translation in random gathers, and in memory that was used before.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size >= LARGE and not zero:
        return large(size + SLACK * 4)[:size].view(dtype).reshape(shape)
    raw = (np.zeros if zero else np.empty)(size + SLACK * 4 + 64, dtype=np.uint8)
    offset = -raw.ctypes.data % 64
    return raw[offset : offset + size].view(dtype).reshape(shape)


_fork = {"ended": True, "child": False}


def _before_fork() -> None:
    # A forked child has none of its parent's idle threads, and OpenMP would wait for them forever. They are ended before each
    # fork, so that parent and child both start new ones; this takes microseconds.
    _fork["ended"] = native.end_threads()


def _after_fork() -> None:
    _fork["child"] = not _fork["ended"]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def threads_to_use(threads: int | None) -> int:
    """The number of threads for a `threads` argument: None = every core this process may use.

    1 in a worker of a torch DataLoader, as for torch itself, and in a forked child of a process whose threads could not be
    ended.
    """
    if _fork["child"]:
        return 1
    if threads is None:
        worker = sys.modules.get("torch.utils.data._utils.worker")
        if worker is not None and worker.get_worker_info() is not None:
            return 1
        return _limit.get() or _threads_of_environment() or min(cores(), MAX_THREADS)
    if isinstance(threads, bool) or not isinstance(threads, int | np.integer) or threads < 1:
        raise InputError(f"`threads` must be an integer of at least 1 (default: all cores); got {threads!r}.")
    return _not_too_many(int(threads), "`threads`", "leave it out for all of them")


def _threads_of_environment() -> int | None:
    """The value of OMP_NUM_THREADS; the first of a list, which is by nesting level. None if it is not set."""
    value = os.environ.get("OMP_NUM_THREADS", "").strip()
    if not value:
        return None
    first = value.split(",")[0].strip()
    # Longer strings are not valid, and Python refuses to parse integers of thousands of digits.
    if not first.isascii() or not first.isdigit() or len(first) > 18 or int(first) < 1:
        raise InputError(
            f"OMP_NUM_THREADS is {value[:40]!r}, which is not a number of threads; unset it for all {cores():,} cores, or set "
            f"an integer of at least 1."
        )
    return _not_too_many(int(first), "OMP_NUM_THREADS", "unset it for all of them")


def _not_too_many(threads: int, name: str, otherwise: str) -> int:
    if threads > MAX_THREADS:
        raise InputError(
            f"{name} is {threads:,}, but at most {MAX_THREADS:,} are supported and this process may use {cores():,} cores; "
            f"give fewer, or {otherwise}."
        )
    return threads


@contextmanager
def limit_threads(threads: int) -> Iterator[None]:
    """Set the default number of threads of kernels inside the context."""
    token = _limit.set(threads_to_use(threads))
    try:
        yield
    finally:
        _limit.reset(token)


def describe(threads: int) -> str:
    return f"{native.level()}, {threads} thread{'s' if threads > 1 else ''}" + ("" if native.openmp() else ", no OpenMP")
