"""Features times weights, dense or sparse."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from unifews.core.checks import check_sparse, scipy_of_torch

_MANY = 1 << 24  # multiply-adds of a dense product, below which a faster one is not worth calling
_known = WeakTensorKeyDictionary()
_checked = WeakTensorKeyDictionary()


def times(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, few: bool = False) -> Tensor:
    """x Wᵀ + b, [rows, outputs]. Shapes: x [rows, inputs], W [outputs, inputs], of which `few` may be other than zero.

    A sparse CSR x is multiplied as a graph is: a row receives from its columns, ``Σ_j x[i,j]·Wᵀ[j]``, so a kernel that
    propagates serves it, and its reverse the gradient of W, at a cost of nonzeros × outputs.
    """
    sparse, on_kernel = x.layout == torch.sparse_csr, x.dtype == weight.dtype == torch.float32 and x.device.type == "cpu"
    few = few and x.layout == torch.strided and x.ndim == 2 and len(x) * weight.numel() >= _MANY
    if not on_kernel or not (sparse or few):
        return torch.nn.functional.linear(x, weight, bias)
    from unifews.nn.ops import gather  # here: heads that never meet either start without torch's operator machinery

    if not sparse:
        return gather.few_weights(x, weight, bias)
    out = gather.sparse_rows(weight.t().contiguous(), *_parts(x))
    return out if bias is None else out + bias


def check_tensor(x: Tensor, name: str) -> None:
    """Refuse a sparse tensor with places outside its shape, which torch and kernels would read or write; once for a tensor."""
    if x.layout == torch.strided:
        return
    version = -1 if x.is_inference() else x._version
    if _checked.get(x) != version:  # type: ignore[no-untyped-call]
        check_sparse(scipy_of_torch(x.float() if x.dtype == torch.bfloat16 else x, name), name)
        _checked[x] = version


def _parts(x: Tensor) -> tuple[Tensor, ...]:
    """Values, first and last position of every row, columns; as the kernels take them, made once for a matrix."""
    found = _known.get(x)  # type: ignore[no-untyped-call]
    if found is None:
        check_tensor(x, "x")
        bounds, columns = x.crow_indices().long(), x.col_indices()
        columns = columns.int() if x.shape[1] < 2**31 else columns
        found = _known[x] = (x.values(), bounds[:-1].contiguous(), bounds[1:].contiguous(), columns.contiguous())
    parts: tuple[Tensor, ...] = found
    return parts
