"""A linear layer that prunes its own weights by the entry rule."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from unifews.errors import InputError

_TINY = 1e-8  # of the mean input norm: below it the layer has seen nothing to decide by
_CAP = 0.999  # of the largest entry: a threshold never removes all of them


class PrunedLinear(nn.Linear):
    """y = x (W ⊙ keep)ᵀ + b.

    One weight is one entry: it multiplies a column of the input, so weight [i, j] stays iff

        |W[i,j]| · ‖x[:,j]‖₂ ≥ δ_w        ([P] Eq. of weight pruning, METHODS 3.3)

    `decide` takes that decision anew from the dense weights (a weight that was removed may come back), or only among those
    still there (`monotone`). With `due` set, the next batch that comes through is what it decides by, before it is
    multiplied, so the layers after this one see the input that they will see from now on (METHODS 3.12).
    The mask is a buffer, so it is saved, copied and restored with the weights it belongs to.
    Shapes: x [rows, inputs], W and keep [outputs, inputs].
    """

    keep: Tensor

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias)
        self.register_buffer("keep", torch.ones(outputs, inputs, dtype=torch.bool))
        self.due: dict[str, Any] | None = None
        """Arguments of `decide` for the next batch; None = the mask stays as it is."""
        self.feedback = False
        """Whether removed weights go on learning (by the gradient they would have if they were there), so that those
        which are missed come back at the next decision; else they get no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        if self.due is not None:
            how, self.due = self.due, None
            self.decide(x.detach().norm(dim=0), **how)
        return nn.functional.linear(x, self.effective, self.bias)

    @property
    def effective(self) -> Tensor:
        """W ⊙ keep: the weights that multiply."""
        if not self.is_pruned:
            return self.weight
        if self.feedback and torch.is_grad_enabled():
            return self.weight - (self.weight * ~self.keep).detach()
        return self.weight * self.keep

    @property
    def is_pruned(self) -> bool:
        return not bool(self.keep.all())

    @property
    def kept(self) -> int:
        return int(self.keep.sum())

    @torch.no_grad()
    def decide(
        self, norms: Tensor, *, sparsity: float | None = None, threshold: float | None = None, monotone: bool = False
    ) -> None:
        """Choose the weights that stay, given the norms of the input's columns [inputs].

        `sparsity` removes that share exactly (of all weights of the layer); `threshold` is the authors' relative one,
        δ_w = threshold · ‖x‖_F / inputs. The largest entry always stays. An input of zeros, or one that is not finite,
        says nothing, and leaves the mask as it is.
        """
        if (sparsity is None) == (threshold is None):
            raise InputError("a layer is pruned by `sparsity` or by `threshold`; give one of them.")
        size = self.weight.abs() * norms
        if monotone:  # below every entry that is still there, those of size 0 included
            size = torch.where(self.keep, size, -1.0)
        scale = float(norms.norm()) / max(len(norms), 1)
        if not _TINY < scale < math.inf:
            return
        if sparsity is not None:
            remove = min(round(sparsity * size.numel()), size.numel() - 1)
            keep = _largest(size.flatten(), size.numel() - remove).view_as(size)
        else:
            assert threshold is not None
            keep = size >= min(threshold * scale, _CAP * float(size.max()))
        self.keep = keep & self.keep if monotone else keep

    @torch.no_grad()
    def settle(self) -> None:
        """Training is over: what was removed becomes zero."""
        self.feedback, self.due = False, None
        self.weight *= self.keep

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kept={self.kept} of {self.weight.numel()}"


def _largest(size: Tensor, count: int) -> Tensor:
    """True at the `count` largest values; of equal ones at the border, the first."""
    if count >= len(size):
        return torch.ones_like(size, dtype=torch.bool)
    border = size.kthvalue(len(size) - count).values
    keep = size > border
    tied = (size == border).nonzero().flatten()
    keep[tied[: count - int(keep.sum())]] = True
    return keep
