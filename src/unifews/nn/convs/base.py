"""Base class of pruned layers: decide which products of the messages to keep, compute those, record the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary
from torch_geometric.nn import Linear, MessagePassing

from unifews.nn.edges import LayerEdges, Norm
from unifews.nn.inheritance import Relation
from unifews.nn.linear import PrunedWeight
from unifews.nn.products import Product, Selection
from unifews.nn.products.diffusion import DiffusionProduct, diffused
from unifews.nn.session import Session
from unifews.nn.trace import ConvTrace

KINDS: dict[type[MessagePassing], type[PrunedConv]] = {}
"""Pruned classes with a fused path, by the PyG class they replace."""

_cache = WeakTensorKeyDictionary()
C = TypeVar("C", bound="type[PrunedConv]")


def prunes(kind: type[MessagePassing]) -> Callable[[C], C]:
    """Register the decorated class as the pruned class of this layer."""

    def put(cls: C) -> C:
        cls.stands_for = kind
        KINDS[kind] = cls
        return cls

    return put


class PrunedConv(MessagePassing):  # type: ignore[misc]
    """A PyG layer that skips small products T[u,v]·y[v].

    The class of a layer is changed in place, so parameter names and ``isinstance`` are unaffected. A subclass builds a
    `Product` and calls `multiply`; which entries of it are kept is decided by the kind of the session (`unifews.nn.entries`),
    which stores its decision in the buffers below. They are part of the state.
    """

    stands_for: ClassVar[type[MessagePassing]]
    fused: ClassVar[bool] = True

    session: Session
    path: str
    relation: Relation = ()
    seen_width: int
    seen_edges = 0
    """Number of edges when `removed` was decided; 0 = unknown, after loading."""
    chosen = -1
    """Number of columns kept by the last decision or by a loaded state."""
    unseen = 0.0
    """Estimated fraction of the edges of this pass that did not exist when `removed` was decided."""
    decided: Tensor
    """Whether a decision has been taken."""
    delta: Tensor
    """δ, on the scale of the messages."""
    columns: Tensor
    """bool [width]: the columns that are sent; empty for other entries, or where the width is not known yet."""
    removed_hash: Tensor
    """Hash of `removed`, int64: a buffer, so that an average of models copies it from the trained model, as `decided`."""
    nodes: Tensor
    """Number of nodes of the graph that `removed` was decided on."""
    passes: Tensor

    def begin_pruning(self, session: Session, path: str) -> None:
        self.session, self.path, self.seen_width = session, path, 0
        self.fuse = bool(self.fuse) and not session.pruning.prunes_edges  # type: ignore[has-type]  # pruning needs explicit messages on the generic path
        device = next(self.parameters()).device if any(True for _ in self.parameters()) else None
        for name, value in (
            ("decided", torch.zeros((), dtype=torch.bool)),
            ("delta", torch.zeros((), dtype=torch.float64)),
            ("columns", torch.zeros(self._num_columns, dtype=torch.bool)),
            ("nodes", torch.zeros((), dtype=torch.int64)),
            ("passes", torch.zeros((), dtype=torch.int64)),
            ("removed_hash", torch.zeros((), dtype=torch.int64)),
        ):
            self.register_buffer(name, value.to(device), persistent=name != "removed_hash")
        self.removed = torch.zeros(0, dtype=torch.int64, device=device)

    def end_pruning(self) -> None:
        """Restore the original PyG layer."""
        for name in ("decided", "delta", "columns", "nodes", "passes", "removed_hash", "_removed"):
            delattr(self, name)
        del self.session, self.path, self.seen_width
        for name in ("seen_edges", "unseen", "relation", "chosen"):
            self.__dict__.pop(name, None)
        self.__class__ = self.stands_for
        self.fuse = self.inspector.implements("message_and_aggregate")

    @property
    def width(self) -> int:
        """Columns of the unpruned product; before the first pass, from the attributes of the layer."""
        widths = [self.seen_width, *(getattr(self, name, None) for name in ("out_channels", "channels", "in_channels"))]
        return next((value for value in widths if isinstance(value, int) and value > 0), 1)

    @property
    def _num_columns(self) -> int:
        """Length of the buffer `columns`, so that it has its shape from the start, as averages and copies of a model need.
        Some layers know it only when they run, and get another buffer then."""
        return self.session.kind.num_columns(self) if self.session.pruning.prunes_edges else 0

    def narrower(self, weight: Tensor) -> int:
        """Columns of T x Wᵀ on the narrower side of W [outputs, inputs], where an unpruned layer applies T.

        Decisions by edge are taken after the weights, as in the authors' code, and refer to that product.
        """
        outputs, inputs = weight.shape
        by_edge = self.session.pruning.prunes_edges and self.session.kind.by_edge
        return outputs if by_edge else min(outputs, inputs)

    def before_weights(self, x: Tensor, weight: Tensor) -> bool:
        """Whether T is applied before the weights: only unpruned, to dense features, where x is narrower."""
        dense, prunes = x.layout == torch.strided, self.session.pruning.prunes_edges
        self.set_width(self.narrower(weight) if dense or prunes else weight.shape[0])
        return dense and not prunes and x.shape[1] < weight.shape[0]

    @property
    def removed(self) -> Tensor:
        """Keys of the removed edges, call · n² + receiver · n + sender, int64, sorted; for entries "node".

        Part of the state and of every copy, but not a buffer: their number changes, and
        `torch.optim.swa_utils.AveragedModel` copies buffers by shape.
        """
        return self._removed

    @removed.setter
    def removed(self, keys: Tensor) -> None:
        self._removed = keys
        self.removed_hash.copy_(_hash(keys))

    @property
    def is_stale(self) -> bool:
        """Whether the buffers belong to another decision than `removed`, as in an average of models."""
        return not self.removed_hash.is_meta and not torch.equal(_hash(self.removed), self.removed_hash)

    def discard_edges(self) -> None:
        self.removed = self.removed.new_zeros(0)
        self.decided.fill_(False)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self._removed = fn(self._removed)
        return self

    @property
    def _saves_decisions(self) -> bool:
        """Not in accelerated models, which have none and the ``state_dict`` of PyG."""
        return "nodes" not in self._non_persistent_buffers_set

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self.session.discard_stale_edges()
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._saves_decisions:
            destination[prefix + "removed"] = self.removed

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Any, strict: bool, missing_keys: list[str], *args: Any
    ) -> None:
        columns, removed = state_dict.get(prefix + "columns"), state_dict.pop(prefix + "removed", None)
        if columns is not None:
            if not len(columns):  # not decided yet
                columns = state_dict[prefix + "columns"] = columns.new_zeros(len(self.columns))
            self.columns = torch.empty_like(columns, device=self.columns.device)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, *args)
        if removed is not None:
            if self.removed_hash.is_meta and not self.nodes.is_meta:  # assigned, not copied
                self.removed_hash = torch.zeros_like(self.nodes)
            self.removed = removed.detach().to(self.nodes.device, copy=True)
        elif strict and self._saves_decisions:
            missing_keys.append(prefix + "removed")
        self.chosen = -1 if self.columns.is_meta else int(self.columns.sum())

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """PyG generates a `propagate` for the class of every copy, which would replace the one that prunes."""

    @classmethod
    def supports(cls, conv: MessagePassing) -> bool:
        """Whether the fused path computes what this layer computes."""
        return True

    @classmethod
    def option(cls, conv: MessagePassing) -> str:
        """The option of a layer because of which it is not supported, for messages."""
        return "an explainer" if conv.explain else f"aggr={conv.aggr!r}" if conv.aggr else "an aggregation module"

    def freeze(self, to: Any, given: Mapping[str, Any]) -> int | None:
        """Append the steps that compute this layer to a frozen model; returns the number of their result.

        `to` is the `unifews.serving.tracer.Tracer` (``to.linear``, ``to.diffuse``, ``to.sum``, …), `given` the arguments of
        the call by name, matrices as numbers of earlier steps. None: the layer runs with its own code; a frozen model with
        such a layer computes the same, but is not written to a file.
        """
        return None

    @property
    def call(self) -> int:
        """Index of the current product within one call of this layer."""
        return 0

    def set_width(self, width: int) -> None:
        """Set the width of the messages, which is sometimes known only when the layer runs."""
        if width != self.seen_width:
            self.seen_width = width
            self.session.reset_shares()

    # ---------------------------------------------------------------------------------------------------------- products

    def diffuse_cached(self, x: Tensor, edges: LayerEdges) -> Tensor:
        """T x, cached for features that do not change between passes, as in full-batch training."""
        made, again = cached(x, edges, "diffused", lambda: self.diffuse(x, edges))
        if again:
            self.add_record(edges, x.shape[1], edges.count, edges.count * x.shape[1], None, perf_counter())
        return made

    def diffuse_between(
        self, y: Tensor, receivers: int, edge_index: Tensor, norm: Norm, given: Tensor, edge_weight: Tensor | None = None
    ) -> Tensor:
        """`diffuse` of the senders' y to another set of nodes, [receivers, width]; of equal size means the same nodes."""
        senders, n, dtype = len(y), max(len(y), receivers), y.dtype
        if senders == receivers:
            return self.diffuse(y, LayerEdges.of(edge_index, edge_weight, senders, norm, dtype=dtype), given)
        if self.session.pruning.prunes_edges:
            edges = LayerEdges.between(edge_index, senders, receivers, norm, edge_weight=edge_weight, dtype=dtype)
            return self.diffuse(torch.nn.functional.pad(y, (0, 0, n, n - senders)), edges, given)[:receivers]
        began = perf_counter()
        edges = LayerEdges.overlaid(edge_index, senders, receivers, norm, edge_weight=edge_weight, dtype=dtype)
        rows = y if senders == n else torch.nn.functional.pad(y, (0, 0, 0, n - senders))
        out = diffused(rows, edges)[:receivers]
        self.record_pairs(edge_index, edges, y.shape[1], began)
        return out

    def record_pairs(self, edge_index: Tensor, edges: LayerEdges, width: int, began: float, score_macs: int = 0) -> None:
        """Add an unpruned product between two sets of nodes to the trace: there are no self-loops."""
        if not self.seen_width:
            self.set_width(width)
        count = edge_index.shape[1] if edge_index.layout == torch.strided else edge_index._nnz()
        self.add_record_of(count, edges.adjacency, width, count, count * width, None, began, score_macs=score_macs)

    def diffuse(self, y: Tensor, edges: LayerEdges, given: Tensor | None = None) -> Tensor:
        """T y over the kept products, [n, width]; the diagonal is always kept. `given`: the features of the call."""
        began = perf_counter()
        if not self.seen_width:  # of a layer that does not set it itself
            self.set_width(y.shape[1])
        return self.multiply(DiffusionProduct(y, edges, self.session.inherited_edges(self, edges.adjacency, given)), began)

    def multiply(
        self,
        product: Product,
        began: float,
        *,
        whole: LayerEdges | None = None,
        alive: Tensor | None = None,
        score_macs: int = 0,
    ) -> Tensor:
        """The product over the entries that this layer keeps, after the decision if the pass takes one.

        `whole`, `alive`: of a product on inherited edges only, all edges, and bool [m]: which of them it is on.
        """
        session = self.session
        prunes = session.pruning.prunes_edges
        kept = session.kind.select(product, self) if prunes else Selection()
        done = product.gather(kept)
        later = done.sends if kept.later is None else kept.later
        if later is not None:
            later = later if alive is None else alive.masked_scatter(alive, later)
            session.store_kept_edges(self, (whole or product.edges).adjacency, later)
        delta = float(self.delta) if prunes else None
        self.add_record(product.edges, product.width, done.used, done.macs, delta, began, score_macs=score_macs)
        return done.out

    @property
    def is_normalized(self) -> bool:
        """Whether the factors into a node, its self-loop included, are normalised, by degrees or by a softmax, so that a column
        of which only the self-loop is left can be normalised by that."""
        return False

    @property
    def renormalizes(self) -> bool:
        pruning = self.session.pruning
        return pruning.prunes_edges and pruning.entries == "unit" and pruning.renormalize and self.is_normalized

    def columns_of(self, call: int) -> Tensor:
        """bool [width]: the columns that one product of the layer sends."""
        return self.columns

    # ------------------------------------------------------------------------------------------------------------- trace

    def add_record(
        self, edges: LayerEdges, columns: int, used: int, macs: int, delta: float | None, began: float, *, score_macs: int = 0
    ) -> None:
        """Add a product of so many columns to the trace."""
        self.add_record_of(edges.whole, edges.adjacency, columns, used, macs, delta, began, score_macs=score_macs)

    def add_record_of(
        self,
        whole: int,
        graph: object,
        columns: int,
        used: int,
        macs: int,
        delta: float | None,
        began: float,
        *,
        score_macs: int = 0,
    ) -> None:
        """`add_record` of so many edges, of which `graph` is the object that passes on the same graph share."""
        width = self.width
        lanes = self.session.kind.lanes(columns)
        per_edge = -(-width // lanes)
        self.session.record(
            self,
            ConvTrace(
                index=len(self.session.records),
                entries=whole * per_edge,
                kept=-(-macs // lanes),
                zeros=0,
                macs=macs,
                dense_macs=whole * width,
                zero_macs=0,
                threshold=delta,
                seconds=perf_counter() - began,
                name=self.path,
                kind=self.stands_for.__name__,
                edges=whole,
                edges_kept=used,
                width=width,
                score_macs=score_macs,
                notes=self.notes() + self._unseen_note(),
            ),
            graph,
        )

    def notes(self) -> tuple[str, ...]:
        return ()

    def _unseen_note(self) -> tuple[str, ...]:
        if self.unseen <= 0.5:
            return ()
        return (
            f"{self.path}: about {self.unseen:.0%} of these edges were not in the training graph, and such edges are all "
            f"kept; train on this graph, or use a threshold (entries='block')",
        )


def session_of(model: torch.nn.Module) -> Session | None:
    """The session of a sparsified model; None if it has no pruned layers."""
    return next((module.session for module in model.modules() if isinstance(module, PrunedConv)), None)


class PrunedPyGLinear(PrunedWeight, Linear):  # type: ignore[misc]
    """PyG's own linear layer with a weight mask, y = x (W ⊙ keep)ᵀ + b."""

    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        return self.times(x, self.bias)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if "keep" not in self._non_persistent_buffers_set:
            destination[prefix + "keep"] = self.keep  # PyG's layer saves its weight and bias explicitly, and no buffers


def cached(x: Tensor, edges: LayerEdges, what: str, make: Callable[[], Tensor]) -> tuple[Tensor, bool]:
    """A value computed from features and edges that do not change between passes, and whether it was cached.

    Cached as long as x lives and is not written to; not cached if x requires a gradient.
    """
    if x.requires_grad or x.is_inference() or torch.compiler.is_compiling():
        return make(), False
    kept = _cache.get(x)  # type: ignore[no-untyped-call]
    if kept is None or kept[0] != x._version:
        kept = _cache[x] = (x._version, {})
    found = kept[1].get(what)
    if found is not None and found[0] is edges:
        return found[1], True
    made = make()
    kept[1][what] = edges, made
    return made, False


def _hash(keys: Tensor) -> Tensor:
    """An order-independent hash of a set of integers, int64; 0 for none."""
    mixed = (keys + 1) * -0x61C8864680B583EB
    mixed = (mixed ^ (mixed >> 31)) * -0x4B47D0C5A1A6B2D3
    return (mixed ^ (mixed >> 29)).sum()
