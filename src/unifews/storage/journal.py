"""A working folder beside a result that takes long: what is done stays there, and the next call goes on with it.

`<out>.work/` holds a `manifest.json` that says what the task is, what its input files looked like, and how far it has come; it
is replaced atomically after each step, so a process that is killed loses the step it was at and nothing else. The manifest has
a checksum of its own content: one that does not fit is refused before anything of it is used.
"""

from __future__ import annotations

import errno
import json
import shutil
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from unifews.errors import FileFormatError, InputError, MissingFileError, UnifewsError
from unifews.resources import format_bytes
from unifews.storage.atomic import atomic_file, put_folder, write_error
from unifews.storage.folder_format import CHECKSUM, Kind, checksum_of

KIND = Kind("working folder", "unifews-work", 2, "manifest.json", "convert_edges")

_ENDS = 1 << 20  # bytes at either end of an input file that its fingerprint covers
_ROWS = 1 << 13  # of an array that are summed up at a time
_RESERVE = 1.02  # of the disk that is asked for: files have a little more than their contents


class Work:
    """The working folder of one task. Keep facts with `keep`, read them with `get`."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self._manifest = manifest
        self._useless = False

    @property
    def is_worthless(self) -> bool:
        """Whether nothing has been done yet, or nothing that another call could use."""
        return self._useless or not self._manifest["done"]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What is read may be wrong: then it will have to change, and what was made of it is of no use."""
        try:
            yield
        except UnifewsError:
            self._useless = True
            raise

    def get(self, step: str) -> Any:
        """What is known of a step; None before it has begun."""
        return self._manifest["done"].get(step)

    def keep(self, **done: Any) -> None:
        """Remember how far the work has come."""
        self._manifest["done"] |= done
        _write(self.folder, self._manifest)

    def check_disk(self, needed: float, what: str) -> None:
        """Whether the disk has room for `needed` bytes, counting what this folder has taken already."""
        usage = shutil.disk_usage(self.folder)
        taken = sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())
        missing = needed * _RESERVE - taken - usage.free
        if missing > 0:
            advice = "or choose another place" if self.is_worthless else "and call again: it goes on where it stopped"
            raise InputError(
                f"{what} takes about {format_bytes(needed * _RESERVE)} of disk while it works, and {self.folder.parent} has "
                f"{format_bytes(usage.free)} free: {format_bytes(missing)} more are needed there. Free some space, {advice}."
            )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A full disk in one sentence; whatever happens, what is done stays."""
        try:
            yield
        except OSError as error:
            code = write_error(error, self.folder)
            if code in (errno.ENOSPC, errno.EDQUOT):
                raise UnifewsError(
                    f"the disk of {self.folder} is full. What is done is kept there: free some space and call again, "
                    f"and it goes on where it stopped."
                ) from error
            if code == errno.EFBIG:
                raise UnifewsError(
                    f"a file in {self.folder} may not grow any further (ulimit -f, or a limit of the file system). What is "
                    f"done is kept there: raise the limit and call again, and it goes on where it stopped."
                ) from error
            raise

    def put(self, name: str, target: Path) -> None:
        """Move a finished folder of the working folder to `target`, in the place of what is there."""
        place = self.folder / name
        self.keep(placing={"folder": name, "number": place.stat().st_ino})
        put_folder(place, target)

    def is_placed(self, target: Path) -> bool:
        """Whether an earlier call was interrupted after `put` had given `target` its new folder."""
        placing = self.get("placing")
        if placing is None or not target.exists():
            return False
        place = self.folder / placing["folder"]
        # The two folders are exchanged, so the one here may be what `target` was before.
        if not place.exists() or target.stat().st_ino == placing["number"]:
            return True
        if place.stat().st_ino != placing["number"]:
            raise damaged(self.folder)
        return False

    def remove(self) -> None:
        """The work is done, or not wanted any more."""
        _clear(self.folder)
        shutil.rmtree(self.folder)


def folder_of(out: Path) -> Path:
    return out.with_name(f"{out.name}.work")


@contextmanager
def working(out: Path, task: dict[str, Any], inputs: Sequence[Path] = (), *, again: bool = False) -> Iterator[Work]:
    """The working folder of `out`, new or as an earlier call left it; that must have been about the same task and inputs.

    `again` starts afresh whatever is there. An error takes a folder that holds nothing worth keeping away again.
    """
    folder = folder_of(out)
    if not out.parent.is_dir():
        raise MissingFileError(f"cannot write {out}: there is no folder {out.parent}. Create it first.")
    wanted = {"task": task, "inputs": [fingerprint(path) for path in inputs]}
    if folder.exists() and not KIND.describes(folder) and any(file.name != "lock" for file in folder.glob("[!.]*")):
        raise InputError(
            f"{folder} is in the way: it should hold unfinished work, and its {KIND.file} is missing, damaged or of something "
            f"else. Move it away, or delete it and start again."
        )
    folder.mkdir(exist_ok=True)
    lock = _locked(folder)
    try:
        if again or not KIND.describes(folder):
            _clear(folder)
            manifest = {**KIND.header(), "out": str(out), **wanted, "done": {}}
            _write(folder, manifest)
        else:
            manifest = _read(folder)
            _check_same(out, manifest, wanted)
        work = Work(folder, manifest)
        try:
            yield work
        except BaseException:
            if work.is_worthless:
                _clear(folder)
                shutil.rmtree(folder, ignore_errors=True)
            raise
    finally:
        lock.close()


def check_finished(folder: Path, noun: str) -> None:
    """An error for the working folder of something, and for something of which there is only that."""
    if KIND.describes(folder):
        raise FileFormatError(
            f"{folder} is the working folder of a {noun} that is not finished. Call what made it again: it goes on where it "
            f"stopped."
        )
    left = folder_of(folder)
    if not folder.exists() and KIND.describes(left):
        raise FileFormatError(
            f"{folder} is not finished: what made it was interrupted, and its work is in {left}. Call it again: it goes on "
            f"where it stopped."
        )


def fingerprint(path: Path) -> dict[str, Any]:
    """What tells a file from another that took its place: length, time, and both of its ends."""
    stat = path.stat()
    with path.open("rb") as file:
        digest = sha256(file.read(_ENDS))
        file.seek(max(0, stat.st_size - _ENDS))
        digest.update(file.read(_ENDS))
    return {"path": str(path), "bytes": stat.st_size, "time": stat.st_mtime_ns, "ends": digest.hexdigest()}


def known_by(name: str, array: NDArray[Any]) -> tuple[list[Path], dict[str, Any]]:
    """What tells an input from another, for `working`: its file and which part of it, or all of its values."""
    about = [str(array.dtype), *array.shape]
    if isinstance(array, np.memmap) and array.filename is not None and array.mode != "c":
        start = array.ctypes.data - np.frombuffer(array._mmap, np.uint8).ctypes.data  # type: ignore[attr-defined]
        return [Path(array.filename)], {name: [*about, start, *array.strides]}
    crc = 0
    for at in range(0, len(array), _ROWS):
        crc = zlib.crc32(np.ascontiguousarray(array[at : at + _ROWS]).view(np.uint8).data, crc)
    return [], {name: [*about, crc]}


def _check_same(out: Path, manifest: dict[str, Any], wanted: dict[str, Any]) -> None:
    task = wanted["task"]
    afresh = f"or start afresh with again=True (--again), or by deleting {folder_of(out)}"
    begun = manifest["task"]
    changed = [name for name in task if begun.get(name) != task[name]]
    if changed or begun.keys() != task.keys():
        told = ", ".join(f"{name} {begun.get(name)!r} and not {task[name]!r}" for name in changed) or "another task"
        raise InputError(f"the interrupted work on {out} was begun with {told}. Finish it with the same, {afresh}.")
    before, now = ([{**file, "path": ""} for file in files] for files in (manifest["inputs"], wanted["inputs"]))
    if len(before) != len(now):
        raise InputError(f"the interrupted work on {out} was begun with {len(before)} input files, not {len(now)}; {afresh}.")
    for old, new, file in zip(before, now, wanted["inputs"], strict=True):
        if old != new:
            raise InputError(
                f"{file['path']} has changed since the work on {out} was interrupted. Bring back the file as it was, {afresh}."
            )


def _clear(folder: Path) -> None:
    """Delete everything but the lock, and last of all what says that the rest may be deleted."""
    for file in folder.iterdir():
        if file.is_dir():
            shutil.rmtree(file)
        elif file.name not in ("lock", KIND.file):
            file.unlink()
    (folder / KIND.file).unlink(missing_ok=True)


def _write(folder: Path, manifest: dict[str, Any]) -> None:
    with atomic_file(folder / KIND.file, overwrite=True) as file:
        file.write((json.dumps({**manifest, CHECKSUM: checksum_of(manifest)}, indent=1) + "\n").encode())


def _read(folder: Path) -> dict[str, Any]:
    """The manifest as `_write` wrote it."""
    try:
        manifest: dict[str, Any] = json.loads((folder / KIND.file).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise damaged(folder) from error
    version = manifest.get("version")
    if version == 1:  # without a checksum, so nothing in it can be relied on
        raise FileFormatError(
            f"{folder} was left by an earlier release of unifews, whose unfinished work this one does not continue. Finish it "
            f"with that release, or start afresh with again=True (--again), or by deleting {folder}."
        )
    if type(version) is int and version > KIND.version:
        raise FileFormatError(f"{folder} has format version {version}, of a later release. Upgrade unifews, or delete it.")
    if manifest.pop(CHECKSUM, None) != checksum_of(manifest):
        raise damaged(folder)
    return manifest


def damaged(folder: Path) -> FileFormatError:
    """The error for a working folder whose manifest is not as it was written."""
    return FileFormatError(
        f"{folder}/{KIND.file} is damaged, so the interrupted work cannot go on. Start afresh with again=True (--again), or by "
        f"deleting {folder}."
    )


def _locked(folder: Path) -> IO[bytes]:
    """One process at a time works in a folder. The lock dies with its process."""
    lock = (folder / "lock").open("wb")
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:  # no such locks on Windows
        return lock
    try:
        flock(lock.fileno(), LOCK_EX | LOCK_NB)
    except OSError as error:
        lock.close()
        raise InputError(f"another process is at work in {folder}. Wait for it, or stop it.") from error
    return lock
