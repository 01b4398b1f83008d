"""Single entries of an edge, by a threshold: blocks of 16 columns, or single columns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unifews.core.entry import BLOCK
from unifews.nn.entries.base import EntryKind, entry_kind
from unifews.nn.entries.joint import joint_mean, joint_rows, joint_sum
from unifews.nn.products import Product, Selection

if TYPE_CHECKING:
    from unifews.nn.convs.base import PrunedConv


@entry_kind
class BlockEntries(EntryKind):
    """(edge, 16 columns), one cache line. State: the threshold `delta`, which applies to any graph."""

    name = "block"
    by_product = False
    columns = BLOCK

    def lanes(self, width: int) -> int:
        return self.columns

    def select(self, product: Product, conv: PrunedConv) -> Selection:
        if conv.session.deciding and joint_sum(conv.session.comm, product.edges.whole):
            self.decide(product, conv)
        return Selection(delta=float(conv.delta), lanes=self.columns)

    @torch.no_grad()
    def decide(self, product: Product, conv: PrunedConv) -> None:
        session, pruning = conv.session, conv.session.pruning
        size, width = product.entry_sizes(self.columns), product.width
        if pruning.edge_sparsity is not None:
            sample, _ = joint_rows(session.comm, size)
            delta = _delta_for(sample, session.share(conv) / width, width)
        else:
            assert pruning.edge_threshold is not None
            delta = pruning.edge_threshold * (1.0 if pruning.absolute else joint_mean(session.comm, size[size >= 0]))
        before = float(conv.delta) if session.phase == "monotone" and bool(conv.decided) else 0.0
        # Slightly below, so that rounding in another order cannot remove the entry that defines it.
        conv.delta.fill_(max(delta * (1 - 1e-6), before, 0.0))
        conv.decided.fill_(True)

    def frozen(self, conv: PrunedConv, call: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"form": self.name}, {}


@entry_kind
class FeatureEntries(BlockEntries):
    """(edge, column), as in the authors' C++ code."""

    name = "feature"
    columns = 1


def _delta_for(size: Tensor, share: float, width: int) -> float:
    """The magnitude that keeps this fraction of the multiply-adds; the last entry of an edge may be narrower than others."""
    edges, per_edge = size.shape
    lanes = -(-width // max(per_edge, 1))
    lanes = BLOCK if lanes > 1 else 1
    there = int((size >= 0).sum())
    if per_edge * lanes == width:
        count = min(round(share * size.numel()), there)
        return float(size.flatten().kthvalue(size.numel() - count + 1).values) if count else math.inf
    widths = torch.full((per_edge,), lanes, device=size.device)
    widths[-1] = width - lanes * (per_edge - 1)
    order = size.flatten().sort(descending=True)
    work = widths.repeat(edges)[order.indices].cumsum(0)
    count = min(int((work <= round(share * edges * width)).sum()), there)
    return float(order.values[count - 1]) if count else math.inf
