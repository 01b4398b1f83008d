"""TransformerConv: scaled dot products of queries and keys, a softmax over the edges into a node for each head."""

from __future__ import annotations

import math
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import TransformerConv

from unifews.nn.convs.base import prunes
from unifews.nn.convs.checks import check_edges, check_features, is_pair
from unifews.nn.convs.gat import Attending, head_rows
from unifews.nn.products import attention


@prunes(TransformerConv)
class PrunedTransformerConv(Attending, TransformerConv):  # type: ignore[misc]
    """α[u,v] ∝ exp(⟨q[u,h], k[v,h]⟩ / √channels); what is sent are the values."""

    is_normalized = False  # it adds no self-loops

    def forward(self, x: Any, edge_index: Any, edge_attr: Tensor | None = None, return_attention_weights: Any = None) -> Any:
        if is_pair(x) and x[0] is x[1]:
            x = x[0]
        if why := self.why_attention_by_messages(x, edge_attr, return_attention_weights):
            return self.forward_by_messages(why, x, edge_index, edge_attr, return_attention_weights)
        began, (sent, own) = perf_counter(), x if is_pair(x) else (x, x)
        check_features(sent, self.lin_key.weight, self.path)
        check_features(own, self.lin_query.weight, self.path)
        check_edges(edge_index, self.path)
        sides = len(sent), len(own)
        query = head_rows(own, self.lin_query, self.heads, 1 / math.sqrt(self.out_channels)).padded(max(sides))
        key, value = (head_rows(sent, lin, self.heads).padded(max(sides)) for lin in (self.lin_key, self.lin_value))
        whole, edges, alive, loop = self.edges_for(edge_index, sides, None, sent, value.x.dtype)
        score, mine = attention.dot_scores(key, query, edges.adjacency, loops=loop is not None)
        known, macs = (whole, edges, alive), edges.count * key.width
        out = self.weighted(value, score, mine, loop, edge_index, sides, known, macs, began)
        out = out if self.concat else out.view(-1, self.heads, self.out_channels).mean(dim=1)
        if not self.root_weight:
            return out
        skip = self.lin_skip(own)
        if self.lin_beta is None:
            return out + skip
        beta = self.lin_beta(torch.cat([out, skip, out - skip], dim=-1)).sigmoid()
        return beta * skip + (1 - beta) * out
