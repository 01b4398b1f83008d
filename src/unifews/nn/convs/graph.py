"""GraphConv: W₁ Σ_v e[u,v] x[v] + W₂ x[u], or a mean over neighbours."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.nn import GraphConv, MessagePassing

from unifews.nn.convs.base import prunes
from unifews.nn.convs.checks import check_dense, check_edges, check_features, is_pair
from unifews.nn.convs.messages import ByMessages
from unifews.nn.edges import LayerEdges, Norm


@prunes(GraphConv)
class PrunedGraphConv(ByMessages, GraphConv):  # type: ignore[misc]
    """Messages are pruned before the weights, as PyG sends them; unpruned, they are summed on the narrower side of the weights.
    A weighted mean takes PyG's messages."""

    @classmethod
    def supports(cls, conv: MessagePassing) -> bool:
        return conv.aggr in ("mean", "add", "sum") and conv.node_dim in (-2, 0) and not conv.explain

    @property
    def width(self) -> int:
        return self.seen_width or int(self.lin_rel.weight.shape[1])

    def forward(self, x: Any, edge_index: Any, edge_weight: Tensor | None = None, size: Any = None) -> Tensor:
        if is_pair(x) and x[0] is x[1]:
            x = x[0]
        if why := self._why(x, edge_weight, size):
            other: Tensor = self.forward_by_messages(why, x, edge_index, edge_weight, size)
            return other
        sent, own = x if is_pair(x) else (x, x)
        for part, lin in ((sent, self.lin_rel), (own, self.lin_root)):
            check_features(part, lin.weight, self.path)
            check_dense(part, self.path)
        check_edges(edge_index, self.path)
        edges = None if is_pair(x) else self._square(x, edge_index, edge_weight)
        norm, rows = self._norm, len(own)

        def diffuse(y: Tensor) -> Tensor:
            if edges is None:
                return self.diffuse_between(y, rows, edge_index, norm, sent, edge_weight)
            return self.diffuse(y, edges, sent)

        if self.session.pruning.prunes_edges or sent.shape[1] <= len(self.lin_rel.weight):
            self.set_width(sent.shape[1])
            whole = not self.session.pruning.prunes_edges and edges is not None and not edges.learnt
            around = self.diffuse_cached(sent, edges) if whole and edges is not None else diffuse(sent)
            out: Tensor = self.lin_rel(around)
        else:
            self.set_width(len(self.lin_rel.weight))
            out = diffuse(self.lin_rel.times(sent))
            out = out if self.lin_rel.bias is None else out + self.lin_rel.bias
        out = out + self.lin_root(own)
        return out  # noqa: RET504

    @property
    def _norm(self) -> Norm:
        return "mean" if self.aggr == "mean" else "sum"

    def _square(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None) -> LayerEdges:
        return LayerEdges.of(edge_index, edge_weight, len(x), self._norm, flow=self.flow, dtype=x.dtype)

    def _why(self, x: Any, edge_weight: Tensor | None, size: Any) -> str:
        if self.aggr == "mean" and edge_weight is not None:
            return "a mean of weighted messages"
        if is_pair(x):
            return self.why_by_messages(x, size)
        if isinstance(x, Tensor) and x.ndim > 2:
            return "features that are no matrix"
        return "a size" if size is not None else ""
