"""What the layers of one sparsified model share: settings, the schedule, and the edges that are still there in this pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from unifews.core.trace import LayerTrace
from unifews.nn.adjacency import Adjacency
from unifews.nn.inheritance import Inheritance
from unifews.nn.pruning import Phase, Pruning, nested_share, water_level, whole_columns
from unifews.nn.trace import ConvTrace, ModelTrace

if TYPE_CHECKING:
    from unifews.nn.convs.base import PrunedConv
    from unifews.nn.linear import PrunedWeight


class Session:
    """One model, its pruned layers in the order they run, and the pass that is going on.

    A pass begins when the model is called (a forward pre-hook). A training pass takes decisions; any other one uses
    those that were taken, so what is judged is what was trained, and forgetting to say anything here changes nothing.
    """

    def __init__(self, pruning: Pruning, convs: list[PrunedConv], weights: list[PrunedWeight]) -> None:
        self.pruning = pruning
        self.convs, self.weights = convs, weights
        self.phase: Phase = "regrow"
        self.deciding = False
        self.node_lock: Tensor | None = None
        self.factor: Tensor | None = None
        """Of every edge of the pass, for layers that take no edge weights; set by `thinned`."""
        self.requested = str(pruning)
        self.notes: tuple[str, ...] = ()
        """On the model, for every trace."""
        self.records: list[ConvTrace] = []
        self._alive: Inheritance | None = None
        self._depth: dict[PrunedConv, int] = {}
        """Layers before each in its chain of inheritance, where it has run."""
        self.handle = -1
        """Of the hook by which a pass begins."""
        self._order: list[PrunedConv] = []
        self._shares: list[float] | None = None

    @property
    def passes(self) -> int:
        """Training passes so far; a buffer, so a run that goes on from a file goes on with its schedule."""
        return int(self.convs[0].passes)

    def begin(self, module: nn.Module, args: Any) -> None:
        """A pass of the whole model starts."""
        self.settle_order()
        self.records, self._order, self._alive = [], [], None
        decided = any(bool(conv.decided) for conv in self.convs)
        training = module.training and torch.is_grad_enabled()
        self.deciding = self.phase != "frozen" and (training or not decided)
        if training and self.phase != "frozen":
            for conv in self.convs:
                conv.passes += 1
            for weight in self.weights:
                weight.feedback = self.pruning.feedback and self.phase == "regrow"
            if self.pruning.prunes_weights:
                shapes = [(weight.matrix.shape[0], weight.matrix.shape[1]) for weight in self.weights]
                due = self.pruning.weights_at(self.passes, shapes, self.phase.startswith("monotone"))
                for weight, how in zip(self.weights, due, strict=True):
                    weight.due = how

    def settle_order(self) -> None:
        """Layers are shared a budget in the order they last ran, which may not be the order they were defined in."""
        ran = list(dict.fromkeys(self._order))
        if len(ran) == len(self.convs) and ran != self.convs:
            self.convs, self._shares = ran, None

    # ------------------------------------------------------------------------------------------------------------ budget

    def share(self, conv: PrunedConv) -> float:
        """Columns of dense work that this layer may keep."""
        if self._shares is None:
            widths = [layer.width for layer in self.convs]
            sparsity = self.pruning.edge_sparsity or 0.0
            if self.pruning.entries == "node" and self.pruning.inherit:
                # Edges that are gone stay gone, so a later layer cannot keep more of them than an earlier one.
                depths = [self.depth(layer) for layer in self.convs]
                stay = nested_share(depths, sparsity) if self.pruning.budget == "layers" else [1 - sparsity] * len(widths)
                self._shares = [s * w for s, w in zip(stay, widths, strict=True)]
            elif self.pruning.budget == "layers":
                self._shares = [(1 - sparsity) * w for w in widths]
            else:
                self._shares = water_level(widths, sparsity)
            if self.pruning.entries == "unit":
                self._shares = [float(k) for k in whole_columns(self._shares)]
        return self._shares[self.convs.index(conv)]

    def share_anew(self) -> None:
        self._shares = None

    # -------------------------------------------------------------------------------------------------- inside one pass

    def alive(self, conv: PrunedConv, adjacency: Adjacency, given: Tensor | None) -> Tensor | None:
        """Flags [m] of the edges that earlier layers of this pass have left to one called with these features; None = all."""
        if not self.pruning.inherit or not self.pruning.prunes_edges or self.pruning.entries == "unit":
            return None
        self._alive = self._alive or Inheritance()
        flags, depth = self._alive.reach(conv, conv.relation, adjacency, given)
        if self.depth(conv) != depth:
            self._shares = None
        self._depth[conv] = depth
        return flags

    def leave(self, conv: PrunedConv, adjacency: Adjacency, flags: Tensor) -> None:
        """Of the edges, later layers of this pass see those with a flag."""
        if self._alive is not None:
            self._alive.leave(conv, conv.relation, adjacency, flags, self.depth(conv))

    def depth(self, conv: PrunedConv) -> int:
        """Layers before this one in its chain of inheritance; before it has run, those of its relation."""
        if conv in self._depth:
            return self._depth[conv]
        before = self.convs[: self.convs.index(conv)]
        return sum(other.relation == conv.relation for other in before)

    @property
    def has_branches(self) -> bool:
        """Whether inheritance does not simply follow the order of the layers."""
        return len({self.depth(conv) for conv in self.convs}) < len(self.convs)

    def is_first(self, conv: PrunedConv) -> bool:
        return self.convs[0] is conv

    def record(self, conv: PrunedConv, entry: ConvTrace) -> None:
        self._order.append(conv)
        self.records.append(entry)

    def trace(self) -> ModelTrace:
        layers = []
        for i, weight in enumerate(self.weights):
            rows = weight.rows
            matrix = weight.matrix
            layers.append(LayerTrace(i, matrix.numel(), weight.kept, rows * weight.kept, rows * matrix.numel()))
        notes = [*self.notes, *dict.fromkeys(note for record in self.records for note in record.notes)]
        waiting = sum(weight.due is not None or not weight.rows for weight in self.weights)
        if waiting and self.pruning.prunes_weights:
            notes.append(f"{waiting} of {len(self.weights)} matrices have had no input rows: their weights are not decided on")
        wanted = self.pruning.weight_sparsity
        if wanted and 0 < self.passes < self.pruning.ramp:
            notes.append(f"weights are still being pruned: training pass {self.passes} of the {self.pruning.ramp} it takes")
        return ModelTrace(tuple(self.records), requested=self.requested, notes=tuple(notes), layers=tuple(layers))
