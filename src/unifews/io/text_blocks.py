"""Text files, plain or `.gz`, by blocks of whole lines: UTF-8, any line end, and no line longer than a megabyte."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unifews.errors import FileFormatError

MAX_LINE = 1 << 20  # bytes of a line: a file without line ends must not be read into memory as one line

Position = tuple[int, int]  # bytes, unpacked, and lines before
START: Position = (0, 0)

_BOM = b"\xef\xbb\xbf"


class Block(NamedTuple):
    """Some whole lines of a file."""

    data: bytes
    """Their UTF-8 text; lines end with a line feed."""
    before: int
    """Lines before these."""
    end: Position
    """Where the next block begins."""

    @property
    def lines(self) -> list[str]:
        """The lines without their ends; after a last line that has an end, an empty one."""
        return self.data.decode("utf-8").split("\n")

    def skip(self, lines: int) -> Block:
        """The block without what it has of the first `lines` lines of the file."""
        cut = max(0, lines - self.before)
        return self._replace(data=b"".join(self.data.split(b"\n", cut)[cut:]), before=self.before + cut) if cut else self


@contextmanager
def opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """The file as bytes, unpacked; and the file as it is on the disk."""
    with path.open("rb") as raw:
        if path.suffix.lower() != ".gz":
            yield raw, raw
            return
        with gzip.open(raw, "rb") as file:
            yield file, raw


def blocks(path: Path, file: Any, size: int, start: Position = START, max_line: int | None = MAX_LINE) -> Iterator[Block]:
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
            if max_line is not None and len(block) > max_line:
                raise _too_long(path, before + 1)
            rest = block
            continue
        text = _checked(path, block[:end], before, max_line)
        rest, offset = block[end:], offset + end
        after = before + text.count(b"\n")
        yield Block(text, before, (offset, after))
        before = after


def _last_end(block: bytes) -> int:
    """Where the last complete line ends; a carriage return at the very end may be half of a line end."""
    return max(block.rfind(b"\n"), block.rfind(b"\r", 0, len(block) - 1)) + 1


def _checked(path: Path, block: bytes, before: int, max_line: int | None) -> bytes:
    """The block with line feeds as line ends, checked."""
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    try:
        if not block.isascii():
            block.decode("utf-8")
    except UnicodeDecodeError as error:
        line = before + 1 + block.count(b"\n", 0, error.start)
        raise FileFormatError(f"{path} cannot be read as text: line {line:,} is not UTF-8.") from error
    if max_line is not None and len(block) > max_line:
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
        lengths = np.diff(ends, prepend=-1, append=len(block)) - 1
        if lengths.max() > max_line:
            raise _too_long(path, before + 1 + int(lengths.argmax()))
    return block


def _too_long(path: Path, line: int) -> FileFormatError:
    return FileFormatError(f"{path} cannot be read as text: line {line:,} is longer than {MAX_LINE:,} bytes, the maximum.")
