"""APPNP, SGConv, SSGConv, LGConv: one polynomial of T, before or without a linear map."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from torch import Tensor
from torch.nn.functional import dropout
from torch_geometric.nn import APPNP, LGConv, SGConv, SSGConv

from unifews.nn.convs.base import cached, prunes
from unifews.nn.convs.hops import ManyHops
from unifews.nn.edges import LayerEdges, Norm


class PolynomialConv(ManyHops):
    """Σ_k θ_k T^k x, and for layers with weights W, Wᵀ from the right and b; unpruned, on the narrower side of W."""

    @property
    def terms(self) -> tuple[float, ...]:
        """θ_k."""
        raise NotImplementedError

    def pruned(self, x: Tensor, edges: LayerEdges) -> Tensor:
        """The polynomial hop by hop."""
        raise NotImplementedError

    @property
    def loops(self) -> bool:
        return bool(getattr(self, "add_self_loops", False)) and self.norm == "gcn"

    @property
    def norm(self) -> Norm:
        return "gcn" if getattr(self, "normalize", True) else "sum"

    @property
    def is_normalized(self) -> bool:
        return self.loops

    @property
    def matrix(self) -> Tensor | None:
        """W [outputs, inputs], unmasked."""
        lin = getattr(self, "lin", None)
        return None if lin is None else lin.matrix

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        if why := self.why(x):
            other: Tensor = self.forward_by_messages(why, x, edge_index, edge_weight)
            return other
        self.check(x, edge_index, self.matrix)
        edges = self.normalized(x, edge_index, edge_weight, self.norm, self.loops)
        lin = getattr(self, "lin", None)
        with self.running(x, edge_index):
            if self._prunes:
                out = self.pruned(x, edges)
                return out if lin is None else cast(Tensor, lin(out))
            (terms,) = self.shorter((self.terms,), edges, self.norm)
            keeps = getattr(self, "cached", False)  # PyG's option: x is propagated once
            if lin is not None and not keeps and x.shape[1] > len(lin.matrix):
                out = self.polynomial(lin.times(x), edges, terms)
                return out if lin.bias is None else out + lin.bias
            if lin is None:
                return self.polynomial(x, edges, terms)
            made, again = cached(x, edges, f"polynomial {terms}", lambda: self.polynomial(x, edges, terms))
            if again:
                self.record_hops(x.shape[1], edges, len(terms) - 1, 0.0)
            return cast(Tensor, lin(made))

    def why(self, x: Any) -> str:
        """Why PyG's messages are needed."""
        return "features that are no matrix" if isinstance(x, Tensor) and x.ndim > 2 else ""


@prunes(APPNP)
class PrunedAPPNP(PolynomialConv, APPNP):  # type: ignore[misc]
    """x ← (1-α) T x + α x₀, K times. Dropout of edges, in training and unpruned, takes PyG's messages."""

    @property
    def terms(self) -> tuple[float, ...]:
        a = float(self.alpha)
        return (*[a * (1 - a) ** k for k in range(self.K)], (1 - a) ** self.K)

    def pruned(self, x: Tensor, edges: LayerEdges) -> Tensor:
        h, drops = x, self.dropout > 0 and self.training
        for _ in range(self.K):
            edges = self._dropped(edges) if drops else edges
            x = (1 - self.alpha) * self.hop(x, edges) + self.alpha * h
        return x

    def _dropped(self, edges: LayerEdges) -> LayerEdges:
        """Dropout of the factors, the self-loops included, on top of that of earlier hops, as in PyG."""
        ones = edges.factor if edges.weight is None else edges.weight
        loop = None if edges.loop is None else dropout(edges.loop, self.dropout)
        return replace(edges, weight=dropout(ones, self.dropout), loop=loop)

    def why(self, x: Any) -> str:
        return super().why(x) or ("dropout of edges" if self.dropout > 0 and self.training and not self._prunes else "")


@prunes(SGConv)
class PrunedSGConv(PolynomialConv, SGConv):  # type: ignore[misc]
    """T^K x Wᵀ + b."""

    @property
    def terms(self) -> tuple[float, ...]:
        return (*[0.0] * self.K, 1.0)

    def pruned(self, x: Tensor, edges: LayerEdges) -> Tensor:
        for _ in range(self.K):
            x = self.hop(x, edges)
        return x


@prunes(SSGConv)
class PrunedSSGConv(PolynomialConv, SSGConv):  # type: ignore[misc]
    """(α x + (1-α)/K Σ_k T^k x) Wᵀ + b."""

    @property
    def terms(self) -> tuple[float, ...]:
        return (float(self.alpha), *[(1 - float(self.alpha)) / self.K] * self.K)

    def pruned(self, x: Tensor, edges: LayerEdges) -> Tensor:
        h: Tensor = self.alpha * x
        for _ in range(self.K):
            x = self.hop(x, edges)
            h = h + (1 - self.alpha) / self.K * x
        return h


@prunes(LGConv)
class PrunedLGConv(PolynomialConv, LGConv):  # type: ignore[misc]
    """T x, without self-loops."""

    shortens = False

    @property
    def terms(self) -> tuple[float, ...]:
        return (0.0, 1.0)

    def pruned(self, x: Tensor, edges: LayerEdges) -> Tensor:
        return self.hop(x, edges)
