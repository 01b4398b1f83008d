"""GCN: T (x Wᵀ) + b, or (T x) Wᵀ + b where that is narrower."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary
from torch_geometric.nn import GCNConv, MessagePassing

from unifews.errors import InputError
from unifews.nn.convs.base import PrunedConv, cached, prunes
from unifews.nn.convs.checks import check_edges, check_features, is_pair
from unifews.nn.edges import LayerEdges, Norm
from unifews.nn.ops.linear import Mask, times
from unifews.nn.products import Multiplied, Product
from unifews.nn.products.diffusion import column_sizes, diffused, sample_senders

_splits = WeakTensorKeyDictionary()


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
        if self._sums_first(x, edges):
            return self._summed_first(x, edges)
        out = self.diffuse(self.lin(x), edges, x)
        return out if self.bias is None else out.add_(self.bias)  # a new tensor, which no gradient needs

    def _sums_first(self, x: Tensor, edges: LayerEdges) -> bool:
        """Whether T x is computed once for all passes: x is the same as in the pass before, and its weights are sparse."""
        session, lin = self.session, self.lin
        sends_columns = session.pruning.prunes_edges and not session.kind.by_edge and edges.loop is not None
        if not sends_columns or edges.learnt or x.layout != torch.strided or x.device.type != "cpu":
            return False
        sparse = lin.is_pruned and not lin.feedback and lin.due is None and x.shape[1] <= len(lin.weight)
        return cached(x, edges, "seen", lambda: x.new_zeros(0))[1] and sparse

    def _summed_first(self, x: Tensor, edges: LayerEdges) -> Tensor:
        began, weight = perf_counter(), self.lin.prepare(x)
        return self.multiply(SumFirst(x, weight, self.lin.keep, self.bias, edges), began)


@dataclass(frozen=True, eq=False)
class SumFirst(Product):
    """T (x Wᵀ) + b of an x that does not change between passes, for kinds that select columns only.

    A column that is sent is (T x) Wᵀ, any other one (diag(loop) x) Wᵀ, or x Wᵀ renormalised. Both operands are computed once:

        [T x | x] [W ⊙ sent | W ⊙ ¬sent]ᵀ

    is one product with a sparse matrix.
    """

    x: Tensor
    weight: Tensor
    keep: Tensor
    """bool, as W: its weights that are not zero."""
    bias: Tensor | None
    edges: LayerEdges
    alive: None = None

    @property
    def width(self) -> int:
        return len(self.weight)

    def column_sizes(self) -> Tensor:
        return column_sizes(times(sample_senders(self.x.detach()), self.weight.detach()), self.edges)

    def edge_sizes(self) -> Tensor:
        raise NotImplementedError("decisions by edge are taken on `DiffusionProduct`")

    def mean_values(self, size: Tensor) -> Tensor:
        return self.edge_sizes()

    def entry_sizes(self, lanes: int) -> Tensor:
        return self.edge_sizes()

    def _in_columns(self, columns: Tensor | None) -> Tensor:
        assert self.edges.loop is not None
        loop = self.edges.loop[:, None]
        return self._of("loops", lambda: loop * self.x, columns)

    def _in_columns_renormalized(self, columns: Tensor) -> Tensor:
        there = self.edges.has_loop
        return self._of("whole", lambda: self.x if bool(there.all()) else there[:, None] * self.x, columns)

    def _of(self, name: str, make: Callable[[], Tensor], columns: Tensor | None) -> Tensor:
        """The product in which `make` is the operand of the columns that are not sent."""
        operand, _ = cached(self.x, self.edges, name, lambda: torch.cat([diffused(self.x, self.edges), make()], dim=1))
        sent = torch.zeros(self.width, 1, dtype=torch.bool)
        sent = ~sent if columns is None else sent.index_fill_(0, columns, True)
        weight = torch.cat([self.weight * sent, self.weight * ~sent], dim=1)
        return times(operand, weight, self.bias, sparse_weight=True, mask=Mask(_split(self.keep, sent), 1, sampled=True))

    def _along(self, keep: Tensor) -> Tensor:
        return self.edge_sizes()

    def _at_least(self, delta: float, lanes: int) -> Multiplied:
        raise NotImplementedError("decisions by edge are taken on `DiffusionProduct`")


def _split(keep: Tensor, sent: Tensor) -> Tensor:
    """bool [outputs, 2 · inputs]: keep at the outputs that are sent, beside keep at the others; cached, for its pattern."""
    found = _splits.get(keep)  # type: ignore[no-untyped-call]
    if found is None or found[0] != keep._version or not torch.equal(found[1], sent):
        found = _splits[keep] = keep._version, sent, torch.cat([keep & sent, keep & ~sent], dim=1)
    made: Tensor = found[2]
    return made


def sums(conv: MessagePassing) -> bool:
    """Whether the layer aggregates its messages by a sum, as the kernels do."""
    return conv.aggr in ("add", "sum") and conv.node_dim in (-2, 0) and not conv.explain
