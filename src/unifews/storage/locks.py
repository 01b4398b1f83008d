"""Locks between processes, on open files. The system releases a lock when its file is closed or its process ends."""

from __future__ import annotations


def lock(descriptor: int, *, wait: bool = True) -> None:
    """Lock an open file; `BlockingIOError` if another process has it and `wait` is false. Without effect on Windows."""
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:
        return
    flock(descriptor, LOCK_EX if wait else LOCK_EX | LOCK_NB)
