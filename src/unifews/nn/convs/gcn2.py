"""GCNII: identity mapping and a residual from the first layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import GCN2Conv, MessagePassing

from unifews.nn.convs.base import PrunedConv, prunes
from unifews.nn.convs.checks import check_dense, check_edges, check_features
from unifews.nn.convs.gcn import sums
from unifews.nn.edges import LayerEdges, Norm
from unifews.nn.linear import PrunedParameter
from unifews.nn.ops.linear import times
from unifews.nn.session import Session


@prunes(GCN2Conv)
class PrunedGCN2Conv(PrunedConv, GCN2Conv):  # type: ignore[misc]
    """h = (1-α)·T x + α·x₀, out = (1-β)·h + β·h W. The residual is never pruned.

    W multiplies from the right, so its input axis is the first one; the authors' code thresholds the other one and uses a
    stale masked copy of W in evaluation. Here the mask is applied to the parameter wherever it is read.
    """

    @classmethod
    def supports(cls, conv: MessagePassing) -> bool:
        return sums(conv)

    def begin_pruning(self, session: Session, path: str) -> None:
        super().begin_pruning(session, path)
        self.weight1_mask = PrunedParameter(self, "weight1")
        self.weight2_mask = None if self.weight2 is None else PrunedParameter(self, "weight2")

    def end_pruning(self) -> None:
        del self.weight1_mask, self.weight2_mask
        super().end_pruning()

    @property
    def width(self) -> int:
        return int(self.channels)

    @property
    def is_normalized(self) -> bool:
        return bool(self.normalize)

    def forward(self, x: Tensor, x_0: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        check_features(x, self.weight1, self.path)
        check_dense(x, self.path)
        check_edges(edge_index, self.path)
        norm: Norm = "gcn" if self.normalize else "sum"
        loops = 1.0 if self.normalize and self.add_self_loops else None
        edges = LayerEdges.of(edge_index, edge_weight, len(x), norm, loops=loops, flow=self.flow, dtype=x.dtype)
        sent = (1 - self.alpha) * self.diffuse(x, edges, x)
        rest = self.alpha * x_0[: len(x)]
        if self.weight2_mask is None:
            out = sent + rest
            return self._mixed(out, self.weight1_mask.prepare(sent), self.weight1_mask)
        out = self._mixed(sent, self.weight1_mask.prepare(sent), self.weight1_mask)
        return out + self._mixed(rest, self.weight2_mask.prepare(rest), self.weight2_mask)

    def _mixed(self, x: Tensor, weight: Tensor, mask: PrunedParameter) -> Tensor:
        """(1 - β) x + β x W."""
        if not mask.is_pruned or x.device.type != "cpu":
            return torch.addmm(x, x, weight, beta=1.0 - self.beta, alpha=self.beta)
        return torch.lerp(x, times(x, weight.t(), sparse_weight=True, mask=mask.mask), self.beta)
