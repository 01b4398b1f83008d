"""Resumable work: a working folder beside a result that takes long, from which the next call continues.

`<out>.work/` holds a `manifest.json` with the task, the fingerprints of its input files and how far it has come. It is replaced
atomically after each step, so a process that is killed loses only the step it was at. The manifest has a checksum of its own
content: one that does not match is refused before anything of it is used.
"""

from __future__ import annotations

import errno
import json
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from unifews.errors import FileFormatError, InputError, MissingFileError, UnifewsError
from unifews.resources import format_bytes
from unifews.storage.atomic import atomic_file, put_folder, write_error
from unifews.storage.folder_format import CHECKSUM, FolderFormat, Json, checksum_of
from unifews.storage.locks import lock

T = TypeVar("T")

KIND = FolderFormat("working folder", "unifews-work", 3, "manifest.json", "convert_edges")
SAVE_INTERVAL = 2.0  # seconds between records of how far a step has come

_ENDS = 1 << 20  # bytes at either end of an input file that its fingerprint covers
_ROWS = 1 << 13  # rows of an array whose checksum is computed at a time
_RESERVE = 1.02  # factor on the disk space checked for: files have a little more than their contents


class Journal:
    """The working folder of one task: `record` how far it has come, `get` what was recorded."""

    def __init__(self, folder: Path, manifest: Json) -> None:
        self.folder = folder
        self._manifest = manifest
        self._invalid_input = False

    @property
    def is_disposable(self) -> bool:
        """Whether nothing has been done yet, or nothing that another call could use."""
        return self._invalid_input or not self._manifest["done"]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """An error in this block is one of the input: it will have to change, which makes the work so far useless."""
        try:
            yield
        except UnifewsError:
            self._invalid_input = True
            raise

    def get(self, step: str) -> Any:
        """What was recorded of a step; None before it has begun."""
        return self._manifest["done"].get(step)

    def record(self, **done: Any) -> None:
        """Record how far the work has come."""
        self._manifest["done"] |= done
        _write(self.folder, self._manifest)

    def append_resumably(
        self,
        step: str,
        state: Mapping[str, Any],
        items: Iterable[T],
        append: Callable[[T], None],
        saved: Callable[[], None] | None = None,
    ) -> None:
        """append(item) for each of `items`, which begin where an earlier call stopped.

        `append` writes to files and updates `state`, which is recorded as `step` every SAVE_INTERVAL seconds and at the end;
        `saved` is called after each record.
        """

        def save() -> float:
            self.record(**{step: state})
            if saved is not None:
                saved()
            return time.monotonic()

        last = time.monotonic()
        for item in items:
            append(item)
            del item  # before the next one is made: memory is planned so
            if time.monotonic() - last > SAVE_INTERVAL:
                last = save()
        save()

    def check_disk(self, needed: float, what: str) -> None:
        """An error if the disk has no space for `needed` bytes, of which this folder may have taken some already."""
        usage = shutil.disk_usage(self.folder)
        taken = sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())
        missing = needed * _RESERVE - taken - usage.free
        if missing > 0:
            advice = "or choose another folder" if self.is_disposable else "and call again: it continues where it stopped"
            raise InputError(
                f"{what} takes about {format_bytes(needed * _RESERVE)} of disk while it runs, and {self.folder.parent} has "
                f"{format_bytes(usage.free)} free: {format_bytes(missing)} more are needed there. Free some space, {advice}."
            )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A full disk as one message; what was recorded is kept."""
        try:
            yield
        except OSError as error:
            code = write_error(error, self.folder)
            if code in (errno.ENOSPC, errno.EDQUOT):
                raise UnifewsError(
                    f"the disk of {self.folder} is full. What is done is kept there: free some space and call again, "
                    f"and it continues where it stopped."
                ) from error
            if code == errno.EFBIG:
                raise UnifewsError(
                    f"a file in {self.folder} may not grow any further (ulimit -f, or a limit of the file system). What is "
                    f"done is kept there: raise the limit and call again, and it continues where it stopped."
                ) from error
            raise

    def publish(self, name: str, target: Path) -> None:
        """Move a finished folder of the working folder to `target`, replacing what is there."""
        folder = self.folder / name
        self.record(published={"folder": name, "inode": folder.stat().st_ino})
        put_folder(folder, target)

    def is_published(self, target: Path) -> bool:
        """Whether an earlier call was interrupted after `publish` had moved the new folder to `target`."""
        published = self.get("published")
        if published is None or not target.exists():
            return False
        folder = self.folder / published["folder"]
        # The two folders are exchanged, so the one here may be what `target` was before.
        if not folder.exists() or target.stat().st_ino == published["inode"]:
            return True
        if folder.stat().st_ino != published["inode"]:
            raise damaged(self.folder)
        return False

    def remove(self) -> None:
        """Delete the folder: the work is done, or not wanted any more."""
        _clear(self.folder)
        shutil.rmtree(self.folder)


def folder_of(out: Path) -> Path:
    return out.with_name(f"{out.name}.work")


@contextmanager
def open_journal(out: Path, task: Json, inputs: Sequence[Path] = (), *, restart: bool = False) -> Iterator[Journal]:
    """The working folder of `out`, new or as an earlier call left it; that must have had the same task and inputs.

    `restart` starts over. After an error, a folder that holds nothing another call could use is deleted.
    """
    folder = folder_of(out)
    if not out.parent.is_dir():
        raise MissingFileError(f"cannot write {out}: there is no folder {out.parent}. Create it first.")
    wanted = {"task": task, "inputs": [fingerprint(path) for path in inputs]}
    if folder.exists() and not KIND.describes(folder) and any(file.name != "lock" for file in folder.glob("[!.]*")):
        raise InputError(
            f"{folder} exists and is no working folder: its {KIND.file} is missing, damaged or of something else. "
            f"Move it away, or delete it and call again."
        )
    folder.mkdir(exist_ok=True)
    locked = _locked(folder)
    try:
        if restart or not KIND.describes(folder):
            _clear(folder)
            manifest = {**KIND.header(), "out": str(out), **wanted, "done": {}}
            _write(folder, manifest)
        else:
            manifest = _read(folder)
            _check_same(out, manifest, wanted)
        journal = Journal(folder, manifest)
        try:
            yield journal
        except BaseException:
            if journal.is_disposable:
                _clear(folder)
                shutil.rmtree(folder, ignore_errors=True)
            raise
    finally:
        locked.close()


def check_finished(folder: Path, noun: str) -> None:
    """An error for a working folder, and for a result of which there is only the working folder."""
    if KIND.describes(folder):
        raise FileFormatError(
            f"{folder} is the working folder of an unfinished {noun}. Repeat the call that made it: it continues where it "
            f"stopped."
        )
    left = folder_of(folder)
    if not folder.exists() and KIND.describes(left):
        raise FileFormatError(
            f"{folder} is not finished: the call that makes it was interrupted and left {left}. Repeat the call: it continues "
            f"where it stopped."
        )


def fingerprint(path: Path) -> Json:
    """What distinguishes a file from another of the same name: length, time of change, and a hash of both of its ends."""
    stat = path.stat()
    with path.open("rb") as file:
        digest = sha256(file.read(_ENDS))
        file.seek(max(0, stat.st_size - _ENDS))
        digest.update(file.read(_ENDS))
    return {"path": str(path), "bytes": stat.st_size, "time": stat.st_mtime_ns, "ends": digest.hexdigest()}


def array_identity(name: str, array: NDArray[Any]) -> tuple[list[Path], Json]:
    """What identifies an array for `open_journal`: its file and which part of it, or a checksum of its values."""
    about = [str(array.dtype), *array.shape]
    if isinstance(array, np.memmap) and array.filename is not None and array.mode != "c":
        start = array.ctypes.data - np.frombuffer(array._mmap, np.uint8).ctypes.data  # type: ignore[attr-defined]
        return [Path(array.filename)], {name: [*about, start, *array.strides]}
    crc = 0
    for at in range(0, len(array), _ROWS):
        crc = zlib.crc32(np.ascontiguousarray(array[at : at + _ROWS]).view(np.uint8).data, crc)
    return [], {name: [*about, crc]}


def _check_same(out: Path, manifest: Json, wanted: Json) -> None:
    task = wanted["task"]
    restart = f"or start over with restart=True (--restart), or by deleting {folder_of(out)}"
    begun = manifest["task"]
    changed = [name for name in task if begun.get(name) != task[name]]
    if changed or begun.keys() != task.keys():
        given = ", ".join(f"{name} {begun.get(name)!r} and not {task[name]!r}" for name in changed) or "another task"
        raise InputError(f"the interrupted work on {out} was begun with {given}. Finish it with the same, {restart}.")
    before, now = ([{**file, "path": ""} for file in files] for files in (manifest["inputs"], wanted["inputs"]))
    if len(before) != len(now):
        raise InputError(f"the interrupted work on {out} was begun with {len(before)} input files, not {len(now)}; {restart}.")
    for old, new, file in zip(before, now, wanted["inputs"], strict=True):
        if old != new:
            raise InputError(
                f"{file['path']} has changed since the work on {out} was interrupted. Restore the file, {restart}."
            )


def _clear(folder: Path) -> None:
    """Delete everything but the lock; the manifest last, without which a folder is not deleted."""
    for file in folder.iterdir():
        if file.is_dir():
            shutil.rmtree(file)
        elif file.name not in ("lock", KIND.file):
            file.unlink()
    (folder / KIND.file).unlink(missing_ok=True)


def _write(folder: Path, manifest: Json) -> None:
    with atomic_file(folder / KIND.file, overwrite=True) as file:
        file.write((json.dumps({**manifest, CHECKSUM: checksum_of(manifest)}, indent=1) + "\n").encode())


def _read(folder: Path) -> Json:
    """The manifest as `_write` wrote it."""
    try:
        manifest: Json = json.loads((folder / KIND.file).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise damaged(folder) from error
    version = manifest.get("version")
    if type(version) is int and version < KIND.version:  # its steps were recorded in another form
        raise FileFormatError(
            f"{folder} was left by an earlier release of unifews, whose unfinished work this one does not continue. Finish it "
            f"with that release, or start over with restart=True (--restart), or by deleting {folder}."
        )
    if type(version) is int and version > KIND.version:
        raise FileFormatError(f"{folder} has format version {version}, of a later release. Upgrade unifews, or delete it.")
    if manifest.pop(CHECKSUM, None) != checksum_of(manifest):
        raise damaged(folder)
    return manifest


def damaged(folder: Path) -> FileFormatError:
    """The error for a working folder whose manifest is not as it was written."""
    return FileFormatError(
        f"{folder}/{KIND.file} is damaged, so the interrupted work cannot continue. "
        f"Start over with restart=True (--restart), or by deleting {folder}."
    )


def _locked(folder: Path) -> IO[bytes]:
    """One process at a time works in a folder. The lock is released when its process ends."""
    file = (folder / "lock").open("wb")
    try:
        lock(file.fileno(), wait=False)
    except OSError as error:
        file.close()
        raise InputError(f"another process is working in {folder}. Wait for it, or stop it.") from error
    return file
