"""GCN: T (x Wᵀ) + b, or (T x) Wᵀ + b where that is narrower."""

from __future__ import annotations

from dataclasses import dataclass
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
from unifews.nn.products import Multiplied, Product
from unifews.nn.products.diffusion import column_sizes, off_diagonal, sample_senders


@prunes(GCNConv)
class PrunedGCNConv(PrunedConv, GCNConv):  # type: ignore[misc]
    """Weights first, as in PyG; unpruned, on the side of the weights with fewer columns (equal up to rounding)."""

    @classmethod
    def supports(cls, conv: MessagePassing) -> bool:
        return sums(conv)

    @property
    def width(self) -> int:
        return self.seen_width or self.narrower(self.lin.weight)

    @property
    def is_normalized(self) -> bool:
        return bool(self.normalize)

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
        session = self.session
        fits = x.layout == torch.strided and edges.loop is not None and not edges.learnt
        return fits and session.pruning.prunes_edges and not session.kind.by_edge and x.shape[1] < self.lin.weight.shape[0]

    def _widened(self, x: Tensor, edges: LayerEdges) -> Tensor:
        """T (x Wᵀ) + b, of which only the columns that are sent are computed for all nodes."""
        began, weight = perf_counter(), self.lin.prepare(x)
        return self.multiply(WidenedProduct(x, weight, self.bias, edges, sparse_weight=self.lin.is_pruned), began)


@dataclass(frozen=True, eq=False)
class WidenedProduct(Product):
    """(diag(loop) x) Wᵀ + b, plus the sum over neighbours of the columns of x Wᵀ that are sent, the only ones T is applied to.

    For kinds that select columns only.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    edges: LayerEdges
    alive: None = None
    sparse_weight: bool = False

    @property
    def width(self) -> int:
        return len(self.weight)

    def column_sizes(self) -> Tensor:
        return column_sizes(self._linear(sample_senders(self.x.detach()), self.weight.detach()), self.edges)

    def edge_sizes(self) -> Tensor:
        raise NotImplementedError("decisions by edge are taken on `DiffusionProduct`")

    def mean_values(self, size: Tensor) -> Tensor:
        return self.edge_sizes()

    def entry_sizes(self, lanes: int) -> Tensor:
        return self.edge_sizes()

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return times(x, weight, bias, sparse_weight=self.sparse_weight)

    def _in_columns(self, columns: Tensor | None) -> Tensor:
        assert self.edges.loop is not None
        loop = self.edges.loop[:, None]
        out = self._linear(cached(self.x, self.edges, "own", lambda: loop * self.x)[0], self.weight, self.bias)
        columns = torch.arange(self.width) if columns is None else columns
        if len(columns):
            out = out.index_add_(1, columns, off_diagonal(self._linear(self.x, self.weight[columns]), self.edges))
        return out

    def _renormalized(self, out: Tensor, columns: Tensor) -> Tensor:
        assert self.edges.loop is not None
        share = (self.edges.has_loop - self.edges.loop)[:, None]
        rest = cached(self.x, self.edges, "rest", lambda: share * self.x)[0]
        return out.index_add_(1, columns, self._linear(rest, self.weight[columns]))

    def _along(self, keep: Tensor) -> Tensor:
        return self.edge_sizes()

    def _at_least(self, delta: float, lanes: int) -> Multiplied:
        raise NotImplementedError("decisions by edge are taken on `DiffusionProduct`")


def sums(conv: MessagePassing) -> bool:
    """Whether the layer aggregates its messages by a sum, as the kernels do."""
    return conv.aggr in ("add", "sum") and conv.node_dim in (-2, 0) and not conv.explain
