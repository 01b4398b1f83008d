"""DSpar: edges are sampled by degree alone, before training: those between nodes of few neighbours are likely to stay.

p_e ∝ 1/d(u) + 1/d(v), near the effective resistance of an edge. Q edges are drawn with replacement; those drawn stay, with the
factor count_e / (Q·p_e), so that the sampled graph is right on average.

Differences from the authors' code: undirected edges are drawn once, not each direction by itself and then symmetrised, which
would bring back many of those that were removed and bound what can be removed (some 56 % on Cora); and Q is not taken from ε
but is the draw by which as many edges as asked for have been seen, so that any share is met.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unifews.methods.contract import Stage
from unifews.methods.registry import method
from unifews.methods.settings import check_flag
from unifews.methods.stages import Asked, Training, Trains, keep_pairs, left, pairs

if TYPE_CHECKING:
    from torch import nn


@method(
    "dspar",
    prunes=("edges",),
    backbones=("gcn", "gat", "sage", "gcnii", "gin"),
    paper="Liu et al., DSpar: An Embarrassingly Simple Strategy for Efficient GNN Training and Inference, TMLR 2023",
)
@dataclass(frozen=True)
class Dspar(Trains):
    """Settings: `factors`, whether edges are sent with the factors that make the sample right on average, as the authors do; by
    validation it makes no difference (docs/adr/0017)."""

    factors: bool = True

    def __post_init__(self) -> None:
        check_flag("factors", self.factors)

    def stages(self, asked: Asked) -> Iterator[Stage]:
        """GCN and GCNII normalise with the factors, GIN sums with them, attention is multiplied by them."""
        import torch

        deaf = self.factors and _takes_a_mean(asked.model)
        note = "dspar: a mean over neighbours has no place for the factors of sampled edges, so they are left out"
        thinned = asked.thinned(*[note] * deaf)
        group, ends = pairs(thinned)
        degree = np.bincount(ends.numpy().ravel(), minlength=int(thinned.nodes))
        odds = (1 / degree[ends.numpy()]).sum(axis=0)
        counts, draws = sample(odds / odds.sum(), left(len(odds), asked.edges), asked.generator(7))
        keep_pairs(thinned, asked, group, torch.from_numpy(counts > 0))
        if self.factors and not deaf and draws:
            factor = counts / (draws * odds / odds.sum())
            thinned.give_factors(torch.from_numpy(factor.astype(np.float32))[group], learnt=False)
        yield Training(thinned, asked.epochs)


def sample(odds: NDArray[np.float64], wanted: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], int]:
    """How often each was drawn by the draw that brings as many different ones as wanted, and how many draws that took.

    All of them are simply taken, once, in no draws: seeing the last by chance would take forever.
    """
    if wanted >= len(odds):
        return np.ones(len(odds), dtype=np.int64), 0
    if not wanted:
        return np.zeros(len(odds), dtype=np.int64), 0
    edges, drawn, need = np.cumsum(odds), np.empty(0, dtype=np.int64), _draws(odds, wanted)
    while True:
        more = np.searchsorted(edges, rng.random(need) * edges[-1], side="right")
        drawn = np.concatenate([drawn, np.minimum(more, len(odds) - 1)])
        first = np.sort(np.unique(drawn, return_index=True)[1])
        if len(first) >= wanted:
            draws = int(first[wanted - 1]) + 1
            return np.bincount(drawn[:draws], minlength=len(odds)), draws
        need = len(drawn)


def _draws(odds: NDArray[np.float64], wanted: int) -> int:
    """Draws after which this many different ones are expected: Σ 1 - (1 - p)^Q = wanted."""
    low, high = 0.0, float(len(odds))
    log = np.log1p(-np.minimum(odds, 1 - 1e-12))
    while -np.expm1(high * log).sum() < wanted:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if -np.expm1(middle * log).sum() < wanted else (low, middle)
    return int(high) + 1


def _takes_a_mean(model: nn.Module) -> bool:
    return any(getattr(module, "aggr", None) == "mean" for module in model.modules())
