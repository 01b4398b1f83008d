"""Which process trains which rows of a head: here one process has all. Several: `unifews.training.distributed`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unifews.nn.decoupled import Mlp


class HeadTrainer:
    """One process with all rows. Subclasses have a range of the rows, and take the same steps."""

    is_first = True
    """Whether this process writes records."""

    def head(self, inputs: int, outputs: int, **shape: Any) -> Mlp:
        """A new head with initial weights."""
        return Mlp(inputs, outputs, **shape)

    def standardise(self, head: Mlp, rows: Tensor, train: Tensor, *, per_column: bool) -> None:
        """Fit shift and scale on all training rows."""
        head.standardise(rows[train], per_column=per_column)

    def wrap(self, head: Mlp) -> nn.Module:
        """The module that is called with batches in training."""
        return head

    def local(self, nodes: Tensor) -> Tensor | slice:
        """Positions of those nodes whose rows this process has."""
        return slice(None)

    def loss(self, net: nn.Module, x: Tensor, labels: Tensor, at: Tensor | slice, count: int) -> Tensor:
        """The loss of a batch of `count` rows, of which this process has those at positions `at`."""
        return loss_of(net(x), labels)

    def total(self, losses: float) -> float:
        """The sum over processes of an epoch's losses, each times the rows of its batch."""
        return losses

    def gather(self, scores: Tensor, at: Tensor | slice, count: int) -> Tensor:
        """The scores of `count` rows, of which this process has those at positions `at`."""
        return scores

    def plain(self, head: Mlp) -> Mlp:
        """The trained head, independent of this trainer."""
        return head


def loss_of(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of class numbers [rows], or of 0/1 columns [rows, labels]."""
    if labels.ndim == 2:
        return torch.nn.functional.binary_cross_entropy_with_logits(scores, labels)
    return torch.nn.functional.cross_entropy(scores, labels)
