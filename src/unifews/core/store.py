"""The folder format of a graph: `.npy` arrays and a `meta.json`; docs/FORMAT.md is its specification."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unifews.core import csr, work
from unifews.core.atomic import atomic_folder, steady
from unifews.core.described import Kind
from unifews.core.npy import open_array, write_array
from unifews.errors import FileFormatError, InputError

KIND = Kind("graph", "unifews-graph", 1, "meta.json", "Graph.save")


class Stored(NamedTuple):
    """What a folder holds: the arrays, and the facts beside them."""

    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    weight: NDArray[np.float32] | None
    meta: dict[str, Any]


def write(folder: Path, stored: Stored, *, overwrite: bool = False) -> None:
    """Write a graph folder in one step: it is complete or absent. Only another graph folder is ever replaced."""
    check_replaceable(folder)
    with atomic_folder(folder, overwrite=overwrite) as place:
        for name, array in _arrays(stored).items():
            write_array(place / f"{name}.npy", array)
        describe(place, stored)


def check_replaceable(folder: Path) -> None:
    """Only another graph folder is ever replaced."""
    if folder.exists() and not KIND.describes(folder):
        raise InputError(f"{folder} already exists and is not a unifews graph, so it is not overwritten. Choose another name.")


def describe(place: Path, stored: Stored) -> None:
    """Write the `meta.json` of a folder that has its arrays already."""
    meta = {
        **KIND.header(),
        **stored.meta,
        "arrays": {name: {"dtype": a.dtype.name, "shape": list(a.shape)} for name, a in _arrays(stored).items()},
    }
    (place / KIND.file).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


def _arrays(stored: Stored) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {"indptr": stored.indptr, "indices": stored.indices}
    return arrays if stored.weight is None else {**arrays, "weight": stored.weight}


def read(folder: Path, *, verify: bool = False) -> Stored:
    """Open a graph folder as memory maps, after checks that touch `indptr` only; `verify` reads `indices` too."""
    return steady(folder, lambda: _read(folder, verify))


def _read(folder: Path, verify: bool) -> Stored:
    meta = _meta(folder)
    n, m = meta["num_nodes"], meta["num_edges"]
    indptr = _open(folder, "indptr", (n + 1,), np.int64)
    indices = _open(folder, "indices", (m,), csr.index_dtype(n))
    weight = _open(folder, "weight", (m,), np.float32) if meta["weighted"] else None
    _check_indptr(folder, indptr, m)
    if verify:
        for part in csr.chunks(m):
            if indices[part].min() < 0 or indices[part].max() >= n:
                raise FileFormatError(
                    f"{folder}/indices.npy names nodes outside 0 … {n - 1:,}: it is damaged or not of this graph."
                )
        if not csr.is_canonical(indptr, indices):
            raise FileFormatError(
                f"{folder}/indices.npy is not sorted and free of copies and self-loops in each row. "
                f"Load it with Graph.from_csr, which repairs that, and save it again."
            )
    return Stored(indptr, indices, weight, meta)


def _meta(folder: Path) -> dict[str, Any]:
    work.check_finished(folder, "graph")
    meta = KIND.read(folder)
    n, m = meta.get("num_nodes"), meta.get("num_edges")
    if not (type(n) is int and type(m) is int and n >= 1 and m >= 0 and type(meta.get("weighted")) is bool):
        raise FileFormatError(f"{folder}/meta.json is damaged: it must hold num_nodes ≥ 1, num_edges ≥ 0 and weighted.")
    return meta


def _open(folder: Path, name: str, shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
    path = folder / f"{name}.npy"
    if not path.is_file():
        raise FileFormatError(f"{folder} is incomplete: it has no {name}.npy. Copy or save the graph again.")
    array = open_array(path)
    if array.shape != shape or array.dtype != dtype:
        raise FileFormatError(
            f"{path} holds {array.dtype.name} {list(array.shape)}, but meta.json asks for "
            f"{np.dtype(dtype).name} {list(shape)} ({prod(shape) * np.dtype(dtype).itemsize:,} bytes)."
        )
    return array


def _check_indptr(folder: Path, indptr: NDArray[np.int64], num_edges: int) -> None:
    problem = ""
    if indptr[0] != 0:
        problem = f"starts at {indptr[0]:,} instead of 0"
    elif indptr[-1] != num_edges:
        problem = f"ends at {indptr[-1]:,} instead of the {num_edges:,} edges of meta.json"
    elif any(np.any(indptr[part.start + 1 : part.stop + 1] < indptr[part]) for part in csr.chunks(len(indptr) - 1)):
        problem = "decreases somewhere"
    if problem:
        raise FileFormatError(f"{folder}/indptr.npy {problem}, so it is damaged. Copy or save the graph again.")
