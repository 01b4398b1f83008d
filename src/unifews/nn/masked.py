"""A model on some of the edges of its graph: how methods that decide by graph, not by message, take edges out.

The model is called with the whole graph as ever. Its layers see the edges that stay as if there were no others (degrees, means
and softmaxes are theirs alone), each with a factor where there are any; costs are told as shares of the whole graph's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from unifews.errors import GraphError, InputError
from unifews.nn.convs import PrunedConv
from unifews.nn.linear import PrunedWeight
from unifews.nn.session import Session
from unifews.nn.sparsify import set_schedule, sparsify

_LEAST = 1e-6  # a factor: below it an edge is as good as gone, and its logarithm, which attention adds, still a number


class Thinned(nn.Module):
    """A sparsified model, the edges between different nodes that it was made on, and which of them it runs on.

    Self-loops and edges that it has never seen are left as they are. Everything decided is a buffer or a parameter [m], so
    it is saved, copied and restored with the weights that were trained under it.
    """

    keys: Tensor
    """The edges, receiver · n + sender, int64 [m], sorted, none twice."""
    nodes: Tensor
    keep: Tensor
    """bool [m]."""
    raw: Tensor | None
    """What the factors are made of; of every edge, or of every group of them."""
    group: Tensor | None
    """int64 [m]: where in `raw` an edge finds its own; None: in order."""
    probing: bool
    """Whether training passes run on all edges, those that are gone by a hair."""
    probed: Tensor | None
    """The factors of the last such pass [m]; their gradient tells of all edges whether they are missed."""

    def __init__(self, model: nn.Module, edge_index: Tensor, num_nodes: int, requested: str, notes: Sequence[str] = ()) -> None:
        """`model` is copied; `requested` and `notes` are words for its trace."""
        super().__init__()
        self.model = sparsify(model, feedback=False)
        set_schedule(self.model, "frozen")  # what goes is decided from outside
        self.session.requested, self.notes = requested, tuple(notes)
        sender, receiver = edge_index.long()
        between = sender != receiver
        self.register_buffer("keys", torch.unique(receiver[between] * num_nodes + sender[between]))
        self.register_buffer("nodes", torch.tensor(num_nodes, device=edge_index.device))
        self.register_buffer("keep", torch.ones_like(self.keys, dtype=torch.bool))
        self.register_buffer("raw", None)
        self.register_buffer("group", None)
        self.squash, self.probing, self.probed = False, False, None
        self.masks = nn.ParameterDict()
        self._placed: _Placed | None = None
        self._weighed: tuple[tuple[object, ...], list[int], Tensor] | None = None

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
    def ends(self) -> tuple[Tensor, Tensor]:
        """Senders and receivers of the edges."""
        return self.keys % self.nodes, self.keys // self.nodes

    def give_factors(self, raw: Tensor, *, learnt: bool = True, squash: bool = False, group: Tensor | None = None) -> None:
        """Every edge is sent by a factor of its own, or of its group: raw, or with `squash` 1 / (1 + exp(-raw)).

        `learnt`: they are parameters of the model; else a tensor that may have a gradient, but no optimiser finds it.
        """
        self.squash, self.group = squash, group
        self.raw = nn.Parameter(raw) if learnt else raw

    def give_masks(self, near: Sequence[Tensor]) -> None:
        """Every weight gets a factor that is learnt, starting from these."""
        for name, start in zip(self._names(), near, strict=True):
            self.masks[name] = nn.Parameter(start)

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
        session.records = [
            replace(
                record, entries=placed.whole * record.width, dense_macs=placed.whole * record.width, edges=placed.whole,
                notes=(*record.notes, *self.notes),
            )
            for record in session.records
        ]  # fmt: skip
        return out

    def thin(self, edge_index: Tensor, edge_weight: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The graph that `model` inside sees of this one: fewer edges, and their weights; None = 1."""
        placed = self._place(edge_index, int(self.nodes), False)
        return placed.edges, self._weight(placed, edge_weight, self.factor)

    def _weight(self, placed: _Placed, edge_weight: Tensor | None, factor: Tensor | None) -> Tensor | None:
        """Of the edges that are used. Where it does not change it stays the same tensor, by which layers know what they need
        not compute again."""
        if factor is None and edge_weight is None:
            return None
        settled = not any(value is not None and value.requires_grad for value in (factor, edge_weight))
        of = (placed, edge_weight, self.raw)
        versions = [-1 if value is None else value._version for value in (edge_weight, self.raw)]
        if settled and self._weighed is not None:
            before, then, found = self._weighed
            if then == versions and all(a is b for a, b in zip(before, of, strict=True)):
                return found
        weight = None if edge_weight is None else edge_weight[placed.chosen]
        if factor is not None:
            own = torch.cat([factor, factor.new_ones(1)])[placed.at]
            weight = own if weight is None else weight * own
        assert weight is not None
        self._weighed = (of, versions, weight) if settled else None
        return weight

    @property
    def factor(self) -> Tensor | None:
        """Of every edge, those that are gone included, [m]."""
        if self.raw is None:
            return None
        factor = self.raw.sigmoid() if self.squash else self.raw
        return (factor if self.group is None else factor[self.group]).clamp(min=_LEAST)

    def _probe(self) -> Tensor:
        factor = self.factor
        whole = torch.ones(len(self.keys), device=self.keys.device) if factor is None else factor
        self.probed = torch.where(self.keep, whole, _LEAST)
        if self.probed.requires_grad:
            self.probed.retain_grad()
        else:
            self.probed.requires_grad_()
        return self.probed

    def _place(self, edge_index: Tensor, nodes: int, everything: bool) -> _Placed:
        """Where the edges of a call are among ours, kept until either changes."""
        key = (edge_index._version, self.keep._version, everything, nodes)
        found = self._placed
        if found is not None and found.of is edge_index and found.keep is self.keep and found.key == key:
            return found
        if edge_index.layout != torch.strided or edge_index.ndim != 2:
            raise GraphError("a model whose edges were chosen by a method takes edge_index [2, m]; convert the matrix.")
        if nodes != int(self.nodes):
            raise GraphError(f"the edges were chosen on a graph of {int(self.nodes):,} nodes; x has {nodes:,} rows.")
        sender, receiver = edge_index.long()
        wanted = receiver * nodes + sender
        at = torch.searchsorted(self.keys, wanted).clamp(max=max(len(self.keys) - 1, 0))
        ours = self.keys[at] == wanted if len(self.keys) else torch.zeros_like(wanted, dtype=torch.bool)
        at = torch.where(ours, at, len(self.keys))  # self-loops and edges never seen: behind the last
        chosen = torch.cat([self.keep | everything, self.keep.new_ones(1)])[at]
        whole = int((sender != receiver).sum())
        self._placed = _Placed(edge_index, self.keep, key, chosen, at[chosen], edge_index[:, chosen], whole)
        return self._placed

    def _names(self) -> list[str]:
        """Of the matrices, as a ParameterDict takes them."""
        names = {id(value): name for name, value in self.model.named_parameters()}
        return [names[id(weight.matrix)].replace(".", "/") for weight in self.weights]

    def _masked(self) -> dict[str, Tensor]:
        """Weights times their learnt masks, by the names they have in the model."""
        known = dict(self.model.named_parameters())
        return {(own := name.replace("/", ".")): known[own] * mask for name, mask in self.masks.items()}


class _Placed(NamedTuple):
    of: Tensor
    keep: Tensor
    key: tuple[object, ...]
    chosen: Tensor
    """bool: the edges of the call that are used."""
    at: Tensor
    """Where their factors are."""
    edges: Tensor
    whole: int
    """Edges of the call between different nodes."""
