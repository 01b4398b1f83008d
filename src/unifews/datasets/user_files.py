"""A user's own data: edges, features, labels and a split, each in a file of its own, as a `Dataset`.

edges      the formats of `io.graphs.read_graph`: .csv .tsv .txt (.gz), .parquet, .npz, .npy, a graph folder
features   .npy, .npz, or a table (.csv .tsv .txt .parquet): one row per node, or a first column "node" with their numbers
labels     one column (whole numbers or text), node and label, or several columns of 0 and 1: any number of labels per node
split      a table node, set or one column of sets (train, val, test, none); three files, or a folder or .npz of three,
           of node numbers or masks

What had to be repaired is counted in `Dataset.about.notes`; what cannot be repaired is an error that names the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.checks import count, not_finite
from unifews.core.graph import Graph
from unifews.datasets.dataset import About, Dataset, Split, isolated
from unifews.errors import FileFormatError, GraphError, InputError, MissingFileError, ShapeError
from unifews.io.edge_lists import kind_of
from unifews.io.graphs import read_graph, read_matrix
from unifews.io.ids import IdMap, as_ids
from unifews.io.tables import Columns, read_columns, read_numbers
from unifews.storage.archive import Archive
from unifews.storage.journal import check_finished
from unifews.storage.reading import reading

File = str | PathLike[str]

_LISTS = (".npy", ".csv", ".tsv", ".txt", ".parquet")  # edge lists, which do not have the number of nodes
_LABELS = ("y", "labels", "label", "target")
_SETS = {
    **dict.fromkeys(("train", "training"), 0),
    **dict.fromkeys(("val", "valid", "validation", "dev"), 1),
    **dict.fromkeys(("test", "testing"), 2),
    **dict.fromkeys(("none", "unused", "-"), -1),
}
_UNLABELLED = -1
_MAX_LISTED = 200  # classes listed in a note


def read_dataset(
    edges: File,
    features: File,
    labels: File,
    *,
    split: File | Sequence[File] | None = None,
    name: str | None = None,
    undirected: bool = True,
    num_nodes: int | None = None,
) -> Dataset:
    """The dataset in these files. The rows of `features` are the nodes; everything else must fit them.

    - `split`: a file, a folder, or the three files of training, validation and test nodes; None: drawn by seed.
    - `undirected`: add the reverse of every edge that has none.
    - `num_nodes`: the number of nodes there should be, for a check.

    Text labels become classes in sorted order, and whole numbers with gaps are closed up; -1 stands for "no label".
    """
    graph_file, x_file, y_file = Path(edges), Path(features), Path(labels)
    x = read_features(x_file)
    n = x.shape[0]
    if num_nodes is not None and num_nodes != n:
        raise ShapeError(f"{x_file} has {n:,} rows, but num_nodes is {num_nodes:,}; each node has one row.")
    given = read_fitting_graph(graph_file, x.shape, str(x_file))
    graph = given.undirected() if undirected else given
    return assemble(graph, graph.num_edges - given.num_edges, x, [graph_file], x_file, y_file, split, name)


def assemble(
    graph: Graph,
    reverses: int,
    x: Any,
    edge_files: Sequence[Path],
    x_file: Path,
    y_file: Path,
    split: File | Sequence[File] | None,
    name: str | None,
    ids: IdMap | None = None,
) -> Dataset:
    """The dataset of a graph, to which so many reverse edges were added, its features, and the files of labels and splits.

    With `ids`, labels and splits name nodes by their identifiers.
    """
    n = graph.num_nodes
    y, renamed = read_labels(y_file, n, ids)
    splits = () if split is None else read_splits(split, n, ids)
    notes = [*_repairs(graph, reverses, y), *renamed, *_absent(y, splits)]
    files = [*edge_files, x_file, y_file, *([] if split is None else split_files(split))]
    about = About(
        source=", ".join(dict.fromkeys(file.name for file in files)),
        split="stored" if splits else "stratified",
        convention=_convention(splits),
        metric="accuracy" if y.ndim == 1 else "f1",
        notes=tuple(notes),
    )
    return Dataset(name or _name(edge_files[0]), graph, x, y, splits, about)


def read_fitting_graph(path: Path, shape: tuple[int, int], owner: str) -> Graph:
    """The graph in a file, whose nodes are the rows of a matrix of this shape, which `owner` names."""
    check_there(path)
    n = shape[0]
    try:
        graph = read_graph(path, num_nodes=n)
    except GraphError:  # edges between more nodes, or an error of its own, which is raised again
        graph = read_graph(path)
    return check_fit(graph, path, shape, owner)


def check_fit(graph: Graph, path: Path, shape: tuple[int, int], owner: str) -> Graph:
    """The graph of `path`, if it has a node for each row of a matrix of this shape, which `owner` names."""
    n, f = shape
    if graph.num_nodes != n:
        hint = " Did you give the transposed matrix?" if f == graph.num_nodes else ""
        raise ShapeError(f"{owner} has {n:,} rows, but {path} has {graph.num_nodes:,} nodes; each has one row.{hint}")
    return graph


def check_there(path: Path) -> None:
    """An error where there is no graph, or one that is not finished."""
    if not path.exists():
        check_finished(path, "graph")
        raise MissingFileError(f"there is no graph {path}.")


def is_edge_list(path: Path) -> bool:
    """Whether a file lists edges, without the number of nodes and whether each stands for both directions."""
    return path.is_file() and kind_of(path) in _LISTS


# ------------------------------------------------------------------------------------------------------------- features


def read_features(path: Path) -> Any:
    """Features float32 [n, f], finite; a memory map where the file allows it, a scipy CSR array where it is sparse."""
    with reading(path, "features"):
        if kind_of(path) in (".npy", ".npz"):
            return _checked(read_matrix(path, dense=False), path)
        matrix, nodes = read_numbers(path)
        return _checked(matrix if nodes is None else matrix[_order(nodes, len(matrix), path)], path)


def read_identified(path: Path) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Features float32 [n, f], finite, and the identifier of the node of each row, from a table whose first column has them."""
    matrix, nodes = (None, None) if kind_of(path) in (".npy", ".npz") else read_numbers(path, ids=True)
    if matrix is None or nodes is None:
        raise needs_ids(path, "features")
    ids = as_ids(nodes, 0, str(path))
    found, times = np.unique(ids, return_counts=True)
    if times.max() > 1:
        raise InputError(f"{path} has {times.max()} rows of {found[times > 1][0]}; each node has one row.")
    return _checked(matrix, path), ids


def needs_ids(path: Path, what: str) -> InputError:
    """The error for a file with a row for each node and no identifiers."""
    return InputError(
        f"{path} has no identifiers of its rows: with ids=True, {what} are in a table (.csv, .tsv, .txt, .parquet) with the "
        f"identifiers in its first column, called id or node."
    )


def _checked(matrix: Any, path: Path) -> Any:
    """Features as float32, finite."""
    if min(matrix.shape) < 1:
        raise ShapeError(f"{path} has shape {list(matrix.shape)}; there is at least one node and one feature.")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes inf and is reported as such
        matrix = matrix.astype(np.float32, copy=False)
    bad, row = not_finite(matrix)
    if bad:
        raise InputError(f"{path} has missing or infinite values, the first in row {row:,}; fill them in first.")
    return matrix


def _order(nodes: NDArray[np.int64], n: int, path: Path) -> NDArray[np.int64]:
    """Where the row of each node is, given whose each row is."""
    if not np.array_equal(np.sort(nodes), np.arange(n)):
        twice = np.flatnonzero(np.bincount(nodes[(nodes >= 0) & (nodes < n)], minlength=n) > 1)
        what = f"node {twice[0]} twice" if len(twice) else f"nodes {nodes.min():,} to {nodes.max():,}"
        raise InputError(f"{path} has {n:,} rows and names {what}; it should name each of the nodes 0 … {n - 1:,} once.")
    return np.argsort(nodes)


# --------------------------------------------------------------------------------------------------------------- labels


def read_labels(path: Path, num_nodes: int, ids: IdMap | None = None) -> tuple[NDArray[Any], list[str]]:
    """Class numbers int64 [n] or columns of 0 and 1, uint8 [n, c]; and notes on classes that were given numbers."""
    with reading(path, "labels"):
        table = read_columns(path, _LABELS, ids=ids is not None)
        columns = table.values
        nodes: NDArray[np.int64] | None = None
        if ids is not None and len(columns) < 2:
            raise needs_ids(path, "labels")
        if ids is not None or table.by_node or (len(columns) == 2 and not _all_flags(columns)):
            nodes, columns = _node_numbers(columns[0], path, num_nodes, ids), columns[1:]
        elif len(columns[0]) != num_nodes:
            raise ShapeError(_wrong_length(path, table, num_nodes))
        if len(columns) > 1:
            return _flags(columns, nodes, path, num_nodes), []
        classes, notes = _classes(columns[0], path)
        if nodes is None:
            return classes, notes
        y = np.full(num_nodes, _UNLABELLED, dtype=np.int64)
        y[nodes] = classes
        return y, notes


def _classes(column: NDArray[Any], path: Path) -> tuple[NDArray[np.int64], list[str]]:
    """Classes 0, 1, …, and a note that names them where they were not called so."""
    if column.dtype.kind == "f":
        bad = ~((np.abs(column) < 2**53) & (column == np.floor(column)))  # above, floats do not represent all integers
        if bad.any():
            value = column[bad][0]
            what = "is missing" if np.isnan(value) else f"is {value:g}"
            raise InputError(
                f"the label in row {int(bad.argmax()):,} of {path} {what}; labels are whole numbers or text, -1 for no label."
            )
    if column.dtype.kind == "U":
        empty = np.char.strip(column) == ""
        if empty.any():
            raise InputError(f"the label in row {int(empty.argmax()):,} of {path} is missing; write -1 where there is none.")
        known = column != str(_UNLABELLED)
    else:
        column = column.astype(np.int64)
        known = column >= 0
        if column.min() < _UNLABELLED:
            raise InputError(f"{path} holds the label {column.min()}; classes are numbered from 0, and -1 stands for no label.")
    names, numbers = np.unique(column[known], return_inverse=True)
    if not len(names):
        raise InputError(f"{path} labels no node; at least some nodes need a label.")
    y = np.full(len(column), _UNLABELLED, dtype=np.int64)
    y[known] = numbers
    if names.dtype.kind != "U" and np.array_equal(names, np.arange(len(names))):
        return y, []
    listed = ", ".join(f"{i} = {label}" for i, label in enumerate(names[:_MAX_LISTED]))
    return y, [f"classes were given numbers: {listed}{', …' if len(names) > _MAX_LISTED else ''}"]


def _flags(columns: list[NDArray[Any]], nodes: NDArray[np.int64] | None, path: Path, n: int) -> NDArray[np.uint8]:
    if not _all_flags(columns):
        raise InputError(
            f"{path} has {len(columns)} columns of labels that are not all 0 or 1; give one column, or 0 and 1 only."
        )
    y = np.stack(columns, axis=1).astype(np.uint8)
    if nodes is None:
        return y
    if len(nodes) != n:
        raise ShapeError(
            f"{path} has labels of {count(len(nodes), 'node')}, but there are {n:,}; in columns, each has its row."
        )
    return y[np.argsort(nodes)]


def _all_flags(columns: list[NDArray[Any]]) -> bool:
    return all(column.dtype.kind in "biuf" and np.isin(column, (0, 1)).all() for column in columns)


def _wrong_length(path: Path, table: Columns, n: int) -> str:
    rows = len(table.values[0])
    hint = " Node numbers need a column before the labels, called node." if rows < n else ""
    if rows == n - 1:
        hint = " If the first line of the features numbers their columns, leave it out."
    if rows == n + 1 and table.names is None:
        hint = f" If its first line, {table.values[0][0]!s}, is a name, call it label."
    return f"{path} has {count(rows, 'label')}, but there are {n:,} nodes; each has one.{hint}"


def _node_numbers(column: NDArray[Any], path: Path, n: int, ids: IdMap | None) -> NDArray[np.int64]:
    if ids is not None:
        column = ids.numbers(column, str(path))
    if column.dtype.kind not in "iu" or column.min() < 0 or column.max() >= n:
        wrong = column[0] if column.dtype.kind not in "iu" else column[(column < 0) | (column >= n)][0]
        raise InputError(f"{path} names node {wrong!s}, but nodes are numbered 0 to {n - 1:,}.")
    found, times = np.unique(column, return_counts=True)
    if times.max() > 1:
        twice = int(found[times > 1][0])
        name = f"{twice:,}" if ids is None else ids.ids[twice]
        raise InputError(f"{path} names node {name} {times.max()} times; each has one line.")
    return column.astype(np.int64)


# --------------------------------------------------------------------------------------------------------------- splits


def read_splits(split: File | Sequence[File], num_nodes: int, ids: IdMap | None = None) -> tuple[Split, ...]:
    """The split in a file or a folder, or in three files; several where a `.npz` holds masks [k, n]."""
    files = split_files(split)
    with reading(", ".join(map(str, files)), "a split"):
        if len(files) == 1 and files[0].is_dir():
            files = _in_folder(files[0])
        if len(files) == 3:
            train, val, test = (_nodes(file, num_nodes, ids) for file in files)
            return (Split.of(train, val, test, num_nodes),)
        if len(files) != 1:
            raise InputError(f"a split is one file, or three for training, validation and test; got {len(files)}.")
        if kind_of(files[0]) == ".npz":
            if ids is not None:
                raise needs_ids(files[0], "node and set")
            return _archived(files[0], num_nodes)
        return (_from_sets(files[0], num_nodes, ids),)


def split_files(split: File | Sequence[File]) -> list[Path]:
    """What was given for a split, as paths."""
    return [Path(split)] if isinstance(split, str | PathLike) else [Path(file) for file in split]


def _in_folder(folder: Path) -> list[Path]:
    """Files named train.*, val.* (or valid.*), test.*."""
    found: dict[int, Path] = {}
    for file in sorted(folder.iterdir()):
        which = _SETS.get(file.name.split(".")[0].lower(), -1)
        if which in found:
            raise InputError(f"{folder} has {found[which].name} and {file.name}, and one of them is too many for a split.")
        if which >= 0:
            found[which] = file
    if len(found) != 3:
        raise MissingFileError(f"{folder} holds no split: three files are called train, val and test, as in train.csv.")
    return [found[which] for which in range(3)]


def _nodes(path: Path, n: int, ids: IdMap | None) -> NDArray[Any]:
    """Node numbers, or a mask [n]; 0 and 1 for each node are a mask too. With `ids`, identifiers."""
    table = read_columns(path, ("index", "idx", "mask"), ids=ids is not None)
    if len(table.values) != 1:
        raise ShapeError(f"{path} has {len(table.values)} columns; a set is one column, of node numbers or a mask.")
    column = table.values[0]
    if ids is not None:
        return ids.numbers(column, str(path))
    if column.dtype.kind == "f" and np.array_equal(column, np.floor(column)):
        column = column.astype(np.int64)
    if column.dtype.kind in "iu" and len(column) == n > 2 and np.isin(column, (0, 1)).all():
        return column.astype(bool)
    return column


def _archived(path: Path, n: int) -> tuple[Split, ...]:
    arrays = Archive(path)
    for suffix in ("_idx", "_index", "_mask", "_masks", ""):
        found = {_SETS[key]: arrays[f"{key}{suffix}"] for key in _SETS if f"{key}{suffix}" in arrays}
        if set(found) != {0, 1, 2}:
            continue
        train, val, test = (found[which].astype(bool) if "mask" in suffix else found[which] for which in range(3))
        if train.ndim == val.ndim == test.ndim == 2:
            return tuple(Split.of(a, b, c, n) for a, b, c in zip(train, val, test, strict=True))
        return (Split.of(train, val, test, n),)
    raise FileFormatError(
        f"{path} holds no split: it has {arrays.listed()}, and a split is train_idx, val_idx, test_idx, "
        f"or train_mask, val_mask, test_mask."
    )


def _from_sets(path: Path, n: int, ids: IdMap | None) -> Split:
    """Words in one column: train, val, test, none; before it perhaps node numbers, or identifiers."""
    table = read_columns(path, ids=ids is not None)
    *before, words = table.values
    if len(before) > 1 or words.dtype.kind != "U":
        raise FileFormatError(
            f"{path} is not a split: it should hold node and set in two columns, or the set of each node in one; "
            f"a set is train, val or test."
        )
    if ids is not None and not before:
        raise needs_ids(path, "node and set")
    if not before and len(words) != n:
        raise ShapeError(
            f"{path} has {len(words):,} lines, but there are {n:,} nodes; without node numbers, each has its line."
        )
    nodes = _node_numbers(before[0], path, n, ids) if before else np.arange(n)
    lower = np.char.lower(np.char.strip(words))
    found, which = np.unique(lower, return_inverse=True)
    unknown = [str(word) for word in found if word not in _SETS]
    if unknown:
        raise InputError(
            f"{path} names the set {unknown[0]!r}; known are train, val, test, and none for nodes in none of them."
        )
    part = np.array([_SETS[str(word)] for word in found])[which]
    train, val, test = (nodes[part == i] for i in range(3))
    return Split.of(train, val, test, n)


# ---------------------------------------------------------------------------------------------------------------- about


def _repairs(graph: Graph, reverses: int, y: NDArray[Any]) -> list[str]:
    """Notes on edges that were dropped, merged or added, and on unlabelled and isolated nodes."""
    counts = {
        "self-loop": (graph.dropped_self_loops, "dropped"),
        "copy of an edge": (graph.merged_duplicates, "merged"),
        "reverse edge": (reverses, "added"),
        "unlabelled node": (int((y < 0).sum()) if y.ndim == 1 else 0, ""),
        "isolated node": (isolated(graph), ""),
    }
    plural = {"copy of an edge": "copies of an edge"}
    return [
        f"{number:,} {what if number == 1 else plural.get(what, f'{what}s')} {done}".strip()
        for what, (number, done) in counts.items()
        if number
    ]


def _absent(y: NDArray[Any], splits: tuple[Split, ...]) -> list[str]:
    """Classes no training set of a stored split holds: nothing can be learnt about them."""
    if y.ndim == 2:
        return []
    every = np.unique(y[y >= 0])
    missing = sorted({int(c) for split in splits for c in np.setdiff1d(every, y[split.train])})
    return [f"no training node is of class {', '.join(map(str, missing))}"] if missing else []


def _convention(splits: tuple[Split, ...]) -> str:
    if not splits:
        return "stratified 50/25/25 by seed"
    return "as given" if len(splits) == 1 else f"the {len(splits)} splits given, number seed modulo {len(splits)}"


def _name(path: Path) -> str:
    """The name of the edge file, or of its folder where the file is only called "edges"."""
    stem = path.name.split(".")[0]
    folder = path.resolve().parent.name
    return folder if stem.lower() in ("edges", "edge", "edge_index", "edgelist", "graph") and folder else stem
