"""Decoupled models: propagate once, then classify with an MLP head."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unifews.core.graph import Graph
from unifews.core.trace import LayerTrace
from unifews.errors import InputError, ShapeError
from unifews.nn.linear import PrunedLinear
from unifews.nn.ops.dropout import dropout
from unifews.propagation import propagate
from unifews.propagation.result import Propagated


class Mlp(nn.Module):
    """(x - mean) · scale → [Linear → ReLU → BatchNorm → Dropout]* → Linear.

    The standardisation is part of the model: it is fitted on the training rows and applied to all others.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, inputs: int, outputs: int, *, width: int = 512, layers: int = 2, dropout: float = 0.5) -> None:
        super().__init__()
        if layers < 1:
            raise InputError(f"an MLP has at least 1 layer; got layers={layers}.")
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("scale", torch.ones(inputs))
        widths = [inputs, *[width] * (layers - 1), outputs]
        self.layers = nn.ModuleList(PrunedLinear(a, b) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers - 1))
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """Scores [rows, outputs]."""
        x = (x - self.mean) * self.scale
        for layer, norm in zip(self.layers, self.norms, strict=False):
            x = self.drop(norm(layer(x).relu()))
        scores: Tensor = self.layers[-1](x)
        return scores

    def drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout, self.training)

    @torch.no_grad()
    def standardise(self, rows: Tensor, *, per_column: bool = True) -> None:
        """Fit shift and scale on these rows: unit variance per column, or one common scale for all columns.

        One common scale is right for principal components: their variance is their importance, and unit variance would raise
        the noise of the last components to the level of the first.
        """
        # Squares overflow float32 long before the values (an identity skip doubles them at every hop), so they are computed
        # of values near 1; scaling by a power of two is exact.
        exponent = math.frexp(max(abs(float(end)) for end in rows.aminmax()))[1]
        power = 2.0 ** -min(max(exponent, -126), 126)
        rows = rows * power
        variance = rows.var(0, correction=0)
        spread = (variance if per_column else variance.mean().expand_as(variance)).sqrt()
        varies = spread > 1e-6 * spread.max()
        self.mean = rows.mean(0) / power
        self.scale = torch.where(varies, power / torch.where(varies, spread, 1.0), 1.0)

    def linears(self) -> Iterator[PrunedLinear]:
        for layer in self.layers:
            assert isinstance(layer, PrunedLinear)
            yield layer

    def trace(self, rows: int) -> tuple[LayerTrace, ...]:
        """Multiply-adds of a forward pass of this many rows, by layer."""
        return tuple(
            LayerTrace(i, layer.weight.numel(), layer.kept, rows * layer.kept, rows * layer.weight.numel())
            for i, layer in enumerate(self.linears())
        )


Propagator = Callable[..., Propagated]
"""`propagate`, or the corresponding function of another method."""


class DecoupledModel(nn.Module):
    """scores = head(P), P = Σ_l θ_l S^l X pruned as in training.

    `head(rows)` classifies rows that are already propagated; calling the model does both. If the head was trained on principal
    components, `axes` [f, rank] is the PCA basis of the training graph: another graph is propagated in its own basis and its
    embedding then expressed in this one. Likewise `exponent` is the power of two that the training embedding was divided by
    (0 except for an identity skip over many hops): other embeddings are scaled to the same.
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
        """`propagation`: arguments of `by`; None = the head takes the features themselves."""
        super().__init__()
        self.head = head
        # Contiguous, as read from a file: rounding of a product depends on the memory layout of its factors.
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
    """A matrix of numpy, torch or scipy as a dense float32 tensor, without a copy where possible."""
    if isinstance(x, Tensor):
        return x.to_dense().float()
    rows = x.toarray() if hasattr(x, "toarray") else np.asarray(x)
    return torch.from_numpy(np.require(rows, np.float32, ["C", "W"]))
