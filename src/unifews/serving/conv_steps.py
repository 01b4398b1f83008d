"""Message-passing layers as steps; a function here adds a kind of layer by `@freezes(...)`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch_geometric.nn import MixHopConv

from unifews.errors import InputError
from unifews.nn.convs.base import PrunedConv
from unifews.nn.convs.gat import Attending, PrunedGATConv, PrunedGATv2Conv
from unifews.nn.convs.gcn import PrunedGCNConv, sums
from unifews.nn.convs.gcn2 import PrunedGCN2Conv
from unifews.nn.convs.generic import generic
from unifews.nn.convs.gin import PrunedGINConv
from unifews.nn.convs.graph import PrunedGraphConv
from unifews.nn.convs.polynomial import PrunedAPPNP, PrunedLGConv, PrunedSGConv, PrunedSSGConv
from unifews.nn.convs.powers import PrunedChebConv, PrunedTAGConv
from unifews.nn.convs.sage import PrunedSAGEConv
from unifews.nn.linear import PrunedWeight
from unifews.serving.program import Settings

if TYPE_CHECKING:
    from unifews.serving.tracer import Tracer

Arguments = Mapping[str, Any]
"""What a layer is called with, by the names of the parameters of its forward."""
Freeze = Callable[["Tracer", Any, Arguments], int | None]
FREEZES: dict[type[PrunedConv], Freeze] = {}
"""How a layer becomes steps, by its class: (builder, layer, arguments) → number of its result, or None if the layer computes
something that steps cannot; it then runs with its own code (`tracer.OwnLayer`)."""
F = TypeVar("F", bound=Freeze)


def freezes(kind: type[PrunedConv]) -> Callable[[F], F]:
    """Register the decorated function for layers of this kind."""

    def put(freeze: F) -> F:
        FREEZES[kind] = freeze
        return freeze

    return put


@freezes(PrunedGCNConv)
def gcn(to: Tracer, conv: PrunedGCNConv, given: Arguments) -> int:
    loops = 1.0 if conv.add_self_loops else None
    heavy = None if loops is None else 2.0 if conv.improved else 1.0
    how = dict(norm="gcn" if conv.normalize else "sum", loops=loops, weighted_loops=heavy)
    return _around_weights(to, conv, given, conv.lin, conv.bias, how)


@freezes(PrunedSAGEConv)
def sage(to: Tracer, conv: PrunedSAGEConv, given: Arguments) -> int:
    x = given["x"]
    around = to.activate(to.linear(x, matrix(conv.lin), conv.lin.bias), "relu") if conv.project else x
    how = dict(norm="mean" if conv.aggr == "mean" else "sum", loops=None, weighted_loops=None)
    out = _around_weights(to, conv, {**given, "x": around}, conv.lin_l, conv.lin_l.bias, how)
    if conv.root_weight:
        out = to.sum([out, to.linear(x, matrix(conv.lin_r), conv.lin_r.bias)])
    return to.add("normalize", [out], {"eps": 1e-12}) if conv.normalize else out


@freezes(PrunedGINConv)
def gin(to: Tracer, conv: PrunedGINConv, given: Arguments) -> int:
    x = given["x"]
    sent = diffuse(to, conv, given, x, None, norm="sum", loops=None, weighted_loops=None)
    return to.inline(conv.nn, to.sum([sent, x], [1.0, 1.0 + float(conv.eps)]), conv.path + ".nn")


@freezes(PrunedGCN2Conv)
def gcn2(to: Tracer, conv: PrunedGCN2Conv, given: Arguments) -> int:
    """(1-β) h + β h W is one matrix, (1-β) I + β W."""
    loops = 1.0 if conv.normalize and conv.add_self_loops else None
    how: Settings = dict(norm="gcn" if conv.normalize else "sum", loops=loops, weighted_loops=loops)
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
def gatv2(to: Tracer, conv: PrunedGATv2Conv, given: Arguments) -> int:
    x = given["x"]
    left = to.linear(x, matrix(conv.lin_l), conv.lin_l.bias)
    right = left if conv.share_weights else to.linear(x, matrix(conv.lin_r), conv.lin_r.bias)
    return _attend(to, conv, given, "gatv2", [left, right], {"att": conv.att[0]})


@freezes(PrunedGATConv)
def gat(to: Tracer, conv: PrunedGATConv, given: Arguments) -> int:
    if conv.lin is None:
        raise InputError(f"{conv.path} has weights for two sets of nodes; a frozen model supports one set.")
    sent = to.linear(given["x"], matrix(conv.lin), conv.lin.bias)
    return _attend(to, conv, given, "gat", [sent], {"source": conv.att_src[0], "target": conv.att_dst[0]})


def _attend(to: Tracer, conv: Attending, given: Arguments, op: str, values: list[int], arrays: dict[str, Tensor]) -> int:
    if given.get("edge_attr") is not None or given.get("return_attention_weights") is not None:
        raise InputError(f"{conv.path} is called with edge features or return_attention_weights, which a frozen model lacks.")
    form, kept = pruned(conv)
    settings = {**form, "heads": conv.heads, "slope": float(conv.negative_slope), "loops": bool(conv.add_self_loops)}
    settings["renormalize"] = conv.renormalizes
    out = to.add(op, values, settings, {**arrays, **kept})
    if not conv.concat:
        out = to.add("mean_heads", [out], {"heads": conv.heads})
    if conv.res is not None:
        out = to.sum([out, to.linear(given["x"], matrix(conv.res), conv.res.bias)])
    return out if conv.bias is None else to.affine(out, shift=conv.bias)


def _around_weights(to: Tracer, conv: PrunedConv, given: Arguments, weights: Any, bias: Tensor | None, how: Settings) -> int:
    """T x Wᵀ + b, with the sum over neighbours on the same side of the weights as in training."""
    x, weight = given["x"], matrix(weights)
    if to.width(x) < len(weight) and not conv.session.pruning.prunes_edges:
        return to.linear(diffuse(to, conv, given, x, None, **how), weight, bias)
    return diffuse(to, conv, given, to.linear(x, weight, None), bias, **how)


def diffuse(
    to: Tracer, conv: PrunedConv, given: Arguments, x: int, bias: Tensor | None, *, product: int = 0, **how: Any
) -> int:
    """The step of one product of a layer (`product` counts from 0)."""
    form, kept = pruned(conv, product)
    weighted = given.get("edge_weight") is not None
    arrays = kept if bias is None else {**kept, "bias": bias}
    settings = {**how, "weighted": weighted, "relu": False, "renormalize": conv.renormalizes}
    return to.add("diffuse", [x], {**settings, **form}, arrays)


def pruned(conv: PrunedConv, product: int = 0) -> tuple[Settings, dict[str, Tensor]]:
    """Which messages a layer sends: settings and arrays of the step of one of its products."""
    pruning = conv.session.pruning
    settings: dict[str, object] = {"flow": conv.flow, "form": "all", "delta": None, "nodes": 0, "inherit": False}
    if not pruning.prunes_edges:
        return settings, {}
    delta = float(conv.delta)
    settings["delta"] = None if math.isinf(delta) else delta  # None = infinite
    kind = conv.session.kind
    form, arrays = kind.frozen(conv, product)
    if not kind.by_edge:
        return {**settings, **form}, arrays
    if pruning.inherit and conv.session.has_branches:
        raise InputError(
            f"{conv.path} is one of several parallel layers, and a compressed model inherits removed edges from one layer to "
            f"the next; sparsify the model with entries='unit' or inherit=False."
        )
    return {**settings, "inherit": pruning.inherit, **form}, arrays


def matrix(module: Any) -> Tensor:
    """The masked weights, [outputs, inputs] of a linear layer."""
    found: Tensor = module.effective if isinstance(module, PrunedWeight) else module.weight
    return found.detach().cpu().float()


# ------------------------------------------------------------------------------- layers of several products, and MixHop


@freezes(PrunedGraphConv)
def graph(to: Tracer, conv: Any, given: Arguments) -> int | None:
    """W₁ Σ_v e[u,v] x[v] + W₂ x[u]."""
    norm = "sum" if sums(conv) else "mean" if _means(conv, given) else None
    if norm is None:
        return None
    around = diffuse(to, conv, given, given["x"], None, norm=norm, loops=None, weighted_loops=None)
    own = to.linear(given["x"], matrix(conv.lin_root), conv.lin_root.bias)
    return to.sum([to.linear(around, matrix(conv.lin_rel), conv.lin_rel.bias), own])


@freezes(PrunedSGConv)
def sg(to: Tracer, conv: Any, given: Arguments) -> int | None:
    """T^K x Wᵀ + b."""
    if not sums(conv) or conv.session.max_error is not None:
        return None
    x = given["x"]
    for hop in range(conv.K):
        x = _normalised(to, conv, given, x, hop, loops=conv.add_self_loops)
    return to.linear(x, matrix(conv.lin), conv.lin.bias)


@freezes(PrunedSSGConv)
def ssg(to: Tracer, conv: Any, given: Arguments) -> int | None:
    """(α x + (1-α)/K Σ_k T^k x) Wᵀ + b."""
    if conv.session.max_error is not None:
        return None
    parts = [given["x"]]
    for hop in range(conv.K):
        parts.append(_normalised(to, conv, given, parts[-1], hop, loops=conv.add_self_loops))
    alpha = float(conv.alpha)
    return to.linear(to.sum(parts, [alpha, *[(1 - alpha) / conv.K] * conv.K]), matrix(conv.lin), conv.lin.bias)


@freezes(PrunedLGConv)
def lg(to: Tracer, conv: Any, given: Arguments) -> int:
    """T x, T without self-loops."""
    return _normalised(to, conv, given, given["x"], 0, loops=False, norm=conv.normalize)


@freezes(PrunedTAGConv)
def tag(to: Tracer, conv: Any, given: Arguments) -> int | None:
    """Σ_k T^k x W_kᵀ + b, T without self-loops."""
    if not sums(conv) or conv.session.max_error is not None:
        return None
    return _powers(to, conv, given, lambda x, _, hop: _normalised(to, conv, given, x, hop, loops=False, norm=conv.normalize))


@freezes(PrunedAPPNP)
def appnp(to: Tracer, conv: Any, given: Arguments) -> int | None:
    """x ← (1-α) T x + α x₀, K times."""
    if not sums(conv) or conv.session.max_error is not None:
        return None
    x, alpha = given["x"], float(conv.alpha)
    for hop in range(conv.K):
        around = _normalised(to, conv, given, x, hop, loops=conv.normalize and conv.add_self_loops, norm=conv.normalize)
        x = to.sum([around, given["x"]], [1 - alpha, alpha])
    return x if conv.K else to.sum([x])


@freezes(PrunedChebConv)
def cheb(to: Tracer, conv: Any, given: Arguments) -> int | None:
    """Σ_k C_k x W_kᵀ + b, C_k = 2 T C_{k-1} - C_{k-2} with T = L - I of the symmetric Laplacian L."""
    plain = conv.normalization == "sym" and conv.flow == "source_to_target"
    if not sums(conv) or not plain or any(given.get(name) is not None for name in ("batch", "lambda_max")):
        return None

    def step(x: int, before: int | None, hop: int) -> int:
        around = diffuse(to, conv, given, x, None, product=hop, norm="cheb", loops=None, weighted_loops=None)
        return around if before is None else to.sum([around, before], [2.0, -1.0])

    return _powers(to, conv, given, step)


@freezes(generic(MixHopConv))
def mixhop(to: Tracer, conv: Any, given: Arguments) -> int | None:
    """T^p x W_pᵀ of some powers p side by side, + b."""
    if not sums(conv):
        return None
    values = [given["x"]]
    for hop in range(len(conv.lins) - 1):
        values.append(_normalised(to, conv, given, values[-1], hop, loops=conv.add_self_loops))
    made = to.add("cat", [to.linear(values[p], matrix(conv.lins[p]), conv.lins[p].bias) for p in conv.powers])
    return made if conv.bias is None else to.affine(made, shift=conv.bias)


def _powers(to: Tracer, conv: Any, given: Arguments, step: Any) -> int:
    """Σ_k x_k W_kᵀ + b, with x_k = step(x_{k-1}, x_{k-2}, k-1)."""
    before, x = None, given["x"]
    parts = [to.linear(x, matrix(conv.lins[0]), conv.lins[0].bias)]
    for hop, lin in enumerate(conv.lins[1:]):
        before, x = x, step(x, before, hop)
        parts.append(to.linear(x, matrix(lin), lin.bias))
    made = to.sum(parts)
    return made if conv.bias is None else to.affine(made, shift=conv.bias)


def _normalised(to: Tracer, conv: PrunedConv, given: Arguments, x: int, hop: int, *, loops: bool, norm: bool = True) -> int:
    """T x normalised by PyG's `gcn_norm`, or the plain sum."""
    weight = 1.0 if loops else None
    how: Settings = {"norm": "gcn" if norm else "sum", "loops": weight, "weighted_loops": weight}
    return diffuse(to, conv, given, x, None, product=hop, **how)


def _means(conv: PrunedConv, given: Arguments) -> bool:
    """Whether its mean is a step: only without edge weights, and where magnitudes are not compared before the division."""
    pruning = conv.session.pruning
    by_size = pruning.prunes_edges and conv.session.kind.by_edge
    return conv.aggr == "mean" and conv.node_dim in (-2, 0) and not by_size and given.get("edge_weight") is None
