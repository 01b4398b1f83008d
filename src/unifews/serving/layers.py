"""One message-passing layer as steps; a function here adds a kind by `@freezes(...)`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from unifews.errors import InputError
from unifews.nn.convs.base import PrunedConv
from unifews.nn.convs.gat import Attending, PrunedGATConv, PrunedGATv2Conv
from unifews.nn.convs.gcn import PrunedGCNConv
from unifews.nn.convs.gcn2 import PrunedGCN2Conv
from unifews.nn.convs.gin import PrunedGINConv
from unifews.nn.convs.sage import PrunedSAGEConv
from unifews.nn.linear import PrunedWeight

if TYPE_CHECKING:
    from unifews.serving.tracer import Builder

Freeze = Callable[["Builder", Any, dict[str, Any]], int | None]
FREEZES: dict[type[PrunedConv], Freeze] = {}
"""How a layer becomes steps, by its class: (builder, layer, what it is called with by name) → the value it gives, or None if
steps cannot do all that it does."""
F = TypeVar("F", bound=Freeze)


def freezes(kind: type[PrunedConv]) -> Callable[[F], F]:
    """The decorated function freezes layers of this kind."""

    def put(freeze: F) -> F:
        FREEZES[kind] = freeze
        return freeze

    return put


@freezes(PrunedGCNConv)
def gcn(to: Builder, conv: PrunedGCNConv, given: dict[str, Any]) -> int:
    loops = 1.0 if conv.add_self_loops else None
    heavy = None if loops is None else 2.0 if conv.improved else 1.0
    how = dict(norm="gcn" if conv.normalize else "sum", loops=loops, weighted_loops=heavy)
    return _around_weights(to, conv, given, conv.lin, conv.bias, how)


@freezes(PrunedSAGEConv)
def sage(to: Builder, conv: PrunedSAGEConv, given: dict[str, Any]) -> int:
    x = given["x"]
    around = to.activate(to.linear(x, matrix(conv.lin), conv.lin.bias), "relu") if conv.project else x
    how = dict(norm="mean" if conv.aggr == "mean" else "sum", loops=None, weighted_loops=None)
    out = _around_weights(to, conv, {**given, "x": around}, conv.lin_l, conv.lin_l.bias, how)
    if conv.root_weight:
        out = to.sum([out, to.linear(x, matrix(conv.lin_r), conv.lin_r.bias)])
    return to.add("normalize", [out], {"eps": 1e-12}) if conv.normalize else out


@freezes(PrunedGINConv)
def gin(to: Builder, conv: PrunedGINConv, given: dict[str, Any]) -> int:
    x = given["x"]
    sent = diffuse(to, conv, given, x, None, norm="sum", loops=None, weighted_loops=None)
    return to.inline(conv.nn, to.sum([sent, x], [1.0, 1.0 + float(conv.eps)]), conv.path + ".nn")


@freezes(PrunedGCN2Conv)
def gcn2(to: Builder, conv: PrunedGCN2Conv, given: dict[str, Any]) -> int:
    """(1-β) h + β h W is one matrix, (1-β) I + β W."""
    loops = 1.0 if conv.normalize and conv.add_self_loops else None
    how: dict[str, Any] = dict(norm="gcn" if conv.normalize else "sum", loops=loops, weighted_loops=loops)
    sent = diffuse(to, conv, given, given["x"], None, **how)
    alpha, beta = float(conv.alpha), float(conv.beta)

    def mixed(mask: PrunedWeight) -> Tensor:
        weight = matrix(mask).T
        return beta * weight + (1 - beta) * torch.eye(len(weight))

    if conv.weight2_mask is None:
        return to.linear(to.sum([sent, given["x_0"]], [1 - alpha, alpha]), mixed(conv.weight1_mask), None)
    own = to.linear(given["x_0"], alpha * mixed(conv.weight2_mask), None)
    return to.sum([to.linear(sent, (1 - alpha) * mixed(conv.weight1_mask), None), own])


@freezes(PrunedGATv2Conv)
def gatv2(to: Builder, conv: PrunedGATv2Conv, given: dict[str, Any]) -> int:
    x = given["x"]
    left = to.linear(x, matrix(conv.lin_l), conv.lin_l.bias)
    right = left if conv.share_weights else to.linear(x, matrix(conv.lin_r), conv.lin_r.bias)
    return _attend(to, conv, given, "gatv2", [left, right], {"att": conv.att[0]})


@freezes(PrunedGATConv)
def gat(to: Builder, conv: PrunedGATConv, given: dict[str, Any]) -> int:
    if conv.lin is None:
        raise InputError(f"{conv.path} has weights for two sets of nodes; a frozen model has one set.")
    sent = to.linear(given["x"], matrix(conv.lin), conv.lin.bias)
    return _attend(to, conv, given, "gat", [sent], {"source": conv.att_src[0], "target": conv.att_dst[0]})


def _attend(to: Builder, conv: Attending, given: dict[str, Any], op: str, values: list[int], arrays: dict[str, Tensor]) -> int:
    if given.get("edge_attr") is not None or given.get("return_attention_weights") is not None:
        raise InputError(f"{conv.path} is called with edge features or asked for its attention; a frozen model has neither.")
    form, kept = pruned(conv)
    settings = {**form, "heads": conv.heads, "slope": float(conv.negative_slope), "loops": bool(conv.add_self_loops)}
    out = to.add(op, values, settings, {**arrays, **kept})
    if not conv.concat:
        out = to.add("mean_heads", [out], {"heads": conv.heads})
    if conv.res is not None:
        out = to.sum([out, to.linear(given["x"], matrix(conv.res), conv.res.bias)])
    return out if conv.bias is None else to.affine(out, shift=conv.bias)


def _around_weights(
    to: Builder, conv: PrunedConv, given: dict[str, Any], weights: Any, bias: Tensor | None, how: dict[str, Any]
) -> int:
    """T x Wᵀ + b: neighbours are summed where a layer that trains sums them."""
    x, weight = given["x"], matrix(weights)
    if to.width(x) < len(weight) and not conv.session.pruning.prunes_edges:
        return to.linear(diffuse(to, conv, given, x, None, **how), weight, bias)
    return diffuse(to, conv, given, to.linear(x, weight, None), bias, **how)


def diffuse(
    to: Builder, conv: PrunedConv, given: dict[str, Any], x: int, bias: Tensor | None, *, product: int = 0, **how: Any
) -> int:
    """The step of a product of a layer, counted from 0."""
    form, kept = pruned(conv, product)
    weighted = given.get("edge_weight") is not None
    arrays = kept if bias is None else {**kept, "bias": bias}
    return to.add("diffuse", [x], {**how, "weighted": weighted, "relu": False, **form}, arrays)


def pruned(conv: PrunedConv, product: int = 0) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What of its messages a layer sends: settings and arrays of the step of one of its products."""
    pruning = conv.session.pruning
    settings: dict[str, Any] = {"flow": conv.flow, "form": "all", "delta": None, "nodes": 0, "inherit": False}
    if not pruning.prunes_edges:
        return settings, {}
    delta = float(conv.delta)
    settings["delta"] = None if math.isinf(delta) else delta  # None: larger than any
    if pruning.entries == "unit":
        return {**settings, "form": "columns"}, {"columns": conv.columns_of(product)}
    if pruning.inherit and conv.session.has_branches:
        raise InputError(
            f"{conv.path} is one of several parallel layers, and a compressed model inherits removed edges from one layer to "
            f"the next; sparsify the model with entries='unit' or inherit=False."
        )
    settings["inherit"] = pruning.inherit
    if pruning.entries == "node":
        return {**settings, "form": "edges", "nodes": int(conv.nodes)}, {"removed": conv.removed_of(product).unique()}  # type: ignore[no-untyped-call]
    return {**settings, "form": pruning.entries}, {}


def matrix(module: Any) -> Tensor:
    """The weights that multiply, [outputs, inputs] of a linear layer."""
    found: Tensor = module.effective if isinstance(module, PrunedWeight) else module.weight
    return found.detach().cpu().float()
