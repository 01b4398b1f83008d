"""A dataset in one `.npz` file: our own names, or those of two published collections. Nothing is ever unpickled.

ours             indptr, indices (or any graph `read_graph` knows) · x, or x_indptr, x_indices, x_data, x_shape · y
                 train_idx, val_idx, test_idx, or train_mask, val_mask, test_mask [n], or with an s [k, n] · docs/FORMAT.md
gnn-benchmark    adj_indptr, adj_indices, adj_shape · attr_indptr, attr_indices, attr_data, attr_shape · labels
heterophilous    edges [m, 2] · node_features · node_labels · train_masks, val_masks, test_masks [k, n]
"""

from __future__ import annotations

import re
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.checks import compressed
from unifews.core.graph import Graph
from unifews.datasets.dataset import About, Dataset, Split
from unifews.errors import FileFormatError, InputError
from unifews.io.graphs import read_graph, read_matrix
from unifews.storage.archive import Archive
from unifews.storage.reading import reading

_PARTS = ("train", "val", "test")
# Names of the parts of a split; the first pattern present is used.
_SPLITS = ("unifews_{}_idx", "{}_idx", "{}_mask", "{}_masks")
_OF_SPLIT = re.compile(r"(unifews_)?(train|val(?!ue)|test)")


def read_npz(path: str | PathLike[str], name: str | None = None) -> Dataset:
    """The dataset in a `.npz` file, called `name` or as the file is.

    Of a file with several kinds of split the authors' own comes first: unifews_{train,val,test}_idx, *_idx, *_mask, *_masks.
    """
    path = Path(path)
    try:
        with reading(path, "a dataset"):
            arrays = Archive(path)
            graph, x, y = _parts(arrays)
            splits = _splits(arrays, graph.num_nodes)
            about = About(
                source=str(path),
                split="stored" if splits else "stratified",
                convention=f"{len(splits)} stored in the file" if splits else "stratified 50/25/25 by seed",
            )
            return Dataset(name or path.stem, graph, x, y, splits, about)
    except InputError as error:
        raise FileFormatError(f"{path} does not hold a dataset: {error}") from error


def _parts(arrays: Archive) -> tuple[Graph, Any, NDArray[Any]]:
    """Graph, features and labels, by whichever names the file has."""
    if {"adj_indptr", "attr_indptr", "labels"} <= arrays.keys():
        graph, x, y = _benchmark(arrays)
    elif {"edges", "node_features", "node_labels"} <= arrays.keys():
        graph, x, y = _heterophilous(arrays)
    elif "y" in arrays:
        graph, x, y = read_graph(arrays.path), read_matrix(arrays.path, dense=False), arrays["y"]
    else:
        raise FileFormatError(
            f"{arrays.path} holds no labels: it has {arrays.listed()}, and a dataset is a graph, features and labels `y`."
        )
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    return graph, x, y.astype(np.int64, copy=False) if y.ndim == 1 and y.dtype.kind in "iu" else y


def _benchmark(arrays: Archive) -> tuple[Graph, Any, NDArray[Any]]:
    from scipy.sparse import csr_array

    graph = Graph.from_csr(arrays["adj_indptr"], arrays["adj_indices"]).undirected()
    rows, columns = (int(side) for side in arrays["attr_shape"])
    data = arrays["attr_data"].astype(np.float32)
    x = compressed(csr_array, data, arrays["attr_indices"], arrays["attr_indptr"], (rows, columns))
    return graph, x, arrays["labels"]


def _heterophilous(arrays: Archive) -> tuple[Graph, Any, NDArray[Any]]:
    x = arrays["node_features"].astype(np.float32, copy=False)
    return Graph.from_edge_index(arrays["edges"].T, len(x)).undirected(), x, arrays["node_labels"]


def _splits(arrays: Archive, num_nodes: int) -> tuple[Split, ...]:
    patterns = _whole_splits(set(arrays))
    if not patterns:
        return ()
    train, val, test = (arrays[patterns[0].format(part)] for part in _PARTS)
    if patterns[0].endswith(("mask", "masks")):
        train, val, test = (part.astype(bool) for part in (train, val, test))
    if not patterns[0].endswith("masks"):
        return (Split.of(train, val, test, num_nodes),)
    masks = [np.atleast_2d(part) for part in (train, val, test)]
    if len({len(part) for part in masks}) > 1:
        sizes = ", ".join(str(len(part)) for part in masks)
        raise InputError(f"its train_masks, val_masks and test_masks hold {sizes} splits; each has a row per split.")
    return tuple(Split.of(a, b, c, num_nodes) for a, b, c in zip(*masks, strict=True))


def _whole_splits(names: set[str]) -> list[str]:
    """The name patterns of the splits in a file. An incomplete split is an error, not skipped for another."""
    known = {pattern: [pattern.format(part) for part in _PARTS] for pattern in _SPLITS}
    unknown = sorted(name for name in names.difference(*known.values()) if _OF_SPLIT.match(name))
    if unknown:
        raise InputError(
            f"{unknown[0]} is not the name of a part of a split; call them train_idx, val_idx, test_idx, or train_mask, "
            f"val_mask, test_mask, or leave it out."
        )
    found = [pattern for pattern, wanted in known.items() if not names.isdisjoint(wanted)]
    for pattern in found:
        missing = [name for name in known[pattern] if name not in names]
        if missing:
            there = [name for name in known[pattern] if name in names]
            raise InputError(
                f"it has {' and '.join(there)}, but no {' and no '.join(missing)}; a split has all three, so add what is "
                f"missing, or leave the others out."
            )
    return found
