"""GraphSAGE: mean over neighbours through one matrix, the node itself through another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing, SAGEConv

from unifews.nn.convs.base import prunes
from unifews.nn.convs.checks import check_edges, check_features, is_pair
from unifews.nn.convs.messages import ByMessages
from unifews.nn.edges import LayerEdges, Norm


@prunes(SAGEConv)
class PrunedSAGEConv(ByMessages, SAGEConv):  # type: ignore[misc]
    """mean_v(x[v]) W_lᵀ = mean_v(x[v] W_lᵀ): the mean is computed on the narrower side, or after the weights if pruned.

    The factor of a message is 1 / number of incoming edges, including removed ones.
    """

    @classmethod
    def supports(cls, conv: MessagePassing) -> bool:
        return conv.aggr in ("mean", "add", "sum") and not conv.explain

    @property
    def width(self) -> int:
        return self.seen_width or self.narrower(self.lin_l.weight)

    def forward(self, x: Any, edge_index: Any, size: Any = None) -> Tensor:
        if is_pair(x) and x[0] is not x[1]:
            why = self.why_by_messages(x, size)
            out: Tensor = self.forward_by_messages(why, x, edge_index, size=size) if why else self._paired(x, edge_index)
            return out
        x = x[0] if is_pair(x) else x
        check_features(x, self.lin_l.weight, self.path)
        check_edges(edge_index, self.path)
        around = self.lin(x).relu() if self.project else x
        edges = LayerEdges.of(edge_index, None, len(x), self._norm, flow=self.flow, dtype=x.dtype)
        if self.before_weights(around, self.lin_l.weight):
            out = self.lin_l(self.diffuse_cached(around, edges))
        else:
            out = self._biased(self.diffuse(self.lin_l.times(around), edges, x))
        return self._finished(out, x)

    def _paired(self, x: Any, edge_index: Any) -> Tensor:
        """From one set of nodes to another."""
        sent, own = x
        check_features(sent, (self.lin if self.project else self.lin_l).weight, self.path)
        check_features(own, self.lin_r.weight if self.root_weight else None, self.path)
        check_edges(edge_index, self.path)
        around = self.lin(sent).relu() if self.project else sent
        if self.before_weights(around, self.lin_l.weight):
            out = self.lin_l(self.diffuse_between(around, len(own), edge_index, self._norm, sent))
        else:
            y = self.lin_l.times(around)
            out = self._biased(self.diffuse_between(y, len(own), edge_index, self._norm, sent))
        return self._finished(out, own)

    @property
    def _norm(self) -> Norm:
        return "mean" if self.aggr == "mean" else "sum"

    def _biased(self, out: Tensor) -> Tensor:
        return out if self.lin_l.bias is None else out.add_(self.lin_l.bias)  # a new tensor, which no gradient needs

    def _finished(self, out: Tensor, own: Tensor) -> Tensor:
        out = out.add_(self.lin_r(own)) if self.root_weight else out
        return torch.nn.functional.normalize(out, p=2.0, dim=-1) if self.normalize else out
