"""Pruning of explicit messages, for layers and inputs without a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from unifews.nn.convs.base import PrunedConv
from unifews.nn.convs.checks import check_edges, is_pair
from unifews.nn.edges import LayerEdges
from unifews.nn.products.messages import MessageProduct
from unifews.nn.thinning import forward_names

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
    graph: Tensor | None = None
    """The edges that the layer is called with."""
    product: int = -1
    edges: LayerEdges | None = None
    """The edges of the current product; None where nothing is pruned."""
    width: int = 0
    """Columns of the messages of the current product."""
    dropped: Tensor | None = None
    """bool [messages]: not aggregated; None = all are."""
    columns: Tensor | None = None
    """int64: the columns of the messages that are aggregated; None = all are."""


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
        names = forward_names(self.stands_for)  # type: ignore[arg-type]
        edges = (dict(zip(names, args, strict=False)) | dict(kwargs)).get("edge_index")
        with self.running(x, edges, why, masked):
            return self.stands_for.forward(self, *args, **kwargs)

    @contextmanager
    def running(self, x: Any, edge_index: Any, why: str = "", masked: dict[str, Tensor] | None = None) -> Iterator[LayerCall]:
        """While a call of this layer runs."""
        given = x[0] if is_pair(x) else x
        call = LayerCall(self, given if isinstance(given, Tensor) else None, why, masked or {})
        call.graph = edge_index if isinstance(edge_index, Tensor) else None
        token = _running.set(call)
        try:
            yield call
        finally:
            _running.reset(token)

    def propagate(self, edge_index: Any, size: Any = None, **kwargs: Any) -> Tensor:
        check_edges(edge_index, self.path)
        if self.run is None:  # called directly, not from the layer's forward
            with self.running(None, edge_index):
                return self.propagate(edge_index, size, **kwargs)
        run = self.run
        run.dropped, run.columns, run.product = None, None, run.product + 1
        if not self.session.pruning.prunes_edges:
            return self._unpruned(run, edge_index, size, kwargs)
        if edge_index.layout not in (torch.strided, torch.sparse_csr):
            edge_index = edge_index.to_sparse_csr()  # messages are then ordered by row
        run.edges = self._edges(run.product, edge_index, size, kwargs)
        out: Tensor = super().propagate(edge_index, size=size, **kwargs)
        return out

    def _unpruned(self, run: LayerCall, edge_index: Tensor, size: Any, kwargs: Mapping[str, Any]) -> Tensor:
        """PyG's own propagation and a record of what it computes."""
        began, run.width = perf_counter(), 0
        out: Tensor = super().propagate(edge_index, size=size, **kwargs)
        count = edge_index._nnz() if edge_index.layout != torch.strided else edge_index.shape[1]
        if edge_index.layout == torch.strided and not self._is_paired(size, kwargs):
            count -= int((edge_index[0] == edge_index[1]).sum())
        width = run.width or (out.numel() // out.shape[self.node_dim] if out.numel() else 0)  # fused: no messages were made
        self.set_width(width)
        graph = edge_index if run.graph is None else run.graph
        self.add_record_of(count, graph, width, count, count * width, None, began)
        return out

    @property
    def _known_run(self) -> LayerCall:
        assert self.run is not None, "messages are made in `propagate`"
        return self.run

    def message(self, *args: Any, **kwargs: Any) -> Tensor:
        messages: Tensor = super().message(*args, **kwargs)
        run = self._known_run
        rows = messages.movedim(self.node_dim, 0)  # one row per edge
        run.width = rows[0].numel() if len(rows) else 0
        if not rows.numel() or run.edges is None:
            return messages
        adds_loops = self.renormalizes and self.add_self_loops  # one at every node
        operand = kwargs["x_j"].movedim(self.node_dim, 0).reshape(len(rows), -1) if adds_loops else None
        pruned = self._prune(rows.reshape(len(rows), -1), run.edges, operand)
        return pruned.view_as(rows).movedim(0, self.node_dim)

    def aggregate(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        run = self._known_run
        if run.dropped is not None and "index" in kwargs:
            kept = (~run.dropped).nonzero().flatten()
            inputs, kwargs["index"] = inputs.index_select(self.node_dim, kept), kwargs["index"][kept]
            if "ptr" in kwargs:
                kwargs["ptr"] = None
        if run.columns is None:
            out: Tensor = super().aggregate(inputs, *args, **kwargs)
            return out
        few: Tensor = super().aggregate(inputs.flatten(1).index_select(1, run.columns), *args, **kwargs)
        shape = inputs.shape[1:]
        return few.new_zeros(len(few), shape.numel()).index_copy(1, run.columns, few).view(-1, *shape)

    def _edges(self, product: int, edge_index: Tensor, size: Any, kwargs: Mapping[str, Any]) -> LayerEdges:
        """`_ends`, kept for the next call with equal edges: some layers make new tensors of the same edges in every call."""
        known = _last_edges.setdefault(self, {})
        key = (product, self.flow, tuple(map(tuple, self._sides(size, kwargs))))
        found = known.get(key)
        if found is not None and _same(found[0], edge_index):
            kept: LayerEdges = found[1]
            return kept
        made = self._ends(edge_index, size, kwargs)
        if edge_index.layout == torch.strided and edge_index is not self._known_run.graph:
            known[key] = edge_index.clone(), made
        return made

    def _sides(self, size: Any, kwargs: Mapping[str, Any]) -> list[list[int]]:
        """Numbers of rows, of both ends where there are two, of `size` and of every argument with a row per node."""
        given = [value if isinstance(value, tuple | list) else [value] for name, value in kwargs.items() if self._by_node(name)]
        rows = [[x.shape[self.node_dim] for x in pair if isinstance(x, Tensor) and x.ndim] for pair in given]
        return [[int(s) for s in size or () if s is not None], *rows]

    def _is_paired(self, size: Any, kwargs: Mapping[str, Any]) -> bool:
        """Whether senders and receivers are different sets of nodes."""
        return any(len(set(pair)) == 2 for pair in self._sides(size, kwargs))

    def _ends(self, edge_index: Any, size: Any, kwargs: Mapping[str, Any]) -> LayerEdges:
        """The edges of the messages; between different sets of nodes there are no self-loops."""
        if edge_index.layout != torch.strided:
            return _pattern(edge_index)
        sides = self._sides(size, kwargs)
        largest_end = int(edge_index.max()) + 1 if edge_index.numel() else 0
        n = max([largest_end, *(count for pair in sides for count in pair)])
        if not self._is_paired(size, kwargs):
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
        sums = self.aggr in ("add", "sum") and self.stands_for.aggregate is MessagePassing.aggregate and not self.explain
        product = MessageProduct(flat, edges, alive, operand, sums)
        out = self.multiply(product, began)
        run.columns = product.columns
        run.dropped = product.dropped if sums or self.aggr not in _SUMMING else None
        return out


_last_edges: WeakKeyDictionary[PrunedConv, dict[Any, tuple[Tensor, LayerEdges]]] = WeakKeyDictionary()


def _same(a: Tensor, b: Tensor) -> bool:
    return a.device == b.device and a.dtype == b.dtype and torch.equal(a, b)


def _pattern(matrix: Tensor) -> LayerEdges:
    """The edges of a sparse matrix without its values, which the layer passes separately."""
    receivers, senders = matrix.shape
    found = matrix.to_sparse_coo().coalesce().indices().flip(0)  # type: ignore[no-untyped-call]
    return (
        LayerEdges.of(found, None, senders, "sum")
        if senders == receivers
        else LayerEdges.between(found, senders, receivers, "sum")
    )
