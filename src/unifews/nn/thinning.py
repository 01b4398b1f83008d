"""Which edges of a graph a model uses (`entries="edge"`): chosen once per graph, by its degrees, before any layer sees them.

Every layer then runs its exact path on the thinned graph, so degrees, means and softmaxes are those of the kept edges, and a
pass costs what is kept and nothing else. The choice depends on the edges only: there is nothing to store, copies and saved
models make the same one, and a new graph (a mini-batch, new nodes) gets its own. Self-loops are never removed.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from unifews.errors import GraphError, InputError
from unifews.nn.config import Choice, PruningConfig, Scope

if TYPE_CHECKING:
    from torch_geometric.nn import MessagePassing

_TIES = 1e-9  # relative; breaks ties by the ends of an edge, so that the choice does not depend on the order of the edges
_UNKNOWN_NODE = "`edge_index` names node {}, but x has {:,} rows, numbered from 0."
_MIN_PER_TARGET = 2  # kept edges per target from which each target keeps its own largest ones (docs/adr/0029)


@dataclass(frozen=True)
class EdgeRule:
    """Which edges are kept: the largest ones, or as controls as many random or smallest ones.

    ``scope="graph"`` compares all edges of the graph, ``"target"`` those into each node: every target keeps up to κ of them,
    the same κ for all, so that the nodes of most edges lose most. ``"auto"`` is "target" where at least 2 edges per target are
    kept, and "graph" where there are fewer: one edge for each node is worse than several for some.
    """

    sparsity: float | None = None
    """Fraction of the edges between different nodes to remove. Or"""
    threshold: float | None = None
    """remove edges of a size below this multiple of the mean (of 1, if `absolute`)."""
    absolute: bool = False
    choice: Choice = "largest"
    scope: Scope = "auto"
    seed: int = 0
    """Of ``choice="random"``."""

    def __post_init__(self) -> None:
        PruningConfig(
            entries="edge",
            edge_sparsity=self.sparsity,
            edge_threshold=self.threshold,
            absolute=self.absolute,
            choice=self.choice,
            scope=self.scope,
            choice_seed=self.seed,
        )

    @classmethod
    def of(cls, pruning: PruningConfig) -> EdgeRule:
        amounts = pruning.edge_sparsity, pruning.edge_threshold, pruning.absolute
        return cls(*amounts, pruning.choice, pruning.scope, pruning.choice_seed)

    def kept(self, ends: Tensor, *, loops: bool = True) -> Tensor:
        """bool [m]: the kept ones of the edges [2, m], senders and targets.

        `loops`: both ends are numbered alike, and an edge from a node to itself is always kept.
        """
        sender, target = ends
        keep = torch.ones(ends.shape[1], dtype=torch.bool, device=ends.device)
        between = (sender != target).nonzero().flatten() if loops else torch.arange(ends.shape[1], device=ends.device)
        keep[between] = self._chosen(ends[:, between])
        return keep

    def _chosen(self, ends: Tensor) -> Tensor:
        size, noise = edge_sizes(ends), edge_noise(ends, self.seed)
        if self.threshold is not None:
            mean = 1.0 if self.absolute or not len(size) else float(size.mean())
            large = size >= self.threshold * mean
            if self.choice == "largest":
                return large
            count = int(large.sum())  # the controls keep as many
        else:
            count = num_kept(len(size), self.sparsity or 0.0)
        size = noise if self.choice == "random" else size * (1 + _TIES * noise)
        order = size.argsort(descending=self.choice != "smallest", stable=True)
        if self._by_target(ends[1], count):
            order = order[_ranks(ends[1], order)[order].argsort(stable=True)]
        return torch.zeros_like(ends[0], dtype=torch.bool).index_fill_(0, order[:count], True)

    def _by_target(self, target: Tensor, count: int) -> bool:
        if self.scope != "auto" or self.threshold is not None:
            return self.scope == "target"
        return count >= _MIN_PER_TARGET * int((torch.bincount(target) > 0).sum())


def _ranks(target: Tensor, order: Tensor) -> Tensor:
    """0, 1, … of the edges into the same target, in this order of all edges; int64 [m]."""
    degree = torch.bincount(target)
    by_target = order[target[order].argsort(stable=True)]
    rank = torch.arange(len(target), device=target.device) - (degree.cumsum(0) - degree)[target[by_target]]
    return torch.empty_like(rank).index_put_((by_target,), rank)


def num_kept(edges: int, sparsity: float) -> int:
    """How many of `edges` edges are kept."""
    return edges - round(sparsity * edges)


def edge_sizes(ends: Tensor) -> Tensor:
    """|T[u,v]| = ((d(u) + 1)(d(v) + 1))^-½ of every edge v → u, float64 [m].

    d(u) counts the edges that a target receives and d(v) those that a sender sends. On undirected graphs without self-loops T
    is GCN's; between two sets of nodes it is defined alike. Edge weights, which may be learnt, and features, which dropout
    changes, do not enter (docs/adr/0029).
    """
    sent, received = ((torch.bincount(nodes) + 1).double().rsqrt()[nodes] for nodes in ends)
    return sent * received


def edge_noise(ends: Tensor, seed: int) -> Tensor:
    """A number in [0, 1) of every edge, float64 [m], by its ends and the seed only: an integer hash (splitmix64)."""
    mixed = _mixed(_mixed(ends[1].long() * -0x61C8864680B583EB + ends[0]) + seed)
    return (mixed & ((1 << 53) - 1)).double() / (1 << 53)


def _mixed(value: Tensor) -> Tensor:
    value = (value ^ ((value >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    value = (value ^ ((value >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return value ^ ((value >> 31) & 0x1FFFFFFFF)


# ------------------------------------------------------------------------------------------------------- calls of layers


@dataclass(eq=False)
class ThinnedGraph:
    """The kept edges of one graph, as a layer is called with them."""

    edges: Tensor
    """edge_index [2, kept], or a sparse matrix."""
    keep: Tensor
    """bool [m]: the kept edges in the caller's order."""
    count: int
    """Edges between different nodes, removed ones included."""
    kept: int
    """Those of them that are kept."""
    last: int
    """The largest node, of kept and removed edges; -1 = no edges."""
    _values: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)

    def only(self, value: Tensor) -> Tensor:
        """Weights, features or types of the kept edges; the same tensor as long as the given one does not change."""
        if value.requires_grad or value.is_inference():
            return value[self.keep]
        found = self._values.get(value)  # type: ignore[no-untyped-call]
        if found is None or found[0] != value._version:
            found = self._values[value] = (value._version, value[self.keep])
        thinned: Tensor = found[1]
        return thinned


class GraphThinner:
    """A rule, and the graphs that it was applied to, as long as their tensors live and are not written to."""

    def __init__(self, rule: EdgeRule) -> None:
        self.rule = rule
        self._graphs = WeakTensorKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        return {"rule": self.rule}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["rule"])  # type: ignore[misc]

    def of(self, edge_index: Tensor, *, flow: str = "source_to_target", loops: bool = True) -> ThinnedGraph:
        """The kept edges of edge_index [2, m] or of a sparse matrix [targets, senders]."""
        key = (flow, loops)
        version = -1 if edge_index.is_inference() else edge_index._version
        found = self._graphs.get(edge_index)  # type: ignore[no-untyped-call]
        if found is None or found[0] != version:
            found = self._graphs[edge_index] = (version, {})
        if key not in found[1]:
            found[1][key] = _thinned(self.rule, edge_index, flow, loops)
        graph: ThinnedGraph = found[1][key]
        return graph

    def call(self, layer: MessagePassing, kind: Any, args: Any, kwargs: Any) -> tuple[Any, Any, list[ThinnedGraph]]:
        """The arguments of a call of a layer, of this PyG class, on the kept edges, and the graphs in it.

        Edges are every argument ``…edge_index``, or a dict of them by relation; those named ``edge_…`` have a row per edge.
        """
        names, graphs = forward_names(kind), list[ThinnedGraph]()
        given = dict(zip(names, args, strict=False)) | kwargs
        x = given.get("x")
        pair = isinstance(x, tuple | list) and len(x) == 2 and x[0] is not x[1]
        changed: dict[str, Any] = {}
        for name in filter(_names_edges, given):
            found = given[name]
            if isinstance(found, dict):
                thinned = {key: self._of_call(one, layer.flow, key[0] == key[-1], None) for key, one in found.items()}
                graphs += [graph for graph in thinned.values() if graph is not None]
                changed[name] = {key: found[key] if graph is None else graph.edges for key, graph in thinned.items()}
            elif (graph := self._of_call(found, layer.flow, not pair and not name.startswith("hyper"), x)) is not None:
                graphs.append(graph)
                changed[name] = graph.edges
        if "edge_index" in changed and graphs:
            for name, value in given.items():
                rows = len(value) if isinstance(value, Tensor) and value.ndim else -1
                if name.startswith("edge_") and name not in changed and rows == len(graphs[0].keep):
                    changed[name] = graphs[0].only(value)  # of another length: the layer says so
        args = tuple(changed.get(name, value) for name, value in zip(names, args, strict=False))
        return args, {name: changed.get(name, value) for name, value in kwargs.items()}, graphs

    def _of_call(self, edge_index: Any, flow: str, loops: bool, x: Any) -> ThinnedGraph | None:
        """None for what is no graph, which the layer itself refuses."""
        if not _is_graph(edge_index):
            return None
        graph = self.of(edge_index, flow=flow, loops=loops)
        if loops and isinstance(x, Tensor) and x.ndim == 2 and edge_index.layout == torch.strided and graph.last >= len(x):
            raise GraphError(_UNKNOWN_NODE.format(graph.last, len(x)))
        return graph


def num_edges(kept: int, graphs: Sequence[ThinnedGraph]) -> int:
    """How many edges there were of the `kept` ones that a layer has used of one of these graphs, or of all of them."""
    by_count = {graph.kept: graph.count for graph in graphs}
    total, whole = sum(graph.kept for graph in graphs), sum(graph.count for graph in graphs)
    return by_count.get(kept, round(kept * whole / total) if total else whole)


def _names_edges(name: str) -> bool:
    return name.endswith(("edge_index", "edge_index_dict"))


@cache
def forward_names(kind: Any) -> tuple[str, ...]:
    """Names of the arguments of a layer's forward, in order."""
    return tuple(inspect.signature(kind.forward).parameters)[1:]


def check_thinnable(layers: Mapping[str, Any]) -> None:
    """Refuse layers, by path, that are not called with the edges of a graph."""
    for path, kind in layers.items():
        if not any(map(_names_edges, forward_names(kind))):
            raise InputError(
                f"{path} is a {kind.__name__}, whose forward has no argument `edge_index`, so its edges cannot be chosen "
                f"before it runs; use entries='unit' or 'node'."
            )


def check_ends(edge_index: Tensor, num_nodes: int) -> None:
    """Refuse edges of nodes that do not exist, which a layer would not notice in the edges that are left."""
    if edge_index.layout == torch.strided and edge_index.numel() and int(edge_index.max()) >= num_nodes:
        raise GraphError(_UNKNOWN_NODE.format(int(edge_index.max()), num_nodes))


def _is_graph(edge_index: Any) -> bool:
    if not isinstance(edge_index, Tensor):
        return False
    if edge_index.layout != torch.strided:
        return edge_index.ndim == 2
    return edge_index.ndim == 2 and len(edge_index) == 2 and not edge_index.is_floating_point()


def _thinned(rule: EdgeRule, edge_index: Tensor, flow: str, loops: bool) -> ThinnedGraph:
    if edge_index.layout == torch.strided:
        plain = edge_index.as_subclass(Tensor)
        if plain.numel() and int(plain.min()) < 0:
            raise GraphError(f"`edge_index` names node {int(plain.min())}; nodes are numbered from 0.")
        ends = plain.long() if flow == "source_to_target" else plain.long().flip(0)
        keep = rule.kept(ends, loops=loops)
        edges = plain[:, keep]
    else:
        matrix = edge_index.to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
        targets, senders = matrix.indices()
        ends = torch.stack([senders, targets])
        keep = rule.kept(ends, loops=loops)
        edges = torch.sparse_coo_tensor(
            matrix.indices()[:, keep], matrix.values()[keep], matrix.shape, is_coalesced=True
        )  # in the layout of the given one
        if edge_index.layout == torch.sparse_csr:
            edges = edges.to_sparse_csr()
        elif edge_index.layout == torch.sparse_csc:
            edges = edges.to_sparse_csc()
    between = ends[0] != ends[1] if loops else torch.ones_like(keep)
    last = int(ends.max()) if ends.numel() else -1
    return ThinnedGraph(edges, keep, int(between.sum()), int((between & keep).sum()), last)
