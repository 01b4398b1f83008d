"""Helpers of methods that choose edges and weights: how many are kept, the largest scores, both directions of an edge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unifews.core import csr
from unifews.core.checks import check_sparsity
from unifews.core.graph import Graph
from unifews.errors import InputError
from unifews.methods.registry import Card

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCE = 0.01
"""Largest difference between the sparsity requested and the one achieved that gets no note."""
PAIRED = "both directions of an edge are removed together"
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


def edge_groups(graph: Graph) -> tuple[NDArray[np.int64], int]:
    """Edges that are kept or removed together, as a number for each edge, int64 [m], and how many groups there are.

    On an undirected graph both directions of an edge, so that what is left is undirected too.
    """
    if not graph.is_symmetric:
        return np.arange(graph.num_edges), graph.num_edges
    group, ends = undirected_edges(graph.indices, csr.targets(graph.indptr), graph.num_nodes)
    return group, ends.shape[1]


def keep_best(
    graph: Graph, score: NDArray[np.float64], sparsity: float, rng: np.random.Generator, *, per_target: bool = False
) -> NDArray[np.bool_]:
    """The edges of the largest scores [m], ties broken at random; bool [m].

    `per_target`: every node first keeps its own largest edge, then its second largest, and so on. An undirected edge is kept
    for the better of its two directions.
    """
    group, groups = edge_groups(graph)
    noise = rng.random(groups)[group]
    place = np.lexsort((noise, -score, rank_in_target(graph, score))) if per_target else np.lexsort((noise, -score))
    first = np.full(groups, graph.num_edges)
    np.minimum.at(first, group[place], np.arange(graph.num_edges))  # of each group, the place of its better edge
    chosen = np.zeros(groups, dtype=np.bool_)
    chosen[np.argsort(first)[: num_kept(groups, sparsity)]] = True
    return chosen[group]


def rank_in_target(graph: Graph, score: NDArray[np.float64]) -> NDArray[np.int64]:
    """0 for the edge of the largest score [m] into each node, 1 for the second, …; int64 [m]."""
    target = csr.targets(graph.indptr)
    order = np.lexsort((-score, target))
    rank = np.empty(graph.num_edges, dtype=np.int64)
    rank[order] = np.arange(graph.num_edges) - graph.indptr[target]
    return rank


def with_reverses(graph: Graph, keep: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """On an undirected graph, edges that are kept in either direction; bool [m]."""
    group, groups = edge_groups(graph)
    chosen = np.zeros(groups, dtype=np.bool_)
    chosen[group[keep]] = True
    return chosen[group]


def draw_different(odds: NDArray[np.float64], wanted: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], int]:
    """How often each was drawn until `wanted` different ones were, int64 [odds], and the number of draws.

    All of them are taken once, in 0 draws: drawing the last one by chance could take very long.
    """
    if wanted >= len(odds):
        return np.ones(len(odds), dtype=np.int64), 0
    if not wanted:
        return np.zeros(len(odds), dtype=np.int64), 0
    edges, drawn, need = np.cumsum(odds), np.empty(0, dtype=np.int64), _draws(odds, wanted)
    while True:
        more = np.searchsorted(edges, rng.random(need) * edges[-1], side="right")
        drawn = np.concatenate([drawn, np.minimum(more, len(odds) - 1)])
        first = np.sort(np.unique(drawn, return_index=True)[1])
        if len(first) >= wanted:
            draws = int(first[wanted - 1]) + 1
            return np.bincount(drawn[:draws], minlength=len(odds)), draws
        need = len(drawn)


def _draws(odds: NDArray[np.float64], wanted: int) -> int:
    """Draws after which this many different ones are expected: Σ 1 - (1 - p)^Q = wanted."""
    low, high = 0.0, float(len(odds))
    log = np.log1p(-np.minimum(odds, 1 - 1e-12))
    while -np.expm1(high * log).sum() < wanted:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if -np.expm1(middle * log).sum() < wanted else (low, middle)
    return int(high) + 1


def sampled(
    card: Card, odds: NDArray[np.float64], group: NDArray[np.int64], sparsity: float, factors: bool, rng: np.random.Generator
) -> tuple[NDArray[np.bool_], NDArray[np.float32] | None, tuple[str, ...]]:
    """Edges drawn with replacement with these odds: kept, factors that make the sample unbiased, count_e / (Q·p_e), and notes.

    `odds` [pairs] of undirected edges, `group` [m] the pair of each edge.
    """
    chance = odds / odds.sum()
    counts, draws = draw_different(chance, num_kept(len(odds), sparsity), rng)
    chosen = (counts > 0)[group]
    achieved = 1 - float(chosen.mean()) if len(chosen) else sparsity
    notes = missed(card, sparsity, achieved, PAIRED)
    if not factors or not draws:
        return chosen, None, notes
    return chosen, (counts / (draws * chance)).astype(np.float32)[group], notes


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
