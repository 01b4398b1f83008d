"""State that the layers of a sparsified model share: options, schedule, and the edges kept in the current pass."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field
from threading import enumerate as threads_alive
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unifews.core.trace import LayerTrace
from unifews.distributed.communicator import Communicator, SingleProcess
from unifews.nn.config import Phase, PruningConfig
from unifews.nn.edges import Adjacency
from unifews.nn.entries import ENTRY_KINDS, EntryKind
from unifews.nn.inheritance import Inheritance
from unifews.nn.parallel import check_one_process
from unifews.nn.thinning import EdgeRule, GraphThinner, ThinnedGraph, num_edges
from unifews.nn.trace import ConvTrace, ModelTrace

if TYPE_CHECKING:
    from unifews.nn.convs.base import PrunedConv
    from unifews.nn.linear import PrunedWeight


_HYSTERESIS = 4.0  # of columns before a BatchNorm (docs/adr/0024)
_FAST_MOMENTUM = 0.5  # momentum above which running statistics follow the last few passes
Graph = weakref.ref[Any] | None
_REGROW_EVERY = 2  # training passes from one weight decision to the next once weights have settled, and
_SETTLED = 2  # ramps after which they have (ADR-0012)
_MAX_PASSES = 64  # number of stored passes above which those of ended threads are dropped


@dataclass(eq=False)
class Pass:
    """One pass through the layers of a model, complete or not."""

    training: bool
    """In training mode, with gradients."""
    deciding: bool
    """Whether it takes decisions; any other pass uses stored ones."""
    records: list[ConvTrace] = field(default_factory=list)
    order: list[PrunedConv] = field(default_factory=list)
    inheritance: Inheritance | None = None
    ran: dict[nn.Module, list[int]] = field(default_factory=dict)
    """Layers in the order they were called: version of their parameters at the first call, and number of calls."""
    graph: Graph = None
    """The edges of its first layer."""
    thinned: dict[nn.Module, list[ThinnedGraph]] = field(default_factory=dict)
    """The graphs that each layer was last called with."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "graph": None, "thinned": {}}  # weak references cannot be copied or pickled


@dataclass(frozen=True)
class OptimizerStep:
    """The passes since the parameters last changed."""

    versions: list[int]
    """Of the weights."""
    first: int
    """Number of the first pass."""
    decides: bool
    """Whether they decide on weights."""


class Session:
    """One model, its pruned layers in the order they run, and the current pass.

    A pass starts when the model is called (a forward pre-hook). Where only parts of it are called (``encode`` and ``decode``, a
    ``training_step``, layers of a list one by one), it starts with the first layer that cannot belong to the previous pass
    (`enter`). A training pass takes decisions; any other pass uses the stored ones, so evaluation uses the trained masks
    without further calls.
    """

    def __init__(
        self,
        pruning: PruningConfig,
        convs: list[PrunedConv],
        weights: list[PrunedWeight],
        comm: Communicator | None = None,
        max_error: float | None = None,
    ) -> None:
        """`comm`: the processes that decide on edges together; default: this one alone. `max_error`: of layers of several hops
        (`unifews.nn.economise`)."""
        self.configure(pruning)
        self.max_error = max_error
        self.comm: Communicator = SingleProcess() if comm is None else comm
        self.convs, self.weights = convs, weights
        self.phase: Phase = "regrow"
        self.node_lock: Tensor | None = None
        self.factor: Tensor | None = None
        """Factors of the edges of a pass for layers without edge weights; set by `unifews.nn.masked`."""
        self.requested = str(pruning)
        self.notes: tuple[str, ...] = ()
        """Notes on the model, added to every trace."""
        self._passes: dict[int, Pass] = {}  # by thread, since several threads may evaluate a model at once
        self._last: Pass | None = None
        self._step: OptimizerStep | None = None
        self._trained: Pass | None = None  # the last training pass, which continues after an evaluation in between
        self._inside: set[int] = set()  # threads inside a call of the whole model
        self._depth: dict[PrunedConv, int] = {}
        """Number of layers before each in its chain of inheritance, once it has run."""
        self._shares: list[float] | None = None
        self.norms: list[_BatchNorm] = []
        """The model's BatchNorm layers."""
        self._momentum: dict[_BatchNorm, float] = {}
        self._graphs: tuple[Graph, Graph] = (None, None)  # of the last two training passes

    def configure(self, pruning: PruningConfig) -> None:
        self.config = pruning
        self.pruning = pruning.in_layers
        """What the layers decide themselves."""
        self.thinner = GraphThinner(EdgeRule.of(pruning)) if pruning.thins else None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_graphs": (None, None), "_passes": {}, "_inside": set(), "_step": None}

    @property
    def now(self) -> Pass | None:
        """The current or last pass of this thread; the last one of any thread if this one has none."""
        return self._passes.get(get_ident(), self._last)

    @now.setter
    def now(self, value: Pass | None) -> None:
        self._last = value
        if value is None:
            self._passes.clear()
            return
        if len(self._passes) > _MAX_PASSES:
            alive = {thread.ident for thread in threads_alive()}
            self._passes = {number: each for number, each in list(self._passes.items()) if number in alive}
        self._passes[get_ident()] = value

    @property
    def kind(self) -> EntryKind:
        """What one decision on edges covers."""
        return ENTRY_KINDS[self.pruning.entries]

    @property
    def prunes(self) -> bool:
        return self.pruning.prunes_edges or self.pruning.prunes_weights

    @property
    def passes(self) -> int:
        """Number of training passes; a buffer, so that resumed training continues the schedule."""
        return int(self.convs[0].passes)

    @property
    def deciding(self) -> bool:
        return self.now is not None and self.now.deciding

    @property
    def records(self) -> list[ConvTrace]:
        """Records of the message-passing layers of the pass, in the order they ran."""
        return [] if self.now is None else self.now.records

    @records.setter
    def records(self, records: list[ConvTrace]) -> None:
        assert self.now is not None
        self.now.records = records

    def forget(self) -> None:
        """Reset to the state before the first pass; the decisions of the layers are kept."""
        self.now = self._trained = None

    # ------------------------------------------------------------------------------------------------- start of a pass

    def attach(self, model: nn.Module) -> None:
        """Register the hooks on a model and its layers."""
        model.register_forward_pre_hook(self.call)
        model.register_forward_hook(self.returned, always_call=True)
        layers: list[nn.Module] = [*self.convs, *self.weights]
        for layer in layers:
            if layer is not model:
                layer.register_forward_pre_hook(self.enter, with_kwargs=True)
        for conv in self.convs:
            conv.register_forward_pre_hook(self.thin, with_kwargs=True)
        self.norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
        for norm in self.norms:
            norm.register_forward_pre_hook(self.raise_momentum)
            norm.register_forward_hook(self.restore_momentum, always_call=True)

    def detach(self, model: nn.Module) -> None:
        for module in model.modules():
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                for number in [number for number, hook in hooks.items() if getattr(hook, "__self__", None) is self]:
                    del hooks[number]
                    module._forward_pre_hooks_with_kwargs.pop(number, None)
                    module._forward_hooks_always_called.pop(number, None)

    def call(self, model: nn.Module, args: Any) -> None:
        """Hook: the whole model is called, which starts a pass."""
        self.begin(model)
        self._inside.add(get_ident())

    def returned(self, model: nn.Module, args: Any, out: Any) -> None:
        self._inside.discard(get_ident())

    def enter(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Hook: a layer is called, by the model or directly."""
        in_backward = torch._C._current_graph_task_id() != -1  # recomputation of a checkpoint belongs to its pass
        if get_ident() not in self._inside and not in_backward:
            training = is_training(layer)
            if training and self._trained is not None and self._trained is not self.now:
                self.now = self._trained  # continue it after an evaluation
            if self._starts_new_pass(layer, training, args[0] if args else kwargs.get("x")):
                self.begin(layer)
        if self.now is not None:
            self.now.ran.setdefault(layer, [_version(layer), 0])[1] += 1

    def thin(self, conv: PrunedConv, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        """Hook: a message-passing layer is called, on the kept edges of its graph."""
        if self.thinner is None:
            return None
        args, kwargs, graphs = self.thinner.call(conv, conv.stands_for, args, kwargs)
        if self.now is not None:
            self.now.thinned[conv] = graphs
        return args, kwargs

    def _starts_new_pass(self, layer: nn.Module, training: bool, x: Any) -> bool:
        """Whether a layer that is called directly starts a new pass.

        A training pass ends when the weights of one of its layers have changed, or when its first layer is called again, unless
        with values computed in this pass, as a layer that is used several times in a row. In evaluation, without autograd
        history, the first layer may be called as often as in training.
        """
        now = self._passes.get(get_ident())
        if now is None or now.training != training:
            return True
        if layer not in now.ran:
            return False
        version, times = now.ran[layer]
        if training and version != _version(layer):
            return True
        if layer is not next(iter(now.ran)):
            return False
        if training:
            parts = x if isinstance(x, tuple | list) else [x]
            return not any(isinstance(part, Tensor) and part.grad_fn is not None for part in parts)
        before = None if self._trained is None else self._trained.ran.get(layer)
        return times >= (1 if before is None else before[1])

    def begin(self, module: nn.Module) -> None:
        """Start a pass with a call of the model, or of one of its layers."""
        self.update_order()
        training = is_training(module)
        self.discard_stale_edges()
        decided = any(bool(conv.decided) for conv in self.convs)
        deciding = not decided or (training and self.phase != "frozen")
        if deciding and self.prunes:
            check_one_process(module, self.convs)
        self.now = Pass(training, deciding)
        if training:
            self._graphs = (self._graphs[1], None if self._trained is None else self._trained.graph)
            self._trained = self.now
        if not deciding or not training:
            self._decide_missing()
        if training and self.phase != "frozen":
            for conv in self.convs:
                conv.passes += 1
            decides = self._decides_weights()
            for weight in self.weights:
                weight.feedback = decides and self.pruning.feedback and self.phase == "regrow"
            if self.pruning.prunes_weights and decides:
                shapes = [(weight.matrix.shape[0], weight.matrix.shape[1]) for weight in self.weights]
                due = self.pruning.weights_at(self.passes, shapes, self.phase.startswith("monotone"))
                for weight, how in zip(self.weights, due, strict=True):
                    weight.due = how

    def _decides_weights(self) -> bool:
        """Whether weights may be removed or restored in this training pass.

        Where removed weights are trained, decisions need their gradient. It is dense in the passes that decide: all of the
        first `_SETTLED` ramps, then every `_REGROW_EVERY`-th. The passes of one optimizer step, whose gradients add up, agree.
        """
        if not self.pruning.feedback or self.phase != "regrow":
            return True
        last = self._step
        versions = [0 if weight.matrix.is_inference() else weight.matrix._version for weight in self.weights]
        if last is not None and last.versions == versions:
            return last.decides
        settled = self.pruning.ramp * _SETTLED
        before = (
            self.passes - 1 if last is None else min(last.first, self.passes - 1)
        )  # after a state was loaded, it may be less
        due = self.passes <= settled or (self.passes - settled) // _REGROW_EVERY > (before - settled) // _REGROW_EVERY
        self._step = OptimizerStep(versions, self.passes, due)
        return due

    def _decide_missing(self) -> None:
        """Before a pass that is not a training pass: let layers without a valid decision take one now.

        These are layers that did not run in training, and those of an average over the buffers of a model, whose mask is the
        union of the averaged masks.
        """
        for conv in self.convs:
            count = int(conv.columns.sum())
            averaged = self.pruning.edge_sparsity is not None and count != conv.chosen and count > round(self.share(conv))
            if len(conv.columns) and (averaged or not bool(conv.decided)):
                conv.columns = conv.columns[:0]
        if not self.pruning.weight_sparsity or self.phase == "frozen":
            return
        other = any(weight.kept != weight.known for weight in self.weights)
        shapes = [(weight.matrix.shape[0], weight.matrix.shape[1]) for weight in self.weights] if other else []
        for weight, how in zip(self.weights, self.pruning.weights_at(self.pruning.ramp, shapes, True), strict=False):
            if weight.known != weight.kept > weight.count(how["sparsity"]):
                weight.excess = how

    def discard_stale_edges(self) -> None:
        """Discard the edges of an average of models, whose buffers are the trained model's, to decide from its own weights."""
        if any(conv.is_stale for conv in self.convs):
            for conv in self.convs:
                conv.discard_edges()

    def update_order(self) -> None:
        """Sort the layers in the order they last ran, by which the budget is shared."""
        ran = [] if self.now is None else list(dict.fromkeys(self.now.order))
        if len(ran) == len(self.convs) and ran != self.convs:
            self.convs, self._shares = ran, None

    # -------------------------------------------------------------------------------------------------------- BatchNorm

    @property
    def hysteresis(self) -> float:
        """Factor by which the magnitude of another column must exceed that of a kept one to replace it.

        Infinite where columns are renormalised: one that is sent in some passes and itself in others fits the weights after it
        in neither (docs/adr/0031). Without that, above 1 where a BatchNorm averages its statistics over many passes, for the
        same reason.
        """
        wanted = self.pruning.hysteresis
        if self.pruning.renormalize:
            return math.inf if wanted is None else wanted
        slow = any(norm.momentum is None or norm.momentum < _FAST_MOMENTUM for norm in self.norms)
        return (_HYSTERESIS if wanted is None else wanted) if slow else 1.0

    def raise_momentum(self, norm: _BatchNorm, args: Any) -> None:
        """Hook: while passes run on one graph, running statistics follow the last passes instead of averaging over many."""
        before, last = (None if graph is None else graph() for graph in self._graphs)
        if not self.prunes or before is None or before is not last or not is_training(norm):
            return
        wanted, own = self.pruning.norm_momentum, norm.momentum
        if wanted is not None and own is not None and own < wanted:
            self._momentum[norm], norm.momentum = own, wanted

    def restore_momentum(self, norm: _BatchNorm, args: Any, out: Any) -> None:
        if norm in self._momentum:
            norm.momentum = self._momentum.pop(norm)

    # ------------------------------------------------------------------------------------------------------------ budget

    def share(self, conv: PrunedConv) -> float:
        """Columns, as a measure of multiply-adds, that this layer may keep."""
        if self._shares is None:
            self._shares = self.kind.shares(self)
        return self._shares[self.convs.index(conv)]

    def reset_shares(self) -> None:
        self._shares = None

    # -------------------------------------------------------------------------------------------------- inside one pass

    def inherited_edges(self, conv: PrunedConv, adjacency: Adjacency, given: Tensor | None) -> Tensor | None:
        """bool [m]: edges kept by earlier layers of this pass for a layer called with these features; None = all."""
        if not self.pruning.inherit or not self.pruning.prunes_edges or not self.kind.by_edge or self.now is None:
            return None
        self.now.inheritance = self.now.inheritance or Inheritance()
        flags, depth = self.now.inheritance.reach(conv, conv.relation, adjacency, given)
        if self.depth(conv) != depth:
            self._shares = None
        self._depth[conv] = depth
        return flags

    def store_kept_edges(self, conv: PrunedConv, adjacency: Adjacency, flags: Tensor) -> None:
        """Record the edges, bool [m], that this layer keeps for later layers of this pass."""
        if self.now is not None and self.now.inheritance is not None:
            self.now.inheritance.store(conv, conv.relation, adjacency, flags, self.depth(conv))

    def depth(self, conv: PrunedConv) -> int:
        """Number of layers before this one in its chain of inheritance; before it has run, those of its relation."""
        if conv in self._depth:
            return self._depth[conv]
        before = self.convs[: self.convs.index(conv)]
        return sum(other.relation == conv.relation for other in before)

    @property
    def has_branches(self) -> bool:
        """Whether some layers are parallel, so that inheritance does not follow the order of the layers."""
        return len({self.depth(conv) for conv in self.convs}) < len(self.convs)

    def is_first(self, conv: PrunedConv) -> bool:
        return self.convs[0] is conv

    def record(self, conv: PrunedConv, entry: ConvTrace, graph: object) -> None:
        if self.now is None:  # `forward` of a layer that is the whole model, called without hooks
            self.now = Pass(training=False, deciding=False)
        self.now.graph = self.now.graph or weakref.ref(graph)
        self.now.order.append(conv)
        graphs = self.now.thinned.get(conv)
        self.now.records.append(entry.of_graph(num_edges(entry.edges, graphs)) if graphs else entry)

    def trace(self) -> ModelTrace:
        layers = []
        for i, weight in enumerate(self.weights):
            rows = weight.rows
            matrix = weight.matrix
            layers.append(LayerTrace(i, matrix.numel(), weight.kept, rows * weight.kept, rows * matrix.numel()))
        notes = [*self.notes, *dict.fromkeys(note for record in self.records for note in record.notes)]
        waiting = sum(weight.due is not None or not weight.rows for weight in self.weights)
        if waiting and self.pruning.prunes_weights:
            notes.append(f"{waiting} of {len(self.weights)} matrices have had no input, so their weights are not pruned yet")
        wanted = self.pruning.weight_sparsity
        if wanted and 0 < self.passes < self.pruning.ramp:
            notes.append(f"weights are still being pruned: training pass {self.passes} of the {self.pruning.ramp} it takes")
        return ModelTrace(tuple(self.records), requested=self.requested, notes=tuple(notes), layers=tuple(layers))


def is_training(module: nn.Module) -> bool:
    """Whether a call of it is a training pass."""
    return module.training and torch.is_grad_enabled()


def _version(layer: nn.Module) -> int:
    """Version of the parameters of a layer, which increases with every write."""
    return sum(0 if parameter.is_inference() else parameter._version for parameter in layer.parameters())
