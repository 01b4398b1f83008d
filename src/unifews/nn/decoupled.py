"""A decoupled model: propagate once, then classify."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unifews.core.graph import Graph
from unifews.errors import ShapeError
from unifews.nn.mlp import Mlp
from unifews.propagation import propagate
from unifews.propagation.result import Propagated

Propagator = Callable[..., Propagated]
"""`propagate`, or what another method has in its place."""


class Decoupled(nn.Module):
    """scores = head(P), P = Σ_l θ_l S^l X pruned as in training.

    `head(rows)` classifies rows that were propagated already; calling the model does both. Where the head was trained on
    principal coordinates, `axes` [f, rank] are those of the training graph: another graph is propagated on its own axes
    and its embedding then expressed on these. Likewise `exponent` is the power of two that the training embedding was
    divided by (0 but for an identity skip over many hops): the head expects others in the same unit.
    """

    axes: Tensor | None

    def __init__(
        self,
        head: Mlp,
        axes: Tensor | None,
        propagation: dict[str, Any] | None,
        exponent: int = 0,
        *,
        by: Propagator = propagate,
    ) -> None:
        """`propagation`: arguments of `propagate`, or of another `by`; None = the head works on the features themselves."""
        super().__init__()
        self.head = head
        # In rows, as a file brings them back: a product rounds by how its factors lie in memory.
        self.register_buffer("axes", None if axes is None else axes.contiguous())
        self.propagation, self.by = propagation, by
        self.exponent = exponent

    @torch.no_grad()
    def forward(self, x: Any, edge_index: Any) -> Tensor:
        """Scores of all nodes [n, classes]; x as `propagate` takes it, edge_index [2, m] or a `Graph`."""
        given, wanted = x.shape[-1], len(self.head.mean) if self.axes is None else len(self.axes)
        if given != wanted:
            raise ShapeError(f"x has {given:,} features, but this model was trained on {wanted:,}; give it the same ones.")
        if self.propagation is None:
            rows = dense_rows(x)
        else:
            graph = edge_index if isinstance(edge_index, Graph) else Graph.from_edge_index(edge_index, num_nodes=x.shape[0])
            out = self.by(graph, x, **self.propagation)
            rows = dense_rows(out.embedding)
            if out.exponent != self.exponent:
                rows = rows * math.ldexp(1.0, out.exponent - self.exponent)
            rows = rows if self.axes is None else rows @ self.axes
        scores: Tensor = self.head(rows)
        return scores


def dense_rows(x: Any) -> Tensor:
    """A matrix of numpy, torch or scipy as a dense float32 tensor; a copy only where it has to be one."""
    if isinstance(x, Tensor):
        return x.to_dense().float()
    rows = x.toarray() if hasattr(x, "toarray") else np.asarray(x)
    return torch.from_numpy(np.require(rows, np.float32, ["C", "W"]))
