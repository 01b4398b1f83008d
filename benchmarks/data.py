"""The real graphs of the benchmarks: .npz files in the folder UNIFEWS_DATA names, or in ../shared/data beside the project."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unifews.core.files import read_graph, read_matrix
from unifews.core.graph import Graph

COUNTS = {"cs", "physics"}  # raw word counts, binarised as PyG does


@dataclass(frozen=True)
class Real:
    name: str
    graph: Graph
    x: Any
    y: np.ndarray


def folder() -> Path | None:
    """Where the files are, or None."""
    given = os.environ.get("UNIFEWS_DATA")
    for path in [Path(given)] if given else [Path(__file__).resolve().parents[2] / "shared" / "data"]:
        if path.is_dir():
            return path
    return None


def load(name: str) -> Real:
    where = folder()
    if where is None or not (where / f"{name}.npz").exists():
        raise SystemExit(f"no file {name}.npz: set UNIFEWS_DATA to the folder that holds it.")
    path = where / f"{name}.npz"
    x = read_matrix(path, dense=False)
    if hasattr(x, "tocsr"):
        x = x.tocsr()
        x.data = np.ones_like(x.data, dtype=np.float32) if name in COUNTS else x.data.astype(np.float32)
    else:
        x = np.asarray(x, dtype=np.float32)
    with np.load(path, allow_pickle=False) as file:
        y = file["y"]
    return Real(name, read_graph(path), x, y)
