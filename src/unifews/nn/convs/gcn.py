"""GCN: T (x Wᵀ) + b, or (T x) Wᵀ + b where that is narrower."""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import GCNConv, MessagePassing

from unifews.errors import InputError
from unifews.nn.convs.base import PrunedConv, cached, prunes
from unifews.nn.convs.checks import check_edges, check_features, is_pair
from unifews.nn.edges import LayerEdges, Norm
from unifews.nn.ops.linear import times
from unifews.nn.ops.products import column_sizes, off_diagonal, sample_senders


@prunes(GCNConv)
class PrunedGCNConv(PrunedConv, GCNConv):  # type: ignore[misc]
    """Weights first, as in PyG; unpruned, on the side of the weights with fewer columns (equal up to rounding)."""

    @classmethod
    def supports(cls, conv: MessagePassing) -> bool:
        return sums(conv)

    @property
    def width(self) -> int:
        return self.seen_width or self.narrower(self.lin.weight)

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        if is_pair(x):
            raise InputError("GCNConv takes one matrix of features, not a pair; SAGEConv and GATv2Conv take pairs.")
        check_features(x, self.lin.weight, self.path)
        check_edges(edge_index, self.path)
        norm: Norm = "gcn" if self.normalize else "sum"
        # As PyG's `gcn_norm`: without edge weights every loop weighs 1, `improved` or not.
        fill = 2.0 if self.improved and (edge_weight is not None or edge_index.layout != torch.strided) else 1.0
        loops = fill if self.add_self_loops else None
        edges = LayerEdges.of(edge_index, edge_weight, len(x), norm, loops=loops, flow=self.flow, dtype=x.dtype)
        if self.before_weights(x, self.lin.weight):
            p = self.diffuse_cached(x, edges)
            out: Tensor = self.lin.times(p, self.bias)
            return out
        if self._widens(x, edges):
            return self._widened(x, edges)
        out = self.diffuse(self.lin(x), edges, x)
        return out if self.bias is None else out.add_(self.bias)  # a new tensor, which no gradient needs

    def _widens(self, x: Tensor, edges: LayerEdges) -> bool:
        """Whether columns are sent of a product x Wᵀ that is wider than x."""
        pruning = self.session.pruning
        fits = x.layout == torch.strided and edges.loop is not None and not edges.learnt
        return fits and pruning.prunes_edges and pruning.entries == "unit" and x.shape[1] < self.lin.weight.shape[0]

    def _widened(self, x: Tensor, edges: LayerEdges) -> Tensor:
        """(diag(loop) x) Wᵀ + b, plus the sum over neighbours of the columns that are sent, the only ones T is applied to."""
        began, weight = perf_counter(), self.lin.prepare(x)
        linear = partial(times, sparse_weight=self.lin.is_pruned)
        if self.session.deciding or len(self.columns) != len(weight):
            self.choose_columns(column_sizes(linear(sample_senders(x.detach()), weight.detach()), edges))
        assert edges.loop is not None
        loop = edges.loop[:, None]
        out = linear(cached(x, edges, "own", lambda: loop * x)[0], weight, self.bias)
        columns = self.columns.nonzero().flatten()
        if len(columns):
            out = out.index_add_(1, columns, off_diagonal(linear(x, weight[columns]), edges))
        self.record_columns(edges, out, began)
        return out


def sums(conv: MessagePassing) -> bool:
    """Whether the layer aggregates its messages by a sum, as the kernels do."""
    return conv.aggr in ("add", "sum") and conv.node_dim in (-2, 0) and not conv.explain
