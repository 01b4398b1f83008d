"""The largest connected component of a dataset."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unifews.core.graph import Graph
from unifews.datasets.dataset import Dataset
from unifews.datasets.splits import Split


def largest_component(dataset: Dataset) -> Dataset:
    """The nodes of the largest connected component in their old order, with their edges, features, labels and splits.

    Of components of equal size the one with the smallest node number stays. The direction of edges does not matter.
    """
    from scipy.sparse.csgraph import connected_components

    _, part = connected_components(dataset.graph.to_scipy(), directed=False)
    inside = part == np.argmax(np.bincount(part))
    new = np.cumsum(inside) - 1
    edges = dataset.graph.to_edge_index()
    kept = new[edges[:, inside[edges[0]]]]
    weight = None if dataset.graph.weight is None else dataset.graph.weight[inside[edges[0]]]
    splits = []
    for split in dataset.splits:
        parts = [new[nodes[inside[nodes]]] for nodes in split]
        if all(len(nodes) for nodes in parts):
            splits.append(Split(*parts))
    return replace(
        dataset,
        graph=Graph.from_edge_index(kept, int(inside.sum()), weight),
        x=dataset.x[inside],
        y=dataset.y[inside],
        splits=tuple(splits),
        about=replace(dataset.about, component="largest"),
    )
