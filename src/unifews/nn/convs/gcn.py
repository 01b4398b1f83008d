"""GCN: T (x Wᵀ) + b, or (T x) Wᵀ + b where that is narrower."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import GCNConv, MessagePassing

from unifews.errors import InputError
from unifews.nn.convs.base import PrunedConv, check_edges, check_precision, prunes
from unifews.nn.edges import Edges, Norm


@prunes(GCNConv)
class PrunedGCNConv(PrunedConv, GCNConv):  # type: ignore[misc]
    """Weights first, as PyG; unpruned, on whichever side of the weights there are fewer columns (the same to rounding)."""

    @classmethod
    def supports(cls, conv: MessagePassing) -> bool:
        return sums(conv)

    @property
    def width(self) -> int:
        return self.narrower(self.lin.weight)

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        check_precision(x, "GCNConv")
        if isinstance(x, tuple | list):
            raise InputError("GCNConv takes one matrix of features, not a pair; SAGEConv and GATv2Conv take pairs.")
        check_edges(edge_index, self.path)
        norm: Norm = "gcn" if self.normalize else "sum"
        # As PyG's `gcn_norm`: without edge weights every loop weighs 1, `improved` or not.
        fill = 2.0 if self.improved and (edge_weight is not None or edge_index.layout != torch.strided) else 1.0
        loops = fill if self.add_self_loops else None
        edges = Edges.of(edge_index, edge_weight, len(x), norm, loops=loops, flow=self.flow, dtype=x.dtype)
        first = self.before_weights(x, self.lin.weight)
        out = self.lin(self.held(x, edges)) if first else self.diffuse(self.lin(x), edges)
        return out if self.bias is None else out + self.bias


def sums(conv: MessagePassing) -> bool:
    """Whether the layer adds up its messages, as the kernels do."""
    return conv.aggr in ("add", "sum") and conv.node_dim in (-2, 0) and not conv.explain
