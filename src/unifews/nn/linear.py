"""Linear layers that prune their own weights by the entry rule."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from unifews.errors import InputError, ShapeError
from unifews.nn.ops.linear import Mask, times

_ROWS = 16_384  # rows of an input that its column norms are estimated from, evenly spaced where there are more
_TINY = 1e-8  # norm of an input below which no decision is taken
_CAP = 0.999  # of the largest entry: a threshold never removes all entries


class PrunedWeight(nn.Module):
    """A matrix that is multiplied from one side by data, W ⊙ keep instead of W.

    One weight is one entry: it multiplies a column of the input, so weight [i, j] of y = x Wᵀ is kept iff

        |W[i,j]| · ‖x[:,j]‖₂ ≥ δ_w        ([P] Eq. of weight pruning)

    `decide` recomputes the mask from the dense weights (a removed weight may be restored), or only among the weights still kept
    (`monotone`). With `due` set, the mask is decided from the next batch, before the product, so later layers see the input
    that they will see from then on. The mask is a buffer, so it is saved, copied and restored with the weights.
    """

    keep: Tensor
    input_axis = 1
    """The axis of W that corresponds to the columns of the input."""

    due: dict[str, Any] | None
    """Arguments of `decide` for the next batch; None = the mask does not change."""
    feedback: bool
    """Whether removed weights are still trained (with the gradient they would have if they were kept), so that important ones
    are restored at the next decision; otherwise they get no gradient."""
    rows: int
    """Rows of the last input."""
    known: int
    """Number of weights kept by the last decision or by a loaded state."""
    excess: dict[str, Any] | None = None
    """As `due`, for a mask that was not decided but averaged, which keeps the union of several masks."""

    def begin_pruning(self) -> None:
        """Add a mask that keeps all weights."""
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
        """W, unmasked."""
        return self.weight  # type: ignore[return-value]

    def prepare(self, x: Tensor) -> Tensor:
        """W ⊙ keep for the product with x [rows, inputs], after the decision if one is due."""
        inputs = self.matrix.shape[self.input_axis]
        if x.shape[-1:] != (inputs,) or not x.is_floating_point():
            raise ShapeError(
                f"a linear layer of {inputs:,} inputs is called with {x.dtype} rows of shape {list(x.shape)}; give "
                f"floating-point values [rows, {inputs}]."
            )
        self.rows = x.numel() // x.shape[-1] if x.shape[-1] else 0
        how = self.excess or (self.due if self.training else None)
        if how is not None:
            self.due = self.excess = None
            self.decide(self.norms(x.detach()), **how)
        return self.effective

    def times(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x (W ⊙ keep)ᵀ + b of x [rows, inputs]; the product and both of its gradients by sparse kernels where enough weights
        are removed. The gradient of the weights is dense while removed ones are trained (`feedback`)."""
        weight = self.prepare(x)
        weight = weight if self.input_axis == 1 else weight.t()
        return times(x, weight, bias, sparse_weight=self.is_pruned, mask=self.mask)

    @property
    def mask(self) -> Mask:
        """What `times` of `unifews.nn.ops.linear` needs to know about W ⊙ keep."""
        return Mask(self.keep, self.input_axis, sampled=not self.feedback)

    def norms(self, x: Tensor) -> Tensor:
        """Norms of the columns of an input [rows, inputs]."""
        return _column_norms(x)

    @property
    def effective(self) -> Tensor:
        """W ⊙ keep."""
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
        """Number of weights kept at this sparsity."""
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
        """Decide which weights to keep, from the norms of the input's columns [inputs].

        `sparsity` removes exactly that fraction of the weights of the layer; `threshold` is the authors' relative one,
        δ_w = threshold · ‖x‖_F / inputs, or with `absolute` the paper's δ_w itself. The largest entry is always kept. An input
        of zeros, or one that is not finite, does not change the mask.
        """
        if (sparsity is None) == (threshold is None):
            raise InputError("a layer is pruned by `sparsity` or by `threshold`; give one of them.")
        size = self.matrix.abs() * (norms if self.input_axis == 1 else norms[:, None])
        if monotone:  # smaller than every kept entry, zeros included
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
        """End pruning: removed weights become zero."""
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
    """The mask of a matrix of another module that multiplies from the right, x W: W [inputs, outputs]."""

    input_axis = 0

    def __init__(self, owner: nn.Module, name: str) -> None:
        super().__init__()
        self._of = (owner,)  # in a tuple, so that the owner is not registered as a submodule
        self._name = name
        self.begin_pruning()

    @property
    def matrix(self) -> Tensor:
        found: Tensor = getattr(self._of[0], self._name)
        return found


def _column_norms(x: Tensor) -> Tensor:
    """‖x[:,j]‖₂, [inputs]; of a tall dense matrix estimated from evenly spaced rows."""
    if x.layout == torch.sparse_csr:
        squares: Tensor = x.values().new_zeros(x.shape[1]).index_add(0, x.col_indices(), x.values().square())
        return squares.sqrt()
    if x.layout != torch.strided:
        raise InputError(f"weight pruning needs dense or CSR features, and these are {x.layout}; use x.to_sparse_csr().")
    rows = x.reshape(-1, x.shape[-1])
    some = rows[:: max(1, len(rows) // _ROWS)]
    norms: Tensor = some.norm(dim=0)
    return norms if len(some) == len(rows) else norms * math.sqrt(len(rows) / len(some))


def largest(size: Tensor, count: int) -> Tensor:
    """True at the `count` largest values; ties are resolved in favour of the first."""
    if count >= len(size):
        return torch.ones_like(size, dtype=torch.bool)
    border = size.kthvalue(len(size) - count).values
    keep = size > border
    tied = (size == border).nonzero().flatten()
    keep[tied[: count - int(keep.sum())]] = True
    return keep


_MAX_LISTED = 3  # parameters in the message


def unpruned_weights(model: nn.Module) -> str:
    """A message on the matrices of a sparsified model that have no mask; empty if there are none.

    Vectors, attention vectors of several heads and embeddings do not count as matrices.
    """
    masked = [module for module in model.modules() if isinstance(module, PrunedWeight)]
    pruned = {id(_parameter(module)) for module in masked}
    left = []
    for path, module in model.named_modules():
        for name, value in module.named_parameters(recurse=False):
            is_matrix = value.ndim > 1 and min(value.shape[-2:]) > 1
            if is_matrix and id(value) not in pruned and not name.startswith("att") and not isinstance(module, nn.Embedding):
                shape = " x ".join(map(str, value.shape))
                left.append(f"{path}.{name}".lstrip(".") + f" of {_kind(module)} ({shape})")
    if left:
        more = f" and {len(left) - _MAX_LISTED} more" if len(left) > _MAX_LISTED else ""
        return f"weights are pruned in linear layers and RGCNConv; not pruned: {', '.join(left[:_MAX_LISTED])}{more}"
    return "" if masked else f"{_kind(model)} has no weight matrix, so no weights are pruned"


def _parameter(weight: PrunedWeight) -> object:
    return getattr(weight._of[0], weight._name) if isinstance(weight, PrunedParameter) else weight.weight


def _kind(module: nn.Module) -> str:
    return getattr(module, "stands_for", type(module)).__name__
