"""Layers that no kernel knows while they train, and whose sums over neighbours are steps all the same.

None for a layer that does something else as well: it is then frozen with its own code (own.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_geometric.nn import APPNP, ChebConv, GraphConv, MixHopConv, SGConv, TAGConv

from unifews.nn.convs.base import PrunedConv
from unifews.nn.convs.gcn import sums
from unifews.nn.convs.generic import generic
from unifews.serving.layers import FREEZES, diffuse, freezes, matrix

if TYPE_CHECKING:
    from unifews.serving.tracer import Builder

__all__ = ["FREEZES"]


@freezes(generic(GraphConv))
def graph(to: Builder, conv: Any, given: dict[str, Any]) -> int | None:
    """W₁ Σ_v e[u,v] x[v] + W₂ x[u]."""
    norm = "sum" if sums(conv) else "mean" if _means(conv, given) else None
    if norm is None:
        return None
    around = diffuse(to, conv, given, given["x"], None, norm=norm, loops=None, weighted_loops=None)
    own = to.linear(given["x"], matrix(conv.lin_root), conv.lin_root.bias)
    return to.sum([to.linear(around, matrix(conv.lin_rel), conv.lin_rel.bias), own])


@freezes(generic(SGConv))
def sg(to: Builder, conv: Any, given: dict[str, Any]) -> int | None:
    """T^K x Wᵀ + b."""
    if not sums(conv):
        return None
    x = given["x"]
    for hop in range(conv.K):
        x = _normalised(to, conv, given, x, hop, loops=conv.add_self_loops)
    return to.linear(x, matrix(conv.lin), conv.lin.bias)


@freezes(generic(TAGConv))
def tag(to: Builder, conv: Any, given: dict[str, Any]) -> int | None:
    """Σ_k T^k x W_kᵀ + b, T without self-loops."""
    if not sums(conv):
        return None
    return _powers(to, conv, given, lambda x, _, hop: _normalised(to, conv, given, x, hop, loops=False, norm=conv.normalize))


@freezes(generic(APPNP))
def appnp(to: Builder, conv: Any, given: dict[str, Any]) -> int | None:
    """x ← (1-α) T x + α x₀, K times."""
    if not sums(conv):
        return None
    x, alpha = given["x"], float(conv.alpha)
    for hop in range(conv.K):
        around = _normalised(to, conv, given, x, hop, loops=conv.normalize and conv.add_self_loops, norm=conv.normalize)
        x = to.sum([around, given["x"]], [1 - alpha, alpha])
    return x if conv.K else to.sum([x])


@freezes(generic(ChebConv))
def cheb(to: Builder, conv: Any, given: dict[str, Any]) -> int | None:
    """Σ_k C_k x W_kᵀ + b, C_k = 2 T C_{k-1} - C_{k-2} with T = L - I of the symmetric Laplacian L."""
    plain = conv.normalization == "sym" and conv.flow == "source_to_target"
    if not sums(conv) or not plain or any(given.get(name) is not None for name in ("batch", "lambda_max")):
        return None

    def step(x: int, before: int | None, hop: int) -> int:
        around = diffuse(to, conv, given, x, None, product=hop, norm="cheb", loops=None, weighted_loops=None)
        return around if before is None else to.sum([around, before], [2.0, -1.0])

    return _powers(to, conv, given, step)


@freezes(generic(MixHopConv))
def mixhop(to: Builder, conv: Any, given: dict[str, Any]) -> int | None:
    """T^p x W_pᵀ of some powers p side by side, + b."""
    if not sums(conv):
        return None
    values = [given["x"]]
    for hop in range(len(conv.lins) - 1):
        values.append(_normalised(to, conv, given, values[-1], hop, loops=conv.add_self_loops))
    made = to.add("cat", [to.linear(values[p], matrix(conv.lins[p]), conv.lins[p].bias) for p in conv.powers])
    return made if conv.bias is None else to.affine(made, shift=conv.bias)


def _powers(to: Builder, conv: Any, given: dict[str, Any], step: Any) -> int:
    """Σ_k x_k W_kᵀ + b, with x_k = step(x_{k-1}, x_{k-2}, k-1)."""
    before, x = None, given["x"]
    parts = [to.linear(x, matrix(conv.lins[0]), conv.lins[0].bias)]
    for hop, lin in enumerate(conv.lins[1:]):
        before, x = x, step(x, before, hop)
        parts.append(to.linear(x, matrix(lin), lin.bias))
    made = to.sum(parts)
    return made if conv.bias is None else to.affine(made, shift=conv.bias)


def _normalised(
    to: Builder, conv: PrunedConv, given: dict[str, Any], x: int, hop: int, *, loops: bool, norm: bool = True
) -> int:
    """T x by PyG's `gcn_norm`, or as the edges are."""
    weight = 1.0 if loops else None
    how: dict[str, Any] = {"norm": "gcn" if norm else "sum", "loops": weight, "weighted_loops": weight}
    return diffuse(to, conv, given, x, None, product=hop, **how)


def _means(conv: PrunedConv, given: dict[str, Any]) -> bool:
    """Whether its mean is a step: sizes are compared before it divides, so none that does that, and none with weights."""
    pruning = conv.session.pruning
    by_size = pruning.prunes_edges and pruning.entries != "unit"
    return conv.aggr == "mean" and conv.node_dim in (-2, 0) and not by_size and given.get("edge_weight") is None
