"""Graphs and datasets from files larger than memory, written to folders; an interrupted call can be continued."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.graph import Graph
from unifews.datasets.dataset import Dataset
from unifews.datasets.folder import check_replaceable, fill, open_dataset, save_dataset
from unifews.datasets.ogb import is_ogb, raw_edges
from unifews.datasets.user_files import assemble, read_dataset, read_features, read_identified, split_files
from unifews.deprecation import renamed_arguments
from unifews.errors import GraphError, InputError, MissingFileError, ShapeError
from unifews.io.convert import build_graph, build_numbered, check_ids_given, convert_files, is_compressed, move_ids
from unifews.io.edge_lists import TABLES, kind_of
from unifews.io.external_sort import added
from unifews.io.graphs import unknown_kind
from unifews.io.ids import IdMap, read_ids
from unifews.resources import StageProgress
from unifews.storage.atomic import check_place
from unifews.storage.journal import Journal, open_journal

File = str | PathLike[str]


@renamed_arguments(again="restart")
def convert_edges(
    edges: File | Sequence[File],
    out: File,
    *,
    undirected: bool = True,
    num_nodes: int | None = None,
    ids: bool = False,
    memory: str | int | None = None,
    overwrite: bool = False,
    restart: bool = False,
    progress: StageProgress | None = None,
) -> Graph:
    """The graph of an edge list that may be larger than memory, written as the folder `out` and opened from there.

    - `edges`: .csv, .tsv, .txt (or .gz), .parquet, .npy [2, m] or [m, 2], .npz with edge_index or row and col, or a folder of
      OGB's raw files; several files make one list. Compressed rows (a graph folder, scipy's .npz) are read into memory.
    - `undirected`: every edge in both directions; of two weights of an edge and its reverse, the larger.
    - `num_nodes`: where nodes beyond the largest number have no edges.
    - `ids`: the list holds identifiers, any integers or text, not node numbers. They are numbered in their order and written
      to `ids.npy` or `ids.txt` in the folder; `read_ids(out)` returns that of each node.
    - `memory`: what this process may take in all, such as "2GB"; default: two gigabytes more than it has.

    Copies of an edge merge, weights add up, self-loops are dropped, as in `Graph.from_edge_index`, and the arrays are the same.
    It takes 8 bytes of disk per directed edge while it runs, 12 with weights, up to 40 more per line with `ids`, in
    `<out>.work`. An interrupted call is continued by the next one with the same arguments, unless `restart` is given;
    `progress(stage, done, total)` is called as it advances.
    """
    files, nodes = resolved(edges)
    return convert_files(
        files,
        Path(out),
        undirected=undirected,
        num_nodes=nodes if num_nodes is None and not ids else num_nodes,
        ids=ids,
        memory=memory,
        overwrite=overwrite,
        restart=restart,
        progress=progress,
    )


@renamed_arguments(again="restart")
def convert_dataset(
    edges: File | Sequence[File],
    features: File,
    labels: File,
    out: File,
    *,
    split: File | Sequence[File] | None = None,
    name: str | None = None,
    undirected: bool = True,
    ids: bool = False,
    memory: str | int | None = None,
    overwrite: bool = False,
    restart: bool = False,
    progress: StageProgress | None = None,
) -> Dataset:
    """The dataset of these files (`read_dataset`) with a graph that may be larger than memory, written as the folder `out`.

    The graph is built as by `convert_edges`, and resumed as there. Features in a `.npy` of float32 are mapped and copied; other
    ones, and labels, are read into memory. With `ids`, nodes are named by identifiers in all files: features and labels are
    tables whose first column is called id or node, and the nodes are those that have features.
    """
    target, x_file, y_file = Path(out), Path(features), Path(labels)
    files, _ = resolved(edges)
    check_ids_given(ids, files, None)
    check_replaceable(target)
    if len(files) == 1 and is_compressed(files[0]):
        dataset = read_dataset(files[0], x_file, y_file, split=split, name=name, undirected=undirected)
        save_dataset(dataset, target, overwrite=overwrite)
        return open_dataset(target)
    parts = [] if split is None else [file for file in split_files(split) if file.is_file()]
    for file in (x_file, y_file, *parts):
        if not file.is_file():
            raise MissingFileError(f"there is no file {file}.")
    task = {"task": "convert_dataset", "undirected": undirected, "name": name, "ids": ids}
    with open_journal(target, task, [*files, x_file, y_file, *parts], restart=restart) as journal:
        if not journal.is_published(target):
            check_place(target, overwrite)
            x, known = _build(journal, files, x_file, undirected, ids, memory, progress)
            with journal.writing():
                folder = journal.folder / "dataset"
                graph = Graph.open(folder / "graph")
                fill(folder, assemble(graph, added(journal, "graph"), x, files, x_file, y_file, split, name, known))
            journal.publish("dataset", target)
        journal.remove()
    return open_dataset(target)


def _build(
    journal: Journal,
    files: Sequence[Path],
    x_file: Path,
    undirected: bool,
    ids: bool,
    memory: str | int | None,
    progress: StageProgress | None,
) -> tuple[Any, IdMap | None]:
    """Build the graph, and the file of identifiers, in the dataset folder; returns the features and the identifiers."""
    folder = journal.folder / "dataset"
    known = None
    if ids:
        x, rows = read_identified(x_file)
        built = build_numbered(journal, files, rows, undirected, memory, progress)
        folder.mkdir(exist_ok=True)
        move_ids(journal, folder)
        known = IdMap(read_ids(folder))
        x = x[_order(journal, known, rows, files, x_file)]
    else:
        x = read_features(x_file)
        try:
            built = build_graph(journal, files, x.shape[0], undirected, memory, progress)
        except GraphError as error:
            raise ShapeError(f"{files[0]} does not fit the {x.shape[0]:,} rows of {x_file}: {error}") from error
    folder.mkdir(exist_ok=True)
    if built.exists():
        built.rename(folder / "graph")
    return x, known


def _order(journal: Journal, known: IdMap, rows: NDArray[Any], files: Sequence[Path], x_file: Path) -> NDArray[np.int64]:
    """The row of the features that belongs to each node."""
    with journal.reading():
        numbers = known.numbers(rows, str(x_file))
        if len(numbers) < len(known.ids):
            without = int(np.setdiff1d(np.arange(len(known.ids)), numbers)[0])
            listed = ", ".join(map(str, files))
            raise InputError(f"{known.ids[without]} occurs in {listed}, but has no row in {x_file}; each node has one row.")
    return np.argsort(numbers)


def resolved(edges: File | Sequence[File]) -> tuple[list[Path], int | None]:
    """The files that hold the edges, and the number of nodes where a folder of OGB's has it."""
    paths = [Path(edges)] if isinstance(edges, str | PathLike) else [Path(path) for path in edges]
    if not paths:
        raise InputError("there are no edge files to convert; give at least one.")
    for path in paths:
        if not path.exists():
            raise MissingFileError(f"there is no file {path}.")
    if len(paths) == 1 and is_ogb(paths[0]):
        file, nodes = raw_edges(paths[0])
        return [file], nodes
    for path in paths:
        alone = path.is_dir() or (kind_of(path) == ".npz" and is_compressed(path))
        if alone and len(paths) > 1:
            raise InputError(f"{path} holds a whole graph, which cannot be joined with other edges. Convert it alone.")
        if not alone and kind_of(path) not in (*TABLES, ".npy", ".npz"):
            raise unknown_kind(path)
    return paths, None
