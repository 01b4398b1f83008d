"""Graph attention, GATv2 and GAT: a softmax over the edges into a node for each head."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import GATConv, GATv2Conv, MessagePassing

from unifews.nn.convs.base import PrunedPyGLinear, prunes
from unifews.nn.convs.checks import check_features, is_pair
from unifews.nn.convs.gcn import sums
from unifews.nn.convs.messages import ByMessages
from unifews.nn.edges import LayerEdges
from unifews.nn.ops.dropout import dropout
from unifews.nn.products import attention
from unifews.nn.products.attention import AttentionProduct, HeadRows


class Attending(ByMessages):
    """out[u] = Σ_v α[u,v]·x[v] + α[u,u]·x[u]; a message is α·x[v], of all heads.

    Scores and softmax run over all edges; only the messages are pruned. A column that is not sent is x[u] (`renormalize`); with
    other `entries` α is not renormalised. An edge that a layer removes
    (`entries` other than "unit") does not exist for the next layer, whose softmax runs over the others. Attention dropout is
    applied after the decision. With edge features, with different sets of senders and receivers, and with
    `return_attention_weights`, the messages of the layer's own code are pruned instead.
    """

    @classmethod
    def supports(cls, conv: MessagePassing) -> bool:
        return sums(conv)

    is_normalized = True

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
        score, own = attention.scores(left, right, att, self.negative_slope, edges.adjacency, loops=loop is not None)
        if self.session.factor is not None:  # α ∝ factor · exp(score)
            score = score + self.session.factor[edges.number, None].log()
        alpha, own = attention.softmax(score, own, loop, edges.adjacency)
        decided = alpha.detach()  # attention dropout is applied after the decision
        alpha = dropout(alpha, self.dropout, self.training)
        own = None if own is None else dropout(own, self.dropout, self.training)
        product = AttentionProduct(x, alpha, own, decided, edges)
        out = self.multiply(product, began, whole=whole, alive=alive, score_macs=edges.count * left.width)
        out = out if self.concat else out.view(-1, self.heads, self.out_channels).mean(dim=1)
        out = out if residual is None else out + residual
        return out if self.bias is None else out + self.bias


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
