"""CGP: one training in which edges and weights go bit by bit, and some that are missed come back.

Every edge has a factor 1 / (1 + exp(-w_e)) that is learnt, the same in all layers. Every few epochs up to epoch t₁ the share
s·(1 - (1 - t/t₁)³) of all edges, and of all weights, is removed, smallest first; then a share ρ of what is left, which falls
by a cosine from `rate`, is exchanged for as much of what is gone and has the largest gradient.

Differences from the authors' code: edges go by their factor, where they take |w_e|, by which one of factor ½ is the first to go
and one of factor 0 among the last; the gradient of what is gone is a real one, of a pass in which it takes part, where theirs
is zero for edges; an edge comes back where it would lower the loss; the last decision is at t₁, so the share is met; attention
takes factors in every layer; input features are not pruned. As with them w_e starts at random, so chance has a large part in
which edges go; `spread=0` leaves it to what is learnt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unifews.methods.contract import Stage
from unifews.methods.registry import method
from unifews.methods.settings import check_count, check_number
from unifews.methods.stages import Asked, Training, Trains, apart, keep_weights, left

if TYPE_CHECKING:
    from torch import Tensor

_LAST_RATE = 0.005


@method(
    "cgp",
    prunes=("edges", "weights"),
    backbones=("gcn", "gat", "gcnii"),
    paper="Liu et al., Comprehensive Graph Gradual Pruning for Sparse Training in Graph Neural Networks, TNNLS 2023",
)
@dataclass(frozen=True)
class Cgp(Trains):
    """Settings: the share ρ that is exchanged at first; epochs between decisions; t₁ as a share of the epochs (the authors'
    are .25 to .75 of 200; models here are at their best long before); the standard deviation of the first w_e (the authors' is
    1). Chosen by validation (docs/adr/0017)."""

    rate: float = 0.2
    every: int = 5
    until: float = 0.1
    spread: float = 0.3

    def __post_init__(self) -> None:
        check_number("rate", self.rate, 0, 0.9)
        check_number("until", self.until, 0, 0.95)
        check_number("spread", self.spread)
        check_count("every", self.every, " of epochs")

    def stages(self, asked: Asked) -> Iterator[Stage]:
        """Shares are met to the entry."""
        yield _Gradual(asked, self)


class _Gradual(Training):
    """The one training."""

    def __init__(self, asked: Asked, cgp: Cgp) -> None:
        import torch

        super().__init__(asked.thinned(), asked.epochs)
        self.asked, self.cgp = asked, cgp
        if asked.edges:
            drawn = cgp.spread * asked.generator(13).standard_normal(len(self.thinned.keys))
            self.thinned.give_factors(torch.from_numpy(drawn.astype(np.float32)), squash=True)
        self.last = min(round(cgp.until * self.epochs), self.epochs - 1)
        """Epochs until everything is removed."""
        times = max(1, self.last // cgp.every)
        self.due = {round(i * self.last / times) - 1: i / times for i in range(1, times + 1)}
        """How far the removal is after these epochs."""
        if self.last == 0:
            self._decide(1.0, 0.0)
        self._probe_in(0)

    def after_step(self, step: int) -> None:
        self._clear()
        if step in self.due and step >= 0:
            turn = (1 + math.cos(math.pi * (step + 1) / self.epochs)) / 2
            self._decide(self.due[step], _LAST_RATE + (self.cgp.rate - _LAST_RATE) * turn if self.cgp.rate else 0.0)
        self._probe_in(step + 1)

    def counts(self, epoch: int) -> bool:
        return epoch >= self.last

    def _probe_in(self, step: int) -> None:
        """In an epoch that ends with a decision, what is gone takes part by a hair, so that its gradient is known."""
        probing = step in self.due
        self.thinned.probing = probing and bool(self.asked.edges)
        for weight in self.thinned.weights:
            weight.feedback = probing and bool(self.asked.weights)

    def _clear(self) -> None:
        """Weights that are gone stay zero, whatever the optimiser's momentum does."""
        if self.asked.weights:
            for weight in self.thinned.weights:
                weight.matrix.data.mul_(weight.keep)

    def _decide(self, done: float, exchanged: float) -> None:
        import torch

        model, part = self.thinned, 1 - (1 - done) ** 3
        if self.asked.edges:
            assert model.raw is not None
            missed = None if model.probed is None or model.probed.grad is None else -model.probed.grad
            keep = _chosen(model.raw.detach(), model.keep, missed, left(len(model.keep), part * self.asked.edges), exchanged)
            model.raw.data[keep & ~model.keep] = 0.0
            model.keep.copy_(keep)
            model.probed = None
        if self.asked.weights:
            matrices = [weight.matrix for weight in model.weights]
            size = torch.cat([matrix.detach().abs().flatten() for matrix in matrices])
            there = torch.cat([weight.keep.flatten() for weight in model.weights])
            grads = [matrix.grad for matrix in matrices]
            missed = None if any(g is None for g in grads) else torch.cat([g.abs().flatten() for g in grads if g is not None])
            keep = _chosen(size, there, missed, left(len(size), part * self.asked.weights), exchanged)
            keep_weights(model, apart(keep, matrices))
            self._clear()


def _chosen(size: Tensor, there: Tensor, missed: Tensor | None, count: int, exchanged: float) -> Tensor:
    """The `count` entries that stay: the largest that are there, a share of them exchanged for those missed most."""
    import torch

    from unifews.nn.linear import largest

    lowest = torch.full_like(size, -torch.inf)
    size = torch.where(there, size, lowest)
    new = 0 if missed is None else round(exchanged * count)
    keep = largest(size, count - new)
    if new and missed is not None:
        keep = keep | largest(torch.where(keep, lowest, missed), new)
    return keep
