"""Graphs and matrices from the files people have. Nothing is ever unpickled.

read_graph    a unifews graph folder · .npz (CSR, scipy's save_npz, or an edge list) · .npy [2, m] or [m, 2]
              .csv .tsv .txt, plain or .gz: "source target [weight]" per line · .parquet
read_matrix   .npy, memory-mapped · .npz: `x`, scipy's save_npz, or x_indptr / x_indices / x_data / x_shape
write_array   .npy, complete or absent
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.checks import check_proportion, compressed
from unifews.core.graph import Graph
from unifews.errors import FileFormatError, InputError, MissingFileError, ShapeError
from unifews.io.edge_lists import TABLES, TEXT, kind_of, read_table, upright
from unifews.storage.archive import Archive
from unifews.storage.journal import check_finished
from unifews.storage.npy import open_array, whole_number, write_array
from unifews.storage.reading import check_memory, reading

__all__ = ["read_graph", "read_matrix", "write_array"]


def read_graph(path: str | PathLike[str], *, num_nodes: int | None = None) -> Graph:
    """The graph in a file or folder; its suffix determines the format.

    An edge list has no isolated nodes beyond its largest number: give `num_nodes` if there are some. Each of its
    lines is one directed edge.
    """
    path = _existing(path)
    try:
        with reading(path, "a graph"):
            return _graph(path, num_nodes)
    except InputError as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path}: {error}") from error


def _graph(path: Path, num_nodes: int | None) -> Graph:
    kind = kind_of(path)
    if path.is_dir():
        return Graph.open(path)
    if kind == ".npy":
        return Graph.from_edge_index(upright(open_array(path)), num_nodes)
    if kind == ".npz":
        return _graph_of(Archive(path), num_nodes)
    if kind not in TABLES:
        raise unknown_kind(path)
    source, target, weight = read_table(path)
    if num_nodes is None and len(source):
        check_proportion(max(int(source.max()), int(target.max())) + 1, len(source), str(path))
    return Graph.from_edge_index(np.stack([source, target]), num_nodes, weight)


def unknown_kind(path: Path) -> FileFormatError:
    """The error for a file whose extension is not that of a graph file."""
    return FileFormatError(
        f"{path} has no known extension of a graph file; expected a folder written by Graph.save, "
        f".npz, .npy, .parquet, {', '.join(TEXT)} or .gz of these texts."
    )


def read_matrix(path: str | PathLike[str], *, dense: bool = True) -> Any:
    """The matrix [n, f] in a file: memory-mapped from `.npy`, float32 from `.npz`.

    Sparse contents become a dense array, or a scipy CSR array with `dense=False`.
    """
    path = _existing(path)
    if path.suffix == ".npy":
        matrix: Any = open_array(path)
    elif path.suffix == ".npz":
        with reading(path, "a feature matrix"):
            matrix = _matrix_of(Archive(path))
            if dense and not isinstance(matrix, np.ndarray):
                check_memory(path, matrix.shape[0] * matrix.shape[1] * 4, f"its matrix of shape {list(matrix.shape)}")
                matrix = matrix.toarray()
    else:
        raise FileFormatError(f"{path} has no known extension of a matrix file; expected .npy or .npz.")
    if matrix.ndim != 2:
        raise ShapeError(f"{path} has shape {list(matrix.shape)}; features are a matrix, one row per node.")
    if matrix.dtype.kind not in "fiub":
        raise FileFormatError(f"{path} holds {matrix.dtype.name} values; features are real numbers.")
    return matrix


def _existing(path: str | PathLike[str]) -> Path:
    path = Path(path)
    if not path.exists():
        check_finished(path, "graph")
        raise MissingFileError(f"there is no file {path}.")
    return path


# ---------------------------------------------------------------------------------------------------------------- .npz


def _graph_of(arrays: Archive, num_nodes: int | None) -> Graph:
    if _is_scipy(arrays):
        return Graph.from_scipy(_scipy_matrix(arrays))
    if {"indptr", "indices"} <= arrays.keys():
        weight = next((arrays[name] for name in ("weight", "data") if name in arrays), None)
        return Graph.from_csr(arrays["indptr"], arrays["indices"], weight)
    weight = next((arrays[name] for name in ("edge_weight", "weight") if name in arrays), None)
    if "num_nodes" in arrays and num_nodes is None:
        num_nodes = whole_number(arrays["num_nodes"], f"num_nodes in {arrays.path}")
    if "edge_index" in arrays:
        return Graph.from_edge_index(arrays["edge_index"], num_nodes, weight)
    if {"row", "col"} <= arrays.keys():
        row, col = arrays["row"], arrays["col"]
        if row.ndim != 1 or row.shape != col.shape:
            raise ShapeError(
                f"{arrays.path} has row of shape {list(row.shape)} and col of shape {list(col.shape)}; both are vectors with "
                f"one node per edge."
            )
        return Graph.from_edge_index(np.stack([row, col]), num_nodes, weight)  # PyG's (row, col) is (source, target)
    raise FileFormatError(
        f"{arrays.path} holds no graph: it has {arrays.listed()}, and a graph is indptr and indices, "
        f"scipy's save_npz, edge_index, or row and col."
    )


def _matrix_of(arrays: Archive) -> Any:
    if "x" in arrays:
        return _real(arrays["x"], arrays)
    if _is_scipy(arrays):
        matrix = _scipy_matrix(arrays).tocsr()
        return matrix.astype(np.float32)
    parts = ["x_data", "x_indices", "x_indptr", "x_shape"]
    if arrays.keys() >= set(parts):
        from scipy.sparse import csr_array

        data, indices, indptr = (arrays[part] for part in parts[:3])
        with reading(arrays.path, "compressed rows x_indptr, x_indices, x_data, x_shape"):
            return compressed(csr_array, _real(data, arrays), indices, indptr, _shape(arrays, "x_shape"))
    raise FileFormatError(
        f"{arrays.path} holds no feature matrix: it has {arrays.listed()}, and features are x, "
        f"scipy's save_npz, or x_indptr, x_indices, x_data, x_shape."
    )


def _real(values: NDArray[Any], arrays: Archive) -> NDArray[np.float32]:
    if values.dtype.kind not in "fiub":
        raise FileFormatError(f"{arrays.path} holds {values.dtype.name} values; features are real numbers.")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes inf and is reported where it is used
        return values.astype(np.float32, copy=False)


def _is_scipy(arrays: Archive) -> bool:
    return {"format", "shape"} <= arrays.keys()


def _scipy_matrix(arrays: Archive) -> Any:
    """The sparse matrix that scipy's save_npz wrote, its structure checked."""
    import scipy.sparse as sp

    with reading(arrays.path, "a scipy sparse matrix"):
        name = arrays["format"].item()
        name = name.decode("ascii") if isinstance(name, bytes) else name
        shape, data = _shape(arrays, "shape"), arrays["data"]
        check_memory(arrays.path, 8 * sum(shape), f"a sparse matrix of shape {list(shape)}")
        if name in ("csr", "csc", "bsr"):
            kind = {"csr": sp.csr_array, "csc": sp.csc_array, "bsr": sp.bsr_array}[name]
            return compressed(kind, data, arrays["indices"], arrays["indptr"], shape)
        if name == "dia":
            return sp.dia_array((data, arrays["offsets"]), shape=shape)
        if name == "coo":
            places = arrays["coords"] if "coords" in arrays else (arrays["row"], arrays["col"])
            return sp.coo_array((data, tuple(places)), shape=shape)
        raise ValueError(f"unknown format {str(name)[:80]!r}")


def _shape(arrays: Archive, name: str) -> tuple[int, int]:
    """Rows and columns, as an array of two whole numbers."""
    sides = arrays[name]
    if sides.shape != (2,) or sides.dtype.kind not in "iu" or sides.min() < 0:
        raise FileFormatError(f"{name} in {arrays.path} is not the shape of a matrix: two whole numbers, rows and columns.")
    return int(sides[0]), int(sides[1])
