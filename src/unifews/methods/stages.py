"""What iterative methods share: a checked request, undirected edges, shares that are met to the entry, a plain training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from unifews.core.checks import check_sparsity
from unifews.errors import GraphError, InputError
from unifews.methods.contract import Data, Stage
from unifews.methods.door import missed
from unifews.methods.registry import Card

if TYPE_CHECKING:
    from torch import Tensor, nn

    from unifews.nn.masked import Thinned

_NOISE = 1e-5  # on factors that start at 1: which of two equal ones goes is chance, not their place in the graph


@dataclass(frozen=True)
class Asked:
    """A checked call of `prepare`."""

    card: Card
    model: nn.Module
    data: Data
    edges: float
    """The share to remove; 0 = none."""
    weights: float
    epochs: int
    seed: int

    def thinned(self, *notes: str) -> Thinned:
        """A copy of the model with everything in place yet."""
        from unifews.nn.masked import Thinned

        sides = (("edge", self.edges), ("weight", self.weights))
        words = ", ".join(f"{side}_sparsity={share:g}" for side, share in sides if share)
        return Thinned(self.model, self.data.edge_index, self.data.x.shape[0], f"{words} ({self.card.name})", notes)

    def generator(self, purpose: int) -> np.random.Generator:
        """Draws of a method: apart from those of splits, initial weights and dropout, which have the same seed."""
        return np.random.default_rng([self.seed, purpose])


class Trains:
    """An iterative method: `prepare` as the contract has it, checked here once; the method itself is `stages`."""

    card: ClassVar[Card]

    def prepare(
        self,
        model: nn.Module,
        data: Data,
        *,
        edge_sparsity: float | None = None,
        weight_sparsity: float | None = None,
        epochs: int = 200,
        seed: int = 42,
    ) -> Iterator[Stage]:
        """See `Iterative`."""
        card = self.card
        edges = check_sparsity("edge_sparsity", edge_sparsity or 0.0)
        weights = check_sparsity("weight_sparsity", weight_sparsity or 0.0)
        able = [side for side in ("edge", "weight") if f"{side}s" in card.prunes]
        if weights and "weights" not in card.prunes:
            raise InputError(f"method {card.name!r} removes no weights; leave weight_sparsity out, or take method='random'.")
        if not (edges or weights):
            options = " or ".join(f"{side}_sparsity" for side in able)
            raise InputError(f"method {card.name!r} is not told how much to remove; give {options}, such as 0.5.")
        if data.edge_index.ndim != 2 or data.edge_index.shape[0] != 2:
            raise GraphError(f"`edge_index` has shape {list(data.edge_index.shape)}; it is [2, edges], senders and receivers.")
        if edges and not bool((data.edge_index[0] != data.edge_index[1]).any()):
            raise InputError("the graph has no edges between different nodes, so none can be removed; leave edge_sparsity out.")
        return self.stages(Asked(card, model, data, edges, weights, epochs, seed))

    def stages(self, asked: Asked) -> Iterator[Stage]:
        raise TypeError(f"{type(self).__name__} has no `stages`: an iterative method must say what is trained.")


class Training:
    """A stage in which nothing is done in between."""

    def __init__(self, model: Thinned, epochs: int) -> None:
        self.thinned, self.epochs = model, epochs

    @property
    def model(self) -> nn.Module:
        return self.thinned

    def loss(self) -> Tensor | None:
        return None

    def after_step(self, step: int) -> None: ...

    def after_epoch(self, epoch: int, val: float) -> bool:
        return False

    def counts(self, epoch: int) -> bool:
        return True


def pairs(model: Thinned) -> tuple[Tensor, Tensor]:
    """The undirected edge that each edge is a direction of, int64 [m], and both ends of those, [2, pairs]."""
    import torch

    sender, receiver = model.ends
    low, high = torch.minimum(sender, receiver), torch.maximum(sender, receiver)
    found, group = torch.unique(low * model.nodes + high, return_inverse=True)
    return group, torch.stack([found // model.nodes, found % model.nodes])


def keep_pairs(model: Thinned, asked: Asked, group: Tensor, stay: Tensor) -> None:
    """Undirected edges that stay, with a note where few, or directed, edges do not add up to the share."""
    model.keep.copy_(stay[group])
    achieved = 1 - float(model.keep.double().mean())
    model.notes = (*model.notes, *missed(asked.card, asked.edges, achieved, "both directions of an edge go together"))


def left(count: int, share: float) -> int:
    """How many of so many stay."""
    return count - round(share * count)


def largest_of(scores: Sequence[Tensor], share: float) -> list[Tensor]:
    """Which stay so that this share of all matrices together goes, the smallest scores first."""
    import torch

    from unifews.nn.linear import largest

    flat = torch.cat([score.detach().flatten() for score in scores])
    return apart(largest(flat, left(len(flat), share)), scores)


def apart(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """One vector over all matrices as those matrices."""
    import torch

    parts = torch.split(flat, [matrix.numel() for matrix in like])
    return [part.view_as(matrix) for part, matrix in zip(parts, like, strict=True)]


def keep_weights(model: Thinned, chosen: Sequence[Tensor]) -> None:
    for weight, keep in zip(model.weights, chosen, strict=True):
        weight.keep.copy_(keep)


def near_one(rng: np.random.Generator, shape: Sequence[int]) -> Tensor:
    """Factors to start from."""
    import torch

    return torch.from_numpy((1 + _NOISE * rng.standard_normal(tuple(shape))).astype(np.float32))
