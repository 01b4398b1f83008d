"""One face for every feature matrix: dense or sparse, numpy, torch or memory-mapped; read in pieces, never densified whole."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.checks import as_array, check_sparse, scipy_of_torch
from unifews.errors import InputError, ShapeError
from unifews.kernels import LANES, aligned, native
from unifews.propagation.tiles import cut, full_hop

Floats = NDArray[np.float32]
_CHUNK_BYTES = 8 << 20
_LARGEST = float(np.finfo(np.float32).max)


class FeatureMatrix:
    """A checked feature matrix [n, f]."""

    def __init__(self, x: Any, num_nodes: int, threads: int = 1) -> None:
        self.is_torch = hasattr(x, "detach")
        self.device = x.device if self.is_torch else None
        if self.is_torch:
            x = _torch_to_plain(x)
        self.sparse: Any = None
        if hasattr(x, "tocsr"):
            self.sparse = check_sparse(x, "x")
            self.dense = None
        else:
            self.dense = as_array(x)
        matrix: Any = self.sparse if self.sparse is not None else self.dense
        _check(matrix, num_nodes)
        self.n, self.f = (int(side) for side in matrix.shape)
        peak = _peak(self.sparse.data if self.sparse is not None else matrix, self.sparse, threads)
        self._slab: tuple[tuple[int, int], Floats] = (-1, -1), np.empty((0, 0), dtype=np.float32)
        self.exponent = 0
        """The caller's values are the ones given out here times 2^exponent."""
        if exponent_of(peak):  # dense values are scaled when they are read: they may be larger than memory
            self.exponent = exponent_of(peak)
            if self.sparse is not None:
                self.sparse = self.sparse.copy()
                self.sparse.data = self._scaled(self.sparse.data)

    def chunks(self, columns: int | None = None) -> list[tuple[int, int]]:
        """Row ranges of a few megabytes each."""
        rows = max(1, _CHUNK_BYTES // (4 * (columns or self.f)))
        return [(at, min(self.n, at + rows)) for at in range(0, self.n, rows)]

    def rows(self, first: int, last: int) -> Floats:
        """Rows first..last as a dense float32 array, without a copy where they already are one."""
        if self.sparse is not None:
            return np.asarray(self.sparse[first:last].toarray(), dtype=np.float32)
        return self._scaled(self.dense[first:last])  # type: ignore[index]

    def some(self, rows: NDArray[Any]) -> Floats:
        """Some rows as a dense float32 array."""
        if self.sparse is not None:
            return np.asarray(self.sparse[rows].toarray(), dtype=np.float32)
        return self._scaled(self.dense[rows])  # type: ignore[index]

    def columns(self, first: int, last: int, threads: int = 1) -> Floats:
        """Columns first..last as a dense float32 array."""
        if self.sparse is not None:
            if last - first < LANES:  # looking for them in every row would take longer
                return np.asarray(self._by_column[:, first:last].toarray(order="C"), dtype=np.float32)
            if self._slab[0] != (first, last):  # a tile may be read again, in another format
                self._slab = (first, last), aligned(self.n, last - first)
                x, data = self.sparse, np.ascontiguousarray(self.sparse.data, dtype=np.float32)
                native.dense_columns(
                    indptr=x.indptr, indices=x.indices, values=data, first=first, out=self._slab[1], threads=threads
                )
            return self._slab[1]
        return self._scaled(self.dense[:, first:last])  # type: ignore[index]

    def _scaled(self, part: NDArray[Any]) -> Floats:
        if self.exponent:
            part = np.ldexp(part, -self.exponent)  # 2^-exponent itself may be beyond float32
        return np.ascontiguousarray(part, dtype=np.float32)

    @property
    def _by_column(self) -> Any:
        if not hasattr(self, "_csc"):
            self._csc = self.sparse.tocsc()
        return self._csc

    @property
    def nnz(self) -> int:
        return int(self.sparse.nnz) if self.sparse is not None else self.n * self.f

    def times(self, v: Floats, threads: int) -> Floats:
        """X · v for a dense [f, k]; float32 [n, k]."""
        if self.sparse is not None:
            return sparse_times(self.sparse, v, threads)
        out = np.empty((self.n, v.shape[1]), dtype=np.float32)
        self.times_into(v, out, threads)
        return out

    def times_into(self, v: Floats, out: Floats, threads: int) -> None:
        """X · v into `out`; with sparse X, v and out must be tiles (aligned, whole blocks wide, at most 8 blocks)."""
        if self.sparse is not None:
            _tile_product(self.sparse, v, out, threads)
        elif self.dense is not None and self.dense.dtype == np.float32 and self.dense.flags.c_contiguous and not self.exponent:
            np.matmul(self.dense, v, out=out)
        else:
            for first, last in self.chunks():
                np.matmul(self.rows(first, last), v, out=out[first:last])

    def transposed_times(self, y: Floats, threads: int) -> Floats:
        """Xᵀ · y for a dense [n, k]; float32 [f, k]."""
        if self.sparse is not None:
            return sparse_times(self._by_column.T, y, threads)
        out = np.zeros((y.shape[1], self.f), dtype=np.float32)
        for first, last in self.chunks():
            out += y[first:last].T @ self.rows(first, last)
        return np.ascontiguousarray(out.T)

    def add_scaled(self, factor: Floats, to: Floats) -> None:
        """to += factor ∘ X, row by row; `to` is float32 [n, f], factor [n]."""
        for first, last in self.chunks():
            if self.sparse is not None:
                part = self.sparse[first:last]
                row = np.repeat(np.arange(first, last), np.diff(part.indptr))
                to[row, part.indices] += factor[row] * part.data.astype(np.float32)
            else:
                to[first:last] += factor[first:last, None] * self.rows(first, last)

    def column_squares(self) -> NDArray[np.float64]:
        """‖X[:, j]‖² of each column, float64 [f]."""
        if self.sparse is not None:
            return np.asarray(np.bincount(self.sparse.indices, np.square(self.sparse.data, dtype=np.float64), self.f), float)
        total = np.zeros(self.f)
        for first, last in self.chunks():
            total += np.square(self.rows(first, last)).sum(axis=0, dtype=np.float64)
        return total

    def row_squares(self) -> NDArray[np.float64]:
        """‖X[u]‖² of each row, float64 [n]."""
        if self.sparse is not None:
            rows = np.repeat(np.arange(self.n), np.diff(self.sparse.indptr))
            return np.asarray(np.bincount(rows, np.square(self.sparse.data, dtype=np.float64), self.n), float)
        total = np.empty(self.n)
        for first, last in self.chunks():
            part = self.rows(first, last)
            total[first:last] = np.einsum("ij,ij->i", part, part, dtype=np.float64)
        return total

    def square_norm(self) -> float:
        """‖X‖_F²."""
        if self.sparse is not None:
            return float(np.square(self.sparse.data, dtype=np.float64).sum())
        total = 0.0
        for first, last in self.chunks():
            flat = self.rows(first, last).ravel()
            total += float(np.dot(flat, flat))
        return total


def exponent_of(peak: float) -> int:
    """Values whose squares leave float32 are moved to around 1, exactly: by this power of two."""
    return math.frexp(peak)[1] if peak and not 2.0**-40 < peak < 2.0**40 else 0


def sparse_times(matrix: Any, v: Floats, threads: int) -> Floats:
    """A scipy CSR matrix times a dense one, by the unpruned hop kernel (scipy's own product runs on one thread)."""
    rows, k = matrix.shape[0], v.shape[1]
    result = np.empty((rows, k), dtype=np.float32)
    for tile in cut(k):
        q = aligned(v.shape[0], tile.blocks * LANES, zero=True)
        q[:, : tile.width] = v[:, tile.column : tile.column + tile.width]
        out = aligned(rows, tile.blocks * LANES)
        _tile_product(matrix, q, out, threads)
        result[:, tile.column : tile.column + tile.width] = out[:, : tile.width]
    return result


def _tile_product(matrix: Any, q: Floats, out: Floats, threads: int) -> None:
    """out = matrix · q, where q and out are tiles."""
    data = None if np.all(matrix.data == 1) else np.ascontiguousarray(matrix.data, dtype=np.float32)
    indptr = matrix.indptr.astype(np.int64)
    edges = {"start": indptr[:-1], "end": indptr[1:], "indices": matrix.indices, "weight": data}
    full_hop(edges, q, out, threads)


def _torch_to_plain(x: Any) -> Any:
    """A torch tensor as numpy, or as scipy CSR if it is sparse."""
    x = x.detach().cpu()
    if str(x.layout) == "torch.strided":
        return x.float().numpy() if str(x.dtype) == "torch.bfloat16" else x.numpy()
    return scipy_of_torch(x.float() if str(x.dtype) == "torch.bfloat16" else x, "x")


def _check(matrix: Any, num_nodes: int) -> None:
    if matrix.ndim != 2:
        raise ShapeError(f"`x` has shape {list(matrix.shape)}; it must be [nodes, features]. For one feature write x[:, None].")
    if matrix.dtype.kind not in "fiub":
        raise InputError(f"`x` holds {matrix.dtype} values; features must be real numbers.")
    if matrix.shape[0] != num_nodes:
        hint = " Did you pass the transposed matrix?" if matrix.shape[1] == num_nodes else ""
        raise ShapeError(
            f"`x` has {matrix.shape[0]:,} rows but the graph has {num_nodes:,} nodes; row i of `x` holds the features of "
            f"node i, so the two must match.{hint}"
        )
    if matrix.shape[1] == 0:
        raise ShapeError("`x` has no columns; there is nothing to propagate.")


def _peak(values: NDArray[Any], sparse: Any, threads: int) -> float:
    """The largest magnitude. NaN and infinity spread over the whole graph in a few hops, so they are refused here."""
    if values.size == 0:
        return 0.0
    if values.dtype == np.float32 and values.flags.c_contiguous:
        found = float(native.largest_magnitude(x=values, threads=threads))
        if found <= _LARGEST:  # and not NaN
            return found
    rows = max(1, _CHUNK_BYTES // max(1, values.itemsize * (values.shape[1] if values.ndim == 2 else 1)))
    peak, bad, first = 0.0, 0, -1
    for at in range(0, len(values), rows):
        piece = values[at : at + rows]
        highest = max(float(piece.max()), -float(piece.min()))  # NaN wins both
        if highest <= _LARGEST:
            peak = max(peak, highest)
            continue
        broken = ~(np.abs(piece) <= _LARGEST)
        if first < 0:
            where = int(np.flatnonzero(broken)[0])
            first = at + (where // piece.shape[1] if piece.ndim == 2 else where)
        bad += int(broken.sum())
    if bad:
        row = int(np.searchsorted(sparse.indptr, first, side="right") - 1) if sparse is not None else first
        raise InputError(
            f"`x` has {bad:,} NaN or infinite value{'s' if bad > 1 else ''}, the first in row {row} (float32 ends at 3.4e38); "
            "they would spread over the graph. Replace them first, for example with np.nan_to_num(x)."
        )
    return peak
