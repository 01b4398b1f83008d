"""Graph folders from edge files larger than memory: resumable, and complete or absent.

Tables (text, Parquet) are parsed once, into chunks of edges in the working folder; arrays are mapped. `external_sort` sorts the
chunks into the graph folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from unifews.core import graph_folder
from unifews.core.graph import Graph
from unifews.errors import GraphError, InputError
from unifews.io import external_sort
from unifews.io.edge_lists import TABLES, estimate, kind_of
from unifews.io.edge_sources import ArrayEdges, JoinedEdges, parse, runs_of, write_run
from unifews.io.external_sort import EdgeSource, disk_needed
from unifews.io.graphs import read_graph
from unifews.io.ids import INTEGERS, TEXT, merge
from unifews.io.node_numbering import number
from unifews.resources import Memory, StageProgress
from unifews.storage.archive import Archive, shape_of
from unifews.storage.atomic import check_place
from unifews.storage.journal import Journal, open_journal
from unifews.storage.npy import open_array

_PER_ID_EDGE = 40  # bytes of disk for an edge between identifiers: positions, identifiers and their numbers
_PARSING = {"text": 16_000_000, ".parquet": 100_000_000}  # bytes of memory that pyarrow takes for its buffers


def convert_files(
    files: Sequence[Path],
    target: Path,
    *,
    undirected: bool = True,
    num_nodes: int | None = None,
    ids: bool = False,
    memory: str | int | None = None,
    overwrite: bool = False,
    restart: bool = False,
    progress: StageProgress | None = None,
) -> Graph:
    """The graph of the edges in `files` as the folder `target`; see `datasets.convert.convert_edges`."""
    check_ids_given(ids, files, num_nodes)
    if len(files) == 1 and is_compressed(files[0]):
        graph = read_graph(files[0], num_nodes=num_nodes)
        (graph.undirected() if undirected else graph).save(target, overwrite=overwrite)
        return Graph.open(target)
    graph_folder.check_replaceable(target)
    task = {"task": "convert_edges", "undirected": undirected, "num_nodes": num_nodes, "ids": ids}
    with open_journal(target, task, files, restart=restart) as journal:
        if not journal.is_published(target):
            check_place(target, overwrite)
            if ids:
                move_ids(journal, build_numbered(journal, files, None, undirected, memory, progress))
            else:
                build_graph(journal, files, num_nodes, undirected, memory, progress)
            journal.publish("graph", target)
        journal.remove()
    return Graph.open(target)


def build_graph(
    journal: Journal,
    files: Sequence[Path],
    num_nodes: int | None,
    undirected: bool,
    memory: str | int | None,
    progress: StageProgress | None,
) -> Path:
    """The graph of the edges in `files`, as the folder graph in a working folder."""
    if journal.get("graph") is not None:
        return journal.folder / "graph"
    limits, chunk = _limits(journal, files, undirected, memory, ids=False)
    tables = [file for file in files if kind_of(file) in TABLES]
    with journal.writing(), journal.reading():
        parts: list[EdgeSource] = [ArrayEdges(file, chunk, journal.folder) for file in files if file not in tables]
        if tables:
            parts.append(parse(journal, tables, chunk, progress))
        source = parts[0] if len(parts) == 1 else JoinedEdges(parts)
    if num_nodes is None:
        with journal.reading():
            stated = (part.count_nodes() for part in parts if isinstance(part, ArrayEdges))
            num_nodes = next((nodes for nodes in stated if nodes is not None), None)
    return external_sort.build(journal, "graph", source, limits, num_nodes=num_nodes, undirected=undirected, progress=progress)


def build_numbered(
    journal: Journal,
    files: Sequence[Path],
    nodes: NDArray[Any] | None,
    undirected: bool,
    memory: str | int | None,
    progress: StageProgress | None,
) -> Path:
    """The graph of edges between identifiers, as the folder graph in a working folder; the file of identifiers is beside it.

    `nodes` are identifiers of nodes that need not occur in the edges.
    """
    if journal.get("graph") is None:
        limits, chunk = _limits(journal, files, undirected, memory, ids=True)
        with journal.writing(), journal.reading():
            edges = parse(journal, files, chunk, progress, ids=True)
            runs = runs_of(journal)
            if nodes is not None:
                runs.append(write_run(journal.folder / "pieces" / f"{len(edges)}.run", merge([nodes])[0]))
            source = number(journal, edges, runs, limits, progress)
            n = source.num_nodes
            if not n:
                raise GraphError(f"{files[0]} holds no edges, so there are no identifiers and no nodes.")
        external_sort.build(journal, "graph", source, limits, num_nodes=n, undirected=undirected, progress=progress)
    return journal.folder / "graph"


def move_ids(journal: Journal, place: Path) -> None:
    """Move the file of identifiers, if there is one and it has not been moved yet, into the folder it belongs to."""
    for name in (INTEGERS, TEXT):
        if (journal.folder / name).exists():
            (journal.folder / name).rename(place / name)


def check_ids_given(ids: bool, files: Sequence[Path], num_nodes: int | None) -> None:
    """An error for arguments that cannot be combined with identifiers."""
    if ids and num_nodes is not None:
        raise InputError(f"num_nodes={num_nodes} cannot be given with ids=True: the nodes are the identifiers that occur.")
    if ids and is_compressed(files[0]):
        raise InputError(f"{files[0]} holds a graph between node numbers; ids=True is for lists of edges.")


def _limits(
    journal: Journal, files: Sequence[Path], undirected: bool, memory: str | int | None, ids: bool
) -> tuple[Memory, int]:
    """How memory is divided, and the number of edges read at a time, which does not change when the work is resumed."""
    formats = {kind_of(file) for file in files}
    if not formats.isdisjoint(TABLES):
        import pyarrow  # noqa: F401  (its 26 MB count as memory in use from here on)
    parsing = max((_PARSING[".parquet" if kind == ".parquet" else "text"] for kind in formats & set(TABLES)), default=0)
    limits = Memory.of(memory, parsing, "sorting edges")
    if journal.get("chunk") is None:
        _check_disk(journal, files, undirected, ids)
        journal.record(chunk=max(1, limits.chunk // (4 if ids else 1)))  # text takes more memory than numbers
    return limits, int(journal.get("chunk"))


def is_compressed(path: Path) -> bool:
    """Whether a file holds compressed rows rather than a list of edges."""
    if path.is_dir():
        return True
    names = set(Archive(path)) if kind_of(path) == ".npz" else set()
    return {"indptr", "indices"} <= names or {"format", "shape"} <= names


def _check_disk(journal: Journal, files: Sequence[Path], undirected: bool, ids: bool) -> None:
    """Check the disk space by an estimate of the edges; it is checked exactly when they are counted."""
    edges = unpacked = 0
    for file in files:
        if kind_of(file) in TABLES:
            edges += estimate(file)
        elif kind_of(file) == ".npy":
            edges += max(open_array(file).shape, default=0)
        else:
            shapes = [shape_of(file, name) for name in Archive(file) if name in ("edge_index", "row", "col")]
            edges += max((max(shape, default=0) for shape, _ in shapes), default=0)
            unpacked += sum(size for _, size in shapes)
    unpacked += ids * edges * _PER_ID_EDGE
    journal.check_disk(disk_needed(edges, 0, False, undirected) + unpacked, f"converting about {edges:,} edges")
