"""The kernels of layers in plain NumPy: messages, sparse weights, elementwise functions. Arrays as in native/kernels.h,
weights.h and pointwise.h."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.kernels.reference_hops import LANES, Floats, Longs, edges_into, in_blocks

Doubles = NDArray[np.float64]

# ------------------------------------------------------------------------------------------------------------ messages


def gather(
    start: Longs,
    end: Longs,
    indices: NDArray[Any],
    weight: Floats | None,
    blocks: int,
    gain: Floats | None,
    x: Floats,
    out: Floats,
    threads: int = 1,
) -> None:
    """out[u] = gain[u] · Σ_e w_e · x[v] over the edges e = (v → u); x and out float32 [n, 16·blocks]."""
    for u in range(len(start)):
        total = np.zeros(x.shape[1], dtype=np.float32)
        for v, w, _ in edges_into(u, start, end, indices, weight):
            total += w * x[v]
        out[u] = total * (np.float32(1) if gain is None else gain[u])


def scatter(
    start: Longs,
    end: Longs,
    indices: NDArray[Any],
    weight: Floats | None,
    blocks: int,
    x: Floats,
    out: Floats,
    threads: int = 1,
) -> None:
    """out[v] = Σ_e w_e · x[u] over the edges e = (v → u): `gather` along reversed edges, whose lists are not needed."""
    out[:] = 0
    for u in range(len(start)):
        for v, w, _ in edges_into(u, start, end, indices, weight):
            out[v] += w * x[u]


def gather_kept(
    start: Longs,
    end: Longs,
    indices: NDArray[Any],
    weight: Floats | None,
    blocks: int,
    gain: Floats | None,
    x: Floats,
    size: Floats,
    cut: Floats,
    by_sender: bool,
    out: Floats,
    threads: int = 1,
) -> int:
    """`gather` over the entries (e, block b) with |w_e| · size[sender, b] ≥ cut[receiver]; how many those are.

    Rows are receivers, or senders with `by_sender` (the backward product, over reversed edges).
    """
    kept = 0
    tiles, result = in_blocks(x, blocks), in_blocks(out, blocks)
    for u in range(len(start)):
        total = np.zeros((blocks, LANES), dtype=np.float32)
        for v, w, _ in edges_into(u, start, end, indices, weight):
            sender, receiver = (u, v) if by_sender else (v, u)
            keep = np.abs(w) * size[sender, :blocks] >= cut[receiver]
            total[keep] += w * tiles[v][keep]
            kept += int(keep.sum())
        result[u] = total * (np.float32(1) if gain is None else gain[u])
    return kept


def diffuse(
    start: Longs,
    end: Longs,
    indices: NDArray[Any],
    weight: Floats | None,
    blocks: int,
    columns: Longs | None,
    table: Floats,
    y: Floats,
    loop: Floats | None,
    rest: Floats | None,
    out: Floats,
    threads: int = 1,
) -> None:
    """out[u] = loop[u] · y[u], and in `columns` (None: all) also Σ_e w_e · table[v]; table [n, blocks · 16].

    With `rest`, out[u] = rest[u] · y[u] in the other columns.
    """
    width = y.shape[1]
    where = np.arange(width) if columns is None else columns
    for u in range(len(start)):
        total = np.zeros(table.shape[1], dtype=np.float32)
        for v, w, _ in edges_into(u, start, end, indices, weight):
            total += w * table[v]
        own = 0 if loop is None else loop[u] * y[u]
        out[u] = own if rest is None else rest[u] * y[u]
        out[u, where] = (own + np.zeros(width))[where] + total[: len(where)]


def pick_columns(y: Floats, columns: Longs | None, blocks: int, table: Floats, threads: int = 1) -> None:
    """table[u, k] = y[u, columns[k]] (None: all), padded with zeros."""
    picked = y if columns is None else y[:, columns]
    table[:] = 0
    table[:, : picked.shape[1]] = picked


def block_sizes(x: Floats, blocks: int, size: Floats, threads: int = 1) -> None:
    """size[u, b] = ‖x[u, 16b : 16b + 16]‖₂."""
    size[:] = np.sqrt((in_blocks(x, blocks) ** 2).sum(axis=2))


def edge_dots(
    start: Longs, end: Longs, indices: NDArray[Any], blocks: int, x: Floats, y: Floats, out: Floats, threads: int = 1
) -> None:
    """out[e] = ⟨x[v], y[u]⟩ for the edges e = (v → u): the gradient of an edge's weight."""
    for u in range(len(start)):
        for v, _, i in edges_into(u, start, end, indices, None):
            out[i] = x[v] @ y[u]


# --------------------------------------------------------------------------------------------------------- sparse weights


def sparse_linear(
    x: Floats,
    indptr: Longs,
    indices: NDArray[np.int32],
    values: Floats,
    bias: Floats | None,
    out: Floats,
    relu: bool,
    threads: int = 1,
) -> None:
    """out[u, j] = bias[j] + Σ_k values[k] · x[u, indices[k]] over indptr[j] ≤ k < indptr[j + 1], or the relu of it."""
    for j in range(len(indptr) - 1):
        total = np.full(len(x), 0 if bias is None else bias[j], dtype=np.float32)
        for k in range(int(indptr[j]), int(indptr[j + 1])):
            total += values[k] * x[:, indices[k]]
        out[:, j] = np.maximum(total, np.float32(0)) if relu else total


def weight_gradient(x: Floats, g: Floats, indptr: Longs, indices: NDArray[np.int32], out: Floats, threads: int = 1) -> None:
    """out[k] = Σ_u g[u, i] · x[u, indices[k]] over indptr[i] ≤ k < indptr[i + 1]: the gradient of the weights listed."""
    for i in range(len(indptr) - 1):
        for k in range(int(indptr[i]), int(indptr[i + 1])):
            out[k] = g[:, i].astype(np.float64) @ x[:, indices[k]].astype(np.float64)


# -------------------------------------------------------------------------------------------------------------- pointwise


def dropout(x: Floats, seed: int, level: int, scale: float, out: Floats, threads: int = 1) -> None:
    """out[i] = scale · x[i] where mixed(mixed(i ⊕ seed) ⊕ seed >> 32) ≥ level, else 0; i counts all values, row by row."""
    at = np.arange(x.size, dtype=np.uint64)
    high = _mixed((at >> np.uint64(32)).astype(np.uint32)) ^ np.uint32(seed >> 32)
    drawn = _mixed(_mixed(at.astype(np.uint32) ^ np.uint32(seed & 0xFFFFFFFF)) ^ high)
    out[...] = np.where(drawn.reshape(x.shape) >= np.uint32(level), np.float32(scale) * x, np.float32(0))


def relu(x: Floats, out: Floats, bits: NDArray[np.uint16], threads: int = 1) -> None:
    """out[i] = max(x[i], 0), NaN where x[i] is; bit i % 16 of bits[i // 16]: x[i] > 0 or NaN."""
    active = ~(x.ravel() <= 0)
    out[...] = np.where(active.reshape(x.shape), x, np.float32(0))
    lanes = np.zeros((len(bits), 16), dtype=np.uint16)
    lanes.ravel()[: x.size] = active
    bits[...] = (lanes << np.arange(16, dtype=np.uint16)).sum(axis=1)


def masked(x: Floats, bits: NDArray[np.uint16], out: Floats, threads: int = 1) -> None:
    """out[i] = x[i] where bit i % 16 of bits[i // 16] is set, else 0."""
    lanes = (bits[:, None] >> np.arange(16, dtype=np.uint16)) & 1
    out[...] = np.where(lanes.ravel()[: x.size].reshape(x.shape), x, np.float32(0))


def column_moments(x: Floats, mean: Doubles, variance: Doubles, threads: int = 1) -> None:
    """mean[j] = Σ_u x[u,j] / n, variance[j] = Σ_u (x[u,j] - mean[j])² / n; zeros if there are no rows."""
    mean[...] = x.sum(axis=0, dtype=np.float64) / max(len(x), 1)
    variance[...] = np.square(x - mean).sum(axis=0) / max(len(x), 1)


def column_dots(grad: Floats, x: Floats, mean: Floats, total: Doubles, dot: Doubles, threads: int = 1) -> None:
    """total[j] = Σ_u grad[u,j], dot[j] = Σ_u grad[u,j] · (x[u,j] - mean[j])."""
    total[...] = grad.sum(axis=0, dtype=np.float64)
    dot[...] = (grad * (x.astype(np.float64) - mean)).sum(axis=0)


def affine(x: Floats, a: Floats, c: Floats, out: Floats, threads: int = 1) -> None:
    """out[u,j] = a[j] · x[u,j] + c[j]."""
    out[...] = a * x + c


def affine_pair(grad: Floats, x: Floats, a: Floats, b: Floats, c: Floats, out: Floats, threads: int = 1) -> None:
    """out[u,j] = a[j] · grad[u,j] + b[j] · x[u,j] + c[j]."""
    out[...] = a * grad + b * x + c


def _mixed(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Wellons' lowbias32."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x21F0AAAD)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0xD35A2D97)
    return np.asarray(x ^ (x >> np.uint32(15)))
