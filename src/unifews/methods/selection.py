"""Helpers of methods that choose edges and weights: how many are kept, the largest scores, both directions of an edge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.checks import check_sparsity
from unifews.core.graph import Graph
from unifews.errors import InputError
from unifews.methods.registry import Card

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCE = 0.01
"""Largest difference between the sparsity requested and the one achieved that gets no note."""
_NOISE = 1e-5  # on factors that start at 1, so that ties are not broken by the order of the edges


def missed(card: Card, requested: float | None, achieved: float, why: str) -> tuple[str, ...]:
    """A note where the requested sparsity was not met."""
    if requested is None or abs(achieved - requested) <= TOLERANCE:
        return ()
    return (f"{card.name} removed {achieved:.1%} instead of the {requested:.1%} asked for: {why}",)


def amount(graph: Graph, sparsity: float | None, keep: int | None) -> float:
    """The fraction of edges to remove, from one of the two ways to state it."""
    if (sparsity is None) == (keep is None):
        raise InputError("give one of `sparsity` (a fraction to remove) and `keep` (a number of edges).")
    if keep is None:
        assert sparsity is not None
        return check_sparsity("sparsity", sparsity)
    if not 0 <= keep <= graph.num_edges:
        raise InputError(f"`keep` is a number of edges from 0 to {graph.num_edges:,}; got {keep!r}.")
    return 1 - keep / graph.num_edges if graph.num_edges else 0.0


def num_kept(count: int, sparsity: float) -> int:
    """How many of `count` entries are kept."""
    return count - round(sparsity * count)


def undirected_edges(
    sender: NDArray[Any], receiver: NDArray[Any], num_nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The undirected edge that each edge is a direction of, int64 [m], and the ends of those, int64 [2, pairs]."""
    low, high = np.minimum(sender, receiver).astype(np.int64), np.maximum(sender, receiver).astype(np.int64)
    found, group = np.unique(low * num_nodes + high, return_inverse=True)
    return group.reshape(-1), np.stack([found // num_nodes, found % num_nodes])


def keep_largest(scores: Sequence[Tensor], sparsity: float) -> list[Tensor]:
    """Masks of several matrices that together remove this fraction of the entries, those of the smallest scores."""
    import torch

    from unifews.nn.linear import largest

    flat = torch.cat([score.detach().flatten() for score in scores])
    return split_like(largest(flat, num_kept(len(flat), sparsity)), scores)


def split_like(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """One vector over the entries of several matrices, as those matrices."""
    import torch

    parts = torch.split(flat, [matrix.numel() for matrix in like])
    return [part.view_as(matrix) for part, matrix in zip(parts, like, strict=True)]


def noisy_ones(rng: np.random.Generator, shape: Sequence[int]) -> Tensor:
    """Initial values of learnt factors, float32."""
    import torch

    return torch.from_numpy((1 + _NOISE * rng.standard_normal(tuple(shape))).astype(np.float32))
