"""A decoupled model: propagate once, then classify."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unifews.core.graph import Graph
from unifews.nn.mlp import Mlp
from unifews.propagation import propagate


class Decoupled(nn.Module):
    """scores = head(P), P = Σ_l θ_l S^l X pruned as in training.

    `head(rows)` classifies rows that were propagated already; calling the model does both. Where the head was trained on
    principal coordinates, `axes` [f, rank] are those of the training graph: another graph is propagated on its own axes
    and its embedding then expressed on these.
    """

    axes: Tensor | None

    def __init__(self, head: Mlp, axes: Tensor | None, propagation: dict[str, Any] | None) -> None:
        """`propagation`: arguments of `propagate`; None = the head works on the features themselves."""
        super().__init__()
        self.head = head
        self.register_buffer("axes", axes)
        self.propagation = propagation

    @torch.no_grad()
    def forward(self, x: Tensor, edge_index: Tensor | Graph) -> Tensor:
        """Scores of all nodes [n, classes]; edge_index [2, m] or a `Graph`."""
        rows = x
        if self.propagation is not None:
            graph = edge_index if isinstance(edge_index, Graph) else Graph.from_edge_index(edge_index, num_nodes=x.shape[0])
            rows = torch.as_tensor(propagate(graph, x, **self.propagation).embedding)
            rows = rows if self.axes is None else rows @ self.axes
        scores: Tensor = self.head(rows)
        return scores
