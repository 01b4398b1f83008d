"""Products of features and weights, dense or sparse."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from unifews.core.checks import check_sparse, scipy_of_torch

_MIN_PRODUCT = 1 << 24  # multiply-adds of a dense product below which the sparse one is not worthwhile
_known = WeakTensorKeyDictionary()
_checked = WeakTensorKeyDictionary()


class Mask(NamedTuple):
    """Which weights of a matrix are kept, and which of them get a gradient."""

    keep: Tensor
    input_axis: int
    """The axis of `keep` that corresponds to the columns of the input."""
    sampled: bool
    """Whether only kept weights get a gradient; otherwise all do."""


def times(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, sparse_weight: bool = False, mask: Mask | None = None
) -> Tensor:
    """x Wᵀ + b, [rows, outputs]. Shapes: x [rows, inputs], W [outputs, inputs], with many zeros if `sparse_weight`.

    `mask`: where these are, if it is known; it is not needed for the result.

    A sparse CSR x is multiplied like a graph: row i sums over its columns, ``Σ_j x[i,j]·Wᵀ[j]``, with the same kernel as a
    sum over neighbours, and the transposed one for the gradient of W, at a cost of nonzeros × outputs.
    """
    sparse, on_kernel = x.layout == torch.sparse_csr, x.dtype == weight.dtype == torch.float32 and x.device.type == "cpu"
    sparse_weight = sparse_weight and x.layout == torch.strided and x.ndim == 2 and len(x) * weight.numel() >= _MIN_PRODUCT
    if not on_kernel or not (sparse or sparse_weight):
        return torch.nn.functional.linear(x, weight, bias)
    from unifews.nn.ops import gather, sparse_weights  # imported here: dense heads do not need torch's operator machinery

    if not sparse:
        if mask is None or torch.compiler.is_compiling():  # patterns are cached outside of the compiled graph
            return sparse_weights.sparse_linear(x, weight, bias)
        pattern = sparse_weights.Pattern.of(mask.keep, mask.input_axis)
        return sparse_weights.sparse_linear(x, weight, bias, pattern, sampled=mask.sampled)
    out = gather.sparse_rows(weight.t().contiguous(), *_parts(x))
    return out if bias is None else out + bias


def check_tensor(x: Tensor, name: str) -> None:
    """Reject a sparse tensor with indices out of range, which torch and the kernels do not check; once per tensor."""
    if x.layout == torch.strided:
        return
    version = -1 if x.is_inference() else x._version
    if _checked.get(x) != version:  # type: ignore[no-untyped-call]
        check_sparse(scipy_of_torch(x.float() if x.dtype == torch.bfloat16 else x, name), name)
        _checked[x] = version


def _parts(x: Tensor) -> tuple[Tensor, ...]:
    """Values, row starts, row ends and columns of a CSR matrix, as the kernels need them; cached."""
    found = _known.get(x)  # type: ignore[no-untyped-call]
    if found is None:
        check_tensor(x, "x")
        bounds, columns = x.crow_indices().long(), x.col_indices()
        columns = columns.int() if x.shape[1] < 2**31 else columns
        found = _known[x] = (x.values(), bounds[:-1].contiguous(), bounds[1:].contiguous(), columns.contiguous())
    parts: tuple[Tensor, ...] = found
    return parts
