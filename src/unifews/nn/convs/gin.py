"""GIN: h((1 + ε)·x + Σ_v x[v])."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.nn import GINConv, MessagePassing

from unifews.nn.convs.base import check_edges, check_precision, prunes
from unifews.nn.convs.gcn import sums
from unifews.nn.convs.messages import ByMessages
from unifews.nn.edges import Edges
from unifews.nn.linear import PrunedWeight


@prunes(GINConv)
class PrunedGINConv(ByMessages, GINConv):  # type: ignore[misc]
    """What h is made of is the user's; its linear layers are pruned with the others of the model."""

    @classmethod
    def supports(cls, conv: MessagePassing) -> bool:
        return sums(conv)

    @property
    def width(self) -> int:
        """Of its input: known from the first matrix of h, or once it runs."""
        first = next((module for module in self.nn.modules() if isinstance(module, PrunedWeight)), None)
        return self.seen_width or (1 if first is None else first.matrix.shape[1])

    def forward(self, x: Any, edge_index: Any, size: Any = None) -> Tensor:
        if isinstance(x, tuple | list) and x[0] is not x[1]:
            return self.by_messages(x, edge_index, size=size)
        x = x[0] if isinstance(x, tuple | list) else x
        check_precision(x, "GINConv")
        check_edges(edge_index, self.path)
        self.see_width(x.shape[1])
        edges = Edges.of(edge_index, self.session.factor, len(x), "sum", flow=self.flow, dtype=x.dtype)
        out: Tensor = self.nn(self.diffuse(x, edges) + (1 + self.eps) * x)
        return out
