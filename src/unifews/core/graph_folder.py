"""The folder format of a graph: `.npy` arrays and a `meta.json`; docs/FORMAT.md is its specification."""

from __future__ import annotations

from hashlib import file_digest
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unifews.core import csr
from unifews.core.csr import MAX_NODES, Examined
from unifews.errors import FileFormatError, InputError
from unifews.storage import journal
from unifews.storage.atomic import atomic_folder, steady
from unifews.storage.folder_format import FolderFormat, Json
from unifews.storage.npy import open_array, write_array

SMALL = 64_000_000  # bytes up to which checksums are always compared: a few hundredths of a second

KIND = FolderFormat("graph", "unifews-graph", 1, "meta.json", "Graph.save")


class Stored(NamedTuple):
    """What a folder holds: the arrays, and the facts beside them."""

    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    weight: NDArray[np.float32] | None
    meta: Json


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
    arrays = {name: described(place / f"{name}.npy", array) for name, array in _arrays(stored).items()}
    KIND.write(place, {**stored.meta, "arrays": arrays})


def described(path: Path, array: NDArray[Any]) -> Json:
    """The entry of a JSON file on the array in a `.npy` file, with the checksum of the file."""
    return {"dtype": array.dtype.name, "shape": list(array.shape), "bytes": path.stat().st_size, "sha256": checksum(path)}


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def check_checksum(path: Path, entry: Any) -> None:
    """Compare a file with what `described` wrote of it; folders of earlier releases may have no checksum."""
    if isinstance(entry, dict) and "sha256" in entry and entry["sha256"] != checksum(path):
        raise FileFormatError(f"{path} has changed since it was written: its checksum differs. Copy or save it again.")


def _arrays(stored: Stored) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {"indptr": stored.indptr, "indices": stored.indices}
    return arrays if stored.weight is None else {**arrays, "weight": stored.weight}


def read(folder: Path, *, verify: bool | None = None) -> Stored:
    """Open a graph folder as memory maps, after one pass over all of its arrays that checks the invariants of docs/FORMAT.md.

    `verify` compares checksums as well; None = where the folder is small. `meta["symmetric"]` is what the pass has found.
    """
    return steady(folder, lambda: _read(folder, verify))


def _read(folder: Path, verify: bool | None) -> Stored:
    given, meta = _meta(folder)
    n, m = meta["num_nodes"], meta["num_edges"]
    indptr = _open(folder, "indptr", (n + 1,), np.int64)
    indices = _open(folder, "indices", (m,), csr.index_dtype(n))
    weight = _open(folder, "weight", (m,), np.float32) if meta["weighted"] else None
    stored = Stored(indptr, indices, weight, meta)
    problem = ""
    if indptr[0] != 0:
        problem = f"starts at {indptr[0]:,} instead of 0"
    elif indptr[-1] != m:
        problem = f"ends at {indptr[-1]:,} instead of the {m:,} edges of meta.json"
    if problem:
        raise FileFormatError(f"{folder}/indptr.npy {problem}, so it is damaged. Copy or save the graph again.")
    seen = csr.examine(indptr, indices, weight)
    if not seen.is_canonical:
        raise _unsound(folder, stored, seen)
    if verify is not False:
        KIND.check(folder, given)
    arrays = _arrays(stored)
    if verify or (verify is None and sum(array.nbytes for array in arrays.values()) <= SMALL):
        for name in arrays:
            check_checksum(folder / f"{name}.npy", meta["arrays"].get(name))
    return stored._replace(meta={**meta, "symmetric": seen.symmetric})


def _unsound(folder: Path, stored: Stored, seen: Examined) -> FileFormatError:
    """What is wrong with arrays that break an invariant."""
    again = "Copy or save the graph again."
    if seen.pointer >= 0:
        return FileFormatError(f"{folder}/indptr.npy decreases somewhere, so it is damaged. {again}")
    if seen.range >= 0:
        return FileFormatError(
            f"{folder}/indices.npy names node {stored.indices[seen.range]:,}, and the graph has nodes 0 … "
            f"{stored.meta['num_nodes'] - 1:,}: it is damaged or not of this graph. {again}"
        )
    if seen.weight >= 0 and stored.weight is not None:
        return FileFormatError(
            f"{folder}/weight.npy holds {stored.weight[seen.weight]} at place {seen.weight:,}, and weights are positive and "
            f"finite. {again}"
        )
    return FileFormatError(
        f"{folder}/indices.npy is not sorted and free of copies and self-loops in each row. Load its arrays with "
        f"Graph.from_csr, which repairs that, and save the graph again."
    )


def _meta(folder: Path) -> tuple[Json, Json]:
    """What meta.json holds, and that with defaults for what folders of earlier releases lack."""
    journal.check_finished(folder, "graph")
    given = KIND.read(folder)
    meta: Json = {"dropped_self_loops": 0, "merged_duplicates": 0, "arrays": {}} | given
    counts = [meta.get(name) for name in ("num_nodes", "num_edges", "dropped_self_loops", "merged_duplicates")]
    whole = all(type(value) is int and 0 <= value < 2**63 for value in counts)
    if not whole or not 1 <= meta["num_nodes"] <= MAX_NODES or type(meta.get("weighted")) is not bool:
        raise FileFormatError(
            f"{folder}/meta.json is damaged: it must hold num_nodes from 1 to {MAX_NODES:,}, num_edges ≥ 0 and weighted. Copy "
            f"or save the graph again."
        )
    if not isinstance(meta["arrays"], dict):
        raise FileFormatError(f"{folder}/meta.json is damaged: `arrays` must be a table. Copy or save the graph again.")
    return given, meta


def _open(folder: Path, name: str, shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
    path = folder / f"{name}.npy"
    if not path.is_file():
        raise FileFormatError(f"{folder} is incomplete: it has no {name}.npy. Copy or save the graph again.")
    array = open_array(path)
    if array.shape != shape or array.dtype != dtype:
        raise FileFormatError(
            f"{path} holds {array.dtype.name} {list(array.shape)}, but meta.json requires "
            f"{np.dtype(dtype).name} {list(shape)} ({prod(shape) * np.dtype(dtype).itemsize:,} bytes)."
        )
    return array
