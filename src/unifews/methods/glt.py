"""GLT: edges and weights have masks that are learnt; the smallest go, the weights start again from where they began.

A round trains weights together with masks m on edges and weights, one mask of edges for all layers,

    loss + s_g·‖m_g‖₁ + s_θ·‖m_θ‖₁,

and ends at its best epoch, where the edges and, over all layers, the weights of the smallest |m| go. The next round starts from
the first weights under what is left. After the last the masks are 0 and 1, and the model is trained a last time.

Differences from the authors' code: masks are vectors over edges, not n × n matrices; normalisation is on what the masks leave,
with their gradient, and factors do not go below zero; in attention a factor multiplies exp(score) inside the softmax, where
theirs multiplies the score, so that an edge of factor 0 was still attended to; every round removes the same share p of what is
left, 1 - (1-p)^rounds being what is asked for; only the last round is trained out. Epochs of all rounds count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unifews.errors import InputError
from unifews.methods.contract import Stage
from unifews.methods.registry import method
from unifews.methods.settings import check_count, check_number
from unifews.methods.stages import Asked, Training, Trains, keep_weights, largest_of, left, near_one

if TYPE_CHECKING:
    from torch import Tensor

    from unifews.nn.masked import Thinned


@method(
    "glt",
    prunes=("edges", "weights"),
    backbones=("gcn", "gat", "gcnii", "gin"),
    paper="Chen et al., A Unified Lottery Ticket Hypothesis for Graph Neural Networks, ICML 2021",
)
@dataclass(frozen=True)
class Glt(Trains):
    """Settings: how many rounds; the share of the epochs that they take together; the pulls s_g and s_θ on masks. Chosen by
    validation (docs/adr/0017)."""

    rounds: int = 4
    search: float = 0.5
    edge_pull: float = 1e-2
    weight_pull: float = 1e-5

    def __post_init__(self) -> None:
        check_count("rounds", self.rounds)
        check_number("search", self.search, 0, 0.95, above=True)
        check_number("edge_pull", self.edge_pull)
        check_number("weight_pull", self.weight_pull)

    def stages(self, asked: Asked) -> Iterator[Stage]:
        """Shares are met to the entry."""
        each = int(self.search * asked.epochs / self.rounds)
        if each < 1:
            raise InputError(
                f"method 'glt' searches in {self.rounds} rounds, and {asked.epochs} epochs are too few for them; give epochs="
                f"{int(self.rounds / self.search) + 1} or more, or fewer rounds (method='glt:rounds=1')."
            )
        rng, found = asked.generator(11), asked.thinned()
        for number in range(1, self.rounds + 1):
            search = _Search(_again(found, asked), each, asked, self, rng)
            yield search
            search.choose(found, number / self.rounds)
        yield Training(found, asked.epochs - self.rounds * each)


class _Search(Training):
    """One round."""

    def __init__(self, model: Thinned, epochs: int, asked: Asked, glt: Glt, rng: np.random.Generator) -> None:
        super().__init__(model, epochs)
        self.asked, self.glt = asked, glt
        if asked.edges:
            model.give_factors(near_one(rng, model.keys.shape))
        if asked.weights:
            model.give_masks([near_one(rng, weight.matrix.shape) for weight in model.weights])

    def loss(self) -> Tensor | None:
        pulls = [] if self.thinned.raw is None else [self.glt.edge_pull * self.thinned.raw.abs().sum()]
        pulls += [self.glt.weight_pull * mask.abs().sum() for mask in self.thinned.masks.values()]
        total: Tensor | None = sum(pulls[1:], pulls[0])
        return total

    def choose(self, found: Thinned, part: float) -> None:
        """The smallest masks go, so that of what is asked for this part of the way, in equal steps of what is left, is done."""
        import torch

        from unifews.nn.linear import largest

        model = self.thinned
        if model.raw is not None:
            size = torch.where(model.keep, model.raw.detach().abs(), -1.0)
            found.keep.copy_(largest(size, left(len(size), 1 - (1 - self.asked.edges) ** part)))
        if len(model.masks):
            sizes = [
                torch.where(weight.keep, mask.detach().abs(), -1.0)
                for weight, mask in zip(model.weights, model.masks.values(), strict=True)
            ]
            keep_weights(found, largest_of(sizes, 1 - (1 - self.asked.weights) ** part))


def _again(found: Thinned, asked: Asked) -> Thinned:
    """The first weights under what is left."""
    fresh = asked.thinned()
    fresh.keep.copy_(found.keep)
    keep_weights(fresh, [weight.keep for weight in found.weights])
    return fresh
