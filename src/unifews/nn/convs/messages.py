"""Pruning of explicit messages, for layers and inputs without a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from unifews.nn.convs.base import PrunedConv
from unifews.nn.convs.checks import check_edges, is_pair
from unifews.nn.edges import LayerEdges
from unifews.nn.products.messages import MessageProduct

_SUMMING = ("add", "sum", "mean")
"""Aggregations for which a zero message equals no message (a mean still counts it); others must not receive it."""


@dataclass(eq=False)
class LayerCall:
    """One call of a layer; calls in other threads are separate."""

    layer: nn.Module
    given: Tensor | None
    """The features of the senders."""
    why: str
    """Why a layer with a fused path computes explicit messages."""
    masked: dict[str, Tensor]
    """Tensors that replace parameters of the layer during the call."""
    product: int = -1
    edges: LayerEdges | None = None
    """The edges of the current product."""
    dropped: Tensor | None = None
    """bool [messages]: not aggregated; None = all are."""


_running: ContextVar[LayerCall | None] = ContextVar("_running", default=None)


class ByMessages(PrunedConv):
    """PyG's own propagation, with `message` and `aggregate` intercepted."""

    @property
    def run(self) -> LayerCall | None:
        """The current call of this layer."""
        found = _running.get()
        return found if found is not None and found.layer is self else None

    @property
    def call(self) -> int:
        return 0 if self.run is None else max(self.run.product, 0)

    def notes(self) -> tuple[str, ...]:
        if self.run is None or not self.run.why or not self.session.pruning.prunes_edges:
            return ()
        return (
            f"{self.path} is called with {self.run.why}: all its messages are computed before some are set to zero, so pruning "
            f"its edges reduces the counted operations only, not the time",
        )

    def forward_by_messages(self, why: str, *args: Any, **kwargs: Any) -> Any:
        """The layer's own forward with explicit messages; the reason is in the trace."""
        return self._forward(why, {}, args, kwargs)

    def why_by_messages(self, x: Any, size: Any) -> str:
        """Why a pair of features (senders, receivers) needs explicit messages; empty if it does not."""
        if not all(isinstance(part, Tensor) for part in x):
            return "features of one side only"
        if self.flow != "source_to_target":
            return "a pair of features and the flow from target to source"
        if size is not None and tuple(size) != (len(x[0]), len(x[1])):
            return "a size other than that of its features"
        return "" if self.session.factor is None else "a pair of features and factors of edges"

    def by_messages(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's own forward(x, …); `propagate` below prunes its messages."""
        return self._forward("", {}, args, kwargs)

    def with_weights(self, masked: dict[str, Tensor], *args: Any) -> Any:
        """`by_messages` with tensors in place of parameters, if the class reads them from `run`."""
        return self._forward("", masked, args, {})

    def _forward(self, why: str, masked: dict[str, Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        x: Any = args[0] if args else kwargs.get("x")
        given = x[0] if is_pair(x) else x
        token = _running.set(LayerCall(self, given if isinstance(given, Tensor) else None, why, masked))
        try:
            return self.stands_for.forward(self, *args, **kwargs)
        finally:
            _running.reset(token)

    def propagate(self, edge_index: Any, size: Any = None, **kwargs: Any) -> Tensor:
        check_edges(edge_index, self.path)
        if edge_index.layout not in (torch.strided, torch.sparse_csr):
            edge_index = edge_index.to_sparse_csr()  # messages are then ordered by row
        if self.run is None:  # called directly, not from the layer's forward
            token = _running.set(LayerCall(self, None, "", {}))
            try:
                return self.propagate(edge_index, size, **kwargs)
            finally:
                _running.reset(token)
        run = self.run
        run.edges, run.dropped, run.product = self._ends(edge_index, size, kwargs), None, run.product + 1
        out: Tensor = super().propagate(edge_index, size=size, **kwargs)
        return out

    @property
    def _known_run(self) -> LayerCall:
        assert self.run is not None, "messages are made in `propagate`"
        return self.run

    def message(self, *args: Any, **kwargs: Any) -> Tensor:
        messages: Tensor = super().message(*args, **kwargs)
        rows = messages.movedim(self.node_dim, 0)  # one row per edge
        if not rows.numel():
            return messages
        edges = self._known_run.edges
        assert edges is not None
        adds_loops = self.renormalizes and self.add_self_loops  # one at every node
        operand = kwargs["x_j"].movedim(self.node_dim, 0).reshape(len(rows), -1) if adds_loops else None
        pruned = self._prune(rows.reshape(len(rows), -1), edges, operand)
        return pruned.view_as(rows).movedim(0, self.node_dim)

    def aggregate(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        dropped = self._known_run.dropped
        if dropped is not None and "index" in kwargs:
            kept = (~dropped).nonzero().flatten()
            inputs, kwargs["index"] = inputs.index_select(self.node_dim, kept), kwargs["index"][kept]
            if "ptr" in kwargs:
                kwargs["ptr"] = None
        out: Tensor = super().aggregate(inputs, *args, **kwargs)
        return out

    def _ends(self, edge_index: Any, size: Any, kwargs: Mapping[str, Any]) -> LayerEdges:
        """The edges of the messages; between different sets of nodes there are no self-loops."""
        if edge_index.layout != torch.strided:
            return _pattern(edge_index)
        given = [value if isinstance(value, tuple | list) else [value] for name, value in kwargs.items() if self._by_node(name)]
        rows: list[list[int]] = [[x.shape[self.node_dim] for x in pair if isinstance(x, Tensor) and x.ndim] for pair in given]
        sides: list[int] = [int(s) for s in size or () if s is not None]
        largest_end = int(edge_index.max()) + 1 if edge_index.numel() else 0
        n = max([largest_end, *sides, *(count for pair in rows for count in pair)])
        if not any(len(set(pair)) == 2 for pair in (sides, *rows)):
            return LayerEdges.of(edge_index, None, n, "sum", flow=self.flow)
        if self.flow == "source_to_target":
            return LayerEdges.between(edge_index, n, n, "sum")
        return LayerEdges.of(torch.stack([edge_index[0] + n, edge_index[1]]), None, 2 * n, "sum", flow=self.flow)

    def _by_node(self, name: str) -> bool:
        """Whether an argument of `propagate` has a row per node: PyG passes those of both ends to `message`."""
        return any(f"{name}_{end}" in self._user_args for end in "ij")

    def _prune(self, flat: Tensor, edges: LayerEdges, operand: Tensor | None) -> Tensor:
        """Messages [m, width] with pruned values set to zero. Rows are in the caller's order, self-loops included."""
        began, run = perf_counter(), self._known_run
        self.set_width(flat.shape[1])
        alive = self.session.inherited_edges(self, edges.adjacency, run.given)
        product = MessageProduct(flat, edges, alive, operand)
        out = self.multiply(product, began)
        run.dropped = product.dropped if self.aggr not in _SUMMING else None
        return out


def _pattern(matrix: Tensor) -> LayerEdges:
    """The edges of a sparse matrix without its values, which the layer passes separately."""
    receivers, senders = matrix.shape
    found = matrix.to_sparse_coo().coalesce().indices().flip(0)  # type: ignore[no-untyped-call]
    return (
        LayerEdges.of(found, None, senders, "sum")
        if senders == receivers
        else LayerEdges.between(found, senders, receivers, "sum")
    )
