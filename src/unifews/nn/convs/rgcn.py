"""Relational GCN: one parameter with a matrix per relation. Its messages take the generic path."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import FastRGCNConv, RGCNConv

from unifews.nn.convs.base import prunes
from unifews.nn.convs.generic import PrunedGeneric
from unifews.nn.linear import PrunedParameter
from unifews.nn.session import Session


class PrunedStack(PrunedParameter):
    """The mask of several matrices [..., inputs, outputs] that multiply the same features from the right, as one [·, outputs].

    The features may be node indices, each of which selects a row of the matrices.
    """

    @property
    def matrix(self) -> Tensor:
        stack = super().matrix
        return stack.reshape(-1, stack.shape[-1])

    def prepare(self, x: Tensor | None) -> Tensor:
        """The masked stack for x [rows, inputs] or node indices [rows] (None: all), after the decision if one is due."""
        stack = super().matrix
        if self.due is not None:
            how, self.due = self.due, None
            norms = self._norms(x)
            stacked = len(self.matrix) // max(len(norms), 1)
            if how.get("threshold") is not None and not how.get(
                "absolute"
            ):  # a multiple of ‖x‖_F / inputs of one matrix, not of the stack
                how = {**how, "threshold": how["threshold"] * math.sqrt(stacked)}
            self.decide(norms.repeat(stacked), **how)
        self.rows = self._owner.in_channels_l if x is None else len(x)
        return self.effective.view(stack.shape)

    @property
    def _owner(self) -> Any:
        return self._of[0]

    def _norms(self, x: Tensor | None) -> Tensor:
        """Norms of the columns that the matrices multiply; a node index is a one in its column."""
        if x is not None and x.is_floating_point():
            return self.norms(x.detach())
        stack = super().matrix
        inputs = int(stack.shape[:-1].numel() if stack.ndim == 2 else self._owner.in_channels_l)
        if x is None:
            return torch.ones(inputs, dtype=stack.dtype, device=stack.device)
        return torch.bincount(x, minlength=inputs).to(stack.dtype).sqrt()


class Relational(PrunedGeneric):
    """out[u] = W_root x[u] + Σ_r Σ_v W_r x[v] / count; the matrices of all relations share one mask, decided from the
    layer's input, with bases and blocks too."""

    def begin_pruning(self, session: Session, path: str) -> None:
        super().begin_pruning(session, path)
        self.weight_mask = PrunedStack(self, "weight")
        self.root_mask = None if self.root is None else PrunedStack(self, "root")

    def end_pruning(self) -> None:
        del self.weight_mask, self.root_mask
        super().end_pruning()

    def forward(self, x: Any, edge_index: Any, edge_type: Tensor | None = None) -> Any:
        self.check(x)
        sent, own = x if isinstance(x, tuple) else (x, x)
        masked = {"weight": self.weight_mask.prepare(sent)}
        if self.root_mask is not None:
            masked["root"] = self.root_mask.prepare(own)
        return self.with_weights(masked, x, edge_index, edge_type)

    @property
    def weight(self) -> Tensor | None:
        return self._masked("weight")

    @property
    def root(self) -> Tensor | None:
        return self._masked("root")

    def _masked(self, name: str) -> Tensor | None:
        """The masked matrix while the layer runs, otherwise the parameter."""
        own: Tensor | None = self._parameters[name]
        return own if self.run is None else self.run.masked.get(name, own)


@prunes(RGCNConv)
class PrunedRGCNConv(Relational, RGCNConv):  # type: ignore[misc]
    """By relation, one product each."""


@prunes(FastRGCNConv)
class PrunedFastRGCNConv(Relational, FastRGCNConv):  # type: ignore[misc]
    """By edge: all relations in one product."""
