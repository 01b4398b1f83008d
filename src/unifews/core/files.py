"""Graphs and matrices from the files people have. Nothing is ever unpickled.

read_graph    a unifews graph folder · .npz (CSR, scipy's save_npz, or an edge list) · .npy [2, m]
              .csv .tsv .txt, plain or .gz: "source target [weight]" per line · .parquet
read_matrix   .npy, memory-mapped · .npz: `x`, scipy's save_npz, or x_indptr / x_indices / x_data / x_shape
write_array   .npy, complete or absent
"""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from unifews.core.graph import Graph
from unifews.core.npy import open_array, write_array
from unifews.errors import FileFormatError, MissingFileError, ShapeError, UnifewsError

__all__ = ["read_graph", "read_matrix", "write_array"]

_TEXT = (".csv", ".tsv", ".txt")
_ENDS = ({"source", "src", "from"}, {"target", "dst", "to", "destination"})
_WEIGHT = {"weight", "edge_weight", "w"}


def read_graph(path: str | PathLike[str], *, num_nodes: int | None = None) -> Graph:
    """The graph in a file or folder; its suffix says the format.

    An edge list knows no isolated nodes beyond its largest number: give `num_nodes` if there are some. Each of its
    lines is one directed edge.
    """
    path = _existing(path)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    kind = suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else "".join(suffixes[-1:])
    if path.is_dir():
        return Graph.open(path)
    if kind == ".npy":
        return Graph.from_edge_index(open_array(path), num_nodes)
    if kind == ".npz":
        return _graph_of(_npz(path), path, num_nodes)
    if kind == ".parquet":
        source, target, weight = _parquet(path)
    elif kind in _TEXT:
        source, target, weight = _text(path)
    else:
        raise FileFormatError(
            f"{path} is no graph file by its name. Known: a folder written by Graph.save, "
            f".npz, .npy, .parquet, {', '.join(_TEXT)} and their .gz."
        )
    return Graph.from_edge_index(np.stack([source, target]), num_nodes, weight)


def read_matrix(path: str | PathLike[str], *, dense: bool = True) -> Any:
    """The matrix [n, f] in a file: memory-mapped from `.npy`, float32 from `.npz`.

    Sparse contents become a dense array, or a scipy CSR array with `dense=False`.
    """
    path = _existing(path)
    if path.suffix == ".npy":
        matrix: Any = open_array(path)
    elif path.suffix == ".npz":
        matrix = _matrix_of(_npz(path), path)
        matrix = matrix.toarray() if dense and not isinstance(matrix, np.ndarray) else matrix
    else:
        raise FileFormatError(f"{path} is no matrix file by its name. Known: .npy and .npz.")
    if matrix.ndim != 2:
        raise ShapeError(f"{path} has shape {list(matrix.shape)}; features are a matrix, one row per node.")
    if matrix.dtype.kind not in "fiub":
        raise FileFormatError(f"{path} holds {matrix.dtype.name} values; features are real numbers.")
    return matrix


def _existing(path: str | PathLike[str]) -> Path:
    path = Path(path)
    if not path.exists():
        raise MissingFileError(f"there is no file {path}.")
    return path


@contextmanager
def _damage(path: Path, expected: str) -> Iterator[None]:
    """Whatever goes wrong while parsing, in one sentence that names the file."""
    try:
        yield
    except UnifewsError:
        raise
    except (ValueError, KeyError, IndexError, EOFError, OSError, zlib.error, zipfile.BadZipFile) as error:
        reason = str(error).strip().splitlines()
        raise FileFormatError(
            f"{path} cannot be read as {expected}: it is truncated or of another format"
            f"{f' ({reason[0]})' if reason else ''}."
        ) from error


# ---------------------------------------------------------------------------------------------------------------- .npz


def _npz(path: Path) -> Mapping[str, NDArray[Any]]:
    if not zipfile.is_zipfile(path):
        raise FileFormatError(f"{path} is not a .npz archive, or it is truncated. Write it with numpy.savez.")
    return _Archive(path)


class _Archive(Mapping[str, NDArray[Any]]):
    """The arrays of a `.npz`, each read when asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with _damage(path, "a .npz archive"), np.load(path, allow_pickle=False) as file:
            self._names = list(file.files)

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._names:
            raise KeyError(name)
        with _damage(self._path, "a .npz archive of numeric arrays"), np.load(self._path, allow_pickle=False) as file:
            array: NDArray[Any] = file[name]
            return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _graph_of(arrays: Mapping[str, NDArray[Any]], path: Path, num_nodes: int | None) -> Graph:
    if _is_scipy(arrays):
        return Graph.from_scipy(_load_scipy(path))
    if {"indptr", "indices"} <= arrays.keys():
        weight = next((arrays[name] for name in ("weight", "data") if name in arrays), None)
        return Graph.from_csr(arrays["indptr"], arrays["indices"], weight)
    weight = next((arrays[name] for name in ("edge_weight", "weight") if name in arrays), None)
    if "num_nodes" in arrays and num_nodes is None:
        num_nodes = int(arrays["num_nodes"])
    if "edge_index" in arrays:
        return Graph.from_edge_index(arrays["edge_index"], num_nodes, weight)
    if {"row", "col"} <= arrays.keys():
        # PyG's (row, col) is (source, target).
        return Graph.from_edge_index(np.stack([arrays["row"], arrays["col"]]), num_nodes, weight)
    raise FileFormatError(
        f"{path} holds no graph: it has {_listed(arrays)}, and a graph is indptr and indices, "
        f"scipy's save_npz, edge_index, or row and col."
    )


def _matrix_of(arrays: Mapping[str, NDArray[Any]], path: Path) -> Any:
    if "x" in arrays:
        return arrays["x"].astype(np.float32)
    if _is_scipy(arrays):
        return _load_scipy(path).tocsr().astype(np.float32)
    parts = ["x_data", "x_indices", "x_indptr", "x_shape"]
    if arrays.keys() >= set(parts):
        from scipy.sparse import csr_array

        data, indices, indptr, shape = (arrays[part] for part in parts)
        with _damage(path, "compressed rows x_indptr, x_indices, x_data, x_shape"):
            matrix = csr_array((data.astype(np.float32), indices, indptr), shape=tuple(int(side) for side in shape))
            matrix.check_format(full_check=True)
            return matrix
    raise FileFormatError(
        f"{path} holds no feature matrix: it has {_listed(arrays)}, and features are x, "
        f"scipy's save_npz, or x_indptr, x_indices, x_data, x_shape."
    )


def _is_scipy(arrays: Mapping[str, NDArray[Any]]) -> bool:
    return {"format", "shape"} <= arrays.keys()


def _load_scipy(path: Path) -> Any:
    from scipy.sparse import load_npz

    with _damage(path, "a scipy sparse matrix"):
        return load_npz(path)


def _listed(arrays: Mapping[str, NDArray[Any]]) -> str:
    return ", ".join(sorted(arrays)) or "nothing"


# ---------------------------------------------------------------------------------------------------------- edge lists

_Edges = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64] | None]


def _text(path: Path) -> _Edges:
    """Two or three columns, with or without a line of names; `#` starts a comment. A table with names may have more."""
    with _damage(path, "an edge list"):
        with _open_text(path) as file:
            skip, fields, delimiter = _sniff(file)
        if not fields:
            raise FileFormatError(f"{path} holds no edges.")
        named = not all(_is_number(field) for field in fields)
        columns = _columns(fields) if named else list(range(len(fields)))
        if len(columns) not in (2, 3):
            raise FileFormatError(
                f"{path} has {len(fields)} columns in its first line; an edge list is source, target, perhaps weight."
            )
        types = [("source", "i8"), ("target", "i8"), ("weight", "f8")][: len(columns)]
        with _open_text(path) as file:
            table = np.loadtxt(
                file, dtype=types, delimiter=delimiter, comments="#", skiprows=skip + named, usecols=columns, ndmin=1
            )
    return table["source"], table["target"], table["weight"] if len(columns) == 3 else None


def _open_text(path: Path) -> TextIO:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def _sniff(file: TextIO) -> tuple[int, list[str], str | None]:
    """Lines before the first one with content, its fields, and what separates them (None: white space)."""
    for skip, line in enumerate(file):
        content = line.split("#")[0].strip()
        if content:
            delimiter = next((mark for mark in ",;\t" if mark in content), None)
            return skip, [field.strip() for field in content.split(delimiter)], delimiter
    return 0, [], None


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _columns(names: list[str]) -> list[int]:
    """Positions of source and target, by name or else the first two, and of the weight, if a column is called so.

    A further column may hold anything, a time for example, and is left alone.
    """
    lower = [name.lower().strip("\"'") for name in names]
    source, target = (next((i for i, name in enumerate(lower) if name in known), None) for known in _ENDS)
    ends = [0, 1][: len(names)] if source is None or target is None else [source, target]
    return ends + [i for i, name in enumerate(lower) if name in _WEIGHT and i not in ends][:1]


def _parquet(path: Path) -> _Edges:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UnifewsError("reading .parquet needs pyarrow: pip install 'unifews[parquet]'.") from error
    with _damage(path, "a parquet table"):
        names = parquet.read_schema(path).names
        columns = _columns(names)
        if len(columns) < 2:
            raise FileFormatError(f"{path} has {len(names)} columns; an edge table has source, target, perhaps weight.")
        table = parquet.read_table(path, columns=[names[i] for i in columns])
        for name in table.column_names:
            if table[name].null_count:
                raise FileFormatError(f"{path} has {table[name].null_count:,} empty cells in column {name!r}.")
        arrays = [table[names[i]].to_numpy() for i in columns]
    return arrays[0], arrays[1], arrays[2] if len(arrays) == 3 else None
