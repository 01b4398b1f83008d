"""Columns of values from text, Parquet and NumPy files. Nothing is ever unpickled.

Text is `.csv`, `.tsv` or `.txt`, plain or `.gz`; a line that starts with `#` is a comment. Values are separated by commas,
semicolons or tabs, in `.txt` also by spaces if they are numbers. The first line holds names if none of them is a number
and a number is below, or if all are well-known ("node", "label", "set" and the like), or as pandas writes them: the first
left empty, or 0, 1, 2 and so on for three columns or more.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from unifews.errors import FileFormatError, MissingFileError, ShapeError
from unifews.io.delimited import Layout, Type, as_float, as_integer, is_number, parse
from unifews.io.edge_lists import kind_of
from unifews.io.text_blocks import Block, blocks
from unifews.storage.archive import Archive
from unifews.storage.npy import open_array
from unifews.storage.reading import UnpackedText, reading

KNOWN = (".csv", ".tsv", ".txt", ".parquet", ".npy", ".npz")
NODE = {"node", "node_id", "nodeid", "id", "index", "vertex", ""}  # "" is the index of a pandas frame
_NAMES = NODE | {"label", "labels", "y", "class", "category", "target", "set", "split", "part", "fold", "mask"}
_BLOCK = 1 << 21  # bytes parsed at a time: the columns of so many lines are transposed within the cache
_COMMENT_LINE = re.compile(rb"^#[^\n]*(\n|$)", re.MULTILINE)


class Columns(NamedTuple):
    """Columns of equal length, each a vector of int64, float64, bool or str; `names` is None where there are none."""

    values: list[NDArray[Any]]
    names: list[str] | None = None

    @property
    def by_node(self) -> bool:
        """Whether the name of the first column is that of a column of node numbers."""
        return self.names is not None and len(self.names) > 1 and self.names[0].lower() in NODE


def read_columns(path: Path, keys: Sequence[str] = (), *, ids: bool = False) -> Columns:
    """The columns in a file. Of a `.npz`, the array called by one of `keys`, or the only one.

    With `ids`, the first column of a text file holds identifiers, which are text even where they are numbers.
    """
    kind = kind_of(path)
    if not path.exists():
        raise MissingFileError(f"there is no file {path}.")
    with reading(path, "a table"):
        if kind == ".npy":
            return _columns_of(open_array(path), path)
        if kind == ".npz":
            return _columns_of(_member(path, keys), path)
        if kind == ".parquet":
            return _parquet(path)
        if kind in KNOWN:
            return _text(path, ids)
    raise FileFormatError(f"{path} has no known extension of a table; expected {', '.join(KNOWN)}, text also as .gz.")


def read_numbers(path: Path, *, ids: bool = False) -> tuple[NDArray[np.float32], NDArray[Any] | None]:
    """The matrix of numbers in a text or Parquet file, and the node of each row where the first column is named so.

    Nodes are numbers; with `ids` identifiers, which are text in a text file.
    """
    if not path.exists():
        raise MissingFileError(f"there is no file {path}.")
    with reading(path, "a table of numbers"):
        if kind_of(path) == ".parquet":
            return _parquet_numbers(path, ids)
        layout, names = _layout(path)
        first = 1 if names is not None and len(names) > 1 and names[0].lower() in NODE else 0
        layout = layout._replace(columns=list(range(first, layout.width)), identifiers=ids)
        parts = [_numbers(block, layout) for block in _blocks(path, layout)]
    matrix = np.concatenate([matrix for matrix, _ in parts])
    return matrix, np.concatenate([nodes for _, nodes in parts]) if first else None


# ---------------------------------------------------------------------------------------------------------------- NumPy


def _member(path: Path, keys: Sequence[str]) -> NDArray[Any]:
    arrays = Archive(path)
    found = [name for name in keys if name in arrays] or (list(arrays) if len(arrays) == 1 else [])
    if not found:
        raise FileFormatError(f"{path} holds {arrays.listed()}; none of them is called {' or '.join(keys)}.")
    return arrays[found[0]]


def _columns_of(array: NDArray[Any], path: Path) -> Columns:
    if array.ndim not in (1, 2):
        raise ShapeError(f"{path} has shape {list(array.shape)}; it should be a vector or a matrix with a row per node.")
    if array.dtype.kind not in "iufbU":
        raise FileFormatError(f"{path} holds {array.dtype.name} values; numbers or text can be read.")
    return Columns([array] if array.ndim == 1 else list(array.T))


# -------------------------------------------------------------------------------------------------------------- Parquet


def _parquet(path: Path) -> Columns:
    table = _parquet_table(path)
    values = [_arrow_column(table[name], path, name) for name in table.column_names]
    return Columns(values, list(table.column_names))


def _parquet_numbers(path: Path, ids: bool) -> tuple[NDArray[np.float32], NDArray[Any] | None]:
    """One column per feature, or one column of lists; a column named "node" apart."""
    table = _parquet_table(path)
    names = list(table.column_names)
    nodes = None
    if len(names) > 1 and names[0].lower() in NODE:
        nodes = _arrow_column(table[names[0]], path, names[0])
        nodes = nodes if ids else nodes.astype(np.int64)
        names = names[1:]
    columns = [_arrow_column(table[name], path, name) for name in names]
    for name, column in zip(names, columns, strict=True):
        if column.dtype.kind not in "iufb":
            raise FileFormatError(f"{path} holds {column.dtype.name} values in column {name!r}; features are numbers.")
    if len(columns) == 1 and columns[0].ndim == 2:
        return columns[0].astype(np.float32), nodes
    return np.column_stack(columns).astype(np.float32), nodes


def _parquet_table(path: Path) -> Any:
    from pyarrow import parquet

    table = parquet.read_table(path)
    if not table.num_columns or not table.num_rows:
        raise FileFormatError(f"{path} holds an empty table.")
    return table


def _arrow_column(column: Any, path: Path, name: str) -> NDArray[Any]:
    import pyarrow as arrow
    from pyarrow import compute

    column = column.combine_chunks()
    if column.null_count:
        first = column.is_null().to_pylist().index(True)
        raise FileFormatError(f"{path} has {column.null_count:,} empty cells in column {name!r}, the first in row {first:,}.")
    if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    types = arrow.types
    if types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)
        if lengths.min() != lengths.max():
            raise FileFormatError(f"{path} has lists of {lengths.min()} to {lengths.max()} values in column {name!r}.")
        values: NDArray[Any] = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
    else:
        values = column.to_numpy(zero_copy_only=False)
    return values.astype(str) if values.dtype.kind == "O" else values


# ----------------------------------------------------------------------------------------------------------------- text


def _layout(path: Path) -> tuple[Layout, list[str] | None]:
    """The layout, determined from the first two lines with content, and the names of the columns, if there are some."""
    with _open(path) as file:
        head: list[tuple[int, str]] = []
        for number, line in enumerate(file):
            if line.strip() and not line.startswith("#"):
                head.append((number, line.rstrip("\r\n")))
            if len(head) == 2:
                break
    if not head:
        raise FileFormatError(f"{path} is empty.")
    layout = Layout(path, _delimiter(path, head[0][1]), 0, [], head[0][0], identifiers=True, strict=False, expected="a table")
    rows = [layout.split(line, number + 1) for number, line in head]
    known = all(name.lower() in _NAMES for name in rows[0])
    above = len(rows) == 2 and any(map(_is_value, rows[1])) and not any(map(_is_value, rows[0]))
    by_pandas = rows[0][0] == "" or (len(rows[0]) > 2 and rows[0] == [str(i) for i in range(len(rows[0]))])
    header = known or above or (len(rows) == 2 and by_pandas)
    width = len(rows[0])
    layout = layout._replace(width=width, columns=list(range(width)), skip=head[0][0] + header)
    return layout, rows[0] if header else None


def _delimiter(path: Path, line: str) -> str | None:
    if kind_of(path) == ".tsv":
        return "\t"
    mark = next((mark for mark in ",;\t" if mark in line), "")
    if not mark and kind_of(path) == ".txt" and all(_is_number(word) or word.lower() in _NAMES for word in line.split()):
        return None
    return mark


def _text(path: Path, ids: bool) -> Columns:
    layout, names = _layout(path)
    data = b"".join(block.data for block in _blocks(path, layout))
    columns = None
    if b'"' not in data:
        lines = _COMMENT_LINE.sub(b"", data).rstrip(b"\n ")
        columns = parse(lines, layout.delimiter, layout.width, dict.fromkeys(layout.columns, "string"), empty_lines=False)
    if columns is None or any((column == "").any() for column in columns):
        columns = _line_by_line(data, layout)
    if not len(columns[0]):
        raise FileFormatError(f"{path} holds no values.")
    values = [column.astype(str) if ids and not i else _typed(column.astype(str)) for i, column in enumerate(columns)]
    return Columns(values, names)


def _line_by_line(data: bytes, layout: Layout) -> list[NDArray[Any]]:
    """The columns of any lines; an error names the first line that lacks a value."""
    lines = enumerate(data.decode().split("\n"), start=layout.skip + 1)
    rows = [(number, layout.split(line, number)) for number, line in lines if not line.startswith("#")]
    while rows and not any(rows[-1][1]):  # empty lines at the end
        rows.pop()
    for number, fields in rows:
        if len(fields) != layout.width or not all(fields):
            found = f"{len(fields)} values where line 1 has {layout.width}"
            what = "an empty cell" if len(fields) == layout.width or not any(fields) else found
            raise FileFormatError(
                f"{layout.path} has {what} in line {number:,}; every line holds a value for each of its columns."
            )
    return list(np.array([fields for _, fields in rows], dtype=object).reshape(-1, layout.width).T)


def _typed(text: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers, else numbers, else booleans, else text."""
    for dtype in (np.int64, np.float64):
        try:
            return text.astype(dtype)
        except (ValueError, OverflowError):
            continue
    lower = np.char.lower(text)
    if set(np.unique(lower)) <= {"true", "false"}:
        flags: NDArray[np.bool_] = lower == "true"
        return flags
    return text


def _numbers(block: Block, layout: Layout) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """The matrix in some lines, and the node of each row if the first column is none of the matrix."""
    node: dict[int, Type] = {0: "string" if layout.identifiers else "int64"} if layout.columns[0] else {}
    columns = layout.parse(block, {**node, **dict.fromkeys(layout.columns, "float64")})
    if columns is None:
        columns = _numbers_by_line(block, layout)
    nodes = columns[0].astype(str if layout.identifiers else np.int64) if node else np.empty(0)
    matrix = np.empty((len(columns[0]), len(layout.columns)), dtype=np.float32)
    with np.errstate(over="ignore"):  # a value that float32 cannot hold becomes inf and is reported as such
        for i, column in enumerate(columns[len(node) :]):
            matrix[:, i] = column
    return matrix, nodes


def _numbers_by_line(block: Block, layout: Layout) -> list[NDArray[Any]]:
    """The columns of lines that pyarrow does not parse; an error names the first value that is no number."""
    rows: list[list[Any]] = []
    for number, fields in layout.rows(block):
        if len(fields) != layout.width:
            raise layout.wrong_width(number, fields)
        row: list[Any] = [fields[0] if layout.identifiers else as_integer(fields[0].strip('"'))] if layout.columns[0] else []
        row += [as_float(fields[column].strip('"')) for column in layout.columns]
        if None in row:
            column = row.index(None)
            what = f"holds {fields[column]!r}" if fields[column] else "is empty"
            raise FileFormatError(
                f"{layout.path} {what} in line {number:,}, column {column + 1}; features are numbers, without gaps."
            )
        rows.append(row)
    return [np.array(column) for column in zip(*rows, strict=True)] or [np.empty(0)] * layout.width


def _open(path: Path) -> TextIO:
    return io.TextIOWrapper(_open_bytes(path), encoding="utf-8-sig", newline="")


def _open_bytes(path: Path) -> Any:
    return UnpackedText(path) if path.suffix.lower() == ".gz" else path.open("rb")


def _blocks(path: Path, layout: Layout) -> Iterator[Block]:
    """The lines of values; a row of many features may be long."""
    with _open_bytes(path) as file:
        yield from (block.skip(layout.skip) for block in blocks(path, file, _BLOCK, max_line=None))


def _is_number(field: str) -> bool:
    return is_number(field.strip('"'))


def _is_value(field: str) -> bool:
    """A number or a flag, which no column is called."""
    return _is_number(field) or field.lower() in ("true", "false")
