"""GraphSAGE: mean over neighbours through one matrix, the node itself through another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing, SAGEConv

from unifews.nn.convs.base import check_edges, check_features, is_pair, prunes
from unifews.nn.convs.messages import ByMessages
from unifews.nn.edges import Edges


@prunes(SAGEConv)
class PrunedSAGEConv(ByMessages, SAGEConv):  # type: ignore[misc]
    """mean_v(x[v]) W_lᵀ = mean_v(x[v] W_lᵀ), so the mean is taken on the narrower side, or, pruned, of what was learnt.

    The factor of a message is 1 / number of incoming edges, those that are removed included.
    """

    @classmethod
    def supports(cls, conv: MessagePassing) -> bool:
        return conv.aggr in ("mean", "add", "sum") and not conv.explain

    @property
    def width(self) -> int:
        return self.seen_width or self.narrower(self.lin_l.weight)

    def forward(self, x: Any, edge_index: Any, size: Any = None) -> Tensor:
        if is_pair(x) and x[0] is not x[1]:
            out: Tensor = self.by_messages(x, edge_index, size=size)
            return out
        x = x[0] if is_pair(x) else x
        check_features(x, self.lin_l.weight, self.path)
        check_edges(edge_index, self.path)
        around = self.lin(x).relu() if self.project else x
        edges = Edges.of(
            edge_index, None, len(x), "mean" if self.aggr == "mean" else "sum", flow=self.flow, dtype=x.dtype
        )  # fmt: skip
        if self.before_weights(around, self.lin_l.weight):
            out = self.lin_l(self.held(around, edges))
        else:
            sent = self.lin_l.times(around)
            out = self.diffuse(sent, edges, x)
            out = out if self.lin_l.bias is None else out + self.lin_l.bias
        if self.root_weight:
            out = out + self.lin_r(x)
        return torch.nn.functional.normalize(out, p=2.0, dim=-1) if self.normalize else out
