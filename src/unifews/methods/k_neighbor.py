"""K-Neighbor: every node keeps up to k of the edges it receives, drawn at random, or with odds of their weights.

An undirected edge is kept if either of its ends keeps it, so a node of many neighbours may keep more than k. A fraction to
remove instead of k takes the edges in order: one edge for every node, then a second one for each, until enough are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from unifews.core.config import option
from unifews.core.graph import Graph
from unifews.methods.base import EdgeSelection, EdgeSelector
from unifews.methods.registry import method
from unifews.methods.selection import PAIRED, amount, keep_best, missed, rank_in_target, with_reverses


@method(
    "k-neighbor",
    prunes=("edges",),
    backbones=("gcn", "gat", "sage", "gcnii", "gin"),
    paper="Song et al., Not All Neighbors Matter: Understanding the Impact of Graph Sparsification on GNN Pipelines, 2026",
)
@dataclass(frozen=True)
class KNeighbor(EdgeSelector):
    """Without weights, edges into a node are drawn uniformly."""

    stream: ClassVar[int] = 11
    k: int | None = option(None, "edges that a node keeps, in place of a sparsity", ge=0)

    def select(
        self, graph: Graph, *, x: Any = None, sparsity: float | None = None, keep: int | None = None, rng: np.random.Generator
    ) -> EdgeSelection:
        """By `k`, or by a fraction or number of all edges."""
        # The smallest of exponential variables with these rates are drawn with odds of the weights, without replacement.
        rates = np.ones(graph.num_edges) if graph.weight is None else np.abs(graph.weight).astype(np.float64)
        score = -rng.exponential(size=graph.num_edges) / rates
        if self.k is not None and sparsity is None and keep is None:
            return EdgeSelection(with_reverses(graph, rank_in_target(graph, score) < self.k))
        removed = amount(graph, sparsity, keep)
        chosen = keep_best(graph, score, removed, rng, per_target=True)
        achieved = 1 - float(chosen.mean()) if len(chosen) else removed
        return EdgeSelection(chosen, notes=missed(self.card, removed, achieved, PAIRED))
