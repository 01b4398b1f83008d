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

from unifews.core.config import option
from unifews.core.graph import Graph
from unifews.methods.base import EdgeSelection, EdgeSelector
from unifews.methods.registry import method
from unifews.methods.selection import amount, sampled, undirected_edges


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
        return EdgeSelection(*sampled(self.card, odds, group, sparsity, self.factors, rng))
