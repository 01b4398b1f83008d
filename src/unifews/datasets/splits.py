"""Train, validation and test nodes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unifews.errors import InputError, ShapeError

Nodes = NDArray[np.int64]


class Split(NamedTuple):
    """Three disjoint sets of nodes, each a sorted int64 vector."""

    train: Nodes
    val: Nodes
    test: Nodes

    @classmethod
    def of(cls, train: ArrayLike, val: ArrayLike, test: ArrayLike, num_nodes: int) -> Split:
        """Checked sets: node numbers or boolean masks [n], inside the graph, no node twice, none of the sets empty."""
        sets = [_nodes(part, name, num_nodes) for name, part in zip(cls._fields, (train, val, test), strict=True)]
        for i, name in enumerate(cls._fields):
            for other, part in zip(cls._fields[:i], sets[:i], strict=False):
                shared = np.intersect1d(part, sets[i])
                if len(shared):
                    raise InputError(
                        f"the split overlaps: {len(shared):,} nodes, first {shared[0]}, are in both {other} and {name}."
                    )
        return cls(*sets)


def _nodes(values: ArrayLike, name: str, num_nodes: int) -> Nodes:
    array: NDArray[Any] = np.asarray(values)
    if array.ndim != 1:
        raise ShapeError(f"the {name} set has shape {list(array.shape)}; it is a vector of node numbers or a mask [n].")
    if array.dtype == bool:
        if len(array) != num_nodes:
            raise ShapeError(f"the {name} mask has {len(array):,} values, but the graph has {num_nodes:,} nodes.")
        array = np.flatnonzero(array)
    if not len(array):
        raise InputError(f"the {name} set is empty; every split needs training, validation and test nodes.")
    if array.dtype.kind not in "iu":
        raise InputError(f"the {name} set holds {array.dtype.name} values; it is a vector of node numbers or a mask [n].")
    nodes = np.unique(array.astype(np.int64))
    if nodes[0] < 0 or nodes[-1] >= num_nodes:
        wrong = nodes[0] if nodes[0] < 0 else nodes[-1]
        raise InputError(f"the {name} set names node {wrong}, but nodes are numbered 0 to {num_nodes - 1}.")
    if len(nodes) != len(array):
        raise InputError(f"the {name} set names {len(array) - len(nodes):,} nodes more than once.")
    return nodes


def split_stratified(y: ArrayLike, fractions: tuple[float, float, float] = (0.5, 0.25, 0.25), seed: int = 907) -> Split:
    """Three disjoint sets of nodes, each with the classes in the proportions of `y`: 50/25/25.

    Shapes: `y` integers [n], -1 = unlabelled and in no set. The sets are sorted int64 vectors. A class of k nodes gives
    round(k·(f₁+…+fᵢ)) of them to the first i sets, so every class is within one node of its share in each.
    """
    labels: NDArray[Any] = np.asarray(y)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ShapeError(f"`y` is a vector of class numbers; got {labels.dtype.name} {list(labels.shape)}.")
    if len(fractions) != 3 or min(fractions) < 0 or not 0 < sum(fractions) <= 1 + 1e-9:
        raise InputError(f"`fractions` are three numbers, at least 0, of sum at most 1; got {fractions}.")
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(np.flatnonzero(labels >= 0))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    size = np.bincount(labels[by_class])
    start = np.repeat(np.cumsum(size) - size, size)
    # Position i of a class of k stands at (i + 1/2) / k of the way, which the cumulated fractions cut in three.
    position = (np.arange(len(by_class)) - start + 0.5) / np.repeat(size, size)
    part = np.searchsorted(np.cumsum(fractions) + 1e-9, position)
    train, val, test = (np.sort(by_class[part == i]) for i in range(3))
    return Split(train, val, test)
