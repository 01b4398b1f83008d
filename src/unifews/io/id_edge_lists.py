"""Edge lists between identifiers, a chunk at a time: tables in text or Parquet whose source and target are integers or text.

Text is as for node numbers (`edge_lists`), with these differences: a field may be quoted as in CSV; a comment is a line that
starts with `#`, since an identifier may contain one; and a first line without numbers is taken for names of columns only if it
names source and target, if its first two names are such as user_id and item, or if numbers stand below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from unifews.errors import FileFormatError, InputError
from unifews.io import edge_lists
from unifews.io.delimited import Layout, Type, first_lines, is_number
from unifews.io.edge_lists import EdgeList, kind_of
from unifews.io.ids import as_ids, typed
from unifews.io.text_blocks import START, Block, Position, blocks, opened
from unifews.storage.reading import reading

_COLUMN = re.compile(r"user|item|follower|followee|\w+[_ ](?:id|name|node)")  # "u", "v1", "node2" may be identifiers
_NOT_CANONICAL = re.compile(rb"(?<![0-9.eE])0[0-9]|-0")  # an integer of another text than str(int) gives: 007, -0
_QUOTED = re.compile(r'"[^"]*"')


def stream_ids(path: Path, size: int, start: Position = START) -> Iterator[tuple[EdgeList, Position]]:
    """The edges of a table from `start` on, about `size` at a time, each with the position behind them.

    Source and target are int64 where all of a column of a chunk are integers, else text (objects of type str).
    """
    return _parquet(path, size, start) if kind_of(path) == ".parquet" else _text(path, size, start)


def _text(path: Path, size: int, start: Position) -> Iterator[tuple[EdgeList, Position]]:
    with reading(path, "an edge list"), opened(path) as (file, _):
        layout = _layout(path, file)
        for block in blocks(path, file, size * edge_lists.LINE_BYTES, start):
            block = block.skip(layout.skip)
            yield _integers(block, layout) or _texts(block, layout) or _line_by_line(block, layout), block.end


def _integers(block: Block, layout: Layout) -> EdgeList | None:
    """The edges of lines that hold nothing but integers; None where they do not."""
    if _NOT_CANONICAL.search(block.data):
        return None
    types: dict[int, Type] = dict(zip(layout.columns, ("int64", "int64", "float64"), strict=False))
    columns = layout.parse(block, types)
    return None if columns is None else EdgeList(*columns)


def _texts(block: Block, layout: Layout) -> EdgeList | None:
    """The edges of lines without quotation marks; None where there is such a mark or an error."""
    types: dict[int, Type] = dict(zip(layout.columns, ("string", "string", "float64"), strict=False))
    columns = layout.parse(block, types)
    if columns is None or any((column == "").any() for column in columns[:2]):
        return None
    return EdgeList(typed(columns[0].tolist()), typed(columns[1].tolist()), *columns[2:])


def _line_by_line(block: Block, layout: Layout) -> EdgeList:
    """The edges of any lines; an error names the first line that is no edge."""
    known: dict[str, str] = {}  # one object for each identifier
    source, target, weight = [], [], []
    first, second = layout.columns[:2]
    for number, fields in layout.rows(block):
        v, u = fields[first], fields[second]
        if not v or not u:
            raise layout.error(number, "has an empty identifier")
        source.append(known.setdefault(v, v))
        target.append(known.setdefault(u, u))
        if len(layout.columns) == 3:
            weight.append(layout.weight(number, fields))
    return EdgeList(typed(source), typed(target), np.array(weight) if len(layout.columns) == 3 else None)


def _layout(path: Path, file: Any) -> Layout:
    """Determined from the first two lines with content."""
    head = first_lines(path, file, identifiers=True)
    content = _QUOTED.sub("", head[0][1])
    marks = "\t,;" if kind_of(path) == ".tsv" else ",;\t"
    delimiter = next((mark for mark in marks if mark in content), None)
    layout = Layout(path, delimiter, 0, [], 0, identifiers=True)
    rows = [layout.split(line, before + 1) for before, line in head]
    named = _is_header(rows)
    columns = edge_lists.find_columns(path, rows[0], named)
    return layout._replace(width=len(rows[0]), columns=columns, skip=head[0][0] + 1 if named else 0)


def _is_header(rows: list[list[str]]) -> bool:
    names = [field.lower() for field in rows[0]]
    if any(map(is_number, names)):
        return False
    if edge_lists.names_ends(names) or all(map(_COLUMN.fullmatch, names[:2])):
        return True
    below = [is_number(field) for field in rows[1]] if len(rows) == 2 else []
    return len(below) > 1 and (all(below[:2]) or any(below[2:]))


def _parquet(path: Path, size: int, start: Position) -> Iterator[tuple[EdgeList, Position]]:
    rows = start[0]
    for edges, position in edge_lists.stream_parquet(path, size, start):
        try:
            source, target = (as_ids(column, rows, str(path)) for column in (edges.source, edges.target))
        except InputError as error:
            raise FileFormatError(str(error)) from error
        yield EdgeList(source, target, edges.weight), position
        rows = position[0]
