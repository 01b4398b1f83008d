"""Inheritance of removed edges from earlier layers (`inherit`).

Inheritance follows one chain of successive layers on one set of edges. A layer inherits from the last layer of the pass that

* had the same edges, compared by their ends, between the same number of nodes, and
* has the same relation: layers under different keys of a `ModuleDict` (PyG's `HeteroConv`, models from `to_hetero`, a dict of
  branches) are parallel and never inherit from each other; under the same key of several dicts they are successive.
  A layer outside of all dicts precedes those in them.

A layer that is called with the same features as an earlier one, on the same edges, is parallel to it, not its successor: both
inherit the same edges, and later layers lose only the edges that both removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from unifews.nn.edges import Adjacency

Relation = tuple[str, ...]
"""Keys of the `ModuleDict`s that contain a layer, outermost first."""


def relation_of(model: nn.Module, path: str) -> Relation:
    """The relation of the layer at this path of a model; dicts of one entry do not count."""
    keys, module = [], model
    for part in path.split(".") if path else ():
        if isinstance(module, nn.ModuleDict) and len(module) > 1:
            keys.append(part)
        module = module._modules[part]  # type: ignore[assignment]
    return tuple(keys)


@dataclass(frozen=True, eq=False)
class _KeptEdges:
    """The edges kept before or after a layer."""

    layer: nn.Module
    relation: Relation
    adjacency: Adjacency
    flags: Tensor | None
    """bool [m]: the edges not removed; None = all."""
    depth: int
    """Layers of the chain before this one."""

    def precedes(self, relation: Relation, adjacency: Adjacency) -> bool:
        return relation[: len(self.relation)] == self.relation and self.adjacency.has_edges_of(adjacency)

    def flags_for(self, adjacency: Adjacency) -> Tensor | None:
        if self.flags is None or self.adjacency is adjacency:
            return self.flags
        return self.adjacency.carry(self.flags, adjacency)


class Inheritance:
    """The edges that the layers of one pass have kept for later ones."""

    def __init__(self) -> None:
        self._left: list[_KeptEdges] = []  # one per relation and set of edges, the most recent last
        self._found = WeakTensorKeyDictionary()  # features of a call → their version, states of the layers called with them
        self._parallel: nn.Module | None = None  # the running layer, if it is parallel to an earlier one

    def __deepcopy__(self, memo: dict[int, Any]) -> Inheritance:
        return Inheritance()  # the state of one pass is not copied

    def __reduce__(self) -> tuple[type[Inheritance], tuple[()]]:
        return Inheritance, ()

    def reach(
        self, layer: nn.Module, relation: Relation, adjacency: Adjacency, given: Tensor | None
    ) -> tuple[Tensor | None, int]:
        """Flags [m] of the edges that reach this layer (None = all) and its depth; `given`: the features it is called with."""
        states = [] if given is None else self._called_with(given)
        beside = None if any(state.layer is layer for state in states) else _last(states, relation, adjacency)
        before = _last(self._left, relation, adjacency)
        self._parallel = None if beside is None else layer
        if beside is not None:
            flags, depth = beside.flags_for(adjacency), beside.depth
        elif before is not None:
            flags, depth = before.flags_for(adjacency), before.depth + (before.layer is not layer)
        else:
            flags, depth = None, 0
        states.append(_KeptEdges(layer, relation, adjacency, flags, depth))
        return flags, depth

    def store(self, layer: nn.Module, relation: Relation, adjacency: Adjacency, flags: Tensor, depth: int) -> None:
        """Record the edges bool [m] that this layer keeps for later ones."""
        if self._parallel is layer:
            other = _last(self._left, relation, adjacency)
            kept = None if other is None else other.flags_for(adjacency)
            flags = flags if kept is None else flags | kept
        self._left = [
            state for state in self._left if state.relation != relation or not state.adjacency.has_edges_of(adjacency)
        ]
        self._left.append(_KeptEdges(layer, relation, adjacency, flags, depth))

    def _called_with(self, given: Tensor) -> list[_KeptEdges]:
        version = -1 if given.is_inference() else given._version
        found = self._found.get(given)  # type: ignore[no-untyped-call]
        if found is None or found[0] != version:
            found = self._found[given] = (version, [])
        states: list[_KeptEdges] = found[1]
        return states


def _last(states: Iterable[_KeptEdges], relation: Relation, adjacency: Adjacency) -> _KeptEdges | None:
    found = None
    for state in states:
        found = state if state.precedes(relation, adjacency) else found
    return found
