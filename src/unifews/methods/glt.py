"""GLT: edges and weights have learnt masks; the smallest are removed, and the weights are rewound to their initial values.

A round trains weights together with masks m on edges and weights, one mask of edges for all layers,

    loss + s_g·‖m_g‖₁ + s_θ·‖m_θ‖₁,

and ends at its best epoch, where the edges and, over all layers, the weights of the smallest |m| are removed. The next round
starts from the initial weights under the smaller masks. After the last, the masks are 0 and 1, and the model is trained again.

Differences from the authors' code: masks are vectors over edges, not n × n matrices; normalisation is on the masked graph,
with its gradient, and factors do not fall below zero; in attention a factor multiplies exp(score) inside the softmax, where
theirs multiplies the score, so that an edge of factor 0 was still attended to; every round removes the same fraction p of what
is kept, 1 - (1-p)^rounds being the requested one; only the last round is trained to the end. Epochs of all rounds count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unifews.core.config import option
from unifews.errors import InputError
from unifews.methods.base import Stage, Trainer, TrainingTask
from unifews.methods.registry import method
from unifews.methods.selection import keep_largest, noisy_ones, num_kept

if TYPE_CHECKING:
    from torch import Tensor

    from unifews.nn.masked import MaskedModel


@method(
    "glt",
    prunes=("edges", "weights"),
    backbones=("gcn", "gat", "gcnii", "gin"),
    paper="Chen et al., A Unified Lottery Ticket Hypothesis for Graph Neural Networks, ICML 2021",
)
@dataclass(frozen=True)
class Glt(Trainer):
    """Defaults chosen by validation (docs/adr/0017)."""

    rounds: int = option(4, "number of rounds", ge=1)
    search: float = option(0.5, "fraction of the epochs that the rounds take together", gt=0, le=0.95)
    edge_pull: float = option(1e-2, "penalty s_g on masks of edges", ge=0)
    weight_pull: float = option(1e-5, "penalty s_θ on masks of weights", ge=0)

    def stages(self, task: TrainingTask) -> Iterator[Stage]:
        """Sparsities are met to the entry."""
        each = int(self.search * task.epochs / self.rounds)
        if each < 1:
            raise InputError(
                f"method 'glt' searches in {self.rounds} rounds, and {task.epochs} epochs are too few for them; give epochs="
                f"{int(self.rounds / self.search) + 1} or more, or fewer rounds (method='glt:rounds=1')."
            )
        rng, found = task.generator(11), task.masked()
        for number in range(1, self.rounds + 1):
            search = _MaskRound(_rewound(found, task), each, task, self, rng)
            yield search
            search.choose(found, number / self.rounds)
        yield Stage(found, task.epochs - self.rounds * each)


class _MaskRound(Stage):
    model: MaskedModel

    def __init__(self, model: MaskedModel, epochs: int, task: TrainingTask, glt: Glt, rng: np.random.Generator) -> None:
        super().__init__(model, epochs)
        self.task, self.glt = task, glt
        if task.edges:
            model.set_factors(noisy_ones(rng, model.keys.shape))
        if task.weights:
            model.set_masks([noisy_ones(rng, weight.matrix.shape) for weight in model.weights])

    def penalty(self) -> Tensor | None:
        terms = [] if self.model.raw is None else [self.glt.edge_pull * self.model.raw.abs().sum()]
        terms += [self.glt.weight_pull * mask.abs().sum() for mask in self.model.masks.values()]
        total: Tensor | None = sum(terms[1:], terms[0])
        return total

    def choose(self, found: MaskedModel, part: float) -> None:
        """Remove the smallest masks: 1 - (1 - s)^part of the entries, for a requested sparsity s."""
        import torch

        from unifews.nn.linear import largest

        model = self.model
        if model.raw is not None:
            size = torch.where(model.keep, model.raw.detach().abs(), -1.0)
            found.keep.copy_(largest(size, num_kept(len(size), 1 - (1 - self.task.edges) ** part)))
        if len(model.masks):
            sizes = [
                torch.where(weight.keep, mask.detach().abs(), -1.0)
                for weight, mask in zip(model.weights, model.masks.values(), strict=True)
            ]
            found.keep_weights(keep_largest(sizes, 1 - (1 - self.task.weights) ** part))


def _rewound(found: MaskedModel, task: TrainingTask) -> MaskedModel:
    """The initial weights under the masks found so far."""
    fresh = task.masked()
    fresh.keep.copy_(found.keep)
    fresh.keep_weights([weight.keep for weight in found.weights])
    return fresh
