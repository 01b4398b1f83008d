"""Writing so that a reader sees the whole result or none of it.

The data goes to a temporary sibling, is flushed to the disk, and is then renamed into place; a crash half-way leaves
the old file untouched and, at worst, a `.name.*.tmp` beside it. The sibling lives in the same folder because a rename
is atomic only within one file system.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from unifews.errors import InputError, MissingFileError


@contextmanager
def atomic_file(path: Path, *, overwrite: bool = False) -> Iterator[BinaryIO]:
    """A binary file that appears at `path` when the block ends without an error."""
    check_place(path, overwrite)
    temporary = _sibling(path)
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
    """A folder, filled by the block, that appears at `path` when the block ends without an error.

    A folder cannot be renamed onto a non-empty one, so replacing takes two renames: the old folder steps aside first
    and is put back if the second rename fails.
    """
    check_place(path, overwrite)
    temporary = _sibling(path)
    temporary.mkdir()
    try:
        yield temporary
        put_folder(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def put_folder(temporary: Path, path: Path) -> None:
    """Flush a finished folder to the disk and move it to `path`, in the place of what is there."""
    old = _sibling(path)
    for file in temporary.rglob("*"):
        sync(file)
    sync(temporary)
    if path.exists():
        path.rename(old)
    try:
        temporary.rename(path)
    except OSError:
        if old.exists():
            old.rename(path)
        raise
    sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def check_place(path: Path, overwrite: bool) -> None:
    """Whether something may be written at `path`, which should come to light before the work is done."""
    if not path.parent.is_dir():
        raise MissingFileError(f"cannot write {path}: there is no folder {path.parent}. Create it first.")
    if path.exists() and not overwrite:
        raise InputError(f"{path} already exists. Pass overwrite=True to replace it, or choose another name.")


def _sibling(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid4().hex[:8]}.tmp")


def sync(path: Path) -> None:
    """Flush a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
