"""Text files, plain or `.gz`, by blocks of whole lines: UTF-8, any line end, and no line longer than a megabyte."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from unifews.errors import FileFormatError

LONGEST = 1 << 20  # bytes of a line: a file without line ends must not be read into memory as one line

Position = tuple[int, int]  # bytes, unpacked, and lines before
START: Position = (0, 0)

_BOM = b"\xef\xbb\xbf"


class Block(NamedTuple):
    """Some lines of a file, without their ends."""

    lines: list[str]
    before: int
    """Lines before these."""
    end: Position
    """Where the next block begins."""


@contextmanager
def opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """The file as bytes, unpacked; and the file as it is on the disk."""
    with path.open("rb") as raw:
        if path.suffix.lower() != ".gz":
            yield raw, raw
            return
        with gzip.open(raw, "rb") as file:
            yield file, raw


def blocks(path: Path, file: Any, size: int, start: Position = START) -> Iterator[Block]:
    """The lines from `start` on, about `size` bytes at a time."""
    offset, before = start
    file.seek(offset)
    rest = b""
    if not offset and (rest := file.read(len(_BOM))) == _BOM:
        offset, rest = len(_BOM), b""
    while True:
        data = file.read(max(1, size))
        block = rest + data
        if not block:
            return
        end = _last_end(block) if data else len(block)
        if not end:
            _check_length(path, before + 1, len(block))
            rest = block
            continue
        lines = _decoded(path, block[:end], before)
        rest, offset = block[end:], offset + end
        yield Block(lines, before, (offset, before + len(lines) - 1))
        before += len(lines) - 1


def _last_end(block: bytes) -> int:
    """Where the last line that is complete ends; a carriage return at the very end may be half of a line end."""
    return max(block.rfind(b"\n"), block.rfind(b"\r", 0, len(block) - 1)) + 1


def _decoded(path: Path, block: bytes, before: int) -> list[str]:
    block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    try:
        lines = block.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        line = before + 1 + block.count(b"\n", 0, error.start)
        raise FileFormatError(f"{path} cannot be read as text: line {line:,} is not UTF-8.") from error
    if len(block) > LONGEST:
        longest = max(map(len, lines))
        if longest > LONGEST:
            _check_length(path, before + 1 + list(map(len, lines)).index(longest), longest)
    return lines


def _check_length(path: Path, line: int, length: int) -> None:
    if length > LONGEST:
        raise FileFormatError(
            f"{path} cannot be read as text: line {line:,} is longer than {LONGEST:,} bytes, the most that is read as one line."
        )
