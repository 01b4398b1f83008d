"""What the benchmarks share: their real graphs, a small generated one, and the option --scale.

Real graphs are .npz files in the folder UNIFEWS_DATA names, or in ../shared/data beside the project.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unifews.core.graph import Graph
from unifews.datasets.dataset import Dataset
from unifews.datasets.gencat import gencat
from unifews.datasets.load import load_dataset
from unifews.datasets.powerlaw import powerlaw
from unifews.io.graphs import read_graph, read_matrix

if TYPE_CHECKING:
    from torch import Tensor

SMOKE = "smoke"  # --scale smoke, and the generated graph that it runs on
GENERATED = (169_343, 2_315_598)  # nodes and directed edges of the generated substitute for arxiv
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


def arguments(parser: argparse.ArgumentParser, **smoke: Any) -> argparse.Namespace:
    """The options given; `smoke`: the defaults of --scale smoke, which shows that a script runs and measures nothing."""
    parser.add_argument("--scale", choices=["full", SMOKE], default="full", help="smoke: a generated graph of 200 nodes")
    options = parser.parse_args()
    if options.scale == SMOKE:
        parser.set_defaults(**smoke)
        options = parser.parse_args()
    return options


def dataset(name: str) -> Dataset:
    """By name, as `unifews.load_dataset` has it; real graphs beside the project are found without UNIFEWS_DATA."""
    if name == SMOKE:
        return gencat(200, 800, features=24, classes=3, seed=7, name=SMOKE)
    if "UNIFEWS_DATA" not in os.environ and folder() is not None:
        os.environ["UNIFEWS_DATA"] = str(folder())
    return load_dataset(name)


def load(name: str) -> Real:
    if name == SMOKE:
        made = dataset(name)
        return Real(name, made.graph, made.x, made.y)
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


def arxiv(scale: str) -> tuple[str, Tensor, Tensor, Tensor]:
    """Name, features, labels and edges [2, m] of an arxiv-sized graph, or of a small one."""
    import torch  # here: scripts that propagate do without it

    name = SMOKE if scale == SMOKE else "arxiv-sub"
    if name == SMOKE or folder() is not None:
        found: Any = load(name)
    else:
        name, found = "a generated graph of arxiv's size", powerlaw(*GENERATED, num_features=128, num_classes=40, seed=0)
    receiver = torch.repeat_interleave(torch.tensor(found.graph.degree))
    edges = torch.stack([torch.tensor(found.graph.indices).long(), receiver])
    return name, torch.tensor(found.x), torch.tensor(found.y).long(), edges
