"""Graph attention, GATv2 and GAT: a softmax over the edges into a node for each head."""

from __future__ import annotations

import math
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import GATConv, GATv2Conv, MessagePassing

from unifews.core.entry import BLOCK
from unifews.nn.convs.base import PrunedPyGLinear, prunes
from unifews.nn.convs.checks import check_features, is_pair
from unifews.nn.convs.gcn import sums
from unifews.nn.convs.messages import ByMessages
from unifews.nn.edges import LayerEdges
from unifews.nn.linear import largest
from unifews.nn.ops import heads
from unifews.nn.ops.dropout import dropout
from unifews.nn.ops.heads import HeadRows

_MAX_SAMPLE = 1 << 21  # entries for a quantile


class Attending(ByMessages):
    """out[u] = Σ_v α[u,v]·x[v] + α[u,u]·x[u]; a message is α·x[v], of all heads.

    Scores and softmax run over all edges; only the messages are pruned, without renormalisation. An edge that a layer removes
    (`entries` other than "unit") does not exist for the next layer, whose softmax runs over the others. Attention dropout is
    applied after the decision. With edge features, with different sets of senders and receivers, and with
    `return_attention_weights`, the messages of the layer's own code are pruned instead.
    """

    @classmethod
    def supports(cls, conv: MessagePassing) -> bool:
        return sums(conv)

    @property
    def width(self) -> int:
        return int(self.heads * self.out_channels)

    def attend(
        self, x: HeadRows, left: HeadRows, right: HeadRows, att: Tensor, edge_index: Any, residual: Tensor | None, given: Tensor
    ) -> Tensor:
        """The layer after its linear map: scores att_h · LeakyReLU(left[v,h] + right[u,h]), softmax, products with x.

        `given`: the features that the layer is called with.
        """
        began = perf_counter()
        n, dtype = len(x.x), x.x.dtype
        loops = 1.0 if self.add_self_loops else None
        whole = LayerEdges.of(edge_index, None, n, "sum", loops=loops, flow=self.flow, dtype=dtype)
        alive = self.session.inherited_edges(self, whole.adjacency, given)
        edges = whole if alive is None else whole.only(alive)
        loop = whole.loop
        if loop is not None and whole.weight is not None:  # only the positions of the values of a sparse matrix matter
            loop = (loop != 0).to(dtype)
        score, own = heads.scores(left, right, att, self.negative_slope, edges.adjacency, loops=loop is not None)
        if self.session.factor is not None:  # α ∝ factor · exp(score)
            score = score + self.session.factor[edges.number, None].log()
        alpha, own = heads.softmax(score, own, loop, edges.adjacency)
        out, keep = self._sum_messages(x, alpha, own, edges, edges.count * left.width, began)
        if keep is not None:
            keep = keep if alive is None else alive.masked_scatter(alive, keep)
            self.session.store_kept_edges(self, whole.adjacency, keep)
        out = out if self.concat else out.view(-1, self.heads, self.out_channels).mean(dim=1)
        out = out if residual is None else out + residual
        return out if self.bias is None else out + self.bias

    def _sum_messages(
        self, x: HeadRows, alpha: Tensor, own: Tensor | None, edges: LayerEdges, score_macs: int, began: float
    ) -> tuple[Tensor, Tensor | None]:
        """The sum over neighbours, and the edges [m] that later layers may use; None = all."""
        pruning, session, decided = self.session.pruning, self.session, alpha.detach()
        alpha = dropout(alpha, self.dropout, self.training)
        mine = None if own is None else dropout(own, self.dropout, self.training)
        width, adjacency, delta, keep = x.width, edges.adjacency, None, None
        if not pruning.prunes_edges:
            out, used, macs = heads.gather(x, alpha, mine, adjacency), edges.count, edges.count * width
        elif pruning.entries == "unit":
            if session.deciding or len(self.columns) != width:
                self.choose_columns(heads.column_sizes(x, decided, adjacency))
            columns = self.columns.nonzero().flatten()
            out = heads.gather(x, alpha, mine, adjacency, columns=columns)
            used, macs, delta = edges.count if len(columns) else 0, edges.count * len(columns), float(self.delta)
        elif pruning.entries == "node":
            keep = self._choose_edges_by_attention(x, decided, own, edges)
            sent = keep | self.locked(edges)
            at = None if bool(sent.all()) else sent.nonzero().flatten()
            out = heads.gather(x, alpha, mine, adjacency if at is None else adjacency.only(sent), at=at)
            used = int(sent.sum())
            macs, delta = used * width, float(self.delta)
        else:
            lanes = 1 if pruning.entries == "feature" else BLOCK
            if session.deciding and edges.whole:
                self.choose_delta(_sampled_magnitudes(x, decided, edges, lanes), width)
            delta = float(self.delta)
            out, macs, keep = heads.gather_at_least(x, alpha, decided, mine, adjacency, delta, lanes)
            used = int(keep.sum())
        self.add_record(edges, x.x[:, :width], used, macs, delta, began, score_macs=score_macs)
        return out, keep

    @torch.no_grad()
    def _choose_edges_by_attention(self, x: HeadRows, alpha: Tensor, own: Tensor | None, edges: LayerEdges) -> Tensor:
        """By the authors' magnitude a·s: a = ‖α[e]‖₂ / heads, s = ‖x[v]‖; their threshold is a multiple of the mean of s."""
        adjacency = edges.adjacency
        if not self.session.deciding:
            keep = self.stored_edges(None, edges)
        else:
            norm = x.norms
            sent = norm[adjacency.indices.long()]
            size = torch.linalg.vector_norm(alpha, dim=1) / self.heads * sent
            pruning = self.session.pruning
            if pruning.edge_sparsity is not None:
                share = self.session.share(self) / max(self.width, 1)
                if self.session.phase == "monotone" and bool(self.decided):
                    size = torch.where(self._known_edges(edges), size, -1.0)
                keep = largest(size, min(round(share * edges.whole), int((size >= 0).sum()))) if len(size) else size >= 0
                delta = float(size[keep].min()) if bool(keep.any()) else math.inf
            else:
                assert pruning.edge_threshold is not None
                mean = float((sent if own is None else torch.cat([sent, norm])).mean()) if len(norm) else 0.0
                delta = pruning.edge_threshold * (1.0 if pruning.absolute else mean)
                keep = size >= delta
                if self.session.phase == "monotone" and bool(self.decided):
                    keep &= self._known_edges(edges)
            self.store_edges(keep, edges, delta)
        return keep


@prunes(GATv2Conv)
class PrunedGATv2Conv(Attending, GATv2Conv):  # type: ignore[misc]
    """Scores att_h · LeakyReLU(x_l[v,h] + x_r[u,h])."""

    def forward(self, x: Any, edge_index: Any, edge_attr: Tensor | None = None, return_attention_weights: Any = None) -> Any:
        if is_pair(x) and x[0] is x[1]:
            x = x[0]
        if not is_pair(x):
            check_features(x, self.lin_l.weight, self.path)
        why = _why_by_messages(x, edge_attr, return_attention_weights)
        if why:
            return self.forward_by_messages(why, x, edge_index, edge_attr, return_attention_weights)
        residual = None if self.res is None else self.res(x)
        left = _rows(x, self.lin_l, self.heads)
        right = left if self.share_weights else _rows(x, self.lin_r, self.heads)
        return self.attend(left, left, right, self.att[0], edge_index, residual, x)


@prunes(GATConv)
class PrunedGATConv(Attending, GATConv):  # type: ignore[misc]
    """Scores LeakyReLU(att_src_h · x[v,h] + att_dst_h · x[u,h]): one value per node and head."""

    def forward(
        self, x: Any, edge_index: Any, edge_attr: Tensor | None = None, size: Any = None, return_attention_weights: Any = None
    ) -> Any:
        if is_pair(x) and x[0] is x[1]:
            x = x[0]
        if not is_pair(x):
            check_features(x, (self.lin_src if self.lin is None else self.lin).weight, self.path)
        why = _why_by_messages(x, edge_attr, return_attention_weights) or ("a size" if size is not None else "")
        why = why or ("weights for two sets of nodes" if self.lin is None else "")
        if why:
            return self.forward_by_messages(why, x, edge_index, edge_attr, size, return_attention_weights)
        residual = None if self.res is None else self.res(x)
        sent = _rows(x, self.lin, self.heads)
        left, right = (HeadRows.of(value, self.heads) for value in sent.dots(self.att_src[0], self.att_dst[0]))
        return self.attend(sent, left, right, torch.ones_like(self.att_src[0, :, :1]), edge_index, residual, x)


def _rows(x: Tensor, linear: PrunedPyGLinear, heads: int) -> HeadRows:
    """x Wᵀ + b of several heads, after the decision on W if one is due."""
    return HeadRows.from_linear(x, linear.prepare(x), linear.bias, heads, sparse_weight=linear.is_pruned)


def _why_by_messages(x: Any, edge_attr: Tensor | None, weights: Any) -> str:
    if not isinstance(x, Tensor):
        return "a pair of features"
    if edge_attr is not None:
        return "edge features"
    return "return_attention_weights" if weights is not None else ""


def _sampled_magnitudes(x: HeadRows, alpha: Tensor, edges: LayerEdges, lanes: int) -> Tensor:
    """Magnitudes of entries [edges, blocks], of evenly spaced edges where there are many; -1 for removed edges."""
    blocks = -(-x.width // lanes)
    stride = max(1, edges.whole * blocks // _MAX_SAMPLE)
    size = heads.entry_sizes(x, alpha[::stride], edges.adjacency.indices[::stride].long(), lanes)
    return torch.cat([size, size.new_full(((edges.whole - edges.count) // stride, blocks), -1.0)])
