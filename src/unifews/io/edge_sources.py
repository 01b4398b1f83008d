"""Chunks of edges for `external_sort`: from arrays, which are mapped, and from tables, which are parsed once.

Parsed edges are in the working folder, a file for each chunk. Between identifiers, a chunk holds edges between positions in a
run: the distinct identifiers of the chunk, in order, in a file beside it (`ids`, `node_numbering`).
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from unifews.core.checks import check_proportion
from unifews.errors import FileFormatError, InputError, ShapeError
from unifews.io.edge_lists import TABLES, EdgeList, as_weights, check, estimate, kind_of, stream_table, upright
from unifews.io.external_sort import EdgeSource
from unifews.io.id_edge_lists import stream_ids
from unifews.io.ids import as_ids, encoded, factorize
from unifews.io.text_blocks import START, Position
from unifews.resources import StageProgress
from unifews.storage import state_files
from unifews.storage.archive import Archive, open_member
from unifews.storage.journal import Journal
from unifews.storage.npy import open_array, whole_number

# -------------------------------------------------------------------------------------------------------------- arrays


class ArrayEdges(EdgeSource):
    """Edges in a .npy, or in the arrays of a .npz, a chunk at a time.

    The map is created again for each chunk: pages of a map that is kept would count as memory of this process.
    """

    def __init__(self, path: Path, chunk: int, work: Path, ids: bool = False) -> None:
        self._path, self._chunk, self._work, self._ids = path, chunk, work, ids
        self._names = list(Archive(path)) if kind_of(path) == ".npz" else []
        self._weight = next((name for name in ("edge_weight", "weight") if name in self._names), None)
        self.weighted = self._weight is not None
        self.num_nodes: int | None = None
        if "num_nodes" in self._names:
            self.num_nodes = whole_number(self._open("num_nodes"), f"num_nodes in {path}")
        source, target, weight = self._columns()
        if source.ndim != 1 or source.shape != target.shape:
            raise ShapeError(
                f"{path} has edges of shape {list(self._pairs().shape)}; they are [2, m], sources in the first row."
            )
        if weight is not None and weight.shape != source.shape:
            raise ShapeError(f"{path} has weights of shape {list(weight.shape)} for {len(source):,} edges; each has one.")
        self._size = len(source)

    def count_nodes(self) -> int | None:
        """The number of nodes in the file, if it has one; an error if it is out of proportion to the edges."""
        if self.num_nodes is not None:
            check_proportion(self.num_nodes, self._size, str(self._path))
        return self.num_nodes

    def __len__(self) -> int:
        return -(-self._size // self._chunk)

    def read(self, chunk: int) -> EdgeList:
        part = slice(chunk * self._chunk, (chunk + 1) * self._chunk)
        source, target, weight = self._columns()
        copied = EdgeList(np.array(source[part]), np.array(target[part]), None if weight is None else np.array(weight[part]))
        if not self._ids:
            return check(copied, part.start, str(self._path))
        ends = [as_ids(column, part.start, str(self._path)) for column in copied[:2]]
        return EdgeList(ends[0], ends[1], as_weights(copied.weight, part.start, str(self._path)))

    def _columns(self) -> EdgeList:
        weight = None if self._weight is None else self._open(self._weight)
        if {"row", "col"} <= set(self._names) and "edge_index" not in self._names:
            return EdgeList(self._open("row"), self._open("col"), weight)  # PyG's (row, col) is (source, target)
        pairs = self._pairs()
        if pairs.ndim != 2 or len(pairs) != 2:
            raise ShapeError(
                f"{self._path} has shape {list(pairs.shape)}; edges are [2, m], sources in the first row, or [m, 2]."
            )
        return EdgeList(pairs[0], pairs[1], weight)

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


class JoinedEdges(EdgeSource):
    """Several sources, one after the other."""

    def __init__(self, parts: Sequence[EdgeSource]) -> None:
        if len({part.weighted for part in parts}) > 1:
            raise mixed_weights()
        self.parts, self.weighted = parts, parts[0].weighted
        self._starts = [0, *accumulate(len(part) for part in parts)]

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, chunk: int) -> EdgeList:
        which = bisect_right(self._starts, chunk) - 1
        return self.parts[which].read(chunk - self._starts[which])

    def drop(self, chunks: int) -> None:
        for part, start in zip(self.parts, self._starts, strict=False):
            part.drop(min(max(0, chunks - start), len(part)))


# -------------------------------------------------------------------------------------------------------------- tables


class ParsedEdges(EdgeSource):
    """Edges that were parsed, a file for each chunk."""

    def __init__(self, folder: Path, checksums: list[int], weighted: bool) -> None:
        self._folder, self._checksums, self.weighted = folder, checksums, weighted
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._checksums)

    def read(self, chunk: int) -> EdgeList:
        file = self._folder / f"{chunk}.edges"
        data = file.read_bytes() if file.exists() else b""
        if not data or zlib.crc32(data) != self._checksums[chunk]:
            raise state_files.damaged(file)
        wide = data[0] == 8
        size = (len(data) - 8) // (2 * data[0] + 4 * self.weighted)
        ends = np.frombuffer(data, np.int64 if wide else np.int32, 2 * size, 8).astype(np.int64, copy=False)
        weight = np.frombuffer(data, np.float32, size, len(data) - 4 * size) if self.weighted else None
        return EdgeList(ends[:size], ends[size:], weight)

    def drop(self, chunks: int) -> None:
        for chunk in range(self._dropped, chunks):
            (self._folder / f"{chunk}.edges").unlink(missing_ok=True)
        self._dropped = chunks


class IdRun(NamedTuple):
    """The distinct identifiers of a chunk, in order, in a file."""

    text: bool
    size: int
    bytes: int
    crc: int


class _Parsed(TypedDict):
    """How far parsing has come."""

    file: int
    position: list[int]
    """In that file."""
    edges: int
    """Of that file so far."""
    weighted: bool | None
    crc: list[int]
    runs: list[IdRun]


def parse(
    journal: Journal, files: Sequence[Path], chunk: int, progress: StageProgress | None, ids: bool = False
) -> ParsedEdges:
    """The edges of all files as files of chunks, with `ids` each with its run; an earlier call may have parsed some."""
    begin: _Parsed = {"file": 0, "position": list(START), "edges": 0, "weighted": None, "crc": [], "runs": []}
    state: _Parsed = journal.get("parsed") or begin
    folder = journal.folder / "pieces"
    folder.mkdir(exist_ok=True)

    def append(parsed: tuple[int, EdgeList, Position]) -> None:
        number, edges, position = parsed
        if number != state["file"]:
            state["file"], state["edges"] = number, 0
        weighted = edges.weight is not None
        if state["weighted"] not in (None, weighted):
            raise mixed_weights()
        edges = _checked(edges, state["edges"], str(files[number]), ids)
        if ids:
            distinct, edges = factorize(edges)
            state["runs"].append(write_run(folder / f"{len(state['crc'])}.run", distinct))
        data = _packed(edges)
        (folder / f"{len(state['crc'])}.edges").write_bytes(data)
        state["crc"].append(zlib.crc32(data))
        state["position"], state["weighted"] = list(position), weighted
        state["edges"] += len(edges.source)
        if progress is not None:
            progress(f"reading {files[number].name}", *_bytes_read(files[number], position, chunk))

    chunks = _chunks(journal.folder, files, chunk, state["file"], (state["position"][0], state["position"][1]), ids)
    journal.append_resumably("parsed", state, chunks, append)
    return ParsedEdges(folder, state["crc"], bool(state["weighted"]))


def mixed_weights() -> InputError:
    return InputError("some of the edge files have weights and others have none; give all of them weights, or none.")


def write_run(file: Path, distinct: NDArray[Any]) -> IdRun:
    """Write identifiers, distinct and in order."""
    text = distinct.dtype == object
    data = encoded(distinct) if text else distinct.tobytes()
    file.write_bytes(data)
    return IdRun(text, len(distinct), len(data), zlib.crc32(data))


def runs_of(journal: Journal) -> list[IdRun]:
    """The runs of the chunks that were parsed with `ids`."""
    return [IdRun(*run) for run in journal.get("parsed")["runs"]]


def chunks_of(file: Path, size: int, work: Path, ids: bool) -> Iterator[EdgeList]:
    """The edges of a file, checked, about `size` at a time; compressed arrays are unpacked to the folder `work`."""
    before = 0
    for _, edges, _ in _chunks(work, [file], size, 0, START, ids):
        yield _checked(edges, before, str(file), ids)
        before += len(edges.source)


def _chunks(
    work: Path, files: Sequence[Path], size: int, file: int, position: Position, ids: bool
) -> Iterator[tuple[int, EdgeList, Position]]:
    """The chunks of all files from a position in a file on: the number of the file, the edges, the position behind them."""
    for number in range(file, len(files)):
        start = position if number == file else START
        if kind_of(files[number]) in TABLES:
            found = (stream_ids if ids else stream_table)(files[number], size, start)
        else:
            arrays = ArrayEdges(files[number], size, work, ids)
            found = ((arrays.read(chunk), (chunk + 1, 0)) for chunk in range(start[0], max(1, len(arrays))))
        for edges, end in found:
            yield number, edges, end


def _checked(edges: EdgeList, first: int, where: str, ids: bool) -> EdgeList:
    """The edges of a file; its identifiers have been checked."""
    return edges._replace(weight=as_weights(edges.weight, first, where)) if ids else check(edges, first, where)


def _packed(edges: EdgeList) -> bytes:
    """Sources, targets and weights one after the other, after the size of a node number."""
    source, target, weight = edges
    wide = len(source) > 0 and max(int(source.max()), int(target.max())) >= 2**31
    ends = [column.astype(np.int64 if wide else np.int32, copy=False).tobytes() for column in (source, target)]
    return b"".join([bytes([8 if wide else 4, *bytes(7)]), *ends, b"" if weight is None else weight.tobytes()])


def _bytes_read(file: Path, position: Position, chunk: int) -> tuple[int, int]:
    """How much of a file is read, and of how much; of a compressed one only the unpacked bytes read are known."""
    if kind_of(file) == ".parquet":
        return position[0], max(position[0], estimate(file))
    size = file.stat().st_size
    if kind_of(file) not in TABLES:
        return min(position[0] * chunk * 16, size), size
    return position[0], max(size * (4 if file.suffix.lower() == ".gz" else 1), position[0])
