"""Delimited text, as fields and as columns: pyarrow parses the lines that are regular, and all others are split here.

pyarrow knows neither comments nor runs of blanks, and its errors name no line: `parse` removes comments and runs of blanks, and
returns None for lines that it cannot parse. The caller then uses `Layout.rows`, which names the line of an error.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unifews.errors import FileFormatError
from unifews.io.text_blocks import Block, blocks

_HEAD = 1 << 16  # bytes in which the first lines with content are searched at a time
_LINE_COMMENT = re.compile(rb"^[^\S\n]*#[^\n]*", re.MULTILINE)
_COMMENT = re.compile(rb"#[^\n]*")
_NO_DELIMITER = "\x1f"  # which no line contains: each is one value
_INTEGER = re.compile(r"[+-]?[0-9]+")

Type = Literal["int64", "float64", "string"]


class Layout(NamedTuple):
    """How the lines of a text table are divided into fields."""

    path: Path
    delimiter: str | None
    """None: runs of white space; "": a line is one value."""
    width: int
    """Fields of the first line."""
    columns: list[int]
    """The columns that are read."""
    skip: int
    """Lines of the file before the values: comments and the line of column names."""
    identifiers: bool = False
    """Whether fields may be quoted and contain `#`: a comment then is a whole line. Else `#` begins a comment anywhere."""
    strict: bool = True
    """Whether text behind a closing quotation mark is an error."""
    expected: str = "an edge list"
    """What the file should be, for messages."""

    def rows(self, block: Block) -> Iterator[tuple[int, list[str]]]:
        """The line number, from 1, and the stripped fields of every line with content."""
        for number, line in enumerate(block.lines, start=block.before + 1):
            content = _content(line, self.identifiers)
            if content is None:
                continue
            fields = self.split(content, number)
            if len(fields) <= max(self.columns) or (len(fields) > self.width and len(self.columns) == self.width):
                raise self.wrong_width(number, fields)
            yield number, fields

    def split(self, line: str, number: int) -> list[str]:
        """The fields of a line."""
        if self.delimiter == "":
            return [line.strip().strip('"')]
        if not self.identifiers or '"' not in line:
            return [field.strip() for field in line.split(self.delimiter)]
        try:
            fields = next(
                csv.reader([line.strip(" ")], delimiter=self.delimiter or " ", skipinitialspace=True, strict=self.strict)
            )
        except csv.Error as error:
            raise self.error(
                number, f"has quotation marks that do not match ({error}); a value contains no line break"
            ) from error
        return [field.strip() for field in fields if self.delimiter or field]

    def weight(self, number: int, fields: list[str]) -> float:
        """The third of the columns."""
        field = fields[self.columns[2]]
        value = as_float(field)
        if value is None:
            raise self.error(number, f"holds {field!r} for a weight")
        return value

    def wrong_width(self, number: int, fields: list[str]) -> FileFormatError:
        return self.error(number, f"has {len(fields)} values, and its first line has {self.width}")

    def error(self, number: int, problem: str) -> FileFormatError:
        return FileFormatError(f"{self.path} cannot be read as {self.expected}: line {number:,} {problem}.")

    def parse(self, block: Block, types: Mapping[int, Type]) -> list[NDArray[Any]] | None:
        """The columns of some lines, or None if they must be split line by line."""
        data = block.data
        if self.identifiers and b'"' in data:
            return None
        if b"#" in data:
            data = (_LINE_COMMENT if self.identifiers else _COMMENT).sub(b"", data)
        return parse(data, self.delimiter, self.width, types)


def first_lines(path: Path, file: Any, identifiers: bool) -> list[tuple[int, str]]:
    """The first two lines with content, each with the number of lines before it; inline comments are removed."""
    found: list[tuple[int, str]] = []
    for block in blocks(path, file, _HEAD):
        for number, line in enumerate(block.lines, start=block.before):
            content = _content(line, identifiers)
            if content is not None:
                found.append((number, content))
        if len(found) > 1:
            break
    if not found:
        raise FileFormatError(f"{path} holds no edges.")
    return found[:2]


def _content(line: str, identifiers: bool) -> str | None:
    """A line without its comment; None if nothing else is in it."""
    stripped = line.strip() if identifiers else line.split("#")[0].strip()
    if not stripped or stripped.startswith("#"):
        return None
    return line if identifiers else stripped  # an identifier that is missing leaves a tab at one end


def parse(
    data: bytes, delimiter: str | None, width: int, types: Mapping[int, Type], *, empty_lines: bool = True
) -> list[NDArray[Any]] | None:
    """Columns of lines of `width` fields by pyarrow, in the order of `types`; None where a line has other fields.

    Text becomes objects of type str, one for each distinct value, stripped. Integers are written in decimal digits.
    `empty_lines` admits lines without content, which have no row.
    """
    if "int64" in types.values() and (b"x" in data or b"X" in data):  # pyarrow takes 0x1f for an integer
        return None
    if not data.strip():
        return [np.empty(0, object if kind == "string" else kind) for kind in types.values()]
    if delimiter is not None:
        return _read_csv(data, delimiter or _NO_DELIMITER, width, types, empty_lines)
    data = data.replace(b"\t", b" ")
    while b"  " in data:
        data = data.replace(b"  ", b" ")
    found = _read_csv(data, " ", width, types, empty_lines)
    if found is None and (b" \n" in data or b"\n " in data or data[:1] == b" " or data[-1:] == b" "):
        data = data.replace(b" \n", b"\n").replace(b"\n ", b"\n").strip(b" ")
        found = _read_csv(data, " ", width, types, empty_lines)
    return found


def _read_csv(
    data: bytes, delimiter: str, width: int, types: Mapping[int, Type], empty_lines: bool
) -> list[NDArray[Any]] | None:
    import pyarrow as arrow
    from pyarrow import csv

    try:
        table = csv.read_csv(
            arrow.BufferReader(data),
            csv.ReadOptions(column_names=[str(i) for i in range(width)], use_threads=False, block_size=len(data) + 1),
            csv.ParseOptions(delimiter=delimiter, quote_char=False, ignore_empty_lines=empty_lines),
            csv.ConvertOptions(
                column_types={str(i): getattr(arrow, kind)() for i, kind in types.items()},
                include_columns=[str(i) for i in types],
                null_values=[],
                check_utf8=False,
            ),
        )
    except (ValueError, arrow.ArrowException):
        return None
    columns = []
    for i, kind in types.items():
        column = table[str(i)].combine_chunks()
        if kind == "string":
            codes = column.dictionary_encode()
            distinct = np.array([text.strip() for text in codes.dictionary.to_pylist()], dtype=object)
            column = distinct[codes.indices.to_numpy()]
        columns.append(np.asarray(column))
    return columns


def as_integer(field: str) -> int | None:
    """The int64 that a field holds in decimal digits, or None."""
    number = int(field) if _INTEGER.fullmatch(field) else 2**63
    return number if -(2**63) <= number < 2**63 else None


def as_float(field: str) -> float | None:
    """The number that a field holds, or None; Python's own notation 1_000 is none."""
    try:
        return float(field) if field.isascii() and "_" not in field else None
    except ValueError:
        return None


def is_number(field: str) -> bool:
    """Whether Python reads a number in a field, so that it is no name of a column."""
    try:
        float(field)
    except ValueError:
        return False
    return True
