"""GIN: h((1 + ε)·x + Σ_v x[v])."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import MLP, GINConv, MessagePassing

from unifews.nn.convs.base import prunes
from unifews.nn.convs.checks import check_dense, check_edges, check_features, is_pair
from unifews.nn.convs.gcn import sums
from unifews.nn.convs.messages import ByMessages
from unifews.nn.edges import LayerEdges
from unifews.nn.linear import PrunedWeight


@prunes(GINConv)
class PrunedGINConv(ByMessages, GINConv):  # type: ignore[misc]
    """h is any module; its linear layers are pruned like the others of the model."""

    @classmethod
    def supports(cls, conv: MessagePassing) -> bool:
        return sums(conv)

    @property
    def width(self) -> int:
        """Columns of its input: those of the first matrix of h, or of the first call."""
        first = next((module for module in self.nn.modules() if isinstance(module, PrunedWeight)), None)
        return self.seen_width or (1 if first is None else first.matrix.shape[1])

    @property
    def _first_matrix(self) -> Tensor | None:
        """The first matrix of h, if h is a linear layer or a sequence that starts with one."""
        first = self.nn
        while isinstance(first, nn.Sequential) and len(first):
            first = first[0]
        first = first.lins[0] if isinstance(first, MLP) else first
        return first.matrix if isinstance(first, PrunedWeight) else None

    def forward(self, x: Any, edge_index: Any, size: Any = None) -> Tensor:
        if is_pair(x) and x[0] is not x[1]:
            why = self.why_by_messages(x, size)
            paired: Tensor = self.forward_by_messages(why, x, edge_index, size=size) if why else self._paired(x, edge_index)
            return paired
        x = x[0] if is_pair(x) else x
        check_features(x, self._first_matrix, self.path)
        check_dense(x, self.path)
        check_edges(edge_index, self.path)
        self.set_width(x.shape[1])
        edges = LayerEdges.of(edge_index, self.session.factor, len(x), "sum", flow=self.flow, dtype=x.dtype)
        out: Tensor = self.nn(self.diffuse(x, edges, x) + (1 + self.eps) * x)
        return out

    def _paired(self, x: Any, edge_index: Any) -> Tensor:
        """From one set of nodes to another."""
        sent, own = x
        for part in x:
            check_features(part, self._first_matrix, self.path)
            check_dense(part, self.path)
        check_edges(edge_index, self.path)
        self.set_width(sent.shape[1])
        out: Tensor = self.nn(self.diffuse_between(sent, len(own), edge_index, "sum", sent) + (1 + self.eps) * own)
        return out
