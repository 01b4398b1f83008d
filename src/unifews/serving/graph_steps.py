"""Steps that sum over neighbours: the edges of a graph as each step uses them, and the sums.

The edges depend on the graph and not on the features, so they are computed once per graph. Rows are ordered with the
receivers first, so an edge list may have fewer rows than there are senders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from unifews.core.entry import BLOCK
from unifews.core.graph import Graph
from unifews.errors import GraphError, InputError, ShapeError
from unifews.nn.edges import LayerEdges
from unifews.nn.ops import attention
from unifews.nn.products import attention as heads
from unifews.nn.products.attention import HeadRows
from unifews.nn.products.diffusion import portable_sum, row_sizes
from unifews.nn.thinning import GraphThinner, check_ends
from unifews.serving import products
from unifews.serving.program import GRAPH_OPS, Program, Step


@dataclass(frozen=True, eq=False)
class StepEdges:
    """The edges of one step."""

    edges: LayerEdges
    """The edges that exist for this step: a softmax runs over them."""
    keep: Tensor | None
    """bool [m]: which of them send a message; None = all."""
    known: bool
    """Whether `keep` is known beforehand; otherwise magnitudes are compared with a threshold when the step runs."""

    @cached_property
    def sending(self) -> LayerEdges:
        """The edges that send, of a step whose edges are known beforehand."""
        return self.edges if self.keep is None else only(self.edges, self.keep)


class ProgramEdges:
    """A graph, and the edges of each step of a program on it."""

    def __init__(self, program: Program, edge_index: Any, edge_weight: Any, num_nodes: int) -> None:
        self.edge_index, weight = edge_tensors(edge_index, edge_weight)
        if weight is not None:
            check_weight(weight, self.edge_index, num_nodes)
        self.edge_weight = None if weight is None else weight.float()
        self.num_nodes = num_nodes
        self.graph = edge_index if isinstance(edge_index, Graph) else None
        self._thinner = None if program.thinning is None else GraphThinner(program.thinning)
        self._of: dict[int, StepEdges] = {}
        kept_before: Tensor | None = None
        for number, step in enumerate(program.steps, start=1):
            if step.op in GRAPH_OPS:
                self._of[number], kept_before = self._step_edges(step, kept_before)

    def of_step(self, number: int) -> StepEdges:
        return self._of[number]

    def all_edges(self, step: Step) -> LayerEdges:
        """All edges, with the step's normalisation."""
        how = step.settings
        edge_index, given = self._existing(how["flow"])
        if step.op == "diffuse":
            weight = given if how["weighted"] else None
            plain = weight is None and edge_index.layout == torch.strided
            loops = how["loops"] if plain else how["weighted_loops"]
            return LayerEdges.of(edge_index, weight, self.num_nodes, how["norm"], loops=loops, flow=how["flow"])
        loops = 1.0 if how["loops"] else None
        edges = LayerEdges.of(edge_index, None, self.num_nodes, "sum", loops=loops, flow=how["flow"])
        if edges.loop is not None and edges.weight is not None:  # only the positions of the values of a sparse matrix matter
            edges = replace(edges, loop=(edges.loop != 0).float())
        return edges

    def _existing(self, flow: str) -> tuple[Tensor, Tensor | None]:
        """The edges of the graph that exist for the program, and their weights."""
        if self._thinner is None:
            return self.edge_index, self.edge_weight
        check_ends(self.edge_index, self.num_nodes)
        graph = self._thinner.of(self.edge_index, flow=flow)
        return graph.edges, None if self.edge_weight is None else graph.only(self.edge_weight)

    def _step_edges(self, step: Step, kept_before: Tensor | None) -> tuple[StepEdges, Tensor | None]:
        edges = self.all_edges(step)
        form = step.settings["form"]
        if form in ("all", "columns"):
            return StepEdges(edges, None, True), kept_before
        removed = step.tensor("removed")
        if removed is None or step.settings["nodes"] != self.num_nodes:
            return StepEdges(edges, None, False), None
        keep = ~torch.isin(edges.adjacency.keys, removed)
        inherited = kept_before if step.settings["inherit"] else None
        keep = keep if inherited is None else keep & inherited
        if step.op == "diffuse" or inherited is None:
            return StepEdges(edges, keep, True), keep
        return StepEdges(only(edges, inherited), keep[inherited], True), keep


def edge_tensors(edge_index: Any, edge_weight: Any) -> tuple[Tensor, Tensor | None]:
    """edge_index and edge_weight on the CPU, from edge_index [2, m] (torch or numpy), a torch sparse matrix or a `Graph`."""
    if isinstance(edge_index, Graph):
        if edge_weight is not None:
            raise GraphError("a Graph has its own weights; leave `edge_weight` out.")
        weight = None if edge_index.weight is None else torch.tensor(edge_index.weight)
        return torch.from_numpy(edge_index.to_edge_index()), weight
    ends = as_tensor("edge_index", edge_index)
    weight = None if edge_weight is None else as_tensor("edge_weight", edge_weight)
    return ends.detach().cpu(), None if weight is None else weight.detach().cpu()


def as_tensor(name: str, value: Any) -> Tensor:
    """The value as a tensor."""
    try:
        return value if isinstance(value, Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        shape = "[edges]" if name == "edge_weight" else "[2, edges], a torch sparse matrix or a Graph"
        raise InputError(f"`{name}` is a {type(value).__name__}, not a tensor; give {name} {shape}.") from error


def check_weight(weight: Tensor, edge_index: Tensor, nodes: int) -> None:
    """Check that there is one value per edge."""
    shape, edges = list(weight.shape), edge_index.shape[-1]
    if edge_index.layout != torch.strided:
        raise InputError("a sparse matrix of edges has its own weights; leave `edge_weight` out.")
    if shape == [edges]:
        return
    looks = ", as edge features have" if weight.ndim == 2 else ", one value per node as `batch` has" if shape == [nodes] else ""
    raise ShapeError(f"`edge_weight` has shape {shape}{looks}, and there are {edges:,} edges; give one weight per edge.")


def only(edges: LayerEdges, keep: Tensor) -> LayerEdges:
    """The edges where keep [m] is set, for forward products only (no reversed lists)."""
    if bool(keep.all()):
        return edges
    before = torch.nn.functional.pad(keep.long().cumsum(0), (1, 0))
    a = edges.adjacency
    adjacency = products.forward_adjacency(before[a.start], before[a.end], a.indices[keep])
    weight = None if edges.weight is None else edges.weight[keep]
    return LayerEdges(adjacency, weight, edges.loop, edges.number[keep])


# ---------------------------------------------------------------------------------------------------------------------- steps


def sum_neighbours(
    step: Step, given: Sequence[Tensor], edges: LayerEdges, keep: Tensor | None, *, known: bool
) -> tuple[Tensor, Tensor | None]:
    """The result of a step that sums over neighbours, and which edges [m] send anything (None if `known` beforehand)."""
    if step.op == "diffuse":
        return diffuse(step, given[0], edges, known=known)
    return attend(step, given[0], given[1] if len(given) > 1 else None, edges, keep, known=known)


def diffuse(step: Step, y: Tensor, edges: LayerEdges, *, known: bool) -> tuple[Tensor, Tensor | None]:
    """T y + b of the receivers, and which edges [m] send anything (None if known beforehand)."""
    used = None
    receivers = edges.adjacency.num_nodes
    if known:
        out = products.diffuse(y, edges, columns_of(step), rest_of(step, edges))
    elif step.settings["form"] == "edges":
        used = edges.factor * row_sizes(y)[edges.adjacency.indices.long()] >= _delta(step)
        out = products.diffuse(y, only(edges, used), None)
    else:
        out, used = _entries(step, y, edges)
        if edges.loop is not None:
            out = torch.addcmul(out, edges.loop[:, None], y[:receivers])
    return add_bias_and_relu(step, out), used


def rest_of(step: Step, edges: LayerEdges) -> Tensor | None:
    """[receivers]: the factor of y[u] in columns that are not sent, where the step renormalises them: 1 with a self-loop."""
    return edges.has_loop if step.settings["renormalize"] and edges.loop is not None else None


def renormalized(step: Step, out: Tensor, y: Tensor, edges: LayerEdges, here: slice = slice(None)) -> Tensor:
    """`out` with y itself in the columns that are not sent, at nodes with a self-loop, where the step renormalises them.

    `here`: the receivers whose rows `out` has; `y` starts with the same rows.
    """
    if step.settings["renormalize"] and edges.loop is not None:
        flags = step.tensor("columns")
        assert flags is not None
        others, there = (~flags).nonzero().flatten(), edges.has_loop[here]
        own = y[: len(out), others]
        out[:, others] = own if bool(there.all()) else there[:, None] * own
    return out


def add_bias_and_relu(step: Step, out: Tensor) -> Tensor:
    """Add the bias and apply the ReLU of a step, in place."""
    bias = step.tensor("bias")
    if bias is not None:
        out += bias
    return out.relu_() if step.settings["relu"] else out


def columns_of(step: Step) -> Tensor | None:
    flags = step.tensor("columns")
    return None if flags is None else flags.nonzero().flatten()


def _delta(step: Step) -> float:
    delta = step.settings["delta"]
    return math.inf if delta is None else float(delta)


def _entries(step: Step, y: Tensor, edges: LayerEdges) -> tuple[Tensor, Tensor]:
    """The sum over the entries of magnitude ≥ δ, and bool [m]: which edges have any."""
    delta, width, sender = _delta(step), y.shape[1], edges.adjacency.indices.long()
    if step.settings["form"] == "block":
        blocks = -(-width // BLOCK)
        padded = torch.nn.functional.pad(y, (0, blocks * BLOCK - width)).view(len(y), blocks, BLOCK)
        largest = padded.norm(dim=2).amax(1)
        out = products.gather_at_least(y, edges.adjacency, edges.weight, delta)
    else:
        size = y.abs()
        largest, out = size.amax(1), portable_sum(y, edges, size, delta)
    return out, edges.factor * largest[sender] >= delta


# ------------------------------------------------------------------------------------------------------------- attention


def attend(
    step: Step, left: Tensor, right: Tensor | None, edges: LayerEdges, keep: Tensor | None, *, known: bool
) -> tuple[Tensor, Tensor | None]:
    """Σ_v α[u,v]·left[v] + α[u,u]·left[u] of the receivers, and which edges [m] send anything (None if known).

    `right` [receivers, width]: the receivers' part of the scores of "gatv2"; "gat" computes it from `left`.
    """
    how, adjacency, receivers = step.settings, edges.adjacency, edges.adjacency.num_nodes
    count = how["heads"]
    rows = HeadRows.of(left, count)
    if right is not None:
        att = step.tensor("att")
        scored, against = rows, rows if right is left else HeadRows.of(right, count)
    else:
        source, target = step.tensor("source"), step.tensor("target")
        assert source is not None and target is not None
        sent, received = rows.dots(source, target)
        scored, against = HeadRows.of(sent.contiguous(), count), HeadRows.of(received[:receivers].contiguous(), count)
        att = torch.ones(count, 1)
    assert att is not None
    score, own = heads.scores(scored, against, att, how["slope"], adjacency, loops=edges.loop is not None)
    alpha, own = heads.softmax(score, own, edges.loop, adjacency)
    if known and keep is None:
        columns = columns_of(step)
        if columns is None or not len(columns) or len(columns) == rows.width or rows.lanes is None:
            out = _gathered(rows, alpha, own, edges, columns)
        else:
            sub = _lanes(count, rows.channels, tuple(columns.tolist()))
            out = attention.head_diffuse(rows.x, alpha, own, rows.lanes, sub, edges.adjacency)
        return renormalized(step, out, left, edges), None
    used = None
    if how["form"] == "edges":
        if not known:
            size = torch.linalg.vector_norm(alpha, dim=1) / count * rows.norms[adjacency.indices.long()]
            keep = used = size >= _delta(step)
        assert keep is not None
        at = keep.nonzero().flatten()
        return _gathered(rows, alpha[at], own, only(edges, keep), None), used
    lanes = 1 if how["form"] == "feature" else BLOCK
    out, _, used = heads.gather_at_least(rows, alpha, alpha, None, adjacency, _delta(step), lanes)
    return _with_own(out, own, rows, receivers), used


def _gathered(rows: HeadRows, alpha: Tensor, own: Tensor | None, edges: LayerEdges, columns: Tensor | None) -> Tensor:
    if rows.lanes is not None and columns is None:
        return attention.head_diffuse(rows.x, alpha.contiguous(), own, rows.lanes, rows.lanes, edges.adjacency)
    out = heads.gather(rows, alpha, None, edges.adjacency, columns=columns)
    return _with_own(out, own, rows, edges.adjacency.num_nodes)


def _with_own(out: Tensor, own: Tensor | None, rows: HeadRows, receivers: int) -> Tensor:
    return out if own is None else out + (own[:, :, None] * rows.by_head[:receivers]).flatten(1)


@lru_cache(64)
def _lanes(count: int, channels: int, columns: tuple[int, ...]) -> attention.Lanes:
    return attention.Lanes.of(count, channels, list(columns))
