"""Base class of pruned layers: decide which products of the messages to keep, compute those, record the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary
from torch_geometric.nn import Linear, MessagePassing

from unifews.core.entry import BLOCK
from unifews.errors import GraphError
from unifews.nn.edges import LayerEdges, Norm
from unifews.nn.inheritance import Relation
from unifews.nn.linear import PrunedWeight, largest
from unifews.nn.ops.products import column_sizes, diffuse_entries, diffuse_kept_edges, diffused, row_sizes, sample_senders
from unifews.nn.session import Session
from unifews.nn.trace import ConvTrace

KINDS: dict[type[MessagePassing], type[PrunedConv]] = {}
"""Pruned classes with a fused path, by the PyG class they replace."""

_cache = WeakTensorKeyDictionary()
_MAX_SAMPLE = 1 << 21  # entries for a quantile
_MIN_REMOVED = 20  # edges removed in training: with fewer, the share of unseen edges is not estimated
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

    The class of a layer is changed in place, so parameter names and ``isinstance`` are unaffected. Entries that are pruned
    (`entries`):

    * ``"unit"``: a column of y. The columns with the largest messages, by ‖T y[:,j]‖, are sent along every edge, the others
      along none; self-loops are not pruned.
    * ``"block"``: (edge, 16 columns), ``"feature"``: (edge, column), ``"node"``: an edge, as in the paper.

    The decisions of the last training pass are part of the state: the columns for ``"unit"``, the edges by their ends for
    ``"node"``, the threshold for the others.
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
        self.fuse = False  # explicit messages on the generic path
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
        if self.session.pruning.entries != "unit" or not self.session.pruning.prunes_edges:
            return 0
        linears = (getattr(self, name, None) for name in ("lin", "lin_l", "lin_src")) if self.fused else ()
        return next((linear.matrix.shape[0] for linear in linears if isinstance(linear, PrunedWeight)), self.width)

    def narrower(self, weight: Tensor) -> int:
        """Columns of T x Wᵀ on the narrower side of W [outputs, inputs], where an unpruned layer applies T.

        Decisions by edge are taken after the weights, as in the authors' code, and refer to that product.
        """
        outputs, inputs = weight.shape
        by_edge = self.session.pruning.prunes_edges and self.session.pruning.entries != "unit"
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
            self.add_record(edges, x, edges.count, edges.count * x.shape[1], None, perf_counter())
        return made

    def diffuse_between(self, y: Tensor, receivers: int, edge_index: Tensor, norm: Norm, given: Tensor) -> Tensor:
        """`diffuse` of the senders' y to another set of nodes, [receivers, width]; of equal size means the same nodes."""
        senders = len(y)
        if senders == receivers:
            return self.diffuse(y, LayerEdges.of(edge_index, None, senders, norm, dtype=y.dtype), given)
        n = max(senders, receivers)
        edges = LayerEdges.between(edge_index, senders, receivers, norm, dtype=y.dtype)
        return self.diffuse(torch.nn.functional.pad(y, (0, 0, n, n - senders)), edges, given)[:receivers]

    def diffuse(self, y: Tensor, edges: LayerEdges, given: Tensor | None = None) -> Tensor:
        """T y over the kept products, [n, width]; the diagonal is always kept. `given`: the features of the call."""
        began = perf_counter()
        if not self.seen_width:  # of a layer that does not set it itself
            self.set_width(y.shape[1])
        pruning = self.session.pruning
        if not pruning.prunes_edges:
            out = diffused(y, edges)
            self.add_record(edges, y, edges.count, edges.count * y.shape[1], None, began)
            return out
        if pruning.entries == "unit":
            return self._by_column(y, edges, began)
        alive = self.session.inherited_edges(self, edges.adjacency, given)
        if pruning.entries == "node":
            out, keep = self._by_edge(y, edges, alive, began)
        else:
            out, keep = self._by_entry(y, edges, alive, 1 if pruning.entries == "feature" else BLOCK, began)
        self.session.store_kept_edges(self, edges.adjacency, keep)
        return out

    def _by_column(self, y: Tensor, edges: LayerEdges, began: float) -> Tensor:
        width = y.shape[1]
        if self.session.deciding or len(self.columns) != width:
            self.choose_columns(column_sizes(sample_senders(y.detach()), edges))
        columns = self.columns.nonzero().flatten()
        out = diffused(y, edges, columns)
        self.record_columns(edges, y, began)
        return out

    def record_columns(self, edges: LayerEdges, y: Tensor, began: float) -> None:
        count = int(self.columns.sum())
        self.add_record(edges, y, edges.count if count else 0, edges.count * count, float(self.delta), began)

    @torch.no_grad()
    def choose_columns(self, size: Tensor) -> None:
        pruning = self.session.pruning
        if not bool(size.isfinite().all()):  # no decision from values that are not finite
            self.columns = torch.ones_like(size, dtype=torch.bool)
            return
        before = self.columns if self.session.phase == "monotone" and len(self.columns) == len(size) else None
        if before is not None:
            size = torch.where(before, size, -1.0)
        if pruning.edge_sparsity is not None:
            count = min(round(self.session.share(self)), len(size))
            there = bool(self.decided) and len(self.columns) == len(size)
            keep = largest(torch.where(self.columns, size * self.session.hysteresis, size) if there else size, count)
        else:
            assert pruning.edge_threshold is not None
            keep = size >= pruning.edge_threshold * (1.0 if pruning.absolute else float(size.clamp(min=0).mean()))
        if before is not None:
            keep &= before
        self.columns, self.chosen = keep, int(keep.sum())
        self.delta.fill_(float(size[keep].min()) if bool(keep.any()) else math.inf)
        self.decided.fill_(True)

    def _by_edge(self, y: Tensor, edges: LayerEdges, alive: Tensor | None, began: float) -> tuple[Tensor, Tensor]:
        """T y, and bool [m]: the edges that later layers may use."""
        factor = edges.factor.to(y.device)
        size = factor * row_sizes(y.detach())[edges.adjacency.indices.long()]
        if self.session.deciding:
            own = None if edges.loop is None else edges.loop.abs() * row_sizes(y.detach())
            keep = self.choose_edges(size, own, alive, edges)
        else:
            keep = self.stored_edges(alive, edges)
        used = keep | self.locked(edges)
        out, count = diffuse_kept_edges(y, edges, used), int(used.sum())
        self.add_record(edges, y, count, count * y.shape[1], float(self.delta), began)
        return out, keep

    def locked(self, edges: LayerEdges) -> Tensor:
        """bool [m]: edges that are used regardless of the decision: in the first layer, in evaluation, those into the locked
        nodes. They are used and counted there; later layers inherit the decision."""
        lock, device = self.session.node_lock, edges.number.device
        if lock is None or self.training or not self.session.is_first(self):
            return torch.zeros((), dtype=torch.bool, device=device)
        locked = torch.zeros(edges.adjacency.num_nodes, dtype=torch.bool, device=device)
        locked[lock.to(device)] = True
        return locked[edges.adjacency.receivers]

    @torch.no_grad()
    def choose_edges(self, size: Tensor, own: Tensor | None, alive: Tensor | None, edges: LayerEdges) -> Tensor:
        pruning = self.session.pruning
        if alive is not None:
            size = torch.where(alive, size, -1.0)
        if self.session.phase == "monotone" and bool(self.decided):
            size = torch.where(self._known_edges(edges), size, -1.0)
        if pruning.edge_sparsity is not None:
            share = self.session.share(self) / max(self.width, 1)
            keep = largest(size, min(round(share * len(size)), int((size >= 0).sum()))) if len(size) else size >= 0
            delta = float(size[keep].min()) if bool(keep.any()) else math.inf
        else:
            assert pruning.edge_threshold is not None
            there = size[size >= 0]
            everything = there if own is None else torch.cat([there, own])  # the authors' mean includes self-loops
            mean = float(everything.mean()) if len(everything) else 0.0
            delta = pruning.edge_threshold * (1.0 if pruning.absolute else mean)
            keep = (size >= delta) & (size >= 0)
        self.store_edges(keep, edges, delta)
        return keep

    def store_edges(self, keep: Tensor, edges: LayerEdges, delta: float) -> None:
        removed = self._keys(edges)[~keep]
        self.delta.fill_(delta)
        self.decided.fill_(True)
        self.removed = torch.cat([self._removed_elsewhere(edges), removed]).sort().values
        self.nodes.fill_(edges.adjacency.num_nodes)
        self.seen_edges, self.unseen = 0 if self.call else edges.count, 0.0

    def _keys(self, edges: LayerEdges) -> Tensor:
        """Keys of the edges of this product: those of the adjacency + index of the product · n²."""
        n = edges.adjacency.num_nodes
        if (self.call + 1) * n * n > 2**63:
            raise GraphError(f"{self.path} computes more than {self.call} products on {n:,} nodes; use entries='unit'.")
        return edges.adjacency.keys + self.call * n * n

    def removed_of(self, call: int) -> Tensor:
        """Keys of the edges, receiver · n + sender, that one product of the layer removes."""
        square = max(int(self.nodes), 1) ** 2
        return self.removed[self.removed // square == call] - call * square

    def columns_of(self, call: int) -> Tensor:
        """bool [width]: the columns that one product of the layer sends."""
        return self.columns

    def _removed_elsewhere(self, edges: LayerEdges) -> Tensor:
        """The part of `removed` of other products on this graph."""
        n = edges.adjacency.num_nodes
        return self.removed[self.removed // max(n, 1) ** 2 != self.call] if int(self.nodes) == n else self.removed[:0]

    def _known_edges(self, edges: LayerEdges) -> Tensor:
        """bool [m]: the edges that the stored decision keeps; edges that it did not include are kept."""
        if int(self.nodes) != edges.adjacency.num_nodes:
            raise GraphError(
                f"the edges of {self.path} were selected on a graph of {int(self.nodes):,} nodes and this one has "
                f"{edges.adjacency.num_nodes:,}; train on it, or use a threshold (entries='block')."
            )
        return ~torch.isin(self._keys(edges), self.removed)

    def stored_edges(self, alive: Tensor | None, edges: LayerEdges) -> Tensor:
        keep = self._known_edges(edges)
        self.unseen = self._share_unseen(keep, edges)
        return keep if alive is None else keep & alive

    def _share_unseen(self, keep: Tensor, edges: LayerEdges) -> float:
        """Estimated fraction of these edges that did not exist at the decision: removed edges are a sample of those that did.

        If their number is unknown, it is taken to be the current one; with too few removed edges the estimate is 0.
        """
        removed_here = len(self.removed) - len(self._removed_elsewhere(edges))
        if removed_here < _MIN_REMOVED or not edges.count:
            return 0.0
        remaining = (edges.count - int(keep.sum())) / removed_here
        return max(0.0, 1 - remaining * (self.seen_edges or edges.count) / edges.count)

    def _by_entry(self, y: Tensor, edges: LayerEdges, alive: Tensor | None, lanes: int, began: float) -> tuple[Tensor, Tensor]:
        """T y, and bool [m]: the edges with a kept product."""
        whole = edges
        if alive is not None:
            edges = edges.only(alive)
        if self.session.deciding and whole.count:
            self.choose_delta(_sampled_magnitudes(y.detach(), whole, alive, lanes), y.shape[1])
        out, products, used = diffuse_entries(y, edges, float(self.delta), lanes)
        self.add_record(edges, y, int(used.sum()), products, float(self.delta), began)
        return out, used if alive is None else alive.masked_scatter(alive, used)

    @torch.no_grad()
    def choose_delta(self, size: Tensor, width: int) -> None:
        """δ from the magnitudes of entries [edges, per edge], or of a sample of them; negative for removed edges."""
        pruning = self.session.pruning
        if pruning.edge_sparsity is not None:
            delta = _delta_for(size, self.session.share(self) / width, width)
        else:
            assert pruning.edge_threshold is not None
            there = size[size >= 0]
            mean = float(there.mean()) if len(there) else 0.0
            delta = pruning.edge_threshold * (1.0 if pruning.absolute else mean)
        before = float(self.delta) if self.session.phase == "monotone" and bool(self.decided) else 0.0
        # Slightly below, so that rounding in another order cannot remove the entry that defines it.
        self.delta.fill_(max(delta * (1 - 1e-6), before, 0.0))
        self.decided.fill_(True)

    # ------------------------------------------------------------------------------------------------------------- trace

    def add_record(
        self, edges: LayerEdges, y: Tensor, used: int, macs: int, delta: float | None, began: float, *, score_macs: int = 0
    ) -> None:
        width, whole = self.width, edges.whole
        lanes = {"unit": 1, "feature": 1, "block": BLOCK}.get(self.session.pruning.entries, y.shape[1]) or 1
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
            edges.adjacency,
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


def _sampled_magnitudes(y: Tensor, edges: LayerEdges, alive: Tensor | None, lanes: int) -> Tensor:
    """Magnitudes of entries (edge, `lanes` columns), of evenly spaced edges where there are many."""
    n, width = y.shape
    blocks = -(-width // lanes)
    padded = torch.nn.functional.pad(y, (0, blocks * lanes - width)).view(n, blocks, lanes)
    size = padded.norm(dim=2) if lanes > 1 else padded[:, :, 0].abs()
    stride = max(1, edges.count * blocks // _MAX_SAMPLE)
    sample = edges.factor[::stride, None] * size[edges.adjacency.indices[::stride].long()]
    if alive is not None:
        sample = torch.where(alive[::stride, None], sample, -1.0)
    return sample


def _delta_for(size: Tensor, share: float, width: int) -> float:
    """The magnitude that keeps this fraction of the multiply-adds; the last entry of an edge may be narrower than others."""
    edges, per_edge = size.shape
    lanes = -(-width // max(per_edge, 1))
    lanes = BLOCK if lanes > 1 else 1
    there = int((size >= 0).sum())
    if per_edge * lanes == width:
        count = min(round(share * size.numel()), there)
        return float(size.flatten().kthvalue(size.numel() - count + 1).values) if count else math.inf
    widths = torch.full((per_edge,), lanes, device=size.device)
    widths[-1] = width - lanes * (per_edge - 1)
    order = size.flatten().sort(descending=True)
    work = widths.repeat(edges)[order.indices].cumsum(0)
    count = min(int((work <= round(share * edges * width)).sum()), there)
    return float(order.values[count - 1]) if count else math.inf
