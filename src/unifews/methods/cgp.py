"""CGP: one training in which edges and weights are removed gradually, and some of the removed ones come back.

Every edge has a learnt factor 1 / (1 + exp(-w_e)), the same in all layers. Every few epochs up to epoch t₁ the fraction
s·(1 - (1 - t/t₁)³) of all edges, and of all weights, is removed, smallest first; then a fraction ρ of the kept ones, decaying
by a cosine from `rate`, is exchanged for as many removed ones with the largest gradient.

Differences from the authors' code: edges are ranked by their factor, where they take |w_e|, which removes an edge of factor ½
first and one of factor 0 among the last; the gradient of a removed entry is computed in a pass in which it takes part, where
theirs is zero for edges; an edge comes back where it would lower the loss; the last decision is at t₁, so the sparsity is met;
attention takes factors in every layer; input features are not pruned. As in their code w_e starts at random, so chance has a
large part in which edges are removed; `spread=0` leaves it to what is learnt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unifews.core.config import option
from unifews.methods.base import Stage, Trainer, TrainingTask
from unifews.methods.registry import method
from unifews.methods.selection import num_kept, split_like

if TYPE_CHECKING:
    from torch import Tensor

    from unifews.nn.masked import MaskedModel

_LAST_RATE = 0.005


@method(
    "cgp",
    prunes=("edges", "weights"),
    backbones=("gcn", "gat", "gcnii"),
    paper="Liu et al., Comprehensive Graph Gradual Pruning for Sparse Training in Graph Neural Networks, TNNLS 2023",
)
@dataclass(frozen=True)
class Cgp(Trainer):
    """Defaults chosen by validation (docs/adr/0017). The authors' t₁ is .25 to .75 of 200 epochs; models here are at their best
    long before. Their `spread` is 1."""

    rate: float = option(0.2, "initial fraction ρ that is exchanged", ge=0, le=0.9)
    every: int = option(5, "epochs between decisions", ge=1)
    until: float = option(0.1, "t₁ as a fraction of the epochs", ge=0, le=0.95)
    spread: float = option(0.3, "standard deviation of the initial w_e", ge=0)

    def stages(self, task: TrainingTask) -> Iterator[Stage]:
        """Sparsities are met to the entry."""
        yield _GradualStage(task, self)


class _GradualStage(Stage):
    model: MaskedModel

    def __init__(self, task: TrainingTask, cgp: Cgp) -> None:
        import torch

        super().__init__(task.masked(), task.epochs)
        self.task, self.cgp = task, cgp
        if task.edges:
            drawn = cgp.spread * task.generator(13).standard_normal(len(self.model.keys))
            self.model.set_factors(torch.from_numpy(drawn.astype(np.float32)), sigmoid=True)
        self.last = min(round(cgp.until * self.epochs), self.epochs - 1)
        """Epochs until everything is removed."""
        times = max(1, self.last // cgp.every)
        self.due = {round(i * self.last / times) - 1: i / times for i in range(1, times + 1)}
        """Epochs after which a decision is due, with t/t₁."""
        if self.last == 0:
            self._decide(1.0, 0.0)
        self._set_probing(0)

    def after_step(self, step: int) -> None:
        self._apply_masks()
        if step in self.due and step >= 0:
            decay = (1 + math.cos(math.pi * (step + 1) / self.epochs)) / 2
            self._decide(self.due[step], _LAST_RATE + (self.cgp.rate - _LAST_RATE) * decay if self.cgp.rate else 0.0)
        self._set_probing(step + 1)

    def counts(self, epoch: int) -> bool:
        return epoch >= self.last

    def _set_probing(self, step: int) -> None:
        """In an epoch that ends with a decision, removed entries take part with a negligible factor, to get a gradient."""
        probing = step in self.due
        self.model.probing = probing and bool(self.task.edges)
        for weight in self.model.weights:
            weight.feedback = probing and bool(self.task.weights)

    def _apply_masks(self) -> None:
        """Removed weights are zero, whatever the optimizer's momentum does."""
        if self.task.weights:
            for weight in self.model.weights:
                weight.matrix.data.mul_(weight.keep)

    def _decide(self, progress: float, exchanged: float) -> None:
        import torch

        model, part = self.model, 1 - (1 - progress) ** 3
        if self.task.edges:
            assert model.raw is not None
            gain = None if model.probed is None or model.probed.grad is None else -model.probed.grad
            count = num_kept(len(model.keep), part * self.task.edges)
            keep = _chosen(model.raw.detach(), model.keep, gain, count, exchanged)
            model.raw.data[keep & ~model.keep] = 0.0
            model.keep.copy_(keep)
            model.probed = None
        if self.task.weights:
            matrices = [weight.matrix for weight in model.weights]
            size = torch.cat([matrix.detach().abs().flatten() for matrix in matrices])
            present = torch.cat([weight.keep.flatten() for weight in model.weights])
            grads = [matrix.grad for matrix in matrices]
            gain = None if any(g is None for g in grads) else torch.cat([g.abs().flatten() for g in grads if g is not None])
            keep = _chosen(size, present, gain, num_kept(len(size), part * self.task.weights), exchanged)
            model.keep_weights(split_like(keep, matrices))
            self._apply_masks()


def _chosen(size: Tensor, present: Tensor, gain: Tensor | None, count: int, exchanged: float) -> Tensor:
    """Mask of the `count` entries kept: the largest present ones, a fraction exchanged for absent ones of the largest gain."""
    import torch

    from unifews.nn.linear import largest

    lowest = torch.full_like(size, -torch.inf)
    size = torch.where(present, size, lowest)
    new = 0 if gain is None else round(exchanged * count)
    keep = largest(size, count - new)
    if new and gain is not None:
        keep = keep | largest(torch.where(keep, lowest, gain), new)
    return keep
