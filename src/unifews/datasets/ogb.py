"""OGB's raw files, read without the ogb package.

ogbn_arxiv/                      ogbn_papers100M/
├── raw/                         ├── raw/
│   ├── edge.csv.gz              │   ├── data.npz         edge_index, node_feat, num_nodes_list, …
│   ├── node-feat.csv.gz         │   └── node-label.npz   node_label, nan = unlabelled
│   ├── node-label.csv.gz        └── split/time/…
│   └── num-node-list.csv.gz
└── split/time/{train,valid,test}.csv.gz

Tables are read a block of lines at a time, and no line is longer than a megabyte. The arrays of an archive are mapped
in place, so that the 57 GB of features of papers100M are never in memory at once.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.graph import Graph
from unifews.datasets.dataset import About, Dataset, Split
from unifews.datasets.download import download
from unifews.datasets.registry import RECORDS, Ogb, Record, Unavailable
from unifews.errors import FileFormatError, GraphError, InputError, ShapeError
from unifews.io.convert import convert_files
from unifews.io.text_blocks import blocks, opened
from unifews.resources import StageProgress, report
from unifews.storage.archive import open_member
from unifews.storage.npy import open_array, write_chunked
from unifews.storage.reading import reading

_BYTES = 1 << 24  # of a table, parsed at a time
_ROWS = 1 << 17  # of an array, converted at a time


def find_ogb(ogb: Ogb, folders: Iterable[Path]) -> Path | None:
    """The raw files of a dataset in one of `folders`, under any name the ogb package or an unzipped download gives them."""
    names = (ogb.folder, ogb.folder.replace("_", "-"), ogb.unzipped)
    return next((folder / name for folder in folders for name in names if is_ogb(folder / name)), None)


def is_ogb(folder: Path) -> bool:
    """True for a folder with the raw files of an OGB node dataset."""
    return any((folder / "raw" / name).is_file() for name in ("edge.csv.gz", "data.npz"))


def record_of_folder(folder: Path) -> Record | None:
    """The record whose raw files a folder holds, by the folder's name."""
    name = folder.name.lower().replace("_", "-")
    for record in RECORDS.values():
        if record.ogb and name in {record.ogb.folder.lower().replace("_", "-"), record.ogb.unzipped.lower()}:
            return record
    return None


def read_ogb(folder: Path, name: str, split: str, work: Path, progress: StageProgress | None = None) -> Dataset:
    """The dataset in the raw files of `folder`, with the split kept under split/`split`; its graph is made undirected.

    The graph, and arrays that cannot be mapped in place, are written to the folder `work` and reused by the next call.
    """
    work.mkdir(parents=True, exist_ok=True)
    raw = folder / "raw"
    archive = (raw / "data.npz").is_file()
    n = _num_nodes(raw, work, archive)
    sets = [_table(folder / "split" / split / f"{part}.csv.gz", np.int64)[:, 0] for part in ("train", "valid", "test")]
    y = _labels(open_member(raw / "node-label.npz", "node_label", work) if archive else _table(raw / "node-label.csv.gz", "f8"))
    x = _features(raw, work, n, progress) if archive else _feature_table(raw / "node-feat.csv.gz", n, progress)
    graph = _graph(folder, work, progress)
    about = About(f"OGB files in {folder}", split="stored", convention=f"OGB's split by {split}")
    try:
        return Dataset(name, graph, x, y, (Split.of(sets[0], sets[1], sets[2], n),), about)
    except InputError as error:
        raise FileFormatError(f"{folder} does not hold a whole dataset: {error} Get it again.") from error


def fetch_ogb(ogb: Ogb, place: Path, progress: StageProgress | None = None) -> Path:
    """Download and unpack the raw files into `place`; the folder that holds them."""
    if ogb.huge:
        raise Unavailable(f"there is no folder {ogb.folder}, and the download is too large to start automatically")
    archive = place / "download.zip"
    download(ogb.url, archive, progress)
    _unzip(archive, place / "files")
    archive.unlink()
    return place / "files"


def _unzip(archive: Path, place: Path) -> None:
    """Unpack raw/ and split/ of a download, wherever they are in it, and nothing else."""
    with reading("the download", "a .zip archive"), zipfile.ZipFile(archive) as packed:
        for info in packed.infolist():
            parts = PurePosixPath(info.filename).parts
            if len(parts) >= 3 and parts[1] in ("raw", "split") and ".." not in parts and not info.is_dir():
                target = place.joinpath(*parts[1:])
                target.parent.mkdir(parents=True, exist_ok=True)
                with packed.open(info) as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file)
    if not is_ogb(place):
        raise FileFormatError("the download holds no raw files of an OGB dataset. Load the dataset again.")


# ------------------------------------------------------------------------------------------------------- tables, archives


def _num_nodes(raw: Path, work: Path, archive: bool) -> int:
    if archive:
        counts = open_member(raw / "data.npz", "num_nodes_list", work)
    else:
        counts = _table(raw / "num-node-list.csv.gz", np.int64)
    if counts.size != 1 or counts.ravel()[0] < 1:
        raise FileFormatError(f"{raw} holds {counts.size} graphs; a node dataset is one graph of at least one node.")
    return int(counts.ravel()[0])


def raw_edges(folder: Path) -> tuple[Path, int]:
    """The file with the edges of an OGB folder, its first lines checked, and the number of nodes."""
    raw = folder / "raw"
    file = raw / "data.npz"
    with TemporaryDirectory() as work:  # for arrays that must be unpacked
        if file.is_file():
            return file, _num_nodes(raw, Path(work), archive=True)
        file = raw / "edge.csv.gz"
        head = next(_blocks(file, np.int64), None)
        if head is None:
            raise FileFormatError(f"{file} is empty. Get it again.")
        if head.shape[1] != 2:
            raise FileFormatError(f"the edges in {raw} have {head.shape[1]} columns instead of pairs of nodes.")
        return file, _num_nodes(raw, Path(work), archive=False)


def _graph(folder: Path, work: Path, progress: StageProgress | None) -> Graph:
    if (work / "graph").is_dir():
        return Graph.open(work / "graph")
    file, nodes = raw_edges(folder)
    try:
        return convert_files([file], work / "graph", num_nodes=nodes, progress=progress)
    except (GraphError, ShapeError) as error:
        raise FileFormatError(f"{file} is damaged: {error} Get it again.") from error


def _labels(values: NDArray[Any]) -> NDArray[np.int64]:
    """Class numbers; what is not a number is unlabelled."""
    column = values.reshape(len(values), -1)[:, 0]
    if column.dtype.kind != "f":
        return column.astype(np.int64)
    known = np.isfinite(column)
    return np.where(known, np.where(known, column, 0), -1).astype(np.int64)


def _features(raw: Path, work: Path, num_nodes: int, progress: StageProgress | None) -> NDArray[np.float32]:
    """The map of node_feat, or of its float32 copy in `work` where it has another type."""
    x = open_member(raw / "data.npz", "node_feat", work)
    if x.ndim != 2 or len(x) != num_nodes:
        raise FileFormatError(f"{raw / 'data.npz'} has features {list(x.shape)} for {num_nodes:,} nodes. Get it again.")
    if x.dtype == np.float32 and x.flags.c_contiguous:
        return x
    copy = work / "x.npy"
    if not copy.is_file():
        write_chunked(copy, x, "<f4", _ROWS, lambda rows: report(progress, "converting features", rows, num_nodes))
    return open_array(copy)


def _feature_table(path: Path, num_nodes: int, progress: StageProgress | None) -> NDArray[np.float32]:
    x, filled = np.empty((0, 0), dtype=np.float32), 0
    for block in _blocks(path, np.float32):
        if filled == 0:
            x = np.empty((num_nodes, block.shape[1]), dtype=np.float32)
        if filled + len(block) > num_nodes or block.shape[1] != x.shape[1]:
            filled = num_nodes + 1
            break
        x[filled : filled + len(block)] = block
        filled += len(block)
        report(progress, f"reading {path.name}", filled, num_nodes)
    if filled != num_nodes:
        raise FileFormatError(f"{path} does not hold one row of features for each of {num_nodes:,} nodes. Get it again.")
    return x


def _table(path: Path, dtype: Any) -> NDArray[Any]:
    """All of a table of numbers, [rows, columns]."""
    blocks = list(_blocks(path, dtype))
    if not blocks:
        raise FileFormatError(f"{path} is empty. Get it again.")
    return np.concatenate(blocks)


def _blocks(path: Path, dtype: Any) -> Iterator[NDArray[Any]]:
    if not path.is_file():
        raise FileFormatError(f"{path} is missing, so the OGB files beside it are incomplete. Get them again.")
    with reading(path, "a table of numbers"), opened(path) as (file, _):
        for block in blocks(path, file, _BYTES):
            if block.data.strip():
                yield np.loadtxt(block.lines, delimiter=",", dtype=dtype, ndmin=2)
