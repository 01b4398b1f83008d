"""The kernels of attention layers in plain NumPy. The arrays are described in native/attention.h."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Longs = NDArray[np.int64]
Ints = NDArray[np.int32]
Bits = NDArray[np.uint16]

CHUNK = 64  # rows per partial sum
LANES = 16


def attention_scores(
    start: Longs,
    end: Longs,
    indices: Ints,
    heads: int,
    lane: Ints,
    blocks: int,
    x: Floats,
    y: Floats,
    att: Floats,
    slope: float,
    score: Floats,
    own: Floats | None,
    signs: Bits | None,
    own_signs: Bits | None,
    threads: int = 1,
) -> None:
    """score[e,h] = Σ_{c of h} att[c]·LeakyReLU(x[v,c] + y[u,c]); `signs`: a bit for x + y > 0; `own`: of the self-loops."""
    for u in range(len(start)):
        pairs = [(i, int(indices[i]), score, signs) for i in range(start[u], end[u])]
        if own is not None:
            pairs.append((u, u, own, own_signs))
        for i, v, to, bits in pairs:
            z = x[v] + y[u]
            to[i] = _by_head(att * np.where(z > 0, z, np.float32(slope) * z), heads, lane)
            if bits is not None:
                bits[i] = ((z > 0).reshape(blocks, LANES) << np.arange(LANES)).sum(axis=1)


def attention_slopes(
    start: Longs,
    end: Longs,
    at: Longs | None,
    heads: int,
    lane: Ints,
    blocks: int,
    grad: Floats,
    own_grad: Floats | None,
    signs: Bits,
    own_signs: Bits | None,
    x: Floats,
    att: Floats,
    slope: float,
    out: Floats,
    partial: Floats,
    threads: int = 1,
) -> None:
    """out[u] = att ⊙ s with s = Σ_e grad[e, head]·(1 or slope), and partial[u // 64] = Σ_u x[u] ⊙ s."""
    partial[:] = 0
    for u in range(len(start)):
        terms = [(grad[_at(at, i)], signs[_at(at, i)]) for i in range(start[u], end[u])]
        if own_grad is not None and own_signs is not None:
            terms.append((own_grad[u], own_signs[u]))
        total = np.zeros(blocks * LANES, dtype=np.float32)
        for factor, bits in terms:
            set_ = (bits[:, None] >> np.arange(LANES) & 1).astype(bool)
            total += (factor[lane] * np.where(set_, np.float32(1), np.float32(slope))).ravel()
        out[u] = att * total
        partial[u // CHUNK] += x[u] * total


def row_softmax(
    start: Longs,
    end: Longs,
    heads: int,
    score: Floats,
    own: Floats | None,
    loop: Floats | None,
    alpha: Floats,
    own_alpha: Floats | None,
    threads: int = 1,
) -> None:
    """α over the edges into a row and its loop[u] self-loops, for each head."""
    for u in range(len(start)):
        row = score[start[u] : end[u]]
        loops = own is not None and loop is not None and loop[u] > 0
        every = np.vstack([row, own[u : u + 1]]) if loops and own is not None else row
        most = every.max(axis=0) if len(every) else np.zeros(heads, dtype=np.float32)
        power, mine = np.exp(row - most), np.zeros(heads, dtype=np.float32)
        if loops and own is not None and loop is not None:
            mine = loop[u] * np.exp(own[u] - most)
        total = power.sum(axis=0) + mine + np.float32(1e-16)
        alpha[start[u] : end[u]] = power / total
        if own_alpha is not None:
            own_alpha[u] = mine / total


def row_softmax_back(
    start: Longs,
    end: Longs,
    heads: int,
    alpha: Floats,
    own_alpha: Floats | None,
    grad: Floats,
    own_grad: Floats | None,
    out: Floats,
    own_out: Floats | None,
    threads: int = 1,
) -> None:
    """out = α·(grad - Σ α·grad over the row)."""
    for u in range(len(start)):
        row = slice(start[u], end[u])
        total = (alpha[row] * grad[row]).sum(axis=0)
        if own_alpha is not None and own_grad is not None:
            total = total + own_alpha[u] * own_grad[u]
        out[row] = alpha[row] * (grad[row] - total)
        if own_alpha is not None and own_grad is not None and own_out is not None:
            own_out[u] = own_alpha[u] * (own_grad[u] - total)


def head_diffuse(
    start: Longs,
    end: Longs,
    indices: Ints,
    at: Longs | None,
    heads: int,
    lane: Ints,
    blocks: int,
    alpha: Floats,
    own: Floats | None,
    head: Ints,
    from_: Ints,
    base: Floats,
    table: Floats,
    place: Ints,
    out: Floats,
    threads: int = 1,
) -> None:
    """out[u,j] = own[u, head[j]]·base[u, from[j]], and out[u, place[k]] += Σ_e alpha[e, head of k]·table[v,k]."""
    of = np.tile(lane, blocks)
    for u in range(len(start)):
        total = np.zeros(blocks * LANES, dtype=np.float32)
        for i in range(start[u], end[u]):
            total += alpha[_at(at, i), of] * table[indices[i]]
        out[u] = 0 if own is None else np.where(from_ >= 0, own[u, head] * base[u, from_], 0)
        np.add.at(out[u], place[place >= 0], total[place >= 0])


def head_dots(
    start: Longs,
    end: Longs,
    indices: Ints,
    at: Longs | None,
    heads: int,
    lane: Ints,
    blocks: int,
    x: Floats,
    y: Floats,
    out: Floats,
    threads: int = 1,
) -> None:
    """out[e,h] = Σ_{c of h} x[v,c]·y[u,c]: the gradient of the factors."""
    for u in range(len(start)):
        for i in range(start[u], end[u]):
            out[_at(at, i)] = _by_head(x[indices[i]] * y[u], heads, lane)


def own_dots(heads: int, lane: Ints, from_: Ints, x: Floats, y: Floats, out: Floats, threads: int = 1) -> None:
    """out[u,h] = Σ_{k of h} x[u,k]·y[u, from[k]]: the same of a node with itself."""
    for u in range(len(x)):
        out[u] = _by_head(x[u] * np.where(from_ >= 0, y[u, from_], 0), heads, lane)


def column_squares(
    start: Longs,
    end: Longs,
    at: Longs | None,
    heads: int,
    lane: Ints,
    blocks: int,
    alpha: Floats,
    x: Floats,
    partial: Floats,
    threads: int = 1,
) -> None:
    """partial[u // 64] = Σ_u (Σ_e alpha[e, head]² over the edges of u) ⊙ x[u]²."""
    partial[:] = 0
    of = np.tile(lane, blocks)
    for u in range(len(start)):
        square = np.zeros(heads, dtype=np.float32)
        for i in range(start[u], end[u]):
            square += alpha[_at(at, i)] ** 2
        partial[u // CHUNK] += square[of] * x[u] ** 2


def take_columns(x: Floats, index: Ints, out: Floats, threads: int = 1) -> None:
    """out[u,c] = x[u, index[c]], 0 where index is negative."""
    out[:] = np.where(index >= 0, x[:, index], 0)


def _at(at: Longs | None, i: int) -> int:
    return i if at is None else int(at[i])


def _by_head(values: Floats, heads: int, lane: Ints) -> Floats:
    return np.bincount(np.tile(lane, len(values) // LANES), values, heads).astype(np.float32)
