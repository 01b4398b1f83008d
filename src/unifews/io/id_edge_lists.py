"""Edge lists between identifiers, a chunk at a time: tables in text or Parquet whose source and target are integers or text.

Text is as for node numbers (`core.edges`), with these differences: a field may be quoted as in CSV; a comment is a line that
starts with `#`, since an identifier may contain one; and a first line without numbers is taken for names of columns only if it
names source and target, if its first two names are such as user_id and item, or if numbers stand below it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unifews.errors import FileFormatError, InputError
from unifews.io import edge_lists as tables
from unifews.io.edge_lists import Edges, kind_of
from unifews.io.ids import as_ids, typed
from unifews.io.text_blocks import START, Position, blocks, opened
from unifews.storage.reading import reading

_HEAD = 1 << 16  # bytes in which the first lines with content are looked for at a time
_NAME = re.compile(r"user|item|follower|followee|\w+[_ ](?:id|name|node)")  # of a column; "u", "v1", "node2" may be identifiers
_ODD = re.compile(r'["#]|(?<![eE])\+|(?<![0-9.eE])0[0-9]|(?<![eE])-0')  # where loadtxt and the rule for integers may disagree
_QUOTED = re.compile(r'"[^"]*"')


class _Layout(NamedTuple):
    """How a text file is laid out."""

    path: Path
    delimiter: str | None  # None: white space
    width: int
    columns: list[int]  # of source, target and perhaps weight
    names: int | None  # the line that names the columns, counted from 0

    def fields(self, line: str, number: int) -> list[str]:
        """The fields of a line, stripped of white space around them; none of an empty line and of a comment."""
        if not line or line.isspace() or line.lstrip().startswith("#"):
            return []
        fields = _split(line, self.delimiter, self.path, number)
        if len(fields) < self.width or (len(fields) > self.width and len(self.columns) == self.width):
            raise self.error(number, f"has {len(fields)} values, and its first line has {self.width}")
        return fields

    def error(self, number: int, what: str) -> FileFormatError:
        return FileFormatError(f"{self.path} cannot be read as an edge list: line {number:,} {what}.")


def stream_ids(path: Path, size: int, start: Position = START) -> Iterator[tuple[Edges, Position]]:
    """The edges of a table from `start` on, about `size` at a time, each with the position behind them.

    Source and target are int64 where all of a column of a chunk are integers, else text (objects of type str).
    """
    return _parquet(path, size, start) if kind_of(path) == ".parquet" else _text(path, size, start)


# ---------------------------------------------------------------------------------------------------------------- text


def _text(path: Path, size: int, start: Position) -> Iterator[tuple[Edges, Position]]:
    with reading(path, "an edge list"), opened(path) as (file, _):
        layout = _layout(path, file)
        for lines, before, end in blocks(path, file, size * tables.LINE, start):
            if layout.names is not None and before <= layout.names < before + len(lines):
                lines[layout.names - before] = ""
            yield _integers(lines, layout) or _any(lines, before, layout), end


def _integers(lines: list[str], layout: _Layout) -> Edges | None:
    """The edges of lines that hold nothing but numbers, by the faster parser; None where it cannot be used."""
    if any(map(_ODD.search, lines)):
        return None
    try:
        return tables.parsed(lines, layout.delimiter, layout.columns, layout.width)
    except (ValueError, OverflowError, DeprecationWarning):
        return None


def _any(lines: list[str], before: int, layout: _Layout) -> Edges:
    """The edges of any lines."""
    known: dict[str, str] = {}  # one object for each identifier
    source, target, weight = [], [], []
    first, second = layout.columns[:2]
    plain = not any('"' in line or "#" in line for line in lines)  # no quotes and no comments: splitting is enough
    for number, line in enumerate(lines, start=before + 1):
        fields = line.split(layout.delimiter) if plain else []
        if len(fields) != layout.width:
            fields = layout.fields(line, number)
            if not fields:
                continue
        v, u = fields[first].strip(), fields[second].strip()
        if not v or not u:
            raise layout.error(number, "has an empty identifier")
        source.append(known.setdefault(v, v))
        target.append(known.setdefault(u, u))
        if len(layout.columns) == 3:
            try:
                weight.append(float(fields[layout.columns[2]]))
            except ValueError as error:
                raise layout.error(number, f"holds {fields[layout.columns[2]]!r} for a weight") from error
    return Edges(typed(source), typed(target), np.array(weight) if len(layout.columns) == 3 else None)


def _layout(path: Path, file: Any) -> _Layout:
    """Found from the first two lines with content."""
    head: list[tuple[int, str]] = []
    for lines, before, _ in blocks(path, file, _HEAD):
        for number, line in enumerate(lines, start=before):
            if line.strip() and not line.lstrip().startswith("#"):
                head.append((number, line))
        if len(head) > 1:
            break
    if not head:
        raise FileFormatError(f"{path} holds no edges.")
    content = _QUOTED.sub("", head[0][1])
    marks = "\t,;" if kind_of(path) == ".tsv" else ",;\t"
    delimiter = next((mark for mark in marks if mark in content), None)
    rows = [_split(line, delimiter, path, number + 1) for number, line in head[:2]]
    named = _is_header(rows)
    columns = tables.columns_of(rows[0]) if named else list(range(len(rows[0])))
    if len(columns) not in (2, 3):
        raise FileFormatError(
            f"{path} has {len(rows[0])} columns in its first line; an edge list is source, target, perhaps weight."
        )
    return _Layout(path, delimiter, len(rows[0]), columns, head[0][0] if named else None)


def _is_header(rows: list[list[str]]) -> bool:
    names = [field.lower() for field in rows[0]]
    if any(map(tables.is_number, names)):
        return False
    if tables.names_ends(names) or all(map(_NAME.fullmatch, names[:2])):
        return True
    below = [tables.is_number(field) for field in rows[1]] if len(rows) == 2 else []
    return len(below) > 1 and (all(below[:2]) or any(below[2:]))


def _split(line: str, delimiter: str | None, path: Path, number: int) -> list[str]:
    if '"' not in line:
        return [field.strip() for field in line.split(delimiter)]
    try:
        fields = next(csv.reader([line.strip()], delimiter=delimiter or " ", skipinitialspace=True, strict=True))
    except csv.Error as error:
        raise FileFormatError(
            f"{path} cannot be read as an edge list: line {number:,} has quotation marks that do not match ({error}); an "
            f"identifier contains no line break."
        ) from error
    return [field.strip() for field in fields if delimiter or field]


# ------------------------------------------------------------------------------------------------------------- Parquet


def _parquet(path: Path, size: int, start: Position) -> Iterator[tuple[Edges, Position]]:
    rows = start[0]
    for edges, position in tables.stream_parquet(path, size, start):
        try:
            source, target = (as_ids(column, rows, str(path)) for column in (edges.source, edges.target))
        except InputError as error:
            raise FileFormatError(str(error)) from error
        yield Edges(source, target, edges.weight), position
        rows = position[0]
