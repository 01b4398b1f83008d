"""What there is to know of a dataset before using it: counts, conventions, how degrees and classes are spread."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core import csr
from unifews.core.checks import count, not_finite
from unifews.core.graph import Graph
from unifews.datasets.dataset import Dataset


@dataclass(frozen=True)
class Degrees:
    """Of the edges into a node."""

    least: int
    median: float
    mean: float
    most: int
    isolated: int
    """Nodes without an edge in either direction."""


@dataclass(frozen=True)
class Summary:
    name: str
    source: str
    num_nodes: int
    num_edges: int
    """Directed edges, off the diagonal."""
    undirected: bool
    weighted: bool
    component: str
    degrees: Degrees
    num_features: int
    nonzero: float | None
    """Share of the features that are not 0, where they are stored as compressed rows."""
    num_classes: int
    multilabel: bool
    labelled: int
    """Nodes with a label."""
    class_sizes: tuple[int, ...]
    homophily: float | None
    """Share of the edges between labelled nodes that join two of one class; None with several labels per node."""
    metric: str
    split: str
    convention: str
    """How nodes are split, in words."""
    split_sizes: tuple[int, int, int]
    """Training, validation and test nodes of the first split."""
    stored_splits: int
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarise(dataset: Dataset) -> Summary:
    graph, x, y = dataset.graph, dataset.x, dataset.y
    known = y >= 0 if y.ndim == 1 else np.ones(len(y), dtype=bool)
    train, val, test = dataset.split()
    return Summary(
        name=dataset.name,
        source=dataset.about.source,
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        undirected=graph.is_symmetric,
        weighted=graph.is_weighted,
        component=dataset.about.component,
        degrees=_degrees(graph),
        num_features=dataset.num_features,
        nonzero=None if isinstance(x, np.ndarray) else x.nnz / (x.shape[0] * x.shape[1]),
        num_classes=dataset.num_classes,
        multilabel=dataset.is_multilabel,
        labelled=int(known.sum()),
        class_sizes=tuple(int(size) for size in (np.bincount(y[known]) if y.ndim == 1 else y.sum(axis=0, dtype=np.int64))),
        homophily=None if dataset.is_multilabel else homophily(graph, y),
        metric=dataset.about.metric,
        split=dataset.about.split,
        convention=dataset.about.convention,
        split_sizes=(len(train), len(val), len(test)),
        stored_splits=len(dataset.splits),
        notes=dataset.about.notes + _no_numbers(x),
    )


def _no_numbers(x: Any) -> tuple[str, ...]:
    bad, row = not_finite(x)
    return (f"{count(bad, 'NaN or infinite value')} among the features, the first in row {row:,}",) if bad else ()


def homophily(graph: Graph, y: NDArray[Any]) -> float | None:
    """Share of the edges between labelled nodes that join two of one class; None where there are no such edges."""
    same = counted = 0
    for rows, part in csr.row_chunks(graph.indptr):  # one chunk at a time: a large graph has more edges than memory
        source, target = y[graph.indices[part]], y[csr.targets(graph.indptr, rows)]
        known = (source >= 0) & (target >= 0)
        same += int(((source == target) & known).sum())
        counted += int(known.sum())
    return same / counted if counted else None


def _degrees(graph: Graph) -> Degrees:
    degree = graph.degree
    touched = degree > 0
    if not graph.is_symmetric:
        touched[graph.indices] = True
    return Degrees(
        least=int(degree.min()),
        median=float(np.median(degree)),
        mean=graph.num_edges / graph.num_nodes,
        most=int(degree.max()),
        isolated=graph.num_nodes - int(touched.sum()),
    )
