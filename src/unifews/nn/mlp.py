"""The classifier on top of a propagated embedding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn

from unifews.core.trace import LayerTrace
from unifews.errors import InputError
from unifews.nn.linear import PrunedLinear
from unifews.nn.ops.dropout import dropout


class Mlp(nn.Module):
    """(x - mean) · scale → [Linear → ReLU → BatchNorm → Dropout]* → Linear.

    The standardisation belongs to the model: what was fitted on the training rows is what later rows go through.
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
        """Fit the shift and the scale on these rows: every column to unit spread, or all of them by one common scale.

        One scale is right for principal coordinates: their spread is their importance, and evening it out would raise the
        noise of the last axes to the level of the first.
        """
        # Squares leave float32 long before the values do (an identity skip doubles them at every hop), so they are taken of
        # values near 1; a power of two changes no digit.
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
        """What passing this many rows through costs."""
        return tuple(
            LayerTrace(i, layer.weight.numel(), layer.kept, rows * layer.kept, rows * layer.weight.numel())
            for i, layer in enumerate(self.linears())
        )
