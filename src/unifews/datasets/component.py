"""The largest connected component of a dataset."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unifews.datasets.dataset import Dataset
from unifews.datasets.splits import Split
from unifews.datasets.undirected import undirected


def largest_component(dataset: Dataset) -> Dataset:
    """The nodes of the largest connected component in their old order, with their edges, features, labels and splits.

    Of components of equal size the one with the smallest node number stays. Directions are ignored in deciding what is
    connected; the graph must be undirected.
    """
    from scipy.sparse.csgraph import connected_components

    _, part = connected_components(dataset.graph.to_scipy(), directed=False)
    inside = part == np.argmax(np.bincount(part))
    new = np.cumsum(inside) - 1
    source, target = dataset.graph.to_edge_index()
    kept = inside[source]
    splits = []
    for split in dataset.splits:
        parts = [new[nodes[inside[nodes]]] for nodes in split]
        if all(len(nodes) for nodes in parts):
            splits.append(Split(*parts))
    return replace(
        dataset,
        graph=undirected(new[source[kept]], new[target[kept]], int(inside.sum())),
        x=dataset.x[inside],
        y=dataset.y[inside],
        splits=tuple(splits),
        about=replace(dataset.about, component="largest"),
    )
