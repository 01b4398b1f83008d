"""The ledger: one JSON record per finished run, one line each, appended whole or not at all.

A line is written with a single `write` under a lock and removed again if it is incomplete (a full disk). A line without a
complete record, truncated by a crash of the machine or changed otherwise, is skipped by readers and listed by `Ledger.skipped`;
the next writer ends a truncated one with a newline.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from os import PathLike
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from unifews.errors import FileFormatError, UnifewsError
from unifews.storage.atomic import atomic_file
from unifews.storage.locks import lock
from unifews.training.record import FINISHED, Record, mismatch, problem


class Busy(UnifewsError):
    """Another process is training this run."""


class Skipped(NamedTuple):
    """A line of a ledger that holds no complete record."""

    line: int
    """Its number, counted from 1."""
    why: str
    """The problem, as it reads after "line 3": "is cut off"."""


class Ledger:
    """Records of finished runs in a file, and beside it the finished seeds of unfinished runs."""

    def __init__(self, path: str | PathLike[str]) -> None:
        """`path`: a .jsonl file, or the folder that holds `ledger.jsonl`; neither needs to exist yet."""
        self.path = Path(path)
        if self.path.is_dir() or not (self.path.suffix or self.path.is_file()):
            self.path = self.path / "ledger.jsonl"

    def check(self) -> None:
        """Fail before hours of training if a record could not be appended: a file of another format, a folder without write
        permission."""
        self.records()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=self.path.parent):
            pass

    def append(self, record: Record) -> None:
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
        try:
            lock(descriptor)  # without locks, on Windows, appending a line is atomic enough
            size = os.fstat(descriptor).st_size
            os.lseek(descriptor, max(size - 1, 0), os.SEEK_SET)
            if size and os.read(descriptor, 1) != b"\n":
                line = b"\n" + line
            try:
                if (written := os.write(descriptor, line)) != len(line):
                    os.write(descriptor, line[written:])  # raises the actual error
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(descriptor)
            except OSError as error:
                os.ftruncate(descriptor, size)
                raise OSError(error.errno, error.strerror, str(self.path)) from error
        finally:
            os.close(descriptor)

    def records(self) -> list[Record]:
        """All complete records, oldest first, each checked (`unifews.training.record`)."""
        return self._read()[0]

    def skipped(self) -> list[Skipped]:
        """The lines that hold no complete record, and so are not among `records`."""
        return self._read()[1]

    def _read(self) -> tuple[list[Record], list[Skipped]]:
        if not self.path.exists():
            return [], []
        with self.path.open("rb") as file:
            lines = file.read().split(b"\n")
        found: list[Record] = []
        skipped: list[Skipped] = []
        ours = False
        for number, line in enumerate(lines, 1):
            line = line.strip(b" \t\r\0")  # zeros: a crash after the file system had allocated the bytes
            if not line:
                continue
            record, why = _parsed(line)
            if why is None:
                found.append(record)
            else:
                skipped.append(Skipped(number, why))
                ours = ours or (line[:1] == b"{" if record is None else isinstance(record, dict) and "id" in record)
        if skipped and not found and not ours:
            raise FileFormatError(
                f"{self.path} is no ledger: line {skipped[0].line} {skipped[0].why}; delete that line, or move the file away."
            )
        return found, skipped

    def find(self, run: str) -> Record | None:
        """The latest record of a run, by its id or the beginning of it."""
        return next((record for record in reversed(self.records()) if str(record["id"]).startswith(run)), None)

    def once(
        self,
        run: str,
        make: Callable[[], Record],
        *,
        restart: bool = False,
        wait: bool = True,
        waiting: Callable[[], None] = lambda: None,
    ) -> Record:
        """The record of a run: the one in the ledger, else what `make` returns, which trains the run and appends its record.

        One process at a time trains a run, however many share the ledger: another one calls `waiting` and waits, or raises
        `Busy` without `wait`. A process that is killed releases its run. `restart`: call `make` in any case.
        """
        with self._claimed(run, wait, waiting):
            return (None if restart else self._latest(run)) or make()

    def _latest(self, run: str) -> Record | None:
        if not self.path.exists() or run.encode() not in self.path.read_bytes():
            return None
        return next((record for record in reversed(self.records()) if record["id"] == run), None)

    @contextmanager
    def _claimed(self, run: str, wait: bool, waiting: Callable[[], None]) -> Iterator[None]:
        """Holds the lock of a run, on a file beside the ledger; the system releases it when the process ends."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.parent / f".{run}.lock"
        while True:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                lock(descriptor, wait=False)
            except BlockingIOError:
                try:
                    if not wait:
                        raise Busy(f"another process is training run {run}.") from None
                    waiting()
                    lock(descriptor)
                except BaseException:
                    os.close(descriptor)
                    raise
            except OSError:
                break  # a file system without locks: every process trains its runs itself
            with suppress(FileNotFoundError):
                if os.path.samestat(file.stat(), os.fstat(descriptor)):
                    break
            os.close(descriptor)  # deleted by the process that held the lock
        try:
            yield
        finally:
            with suppress(PermissionError):  # Windows deletes no open file
                file.unlink(missing_ok=True)
            os.close(descriptor)

    # Finished seeds of an unfinished run, in a file of its own beside the ledger.

    def partial_file(self, run: str) -> Path:
        return self.path.parent / f".{run}.partial.json"

    def save_partial(self, run: str, seeds: list[Record]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(self.partial_file(run), overwrite=True) as file:
            file.write(json.dumps({"seeds": seeds, "sha256": _checksum(seeds)}).encode())

    def partial(self, run: str) -> list[Record]:
        """The finished seeds of an unfinished run, each checked."""
        file, kept = self.partial_file(run), None
        try:
            kept = json.loads(file.read_bytes())
        except FileNotFoundError:
            return []
        except (ValueError, RecursionError):
            pass
        if isinstance(kept, dict) and kept.get("sha256") == _checksum(kept.get("seeds")):
            kept = kept["seeds"]  # earlier releases wrote the seeds alone
        if not isinstance(kept, list) or any(mismatch(seed, FINISHED) for seed in kept):
            raise FileFormatError(f"{file} is damaged; delete it to restart this run.")
        return kept

    def drop_partial(self, run: str) -> None:
        self.partial_file(run).unlink(missing_ok=True)


def _parsed(line: bytes) -> tuple[Any, str | None]:
    """The record of a line and None, or the value and its problem; the value is None if the line is no JSON."""
    try:
        record = json.loads(line.decode())
    except RecursionError:
        return None, "has values nested too deeply"
    except ValueError:
        return None, "is cut off" if line[:1] == b"{" and line[-1:] != b"}" else "holds no JSON record"
    return record, problem(record)


def _checksum(seeds: Any) -> str:
    return sha256(json.dumps(seeds).encode()).hexdigest()
