"""Columns: those with the largest messages are sent along every edge, the others along none; self-loops are not pruned."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any
from zlib import crc32

import torch
from torch import Tensor

from unifews.core.entry import survives
from unifews.nn.config import whole_columns
from unifews.nn.entries.base import EntryKind, entry_kind, ranked
from unifews.nn.entries.joint import joint_norms
from unifews.nn.linear import PrunedWeight, largest
from unifews.nn.products import Product, Selection

if TYPE_CHECKING:
    from unifews.nn.convs.base import PrunedConv
    from unifews.nn.session import Session


@entry_kind
class UnitEntries(EntryKind):
    """A column of the operand, by the norm of its messages ‖T y[:,j]‖. State: `columns`, those of all products of the layer one
    after another."""

    name = "unit"
    by_edge = False

    def lanes(self, width: int) -> int:
        return 1

    def num_columns(self, conv: PrunedConv) -> int:
        linears = (getattr(conv, name, None) for name in ("lin", "lin_l", "lin_src")) if conv.fused else ()
        return next((linear.matrix.shape[0] for linear in linears if isinstance(linear, PrunedWeight)), conv.width)

    def shares(self, session: Session) -> list[float]:
        return [float(k) for k in whole_columns(super().shares(session))]

    def select(self, product: Product, conv: PrunedConv) -> Selection:
        every, first, last = conv.columns, conv.call * product.width, (conv.call + 1) * product.width
        chosen = every[first:last]
        stale = conv.session.deciding and not self._settled(conv, chosen)
        if stale or len(chosen) != product.width:
            conv.columns = chosen
            self.decide(product, conv)
            chosen = conv.columns
            if conv.call:
                conv.columns = torch.cat([every[:first], chosen, every[last:]])
                conv.chosen = int(conv.columns.sum())
        return Selection(columns=chosen.nonzero().flatten(), renormalize=conv.renormalizes)

    def _settled(self, conv: PrunedConv, chosen: Tensor) -> bool:
        """Whether the columns of a product are chosen for good."""
        session = conv.session
        if session.pruning.edge_sparsity is None or not bool(conv.decided):
            return False
        return session.hysteresis == math.inf and int(chosen.sum()) == min(round(session.share(conv)), len(chosen))

    @torch.no_grad()
    def decide(self, product: Product, conv: PrunedConv) -> None:
        session, pruning = conv.session, conv.session.pruning
        size = joint_norms(session.comm, product.column_sizes())
        if not bool(size.isfinite().all()):  # no decision from values that are not finite
            conv.columns = torch.ones_like(size, dtype=torch.bool)
            return
        before = conv.columns if session.phase == "monotone" and len(conv.columns) == len(size) else None
        if before is not None:
            size = torch.where(before, size, -1.0)
        rank = ranked(size, pruning.choice, lambda: _noise(conv, len(size)).to(size))
        if pruning.edge_sparsity is not None:
            count = min(round(session.share(conv)), len(size))
            factor = session.hysteresis
            if bool(conv.decided) and len(conv.columns) == len(size) and pruning.choice != "random" and factor < math.inf:
                rank = torch.where(conv.columns, rank * (factor if pruning.choice == "largest" else 1 / factor), rank)
            keep = largest(rank, count)
        else:
            assert pruning.edge_threshold is not None
            scale = 1.0 if pruning.absolute else float(size.clamp(min=0).mean())
            keep = survives(None, size, pruning.edge_threshold * scale, zeros=True)
            keep = keep if pruning.choice == "largest" else largest(rank, int(keep.sum()))
        if before is not None:
            keep &= before
        conv.columns, conv.chosen = keep, int(keep.sum())
        conv.delta.fill_(float(size[keep].min()) if bool(keep.any()) else math.inf)
        conv.decided.fill_(True)

    def frozen(self, conv: PrunedConv, call: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"form": "columns"}, {"columns": conv.columns_of(call)}


def _noise(conv: PrunedConv, width: int) -> Tensor:
    """A number of each column, the same in every pass, by the layer, its product and the seed."""
    seed = crc32(f"{conv.session.pruning.choice_seed} {conv.path} {conv.call}".encode())
    return torch.rand(width, generator=torch.Generator().manual_seed(seed))
