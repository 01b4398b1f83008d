"""Random: edges and weights are removed uniformly at random, once before training: the baseline of any other choice.

Differences from the authors' code: only edges between different nodes are drawn, so self-loops are kept, and every weight
matrix loses the requested fraction, by one mask for the whole run, where they draw a new one every epoch and, in the second
half, the complement of what is meant (right at .5 only).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unifews.core.graph import Graph
from unifews.methods.base import EdgeSelection, EdgeSelector
from unifews.methods.registry import method
from unifews.methods.selection import amount, num_kept

if TYPE_CHECKING:
    from unifews.nn.masked import MaskedModel


@method(
    "random",
    prunes=("edges", "weights"),
    backbones=("gcn", "gat", "sage", "gcnii", "gin"),
    paper="uniform sampling, the baseline of Liao et al., Unifews, ICML 2025",
)
@dataclass(frozen=True)
class Random(EdgeSelector):
    """No settings. Sparsities are met to the entry."""

    stream: ClassVar[int] = 5

    def select(
        self, graph: Graph, *, x: Any = None, sparsity: float | None = None, keep: int | None = None, rng: np.random.Generator
    ) -> EdgeSelection:
        """Uniformly without replacement."""
        return EdgeSelection(_drawn(graph.num_edges, amount(graph, sparsity, keep), rng))

    def mask_weights(self, model: MaskedModel, sparsity: float, rng: np.random.Generator) -> None:
        """Every matrix by itself."""
        import torch

        for weight in model.weights:
            weight.keep.copy_(torch.from_numpy(_drawn(weight.keep.numel(), sparsity, rng)).view_as(weight.keep))


def _drawn(count: int, sparsity: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    chosen = np.zeros(count, dtype=np.bool_)
    chosen[rng.permutation(count)[: num_kept(count, sparsity)]] = True
    return chosen
