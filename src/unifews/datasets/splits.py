"""Train, validation and test nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unifews.errors import InputError, ShapeError

Split = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def split_stratified(y: ArrayLike, fractions: tuple[float, float, float] = (0.5, 0.25, 0.25), seed: int = 907) -> Split:
    """Three disjoint sets of nodes, each with the classes in the proportions of `y`  (METHODS 1.6: 50/25/25).

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
    return train, val, test
