"""Graphs and datasets from files larger than memory, written where they will stay and safe to interrupt.

Tables (text, Parquet) are parsed once, into pieces of numbers in the working folder; arrays are read where they are. Both
become chunks of edges for `core.build`, which sorts them into the graph folder.
"""

from __future__ import annotations

import time
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core import build as builder
from unifews.core import store
from unifews.core.atomic import check_place
from unifews.core.build import Progress, Source, disk_needed
from unifews.core.edges import START, TABLES, Edges, check, estimate, kind_of, stream_table, upright
from unifews.core.files import read_graph, unknown_kind
from unifews.core.graph import Graph
from unifews.core.memory import Memory
from unifews.core.npy import open_array
from unifews.core.spill import damaged
from unifews.core.work import Work, working
from unifews.datasets.dataset import Dataset
from unifews.datasets.folder import check_replaceable, fill, open_dataset, save_dataset
from unifews.datasets.member import members, open_member, shape_of
from unifews.datasets.tables import assemble, does_not_fit, read_dataset, read_features, split_files
from unifews.errors import FileFormatError, GraphError, InputError, MissingFileError, ShapeError

File = str | PathLike[str]

_OFTEN = 2.0  # seconds between notes of how far parsing has come
_ARROW = 100_000_000  # bytes that pyarrow takes for itself, where it is needed


def convert_edges(
    edges: File | Sequence[File],
    out: File,
    *,
    undirected: bool = True,
    num_nodes: int | None = None,
    memory: str | int | None = None,
    overwrite: bool = False,
    again: bool = False,
    progress: Progress | None = None,
) -> Graph:
    """The graph of an edge list that may be larger than memory, written as the folder `out` and opened from there.

    - `edges`: .csv, .tsv, .txt (or .gz), .parquet, .npy [2, m] or [m, 2], .npz with edge_index or row and col, or a folder of
      OGB's raw files; several files make one list. What holds rows already (a graph folder, scipy's .npz) is read into memory.
    - `undirected`: every edge in both directions; of two weights of an edge and its reverse, the larger.
    - `num_nodes`: where nodes beyond the largest number have no edges.
    - `memory`: what this process may take in all, such as "2GB"; unless told, two gigabytes more than it has.

    Copies of an edge merge, weights add up, self-loops are dropped, as in `Graph.from_edge_index`, and the arrays are the same.
    It takes 8 bytes of disk per directed edge while it works, 12 with weights, in `<out>.work`. An interrupted call is
    continued by the next one with the same arguments, unless `again` asks to start afresh; `progress(stage, done, total)` hears
    how far it is.
    """
    target = Path(out)
    files, nodes = _resolved(edges)
    num_nodes = nodes if num_nodes is None else num_nodes
    if len(files) == 1 and _is_compressed(files[0]):
        graph = read_graph(files[0], num_nodes=num_nodes)
        (graph.undirected() if undirected else graph).save(target, overwrite=overwrite)
        return Graph.open(target)
    store.check_replaceable(target)
    task = {"task": "convert_edges", "undirected": undirected, "num_nodes": num_nodes}
    with working(target, task, files, again=again) as work:
        if not work.is_placed(target):
            check_place(target, overwrite)
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
    memory: str | int | None = None,
    overwrite: bool = False,
    again: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """The dataset of these files (`read_dataset`) with a graph that may be larger than memory, written as the folder `out`.

    The graph is built as by `convert_edges`, and resumed as there. Features in a `.npy` of float32 are mapped and copied; other
    ones, and labels, are read into memory.
    """
    target, x_file, y_file = Path(out), Path(features), Path(labels)
    files, _ = _resolved(edges)
    check_replaceable(target)
    if len(files) == 1 and _is_compressed(files[0]):
        dataset = read_dataset(files[0], x_file, y_file, split=split, name=name, undirected=undirected)
        save_dataset(dataset, target, overwrite=overwrite)
        return open_dataset(target)
    parts = [] if split is None else [file for file in split_files(split) if file.is_file()]
    for file in (x_file, y_file, *parts):
        if not file.is_file():
            raise MissingFileError(f"there is no file {file}.")
    task = {"task": "convert_dataset", "undirected": undirected, "name": name}
    with working(target, task, [*files, x_file, y_file, *parts], again=again) as work:
        if not work.is_placed(target):
            check_place(target, overwrite)
            x = read_features(x_file)
            place = work.folder / "dataset"
            try:
                built = build_graph(work, files, x.shape[0], undirected, memory, progress)
            except GraphError as error:
                raise does_not_fit(files[0], x.shape[0], str(x_file), error) from error
            with work.writing():
                place.mkdir(exist_ok=True)
                if built.exists():
                    built.rename(place / "graph")
                graph = Graph.open(place / "graph")
                dataset = assemble(graph, builder.added(work, "graph"), x, files, x_file, y_file, split, name)
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
    progress: Progress | None,
) -> Path:
    """The graph of the edges in `files`, as the folder graph in a working folder."""
    if work.get("graph") is not None:
        return work.folder / "graph"
    arrow = any(kind_of(file) == ".parquet" for file in files)
    limits = Memory.of(memory, _ARROW if arrow else 0, "sorting edges")
    if work.get("chunk") is None:
        _check_room(work, files, undirected)
        work.keep(chunk=limits.chunk)
    chunk = int(work.get("chunk"))
    tables = [file for file in files if kind_of(file) in TABLES]
    with work.writing(), work.reading():
        parts: list[Source] = [_Arrays(file, chunk, work.folder) for file in files if file not in tables]
        if tables:
            parts.append(_parse(work, tables, chunk, progress))
        source = parts[0] if len(parts) == 1 else Joined(parts)
    found = next((part.num_nodes for part in parts if isinstance(part, _Arrays) and part.num_nodes is not None), None)
    nodes = found if num_nodes is None else num_nodes
    return builder.build(work, "graph", source, limits, num_nodes=nodes, undirected=undirected, progress=progress)


def _resolved(edges: File | Sequence[File]) -> tuple[list[Path], int | None]:
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
        alone = path.is_dir() or (kind_of(path) == ".npz" and _is_compressed(path))
        if alone and len(paths) > 1:
            raise InputError(f"{path} holds a whole graph, which cannot be joined with other edges. Convert it alone.")
        if not alone and kind_of(path) not in (*TABLES, ".npy", ".npz"):
            raise unknown_kind(path)
    return paths, None


def _is_compressed(path: Path) -> bool:
    """Whether a file holds rows rather than a list of edges."""
    if path.is_dir():
        return True
    names = set(members(path)) if kind_of(path) == ".npz" else set()
    return {"indptr", "indices"} <= names or {"format", "shape"} <= names


def _check_room(work: Work, files: Sequence[Path], undirected: bool) -> None:
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
    work.check_disk(disk_needed(edges, 0, False, undirected) + unpacked, f"converting about {edges:,} edges")


# -------------------------------------------------------------------------------------------------------------- arrays


class _Arrays:
    """Edges in a .npy, or in the arrays of a .npz, a chunk at a time.

    The map is made anew for each chunk: pages of a map that lives on would stay in memory and count.
    """

    def __init__(self, path: Path, chunk: int, work: Path) -> None:
        self._path, self._chunk, self._work = path, chunk, work
        self._names = members(path) if kind_of(path) == ".npz" else []
        self._weight = next((name for name in ("edge_weight", "weight") if name in self._names), None)
        self.weighted = self._weight is not None
        self.num_nodes: int | None = int(self._open("num_nodes")) if "num_nodes" in self._names else None
        source, target, weight = self._columns()
        if source.ndim != 1 or source.shape != target.shape:
            raise ShapeError(f"{path} has edges of shape {list(self._pairs().shape)}; they are [2, m], sources above targets.")
        if weight is not None and weight.shape != source.shape:
            raise ShapeError(f"{path} has {len(weight):,} weights for {len(source):,} edges; each has one.")
        self._size = len(source)

    def __len__(self) -> int:
        return -(-self._size // self._chunk)

    def read(self, chunk: int) -> Edges:
        part = slice(chunk * self._chunk, (chunk + 1) * self._chunk)
        source, target, weight = self._columns()
        copied = Edges(np.array(source[part]), np.array(target[part]), None if weight is None else np.array(weight[part]))
        return check(copied, part.start, str(self._path))

    def sample(self) -> None:
        return None

    def drop(self, chunks: int) -> None:
        """The file is the user's."""

    def _columns(self) -> Edges:
        weight = None if self._weight is None else self._open(self._weight)
        if {"row", "col"} <= set(self._names) and "edge_index" not in self._names:
            return Edges(self._open("row"), self._open("col"), weight)  # PyG's (row, col) is (source, target)
        pairs = self._pairs()
        if pairs.ndim != 2 or len(pairs) != 2:
            raise ShapeError(f"{self._path} has shape {list(pairs.shape)}; edges are [2, m], sources above targets, or [m, 2].")
        return Edges(pairs[0], pairs[1], weight)

    def _pairs(self) -> NDArray[Any]:
        if kind_of(self._path) == ".npy":
            return upright(open_array(self._path))
        if "edge_index" not in self._names:
            raise FileFormatError(
                f"{self._path} holds no edges: it has {', '.join(self._names) or 'nothing'}, and edges are edge_index, or row "
                f"and col."
            )
        return upright(self._open("edge_index"))

    def _open(self, name: str) -> NDArray[Any]:
        return open_member(self._path, name, self._work)


@dataclass(frozen=True)
class Joined:
    """Several sources, one after the other."""

    parts: Sequence[Source]

    def __post_init__(self) -> None:
        if len({part.weighted for part in self.parts}) > 1:
            raise InputError("some of the edge files have weights and others have none; give all of them weights, or none.")

    @property
    def weighted(self) -> bool:
        return self.parts[0].weighted

    @property
    def _starts(self) -> list[int]:
        return [0, *accumulate(len(part) for part in self.parts)]

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, chunk: int) -> Edges:
        which = bisect_right(self._starts, chunk) - 1
        return self.parts[which].read(chunk - self._starts[which])

    def sample(self) -> None:
        return None

    def drop(self, chunks: int) -> None:
        for part, start in zip(self.parts, self._starts, strict=False):
            part.drop(min(max(0, chunks - start), len(part)))


# -------------------------------------------------------------------------------------------------------------- tables


class _Pieces:
    """Edges that were parsed, a file for each chunk."""

    def __init__(self, folder: Path, checksums: list[int], weighted: bool) -> None:
        self._folder, self._checksums, self.weighted = folder, checksums, weighted
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._checksums)

    def read(self, chunk: int) -> Edges:
        file = self._folder / f"{chunk}.edges"
        data = file.read_bytes() if file.exists() else b""
        if not data or zlib.crc32(data) != self._checksums[chunk]:
            raise damaged(file)
        wide = data[0] == 8
        size = (len(data) - 8) // (2 * data[0] + 4 * self.weighted)
        ends = np.frombuffer(data, np.int64 if wide else np.int32, 2 * size, 8).astype(np.int64, copy=False)
        weight = np.frombuffer(data, np.float32, size, len(data) - 4 * size) if self.weighted else None
        return Edges(ends[:size], ends[size:], weight)

    def sample(self) -> None:
        return None

    def drop(self, chunks: int) -> None:
        for chunk in range(self._dropped, chunks):
            (self._folder / f"{chunk}.edges").unlink(missing_ok=True)
        self._dropped = chunks


def _parse(work: Work, tables: Sequence[Path], chunk: int, progress: Progress | None) -> _Pieces:
    """All tables as pieces; those that an earlier call has parsed are taken as they are."""
    state = work.get("parsed") or {"file": 0, "position": list(START), "edges": 0, "weighted": None, "crc": []}
    folder = work.folder / "pieces"
    folder.mkdir(exist_ok=True)
    noted = time.monotonic()
    while state["file"] < len(tables):
        table = tables[state["file"]]
        for edges, position in _chunks(table, chunk, state):
            weighted = edges.weight is not None
            if state["weighted"] not in (None, weighted):
                raise InputError("some of the edge files have weights and others have none; give all of them weights, or none.")
            data = _packed(check(edges, state["edges"], str(table)))
            (folder / f"{len(state['crc'])}.edges").write_bytes(data)
            state["crc"].append(zlib.crc32(data))
            state |= {"position": list(position), "edges": state["edges"] + len(edges.source), "weighted": weighted}
            if progress is not None:
                progress(f"reading {table.name}", *_share_read(table, position))
            if time.monotonic() - noted > _OFTEN:
                work.keep(parsed=state)
                noted = time.monotonic()
        state |= {"file": state["file"] + 1, "position": list(START), "edges": 0}
        work.keep(parsed=state)
    return _Pieces(folder, state["crc"], bool(state["weighted"]))


def _chunks(table: Path, size: int, state: dict[str, Any]) -> Iterator[tuple[Edges, tuple[int, int]]]:
    bytes_or_rows, lines = state["position"]
    return stream_table(table, size, (bytes_or_rows, lines))


def _packed(edges: Edges) -> bytes:
    """Sources, targets and weights one after the other, after the size of a node number."""
    source, target, weight = edges
    wide = len(source) > 0 and max(int(source.max()), int(target.max())) >= 2**31
    ends = [column.astype(np.int64 if wide else np.int32, copy=False).tobytes() for column in (source, target)]
    return b"".join([bytes([8 if wide else 4, *bytes(7)]), *ends, b"" if weight is None else weight.tobytes()])


def _share_read(table: Path, position: tuple[int, int]) -> tuple[int, int]:
    """How much of a table is read; of a packed one only what is unpacked is known."""
    if kind_of(table) == ".parquet":
        return position[0], max(position[0], estimate(table))
    size = table.stat().st_size
    return position[0], max(size * (4 if table.suffix.lower() == ".gz" else 1), position[0])
