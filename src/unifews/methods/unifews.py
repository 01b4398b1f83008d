"""Unifews: an entry of a matrix product stays when its message is large enough; edges per hop, and weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from unifews.core.graph import Graph
from unifews.core.schemes import Scheme
from unifews.methods.registry import Card, method
from unifews.propagation.api import propagate
from unifews.propagation.result import Propagated


@method(
    "unifews",
    prunes=("edges", "weights"),
    backbones=("appnp", "sgc", "mlp", "gcn", "gat", "sage", "gcnii", "gin"),
    paper="Liao et al., Unifews: You Need Fewer Operations for Efficient Graph Neural Networks, ICML 2025",
)
@dataclass(frozen=True)
class Unifews:
    """This library's own method. Its settings are those of `propagate`, `sparsify` and `train` themselves."""

    card: ClassVar[Card]

    def propagate(
        self, graph: Graph, x: Any, scheme: str | Scheme = "sgc", *more: Any, seed: int = 42, **how: Any
    ) -> Propagated:
        """`unifews.propagate` with all its settings; nothing is random, so `seed` does not matter."""
        return propagate(graph, x, scheme, *more, **how)
