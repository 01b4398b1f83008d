"""Layers of several hops over one matrix T. Unpruned, a polynomial of T is one operator (`unifews.nn.ops.polynomial`)."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from unifews.nn.convs.checks import check_dense, check_edges, check_features
from unifews.nn.convs.gcn import sums
from unifews.nn.convs.messages import ByMessages
from unifews.nn.economise import economise
from unifews.nn.edges import LayerEdges, Norm
from unifews.nn.ops.polynomial import polynomial
from unifews.nn.products.diffusion import diffused

Powers = tuple[tuple[float, ...], ...]


class ManyHops(ByMessages):
    """Base class. Pruned, every hop is a product with a decision of its own, in PyG's order of operations.

    With `max_error` of the session, polynomials of T are replaced by shorter ones where T is symmetric.
    """

    shortens: ClassVar[bool] = True
    """Whether there are shorter polynomials near those of the layer."""
    shortened = ""
    """What was said of the polynomial of the last call."""

    @classmethod
    def supports(cls, conv: MessagePassing) -> bool:
        return sums(conv)

    def notes(self) -> tuple[str, ...]:
        found = (*super().notes(), *([self.shortened] if self.shortened else []))
        if self.call > 0 and self.session.pruning.prunes_edges and not self.session.kind.by_product:
            found += (
                f"{self.stands_for.__name__} computes several products, and evaluation uses the threshold of the last one for "
                f"all of them; entries='unit' and 'node' store one decision each",
            )
        return found

    def columns_of(self, call: int) -> Tensor:
        return self.columns[call * self.seen_width : (call + 1) * self.seen_width]

    def end_pruning(self) -> None:
        self.__dict__.pop("shortened", None)
        super().end_pruning()

    @property
    def _prunes(self) -> bool:
        return self.session.pruning.prunes_edges

    def check(self, x: Tensor, edge_index: Any, weight: Tensor | None) -> None:
        check_features(x, weight, self.path)
        check_dense(x, self.path)
        check_edges(edge_index, self.path)

    def normalized(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None, norm: Norm, loops: bool) -> LayerEdges:
        """T as PyG's `gcn_norm`, or the plain sum."""
        fill = 1.0 if loops else None
        return LayerEdges.of(edge_index, edge_weight, len(x), norm, loops=fill, flow=self.flow, dtype=x.dtype)

    def hop(self, y: Tensor, edges: LayerEdges) -> Tensor:
        """T y, the next product of this call."""
        run = self._known_run
        run.product += 1
        self.set_width(y.shape[1])
        return self.diffuse(y, edges, run.given)

    def shorter(self, powers: Powers, edges: LayerEdges, norm: Norm) -> Powers:
        """The polynomials of T with these coefficients, or with `max_error` shorter ones near them."""
        self.shortened, allowed = "", self.session.max_error
        hops = max(map(len, powers)) - 1
        if allowed is None or hops < 2:
            return powers
        why = "" if norm != "sum" else "T is not normalised"
        why = why or ("edge weights are learnt" if edges.learnt else "")
        why = why or ("" if edges.is_symmetric else "the graph is directed or has negative weights")
        if why:
            self.shortened = f"{self.path}: {why}, so max_error is not used and its {hops} hops are exact"
            return powers
        found = economise(powers, allowed)
        if not found.error:
            self.shortened = f"{self.path}: no shorter polynomial is within max_error={allowed:g}; its {hops} hops are exact"
            return powers
        self.shortened = (
            f"{self.path}: {found.degree} hops instead of {hops}; the error is at most {found.error:.3g} of the norm of what "
            f"is propagated, forward and backward (max_error={allowed:g})"
        )
        return found.powers

    def polynomial(self, x: Tensor, edges: LayerEdges, terms: Sequence[float]) -> Tensor:
        """Σ_k terms[k] T^k x, unpruned; every hop is recorded."""
        began = perf_counter()
        if x.device.type == "cpu" and x.dtype == torch.float32 and not edges.learnt and x.shape[1]:
            out = polynomial(x, terms, edges.adjacency, edges.weight, edges.loop)
        else:
            out = terms[-1] * x
            for term in reversed(terms[:-1]):
                out = diffused(out, edges)
                out = out + term * x if term else out
        self.record_hops(x.shape[1], edges, len(terms) - 1, began)
        return out

    def record_hops(self, width: int, edges: LayerEdges, hops: int, began: float) -> None:
        """Add so many unpruned products to the trace."""
        self.set_width(width)
        for hop in range(hops):
            self.add_record(edges, width, edges.count, edges.count * width, None, began if hop == hops - 1 else perf_counter())
