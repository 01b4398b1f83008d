"""Whole edges, as in the paper (option "node")."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unifews.core.entry import survives
from unifews.errors import GraphError, InputError
from unifews.nn.config import nested_share
from unifews.nn.edges import LayerEdges
from unifews.nn.entries.base import EntryKind, entry_kind, ranked
from unifews.nn.entries.joint import joint_mean, joint_rows, joint_sum
from unifews.nn.linear import largest
from unifews.nn.products import Product, Selection
from unifews.nn.thinning import edge_noise

if TYPE_CHECKING:
    from unifews.nn.convs.base import PrunedConv
    from unifews.nn.session import Session

_MIN_REMOVED = 20  # edges removed in training: with fewer, the share of unseen edges is not estimated


@entry_kind
class EdgeEntries(EntryKind):
    """An edge with all columns. State: `removed`, the removed edges by their ends, `nodes` and `delta`; edges that were not in
    the training graph are kept."""

    name = "node"

    def lanes(self, width: int) -> int:
        return width or 1

    def shares(self, session: Session) -> list[float]:
        pruning, widths = session.pruning, [layer.width for layer in session.convs]
        if not pruning.inherit:
            return super().shares(session)
        # Removed edges are inherited, so a later layer cannot keep more of them than an earlier one.
        depths, sparsity = [session.depth(layer) for layer in session.convs], pruning.edge_sparsity or 0.0
        kept = nested_share(depths, sparsity) if pruning.budget == "layers" else [1 - sparsity] * len(widths)
        return [share * width for share, width in zip(kept, widths, strict=True)]

    def select(self, product: Product, conv: PrunedConv) -> Selection:
        if conv.session.deciding:
            keep = self.decide(product, conv)
        else:
            keep = known_edges(conv, product.edges)
            conv.unseen = _share_unseen(conv, keep, product.edges)
            keep = keep if product.alive is None else keep & product.alive
        return Selection(edges=keep | locked_edges(conv, product.edges), later=keep)

    @torch.no_grad()
    def decide(self, product: Product, conv: PrunedConv) -> Tensor:
        """bool [m]: the kept edges."""
        session, pruning, edges = conv.session, conv.session.pruning, product.edges
        size = product.edge_sizes()
        if product.alive is not None:
            size = torch.where(product.alive, size, -1.0)
        if session.phase == "monotone" and bool(conv.decided):
            size = torch.where(known_edges(conv, edges), size, -1.0)
        rank = ranked(size, pruning.choice, lambda: edge_noise(_ends(edges), pruning.choice_seed).to(size))
        every, mine = joint_rows(session.comm, rank) if pruning.edge_sparsity is not None else (rank, slice(None))
        if pruning.edge_sparsity is not None:
            there = (every >= 0) if pruning.choice == "largest" else every > -math.inf
            share, whole = session.share(conv) / max(conv.width, 1), joint_sum(session.comm, edges.whole)
            keep = largest(every, min(round(share * whole), int(there.sum()))) if len(every) else there
            delta = float(every[keep].min()) if bool(keep.any()) else math.inf
            keep = keep[mine]
        else:
            assert pruning.edge_threshold is not None
            scale = 1.0 if pruning.absolute else joint_mean(session.comm, product.mean_values(size))
            delta = pruning.edge_threshold * scale
            keep = survives(None, size, delta, zeros=True) & (size >= 0)
            keep = keep if pruning.choice == "largest" else largest(rank, int(keep.sum()))
        store_edges(conv, edges, keep, delta)
        return keep

    def frozen(self, conv: PrunedConv, call: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        if conv.session.pruning.choice != "largest":  # on another graph, a frozen model compares magnitudes
            raise InputError(
                f"a frozen model keeps the largest messages, and these are the {conv.session.pruning.choice} ones, a control; "
                f"evaluate the model itself."
            )
        square = max(int(conv.nodes), 1) ** 2
        removed = conv.removed[conv.removed // square == call] - call * square
        return {"form": "edges", "nodes": int(conv.nodes)}, {"removed": removed.unique()}  # type: ignore[no-untyped-call]


def store_edges(conv: PrunedConv, edges: LayerEdges, keep: Tensor, delta: float) -> None:
    """Store the decision keep [m] on the edges of the current product of a layer."""
    removed = _keys(conv, edges)[~keep]
    conv.delta.fill_(delta)
    conv.decided.fill_(True)
    conv.removed = torch.cat([_removed_elsewhere(conv, edges), removed]).sort().values
    conv.nodes.fill_(edges.adjacency.num_nodes)
    conv.seen_edges, conv.unseen = 0 if conv.call else edges.count, 0.0


def known_edges(conv: PrunedConv, edges: LayerEdges) -> Tensor:
    """bool [m]: the edges that the stored decision keeps; edges that it did not include are kept."""
    if int(conv.nodes) != edges.adjacency.num_nodes:
        raise GraphError(
            f"the edges of {conv.path} were selected on a graph of {int(conv.nodes):,} nodes and this one has "
            f"{edges.adjacency.num_nodes:,}; train on it, or use a threshold (entries='block')."
        )
    return ~torch.isin(_keys(conv, edges), conv.removed)


def locked_edges(conv: PrunedConv, edges: LayerEdges) -> Tensor:
    """bool [m]: edges that are used regardless of the decision: in the first layer, in evaluation, those into the locked
    nodes. They are used and counted there; later layers inherit the decision."""
    lock, device = conv.session.node_lock, edges.number.device
    if lock is None or conv.training or not conv.session.is_first(conv):
        return torch.zeros((), dtype=torch.bool, device=device)
    locked = torch.zeros(edges.adjacency.num_nodes, dtype=torch.bool, device=device)
    locked[lock.to(device)] = True
    return locked[edges.adjacency.receivers]


def _keys(conv: PrunedConv, edges: LayerEdges) -> Tensor:
    """Keys of the edges of this product: those of the adjacency + index of the product · n²."""
    n = edges.adjacency.num_nodes
    if (conv.call + 1) * n * n > 2**63:
        raise GraphError(f"{conv.path} computes more than {conv.call} products on {n:,} nodes; use entries='unit'.")
    return edges.adjacency.keys + conv.call * n * n


def _ends(edges: LayerEdges) -> Tensor:
    """Senders and receivers, int64 [2, m]."""
    return torch.stack([edges.adjacency.indices.long(), edges.adjacency.receivers])


def _removed_elsewhere(conv: PrunedConv, edges: LayerEdges) -> Tensor:
    """The part of `removed` of other products on this graph."""
    n = edges.adjacency.num_nodes
    return conv.removed[conv.removed // max(n, 1) ** 2 != conv.call] if int(conv.nodes) == n else conv.removed[:0]


def _share_unseen(conv: PrunedConv, keep: Tensor, edges: LayerEdges) -> float:
    """Estimated fraction of these edges that did not exist at the decision: removed edges are a sample of those that did.

    If their number is unknown, it is taken to be the current one; with too few removed edges the estimate is 0.
    """
    removed_here = len(conv.removed) - len(_removed_elsewhere(conv, edges))
    if removed_here < _MIN_REMOVED or not edges.count:
        return 0.0
    remaining = (edges.count - int(keep.sum())) / removed_here
    return max(0.0, 1 - remaining * (conv.seen_edges or edges.count) / edges.count)
