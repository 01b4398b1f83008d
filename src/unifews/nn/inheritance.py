"""Which edges a layer finds removed by the layers before it (`inherit`).

Inheritance follows one chain of successive layers on one set of edges. A layer inherits from the last layer of the pass that

* saw the same edges, known by their ends, between the same number of nodes, and
* is of the same relation: layers under different keys of a `ModuleDict` (PyG's `HeteroConv`, models made by `to_hetero`, a
  dict of branches) are parallel and never inherit from each other; under the same key of several dicts they are successive.
  A layer outside of all dicts comes before those in them.

A layer that is called with the same features as an earlier one, on the same edges, is parallel to it, not its successor: it
inherits what that one did, and later layers lose only the edges that both removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from unifews.nn.adjacency import Adjacency

Relation = tuple[str, ...]
"""Keys of the `ModuleDict`s that a layer sits in, from the outside in."""


def relation_of(model: nn.Module, path: str) -> Relation:
    """The relation of the layer at this path of a model; a dict of one entry has nothing in parallel."""
    keys, module = [], model
    for part in path.split(".") if path else ():
        if isinstance(module, nn.ModuleDict) and len(module) > 1:
            keys.append(part)
        module = module._modules[part]  # type: ignore[assignment]
    return tuple(keys)


@dataclass(frozen=True, eq=False)
class _State:
    """The edges that are there before or after a layer."""

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
    """The edges that the layers of one pass have left to later ones."""

    def __init__(self) -> None:
        self._left: list[_State] = []  # one for each relation and set of edges, the last that ran at the end
        self._found = WeakTensorKeyDictionary()  # by the features that a layer was called with: their version, what it found
        self._parallel: nn.Module | None = None  # the layer that runs, if it is parallel to an earlier one

    def __deepcopy__(self, memo: dict[int, Any]) -> Inheritance:
        return Inheritance()  # of one pass of one model

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
        states.append(_State(layer, relation, adjacency, flags, depth))
        return flags, depth

    def leave(self, layer: nn.Module, relation: Relation, adjacency: Adjacency, flags: Tensor, depth: int) -> None:
        """This layer leaves these edges [m] to later ones."""
        if self._parallel is layer:
            other = _last(self._left, relation, adjacency)
            kept = None if other is None else other.flags_for(adjacency)
            flags = flags if kept is None else flags | kept
        self._left = [
            state for state in self._left if state.relation != relation or not state.adjacency.has_edges_of(adjacency)
        ]
        self._left.append(_State(layer, relation, adjacency, flags, depth))

    def _called_with(self, given: Tensor) -> list[_State]:
        version = -1 if given.is_inference() else given._version
        found = self._found.get(given)  # type: ignore[no-untyped-call]
        if found is None or found[0] != version:
            found = self._found[given] = (version, [])
        states: list[_State] = found[1]
        return states


def _last(states: Iterable[_State], relation: Relation, adjacency: Adjacency) -> _State | None:
    found = None
    for state in states:
        found = state if state.precedes(relation, adjacency) else found
    return found
