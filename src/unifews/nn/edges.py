"""The matrix T of a layer: weighted edges between different nodes, and the diagonal, which is never pruned."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from unifews.errors import GraphError, InputError, ShapeError
from unifews.nn.ops.linear import check_tensor

Norm = Literal["gcn", "mean", "sum", "cheb"]


@dataclass(frozen=True, eq=False)
class Adjacency:
    """n nodes and m edges, by receiver for the product and by sender for its gradient.

    Row u receives from ``indices[start[u] : end[u]]``; row v sends to ``back_indices[back_start[v] : back_end[v]]``.
    ``order`` [m] permutes values from the caller's edge order to this one, ``back_order`` from this one to the reversed lists,
    ``forward_order`` is the inverse of ``back_order``.
    """

    start: Tensor
    end: Tensor
    indices: Tensor
    order: Tensor
    back_start: Tensor
    back_end: Tensor
    back_indices: Tensor
    back_order: Tensor
    forward_order: Tensor

    @property
    def num_nodes(self) -> int:
        return len(self.start)

    @property
    def num_edges(self) -> int:
        return len(self.indices)

    @property
    def receivers(self) -> Tensor:
        """The receiver of every edge, int64 [m], sorted."""
        return torch.repeat_interleave(self.end - self.start, output_size=self.num_edges)

    def only(self, keep: Tensor) -> Adjacency:
        """The edges where keep [m] is set, in the same order; costs O(m)."""
        back = keep[self.back_order]
        position = keep.long().cumsum(0) - 1
        back_order = position[self.back_order[back]]
        (start, end), (back_start, back_end) = (
            _left(first, last, flags)
            for first, last, flags in ((self.start, self.end, keep), (self.back_start, self.back_end, back))
        )
        return Adjacency(
            start,
            end,
            self.indices[keep],
            self.order[keep],
            back_start,
            back_end,
            self.back_indices[back],
            back_order,
            _inverse(back_order),
        )

    @property
    def keys(self) -> Tensor:
        """Keys of the edges independent of their position: receiver · n + sender, int64 [m]."""
        return self.receivers * self.num_nodes + self.indices

    def has_edges_of(self, other: Adjacency) -> bool:
        """Whether these are the same edges between the same number of nodes, in any order."""
        if self is other:
            return True
        if (self.num_nodes, self.num_edges, self.indices.device) != (other.num_nodes, other.num_edges, other.indices.device):
            return False
        if not torch.equal(self.start, other.start):
            return False
        return torch.equal(self.indices, other.indices) or torch.equal(self.keys.sort().values, other.keys.sort().values)

    def carry(self, keep: Tensor, other: Adjacency) -> Tensor | None:
        """keep [m] for the edges of another adjacency, matched by their ends; edges that are not in this one are kept.

        None = all edges are kept.
        """
        removed = self.keys[~keep]
        if other.num_nodes != self.num_nodes or not len(removed):
            return None
        return ~torch.isin(other.keys, removed)

    @classmethod
    def build(cls, edge_index: Tensor, num_nodes: int) -> Adjacency:
        """From edge_index [2, m]; row 0 sends, row 1 receives."""
        if edge_index.ndim != 2 or edge_index.shape[0] != 2:
            raise ShapeError(f"`edge_index` has shape {list(edge_index.shape)}; it is [2, edges], senders and receivers.")
        if num_nodes >= 2**31:
            raise GraphError(f"layers train on graphs of up to 2^31 - 1 nodes; this one has {num_nodes:,}.")
        if edge_index.numel() and (int(edge_index.min()) < 0 or int(edge_index.max()) >= num_nodes):
            wrong = int(edge_index.min()) if int(edge_index.min()) < 0 else int(edge_index.max())
            raise GraphError(f"`edge_index` names node {wrong}, but x has {num_nodes:,} rows, numbered from 0.")
        sender, receiver = edge_index
        order = torch.argsort(receiver, stable=True)
        sender, receiver = sender[order], receiver[order]
        back_order = torch.argsort(sender, stable=True)
        start, end = _rows(receiver, num_nodes)
        back_start, back_end = _rows(sender, num_nodes)
        indices, back_indices = sender.int().contiguous(), receiver[back_order].int().contiguous()
        return cls(start, end, indices, order, back_start, back_end, back_indices, back_order, _inverse(back_order))


def _rows(sorted_ends: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    count = torch.bincount(sorted_ends, minlength=num_nodes)
    end = count.cumsum(0)
    return end - count, end


def _left(start: Tensor, end: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Row bounds after removing the edges that are not kept."""
    before = torch.nn.functional.pad(keep.long().cumsum(0), (1, 0))
    return before[start], before[end]


def _inverse(order: Tensor) -> Tensor:
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    return inverse


@dataclass(frozen=True, eq=False)
class LayerEdges:
    """T = off-diagonal edges with their factors + diag(loop).

    PyG adds self-loops to the edges; here they are separate, because they are never pruned and never counted.
    """

    adjacency: Adjacency
    """The edges between different nodes."""
    weight: Tensor | None
    """T[u,v] of each of them, float [m], in the adjacency's order; None = 1."""
    loop: Tensor | None
    """T[u,u], float [n]; None = 0."""
    number: Tensor
    """The caller's index of each edge, int64 [m]."""
    before: int | None = None
    """Number of edges before some were removed; None = none were."""

    @property
    def count(self) -> int:
        return self.adjacency.num_edges

    @property
    def learnt(self) -> bool:
        """Whether the factors require a gradient."""
        return any(value is not None and value.requires_grad for value in (self.weight, self.loop))

    @cached_property
    def sent(self) -> Tensor:
        """Σ_u T[u,v]² of every sender v, [n]."""
        square = self.factor.to(self.adjacency.indices.device) ** 2
        none = torch.zeros(self.adjacency.num_nodes, dtype=square.dtype, device=square.device)
        return none.index_add(0, self.adjacency.indices.long(), square)

    @cached_property
    def has_loop(self) -> Tensor:
        """1 for nodes with a self-loop, else 0; float [n]."""
        assert self.loop is not None
        return (self.loop.detach() != 0).to(self.loop.dtype)

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether T is symmetric up to rounding and has no negative factor, as that of an undirected graph."""
        n, receiver, sender = self.adjacency.num_nodes, self.adjacency.receivers, self.adjacency.indices.long()
        keys, turned = receiver * n + sender, sender * n + receiver
        order, back = keys.argsort(), turned.argsort()
        if not torch.equal(keys[order], turned[back]):
            return False
        if self.weight is None:
            return self.loop is None or not bool((self.loop < 0).any())
        signed = bool((self.weight < 0).any()) or (self.loop is not None and bool((self.loop < 0).any()))
        return not signed and torch.allclose(self.weight[order], self.weight[back], rtol=1e-4, atol=0)

    @property
    def whole(self) -> int:
        """Number of edges of the graph, removed ones included."""
        return self.count if self.before is None else self.before

    def only(self, keep: Tensor) -> LayerEdges:
        """The edges where keep [m] is set."""
        weight = None if self.weight is None else self.weight[keep]
        return LayerEdges(self.adjacency.only(keep), weight, self.loop, self.number[keep], self.whole)

    @property
    def factor(self) -> Tensor:
        """|T[u,v]|, [m]."""
        return torch.ones(self.count, device=self.number.device) if self.weight is None else self.weight.detach().abs()

    @classmethod
    def of(
        cls,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
        norm: Norm,
        *,
        loops: float | None = None,
        flow: str = "source_to_target",
        dtype: torch.dtype = torch.float32,
    ) -> LayerEdges:
        """From what a PyG layer is called with: edge_index [2, m] or a sparse matrix [receivers, senders].

        ``norm="gcn"``: D^-½ (A + I) D^-½ as PyG's `gcn_norm`; ``"mean"``: 1 / number of incoming edges; ``"sum"``: as they are;
        ``"cheb"``: -D^-½ A D^-½ without self-loops, D by senders, as PyG's ChebConv.
        `loops`: weight of the self-loop added to every node (`_loops`); None adds none. Cached as long as the given tensors
        live and are not written to, unless the weights require a gradient.
        """
        how = (num_nodes, norm, loops, flow, dtype)
        return cls._kept(edge_index, edge_weight, how, (num_nodes, num_nodes))

    @classmethod
    def between(
        cls,
        edge_index: Tensor,
        senders: int,
        receivers: int,
        norm: Norm,
        *,
        edge_weight: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> LayerEdges:
        """From one set of nodes to another, without self-loops. With n the larger number, receiver u is node u of 2n, sender v
        is node n + v."""
        n = max(senders, receivers)
        return cls._kept(edge_index, edge_weight, (2 * n, norm, None, "source_to_target", dtype), (receivers, senders))

    @classmethod
    def overlaid(
        cls,
        edge_index: Tensor,
        senders: int,
        receivers: int,
        norm: Norm,
        *,
        edge_weight: Tensor | None = None,
        loops: float | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> LayerEdges:
        """From one set of nodes to another, both numbered from 0 among as many nodes as the larger set has: half the rows of
        `between`. An edge from sender i to receiver i is then on the diagonal, which is never pruned, so this is for unpruned
        products. `loops`: as in `of`, for nodes in both sets."""
        n = max(senders, receivers)
        layout = (n, norm, loops, "source_to_target", dtype)
        return cls._kept(edge_index, edge_weight, layout, (receivers, senders))

    @classmethod
    def _kept(
        cls,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        layout: tuple[int, Norm, float | None, str, torch.dtype],
        shape: tuple[int, int],
    ) -> LayerEdges:
        how = (*layout, shape)
        found = _known.get(edge_index)  # type: ignore[no-untyped-call]
        if found is None or found["version"] != _version(edge_index):
            found = _known[edge_index] = {"version": _version(edge_index)}
        # Weak keys cannot distinguish a weight tensor from another with the same id, so the tensor itself is compared.
        stored = found.get(how)
        if stored is not None and stored[0] is edge_weight and stored[1] == _version(edge_weight):
            edges: LayerEdges = stored[2]
            return edges
        made = cls._build(found, edge_index, edge_weight, *layout, shape)
        if edge_weight is None or not edge_weight.requires_grad:
            found[how] = (edge_weight, _version(edge_weight), made)
        return made

    @classmethod
    def _build(
        cls,
        known: dict[Any, Any],
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
        norm: Norm,
        loops: float | None,
        flow: str,
        dtype: torch.dtype,
        shape: tuple[int, int],
    ) -> LayerEdges:
        ends, weight = _pairs(edge_index, edge_weight, shape, flow)
        if shape != (num_nodes, num_nodes):
            _check_sides(ends, shape)
            if num_nodes > max(shape):  # two sets, receivers first
                ends = torch.stack([ends[0] + max(shape), ends[1]])
        if weight is not None:
            weight = weight.to(dtype)
        key = ("structure", num_nodes, flow, shape)
        if key not in known:
            known[key] = _structure(ends, num_nodes)
        adjacency, number, at_loop = known[key]
        between = None if weight is None else weight[number]
        is_added = norm == "gcn" and edge_index.layout != torch.strided
        loop = _loops(ends, weight, at_loop, num_nodes, loops, dtype, is_added)
        if loops is not None and loop is not None:
            loop[min(shape) :] = 0.0
        if norm == "sum":
            return cls(adjacency, between, loop, number)
        receiver, sender = adjacency.receivers, adjacency.indices.long()
        if norm == "mean":
            if weight is not None:
                raise InputError("a mean over neighbours takes no edge weights; leave `edge_weight` out, or aggregate by sum.")
            count = torch.bincount(ends[1], minlength=num_nodes).clamp(min=1).to(dtype)
            return cls(adjacency, (1 / count)[receiver], None if loop is None else loop / count, number)
        ones = torch.ones(adjacency.num_edges, dtype=dtype, device=receiver.device) if between is None else between
        by = sender if norm == "cheb" else receiver
        degree = torch.zeros(num_nodes, dtype=dtype, device=receiver.device).index_add(0, by, ones)
        if norm == "cheb":
            ones, loop = -ones, None
        if loop is not None:
            degree = degree + loop
        root = torch.where(degree > 0, degree.clamp(min=torch.finfo(dtype).tiny).rsqrt(), 0.0)
        # PyG returns NaN for nodes of negative degree; here they have the factor 0 and send no messages.
        return cls(adjacency, root[sender] * ones * root[receiver], None if loop is None else loop * root * root, number)


_known = WeakTensorKeyDictionary()


def _version(tensor: Tensor | None) -> int:
    return -1 if tensor is None or tensor.is_inference() else tensor._version


def _check_sides(ends: Tensor, shape: tuple[int, int]) -> None:
    """Check senders and receivers [2, m] for their numbers, shape (receivers, senders)."""
    if ends.numel() and int(ends.min()) < 0:
        raise GraphError(f"`edge_index` names node {int(ends.min())}; nodes are numbered from 0.")
    for side, given, count in zip(("senders", "receivers"), ends, reversed(shape), strict=True):
        if given.numel() and int(given.max()) >= count:
            raise GraphError(f"`edge_index` names node {int(given.max())} of the {side}, but there are {count:,} of them.")


def _pairs(edge_index: Tensor, edge_weight: Tensor | None, shape: tuple[int, int], flow: str) -> tuple[Tensor, Tensor | None]:
    """Senders and receivers [2, m] and their weights, from edge_index or a sparse matrix; shape: (receivers, senders)."""
    if edge_index.layout != torch.strided:
        if edge_weight is not None:
            raise InputError("a sparse matrix has its own weights; leave `edge_weight` out.")
        if tuple(edge_index.shape) != shape:
            rows = f"{shape[0]:,}" if shape[0] == shape[1] else f"{shape[1]:,} rows of senders and {shape[0]:,}"
            raise ShapeError(f"the sparse matrix is {list(edge_index.shape)}, but x has {rows} rows.")
        check_tensor(edge_index, "edge_index")
        matrix = edge_index.to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
        values = matrix.values()
        ends = matrix.indices().flip(0)
        return ends, None if bool((values == 1).all()) else values
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        raise ShapeError(f"`edge_index` has shape {list(edge_index.shape)}; it is [2, edges], senders and receivers.")
    if edge_index.is_floating_point():
        raise GraphError(f"`edge_index` holds {edge_index.dtype} values; node indices are integers (torch.long).")
    if edge_weight is not None and edge_weight.numel() != edge_index.shape[1]:
        raise ShapeError(
            f"`edge_weight` has {edge_weight.numel():,} values for {edge_index.shape[1]:,} edges; give one per edge."
        )
    ends = edge_index.as_subclass(Tensor).long()  # PyG's EdgeIndex sorts and caches on its own; a plain tensor is enough
    ends = ends if flow == "source_to_target" else ends.flip(0)
    return ends, None if edge_weight is None else edge_weight.flatten()


def _structure(ends: Tensor, num_nodes: int) -> tuple[Adjacency, Tensor, Tensor]:
    """The edges between different nodes, their indices in adjacency order, and the indices of the self-loops."""
    is_loop = ends[0] == ends[1]
    between = (~is_loop).nonzero().flatten()
    adjacency = Adjacency.build(ends[:, between], num_nodes)
    return adjacency, between[adjacency.order], is_loop.nonzero().flatten()


def _loops(
    ends: Tensor, weight: Tensor | None, at: Tensor, num_nodes: int, fill: float | None, dtype: torch.dtype, is_added: bool
) -> Tensor | None:
    """Weights of self-loops [n]. `is_added`: those that a layer adds come on top of given ones, as in PyG's `gcn_norm` of a
    sparse matrix; of an edge_index it adds them to nodes without one."""
    if fill is None and not len(at):
        return None
    device = ends.device
    given = torch.ones(len(at), dtype=dtype, device=device) if weight is None else weight[at]
    if fill is None:  # given self-loops count like other edges, duplicates included
        return torch.zeros(num_nodes, dtype=dtype, device=device).index_add(0, ends[0, at], given)
    loop = torch.full((num_nodes,), fill, dtype=dtype, device=device)
    return loop.index_add(0, ends[0, at], given) if is_added else loop.index_put((ends[0, at],), given)
