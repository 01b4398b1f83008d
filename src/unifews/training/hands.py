"""Who trains a head: one process that has all rows. Several that each have some are in `unifews.distributed`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unifews.nn.decoupled import Mlp


class Hands:
    """One process. Others answer the same questions for the rows that they have."""

    is_first = True
    """Whether this process keeps records."""

    def head(self, inputs: int, outputs: int, **shape: Any) -> Mlp:
        return Mlp(inputs, outputs, **shape)

    def standardise(self, head: Mlp, rows: Tensor, train: Tensor, *, per_column: bool) -> None:
        """Fit shift and scale on all training rows."""
        head.standardise(rows[train], per_column=per_column)

    def stepping(self, head: Mlp) -> nn.Module:
        """What is called with batches in training."""
        return head

    def mine(self, nodes: Tensor) -> Tensor | slice:
        """Which of these nodes' rows are here, as positions."""
        return slice(None)

    def loss(self, net: nn.Module, x: Tensor, labels: Tensor, at: Tensor | slice, count: int) -> Tensor:
        """The loss to step by, of a batch of `count` rows of which those at `at` are here."""
        return loss_of(net(x), labels)

    def total(self, losses: float) -> float:
        """The losses of an epoch, each times the rows of its batch, added up over all processes."""
        return losses

    def all(self, scores: Tensor, at: Tensor | slice, count: int) -> Tensor:
        """The scores of `count` rows, of which those at `at` are here."""
        return scores

    def plain(self, head: Mlp) -> Mlp:
        """The trained head as any process may use it."""
        return head


def loss_of(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of class numbers [rows], or of 0/1 columns [rows, labels]."""
    if labels.ndim == 2:
        return torch.nn.functional.binary_cross_entropy_with_logits(scores, labels)
    return torch.nn.functional.cross_entropy(scores, labels)
