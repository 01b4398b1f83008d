"""What the sources of datasets share: where files lie, and a way to say "not here"."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from unifews.errors import UnifewsError


class Unavailable(Exception):
    """A source cannot give a dataset; the message says why, and the next source is tried."""


class NotOffered(Unavailable):
    """A source never has this dataset, which is worth a word only where that source was asked for."""


@dataclass(frozen=True)
class Places:
    """The folders datasets are looked for in."""

    data: Path | None
    """UNIFEWS_DATA: files of the user's, read and never written."""
    cache: Path
    """Where what was downloaded and converted is kept."""

    @classmethod
    def of(cls, cache: str | PathLike[str] | None = None) -> Places:
        """UNIFEWS_DATA, and `cache`, UNIFEWS_CACHE or ~/.cache/unifews."""
        data = os.environ.get("UNIFEWS_DATA")
        given = cache or os.environ.get("UNIFEWS_CACHE") or Path.home() / ".cache" / "unifews"
        return cls(Path(data).expanduser() if data else None, Path(given).expanduser())

    @property
    def folders(self) -> list[Path]:
        """The folders to look into, in order."""
        return [self.cache] if self.data is None else [self.data, self.cache]

    def __str__(self) -> str:
        if self.data is None:
            return f"{self.cache} (and UNIFEWS_DATA is not set)"
        return f"{self.data} (UNIFEWS_DATA{'' if self.data.is_dir() else ', which is no folder'}) or {self.cache}"


@contextmanager
def writing(cache: Path, name: str) -> Iterator[None]:
    """One process at a time fetches `name` into `cache`; what the disk refuses is told in one sentence.

    The lock dies with its process, so a crash leaves nothing to clean up.
    """
    try:
        locks = cache / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        with (locks / name).open("w") as lock:
            _wait_for(lock.fileno())
            yield
    except UnifewsError:
        raise
    except OSError as error:
        if error.filename is not None and not Path(str(error.filename)).is_relative_to(cache):
            raise
        raise UnifewsError(
            f"cannot keep {name} in {cache}: {error.strerror or error}. Free some space there, or set UNIFEWS_CACHE to "
            f"another folder."
        ) from error


def _wait_for(descriptor: int) -> None:
    try:
        from fcntl import LOCK_EX, flock
    except ImportError:  # no such locks on Windows: two processes may fetch twice, and the later one wins
        return
    flock(descriptor, LOCK_EX)
