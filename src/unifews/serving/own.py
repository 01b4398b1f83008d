"""A layer that has no step: frozen with its own code, which runs on all nodes and which no file holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from threading import Lock
from typing import Any

from torch import Tensor

from unifews.errors import InputError
from unifews.nn.convs.base import PrunedConv
from unifews.nn.linear import PrunedWeight
from unifews.nn.session import Session
from unifews.serving.layer import Layer, evaluating
from unifews.serving.private import private
from unifews.serving.steps import Value


class Given(Enum):
    """What stands for the edges and their weights while a model is followed."""

    EDGES = "edges"
    EDGE_WEIGHT = "edge weights"


@dataclass(frozen=True)
class Unavailable:
    """What stands for a tensor of a Data object that a frozen model is not called with."""

    name: str


@dataclass(frozen=True, eq=False)
class OwnLayer(Layer):
    """A copy of a pruned layer, and how it is called: with `Value` for the step's values, `Given` for the graph."""

    conv: PrunedConv
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    lock: Lock = field(default_factory=Lock)

    @classmethod
    def of(cls, conv: PrunedConv, path: str, args: Any, kwargs: Any, width: int) -> tuple[OwnLayer, list[int]]:
        """The layer, and the numbers of the values that it is called with."""
        kind, session = conv.stands_for.__name__, conv.session
        if getattr(conv, "cached", False):
            raise InputError(f"{path} is a {kind} that holds on to the graph it saw first; build it with cached=False.")
        pruning = session.pruning
        if pruning.prunes_edges and pruning.entries != "unit" and pruning.inherit and len(session.convs) > 1:
            raise InputError(
                f"{path} is a {kind}, which is frozen with its own code and cannot say there which edges it leaves to later "
                f"layers; sparsify the model with entries='unit' or inherit=False."
            )
        alone = Session(pruning, [], [])
        alone.phase = "frozen"
        own = private(conv, alone).eval()  # the session knows the whole model; this layer needs itself
        alone.convs, alone.weights = [own], [module for module in own.modules() if isinstance(module, PrunedWeight)]
        numbers: list[int] = []
        weighted = False

        def place(one: Any) -> Any:
            nonlocal weighted
            weighted = weighted or one is Given.EDGE_WEIGHT
            if isinstance(one, Value):
                numbers.append(one.number)
                return Value(len(numbers) - 1)
            return type(one)(map(place, one)) if type(one) in (tuple, list) else one

        called = tuple(map(place, args)), {name: place(value) for name, value in kwargs.items()}
        weights = [(module.kept, module.matrix.numel()) for module in alone.weights]
        kept, whole = (sum(column) for column in zip(*weights, strict=True)) if weights else (0, 0)
        return cls(path, kind, width, (kept, whole), weighted, own, *called), numbers

    def run(self, values: Sequence[Tensor], edge_index: Tensor, edge_weight: Tensor | None) -> Tensor:
        def fill(one: Any) -> Any:
            if isinstance(one, Value):
                return values[one.number]
            if isinstance(one, Given):
                return edge_index if one is Given.EDGES else edge_weight
            return type(one)(map(fill, one)) if type(one) in (tuple, list) else one

        args, kwargs = tuple(map(fill, self.args)), {name: fill(value) for name, value in self.kwargs.items()}
        with self.lock, evaluating(f"{self.path} ({self.kind})"):  # it writes to itself and to its session while it runs
            self.conv.session.begin(self.conv)
            out: Tensor = self.conv(*args, **kwargs)
        return out.detach()
