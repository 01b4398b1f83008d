"""Everything that can be checked of a graph or dataset folder."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from unifews.core import graph_folder
from unifews.core.graph import Graph
from unifews.datasets import folder as datasets
from unifews.errors import FileFormatError, MissingFileError
from unifews.io.ids import check_ids
from unifews.storage.journal import check_finished

_GRAPH = (
    "meta.json: format, version and counts, and the type and length of every array",
    "indptr: from 0 to the number of edges, nowhere decreasing",
    "indices: node numbers, ascending and without copies in each row, no self-loops",
    "checksums of all files",
)
_DATASET = (
    "dataset.json: format, version and counts, and the type and length of every array",
    "features, labels and splits: one row per node, splits disjoint, not empty and labelled",
)


@dataclass(frozen=True)
class Verified:
    """A folder without damage."""

    kind: str
    """"graph" or "dataset"."""
    num_nodes: int
    num_edges: int
    checked: tuple[str, ...]
    """The checks made."""


def verify(path: str | PathLike[str]) -> Verified:
    """Read every file of a graph or dataset folder and check it: checksums, and the invariants that docs/FORMAT.md lists.

    The first damage is a `FileFormatError` that names the file.
    """
    folder = Path(path)
    for noun in ("graph", "dataset"):
        check_finished(folder, noun)
    if not folder.exists():
        raise MissingFileError(f"there is no graph or dataset folder {folder}.")
    if datasets.KIND.describes(folder):
        dataset = datasets.open_dataset(folder, verify=True)
        arrays = ", ".join(f"{name}.npy" for name in datasets.KIND.read(folder)["arrays"])
        inside = (f"graph/{what}" for what in (*_GRAPH, *_weights(dataset.graph)))
        return _verified(folder, "dataset", dataset.graph, (*_DATASET, f"checksums of {arrays}", *inside))
    if graph_folder.KIND.describes(folder):
        graph = Graph.open(folder, verify=True)
        return _verified(folder, "graph", graph, (*_GRAPH, *_weights(graph)))
    raise FileFormatError(
        f"{folder} is not a graph or dataset folder: its meta.json or dataset.json is missing, damaged or of another format."
    )


def _verified(folder: Path, kind: str, graph: Graph, checked: tuple[str, ...]) -> Verified:
    if check_ids(folder, graph.num_nodes):
        checked = (*checked, "identifiers: one for each node, distinct and in order")
    return Verified(kind, graph.num_nodes, graph.num_edges, checked)


def _weights(graph: Graph) -> list[str]:
    return ["weight: one for each edge, positive and finite"] if graph.is_weighted else []
