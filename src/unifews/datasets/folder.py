"""The folder format of a dataset: a graph folder, `.npy` arrays and a `dataset.json`; docs/FORMAT.md is its specification."""

from __future__ import annotations

from dataclasses import asdict, fields
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from unifews.core.checks import compressed
from unifews.core.graph import Graph
from unifews.core.graph_folder import check_checksum, described
from unifews.datasets.dataset import About, Dataset, Metric, Split, SplitKind
from unifews.errors import FileFormatError, InputError
from unifews.storage.atomic import atomic_folder, steady
from unifews.storage.folder_format import FolderFormat, Json
from unifews.storage.journal import check_finished
from unifews.storage.npy import open_array, write_array
from unifews.storage.reading import reading

KIND = FolderFormat("dataset", "unifews-dataset", 1, "dataset.json", "save_dataset")

# Smaller arrays are read: a map would save nothing, and an array in memory is writable, which torch prefers.
_MAP = 1 << 26
_SPARSE = ("x_indptr", "x_indices", "x_data")


def save_dataset(dataset: Dataset, path: str | PathLike[str], *, overwrite: bool = False) -> None:
    """Write a dataset as a folder that is either complete or absent.

    An existing dataset is replaced only with `overwrite=True`, and nothing else is ever replaced.
    """
    if not isinstance(dataset, Dataset):
        raise InputError(
            f"save_dataset takes a Dataset, and this is a {type(dataset).__name__}; make one with "
            f"uf.Dataset(name, graph, x, y)."
        )
    folder = Path(path)
    check_replaceable(folder)
    with atomic_folder(folder, overwrite=overwrite) as place:
        fill(place, dataset)


def fill(place: Path, dataset: Dataset) -> None:
    """Write the graph and the arrays that a dataset folder does not have yet, and dataset.json."""
    arrays = {**_features(dataset.x), "y": dataset.y}
    for i, split in enumerate(dataset.splits):
        arrays |= {f"{part}_{i}": nodes for part, nodes in zip(Split._fields, split, strict=True)}
    if not (place / "graph").exists():
        dataset.graph.save(place / "graph")
    for name, array in arrays.items():
        if not (place / f"{name}.npy").exists():
            write_array(place / f"{name}.npy", array)
    meta = {
        "name": dataset.name,
        "num_nodes": dataset.num_nodes,
        "num_edges": dataset.graph.num_edges,
        "num_features": dataset.num_features,
        "num_classes": dataset.num_classes,
        "splits": len(dataset.splits),
        "about": asdict(dataset.about),
        "arrays": {name: described(place / f"{name}.npy", array) for name, array in arrays.items()},
    }
    KIND.write(place, meta)


def open_dataset(path: str | PathLike[str], *, verify: bool = False) -> Dataset:
    """The dataset in a folder written by `save_dataset`; the graph and arrays of 64 MB and more are memory maps, read-only.

    Sizes, shapes and the checksums of smaller arrays are always checked; `verify=True` also reads the mapped files and
    compares their checksums.
    """
    folder = Path(path)
    with reading(folder, "a dataset"):
        return steady(folder, lambda: _opened(folder, verify))


def _opened(folder: Path, verify: bool) -> Dataset:
    meta = _meta(folder)
    n = meta["num_nodes"]
    expected = {*(("x",) if "x" in meta["arrays"] else _SPARSE), "y"}
    for i in range(min(meta["splits"], len(meta["arrays"]))):
        expected |= {f"{part}_{i}" for part in Split._fields}
    if odd := sorted(expected ^ meta["arrays"].keys()):
        raise FileFormatError(
            f"{folder} is damaged: dataset.json announces {meta['splits']:,} splits, and {odd[0][:80]!r} is missing among its "
            f"arrays or not of such a dataset. Copy or save it again."
        )
    arrays = {name: _open(folder, name, entry, verify) for name, entry in meta["arrays"].items()}
    graph = Graph.open(folder / "graph", verify=verify or None)
    if (graph.num_nodes, graph.num_edges) != (n, meta["num_edges"]):
        raise FileFormatError(
            f"{folder}/graph has {graph.num_nodes:,} nodes and {graph.num_edges:,} edges, but dataset.json has {n:,} and "
            f"{meta['num_edges']:,}: they are not of one dataset. Copy or save it again."
        )
    try:
        stored = range(meta["splits"])
        splits = tuple(Split.of(arrays[f"train_{i}"], arrays[f"val_{i}"], arrays[f"test_{i}"], n) for i in stored)
        dataset = Dataset(meta["name"], graph, _matrix(arrays, meta), arrays["y"], splits, _about(meta["about"]))
    except (KeyError, ValueError, TypeError) as error:
        reason = f"it has no array {error}" if isinstance(error, KeyError) else str(error)
        raise FileFormatError(f"{folder} is damaged: {reason} Copy or save it again.") from error
    for what, found in (("features", dataset.num_features), ("classes", dataset.num_classes)):
        if found != meta[f"num_{what}"]:
            raise FileFormatError(
                f"{folder} has {found:,} {what}, but dataset.json has {meta[f'num_{what}']:,}. Copy or save it again."
            )
    KIND.check(folder, meta)
    return dataset


def check_replaceable(folder: Path) -> None:
    """Only another dataset is ever replaced."""
    if folder.exists() and not is_dataset(folder):
        raise InputError(
            f"{folder} already exists and is not a unifews dataset, so it is not overwritten. Choose another name."
        )


def is_dataset(folder: Path) -> bool:
    """Whether the dataset.json of a folder names the format, whatever the state of the folder."""
    return KIND.describes(folder)


def _features(x: Any) -> dict[str, NDArray[Any]]:
    if isinstance(x, np.ndarray):
        return {"x": x}
    rows = x.tocsr()
    return {"x_indptr": rows.indptr, "x_indices": rows.indices, "x_data": rows.data}


def _meta(folder: Path) -> Json:
    check_finished(folder, "dataset")
    meta = KIND.read(folder)
    counts = [meta.get(f"num_{what}") for what in ("nodes", "edges", "features", "classes")] + [meta.get("splits")]
    whole = all(type(value) is int and value >= 0 for value in counts) and isinstance(meta.get("name"), str)
    if not whole or not isinstance(meta.get("arrays"), dict) or not isinstance(meta.get("about"), dict):
        raise FileFormatError(
            f"{folder}/dataset.json is damaged: it must hold name, num_nodes, num_edges, num_features, num_classes, splits, "
            f"about and arrays."
        )
    return meta


def _open(folder: Path, name: str, entry: Any, verify: bool) -> NDArray[Any]:
    path = folder / f"{name}.npy"
    if not path.is_file():
        raise FileFormatError(f"{folder} is incomplete: it has no {path.name}. Copy or save the dataset again.")
    array = open_array(path)
    announced = isinstance(entry, dict) and entry.get("dtype") == array.dtype.name and entry.get("shape") == list(array.shape)
    if not announced or not array.dtype.isnative:
        raise FileFormatError(
            f"{path} holds {array.dtype.name} {list(array.shape)}, and dataset.json announces something else: one of them is "
            f"of another dataset. Copy or save it again."
        )
    mapped = array.nbytes >= _MAP
    if verify or not mapped:
        check_checksum(path, entry)
    return array if mapped else np.array(array)


def _matrix(arrays: dict[str, NDArray[Any]], meta: Json) -> Any:
    if "x" in arrays:
        return arrays["x"]
    from scipy.sparse import csr_array

    indptr, indices, data = (arrays[name] for name in _SPARSE)
    return compressed(csr_array, data, indices, indptr, (meta["num_nodes"], meta["num_features"]))


def _about(meta: Json) -> About:
    """The record of a file; a field this release does not know is left out."""
    known = {field.name: meta[field.name] for field in fields(About) if field.name in meta}
    about = About(**{**known, "notes": tuple(known.get("notes", ()))})
    for value, kinds in ((about.split, SplitKind), (about.metric, Metric)):
        if value not in get_args(kinds):
            raise ValueError(f"{value!r} is none of {', '.join(get_args(kinds))}.")
    return about
