"""TAGConv and ChebConv: several polynomials of T, each with weights of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import ChebConv, MessagePassing, TAGConv

from unifews.nn.convs.base import prunes
from unifews.nn.convs.hops import ManyHops
from unifews.nn.edges import LayerEdges, Norm
from unifews.nn.ops.linear import times


class PowersConv(ManyHops):
    """Σ_k p_k(T) x W_kᵀ + b for p_k = 1, T, ... in a recurrence p_{k+1} = a T p_k - c p_{k-1}."""

    def step(self, around: Tensor, before: Tensor | None) -> Tensor:
        """p_{k+1}(T) x from T p_k(T) x and p_{k-1}(T) x."""
        raise NotImplementedError

    def summed(self, x: Tensor, edges: LayerEdges) -> Tensor:
        """The layer without its bias, in PyG's order."""
        out: Tensor = self.lins[0](x)
        before: Tensor | None = None
        for lin in self.lins[1:]:
            before, x = x, self.step(self._sent(x, edges), before)
            out = out + lin(x)
        return out

    def _sent(self, x: Tensor, edges: LayerEdges) -> Tensor:
        if self._prunes:
            return self.hop(x, edges)
        self._known_run.product += 1
        self.set_width(x.shape[1])
        return self.diffuse_cached(x, edges)

    def _biased(self, out: Tensor) -> Tensor:
        return out if self.bias is None else out + self.bias


@prunes(TAGConv)
class PrunedTAGConv(PowersConv, TAGConv):  # type: ignore[misc]
    """p_k = T^k without self-loops; unpruned, on the narrower side of the weights (Horner's scheme)."""

    @property
    def norm(self) -> Norm:
        return "gcn" if self.normalize else "sum"

    def step(self, around: Tensor, before: Tensor | None) -> Tensor:
        return around

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        if isinstance(x, Tensor) and x.ndim > 2:
            other: Tensor = self.forward_by_messages("features that are no matrix", x, edge_index, edge_weight)
            return other
        self.check(x, edge_index, self.lins[0].matrix)
        edges = self.normalized(x, edge_index, edge_weight, self.norm, False)
        with self.running(x, edge_index):
            if self._prunes:
                return self._biased(self.summed(x, edges))
            own = tuple((*[0.0] * k, 1.0) for k in range(len(self.lins)))
            powers = self.shorter(own, edges, self.norm)
            if powers is not own:
                return self._biased(self._combined(x, edges, powers))
            if x.shape[1] <= len(self.lins[0].matrix):
                return self._biased(self.summed(x, edges))
            out: Tensor = self.lins[-1](x)
            for lin in reversed(self.lins[:-1]):
                self._known_run.product += 1
                self.set_width(out.shape[1])
                out = self.diffuse(out, edges, x) + lin(x)
            return self._biased(out)

    def _combined(self, x: Tensor, edges: LayerEdges, powers: tuple[tuple[float, ...], ...]) -> Tensor:
        """Σ_j T^j x (Σ_k powers[k][j] W_k)ᵀ."""
        weights = torch.stack([lin.prepare(x) for lin in self.lins])
        mixed = torch.einsum("kj,koi->joi", torch.tensor(powers, dtype=x.dtype, device=x.device), weights)
        out = times(x, mixed[0])
        for weight in mixed[1:]:
            x = self._sent(x, edges)
            out = out + times(x, weight)
        return out


@prunes(ChebConv)
class PrunedChebConv(PowersConv, ChebConv):  # type: ignore[misc]
    """p_k = C_k, the Chebyshev polynomials, of T = L - 1 with the symmetric Laplacian L; `lambda_max`, `batch` and negative
    weights take PyG's messages. No polynomial of a lower degree is near C_k, so `max_error` does not apply."""

    shortens = False

    @classmethod
    def supports(cls, conv: MessagePassing) -> bool:
        return super().supports(conv) and conv.normalization == "sym" and conv.flow == "source_to_target"

    @classmethod
    def option(cls, conv: MessagePassing) -> str:
        if conv.normalization != "sym":
            return f"normalization={conv.normalization!r}"
        return f"flow={conv.flow!r}" if conv.flow != "source_to_target" else super().option(conv)

    def step(self, around: Tensor, before: Tensor | None) -> Tensor:
        return around if before is None else 2.0 * around - before

    def forward(
        self,
        x: Tensor,
        edge_index: Any,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
        lambda_max: Any = None,
    ) -> Tensor:
        if why := self._why(x, edge_index, edge_weight, batch, lambda_max):
            other: Tensor = self.forward_by_messages(why, x, edge_index, edge_weight, batch, lambda_max)
            return other
        self.check(x, edge_index, self.lins[0].matrix)
        edges = LayerEdges.of(edge_index, edge_weight, len(x), "cheb", dtype=x.dtype)
        with self.running(x, edge_index):
            return self._biased(self.summed(x, edges))

    def _why(self, x: Any, edge_index: Any, edge_weight: Tensor | None, batch: Any, lambda_max: Any) -> str:
        if isinstance(x, Tensor) and x.ndim > 2:
            return "features that are no matrix"
        if batch is not None or lambda_max is not None:
            return "batch or lambda_max"
        if not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided:
            return "a sparse matrix"
        # PyG takes lambda_max = 2 · the largest entry of L, which is 2 unless weights are negative.
        return "negative edge weights" if edge_weight is not None and bool((edge_weight < 0).any()) else ""
