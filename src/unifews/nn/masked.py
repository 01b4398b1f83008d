"""A model on a subset of the edges of its graph: how methods that decide by graph, not by message, remove edges.

The model is called with the complete graph as before. Its layers see the kept edges as if there were no others (degrees, means
and softmaxes are theirs alone), each with a factor where there are any; costs are reported relative to the complete graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from unifews.core.graph import Graph
from unifews.errors import GraphError, InputError
from unifews.nn.convs import PrunedConv
from unifews.nn.linear import PrunedWeight
from unifews.nn.session import Session
from unifews.nn.sparsify import set_schedule, sparsify
from unifews.nn.trace import ConvTrace

_MIN_FACTOR = 1e-6  # negligible, while its logarithm, which attention adds, is still finite


class MaskedModel(nn.Module):
    """A sparsified model, the m edges between different nodes of its graph, and a mask on them.

    Self-loops and edges of other graphs are kept. Masks and factors are buffers or parameters [m], so they are saved, copied
    and restored with the weights that were trained under them.
    """

    keys: Tensor
    """The edges, receiver · n + sender, int64 [m], sorted, none twice."""
    nodes: Tensor
    keep: Tensor
    """bool [m]."""
    raw: Tensor | None
    """The factors before `sigmoid`, one for every edge or every group of edges; None: no factors."""
    group: Tensor | None
    """int64 [m]: the index in `raw` of each edge; None: in order."""
    probing: bool
    """Whether training passes run on all edges, the removed ones with a negligible factor."""
    probed: Tensor | None
    """The factors of the last such pass [m]; their gradient is that of all edges, removed ones included."""

    def __init__(self, model: nn.Module, edge_index: Tensor, num_nodes: int, requested: str, notes: Sequence[str] = ()) -> None:
        """`model` is copied; `requested` and `notes` are for its trace."""
        super().__init__()
        self.model = sparsify(model, feedback=False)
        set_schedule(self.model, "frozen")  # the method decides
        self.session.requested, self.notes = requested, tuple(notes)
        sender, receiver = edge_index.long()
        between = sender != receiver
        self.register_buffer("keys", torch.unique(receiver[between] * num_nodes + sender[between]))
        self.register_buffer("nodes", torch.tensor(num_nodes, device=edge_index.device))
        self.register_buffer("keep", torch.ones_like(self.keys, dtype=torch.bool))
        self.register_buffer("raw", None)
        self.register_buffer("group", None)
        self.sigmoid, self.probing, self.probed = False, False, None
        self.masks = nn.ParameterDict()
        self._placed: _Placed | None = None
        self._weight_cache: tuple[tuple[object, ...], list[int], Tensor] | None = None

    @property
    def session(self) -> Session:
        for module in self.model.modules():
            if isinstance(module, PrunedConv):
                return module.session
        raise InputError("this model is desparsified: its `model` inside is an ordinary PyG one; call that, on all edges.")

    @property
    def weights(self) -> list[PrunedWeight]:
        """The matrices, in the order of the trace."""
        return self.session.weights

    @property
    def graph(self) -> Graph:
        """The edges as a graph, in the order of `keep`."""
        return Graph.from_edge_index(torch.stack(self.ends), int(self.nodes))

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        """Senders and receivers of the edges."""
        return self.keys % self.nodes, self.keys // self.nodes

    def set_factors(self, raw: Tensor, *, learnt: bool = True, sigmoid: bool = False, group: Tensor | None = None) -> None:
        """Messages along an edge get a factor of its own or of its group: raw, or with `sigmoid` 1 / (1 + exp(-raw)).

        `learnt`: a parameter of the model; else a tensor that may have a gradient but is none of the optimizer's.
        """
        self.sigmoid, self.group = sigmoid, group
        self.raw = nn.Parameter(raw) if learnt else raw

    def set_masks(self, initial: Sequence[Tensor]) -> None:
        """Every weight gets a learnt factor, starting from these matrices."""
        for name, start in zip(self._names(), initial, strict=True):
            self.masks[name] = nn.Parameter(start)

    def keep_weights(self, masks: Sequence[Tensor]) -> None:
        """Set the mask of every weight matrix."""
        for weight, keep in zip(self.weights, masks, strict=True):
            weight.keep.copy_(keep)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        probing = self.probing and self.training and torch.is_grad_enabled()
        placed = self._place(edge_index, len(x), probing)
        weight = self._weight(placed, edge_weight, self._probe() if probing else self.factor)
        session, weighted = self.session, getattr(self.model, "weighted", True)
        args = (x, placed.edges) if weight is None or not weighted else (x, placed.edges, weight)
        session.factor = None if weighted else weight
        try:
            out: Tensor = functional_call(self.model, self._masked(), args) if self.masks else self.model(*args)
        finally:
            session.factor = None
        session.records = [self._of_whole_graph(record, placed.num_edges) for record in session.records]
        return out

    def _of_whole_graph(self, record: ConvTrace, edges: int) -> ConvTrace:
        """A layer's record with its costs relative to all edges of the call."""
        return replace(record.of_graph(edges), notes=(*record.notes, *self.notes))

    def thin(self, edge_index: Tensor, edge_weight: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The graph that `self.model` is called with: the kept edges and their weights; None = 1."""
        placed = self._place(edge_index, int(self.nodes), False)
        return placed.edges, self._weight(placed, edge_weight, self.factor)

    def _weight(self, placed: _Placed, edge_weight: Tensor | None, factor: Tensor | None) -> Tensor | None:
        """Weights of the edges used. While nothing changes it is the same tensor, so that layers can reuse what they cached."""
        if factor is None and edge_weight is None:
            return None
        is_constant = not any(value is not None and value.requires_grad for value in (factor, edge_weight))
        of = (placed, edge_weight, self.raw)
        versions = [-1 if value is None else value._version for value in (edge_weight, self.raw)]
        if is_constant and self._weight_cache is not None:
            before, then, found = self._weight_cache
            if then == versions and all(a is b for a, b in zip(before, of, strict=True)):
                return found
        weight = None if edge_weight is None else edge_weight[placed.chosen]
        if factor is not None:
            own = torch.cat([factor, factor.new_ones(1)])[placed.at]
            weight = own if weight is None else weight * own
        assert weight is not None
        self._weight_cache = (of, versions, weight) if is_constant else None
        return weight

    @property
    def factor(self) -> Tensor | None:
        """Of every edge, removed ones included, [m]."""
        if self.raw is None:
            return None
        factor = self.raw.sigmoid() if self.sigmoid else self.raw
        return (factor if self.group is None else factor[self.group]).clamp(min=_MIN_FACTOR)

    def _probe(self) -> Tensor:
        factor = self.factor
        factor = torch.ones(len(self.keys), device=self.keys.device) if factor is None else factor
        self.probed = torch.where(self.keep, factor, _MIN_FACTOR)
        if self.probed.requires_grad:
            self.probed.retain_grad()
        else:
            self.probed.requires_grad_()
        return self.probed

    def _place(self, edge_index: Tensor, nodes: int, all_edges: bool) -> _Placed:
        """The edges of a call among ours, cached until either changes."""
        key = (edge_index._version, self.keep._version, all_edges, nodes)
        found = self._placed
        if found is not None and found.of is edge_index and found.keep is self.keep and found.key == key:
            return found
        if edge_index.layout != torch.strided or edge_index.ndim != 2:
            raise GraphError("a model whose edges were chosen by a method takes edge_index [2, m]; convert the sparse matrix.")
        if nodes != int(self.nodes):
            raise GraphError(f"the edges were chosen on a graph of {int(self.nodes):,} nodes; x has {nodes:,} rows.")
        sender, receiver = edge_index.long()
        wanted = receiver * nodes + sender
        at = torch.searchsorted(self.keys, wanted).clamp(max=max(len(self.keys) - 1, 0))
        ours = self.keys[at] == wanted if len(self.keys) else torch.zeros_like(wanted, dtype=torch.bool)
        at = torch.where(ours, at, len(self.keys))  # self-loops and edges of other graphs: behind the last
        chosen = torch.cat([self.keep | all_edges, self.keep.new_ones(1)])[at]
        count = int((sender != receiver).sum())
        self._placed = _Placed(edge_index, self.keep, key, chosen, at[chosen], edge_index[:, chosen], count)
        return self._placed

    def _names(self) -> list[str]:
        """Names of the matrices, as a ParameterDict takes them."""
        names = {id(value): name for name, value in self.model.named_parameters()}
        return [names[id(weight.matrix)].replace(".", "/") for weight in self.weights]

    def _masked(self) -> dict[str, Tensor]:
        """Weights times their learnt masks, by name in the model."""
        known = dict(self.model.named_parameters())
        return {(own := name.replace("/", ".")): known[own] * mask for name, mask in self.masks.items()}


class _Placed(NamedTuple):
    of: Tensor
    keep: Tensor
    key: tuple[object, ...]
    chosen: Tensor
    """bool: the edges of the call that are used."""
    at: Tensor
    """Indices of their factors."""
    edges: Tensor
    num_edges: int
    """Edges of the call between different nodes."""
