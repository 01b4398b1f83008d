"""Reading files that may be damaged or malicious: every failure is one error that names the file.

`reading` turns the exceptions of parsers into `FileFormatError`; `check_unpacked` and `UnpackedText` bound the memory that a
compressed file may take.
"""

from __future__ import annotations

import csv
import errno
import gzip
import pickle
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unifews.errors import FileFormatError, UnifewsError
from unifews.resources import available, format_bytes

# What numpy, scipy, pyarrow, zipfile, gzip, json, tomllib and the standard parsers raise for bytes that are not what they
# expect. ValueError includes JSONDecodeError, TOMLDecodeError and UnicodeError; EOFError and OSError the ends of gzip files.
_PYTHON = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, EOFError, MemoryError)
_PARSER = (SyntaxError, tokenize.TokenError, csv.Error, struct.error, zlib.error, zipfile.BadZipFile, pickle.UnpicklingError)
_PARSING = (*_PYTHON, *_PARSER, OSError)
# An OSError without a number comes from a parser, and these from a position or a length that the file itself gave.
_OF_THE_FILE = (None, errno.EINVAL, errno.ENOMEM, errno.EOVERFLOW)

_SMALL = 1 << 28  # bytes that a compressed file may always unpack to
_RATIO = 500  # beyond that, how many times its packed size: deflate reaches 1,030 where all values are equal


@contextmanager
def reading(path: Path | str, expected: str) -> Iterator[None]:
    """Errors of parsing the file at `path`, which should be `expected` ("an edge list"), as `FileFormatError`.

    Errors of this package pass, and those of the system (no permission, disk full), which are not about the contents.
    """
    try:
        yield
    except UnifewsError:
        raise
    except Exception as error:
        if not isinstance(error, _PARSING) and not type(error).__module__.startswith("pyarrow"):  # which need not be imported
            raise
        if isinstance(error, OSError) and error.errno not in _OF_THE_FILE:
            raise
        if isinstance(error, MemoryError):
            raise FileFormatError(
                f"{path} cannot be read as {expected}: it needs more memory than there is, so it is damaged, or too large "
                f"for this machine."
            ) from error
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise FileFormatError(
            f"{path} cannot be read as {expected}: it is truncated, half-downloaded or of another format"
            f"{f' ({reason})' if reason else ''}."
        ) from error


def check_memory(path: Path | str, size: int, what: str) -> None:
    """An error if a file needs `size` bytes of memory and this machine has fewer available."""
    free = available()
    if size > free:
        raise FileFormatError(
            f"{path} cannot be read: {what} takes {format_bytes(size)} in memory, and {format_bytes(free)} are free."
        )


def check_unpacked(path: Path | str, size: int, packed: int, what: str, advice: str) -> None:
    """Refuse to unpack `packed` bytes to `size` in memory if there is too little of it, or if the ratio is absurd."""
    if size > _SMALL and size > _RATIO * packed:
        raise FileFormatError(
            f"{path} is not unpacked: {what} would grow from {format_bytes(packed)} to {format_bytes(size)}, "
            f"more than {_RATIO} times, as only files made to exhaust memory do. If it is meant so, {advice}."
        )
    free = available()
    if size > free:
        raise FileFormatError(
            f"{path} cannot be read: {what} unpacks to {format_bytes(size)}, and {format_bytes(free)} of memory are free; "
            f"{advice}."
        )


class UnpackedText(gzip.GzipFile):
    """A `.gz` file to be read as text, which stops where it unpacks to more than `check_unpacked` admits."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        self._path, self._size, self._unpacked, self._next = path, path.stat().st_size, 0, _SMALL

    def read(self, size: int | None = -1) -> bytes:
        return self._counted(super().read(size))

    def read1(self, size: int | None = -1) -> bytes:  # called by io.TextIOWrapper
        return self._counted(super().read1(-1 if size is None else size))

    def _counted(self, data: bytes) -> bytes:
        self._unpacked += len(data)
        if self._unpacked > self._next:
            check_unpacked(self._path, self._unpacked, self._size, "its text", "unpack it with gunzip first")
            self._next += _SMALL
        return data
