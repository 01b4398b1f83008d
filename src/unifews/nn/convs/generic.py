"""Any other message-passing layer: its messages are made as always, and those that do not matter are taken out.

That is right for every layer and saves nothing in the layer itself, which is told in the trace.
"""

from __future__ import annotations

import inspect
from functools import cache, wraps
from typing import Any

from torch import Tensor
from torch_geometric.nn import MessagePassing

from unifews.errors import InputError, ShapeError
from unifews.nn.convs.base import PrunedConv, is_pair
from unifews.nn.convs.messages import ByMessages


class PrunedGeneric(ByMessages):
    """The class that a layer without a fused path gets, mixed with its own."""

    fused = False

    def notes(self) -> tuple[str, ...]:
        kind, pruning = self.stands_for.__name__, self.session.pruning
        found: tuple[str, ...] = (
            f"{kind} takes the generic path: all its messages are made before some are taken out, so "
            f"pruning its edges saves operations on paper only",
        )
        if self.call > 0 and pruning.prunes_edges and pruning.entries in ("block", "feature"):
            found += (
                f"{kind} makes several products, and evaluation uses the threshold of the last one for all of them; "
                f"entries='unit' and 'node' keep a decision for each",
            )
        return found

    def columns_of(self, call: int) -> Tensor:
        return self.columns[call * self.seen_width : (call + 1) * self.seen_width]

    def check(self, x: Any) -> None:
        """Features, or those of senders and receivers."""
        parts: Any = x if is_pair(x) else [x]
        for part in parts:
            _check(part, self.path)


@cache
def generic(kind: type[MessagePassing]) -> type[PrunedConv]:
    """The pruned class for layers of this kind, the user's own included."""
    takes_x = list(inspect.signature(kind.forward).parameters)[1:2] == ["x"]
    body: dict[str, Any] = {
        "stands_for": kind,
        "__module__": __name__,
        "__doc__": kind.__doc__,
        "forward": _forward(kind, takes_x),
    }
    return type(f"Pruned{kind.__name__}", (PrunedGeneric, kind), body)


def _forward(kind: type[MessagePassing], takes_x: bool) -> Any:
    """The layer's own forward, after a look at the x that it begins with."""

    @wraps(kind.forward)
    def forward(self: PrunedGeneric, *args: Any, **kwargs: Any) -> Any:
        if takes_x:
            self.check(args[0] if args else kwargs.get("x"))
        return self.by_messages(*args, **kwargs)

    return forward


def _check(x: Any, path: str) -> None:
    """What no layer can take; some do without features, take a number for each node, or more than two dimensions."""
    if x is None:
        return
    if not isinstance(x, Tensor):
        raise InputError(
            f"{path} is given a {type(x).__name__} for its features; give a torch tensor x [nodes, columns] (torch.from_numpy "
            f"makes one of an array)."
        )
    if x.is_floating_point() and x.ndim < 2:
        raise ShapeError(f"{path} is given features of shape {list(x.shape)}; give a matrix x [nodes, columns].")
