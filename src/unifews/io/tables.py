"""Columns of values from the files people have: text, Parquet, NumPy. Nothing is ever unpickled.

Text is `.csv`, `.tsv` or `.txt`, plain or `.gz`; a line that starts with `#` is a comment. Values are separated by commas,
semicolons or tabs, in `.txt` also by spaces if they are numbers. The first line holds names if none of them is a number
and a number stands below, or if all are well-known ("node", "label", "set" and the like), or as pandas writes them: the first
left empty, or 0, 1, 2 and so on for three columns or more.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from unifews.errors import FileFormatError, MissingFileError, ShapeError, UnifewsError
from unifews.io.edge_lists import kind_of
from unifews.storage.archive import Archive
from unifews.storage.npy import open_array
from unifews.storage.reading import UnpackedText, reading

KNOWN = (".csv", ".tsv", ".txt", ".parquet", ".npy", ".npz")
NODE = {"node", "node_id", "nodeid", "id", "index", "vertex", ""}  # "" is the index of a pandas frame
_NAMES = NODE | {"label", "labels", "y", "class", "category", "target", "set", "split", "part", "fold", "mask"}


class Columns(NamedTuple):
    """Columns of equal length, each a vector of int64, float64, bool or str; `names` is None where there are none."""

    values: list[NDArray[Any]]
    names: list[str] | None = None

    @property
    def by_node(self) -> bool:
        """Whether the first column says by its name that it holds node numbers."""
        return self.names is not None and len(self.names) > 1 and self.names[0].lower() in NODE


def read_columns(path: Path, keys: Sequence[str] = (), *, ids: bool = False) -> Columns:
    """The columns in a file. Of a `.npz`, the array called by one of `keys`, or the only one.

    With `ids`, the first column of a text file holds identifiers, which stay text whatever they look like.
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
    raise FileFormatError(f"{path} is no table by its name. Known: {', '.join(KNOWN)}, text also as .gz.")


def read_numbers(path: Path, *, ids: bool = False) -> tuple[NDArray[np.float32], NDArray[Any] | None]:
    """The matrix of numbers in a text or Parquet file, and the node of each row where the first column is named so.

    Nodes are numbers; with `ids` identifiers, which are text in a text file.
    """
    with reading(path, "a table of numbers"):
        if kind_of(path) == ".parquet":
            return _parquet_numbers(path, ids)
        first, rows = _layout(path)
        names = [name.lower() for name in rows[0]] if first.header else []
        start = 1 if len(names) > 1 and names[0] in NODE else 0
        columns = range(start, len(rows[0]))
        try:
            matrix = _load(path, first, np.float32, columns, ids)
            nodes = _load(path, first, str if ids else np.int64, [0], ids)[:, 0] if start else None
        except ValueError as error:
            raise FileFormatError(
                _first_bad(path, first, len(rows[0]), start if ids else 0) or f"{path} is no table of numbers: {error}."
            ) from error
    return matrix, nodes


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
    if not path.exists():
        raise MissingFileError(f"there is no file {path}.")
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UnifewsError("reading .parquet needs pyarrow: pip install 'unifews[parquet]'.") from error
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


class _Layout(NamedTuple):
    """How a text file is laid out."""

    delimiter: str | None  # None: white space, "": the whole line is one value
    header: bool
    skip: int  # lines before the values

    def rows(self, file: TextIO) -> Iterator[tuple[int, list[str]]]:
        """Line numbers from 1, and the fields of each line that is no comment."""
        lines = ((number, line.rstrip("\r\n")) for number, line in enumerate(file, start=1) if not line.startswith("#"))
        for number, line in lines:
            if self.delimiter is None:
                yield number, line.split()
            elif not self.delimiter:
                yield number, [line.strip().strip('"')]
            else:
                yield number, [field.strip() for field in next(csv.reader([line], delimiter=self.delimiter), [""])]


def _layout(path: Path) -> tuple[_Layout, list[list[str]]]:
    """The layout, told from the first two lines with content, and these."""
    if not path.exists():
        raise MissingFileError(f"there is no file {path}.")
    with _open(path) as file:
        head: list[tuple[int, str]] = []
        for number, line in enumerate(file):
            if line.strip() and not line.startswith("#"):
                head.append((number, line))
            if len(head) == 2:
                break
    if not head:
        raise FileFormatError(f"{path} is empty.")
    delimiter = _delimiter(path, head[0][1])
    layout = _Layout(delimiter, False, head[0][0])
    rows = [fields for _, fields in layout.rows(iter([line for _, line in head]))]  # type: ignore[arg-type]
    known = all(name.lower() in _NAMES for name in rows[0])
    above = len(rows) == 2 and any(map(_is_value, rows[1])) and not any(map(_is_value, rows[0]))
    by_pandas = rows[0][0] == "" or (len(rows[0]) > 2 and rows[0] == [str(i) for i in range(len(rows[0]))])
    header = known or above or (len(rows) == 2 and by_pandas)
    return layout._replace(header=header, skip=head[0][0] + header), rows


def _delimiter(path: Path, line: str) -> str | None:
    if kind_of(path) == ".tsv":
        return "\t"
    mark = next((mark for mark in ",;\t" if mark in line), "")
    words = line.split()
    if not mark and kind_of(path) == ".txt" and all(_is_number(word) or word.lower() in _NAMES for word in words):
        return None
    return mark


def _text(path: Path, ids: bool) -> Columns:
    layout, head = _layout(path)
    with _open(path) as file:
        rows = [(number, fields) for number, fields in layout.rows(file) if number > layout.skip]
    while rows and not any(rows[-1][1]):  # empty lines at the end
        rows.pop()
    width = len(head[0])
    for number, fields in rows:
        if len(fields) != width or not all(fields):
            what = (
                "an empty cell" if len(fields) == width or not any(fields) else f"{len(fields)} values where line 1 has {width}"
            )
            raise FileFormatError(f"{path} has {what} in line {number:,}; every line holds a value for each of its columns.")
    if not rows:
        raise FileFormatError(f"{path} holds no values.")
    columns = list(zip(*(fields for _, fields in rows), strict=True))
    values = [np.array(column) if ids and not i else _typed(column) for i, column in enumerate(columns)]
    return Columns(values, head[0] if layout.header else None)


def _typed(column: tuple[str, ...]) -> NDArray[Any]:
    """Whole numbers, else numbers, else yes and no, else text."""
    text = np.array(column)
    for dtype in (np.int64, np.float64):
        try:
            return text.astype(dtype)
        except (ValueError, OverflowError):
            continue
    if set(np.unique(np.char.lower(text))) <= {"true", "false"}:
        flags: NDArray[np.bool_] = np.char.lower(text) == "true"
        return flags
    return text


def _load(path: Path, layout: _Layout, dtype: Any, columns: Sequence[int], ids: bool) -> NDArray[Any]:
    comments = None if ids else "#"  # which an identifier may contain
    with _open(path) as file:
        return np.loadtxt(
            file, dtype=dtype, delimiter=layout.delimiter or None, comments=comments, skiprows=layout.skip, usecols=columns,
            ndmin=2, quotechar='"',
        )  # fmt: skip


def _first_bad(path: Path, layout: _Layout, width: int, start: int) -> str | None:
    """The sentence on the first line that is no row of numbers from column `start` on."""
    with _open(path) as file:
        for number, fields in layout.rows(file):
            if number <= layout.skip or not any(fields):
                continue
            if len(fields) != width:
                return f"{path} has {len(fields)} values in line {number:,}, but {width} in its first line; rows are alike."
            for position, field in enumerate(fields[start:], start=start + 1):
                if not _is_number(field):
                    what = f"holds {field!r}" if field else "is empty"
                    return f"{path} {what} in line {number:,}, column {position}; features are numbers, without gaps."
    return None


def _open(path: Path) -> TextIO:
    if path.suffix.lower() == ".gz":
        return io.TextIOWrapper(UnpackedText(path), encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _is_number(field: str) -> bool:
    try:
        float(field.strip('"'))
    except ValueError:
        return False
    return True


def _is_value(field: str) -> bool:
    """A number, or a flag: what no column is called."""
    return _is_number(field) or field.lower() in ("true", "false")
