"""What every pruned layer does: decide which products of its messages stay, multiply those, and say what it did."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary
from torch_geometric.nn import MessagePassing

from unifews.core.entry import BLOCK
from unifews.errors import GraphError, InputError, ShapeError
from unifews.nn.edges import Edges, Norm
from unifews.nn.inheritance import Relation
from unifews.nn.linear import PrunedWeight, largest
from unifews.nn.ops.linear import check_tensor
from unifews.nn.ops.products import column_sizes, diffused, products_at_least, products_on, row_sizes, some_senders
from unifews.nn.session import Session
from unifews.nn.trace import ConvTrace

KINDS: dict[type[MessagePassing], type[PrunedConv]] = {}
"""Kinds of layers with a fused path, by the PyG class they stand in for."""

_held = WeakTensorKeyDictionary()
_SAMPLED = 1 << 21  # entries that a quantile is taken of
_TELLING = 20  # edges removed in training: fewer do not tell whether this is the graph they were removed from
C = TypeVar("C", bound="type[PrunedConv]")


def prunes(kind: type[MessagePassing]) -> Callable[[C], C]:
    """The decorated class stands in for layers of this kind."""

    def put(cls: C) -> C:
        cls.stands_for = kind
        KINDS[kind] = cls
        return cls

    return put


class PrunedConv(MessagePassing):  # type: ignore[misc]
    """A PyG layer of which the products T[u,v]·y[v] that do not matter are skipped.

    A layer becomes one by changing its class, so its parameters keep their names and ``isinstance`` its meaning. What one
    decision is about (`entries`):

    * ``"unit"``: a column of y. The columns whose messages are largest, ‖T y[:,j]‖ by the edges' own factors, are sent along
      every edge, the others along none; every node keeps its own.
    * ``"block"``: (edge, 16 columns), ``"feature"``: (edge, column), ``"node"``: an edge, the paper's form.

    The decisions of the last training pass are buffers: for ``"unit"`` the columns, for ``"node"`` the edges, known by
    their ends, for the others the threshold.
    """

    stands_for: ClassVar[type[MessagePassing]]
    fused: ClassVar[bool] = True

    session: Session
    path: str
    relation: Relation = ()
    seen_width: int
    seen_edges = 0
    """Edges that `removed` was decided among; 0 = not known, after loading."""
    chosen = -1
    """Columns of the last decision, or of a state that was loaded."""
    unseen = 0.0
    """Share of the edges of this pass that were not among those, as far as `removed` tells."""
    decided: Tensor
    """Whether there is a decision yet."""
    delta: Tensor
    """δ in message units."""
    columns: Tensor
    """bool [width]: what is sent; empty where decisions are not about columns, or where the width is not known yet."""
    removed_hash: Tensor
    """Of `removed`, int64: a buffer, which an average of models copies from the model that trains, as it does `decided`."""
    nodes: Tensor
    """Nodes of the graph that `removed` was decided on."""
    passes: Tensor

    def begin_pruning(self, session: Session, path: str) -> None:
        self.session, self.path, self.seen_width = session, path, 0
        self.fuse = False  # by messages, where it comes to that
        device = next(self.parameters()).device if any(True for _ in self.parameters()) else None
        for name, value in (
            ("decided", torch.zeros((), dtype=torch.bool)),
            ("delta", torch.zeros((), dtype=torch.float64)),
            ("columns", torch.zeros(self._units, dtype=torch.bool)),
            ("nodes", torch.zeros((), dtype=torch.int64)),
            ("passes", torch.zeros((), dtype=torch.int64)),
            ("removed_hash", torch.zeros((), dtype=torch.int64)),
        ):
            self.register_buffer(name, value.to(device), persistent=name != "removed_hash")
        self.removed = torch.zeros(0, dtype=torch.int64, device=device)

    def end_pruning(self) -> None:
        """Back to the layer it stands in for."""
        for name in ("decided", "delta", "columns", "nodes", "passes", "removed_hash", "_removed"):
            delattr(self, name)
        del self.session, self.path, self.seen_width
        for name in ("seen_edges", "unseen", "relation", "chosen"):
            self.__dict__.pop(name, None)
        self.__class__ = self.stands_for
        self.fuse = self.inspector.implements("message_and_aggregate")

    @property
    def width(self) -> int:
        """Columns of the unpruned product, which counts are shares of; before the first pass, what the layer says of itself."""
        said = [self.seen_width, *(getattr(self, name, None) for name in ("out_channels", "channels", "in_channels"))]
        return next((value for value in said if isinstance(value, int) and value > 0), 1)

    @property
    def _units(self) -> int:
        """Columns that decisions are about, so that their buffer has its shape from the start: averages and copies of a model
        go by shapes. Some layers know it only once they run, and are given another buffer then."""
        if self.session.pruning.entries != "unit" or not self.session.pruning.prunes_edges:
            return 0
        linears = (getattr(self, name, None) for name in ("lin", "lin_l", "lin_src")) if self.fused else ()
        return next((linear.matrix.shape[0] for linear in linears if isinstance(linear, PrunedWeight)), self.width)

    def narrower(self, weight: Tensor) -> int:
        """Columns of T x Wᵀ on the side of W [outputs, inputs] where there are fewer: what an unpruned layer multiplies.

        Decisions by edge are taken after the weights, as in the authors' code, and are shares of that product.
        """
        outputs, inputs = weight.shape
        by_edge = self.session.pruning.prunes_edges and self.session.pruning.entries != "unit"
        return outputs if by_edge else min(outputs, inputs)

    def before_weights(self, x: Tensor, weight: Tensor) -> bool:
        """Whether T x is multiplied before the weights: unpruned, where it is narrower. Sparse features meet them first."""
        dense, prunes = x.layout == torch.strided, self.session.pruning.prunes_edges
        self.see_width(self.narrower(weight) if dense or prunes else weight.shape[0])
        return dense and not prunes and x.shape[1] < weight.shape[0]

    @property
    def removed(self) -> Tensor:
        """Edges that are not used, call · n² + receiver · n + sender, int64, sorted; of "node" entries.

        Part of the state and of every copy, but no buffer: their number changes, and `torch.optim.swa_utils.AveragedModel`
        copies buffers by shape.
        """
        return self._removed

    @removed.setter
    def removed(self, keys: Tensor) -> None:
        self._removed = keys
        self.removed_hash.copy_(_hash(keys))

    @property
    def is_stale(self) -> bool:
        """Whether the buffers tell of another decision than `removed`: those of an average are another model's."""
        return not self.removed_hash.is_meta and not torch.equal(_hash(self.removed), self.removed_hash)

    def discard_edges(self) -> None:
        self.removed = self.removed.new_zeros(0)
        self.decided.fill_(False)

    @property
    def _is_saved(self) -> bool:
        """Whether decisions are part of the state dict; those of an accelerated model are not."""
        return "nodes" not in self._non_persistent_buffers_set

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self._removed = fn(self._removed)
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self.session.discard_stale_edges()
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._is_saved:
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
        elif strict and self._is_saved:
            missing_keys.append(prefix + "removed")
        self.chosen = -1 if self.columns.is_meta else int(self.columns.sum())

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """PyG compiles a `propagate` for the class of every copy that is made; it would replace the one that prunes."""

    @classmethod
    def supports(cls, conv: MessagePassing) -> bool:
        """Whether the fused path does what this layer does."""
        return True

    @property
    def call(self) -> int:
        """Products of this layer before the one that runs, in one call of it."""
        return 0

    def see_width(self, width: int) -> None:
        """What the messages of a layer are wide is sometimes known only when it runs."""
        if width != self.seen_width:
            self.seen_width = width
            self.session.share_anew()

    # ---------------------------------------------------------------------------------------------------------- products

    def held(self, x: Tensor, edges: Edges) -> Tensor:
        """T x, made once for features that do not change from pass to pass: full-batch training needs it only once."""
        made, again = once(x, edges, "diffused", lambda: self.diffuse(x, edges))
        if again:
            self.put_on_record(edges, x, edges.count, edges.count * x.shape[1], None, perf_counter())
        return made

    def diffuse_between(self, y: Tensor, receivers: int, edge_index: Tensor, norm: Norm, given: Tensor) -> Tensor:
        """`diffuse` of the senders' y to another set of nodes, [receivers, width]; if they are as many, to the same nodes."""
        senders = len(y)
        if senders == receivers:
            return self.diffuse(y, Edges.of(edge_index, None, senders, norm, dtype=y.dtype), given)
        n = max(senders, receivers)
        edges = Edges.between(edge_index, senders, receivers, norm, dtype=y.dtype)
        return self.diffuse(torch.nn.functional.pad(y, (0, 0, n, n - senders)), edges, given)[:receivers]

    def diffuse(self, y: Tensor, edges: Edges, given: Tensor | None = None) -> Tensor:
        """T y over the products that stay, [n, width]; the diagonal always does. `given`: the features of the call."""
        began = perf_counter()
        pruning = self.session.pruning
        if not pruning.prunes_edges:
            out = diffused(y, edges)
            self.put_on_record(edges, y, edges.count, edges.count * y.shape[1], None, began)
            return out
        if pruning.entries == "unit":
            return self._by_unit(y, edges, began)
        alive = self.session.alive(self, edges.adjacency, given)
        if pruning.entries == "node":
            out, keep = self._by_edge(y, edges, alive, began)
        else:
            out, keep = self._by_entry(y, edges, alive, 1 if pruning.entries == "feature" else BLOCK, began)
        self.session.leave(self, edges.adjacency, keep)
        return out

    def _by_unit(self, y: Tensor, edges: Edges, began: float) -> Tensor:
        width = y.shape[1]
        if self.session.deciding or len(self.columns) != width:
            self.choose_columns(column_sizes(some_senders(y.detach()), edges))
        columns = self.columns.nonzero().flatten()
        out = diffused(y, edges, columns)
        self.record_columns(edges, y, began)
        return out

    def record_columns(self, edges: Edges, y: Tensor, began: float) -> None:
        count = int(self.columns.sum())
        self.put_on_record(edges, y, edges.count if count else 0, edges.count * count, float(self.delta), began)

    @torch.no_grad()
    def choose_columns(self, size: Tensor) -> None:
        pruning = self.session.pruning
        if not bool(size.isfinite().all()):  # says nothing; the loss will tell
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

    def _by_edge(self, y: Tensor, edges: Edges, alive: Tensor | None, began: float) -> tuple[Tensor, Tensor]:
        """T y, and the edges [m] that later layers may use."""
        factor = edges.factor.to(y.device)
        size = factor * row_sizes(y.detach())[edges.adjacency.indices.long()]
        if self.session.deciding:
            own = None if edges.loop is None else edges.loop.abs() * row_sizes(y.detach())
            keep = self.choose_edges(size, own, alive, edges)
        else:
            keep = self.stored_edges(alive, edges)
        used = keep | self.locked(edges)
        out, count = products_on(y, edges, used), int(used.sum())
        self.put_on_record(edges, y, count, count * y.shape[1], float(self.delta), began)
        return out, keep

    def locked(self, edges: Edges) -> Tensor:
        """Flags [m] of the edges that are in place whatever was decided: in the first layer, when evaluating, those into the
        nodes of the lock. They are used and counted there; later layers inherit the decision."""
        lock, device = self.session.node_lock, edges.number.device
        if lock is None or self.training or not self.session.is_first(self):
            return torch.zeros((), dtype=torch.bool, device=device)
        locked = torch.zeros(edges.adjacency.num_nodes, dtype=torch.bool, device=device)
        locked[lock.to(device)] = True
        return locked[edges.adjacency.receivers]

    @torch.no_grad()
    def choose_edges(self, size: Tensor, own: Tensor | None, alive: Tensor | None, edges: Edges) -> Tensor:
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
        self.remember_edges(keep, edges, delta)
        return keep

    def remember_edges(self, keep: Tensor, edges: Edges, delta: float) -> None:
        removed = self._keys(edges)[~keep]
        self.delta.fill_(delta)
        self.decided.fill_(True)
        self.removed = torch.cat([self._removed_elsewhere(edges), removed]).sort().values
        self.nodes.fill_(edges.adjacency.num_nodes)
        self.seen_edges, self.unseen = 0 if self.call else edges.count, 0.0

    def _keys(self, edges: Edges) -> Tensor:
        """What the edges of this product are known by: of the first, the keys of the adjacency; of others, behind those."""
        n = edges.adjacency.num_nodes
        if (self.call + 1) * n * n > 2**63:
            raise GraphError(f"{self.path} makes more than {self.call} products on {n:,} nodes; take entries='unit'.")
        return edges.adjacency.keys + self.call * n * n

    def removed_of(self, call: int) -> Tensor:
        """Keys of the edges, receiver · n + sender, that one product of the layer does without."""
        square = max(int(self.nodes), 1) ** 2
        return self.removed[self.removed // square == call] - call * square

    def columns_of(self, call: int) -> Tensor:
        """bool [width]: what one product of the layer sends."""
        return self.columns

    def _removed_elsewhere(self, edges: Edges) -> Tensor:
        """Of `removed`, the edges of other products on this graph."""
        n = edges.adjacency.num_nodes
        return self.removed[self.removed // max(n, 1) ** 2 != self.call] if int(self.nodes) == n else self.removed[:0]

    def _known_edges(self, edges: Edges) -> Tensor:
        """Flags of the edges that the stored decision leaves; one it never saw stays."""
        if int(self.nodes) != edges.adjacency.num_nodes:
            raise GraphError(
                f"the edges of {self.path} were chosen on a graph of {int(self.nodes):,} nodes and this one has "
                f"{edges.adjacency.num_nodes:,}; train on it, or choose by threshold (entries='block')."
            )
        return ~torch.isin(self._keys(edges), self.removed)

    def stored_edges(self, alive: Tensor | None, edges: Edges) -> Tensor:
        keep = self._known_edges(edges)
        self.unseen = self._share_unseen(keep, edges)
        return keep if alive is None else keep & alive

    def _share_unseen(self, keep: Tensor, edges: Edges) -> float:
        """Which share of these edges the decision was not about: what was removed is a sample of what was seen.

        Where it is not known how many were seen, as many as there are now; a few that were removed tell nothing.
        """
        gone = len(self.removed) - len(self._removed_elsewhere(edges))
        if gone < _TELLING or not edges.count:
            return 0.0
        still_there = (edges.count - int(keep.sum())) / gone
        return max(0.0, 1 - still_there * (self.seen_edges or edges.count) / edges.count)

    def _by_entry(
        self, y: Tensor, edges: Edges, alive: Tensor | None, lanes: int, began: float
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """T y, and the edges [m] with a product left."""
        whole = edges
        if alive is not None:
            edges = edges.only(alive)
        if self.session.deciding and whole.count:
            self.choose_delta(_sampled_sizes(y.detach(), whole, alive, lanes), y.shape[1])
        out, products, used = products_at_least(y, edges, float(self.delta), lanes)
        self.put_on_record(edges, y, int(used.sum()), products, float(self.delta), began)
        return out, used if alive is None else alive.masked_scatter(alive, used)

    @torch.no_grad()
    def choose_delta(self, size: Tensor, width: int) -> None:
        """δ from the sizes of entries [edges, per edge], or of a sample of them; those of edges that are gone are negative."""
        pruning = self.session.pruning
        if pruning.edge_sparsity is not None:
            delta = _delta_for(size, self.session.share(self) / width, width)
        else:
            assert pruning.edge_threshold is not None
            there = size[size >= 0]
            mean = float(there.mean()) if len(there) else 0.0
            delta = pruning.edge_threshold * (1.0 if pruning.absolute else mean)
        before = float(self.delta) if self.session.phase == "monotone" and bool(self.decided) else 0.0
        # A hair below, so that rounding in another order cannot drop the entry that it was taken from.
        self.delta.fill_(max(delta * (1 - 1e-6), before, 0.0))
        self.decided.fill_(True)

    # ------------------------------------------------------------------------------------------------------------- trace

    def put_on_record(
        self, edges: Edges, y: Tensor, used: int, macs: int, delta: float | None, began: float, *, score_macs: int = 0
    ) -> None:
        width, whole = self.width, edges.whole
        lanes = {"unit": 1, "feature": 1, "block": BLOCK}.get(self.session.pruning.entries, y.shape[1]) or 1
        per_edge = -(-width // lanes)
        self.session.record(
            self,
            ConvTrace(
                index=len(self.session.records), entries=whole * per_edge, kept=-(-macs // lanes), zeros=0, macs=macs,
                dense_macs=whole * width, zero_macs=0, threshold=delta, seconds=perf_counter() - began, name=self.path,
                kind=self.stands_for.__name__, edges=whole, edges_kept=used, width=width, score_macs=score_macs,
                notes=self.notes() + self._note_of_unseen(),
            ),
            edges.adjacency,
        )  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        return ()

    def _note_of_unseen(self) -> tuple[str, ...]:
        if self.unseen <= 0.5:
            return ()
        return (f"{self.path}: about {self.unseen:.0%} of these edges were not there when it was trained, and such edges are "
                f"all used; train on this graph, or choose by threshold (entries='block')",)  # fmt: skip


def once(x: Tensor, edges: Edges, what: str, make: Callable[[], Tensor]) -> tuple[Tensor, bool]:
    """What is made of features and edges that do not change from pass to pass, and whether it was there already.

    Kept for as long as x lives and is not written to; nothing is kept of an x that has a gradient.
    """
    if x.requires_grad or x.is_inference() or torch.compiler.is_compiling():
        return make(), False
    kept = _held.get(x)  # type: ignore[no-untyped-call]
    if kept is None or kept[0] != x._version:
        kept = _held[x] = (x._version, {})
    found = kept[1].get(what)
    if found is not None and found[0] is edges:
        return found[1], True
    made = make()
    kept[1][what] = edges, made
    return made, False


def is_pair(x: Any) -> bool:
    """Whether these are features of two sets of nodes, senders and receivers."""
    return isinstance(x, tuple | list) and len(x) == 2 and any(isinstance(part, Tensor) for part in x)


def check_features(x: Any, weight: Tensor | None, path: str) -> None:
    """One matrix of features, as wide and of the type that the layer's weights [outputs, inputs] are for."""
    shape = "[nodes, columns]" if weight is None else f"[nodes, {weight.shape[1]}]"
    if not isinstance(x, Tensor):
        what = "no features" if x is None else f"a {type(x).__name__} for its features"
        raise InputError(f"{path} is given {what}; give a torch tensor x {shape} (torch.from_numpy makes one of an array).")
    if x.ndim != 2:
        raise ShapeError(f"{path} is given features of shape {list(x.shape)}; give a matrix x {shape}.")
    if weight is not None and x.shape[1] != weight.shape[1]:
        raise ShapeError(
            f"{path} is given features of {x.shape[1]:,} columns and its weights take {weight.shape[1]:,}; give x {shape}, or "
            f"build the layer for {x.shape[1]:,}."
        )
    if not x.is_floating_point():
        raise InputError(f"{path} is given {x.dtype} features, and it sums floating-point numbers; use x.float().")
    check_precision(x, weight, path)
    if weight is not None and x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise InputError(f"{path} is given {x.dtype} features and its weights are {weight.dtype}; use x.to({weight.dtype}).")


def check_dense(x: Tensor, path: str) -> None:
    """Of layers that sum features before any weights make them narrow."""
    if x.layout != torch.strided:
        raise InputError(
            f"{path} is given {x.layout} features, and this layer sums them before its weights, which makes them dense; give "
            "x.to_dense(), or put a linear layer before it."
        )


def check_precision(x: Tensor, weight: Tensor | None, path: str) -> None:
    """Half precision on the CPU has no kernel that sums it well."""
    if x.device.type != "cpu":
        return
    if torch.is_autocast_enabled("cpu"):
        raise InputError(
            f"{path} is called under torch.autocast, which makes {torch.get_autocast_dtype('cpu')} of its messages on the CPU, "
            f"where sums of them would lose digits; call the model within torch.autocast('cpu', enabled=False)."
        )
    for what, value, remedy in (("features", x, "x.float()"), ("weights", weight, "model.float()")):
        if value is not None and value.dtype in (torch.float16, torch.bfloat16):
            raise InputError(
                f"{path} has {value.dtype} {what} on the CPU, where sums of messages would lose digits; use {remedy}."
            )


def _hash(keys: Tensor) -> Tensor:
    """Of a set of numbers, int64; 0 of none."""
    mixed = (keys + 1) * -0x61C8864680B583EB
    mixed = (mixed ^ (mixed >> 31)) * -0x4B47D0C5A1A6B2D3
    return (mixed ^ (mixed >> 29)).sum()


def _sampled_sizes(y: Tensor, edges: Edges, alive: Tensor | None, lanes: int) -> Tensor:
    """Sizes of entries (edge, `lanes` columns), of every few edges where there are many."""
    n, width = y.shape
    blocks = -(-width // lanes)
    padded = torch.nn.functional.pad(y, (0, blocks * lanes - width)).view(n, blocks, lanes)
    size = padded.norm(dim=2) if lanes > 1 else padded[:, :, 0].abs()
    stride = max(1, edges.count * blocks // _SAMPLED)
    sample = edges.factor[::stride, None] * size[edges.adjacency.indices[::stride].long()]
    if alive is not None:
        sample = torch.where(alive[::stride, None], sample, -1.0)
    return sample


def _delta_for(size: Tensor, share: float, width: int) -> float:
    """The size that leaves this share of the multiply-adds; the last entry of an edge may be narrower than the others."""
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


def check_edges(edge_index: Any, path: str) -> None:
    if not isinstance(edge_index, Tensor):
        raise InputError(
            f"{path} is given a {type(edge_index).__name__} for its edges; give edge_index [2, m] or a torch sparse matrix."
        )
    check_tensor(edge_index, "edge_index")
