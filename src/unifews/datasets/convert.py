"""Graphs and datasets from files larger than memory, written where they will stay and safe to interrupt.

Tables (text, Parquet) are parsed once, into pieces of numbers in the working folder; arrays are read where they are. Both
become chunks of edges for `core.build`, which sorts them into the graph folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core import graph_folder
from unifews.core.graph import Graph
from unifews.datasets.dataset import Dataset
from unifews.datasets.folder import check_replaceable, fill, open_dataset, save_dataset
from unifews.datasets.user_files import assemble, does_not_fit, read_dataset, read_features, read_identified, split_files
from unifews.errors import GraphError, InputError, MissingFileError
from unifews.io import external_sort as builder
from unifews.io.archive_members import members, shape_of
from unifews.io.edge_lists import TABLES, estimate, kind_of
from unifews.io.edge_sources import Arrays, Joined, parse, runs_of, write_run
from unifews.io.external_sort import Source, disk_needed
from unifews.io.graphs import read_graph, unknown_kind
from unifews.io.ids import INTEGERS, TEXT, IdMap, merge, read_ids
from unifews.io.node_numbering import number
from unifews.resources import Memory, StageProgress
from unifews.storage.atomic import check_place
from unifews.storage.journal import Work, working
from unifews.storage.npy import open_array

File = str | PathLike[str]

_PER_ID_EDGE = 40  # bytes of disk for an edge between identifiers: places, identifiers and their numbers
_PARSING = {"text": 16_000_000, ".parquet": 100_000_000}  # bytes of memory that pyarrow takes for its buffers


def convert_edges(
    edges: File | Sequence[File],
    out: File,
    *,
    undirected: bool = True,
    num_nodes: int | None = None,
    ids: bool = False,
    memory: str | int | None = None,
    overwrite: bool = False,
    again: bool = False,
    progress: StageProgress | None = None,
) -> Graph:
    """The graph of an edge list that may be larger than memory, written as the folder `out` and opened from there.

    - `edges`: .csv, .tsv, .txt (or .gz), .parquet, .npy [2, m] or [m, 2], .npz with edge_index or row and col, or a folder of
      OGB's raw files; several files make one list. What holds rows already (a graph folder, scipy's .npz) is read into memory.
    - `undirected`: every edge in both directions; of two weights of an edge and its reverse, the larger.
    - `num_nodes`: where nodes beyond the largest number have no edges.
    - `ids`: the list holds identifiers, any integers or text, not node numbers. They are numbered in their order and written
      to `ids.npy` or `ids.txt` in the folder; `read_ids(out)` returns that of each node.
    - `memory`: what this process may take in all, such as "2GB"; unless told, two gigabytes more than it has.

    Copies of an edge merge, weights add up, self-loops are dropped, as in `Graph.from_edge_index`, and the arrays are the same.
    It takes 8 bytes of disk per directed edge while it works, 12 with weights, up to 40 more per line with `ids`, in
    `<out>.work`. An interrupted call is continued by the next one with the same arguments, unless `again` asks to start afresh;
    `progress(stage, done, total)` is called with how far it is.
    """
    target = Path(out)
    files, nodes = resolved(edges)
    check_ids_given(ids, files, num_nodes)
    num_nodes = nodes if num_nodes is None and not ids else num_nodes
    if len(files) == 1 and is_compressed(files[0]):
        graph = read_graph(files[0], num_nodes=num_nodes)
        (graph.undirected() if undirected else graph).save(target, overwrite=overwrite)
        return Graph.open(target)
    graph_folder.check_replaceable(target)
    task = {"task": "convert_edges", "undirected": undirected, "num_nodes": num_nodes, "ids": ids}
    with working(target, task, files, again=again) as work:
        if not work.is_placed(target):
            check_place(target, overwrite)
            if ids:
                put_ids(work, build_numbered(work, files, None, undirected, memory, progress))
            else:
                build_graph(work, files, num_nodes, undirected, memory, progress)
            work.put("graph", target)
        work.remove()
    return Graph.open(target)


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
    again: bool = False,
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
    with working(target, task, [*files, x_file, y_file, *parts], again=again) as work:
        if not work.is_placed(target):
            check_place(target, overwrite)
            place = work.folder / "dataset"
            known = None
            if ids:
                x, rows = read_identified(x_file)
                built = build_numbered(work, files, rows, undirected, memory, progress)
                place.mkdir(exist_ok=True)
                put_ids(work, place)
                known = IdMap(read_ids(place))
                x = x[_order(work, known, rows, files, x_file)]
            else:
                x = read_features(x_file)
                try:
                    built = build_graph(work, files, x.shape[0], undirected, memory, progress)
                except GraphError as error:
                    raise does_not_fit(files[0], x.shape[0], str(x_file), error) from error
            with work.writing():
                place.mkdir(exist_ok=True)
                if built.exists():
                    built.rename(place / "graph")
                graph = Graph.open(place / "graph")
                dataset = assemble(graph, builder.added(work, "graph"), x, files, x_file, y_file, split, name, known)
                fill(place, dataset)
            work.put("dataset", target)
        work.remove()
    return open_dataset(target)


def build_graph(
    work: Work,
    files: Sequence[Path],
    num_nodes: int | None,
    undirected: bool,
    memory: str | int | None,
    progress: StageProgress | None,
) -> Path:
    """The graph of the edges in `files`, as the folder graph in a working folder."""
    if work.get("graph") is not None:
        return work.folder / "graph"
    limits, chunk = _limits(work, files, undirected, memory, ids=False)
    tables = [file for file in files if kind_of(file) in TABLES]
    with work.writing(), work.reading():
        parts: list[Source] = [Arrays(file, chunk, work.folder) for file in files if file not in tables]
        if tables:
            parts.append(parse(work, tables, chunk, progress))
        source = parts[0] if len(parts) == 1 else Joined(parts)
    if num_nodes is None:
        with work.reading():
            stated = (part.count_nodes() for part in parts if isinstance(part, Arrays))
            num_nodes = next((nodes for nodes in stated if nodes is not None), None)
    return builder.build(work, "graph", source, limits, num_nodes=num_nodes, undirected=undirected, progress=progress)


def build_numbered(
    work: Work,
    files: Sequence[Path],
    nodes: NDArray[Any] | None,
    undirected: bool,
    memory: str | int | None,
    progress: StageProgress | None,
) -> Path:
    """The graph of edges between identifiers, as the folder graph in a working folder; the file of identifiers is beside it.

    `nodes` are identifiers of nodes that need not occur in the edges.
    """
    if work.get("graph") is None:
        limits, chunk = _limits(work, files, undirected, memory, ids=True)
        with work.writing(), work.reading():
            pieces = parse(work, files, chunk, progress, ids=True)
            runs = runs_of(work)
            if nodes is not None:
                runs.append(write_run(work.folder / "pieces" / f"{len(pieces)}.run", merge([nodes])[0]))
            source = number(work, pieces, runs, limits, progress)
            n = source.num_nodes
            if not n:
                raise GraphError(f"{files[0]} holds no edges, so there are no identifiers and no nodes.")
        builder.build(work, "graph", source, limits, num_nodes=n, undirected=undirected, progress=progress)
    return work.folder / "graph"


def _order(work: Work, known: IdMap, rows: NDArray[Any], files: Sequence[Path], x_file: Path) -> NDArray[np.int64]:
    """The row of the features that belongs to each node."""
    with work.reading():
        numbers = known.numbers(rows, str(x_file))
        if len(numbers) < len(known.ids):
            without = int(np.setdiff1d(np.arange(len(known.ids)), numbers)[0])
            listed = ", ".join(map(str, files))
            raise InputError(f"{known.ids[without]} occurs in {listed}, but has no row in {x_file}; each node has one row.")
    return np.argsort(numbers)


def put_ids(work: Work, place: Path) -> None:
    """Move the file of identifiers, if there is one and it has not been moved yet, into the folder it belongs to."""
    for name in (INTEGERS, TEXT):
        if (work.folder / name).exists():
            (work.folder / name).rename(place / name)


def check_ids_given(ids: bool, files: Sequence[Path], num_nodes: int | None) -> None:
    """What cannot go together with identifiers."""
    if ids and num_nodes is not None:
        raise InputError(f"num_nodes={num_nodes} cannot be given with ids=True: the nodes are the identifiers that occur.")
    if ids and is_compressed(files[0]):
        raise InputError(f"{files[0]} holds a graph between node numbers; ids=True is for lists of edges.")


def _limits(work: Work, files: Sequence[Path], undirected: bool, memory: str | int | None, ids: bool) -> tuple[Memory, int]:
    """How memory is divided, and the edges that are read at a time, which stay the same when the work is resumed."""
    formats = {kind_of(file) for file in files}
    if not formats.isdisjoint(TABLES):
        import pyarrow  # noqa: F401  (its 26 MB count as memory in use from here on)
    parsing = max((_PARSING[".parquet" if kind == ".parquet" else "text"] for kind in formats & set(TABLES)), default=0)
    limits = Memory.of(memory, parsing, "sorting edges")
    if work.get("chunk") is None:
        _check_room(work, files, undirected, ids)
        work.keep(chunk=max(1, limits.chunk // (4 if ids else 1)))  # text takes more memory than numbers
    return limits, int(work.get("chunk"))


def resolved(edges: File | Sequence[File]) -> tuple[list[Path], int | None]:
    """The files that hold the edges, and the number of nodes where a folder of OGB's says it."""
    from unifews.datasets.ogb import is_ogb, raw_edges

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


def is_compressed(path: Path) -> bool:
    """Whether a file holds rows rather than a list of edges."""
    if path.is_dir():
        return True
    names = set(members(path)) if kind_of(path) == ".npz" else set()
    return {"indptr", "indices"} <= names or {"format", "shape"} <= names


def _check_room(work: Work, files: Sequence[Path], undirected: bool, ids: bool) -> None:
    """Room on the disk, by what the files seem to hold; it is counted exactly later on."""
    edges = unpacked = 0
    for file in files:
        if kind_of(file) in TABLES:
            edges += estimate(file)
        elif kind_of(file) == ".npy":
            edges += max(open_array(file).shape, default=0)
        else:
            shapes = [shape_of(file, name) for name in members(file) if name in ("edge_index", "row", "col")]
            edges += max((max(shape, default=0) for shape, _ in shapes), default=0)
            unpacked += sum(size for _, size in shapes)
    unpacked += ids * edges * _PER_ID_EDGE
    work.check_disk(disk_needed(edges, 0, False, undirected) + unpacked, f"converting about {edges:,} edges")
