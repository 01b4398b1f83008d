"""Atomic writes: a reader sees the complete result or none of it.

Data are written to a temporary sibling `.name.<writer>.tmp` and flushed to the disk; then a file is renamed, and a folder is
exchanged with the existing one (`renameat2`), so that at every moment one of the two has the name. The sibling is in the same
folder because a rename is atomic only within one file system.

Where folders cannot be exchanged, the old one is renamed to `.name.<writer>.old` first. If the process is killed before the new
one has the name, `restore`, which readers and writers call, renames the old one back. `<writer>` identifies the process that
made a sibling: siblings of processes that have ended are deleted by the next write to the same name.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, TypeVar
from uuid import uuid4

from unifews.errors import FileFormatError, InputError, MissingFileError, UnifewsError

T = TypeVar("T")

_TEMPORARY, _OLD = ".tmp", ".old"
_MARK = re.compile(r"([0-9a-f]{8})-([0-9a-f]+)-([0-9a-f]+)-[0-9a-f]{6}|[0-9a-f]{8}")  # eight digits: releases before 0.2
_ABANDONED = 86_400.0  # seconds without a change after which a sibling of another machine counts as left over
_TRIES, _PAUSE = 20, 0.05  # of reading a folder that is being replaced; seconds between checks of one that is moved
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")


@contextmanager
def atomic_file(path: Path, *, overwrite: bool = False) -> Iterator[BinaryIO]:
    """A binary file that appears at `path` when the block ends without an error."""
    check_place(path, overwrite)
    temporary = _sibling(path, _TEMPORARY)
    with naming(path):
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    sync(path.parent)


@contextmanager
def atomic_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A folder, filled by the block, that appears at `path` when the block ends without an error."""
    check_place(path, overwrite)
    temporary = _sibling(path, _TEMPORARY)
    with naming(path):
        temporary.mkdir()
        try:
            yield temporary
            put_folder(temporary, path, overwrite=overwrite)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def put_folder(temporary: Path, path: Path, *, overwrite: bool = True) -> None:
    """Flush a finished folder to the disk and move it to `path`; what was there is deleted."""
    for file in temporary.rglob("*"):
        sync(file)
    sync(temporary)
    while not _placed(temporary, path, overwrite):
        pass  # another process has created or removed a folder there between two system calls
    sync(path.parent)
    shutil.rmtree(temporary, ignore_errors=True)  # what was there before, where the two were exchanged


def _placed(temporary: Path, path: Path, overwrite: bool) -> bool:
    """Give a folder its name; False where another process interfered."""
    try:
        temporary.rename(path)  # works if nothing is there, or an empty folder
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    check_place(path, overwrite)
    try:
        if _exchange(temporary, path):
            return True
        old = _sibling(path, _OLD)
        path.rename(old)
    except FileNotFoundError:
        if temporary.exists():
            return False
        raise
    try:
        temporary.rename(path)
    except OSError as error:
        with suppress(OSError):  # another process has put a folder there
            old.rename(path)
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    finally:
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
    return True


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step; False where the system or the file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # not Linux, or an old C library
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if renameat2(here, os.fsencode(one), here, os.fsencode(other), ctypes.c_uint(swap)) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
        return False
    raise OSError(code, os.strerror(code), str(other))


def restore(path: Path) -> bool:
    """Whether there is something at `path`; a folder that a killed process had moved aside is put back first.

    A folder that a running process has moved aside will be back, or replaced, in a moment: it is waited for.
    """
    for _ in range(_TRIES):
        if path.exists():
            return True
        kept = moved_aside(path)
        if not kept:
            return path.exists()
        for folder in kept:
            if not _in_use(folder):
                with suppress(OSError):
                    folder.rename(path)
                    return True
        time.sleep(_PAUSE)
    return path.exists()


def moved_aside(path: Path) -> list[Path]:
    """Complete copies of a folder that lost its name when the process that replaced it was killed, the latest first."""
    found = [sibling for sibling in _siblings(path) if sibling.suffix == _OLD]
    return sorted(found, key=lambda folder: -_changed(folder))


def steady(folder: Path, read: Callable[[], T]) -> T:
    """What `read` returns of a folder, all of it from the same one: again if another has taken its place meanwhile."""
    for _ in range(_TRIES):
        before = _identity(folder)
        try:
            found = read()
        except (OSError, UnifewsError):
            if _identity(folder) == before:
                raise
            continue
        if _identity(folder) == before:
            return found
    raise FileFormatError(f"{folder} is being replaced by another process; read it when that has ended.")


def _identity(folder: Path) -> tuple[int, int, int] | None:
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns  # inode numbers of deleted folders are reused


def check_place(path: Path, overwrite: bool) -> None:
    """Fail early if nothing may be written at `path`; what ended writers have left beside it is deleted."""
    if not path.parent.is_dir():
        raise MissingFileError(f"cannot write {path}: there is no folder {path.parent}. Create it first.")
    if restore(path) and not overwrite:
        raise InputError(f"{path} already exists. Pass overwrite=True to replace it, or choose another name.")
    _delete_left_over(path)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An error of writing names `path`: the system's own names no file."""
    try:
        yield
    except OSError as error:
        code = write_error(error, path.parent)
        if code is None or error.filename is not None:
            raise
        raise OSError(code, os.strerror(code), str(path)) from error


def write_error(error: OSError, folder: Path) -> int | None:
    """The code of an error of writing to a file in `folder`: a full disk, a file that may not grow; None for other errors."""
    if error.errno in _WRITE_ERRORS:
        return error.errno
    if error.errno is not None or not _SHORT_WRITE.search(str(error)):
        return None
    return errno.EFBIG if shutil.disk_usage(folder).free > 1 << 20 else errno.ENOSPC  # numpy's error has no code


def sync(path: Path) -> None:
    """Flush a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ------------------------------------------------------------------------------------------------------------ siblings


def _sibling(path: Path, suffix: str) -> Path:
    mark = f"{_machine()}-{os.getpid():x}-{_started(os.getpid()) or 0:x}-{uuid4().hex[:6]}"
    return path.with_name(f".{path.name}.{mark}{suffix}")


def _siblings(path: Path) -> list[Path]:
    """The temporary and old siblings of `path`."""
    start = f".{path.name}."
    try:
        found = [each for each in path.parent.iterdir() if each.name.startswith(start) and each.suffix in (_TEMPORARY, _OLD)]
    except OSError:
        return []
    return [each for each in found if _MARK.fullmatch(each.name[len(start) : -len(_OLD)])]


def _delete_left_over(path: Path) -> None:
    """Delete siblings whose writers have ended; copies that were moved aside only if `path` is there."""
    there = path.exists()
    for sibling in _siblings(path):
        if _in_use(sibling) or not (there or sibling.suffix == _TEMPORARY):
            continue
        if sibling.is_dir():
            shutil.rmtree(sibling, ignore_errors=True)
        else:
            with suppress(OSError):
                sibling.unlink()


def _in_use(sibling: Path) -> bool:
    """Whether the process that made a sibling may still run; one that cannot be seen from here has a day between changes."""
    found = _MARK.fullmatch(sibling.name[: -len(sibling.suffix)].rpartition(".")[2])
    if found and found[1] == _machine():
        return _is_running(int(found[2], 16), int(found[3], 16))
    return time.time() - _changed(sibling) < _ABANDONED


def _changed(path: Path) -> float:
    """When a file, or anything in a folder, was last written."""
    latest = 0.0
    with suppress(OSError):  # another process may delete the folder meanwhile
        for each in (path, *path.rglob("*")):
            with suppress(OSError):
                latest = max(latest, each.lstat().st_mtime)
    return latest


@cache
def _machine() -> str:
    """Eight digits that stand for this machine since it was started, and for the list of processes that we see."""
    facts = [platform.node()]
    with suppress(OSError):
        facts += [Path("/proc/sys/kernel/random/boot_id").read_text(), str(Path("/proc/self/ns/pid").readlink())]
    return sha256("\n".join(facts).encode()).hexdigest()[:8]


def _is_running(pid: int, started: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # a process of another user
    return _started(pid) in (started, None)


def _started(pid: int) -> int | None:
    """When a process was started, in ticks of the system's clock; -1 if it has ended, None if unknown."""
    try:
        state, *facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return -1 if state in "ZX" else int(facts[18])
    except (OSError, ValueError, IndexError):
        return None
