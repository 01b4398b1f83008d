"""Edge lists in tables, a chunk at a time: text, plain or `.gz`, and Parquet. Nothing is ever unpickled.

A table has the columns source, target and perhaps weight, found by their names or else by their places. A chunk comes with
the position behind it, from which reading can go on another day.
"""

from __future__ import annotations

import gzip
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unifews.core.reading import reading
from unifews.errors import FileFormatError, GraphError, InputError, UnifewsError

TEXT = (".csv", ".tsv", ".txt")
TABLES = (*TEXT, ".parquet")
Position = tuple[int, int]  # text: bytes, unpacked, and lines behind us; Parquet: rows, and 0
START: Position = (0, 0)

_ENDS = ({"source", "src", "from"}, {"target", "dst", "to", "destination"})
_WEIGHT = {"weight", "edge_weight", "w"}
_TYPES = [("source", "i8"), ("target", "i8"), ("weight", "f8")]
_BOM = b"\xef\xbb\xbf"
_LINE = 16  # bytes per edge, roughly: how much text is read for a chunk
_WHOLE = 1 << 20  # edges per chunk where all of them are wanted


class Edges(NamedTuple):
    """The edges source[e] → target[e], and their weights, if they have some."""

    source: NDArray[Any]
    target: NDArray[Any]
    weight: NDArray[Any] | None = None


def kind_of(path: Path) -> str:
    """The suffix that says the format, less `.gz`."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else "".join(suffixes[-1:])


def read_table(path: Path) -> Edges:
    """All edges of a table."""
    parts = [edges for edges, _ in stream_table(path, _WHOLE)]
    source, target = (np.concatenate([part[end] for part in parts]) for end in (0, 1))
    weights = [part.weight for part in parts if part.weight is not None]
    return Edges(source, target, np.concatenate(weights) if weights else None)


def stream_table(path: Path, size: int, start: Position = START) -> Iterator[tuple[Edges, Position]]:
    """The edges of a table from `start` on, about `size` at a time, each with the position behind them."""
    return _parquet(path, size, start) if kind_of(path) == ".parquet" else _text(path, size, start)


def estimate(path: Path) -> int:
    """About how many edges a table holds: exact for Parquet, by the length of its first lines for text."""
    if kind_of(path) == ".parquet":
        with reading(path, "a parquet table"):
            return int(_parquet_module().ParquetFile(path).metadata.num_rows)
    with reading(path, "an edge list"), path.open("rb") as raw, _unpacked(path, raw) as file:
        head = file.read(1 << 20)
        return int(head.count(b"\n") * path.stat().st_size / max(1, raw.tell())) + 1


def upright(array: NDArray[Any]) -> NDArray[Any]:
    """Edges [2, m], sources above targets, of an array that has them so or as m rows of two."""
    return array.T if array.ndim == 2 and array.shape[1] == 2 != array.shape[0] else array


def check(edges: Edges, first: int, where: str) -> Edges:
    """Integers from 0 and finite float32 weights; `first` is the number of the first edge, for messages."""
    source, target = (_as_nodes(ends, first, where) for ends in edges[:2])
    weight = edges.weight
    if weight is not None:
        if weight.dtype.kind not in "fiub":
            raise InputError(f"the weights of {where} are {weight.dtype.name} values; weights are real numbers.")
        given = weight
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes inf and is reported as such
            weight = weight.astype(np.float32, copy=False)
        bad = ~(np.isfinite(weight) & (weight >= 0))
        if bad.any():
            i = int(bad.argmax())
            raise InputError(
                f"edge {first + i:,} of {where} has the weight {given[i]}; weights are finite and at least 0, and fit float32."
            )
    return Edges(source, target, weight)


def _as_nodes(ends: NDArray[Any], first: int, where: str) -> NDArray[np.int64]:
    if ends.dtype.kind == "f":
        bad = ~(np.isfinite(ends) & (ends == np.floor(ends)) & (np.abs(ends) < 2.0**63))
    elif ends.dtype.kind in "iu":
        bad = ends > np.iinfo(np.int64).max if ends.dtype == np.uint64 else np.zeros(0, dtype=bool)
    else:
        raise InputError(
            f"the nodes of {where} are {ends.dtype.name} values; nodes are numbered from 0. Give them numbers first."
        )
    if bad.any():
        i = int(bad.argmax())
        raise InputError(f"edge {first + i:,} of {where} names node {ends[i]}; nodes are whole numbers below 2^63.")
    nodes = ends.astype(np.int64, copy=False)
    if len(nodes) and nodes.min() < 0:
        i = int((nodes < 0).argmax())
        raise GraphError(f"edge {first + i:,} of {where} names node {nodes[i]}, a negative number; nodes are numbered from 0.")
    return nodes


# ---------------------------------------------------------------------------------------------------------------- text


class _Layout(NamedTuple):
    """How a text file is laid out."""

    delimiter: str | None  # None: white space
    width: int  # columns of its first line
    columns: list[int]  # of source, target and perhaps weight
    begin: Position  # of the first edge


def _text(path: Path, size: int, start: Position) -> Iterator[tuple[Edges, Position]]:
    """Two or three columns, with or without a line of names; `#` starts a comment. A table with names may have more."""
    with reading(path, "an edge list"), path.open("rb") as raw, _unpacked(path, raw) as file:
        layout = _layout(path, file)
        offset, line = max(start, layout.begin)
        file.seek(offset)
        first = start == START  # a table without edges is a chunk without edges, so that something comes
        while (block := file.read(size * _LINE) + file.readline()) or first:
            lines = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n").decode("utf-8").split("\n")
            offset, first = offset + len(block), False
            try:
                table = _parsed(lines, layout)
            except ValueError as error:
                raise FileFormatError(_explained(path, lines, line, layout) or f"{path} is no edge list: {error}.") from error
            line += len(lines) - 1
            weight = table["weight"] if len(layout.columns) == 3 else None
            yield Edges(table["source"], table["target"], weight), (offset, line)


def _unpacked(path: Path, raw: IO[bytes]) -> Any:
    return gzip.open(raw, "rb") if path.suffix.lower() == ".gz" else raw


def _layout(path: Path, file: IO[bytes]) -> _Layout:
    """Told from the first line with content."""
    if file.read(len(_BOM)) != _BOM:
        file.seek(0)
    offset = file.tell()
    for number, line in enumerate(file):
        text = line.decode("utf-8")
        content = text.split("#")[0].strip()
        if not content:
            offset += len(line)
            continue
        delimiter = next((mark for mark in ",;\t" if mark in content), None)
        fields = [field.strip() for field in content.split(delimiter)]
        named = not all(_is_number(field) for field in fields)
        columns = _columns(fields) if named else list(range(len(fields)))
        if len(columns) not in (2, 3):
            raise FileFormatError(
                f"{path} has {len(fields)} columns in its first line; an edge list is source, target, perhaps weight."
            )
        return _Layout(delimiter, len(fields), columns, (offset + named * len(line), number + named))
    raise FileFormatError(f"{path} holds no edges.")


def _parsed(lines: list[str], layout: _Layout) -> NDArray[Any]:
    # Asked for some columns only, loadtxt does not mind lines with too many.
    some = None if layout.columns == list(range(layout.width)) else layout.columns
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "loadtxt: input contained no data")
        return np.loadtxt(
            lines, dtype=_TYPES[: len(layout.columns)], delimiter=layout.delimiter, comments="#", usecols=some, ndmin=1
        )


def _explained(path: Path, lines: list[str], before: int, layout: _Layout) -> str | None:
    """The sentence on the first line that is no edge."""
    for number, line in enumerate(lines, start=before + 1):
        content = line.split("#")[0].strip()
        fields = content.split(layout.delimiter)
        if not content:
            continue
        if len(fields) < layout.width or (len(fields) > layout.width and len(layout.columns) == layout.width):
            return (
                f"{path} cannot be read as an edge list: line {number:,} has {len(fields)} values, "
                f"and its first line has {layout.width}."
            )
        for place, column in enumerate(layout.columns):
            field = fields[column].strip()
            if place == 2 and not _is_number(field):
                return f"{path} cannot be read as an edge list: line {number:,} holds {field!r} for a weight."
            if place < 2 and not _is_node(field):
                huge = field.lstrip("+-").isdigit()
                return (
                    f"{path} cannot be read as an edge list: line {number:,} names node {field!r}, and nodes are numbered from "
                    f"0{', below 2^63' if huge else ''}. Give them {'other ' if huge else ''}numbers first."
                )
    return None


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _is_node(field: str) -> bool:
    try:
        return -(2**63) <= int(field) < 2**63
    except ValueError:
        return False


def _columns(names: list[str]) -> list[int]:
    """Positions of source and target, by name or else the first two, and of the weight, if a column is called so.

    A further column may hold anything, a time for example, and is left alone.
    """
    lower = [name.lower().strip("\"'") for name in names]
    source, target = (next((i for i, name in enumerate(lower) if name in known), None) for known in _ENDS)
    ends = [0, 1][: len(names)] if source is None or target is None else [source, target]
    return ends + [i for i, name in enumerate(lower) if name in _WEIGHT and i not in ends][:1]


# ------------------------------------------------------------------------------------------------------------- Parquet


def _parquet_module() -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UnifewsError("reading .parquet needs pyarrow: pip install 'unifews[parquet]'.") from error
    return parquet


def _parquet(path: Path, size: int, start: Position) -> Iterator[tuple[Edges, Position]]:
    parquet = _parquet_module()
    with reading(path, "a parquet table"), parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        columns = [names[i] for i in _columns(names)]
        if len(columns) < 2:
            raise FileFormatError(f"{path} has {len(names)} columns; an edge table has source, target, perhaps weight.")
        rows, first = 0, start == START
        for batch in file.iter_batches(size, columns=columns):
            rows += len(batch)
            if rows <= start[0]:  # batches are cut alike every time
                continue
            for name in columns:
                if batch[name].null_count:
                    raise FileFormatError(f"{path} has {batch[name].null_count:,} empty cells in column {name!r}.")
            first = False
            yield Edges(*(batch[name].to_numpy(zero_copy_only=False) for name in columns)), (rows, 0)
        if first:
            yield Edges(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)), (0, 0)
