"""Graphs and matrices from the files people have. Nothing is ever unpickled.

read_graph    a unifews graph folder · .npz (CSR, scipy's save_npz, or an edge list) · .npy [2, m] or [m, 2]
              .csv .tsv .txt, plain or .gz: "source target [weight]" per line · .parquet
read_matrix   .npy, memory-mapped · .npz: `x`, scipy's save_npz, or x_indptr / x_indices / x_data / x_shape
write_array   .npy, complete or absent
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.edges import TABLES, TEXT, damage, kind_of, read_table, upright
from unifews.core.graph import Graph
from unifews.core.npy import open_array, write_array
from unifews.core.proportion import check_proportion
from unifews.core.work import check_finished
from unifews.errors import FileFormatError, MissingFileError, ShapeError

__all__ = ["read_graph", "read_matrix", "write_array"]


def read_graph(path: str | PathLike[str], *, num_nodes: int | None = None) -> Graph:
    """The graph in a file or folder; its suffix says the format.

    An edge list knows no isolated nodes beyond its largest number: give `num_nodes` if there are some. Each of its
    lines is one directed edge.
    """
    path = _existing(path)
    kind = kind_of(path)
    if path.is_dir():
        return Graph.open(path)
    if kind == ".npy":
        return Graph.from_edge_index(upright(open_array(path)), num_nodes)
    if kind == ".npz":
        return _graph_of(_npz(path), path, num_nodes)
    if kind not in TABLES:
        raise unknown_kind(path)
    source, target, weight = read_table(path)
    if num_nodes is None and len(source):
        check_proportion(max(int(source.max()), int(target.max())) + 1, len(source), str(path))
    return Graph.from_edge_index(np.stack([source, target]), num_nodes, weight)


def unknown_kind(path: Path) -> FileFormatError:
    """The error for a file that is no graph by its name."""
    return FileFormatError(
        f"{path} is no graph file by its name. Known: a folder written by Graph.save, "
        f".npz, .npy, .parquet, {', '.join(TEXT)} and their .gz."
    )


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
        check_finished(path, "graph")
        raise MissingFileError(f"there is no file {path}.")
    return path


# ---------------------------------------------------------------------------------------------------------------- .npz


def _npz(path: Path) -> Mapping[str, NDArray[Any]]:
    if not zipfile.is_zipfile(path):
        raise FileFormatError(f"{path} is not a .npz archive, or it is truncated. Write it with numpy.savez.")
    return _Archive(path)


class _Archive(Mapping[str, NDArray[Any]]):
    """The arrays of a `.npz`, each read when asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with damage(path, "a .npz archive"), np.load(path, allow_pickle=False) as file:
            self._names = list(file.files)

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._names:
            raise KeyError(name)
        with damage(self._path, "a .npz archive of numeric arrays"), np.load(self._path, allow_pickle=False) as file:
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
        with damage(path, "compressed rows x_indptr, x_indices, x_data, x_shape"):
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

    with damage(path, "a scipy sparse matrix"):
        return load_npz(path)


def _listed(arrays: Mapping[str, NDArray[Any]]) -> str:
    return ", ".join(sorted(arrays)) or "nothing"
