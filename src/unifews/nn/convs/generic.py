"""Any other message-passing layer: all messages are computed, and small ones are then set to zero.

This works for every layer but saves no time in the layer itself; the trace reports it.
"""

from __future__ import annotations

import inspect
from functools import cache, wraps
from typing import Any

from torch import Tensor
from torch_geometric.nn import APPNP, MessagePassing, MixHopConv, SGConv, SSGConv, SuperGATConv

from unifews.errors import InputError, ShapeError
from unifews.nn.convs.base import PrunedConv
from unifews.nn.convs.checks import is_pair
from unifews.nn.convs.messages import ByMessages

_NORMALIZED = (APPNP, MixHopConv, SGConv, SSGConv, SuperGATConv)
"""Layers of messages factor · x[v] whose factors are normalised, by degrees or by a softmax, if they add self-loops."""


class PrunedGeneric(ByMessages):
    """Base class of pruned layers without a fused path, combined with the layer's own class."""

    fused = False

    @property
    def is_normalized(self) -> bool:
        return self.stands_for in _NORMALIZED and self.add_self_loops and getattr(self, "normalize", True)

    def notes(self) -> tuple[str, ...]:
        kind, pruning = self.stands_for.__name__, self.session.pruning
        if not pruning.prunes_edges:
            return ()
        found: tuple[str, ...] = (
            f"{kind} takes the generic path: all its messages are computed before some are set to zero, so "
            f"pruning its edges reduces the counted operations only, not the time",
        )
        if self.call > 0 and not self.session.kind.by_product:
            found += (
                f"{kind} computes several products, and evaluation uses the threshold of the last one for all of them; "
                f"entries='unit' and 'node' store one decision each",
            )
        return found

    def columns_of(self, call: int) -> Tensor:
        return self.columns[call * self.seen_width : (call + 1) * self.seen_width]

    def check(self, x: Any) -> None:
        """Check the features, or those of senders and receivers."""
        parts: Any = x if is_pair(x) else [x]
        for part in parts:
            _check(part, self.path)


@cache
def generic(kind: type[MessagePassing]) -> type[PrunedConv]:
    """The pruned class for layers of this class, custom ones included."""
    takes_x = list(inspect.signature(kind.forward).parameters)[1:2] == ["x"]
    body: dict[str, object] = {
        "stands_for": kind,
        "__module__": __name__,
        "__doc__": kind.__doc__,
        "forward": _forward(kind, takes_x),
    }
    return type(f"Pruned{kind.__name__}", (PrunedGeneric, kind), body)


def _forward(kind: type[MessagePassing], takes_x: bool) -> Any:
    """The layer's own forward, after a check of x."""

    @wraps(kind.forward)
    def forward(self: PrunedGeneric, *args: Any, **kwargs: Any) -> Any:
        if takes_x:
            self.check(args[0] if args else kwargs.get("x"))
        return self.by_messages(*args, **kwargs)

    return forward


def _check(x: Any, path: str) -> None:
    """Reject features that no layer takes; None, integers per node and more than two dimensions are allowed."""
    if x is None:
        return
    if not isinstance(x, Tensor):
        raise InputError(
            f"{path} is called with a {type(x).__name__} as features; give a torch tensor x [nodes, columns] (torch.from_numpy "
            f"converts an array)."
        )
    if x.is_floating_point() and x.ndim < 2:
        raise ShapeError(f"{path} is called with features of shape {list(x.shape)}; give a matrix x [nodes, columns].")
