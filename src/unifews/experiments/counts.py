"""What a dataset holds, as the paper's table of datasets counts it, and how its entries are spread (tab:dataset, fig:proc)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.diffusion import Diffusion
from unifews.datasets.dataset import Dataset
from unifews.datasets.summary import summarise
from unifews.experiments.measure import measure
from unifews.theory.bounds import edge_factors


@measure("counts", cost=2.0)
def counts(data: Dataset) -> dict[str, Any]:
    """Nodes, directed edges off the diagonal and with one self-loop per node, features, classes, parts in percent."""
    told = summarise(data)
    parts = [100 * part / told.labelled for part in told.split_sizes]
    return {
        "nodes": told.num_nodes,
        "edges": told.num_edges,
        "edges_and_loops": told.num_edges + told.num_nodes,
        "features": told.num_features,
        "classes": told.num_classes,
        **dict(zip(("train", "val", "test"), parts, strict=True)),
        "homophily": told.homophily,
    }


@measure("spread", cost=2.0)
def spread(data: Dataset, *, bins: int = 30) -> dict[str, Any]:
    """How degrees, entries of T (r = ½) and first messages ‖T[u,v]·x[v]‖ are spread: densities over logarithmic bins."""
    graph = data.graph
    factors = edge_factors(Diffusion(graph))
    messages = factors * _row_sizes(data.x)[graph.indices]
    return {
        "degrees": histogram(graph.degree[graph.degree > 0], bins),
        "entries of T": histogram(factors, bins),
        "messages": histogram(messages[messages > 0], bins),
        "largest degree": int(graph.degree.max()),
        "mean degree": graph.num_edges / graph.num_nodes,
    }


def _row_sizes(x: Any) -> NDArray[np.float64]:
    """‖x[v]‖, [n]."""
    squares = x.multiply(x).sum(axis=1) if hasattr(x, "multiply") else np.square(x, dtype=np.float64).sum(axis=1)
    return np.sqrt(np.asarray(squares, np.float64).ravel())


def histogram(values: NDArray[Any], bins: int) -> dict[str, list[float]]:
    """Centres of logarithmic bins that are not empty, and the density there."""
    low, high = float(values.min()), float(values.max())
    edges = np.geomspace(low, high * (1 + 1e-9), bins + 1) if high > low else np.array([low * 0.9, low * 1.1])
    count, _ = np.histogram(values, edges)
    there = count > 0
    centre, density = np.sqrt(edges[1:] * edges[:-1]), count / (count.sum() * np.diff(edges))
    return {"x": centre[there].tolist(), "y": density[there].tolist()}
