"""Weights that prune themselves by the entry rule."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from unifews.errors import InputError, ShapeError
from unifews.nn.ops.linear import times

_ROWS = 16_384  # of an input that say how large its columns are, one in every few where there are more
_TINY = 1e-8  # of the mean input norm: below it the layer has seen nothing to decide by
_CAP = 0.999  # of the largest entry: a threshold never removes all of them


class PrunedWeight(nn.Module):
    """A matrix that is multiplied from one side by data, W ⊙ keep instead of W.

    One weight is one entry: it multiplies a column of the input, so weight [i, j] of y = x Wᵀ stays iff

        |W[i,j]| · ‖x[:,j]‖₂ ≥ δ_w        ([P] Eq. of weight pruning)

    `decide` takes that decision anew from the dense weights (a weight that was removed may come back), or only among those
    still there (`monotone`). With `due` set, the next batch that comes through is what it decides by, before it is
    multiplied, so the layers after this one see the input that they will see from now on.
    The mask is a buffer, so it is saved, copied and restored with the weights it belongs to.
    """

    keep: Tensor
    input_axis = 1
    """The axis of W that runs over the input's columns."""

    due: dict[str, Any] | None
    """Arguments of `decide` for the next batch; None = the mask stays as it is."""
    feedback: bool
    """Whether removed weights go on learning (by the gradient they would have if they were there), so that those which are
    missed come back at the next decision; else they get no gradient."""
    rows: int
    """Rows that came through last."""
    known: int
    """Weights that the last decision, or a state that was loaded, keeps."""
    excess: dict[str, Any] | None = None
    """As `due`, where the mask is none that was decided: an average of masks keeps what any of them does."""

    def begin_pruning(self) -> None:
        """Give a module its mask, with nothing removed yet."""
        self.register_buffer("keep", torch.ones(self.matrix.shape, dtype=torch.bool, device=self.matrix.device))
        self.due, self.feedback, self.rows, self.known = None, False, 0, self.keep.numel()

    def end_pruning(self) -> None:
        for name in ("keep", "due", "feedback", "rows", "known", "excess"):
            if name in self._buffers or name in self.__dict__:
                delattr(self, name)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.known = 0 if self.keep.is_meta else self.kept

    @property
    def matrix(self) -> Tensor:
        """W, all of it."""
        return self.weight  # type: ignore[return-value]

    def prepare(self, x: Tensor) -> Tensor:
        """W ⊙ keep for the product with x [rows, inputs], after the decision that is due."""
        inputs = self.matrix.shape[self.input_axis]
        if x.shape[-1:] != (inputs,) or not x.is_floating_point():
            raise ShapeError(
                f"a linear layer of {inputs:,} inputs is given {x.dtype} rows of shape {list(x.shape)}; give floating-point "
                f"numbers [rows, {inputs}]."
            )
        self.rows = x.numel() // x.shape[-1] if x.shape[-1] else 0
        how = self.excess or (self.due if self.training else None)
        if how is not None:
            self.due = self.excess = None
            self.decide(self.norms(x.detach()), **how)
        return self.effective

    def times(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """The product of x [rows, inputs] with W ⊙ keep, + b, at the cost of the weights that are there if they are few."""
        weight = self.prepare(x)
        return times(x, weight if self.input_axis == 1 else weight.t(), bias, few=self.is_pruned)

    def norms(self, x: Tensor) -> Tensor:
        """Of the columns of an input [rows, inputs]."""
        return _column_norms(x)

    @property
    def effective(self) -> Tensor:
        """W ⊙ keep: the weights that multiply."""
        if not self.is_pruned:
            return self.matrix
        if self.feedback and torch.is_grad_enabled():
            return self.matrix - (self.matrix * ~self.keep).detach()
        return self.matrix * self.keep

    @property
    def is_pruned(self) -> bool:
        return not bool(self.keep.all())

    @property
    def kept(self) -> int:
        return int(self.keep.sum())

    def count(self, sparsity: float) -> int:
        """Weights that are left when this share of them is removed."""
        whole = self.matrix.numel()
        return whole - min(round(sparsity * whole), whole - 1)

    @torch.no_grad()
    def decide(
        self,
        norms: Tensor,
        *,
        sparsity: float | None = None,
        threshold: float | None = None,
        absolute: bool = False,
        monotone: bool = False,
    ) -> None:
        """Choose the weights that stay, given the norms of the input's columns [inputs].

        `sparsity` removes that share exactly (of all weights of the layer); `threshold` is the authors' relative one,
        δ_w = threshold · ‖x‖_F / inputs, or with `absolute` the paper's δ_w itself. The largest entry always stays. An input
        of zeros, or one that is not finite, says nothing, and leaves the mask as it is.
        """
        if (sparsity is None) == (threshold is None):
            raise InputError("a layer is pruned by `sparsity` or by `threshold`; give one of them.")
        size = self.matrix.abs() * (norms if self.input_axis == 1 else norms[:, None])
        if monotone:  # below every entry that is still there, those of size 0 included
            size = torch.where(self.keep, size, -1.0)
        scale = float(norms.norm()) / max(len(norms), 1)
        if not _TINY < scale < math.inf:
            return
        if sparsity is not None:
            keep = largest(size.flatten(), self.count(sparsity)).view_as(size)
        else:
            assert threshold is not None
            keep = size >= min(threshold * (1.0 if absolute else scale), _CAP * float(size.max()))
        self.keep = keep & self.keep if monotone else keep
        self.known = self.kept

    @torch.no_grad()
    def settle(self) -> None:
        """Training is over: what was removed becomes zero."""
        self.feedback, self.due = False, None
        self.matrix.mul_(self.keep)


class PrunedLinear(PrunedWeight, nn.Linear):
    """y = x (W ⊙ keep)ᵀ + b. Shapes: x [rows, inputs], W and keep [outputs, inputs]."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        nn.Linear.__init__(self, inputs, outputs, bias)
        self.begin_pruning()

    def forward(self, x: Tensor) -> Tensor:
        return self.times(x, self.bias)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kept={self.kept} of {self.weight.numel()}"


class PrunedParameter(PrunedWeight):
    """The mask of a matrix that belongs to another module and multiplies from the right, x W: W [inputs, outputs]."""

    input_axis = 0

    def __init__(self, owner: nn.Module, name: str) -> None:
        super().__init__()
        self._of = (owner,)  # in a tuple, so that the owner does not become a part of its part
        self._name = name
        self.begin_pruning()

    @property
    def matrix(self) -> Tensor:
        found: Tensor = getattr(self._of[0], self._name)
        return found


def _column_norms(x: Tensor) -> Tensor:
    """‖x[:,j]‖₂, [inputs]; of a tall dense matrix estimated from every few rows, brought to the number that there are."""
    if x.layout == torch.sparse_csr:
        squares: Tensor = x.values().new_zeros(x.shape[1]).index_add(0, x.col_indices(), x.values().square())
        return squares.sqrt()
    if x.layout != torch.strided:
        raise InputError(f"weights are decided by dense or CSR features, and these are {x.layout}; give x.to_sparse_csr().")
    rows = x.reshape(-1, x.shape[-1])
    some = rows[:: max(1, len(rows) // _ROWS)]
    norms: Tensor = some.norm(dim=0)
    return norms if len(some) == len(rows) else norms * math.sqrt(len(rows) / len(some))


def largest(size: Tensor, count: int) -> Tensor:
    """True at the `count` largest values; of equal ones at the border, the first."""
    if count >= len(size):
        return torch.ones_like(size, dtype=torch.bool)
    border = size.kthvalue(len(size) - count).values
    keep = size > border
    tied = (size == border).nonzero().flatten()
    keep[tied[: count - int(keep.sum())]] = True
    return keep
