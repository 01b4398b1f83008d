"""Edge lists in tables, a chunk at a time: text, plain or `.gz`, and Parquet. Nothing is ever unpickled.

A table has the columns source, target and perhaps weight, found by their names or else by their order. With each chunk comes
the position behind it, from which another call can continue.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unifews.errors import FileFormatError, GraphError, InputError
from unifews.io.delimited import Layout, Type, as_integer, first_lines, is_number
from unifews.io.text_blocks import START, Block, Position, blocks, opened
from unifews.storage.reading import reading

TEXT = (".csv", ".tsv", ".txt")
TABLES = (*TEXT, ".parquet")

_ENDS = ({"source", "src", "from"}, {"target", "dst", "to", "destination"})
_WEIGHT = {"weight", "edge_weight", "w"}
LINE_BYTES = 16  # bytes per edge, roughly: how much text is read for a chunk
_ROW = 64  # bytes of a row of Parquet, beyond which fewer are read at a time
_WHOLE = 1 << 20  # edges per chunk where all of them are wanted


class EdgeList(NamedTuple):
    """The edges source[e] → target[e], and their weights, if they have some."""

    source: NDArray[Any]
    target: NDArray[Any]
    weight: NDArray[Any] | None = None


def kind_of(path: Path) -> str:
    """The suffix that determines the format, without `.gz`."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else "".join(suffixes[-1:])


def read_table(path: Path) -> EdgeList:
    """All edges of a table, checked."""
    parts: list[EdgeList] = []
    for edges, _ in stream_table(path, _WHOLE):
        parts.append(check(edges, sum(len(part.source) for part in parts), str(path)))
    source, target = (np.concatenate([part[end] for part in parts]) for end in (0, 1))
    weights = [part.weight for part in parts if part.weight is not None]
    return EdgeList(source, target, np.concatenate(weights) if weights else None)


def stream_table(path: Path, size: int, start: Position = START) -> Iterator[tuple[EdgeList, Position]]:
    """The edges of a table from `start` on, about `size` at a time, each with the position behind them."""
    return stream_parquet(path, size, start) if kind_of(path) == ".parquet" else _text(path, size, start)


def estimate(path: Path) -> int:
    """About how many edges a table holds: exact for Parquet, by the length of its first lines for text."""
    if kind_of(path) == ".parquet":
        from pyarrow import parquet

        with reading(path, "a parquet table"):
            return int(parquet.ParquetFile(path).metadata.num_rows)
    with reading(path, "an edge list"), opened(path) as (file, raw):
        head = file.read(1 << 20)
        return int(head.count(b"\n") * path.stat().st_size / max(1, raw.tell())) + 1


def upright(array: NDArray[Any]) -> NDArray[Any]:
    """Edges [2, m], sources in the first row, of an array that has them so or as m rows of two."""
    return array.T if array.ndim == 2 and array.shape[1] == 2 != array.shape[0] else array


def check(edges: EdgeList, first: int, where: str) -> EdgeList:
    """Integers from 0 and finite float32 weights; `first` is the number of the first edge, for messages."""
    source, target = (_as_nodes(ends, first, where) for ends in edges[:2])
    return EdgeList(source, target, as_weights(edges.weight, first, where))


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
            f"the nodes of {where} are {ends.dtype.name} values; nodes are numbered from 0. For identifiers, "
            f"run unifews data convert --ids (ids=True in Python)."
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


def _text(path: Path, size: int, start: Position) -> Iterator[tuple[EdgeList, Position]]:
    """Two or three columns, with or without a line of names; `#` starts a comment. A table with names may have more."""
    with reading(path, "an edge list"), opened(path) as (file, _):
        layout = _layout(path, file)
        types: dict[int, Type] = dict(zip(layout.columns, ("int64", "int64", "float64"), strict=False))
        for block in blocks(path, file, size * LINE_BYTES, start):
            block = block.skip(layout.skip)
            columns = layout.parse(block, types)
            yield EdgeList(*columns) if columns else _line_by_line(block, layout), block.end


def _layout(path: Path, file: Any) -> Layout:
    """Determined from the first line with content."""
    before, line = first_lines(path, file, identifiers=False)[0]
    delimiter = next((mark for mark in ",;\t" if mark in line), None)
    fields = [field.strip() for field in line.split(delimiter)]
    named = not all(is_number(field) for field in fields)
    columns = find_columns(path, fields, named)
    return Layout(path, delimiter, len(fields), columns, before + 1 if named else 0)


def _line_by_line(block: Block, layout: Layout) -> EdgeList:
    """The edges of lines that pyarrow does not parse, such as "+1 2"; an error names the first line that is no edge."""
    ends: list[list[int]] = []
    weights: list[float] = []
    for number, fields in layout.rows(block):
        nodes = []
        for column in layout.columns[:2]:
            node = as_integer(fields[column])
            if node is None:
                limit = ", below 2^63" if fields[column].lstrip("+-").isdigit() else ""
                raise layout.error(
                    number,
                    f"names node {fields[column]!r}, and nodes are numbered from 0{limit}. For identifiers, run "
                    f"unifews data convert --ids (ids=True in Python)",
                )
            nodes.append(node)
        ends.append(nodes)
        if len(layout.columns) == 3:
            weights.append(layout.weight(number, fields))
    source, target = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    return EdgeList(source, target, np.array(weights) if len(layout.columns) == 3 else None)


def names_ends(names: list[str]) -> bool:
    """Whether these column names include one for the source and one for the target."""
    return all(any(name.lower().strip("\"'") in known for name in names) for known in _ENDS)


def columns_of(names: list[str]) -> list[int]:
    """Positions of source and target, by name or else the first two, and of the weight, if a column is called so.

    Further columns may hold anything, a time for example, and are ignored.
    """
    lower = [name.lower().strip("\"'") for name in names]
    source, target = (next((i for i, name in enumerate(lower) if name in known), None) for known in _ENDS)
    ends = [0, 1][: len(names)] if source is None or target is None else [source, target]
    return ends + [i for i, name in enumerate(lower) if name in _WEIGHT and i not in ends][:1]


def find_columns(path: Path, fields: list[str], named: bool) -> list[int]:
    """The columns of source, target and perhaps weight of a text table, by its first line."""
    columns = columns_of(fields) if named else list(range(len(fields)))
    if len(columns) not in (2, 3):
        raise FileFormatError(
            f"{path} has {len(fields)} columns in its first line; an edge list has source, target and perhaps weight."
        )
    return columns


# ------------------------------------------------------------------------------------------------------------- Parquet


def stream_parquet(path: Path, size: int, start: Position) -> Iterator[tuple[EdgeList, Position]]:
    """The columns of a Parquet table as they are, from row `start` on."""
    from pyarrow import parquet

    with reading(path, "a parquet table"), parquet.ParquetFile(path) as file:
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
            yield EdgeList(*(_values(batch[name]) for name in columns)), (rows, 0)
        if first:
            yield EdgeList(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)), (0, 0)


def _rows(metadata: Any, size: int) -> int:
    """Rows to read at a time: `size`, or fewer where they are long."""
    stored = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    return int(max(1, min(size, _ROW * size * metadata.num_rows // max(1, stored))))


def _values(column: Any) -> NDArray[Any]:
    values: NDArray[Any] = (column.dictionary_decode() if hasattr(column, "dictionary_decode") else column).to_numpy(
        zero_copy_only=False
    )
    return values
