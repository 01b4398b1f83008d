"""Datasets through torch_geometric's own classes and downloads; torch is imported only when one is fetched."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from errno import ENOSPC
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from unifews.core.graph import Graph
from unifews.datasets.dataset import About, Dataset
from unifews.datasets.download import check_reachable
from unifews.datasets.registry import Pyg
from unifews.datasets.source import Unavailable
from unifews.datasets.splits import Split
from unifews.resources import StageProgress

_STALL = 30.0  # seconds without a byte before a download counts as lost; PyG itself would wait for ever


def fetch_pyg(pyg: Pyg, name: str, place: Path, progress: StageProgress | None = None) -> Dataset:
    """The dataset as PyG downloads and processes it, into the folder `place`."""
    check_reachable(pyg.site)
    try:
        import torch_geometric.datasets as datasets
    except ImportError as error:
        raise Unavailable(f"PyG cannot be imported ({error}); pip install torch_geometric") from error
    if progress is not None:
        progress(f"PyG fetches {name}", 0, 1)
    try:
        with _quiet_and_bounded():
            data = getattr(datasets, pyg.kind)(str(place), **dict(pyg.arguments))[0]
    except MemoryError:
        raise
    except Exception as error:  # whatever a download, an archive or a parser may raise
        if isinstance(error, OSError) and error.errno == ENOSPC:
            raise
        reason = " ".join(str(error).split())[:200]
        raise Unavailable(f"{pyg.kind} failed ({type(error).__name__}: {reason})") from error
    if progress is not None:
        progress(f"PyG fetches {name}", 1, 1)
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
    """PyG tells stderr what it does and opens connections without a time limit."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_STALL)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        socket.setdefaulttimeout(before)
