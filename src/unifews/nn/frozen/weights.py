"""A weight matrix as a frozen model holds it: its nonzeros, and all of it only where that multiplies faster."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from unifews.kernels import LANES
from unifews.nn.adjacency import Adjacency
from unifews.nn.ops import gather

_DENSE = 0.3  # share of nonzeros from which a dense product is faster


class Weight:
    """W [outputs, inputs] of y = x Wᵀ + b, as compressed rows of its nonzeros."""

    def __init__(
        self, indptr: NDArray[np.int64], indices: NDArray[np.int32], values: NDArray[np.float32], shape: tuple[int, int]
    ) -> None:
        self.indptr, self.indices, self.values, self.shape = indptr, indices, values, shape
        self._parts: dict[bytes, Weight] = {}

    @classmethod
    def of(cls, matrix: Tensor) -> Weight:
        """The nonzeros of a dense matrix [outputs, inputs]."""
        packed = sparse.csr_array(matrix.detach().cpu().float().numpy())
        packed.sort_indices()
        outputs, inputs = packed.shape
        return cls(packed.indptr.astype(np.int64), packed.indices.astype(np.int32), packed.data, (int(outputs), int(inputs)))

    @property
    def kept(self) -> int:
        return len(self.values)

    @property
    def density(self) -> float:
        return self.kept / max(self.shape[0] * self.shape[1], 1)

    @cached_property
    def dense(self) -> Tensor:
        matrix = np.zeros(self.shape, np.float32)
        matrix[np.repeat(np.arange(self.shape[0]), np.diff(self.indptr)), self.indices] = self.values
        return torch.from_numpy(matrix)

    def rows(self, chosen: NDArray[np.int64]) -> Weight:
        """Some of its outputs; made once."""
        key = chosen.tobytes()
        if key not in self._parts:
            self._parts[key] = self._rows(chosen)
        return self._parts[key]

    def _rows(self, chosen: NDArray[np.int64]) -> Weight:
        count = np.diff(self.indptr)[chosen]
        indptr = np.concatenate([[0], count.cumsum()]).astype(np.int64)
        at = np.repeat(self.indptr[chosen] - indptr[:-1], count) + np.arange(indptr[-1])
        return Weight(indptr, self.indices[at], self.values[at], (len(chosen), self.shape[1]))

    def scaled(self, outputs: Tensor | None = None, inputs: Tensor | None = None) -> Weight:
        """diag(outputs) W diag(inputs)."""
        values = self.values.astype(np.float64)
        if outputs is not None:
            values = values * np.repeat(outputs.double().numpy(), np.diff(self.indptr))
        if inputs is not None:
            values = values * inputs.double().numpy()[self.indices]
        return Weight(self.indptr, self.indices, values.astype(np.float32), self.shape)

    def times(self, x: Tensor, bias: Tensor | None, *, relu: bool, threads: int) -> Tensor:
        """x Wᵀ + b, perhaps without what is negative; x [rows, inputs] dense or sparse CSR."""
        if x.layout == torch.sparse_csr:
            return _finished(self._of_sparse(x), bias, relu)
        if self._is_worth_packing(len(x)):
            return torch.from_numpy(_sparse_linear(x, self, bias, relu, threads))
        out = torch.nn.functional.linear(x, self.dense, bias)
        return out.relu_() if relu else out

    def _is_worth_packing(self, rows: int) -> bool:
        return self.density < _DENSE

    @cached_property
    def _table(self) -> Tensor:
        """Wᵀ, for rows of which only some columns are there."""
        blocks = max(1, -(-self.shape[0] // LANES))
        table = torch.zeros(self.shape[1], blocks * LANES)
        table[:, : self.shape[0]] = self.dense.T
        return table

    def _of_sparse(self, x: Tensor) -> Tensor:
        """Row u is a sum of rows of Wᵀ, by the values of x[u]: the product that neighbours are summed by."""
        bounds, none = x.crow_indices().long(), torch.zeros(0, dtype=torch.int64)
        of = Adjacency(bounds[:-1].contiguous(), bounds[1:].contiguous(), x.col_indices().int().contiguous(), *[none] * 6)
        return gather(self._table, of, x.values().float())[:, : self.shape[0]]


def _finished(out: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    out = out if bias is None else out + bias
    return out.relu() if relu else out


def _sparse_linear(x: Tensor, weight: Weight, bias: Tensor | None, relu: bool, threads: int) -> NDArray[Any]:
    matrix = sparse.csr_array((weight.values, weight.indices, weight.indptr), shape=weight.shape)
    out = np.ascontiguousarray((matrix @ x.numpy().T).T)
    if bias is not None:
        out += bias.numpy()
    return np.maximum(out, 0, out=out) if relu else out
