"""How it is computed: arrays in, arrays out, no I/O.

    native/kernels.h    what the arrays mean: tiles of blocks, scaled values, lazily updated blocks
    native/kernels.cpp  hops, compiled for several instruction sets; its parts are decide.h (who matters), lazy.h (who is left
                        where they are) and bill.h (what that may cost)
    native/messages.cpp, attention.cpp, weights.cpp, pointwise.cpp
                        products of layers, attention, few weights, dropout
    native/check.cpp    validation of compressed rows that come from outside
    reference.py, reference_layers.py, reference_attention.py
                        the same functions in plain numpy: the oracles

`native` is the compiled module; `levels()` lists the instruction sets this processor can run, `use_level` picks one
(the widest is picked at import; the environment variable UNIFEWS_KERNELS overrides it).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from numpy.typing import NDArray

from unifews.errors import InputError
from unifews.kernels import _native as native  # type: ignore[attr-defined]
from unifews.resources import cores

LANES = 16
MAX_BLOCKS = 8
SLACK = 64  # floats past the end of an array that a vector load may touch
MAX_THREADS = 1024  # OpenMP has no error for more than the system can start: it ends the process

__all__ = ["LANES", "MAX_BLOCKS", "aligned", "describe", "limit_threads", "native", "threads_to_use"]

_limit: ContextVar[int | None] = ContextVar("unifews_threads", default=None)

if _wanted := os.environ.get("UNIFEWS_KERNELS"):
    if _wanted not in native.levels():
        raise InputError(
            f"UNIFEWS_KERNELS is {_wanted!r}, but this processor can run {', '.join(native.levels())}; unset it or pick one."
        )
    native.use_level(_wanted)


def aligned(*shape: int, dtype: type = np.float32, zero: bool = False) -> NDArray[np.float32]:
    """A new array that starts on a cache line and has room behind it for a whole vector load.

    numpy asks for huge pages for arrays this large, which spares most address translation in random gathers.
    """
    size = int(np.prod(shape, dtype=np.int64))
    itemsize = np.dtype(dtype).itemsize
    raw = (np.zeros if zero else np.empty)(size * itemsize + SLACK * 4 + 64, dtype=np.uint8)
    offset = -raw.ctypes.data % 64
    return raw[offset : offset + size * itemsize].view(dtype).reshape(shape)


_fork = {"ended": True, "child": False}


def _before_fork() -> None:
    # A forked child has none of the threads that wait for its parent's next kernel, and OpenMP would wait for them for ever.
    # They are ended before each fork, so that parent and child both start new ones; this takes microseconds.
    _fork["ended"] = native.end_threads()


def _after_fork() -> None:
    _fork["child"] = not _fork["ended"]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def threads_to_use(threads: int | None) -> int:
    """The number of threads meant by a `threads` argument: None = every core this process may use.

    One in a worker of a torch DataLoader, as for torch itself, and in a forked child of a process whose threads could not be
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
        raise InputError(f"`threads` is a whole number of at least 1, or None for all cores; got {threads!r}.")
    return _not_too_many(int(threads), "`threads`", "leave it out for all of them")


def _threads_of_environment() -> int | None:
    """What OMP_NUM_THREADS says; of a list, which is by depth of nesting, the first. None = nothing."""
    said = os.environ.get("OMP_NUM_THREADS", "").strip()
    if not said:
        return None
    first = said.split(",")[0].strip()
    # Nothing that is longer is a number of threads, and Python refuses to read a number of thousands of digits.
    if not first.isascii() or not first.isdigit() or len(first) > 18 or int(first) < 1:
        raise InputError(
            f"OMP_NUM_THREADS is {said[:40]!r}, which is no number of threads; unset it for all {cores():,} cores, or set a "
            f"whole number of at least 1."
        )
    return _not_too_many(int(first), "OMP_NUM_THREADS", "unset it for all of them")


def _not_too_many(threads: int, name: str, otherwise: str) -> int:
    if threads > MAX_THREADS:
        raise InputError(
            f"{name} is {threads:,}, but at most {MAX_THREADS:,} are started and this process may use {cores():,} cores; give "
            f"no more than those, or {otherwise}."
        )
    return threads


@contextmanager
def limit_threads(threads: int) -> Iterator[None]:
    """Inside, kernels that are not told a number of threads use this one."""
    token = _limit.set(threads_to_use(threads))
    try:
        yield
    finally:
        _limit.reset(token)


def describe(threads: int) -> str:
    return f"{native.level()}, {threads} thread{'s' if threads > 1 else ''}" + ("" if native.openmp() else ", no OpenMP")
