"""DSpar: edges are sampled by degree alone, before training: those between nodes of few neighbours are likely to be kept.

p_e ∝ 1/d(u) + 1/d(v), near the effective resistance of an edge. Q edges are drawn with replacement; those drawn are kept, with
the factor count_e / (Q·p_e), so that the sampled graph is unbiased.

Differences from the authors' code: undirected edges are drawn once, not each direction by itself and then symmetrised, which
would bring back many of those that were removed and bound what can be removed (some 56 % on Cora); and Q is not taken from ε
but is the draw by which as many different edges as requested have been drawn, so that any sparsity is met.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unifews.core.config import option
from unifews.core.graph import Graph
from unifews.methods.base import EdgeSelection, EdgeSelector
from unifews.methods.registry import method
from unifews.methods.selection import amount, missed, num_kept, undirected_edges


@method(
    "dspar",
    prunes=("edges",),
    backbones=("gcn", "gat", "sage", "gcnii", "gin"),
    paper="Liu et al., DSpar: An Embarrassingly Simple Strategy for Efficient GNN Training and Inference, TMLR 2023",
)
@dataclass(frozen=True)
class Dspar(EdgeSelector):
    """Edges sampled by degree. By validation the factors make no difference (docs/adr/0017)."""

    stream: ClassVar[int] = 7
    factors: bool = option(True, "multiply messages by the factors that make the sample unbiased, as in the authors' code")

    def select(
        self, graph: Graph, *, x: Any = None, sparsity: float | None = None, keep: int | None = None, rng: np.random.Generator
    ) -> EdgeSelection:
        """Both directions of an edge together."""
        sparsity, n = amount(graph, sparsity, keep), graph.num_nodes
        group, ends = undirected_edges(graph.indices, np.repeat(np.arange(n), graph.degree), n)
        odds = (1 / np.bincount(ends.ravel(), minlength=n)[ends]).sum(axis=0)
        counts, draws = sample(odds / odds.sum(), num_kept(len(odds), sparsity), rng)
        chosen = (counts > 0)[group]
        notes = missed(self.card, sparsity, 1 - float(chosen.mean()), "both directions of an edge are removed together")
        if not self.factors or not draws:
            return EdgeSelection(chosen, notes=notes)
        return EdgeSelection(chosen, (counts / (draws * odds / odds.sum())).astype(np.float32)[group], notes)


def sample(odds: NDArray[np.float64], wanted: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], int]:
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
