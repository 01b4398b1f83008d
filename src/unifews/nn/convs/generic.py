"""Any other message-passing layer: its messages are made as always, and those that do not matter are taken out.

That is right for every layer and saves nothing in the layer itself, which is told in the trace.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from torch_geometric.nn import MessagePassing

from unifews.nn.convs.base import PrunedConv
from unifews.nn.convs.messages import ByMessages


class PrunedGeneric(ByMessages):
    """The class that a layer without a fused path gets, mixed with its own."""

    fused = False

    def notes(self) -> tuple[str, ...]:
        return (
            f"{self.stands_for.__name__} takes the generic path: all its messages are made before some are taken out, so "
            f"pruning its edges saves operations on paper only",
        )


@cache
def generic(kind: type[MessagePassing]) -> type[PrunedConv]:
    """The pruned class for layers of this kind, the user's own included."""
    body: dict[str, Any] = {"stands_for": kind, "__module__": __name__, "__doc__": kind.__doc__}
    return type(f"Pruned{kind.__name__}", (PrunedGeneric, kind), body)
