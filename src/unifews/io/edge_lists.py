"""Edge lists in tables, a chunk at a time: text, plain or `.gz`, and Parquet. Nothing is ever unpickled.

A table has the columns source, target and perhaps weight, found by their names or else by their places. A chunk comes with
the position behind it, from which reading can go on another day.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unifews.errors import FileFormatError, GraphError, InputError, UnifewsError
from unifews.io.text_blocks import START, Position, blocks, opened
from unifews.storage.reading import reading

TEXT = (".csv", ".tsv", ".txt")
TABLES = (*TEXT, ".parquet")

_ENDS = ({"source", "src", "from"}, {"target", "dst", "to", "destination"})
_WEIGHT = {"weight", "edge_weight", "w"}
_TYPES = [("source", "i8"), ("target", "i8"), ("weight", "f8")]
_HEAD = 1 << 16  # bytes in which the first line with content is looked for at a time
LINE = 16  # bytes per edge, roughly: how much text is read for a chunk
_ROW = 64  # bytes of a row of Parquet, beyond which fewer are read at a time
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
    """All edges of a table, checked."""
    parts: list[Edges] = []
    for edges, _ in stream_table(path, _WHOLE):
        parts.append(check(edges, sum(len(part.source) for part in parts), str(path)))
    source, target = (np.concatenate([part[end] for part in parts]) for end in (0, 1))
    weights = [part.weight for part in parts if part.weight is not None]
    return Edges(source, target, np.concatenate(weights) if weights else None)


def stream_table(path: Path, size: int, start: Position = START) -> Iterator[tuple[Edges, Position]]:
    """The edges of a table from `start` on, about `size` at a time, each with the position behind them."""
    return stream_parquet(path, size, start) if kind_of(path) == ".parquet" else _text(path, size, start)


def estimate(path: Path) -> int:
    """About how many edges a table holds: exact for Parquet, by the length of its first lines for text."""
    if kind_of(path) == ".parquet":
        with reading(path, "a parquet table"), _arrow_errors(path):
            return int(_parquet_module().ParquetFile(path).metadata.num_rows)
    with reading(path, "an edge list"), opened(path) as (file, raw):
        head = file.read(1 << 20)
        return int(head.count(b"\n") * path.stat().st_size / max(1, raw.tell())) + 1


def upright(array: NDArray[Any]) -> NDArray[Any]:
    """Edges [2, m], sources above targets, of an array that has them so or as m rows of two."""
    return array.T if array.ndim == 2 and array.shape[1] == 2 != array.shape[0] else array


def check(edges: Edges, first: int, where: str) -> Edges:
    """Integers from 0 and finite float32 weights; `first` is the number of the first edge, for messages."""
    source, target = (_as_nodes(ends, first, where) for ends in edges[:2])
    return Edges(source, target, as_weights(edges.weight, first, where))


def as_weights(weight: NDArray[Any] | None, first: int, where: str) -> NDArray[np.float32] | None:
    """Finite float32 weights of the edges from number `first` on."""
    if weight is None:
        return None
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
    return weight


def _as_nodes(ends: NDArray[Any], first: int, where: str) -> NDArray[np.int64]:
    if ends.dtype.kind == "f":
        bad = ~(np.isfinite(ends) & (ends == np.floor(ends)) & (np.abs(ends) < 2.0**63))
    elif ends.dtype.kind in "iu":
        bad = ends > np.iinfo(np.int64).max if ends.dtype == np.uint64 else np.zeros(0, dtype=bool)
    else:
        raise InputError(
            f"the nodes of {where} are {ends.dtype.name} values; nodes are numbered from 0. For identifiers, pass "
            f"ids=True (data convert --ids)."
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
    names: int | None  # the line that names the columns, counted from 0


def _text(path: Path, size: int, start: Position) -> Iterator[tuple[Edges, Position]]:
    """Two or three columns, with or without a line of names; `#` starts a comment. A table with names may have more."""
    with reading(path, "an edge list"), opened(path) as (file, _):
        layout = _layout(path, file)
        for lines, before, end in blocks(path, file, size * LINE, start):
            if layout.names is not None and before <= layout.names < before + len(lines):
                lines[layout.names - before] = ""
            try:
                edges = parsed(lines, layout.delimiter, layout.columns, layout.width)
            except (ValueError, OverflowError, DeprecationWarning) as error:
                raise FileFormatError(
                    _explained(path, lines, before, layout) or f"{path} cannot be read as an edge list: {error}."
                ) from error
            yield edges, end


def _layout(path: Path, file: Any) -> _Layout:
    """Found from the first line with content."""
    for lines, before, _ in blocks(path, file, _HEAD):
        for number, line in enumerate(lines, start=before):
            content = line.split("#")[0].strip()
            if not content:
                continue
            delimiter = next((mark for mark in ",;\t" if mark in content), None)
            fields = [field.strip() for field in content.split(delimiter)]
            named = not all(is_number(field) for field in fields)
            columns = columns_of(fields) if named else list(range(len(fields)))
            if len(columns) not in (2, 3):
                raise FileFormatError(
                    f"{path} has {len(fields)} columns in its first line; an edge list is source, target, perhaps weight."
                )
            return _Layout(delimiter, len(fields), columns, number if named else None)
    raise FileFormatError(f"{path} holds no edges.")


def parsed(lines: list[str], delimiter: str | None, columns: list[int], width: int) -> Edges:
    """The edges of lines of numbers, in these of `width` columns; a ValueError where a line holds anything else."""
    # Asked for some columns only, loadtxt does not mind lines with too many.
    some = None if columns == list(range(width)) else columns
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "loadtxt: input contained no data")
        warnings.simplefilter("error", DeprecationWarning)  # older releases of numpy take 1.0 for a whole number, and warn
        table = np.loadtxt(lines, dtype=_TYPES[: len(columns)], delimiter=delimiter, comments="#", usecols=some, ndmin=1)
    return Edges(table["source"], table["target"], table["weight"] if len(columns) == 3 else None)


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
            if place == 2 and not is_number(field):
                return f"{path} cannot be read as an edge list: line {number:,} holds {field!r} for a weight."
            if place < 2 and not _is_node(field):
                huge = field.lstrip("+-").isdigit()
                return (
                    f"{path} cannot be read as an edge list: line {number:,} names node {field!r}, and nodes are numbered from "
                    f"0{', below 2^63' if huge else ''}. For identifiers, pass ids=True (data convert --ids)."
                )
    return None


def is_number(field: str) -> bool:
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


def names_ends(names: list[str]) -> bool:
    """Whether columns of these names say which is the source and which the target."""
    return all(any(name.lower().strip("\"'") in known for name in names) for known in _ENDS)


def columns_of(names: list[str]) -> list[int]:
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


@contextmanager
def _arrow_errors(path: Path) -> Iterator[None]:
    """What pyarrow raises for a damaged table and is not one of Python's own errors for a wrong value."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, NotImplementedError, TypeError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FileFormatError(f"{path} cannot be read as a parquet table: it is damaged ({reason}).") from error


def stream_parquet(path: Path, size: int, start: Position) -> Iterator[tuple[Edges, Position]]:
    """The columns of a Parquet table as they are, from row `start` on."""
    parquet = _parquet_module()
    with reading(path, "a parquet table"), _arrow_errors(path), parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        columns = [names[i] for i in columns_of(names)]
        if len(columns) < 2:
            raise FileFormatError(f"{path} has {len(names)} columns; an edge table has source, target, perhaps weight.")
        rows, first = 0, start == START
        for batch in file.iter_batches(_rows(file.metadata, size), columns=columns):
            rows += len(batch)
            if rows <= start[0]:  # batches are cut alike every time
                continue
            for name in columns:
                if batch[name].null_count:
                    raise FileFormatError(f"{path} has {batch[name].null_count:,} empty cells in column {name!r}.")
            first = False
            yield Edges(*(_values(batch[name]) for name in columns)), (rows, 0)
        if first:
            yield Edges(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)), (0, 0)


def _rows(metadata: Any, size: int) -> int:
    """Rows to read at a time: `size`, or fewer where they are long."""
    stored = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    return int(max(1, min(size, _ROW * size * metadata.num_rows // max(1, stored))))


def _values(column: Any) -> NDArray[Any]:
    values: NDArray[Any] = (column.dictionary_decode() if hasattr(column, "dictionary_decode") else column).to_numpy(
        zero_copy_only=False
    )
    return values
