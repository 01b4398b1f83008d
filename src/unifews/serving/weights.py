"""A weight matrix as a frozen model holds it: its nonzeros, and all of it only where that multiplies faster."""

from __future__ import annotations

import warnings
from functools import cache, cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unifews.kernels import LANES, aligned, native
from unifews.kernels.packed_weight import PackedWeight, worth
from unifews.nn.adjacency import Adjacency
from unifews.serving.sums import gather

_ROWS = 1 << 16  # for which packed and dense products are compared


class Weight:
    """W [outputs, inputs] of y = x Wᵀ + b."""

    def __init__(self, packed: PackedWeight) -> None:
        self.packed = packed
        self._parts: dict[bytes, Weight] = {}

    @classmethod
    def of(cls, matrix: Tensor) -> Weight:
        """The nonzeros of a dense matrix [outputs, inputs]."""
        return cls(PackedWeight.pack(matrix.detach().cpu().float().numpy()))

    @classmethod
    def made(
        cls, indptr: NDArray[np.int64], indices: NDArray[np.int32], values: NDArray[np.float32], shape: tuple[int, int]
    ) -> Weight:
        """From compressed rows."""
        return cls(PackedWeight(indptr, indices, values, shape))

    @property
    def shape(self) -> tuple[int, int]:
        return self.packed.shape

    @property
    def kept(self) -> int:
        return len(self.packed.values)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Weights of every output."""
        return np.diff(self.packed.indptr)

    @cached_property
    def dense(self) -> Tensor:
        return torch.from_numpy(self.packed.dense())

    def rows(self, chosen: NDArray[np.int64], outputs: int | None = None) -> Weight:
        """Some of its outputs, and as many without weights as make up `outputs`; made once."""
        outputs = len(chosen) if outputs is None else outputs
        key = chosen.tobytes() + bytes(outputs - len(chosen))
        if key not in self._parts:
            self._parts[key] = self._rows(chosen, outputs)
        return self._parts[key]

    def _rows(self, chosen: NDArray[np.int64], outputs: int) -> Weight:
        count = self.counts[chosen]
        indptr = np.concatenate([[0], count.cumsum()]).astype(np.int64)
        at = np.repeat(self.packed.indptr[chosen] - indptr[:-1], count) + np.arange(indptr[-1])
        indptr = np.pad(indptr, (0, outputs - len(chosen)), mode="edge")
        return Weight.made(indptr, self.packed.indices[at], self.packed.values[at], (outputs, self.shape[1]))

    def scaled(self, outputs: Tensor | None = None, inputs: Tensor | None = None) -> Weight:
        """diag(outputs) W diag(inputs)."""
        values = self.packed.values.astype(np.float64)
        if outputs is not None:
            values = values * np.repeat(outputs.double().numpy(), self.counts)
        if inputs is not None:
            values = values * inputs.double().numpy()[self.packed.indices]
        return Weight.made(self.packed.indptr, self.packed.indices, values.astype(np.float32), self.shape)

    def times(self, x: Tensor, bias: Tensor | None, *, relu: bool, threads: int, out: Tensor | None = None) -> Tensor:
        """x Wᵀ + b, perhaps without what is negative; x [rows, inputs] dense or sparse CSR. `out`: room that may be used."""
        if x.layout == torch.sparse_csr:
            return _finished(self._of_sparse(x), bias, relu)
        if self.multiplies_packed:
            out = torch.from_numpy(aligned(len(x), self.shape[0])) if out is None else out
            native.sparse_linear(
                x.contiguous().numpy(),
                self.packed.indptr,
                self.packed.indices,
                self.packed.values,
                None if bias is None else bias.numpy(),
                out.numpy(),
                relu,
                threads,
            )
            return out
        if bias is None:
            product = torch.mm(x, self.dense.T, out=out) if out is not None else torch.mm(x, self.dense.T)
        else:
            product = torch.addmm(bias, x, self.dense.T, out=out) if out is not None else torch.addmm(bias, x, self.dense.T)
        return product.relu_() if relu else product

    @cached_property
    def multiplies_packed(self) -> bool:
        """Whether the nonzeros are the faster way; the same for few rows as for many, so that only one form is ever held."""
        return worth(_ROWS, self.shape[1], self.shape[0], self.packed.density)

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


def sparse_rows(bounds: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A sparse matrix of compressed rows."""
    _beta_warning_given()
    return torch.sparse_csr_tensor(bounds.long(), columns.long(), values.float(), shape, check_invariants=False)


@cache
def _beta_warning_given() -> None:
    """Torch warns of its beta feature at the first such matrix of a process: here once, unseen.

    Warning filters belong to the whole process, so they are not changed at every call, beside other threads.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse (CSR|invariant)")
        torch.zeros(1, 1).to_sparse_csr()
