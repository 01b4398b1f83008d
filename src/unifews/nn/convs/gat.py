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
from unifews.nn.products import Selection, attention
from unifews.nn.products.attention import AttentionProduct, HeadRows


class Attending(ByMessages):
    """out[u] = Σ_v α[u,v]·x[v] + α[u,u]·x[u]; a message is α·x[v], of all heads.

    Scores and softmax run over all edges; only the messages are pruned. A column that is not sent is x[u] (`renormalize`); with
    other `entries` α is not renormalised. An edge that a layer removes
    (`entries` other than "unit") does not exist for the next layer, whose softmax runs over the others. Attention dropout is
    applied after the decision. With edge features, with `return_attention_weights`, and pruned between different sets of
    senders and receivers, the messages of the layer's own code are computed instead.
    """

    @classmethod
    def supports(cls, conv: MessagePassing) -> bool:
        return sums(conv)

    is_normalized = True

    @property
    def width(self) -> int:
        return int(self.heads * self.out_channels)

    def attend(
        self,
        x: HeadRows,
        left: HeadRows,
        right: HeadRows,
        att: Tensor,
        edge_index: Any,
        residual: Tensor | None,
        given: Tensor,
        sides: tuple[int, int],
    ) -> Tensor:
        """The layer after its linear map: scores att_h · LeakyReLU(left[v,h] + right[u,h]), softmax, products with x.

        `given`: the features that the layer is called with; `sides`: the numbers of senders and receivers.
        """
        began, n = perf_counter(), max(sides)
        x, left, right = (rows.padded(n) for rows in (x, left, right))
        whole, edges, alive, loop = self.edges_for(edge_index, sides, 1.0 if self.add_self_loops else None, given, x.x.dtype)
        score, own = attention.scores(left, right, att, self.negative_slope, edges.adjacency, loops=loop is not None)
        out = self.weighted(x, score, own, loop, edge_index, sides, (whole, edges, alive), edges.count * left.width, began)
        out = out if self.concat else out.view(-1, self.heads, self.out_channels).mean(dim=1)
        out = out if residual is None else out + residual
        return out if self.bias is None else out + self.bias

    def edges_for(
        self, edge_index: Any, sides: tuple[int, int], loops: float | None, given: Tensor, dtype: torch.dtype
    ) -> tuple[LayerEdges, LayerEdges, Tensor | None, Tensor | None]:
        """All edges, those that earlier layers have kept, which of them these are, and the number of self-loops, if any."""
        if sides[0] == sides[1]:
            whole = LayerEdges.of(edge_index, None, sides[0], "sum", loops=loops, flow=self.flow, dtype=dtype)
        else:
            whole = LayerEdges.overlaid(edge_index, *sides, "sum", loops=loops, dtype=dtype)
        alive = self.session.inherited_edges(self, whole.adjacency, given)
        loop = whole.loop
        if loop is not None and whole.weight is not None:  # only the positions of the values of a sparse matrix matter
            loop = (loop != 0).to(dtype)
        return whole, whole if alive is None else whole.only(alive), alive, loop

    def weighted(
        self,
        x: HeadRows,
        score: Tensor,
        own: Tensor | None,
        loop: Tensor | None,
        edge_index: Any,
        sides: tuple[int, int],
        known: tuple[LayerEdges, LayerEdges, Tensor | None],
        score_macs: int,
        began: float,
    ) -> Tensor:
        """Softmax of the scores and products with x, [receivers, heads·channels]; `known`: of `edges_for`."""
        whole, edges, alive = known
        if self.session.factor is not None:  # α ∝ factor · exp(score)
            score = score + self.session.factor[edges.number, None].log()
        alpha, own = attention.softmax(score, own, loop, edges.adjacency)
        decided = alpha.detach()  # attention dropout is applied after the decision
        alpha = dropout(alpha, self.dropout, self.training)
        own = None if own is None else dropout(own, self.dropout, self.training)
        product = AttentionProduct(x, alpha, own, decided, edges)
        if sides[0] == sides[1]:
            return self.multiply(product, began, whole=whole, alive=alive, score_macs=score_macs)
        out = product.gather(Selection()).out[: sides[1]]  # unpruned, see `why_attention_by_messages`
        self.record_pairs(edge_index, edges, product.width, began, score_macs)
        return out

    def why_attention_by_messages(self, x: Any, edge_attr: Tensor | None, weights: Any, size: Any = None) -> str:
        """Why a call needs explicit messages; empty if it does not."""
        if is_pair(x):
            why = self.why_by_messages(x, size)
            if why or self.session.pruning.prunes_edges:
                return why or "a pair of features"
        elif size is not None:
            return "a size"
        if edge_attr is not None:
            return "edge features"
        return "return_attention_weights" if weights is not None else ""


@prunes(GATv2Conv)
class PrunedGATv2Conv(Attending, GATv2Conv):  # type: ignore[misc]
    """Scores att_h · LeakyReLU(x_l[v,h] + x_r[u,h])."""

    def forward(self, x: Any, edge_index: Any, edge_attr: Tensor | None = None, return_attention_weights: Any = None) -> Any:
        if is_pair(x) and x[0] is x[1]:
            x = x[0]
        if why := self.why_attention_by_messages(x, edge_attr, return_attention_weights):
            return self.forward_by_messages(why, x, edge_index, edge_attr, return_attention_weights)
        sent, own = x if is_pair(x) else (x, x)
        check_features(sent, self.lin_l.weight, self.path)
        check_features(own, self.lin_r.weight, self.path)
        residual = None if self.res is None else self.res(own)
        left = head_rows(sent, self.lin_l, self.heads)
        right = left if self.share_weights and sent is own else head_rows(own, self.lin_r, self.heads)
        return self.attend(left, left, right, self.att[0], edge_index, residual, sent, (len(sent), len(own)))


@prunes(GATConv)
class PrunedGATConv(Attending, GATConv):  # type: ignore[misc]
    """Scores LeakyReLU(att_src_h · x[v,h] + att_dst_h · x[u,h]): one value per node and head."""

    def forward(
        self, x: Any, edge_index: Any, edge_attr: Tensor | None = None, size: Any = None, return_attention_weights: Any = None
    ) -> Any:
        if is_pair(x) and x[0] is x[1]:
            x = x[0]
        if why := self.why_attention_by_messages(x, edge_attr, return_attention_weights, size):
            return self.forward_by_messages(why, x, edge_index, edge_attr, size, return_attention_weights)
        source, target = (self.lin_src, self.lin_dst) if self.lin is None else (self.lin, self.lin)
        sent, own = x if is_pair(x) else (x, x)
        check_features(sent, source.weight, self.path)
        check_features(own, target.weight, self.path)
        residual = None if self.res is None else self.res(own)
        rows = head_rows(sent, source, self.heads)
        if sent is own and source is target:
            values = rows.dots(self.att_src[0], self.att_dst[0])
        else:
            values = rows.dots(self.att_src[0]) + head_rows(own, target, self.heads).dots(self.att_dst[0])
        left, right = (HeadRows.of(value, self.heads) for value in values)
        ones = torch.ones_like(self.att_src[0, :, :1])
        return self.attend(rows, left, right, ones, edge_index, residual, sent, (len(sent), len(own)))


def head_rows(x: Tensor, linear: PrunedPyGLinear, heads: int, scale: float = 1.0) -> HeadRows:
    """scale · (x Wᵀ + b) of several heads, after the decision on W if one is due."""
    weight, bias = linear.prepare(x), linear.bias
    if scale != 1.0:
        weight, bias = weight * scale, None if bias is None else bias * scale
    return HeadRows.from_linear(x, weight, bias, heads, sparse_weight=linear.is_pruned)
