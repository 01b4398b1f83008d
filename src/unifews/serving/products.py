"""Products of a frozen model by the kernels: packed weight matrices and sums over neighbours; no gradients.

The operators of `unifews.nn.ops.gather` compute the same sums with gradients, for torch.compile and flop counters; their first
call imports torch's compiler, which takes longer than a thousand predictions.
"""

from __future__ import annotations

import warnings
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unifews.kernels import LANES, aligned, native
from unifews.kernels.packed_weight import PackedWeight, worth
from unifews.nn.edges import Adjacency, LayerEdges
from unifews.nn.ops import call_kernel

_ROWS = 1 << 16  # number of rows for which packed and dense products are compared


class Weight:
    """W [outputs, inputs] of y = x Wᵀ + b: its nonzeros, and a dense copy only where that multiplies faster."""

    def __init__(self, packed: PackedWeight) -> None:
        self.packed = packed
        self._parts: dict[bytes, Weight] = {}

    @classmethod
    def of(cls, matrix: Tensor) -> Weight:
        """The nonzeros of a dense matrix [outputs, inputs]."""
        return cls(PackedWeight.pack(matrix.detach().cpu().float().numpy()))

    @property
    def shape(self) -> tuple[int, int]:
        return self.packed.shape

    @property
    def kept(self) -> int:
        return len(self.packed.values)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of weights of every output."""
        return np.diff(self.packed.indptr)

    @cached_property
    def dense(self) -> Tensor:
        return torch.from_numpy(self.packed.dense())

    def rows(self, chosen: NDArray[np.int64], outputs: int | None = None) -> Weight:
        """Some of its outputs, padded with empty ones to `outputs`; cached."""
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
        return Weight(PackedWeight(indptr, self.packed.indices[at], self.packed.values[at], (outputs, self.shape[1])))

    def scaled(self, outputs: Tensor | None = None, inputs: Tensor | None = None) -> Weight:
        """diag(outputs) W diag(inputs)."""
        values = self.packed.values.astype(np.float64)
        if outputs is not None:
            values = values * np.repeat(outputs.double().numpy(), self.counts)
        if inputs is not None:
            values = values * inputs.double().numpy()[self.packed.indices]
        return Weight(PackedWeight(self.packed.indptr, self.packed.indices, values.astype(np.float32), self.shape))

    def times(self, x: Tensor, bias: Tensor | None, *, relu: bool, out: Tensor | None = None) -> Tensor:
        """x Wᵀ + b, then ReLU if `relu`; x [rows, inputs] dense or sparse CSR. `out`: a buffer that may be used."""
        if x.layout == torch.sparse_csr:
            return bias_and_relu(self._of_sparse(x), bias, relu)
        if self.multiplies_packed:
            out = torch.from_numpy(aligned(len(x), self.shape[0])) if out is None else out
            packed = dict(indptr=self.packed.indptr, indices=self.packed.indices, values=self.packed.values)
            call_kernel(native.sparse_linear, dict(out=out), x=x, **packed, bias=bias, relu=relu)
            return out
        w = self.dense.T
        product = torch.mm(x, w, out=out) if bias is None else torch.addmm(bias, x, w, out=out)
        return product.relu_() if relu else product

    @cached_property
    def multiplies_packed(self) -> bool:
        """Whether the packed product is faster; independent of the number of rows, so that only one form is ever in memory."""
        return worth(_ROWS, self.shape[1], self.shape[0], self.packed.density)

    @cached_property
    def _table(self) -> Tensor:
        """Wᵀ in whole blocks, for sparse rows."""
        blocks = max(1, -(-self.shape[0] // LANES))
        table = torch.zeros(self.shape[1], blocks * LANES)
        table[:, : self.shape[0]] = self.dense.T
        return table

    def _of_sparse(self, x: Tensor) -> Tensor:
        """Row u is a weighted sum of rows of Wᵀ with the values of x[u]: the same product as a sum over neighbours."""
        bounds = x.crow_indices().long()
        of = forward_adjacency(bounds[:-1].contiguous(), bounds[1:].contiguous(), x.col_indices().int().contiguous())
        return gather(self._table, of, x.values().float())[:, : self.shape[0]]


def bias_and_relu(out: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    out = out if bias is None else out + bias
    return out.relu() if relu else out


def sparse_rows(bounds: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A sparse matrix of compressed rows."""
    _trigger_beta_warning()
    return torch.sparse_csr_tensor(bounds.long(), columns.long(), values.float(), shape, check_invariants=False)


@cache
def _trigger_beta_warning() -> None:
    """Create the first CSR tensor of the process with torch's beta warning suppressed.

    Warning filters are global, so they are not changed at every call, which would affect other threads.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse (CSR|invariant)")
        torch.zeros(1, 1).to_sparse_csr()


# -------------------------------------------------------------------------------------------------- sums over neighbours


def forward_adjacency(start: Tensor, end: Tensor, indices: Tensor) -> Adjacency:
    """An adjacency without the reversed lists, which only gradients need."""
    return Adjacency(start, end, indices, *[torch.zeros(0, dtype=torch.int64)] * 6)


_SLACK = 8  # floats past the end of an array of magnitudes that a vector load may read


def in_blocks(x: Tensor) -> Tensor:
    """x padded to whole blocks and aligned to cache lines, as the kernels need it; x itself if it already is."""
    blocks = max(1, -(-x.shape[1] // LANES))
    if x.shape[1] == blocks * LANES and x.data_ptr() % 64 == 0 and x.is_contiguous():
        return x
    table = torch.zeros(len(x), blocks * LANES)
    table[:, : x.shape[1]] = x
    return table


def gather(x: Tensor, adjacency: Adjacency, weight: Tensor | None) -> Tensor:
    """Σ_e w_e · x[v] into every receiver, [receivers, f]."""
    table = in_blocks(x)
    out, blocks = torch.empty(adjacency.num_nodes, table.shape[1]), table.shape[1] // LANES
    call_kernel(native.gather, dict(out=out), **_lists(adjacency), weight=weight, blocks=blocks, gain=None, x=table)
    return out[:, : x.shape[1]]


def gather_at_least(x: Tensor, adjacency: Adjacency, weight: Tensor | None, delta: float) -> Tensor:
    """The same over the entries (e, block of columns) with |w_e| · ‖x[v, block]‖ ≥ δ."""
    table = in_blocks(x)
    n, blocks = len(table), table.shape[1] // LANES
    size = torch.empty(n * blocks + _SLACK)[: n * blocks].view(n, blocks)
    call_kernel(native.block_sizes, dict(size=size), x=table, blocks=blocks)
    out = torch.empty(adjacency.num_nodes, table.shape[1])
    cut = torch.full((adjacency.num_nodes,), delta, dtype=torch.float32)
    tables = dict(blocks=blocks, gain=None, x=table, size=size, cut=cut, by_sender=False)
    call_kernel(native.gather_kept, dict(out=out), **_lists(adjacency), weight=weight, **tables)
    return out[:, : x.shape[1]]


class SentColumns(NamedTuple):
    """The columns that are sent, padded to whole blocks."""

    table: Tensor
    columns: NDArray[np.int64] | None
    """Their numbers; None = all."""
    blocks: int

    @classmethod
    def of(cls, y: Tensor, columns: Tensor | None) -> SentColumns:
        """From a contiguous y."""
        chosen = None if columns is None or len(columns) == y.shape[1] else columns.numpy()
        blocks = max(1, -(-(y.shape[1] if chosen is None else len(chosen)) // LANES))
        if chosen is None and y.shape[1] == blocks * LANES and not y.data_ptr() % 64:
            return cls(y, None, blocks)
        table = torch.empty(len(y), blocks * LANES)
        call_kernel(native.pick_columns, dict(table=table), y=y, columns=chosen, blocks=blocks)
        return cls(table, chosen, blocks)

    def diffuse(self, edges: LayerEdges, here: slice, y: Tensor, out: Tensor, rest: Tensor | None = None) -> None:
        """out = loop · y + the sum over neighbours, for the receivers `here`, whose own rows are y; with `rest`,
        rest · y in the columns that are not sent."""
        loop = edges.loop
        tables = dict(
            blocks=self.blocks,
            columns=self.columns,
            table=self.table,
            y=y,
            loop=None if loop is None else loop[here],
            rest=None if rest is None or self.columns is None else rest[here],
        )
        call_kernel(native.diffuse, dict(out=out), **_lists(edges.adjacency, here), weight=edges.weight, **tables)


def diffuse(y: Tensor, edges: LayerEdges, columns: Tensor | None, rest: Tensor | None = None) -> Tensor:
    """T y of the receivers in new memory, with the sum over neighbours in these columns only; in the others rest · y."""
    receivers, y = edges.adjacency.num_nodes, y.contiguous()
    if columns is not None and not len(columns):
        own = edges.loop if rest is None else rest
        return torch.zeros(receivers, y.shape[1]) if own is None else own[:, None] * y[:receivers]
    out = torch.empty(receivers, y.shape[1])
    SentColumns.of(y, columns).diffuse(edges, slice(None), y[:receivers], out, rest)
    return out


def _lists(adjacency: Adjacency, here: slice = slice(None)) -> dict[str, Tensor]:
    return {"start": adjacency.start[here], "end": adjacency.end[here], "indices": adjacency.indices}
