"""The edges of a graph as each step of a program uses them; what does not depend on features is made once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unifews.core.graph import Graph
from unifews.errors import GraphError, InputError, ShapeError
from unifews.nn.adjacency import Adjacency
from unifews.nn.edges import Edges
from unifews.serving.program import GRAPH_OPS, Program, Step


@dataclass(frozen=True, eq=False)
class Links:
    """The edges of one step."""

    edges: Edges
    """Those that are there: a softmax runs over them."""
    keep: Tensor | None
    """Which of them send, flags; None = all."""
    known: bool
    """Whether that is settled; else sizes are compared with a threshold when it runs."""

    @property
    def sending(self) -> Edges:
        return self.edges if self.keep is None else only(self.edges, self.keep)


class Wiring:
    """A graph, and the edges of each step on it."""

    def __init__(self, program: Program, edge_index: Any, edge_weight: Any, num_nodes: int) -> None:
        self.edge_index, weight = as_edges(edge_index, edge_weight)
        if weight is not None:
            check_weight(weight, self.edge_index, num_nodes)
        self.edge_weight = None if weight is None else weight.float()
        self.num_nodes = num_nodes
        self.graph = edge_index if isinstance(edge_index, Graph) else None
        self._of: dict[int, Links] = {}
        self._sending: dict[int, Edges] = {}
        alive: Tensor | None = None
        for number, step in enumerate(program.steps, start=1):
            if step.op in GRAPH_OPS:
                self._of[number], alive = self._links(step, alive)

    def links(self, number: int) -> Links:
        return self._of[number]

    def sending(self, number: int) -> Edges:
        """The edges along which a step whose edges are known sends."""
        if number not in self._sending:
            self._sending[number] = self._of[number].sending
        return self._sending[number]

    def whole(self, step: Step) -> Edges:
        """All edges, by the step's own factors."""
        how = step.settings
        if step.op == "diffuse":
            weight = self.edge_weight if how["weighted"] else None
            plain = weight is None and self.edge_index.layout == torch.strided
            loops = how["loops"] if plain else how["weighted_loops"]
            return Edges.of(self.edge_index, weight, self.num_nodes, how["norm"], loops=loops, flow=how["flow"])
        loops = 1.0 if how["loops"] else None
        edges = Edges.of(self.edge_index, None, self.num_nodes, "sum", loops=loops, flow=how["flow"])
        if edges.loop is not None and edges.weight is not None:  # of a sparse matrix only the places of its values count
            edges = replace(edges, loop=(edges.loop != 0).float())
        return edges

    def _links(self, step: Step, alive: Tensor | None) -> tuple[Links, Tensor | None]:
        edges = self.whole(step)
        form = step.settings["form"]
        if form in ("all", "columns"):
            return Links(edges, None, True), alive
        removed = step.tensor("removed")
        if removed is None or step.settings["nodes"] != self.num_nodes:
            return Links(edges, None, False), None
        keep = ~torch.isin(edges.adjacency.keys, removed)
        there = alive if step.settings["inherit"] else None
        keep = keep if there is None else keep & there
        if step.op == "diffuse" or there is None:
            return Links(edges, keep, True), keep
        return Links(only(edges, there), keep[there], True), keep


def as_edges(edge_index: Any, edge_weight: Any) -> tuple[Tensor, Tensor | None]:
    """Tensors of what edges may be given as: edge_index [2, m] of torch or numpy, a torch sparse matrix, or a `Graph`."""
    if isinstance(edge_index, Graph):
        if edge_weight is not None:
            raise GraphError("a Graph holds its weights itself; leave `edge_weight` out.")
        weight = None if edge_index.weight is None else torch.tensor(edge_index.weight)
        return torch.from_numpy(edge_index.to_edge_index()), weight
    ends = as_tensor("edge_index", edge_index)
    weight = None if edge_weight is None else as_tensor("edge_weight", edge_weight)
    return ends.detach().cpu(), None if weight is None else weight.detach().cpu()


def as_tensor(name: str, value: Any) -> Tensor:
    """A tensor, or what one can be made of."""
    try:
        return value if isinstance(value, Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        wanted = (
            "one weight per edge, [edges]"
            if name == "edge_weight"
            else "edge_index [2, edges], a torch sparse matrix or a Graph"
        )
        raise InputError(f"`{name}` is a {type(value).__name__} that no tensor can be made of; give {wanted}.") from error


def check_weight(weight: Tensor, edge_index: Tensor, nodes: int) -> None:
    """One value per edge."""
    shape, edges = list(weight.shape), edge_index.shape[-1]
    if edge_index.layout != torch.strided:
        raise InputError("a sparse matrix of edges holds its weights itself; leave `edge_weight` out.")
    if shape == [edges]:
        return
    looks = ", as edge features have" if weight.ndim == 2 else ", one value per node as `batch` has" if shape == [nodes] else ""
    raise ShapeError(f"`edge_weight` has shape {shape}{looks}, and there are {edges:,} edges; give one weight per edge.")


def only(edges: Edges, keep: Tensor) -> Edges:
    """The edges where keep [m] is set; for products alone, so without the way back."""
    if bool(keep.all()):
        return edges
    before = torch.nn.functional.pad(keep.long().cumsum(0), (1, 0))
    a = edges.adjacency
    adjacency = one_way(before[a.start], before[a.end], a.indices[keep])
    weight = None if edges.weight is None else edges.weight[keep]
    return Edges(adjacency, weight, edges.loop, edges.number[keep])


def one_way(start: Tensor, end: Tensor, indices: Tensor) -> Adjacency:
    """Rows and whom they receive from."""
    none = torch.zeros(0, dtype=torch.int64)
    return Adjacency(start, end, indices, none, none, none, none, none, none)
