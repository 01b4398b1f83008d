"""The ledger: one JSON record per finished run, one line each, appended whole or not at all.

A line is written with a single `write` under a lock and taken back if it did not arrive complete (a full disk). A line
that a crash of the machine cut off is passed over by readers and closed by the next writer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from unifews.core.atomic import atomic_file
from unifews.errors import FileFormatError, InputError


class Ledger:
    """Records of finished runs in a file, and beside it what unfinished ones have got so far."""

    def __init__(self, path: str | PathLike[str]) -> None:
        """`path`: a .jsonl file, or the folder that holds `ledger.jsonl`; neither needs to exist yet."""
        self.path = Path(path)
        if self.path.is_dir() or not self.path.suffix:
            self.path = self.path / "ledger.jsonl"

    def append(self, record: dict[str, Any]) -> None:
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            with _locked(descriptor):
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    line = b"\n" + line
                try:
                    if os.write(descriptor, line) != len(line):
                        raise OSError(28, os.strerror(28), str(self.path))
                    os.fsync(descriptor)
                except OSError:
                    os.ftruncate(descriptor, size)
                    raise
        finally:
            os.close(descriptor)

    def records(self) -> list[dict[str, Any]]:
        """All complete records, oldest first."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            lines = file.read().split(b"\n")
        found = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                if line[:1] == b"{":  # cut off by a crash
                    continue
                raise FileFormatError(f"{self.path} is no ledger: line {number} holds no JSON record.") from error
            if not isinstance(record, dict) or "id" not in record:
                raise FileFormatError(f"{self.path} is no ledger: line {number} is not the record of a run.")
            found.append(record)
        return found

    def find(self, run: str) -> dict[str, Any] | None:
        """The latest record of a run, by its id or the beginning of it."""
        return next((record for record in reversed(self.records()) if str(record["id"]).startswith(run)), None)

    # What an unfinished run has got so far: its finished seeds, in a file of its own beside the ledger.

    def _partial(self, run: str) -> Path:
        return self.path.parent / f".{run}.partial.json"

    def save_partial(self, run: str, seeds: list[dict[str, Any]]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(self._partial(run), overwrite=True) as file:
            file.write(json.dumps(seeds).encode())

    def partial(self, run: str) -> list[dict[str, Any]]:
        try:
            seeds = json.loads(self._partial(run).read_bytes())
        except FileNotFoundError:
            return []
        except ValueError as error:
            raise InputError(f"{self._partial(run)} is damaged; delete it to start this run afresh.") from error
        return list(seeds)

    def drop_partial(self, run: str) -> None:
        self._partial(run).unlink(missing_ok=True)


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # Windows: appending a line is atomic enough there
        yield
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
