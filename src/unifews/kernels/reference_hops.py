"""The compiled hops in plain NumPy: slow, short, and their specification (of layers: `reference_layers`).

Each function has the signature of the function of the same name in `_native`; kernels.h describes the arrays. In short:
a tile holds scaled values q = source·P as [n, blocks · 16], and row u receives from ``indices[start[u]:end[u]]``.
`threads` is accepted and ignored. Results agree up to the rounding of float32 sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Longs = NDArray[np.int64]

_ONES = 2**64 - 1
LANES = 16
MARGIN = np.float32(1.00001)  # bounds are rounded up by this factor, so that they are never below the exact value
SMALLEST = np.float32(1e-45)  # the smallest positive threshold: exact zeros never reach it


def check_rows(
    indptr: Longs,
    indices: NDArray[Any],
    weight: Floats | None,
    first: int,
    last: int,
    columns: int,
    hashed: bool,
    key: int,
    threads: int,
) -> tuple[int, int, int, int, int, int]:
    """First positions of faults in rows first..last (-1 = none), and a checksum, 0 if the matrix is symmetric: check.h."""
    faults: dict[str, list[int]] = {name: [] for name in ("pointer", "range", "order", "loop", "weight")}
    balance = 0
    for u in range(first, last):
        start, end = int(indptr[u]), int(indptr[u + 1])
        if not 0 <= start <= end <= len(indices):
            faults["pointer"].append(u)
            continue
        for e in range(start, end):
            v = int(indices[e])
            if not 0 <= v < columns:
                faults["range"].append(e)
            if e > start and v <= int(indices[e - 1]):
                faults["order"].append(e)
            if v == u:
                faults["loop"].append(e)
            if weight is not None and not 0 < weight[e] < np.inf:
                faults["weight"].append(e)
            if hashed:
                h = _pair_hash(min(u, v), max(u, v), key, indices.dtype == np.int32)
                if weight is not None:
                    h = _mixed(h ^ (int(weight[e].view(np.uint32)) * 0x9E3779B97F4A7C15 & _ONES))
                balance += -h if v > u else h
    pointer, outside, order, loop, unweighted = (min(found, default=-1) for found in faults.values())
    return pointer, outside, order, loop, unweighted, balance & _ONES


def _pair_hash(low: int, high: int, key: int, narrow: bool) -> int:
    if narrow:
        return _mixed((low << 32 | high) + key & _ONES)
    return _mixed(_mixed(low + key & _ONES) + high & _ONES)


def _mixed(x: int) -> int:
    x = (x ^ x >> 33) * 0xFF51AFD7ED558CCD & _ONES
    x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53 & _ONES
    return x ^ x >> 33


def ingest(
    *,
    x: Floats,
    row0: int,
    column0: int,
    width: int,
    blocks: int,
    source: Floats,
    offset: Floats | None,
    direction: Floats | None,
    largest: bool,
    q: Floats,
    size: Floats | None,
    top: Floats | None,
    square: Floats | None,
    threads: int,
) -> float:
    """q[u] = source[u]·(x[i] - offset[u]·direction) for u = row0 + i, padded with zeros; returns Σ ‖q[u]/source[u]‖².

    Also: the size of each block, the largest of them, and ``square[u] += ‖q[u]‖²``.
    """
    energy = 0.0
    for i in range(len(x)):
        u = row0 + i
        row = np.zeros(blocks * LANES, dtype=np.float32)
        row[:width] = x[i, column0 : column0 + width]
        if offset is not None and direction is not None:
            row[:width] -= offset[u] * direction
        energy += float(np.sum(np.square(row, dtype=np.float64)))
        q[u] = source[u] * row
        sizes = [_magnitude(block, largest) for block in in_blocks(q, blocks)[u]]
        if size is not None:
            size[u] = sizes
        if top is not None:
            top[u] = max(sizes)
        if square is not None:
            square[u] += np.dot(q[u], q[u])
    return energy


def full_hop(
    *,
    start: Longs,
    end: Longs,
    indices: NDArray[Any],
    weight: Floats | None,
    blocks: int,
    keep: Floats | None,
    gain: Floats | None,
    q: Floats,
    q_out: Floats,
    coefficient: float,
    out: Floats | None,
    square: Floats | None,
    threads: int,
    previous: float = 0.0,
) -> None:
    """q'[u] = keep[u]·q[u] + gain[u]·Σ_v A[u,v]·q[v];  out[u] += coefficient·q'[u];  square[u] += ‖q'[u]‖².

    Without `keep` there is no own term and the matrix need not be square; without `gain` it is 1. `previous` times what `q_out`
    had before is subtracted from q': a three-term recurrence.
    """
    for u in range(len(start)):
        total = np.zeros(blocks * LANES, dtype=np.float32)
        for v, w, _ in edges_into(u, start, end, indices, weight):
            total += w * q[v]
        value = total if gain is None else gain[u] * total
        if keep is not None:
            value = keep[u] * q[u] + value
        if previous:
            value = value - np.float32(previous) * q_out[u]
        q_out[u] = value
        if out is not None:
            out[u] += np.float32(coefficient) * value
        if square is not None:
            square[u] += np.dot(value, value)


def column_hop(
    *,
    start: Longs,
    end: Longs,
    indices: NDArray[Any],
    weight: Floats | None,
    keep: Floats,
    gain: Floats,
    q: Floats,
    q_out: Floats,
    threads: int,
) -> None:
    """The hop of a single column [n]: q'[u] = keep[u]·q[u] + gain[u]·Σ_v A[u,v]·q[v]."""
    for u in range(len(start)):
        total = sum((float(w) * float(q[v]) for v, w, _ in edges_into(u, start, end, indices, weight)), 0.0)
        q_out[u] = keep[u] * q[u] + gain[u] * np.float32(total)


def column_push(
    *, start: Longs, end: Longs, indices: NDArray[Any], weight: Floats | None, x: Floats, out: NDArray[np.float64], threads: int
) -> None:
    """out[v] = Σ_u A[u,v]·x[u], the transposed product of a few columns x [n, k], in float64."""
    out[:] = 0
    for u in range(len(start)):
        for v, w, _ in edges_into(u, start, end, indices, weight):
            out[v] += np.float64(w) * x[u]


def spread_squares(
    *,
    start: Longs,
    end: Longs,
    indices: NDArray[Any],
    weight: Floats | None,
    x_indptr: Longs,
    x_indices: NDArray[Any],
    x_data: Floats | None,
    width: int,
    source: Floats,
    direction: Floats | None,
    square: NDArray[np.float64],
    along: NDArray[np.float64],
    threads: int,
) -> None:
    """square[u] = ‖a‖² and along[u] = ⟨a, direction⟩ for a = Σ_v A[u,v]·source[v]·x[v], x sparse rows of `width` columns."""
    for u in range(len(start)):
        total = np.zeros(width, dtype=np.float32)
        for v, w, _ in edges_into(u, start, end, indices, weight):
            row = slice(int(x_indptr[v]), int(x_indptr[v + 1]))
            np.add.at(total, x_indices[row], w * source[v] * (np.float32(1) if x_data is None else x_data[row]))
        square[u] = np.dot(total.astype(np.float64), total)
        along[u] = 0 if direction is None else np.dot(total.astype(np.float64), direction)


def pruned_hop(
    *,
    start: Longs,
    end: Longs,
    indices: NDArray[Any],
    weight: Floats | None,
    blocks: int,
    width: int,
    hop: int,
    keep: Floats,
    gain: Floats,
    target: Floats,
    reach: Floats,
    fanout: Longs,
    delta: float,
    rouse: bool,
    by_feature: bool,
    size: Floats,
    top: Floats,
    size_out: Floats,
    top_out: Floats,
    alive: NDArray[np.uint8] | None,
    even: Floats,
    odd: Floats,
    stamp: NDArray[np.uint16],
    out: Floats | None,
    coefficient: Floats,
    threads: int,
    cost: Floats | None = None,
    charge: NDArray[np.float64] | None = None,
    toll: Floats | None = None,
    removed: NDArray[np.float64] | None = None,
    cached: int = 1 << 22,
) -> tuple[list[int], list[int], float]:
    """One hop over the entries that reach δ:  q'[u] = keep[u]·q[u] + gain[u]·Σ_v A[u,v]·q[v]  over those with

        target[u] · A[u,v] · size[v, b] ≥ δ    by block,  or    target[u] · A[u,v] · |q[v, k]| ≥ δ    by feature,

    and not zero. With `alive` (a byte per edge and a bit per block, or by feature 16 bits per edge and block), only entries
    whose bit is set take part, and the bit of those below δ is cleared. An exact zero is below every δ > 0.

    Blocks are lazy: one that receives nothing and can send nothing is not updated and has an older `stamp`. `size_out` and
    `top_out` are nevertheless the magnitudes of all blocks after this hop. `cached` is the number of magnitudes above which
    coarse codes of them are tested first and, where there is one block and eight times as many nodes, a mark per node: this
    affects the time only.

    With `cost`, `charge` = Aᵀ·cost and `toll`, all [n], `removed` [blocks] becomes the price of the entries not used, (√a+√b)²:
    a = Σ_u toll[u]·(Σ_v A[u,v]·size)² over the sources that row u examines, that is, of which some block (by feature: some
    value of the same block) reaches δ and may be sent; b = Σ cost[u]·A[u,v]·size² over the others. Or, if smaller and entries
    are blocks, Σ_u toll[u]·(Σ_v A[u,v]·s)², s the magnitude of the first and the largest block of the others; where fewer than
    half of the nodes may send, the largest block of an edge is not read unless it has a weight or an `alive` bit.

    Returns, per block, the entries used and the entries that will be exactly zero at the next hop, and a bound on the
    messages of the blocks not updated: unless the next δ is larger, they must be examined first (`rouse`).
    """
    n, lanes = len(start), LANES if by_feature else 1
    state = _Lazy(even, odd, stamp, out, coefficient, keep, blocks)
    if rouse:
        for u, b in np.ndindex(n, blocks):
            if stamp[u, b] < hop and _may_send(size[u, b], reach[u], delta):
                state.write(u, b, hop, state.value(u, b, hop))
    now = np.array([[state.value(u, b, hop) for b in range(blocks)] for u in range(n)], dtype=np.float32)
    now = now.reshape(n, blocks, LANES)  # the shape also without nodes
    magnitude = np.abs(now) if by_feature else size[:, :, None]
    allowed = None if alive is None else _bits(alive, blocks, lanes)
    kept, zero, lagging = np.zeros(blocks, dtype=np.int64), [0] * blocks, np.float32(0)
    examined_price, other_price, whole = np.zeros(blocks), np.zeros(blocks), np.zeros(blocks)
    few_senders = 2 * sum(_may_send(top[v], reach[v], delta) for v in range(n)) < n
    reads_largest = not by_feature and (not few_senders or weight is not None or alive is not None)

    for u in range(n):
        level = _cut(delta, target[u])
        total = np.zeros((blocks, LANES), dtype=np.float32)
        touched = np.zeros(blocks, dtype=bool)
        removed_sum, rest = np.zeros((blocks, lanes)), 0.0
        for v, w, i in edges_into(u, start, end, indices, weight):
            keeps = w * magnitude[v] >= level  # [blocks, lanes]
            reaches = keeps
            if allowed is not None:
                reaches = reaches & (allowed[i].any(axis=1, keepdims=True) if by_feature else allowed[i].any())
                keeps = keeps & allowed[i]
                if delta > 0:
                    allowed[i] = keeps
            total += np.where(keeps, w * now[v], np.float32(0))
            touched |= keeps.any(axis=1)
            kept += keeps.sum(axis=1)
            if cost is not None:
                mine = float(w) * np.where(keeps, 0, magnitude[v].astype(np.float64))
                examined = reaches.any(axis=1, keepdims=True) if by_feature else reaches.any()
                removed_sum += np.where(examined, mine, 0)
                rest += 0.0 if examined.any() else float(w) * float(top[v])
                other_price += float(cost[u]) * np.where(examined, 0, mine * magnitude[v]).sum(axis=1)

        if toll is not None:
            examined_price += float(toll[u]) * np.square(removed_sum).sum(axis=1)
            whole += float(toll[u]) * np.square(removed_sum + rest).sum(axis=1)
        for b in range(blocks):
            size_out[u, b] = keep[u] * size[u, b]
            if touched[b] or (stamp[u, b] == hop and _may_send(size_out[u, b], reach[u], delta)):
                value = keep[u] * now[u, b]
                if touched[b]:
                    value = value + gain[u] * total[b]
                    size_out[u, b] = _magnitude(value, by_feature)
                state.write(u, b, hop + 1, value)
            else:
                lagging = max(lagging, size_out[u, b] * reach[u] * MARGIN)
            if by_feature:
                real = state.stored(u, b)[: max(width - b * LANES, 0)]
                zeros = len(real) if size_out[u, b] == 0 else int(np.sum(real == 0))
            else:
                zeros = int(size_out[u, b] == 0)
            zero[b] += zeros * int(fanout[u])
        top_out[u] = size_out[u].max()
    if alive is not None and allowed is not None:
        _bits(alive, blocks, lanes, put=allowed)
    if removed is not None:
        removed[:] = np.square(np.sqrt(examined_price) + np.sqrt(other_price))
        if reads_largest:
            np.minimum(removed, whole, out=removed)
    return kept.tolist(), zero, float(lagging)


def select_edges(
    *,
    start: Longs,
    end: Longs,
    indices: NDArray[Any],
    weight: Floats | None,
    norm: Floats,
    target: Floats,
    delta: float,
    end_out: Longs,
    indices_out: NDArray[Any],
    weight_out: Floats | None,
    threads: int,
) -> int:
    """The edges with target[u]·A[u,v]·norm[v] ≥ δ and not zero, moved to the front of their row; returns their number.

    Row u of the result ends at end_out[u]; the values behind are undefined. In place, edge sets are nested by construction.
    """
    total = 0
    for u in range(len(start)):
        level = _cut(delta, target[u])
        kept = [(v, w) for v, w, _ in edges_into(u, start, end, indices, weight) if w * norm[v] >= level]
        for at, (v, w) in enumerate(kept, start=int(start[u])):
            indices_out[at] = v
            if weight_out is not None:
                weight_out[at] = w
        end_out[u] = start[u] + len(kept)
        total += len(kept)
    return total


def fan(
    *,
    start: Longs,
    end: Longs,
    indices: NDArray[Any],
    weight: Floats | None,
    target: Floats,
    reach: Floats,
    fanout: Longs,
    threads: int,
) -> None:
    """reach[v] = max target[u]·A[u,v] over the receivers u of v (0 without any);  fanout[v] = their number."""
    reach[:], fanout[:] = 0, 0
    for u in range(len(start)):
        for v, w, _ in edges_into(u, start, end, indices, weight):
            reach[v] = max(reach[v], w * target[u])
            fanout[v] += 1


def finish(
    *,
    blocks: int,
    width: int,
    hop: int,
    keep: Floats,
    source: Floats,
    offset: Floats | None,
    direction: Floats | None,
    even: Floats,
    odd: Floats,
    stamp: NDArray[np.uint16] | None,
    out: Floats | None,
    coefficient: Floats,
    result: Floats,
    column0: int,
    threads: int,
) -> None:
    """result[u] = (with `out` the output including `hop`, else the value at `hop`) / source[u] + offset[u]·direction.

    Without `stamp` no block is lazy: the output or the value is complete. `result` may be `out` or `even` itself.
    """
    state = _Lazy(even, odd, stamp, out, coefficient, keep, blocks)
    for u in range(len(source)):
        if stamp is None:
            row = (out if out is not None else (even, odd)[hop % 2])[u]
        else:
            one = state.value if out is None else state.output
            row = np.concatenate([one(u, b, hop) for b in range(blocks)])
        row = row[:width] * (np.float32(1) / source[u])
        if offset is not None and direction is not None:
            row = row + offset[u] * direction
        result[u, column0 : column0 + width] = row


class _Lazy:
    """Blocks that are updated only when they receive or send.

    Block b of node u is stored as of hop s = stamp[u, b], in the buffer of that parity, and nothing has reached it since:

        value(l)  = keep^(l-s) · stored                               for l ≥ s
        output(l) = out + Σ_{k = s..l} coefficient[k] · value(k)      `out` counting from s > 0 on
    """

    def __init__(
        self,
        even: Floats,
        odd: Floats,
        stamp: NDArray[np.uint16] | None,
        out: Floats | None,
        coefficient: Floats,
        keep: Floats,
        blocks: int,
    ) -> None:
        self.buffers = in_blocks(even, blocks), in_blocks(odd, blocks)
        self.stamp = np.zeros((len(even), blocks), dtype=np.uint16) if stamp is None else stamp
        self.out = None if out is None else in_blocks(out, blocks)
        self.coefficient, self.keep = coefficient, keep

    def stored(self, u: int, b: int) -> Floats:
        buffer: Floats = self.buffers[int(self.stamp[u, b]) % 2]
        return np.asarray(buffer[u, b])

    def value(self, u: int, b: int, hop: int) -> Floats:
        factor = np.float32(1)
        for _ in range(int(self.stamp[u, b]), hop):
            factor *= self.keep[u]
        return np.asarray(factor * self.stored(u, b))

    def output(self, u: int, b: int, hop: int) -> Floats:
        assert self.out is not None
        since = int(self.stamp[u, b])
        total = self.out[u, b].copy() if since else np.zeros(LANES, dtype=np.float32)
        for k in range(since, hop + 1):
            total += self.coefficient[k] * self.value(u, b, k)
        return total

    def write(self, u: int, b: int, hop: int, value: Floats) -> None:
        """Store a new value as of `hop`, after adding the terms before it to the output."""
        if self.out is not None:
            self.out[u, b] = self.output(u, b, hop - 1)
        self.buffers[hop % 2][u, b] = value
        self.stamp[u, b] = hop


# ------------------------------------------------------------------------------------------------------------- helpers


def in_blocks(tile: Floats, blocks: int) -> Floats:
    return tile.reshape(len(tile), blocks, LANES)


def edges_into(
    u: int, start: Longs, end: Longs, indices: NDArray[Any], weight: Floats | None
) -> Iterator[tuple[int, np.float32, int]]:
    """(source, weight, position) of the edges into u."""
    for i in range(int(start[u]), int(end[u])):
        yield int(indices[i]), np.float32(1) if weight is None else weight[i], i


def _magnitude(block: Floats, largest: bool) -> np.float32:
    return np.float32(np.abs(block).max() if largest else np.sqrt(np.sum(block * block)))


def _cut(delta: float, target: np.float32) -> np.float32:
    """A message reaches δ when A[u,v]·size[v] ≥ δ/target[u]; exact zeros never do."""
    return max(np.float32(delta) / target, SMALLEST)


def _may_send(size: Any, reach: Any, delta: float) -> bool:
    """Whether any message of a block may reach δ; never False if one does."""
    return bool(size > 0 and (size * reach * MARGIN >= np.float32(delta) or np.float32(delta) < np.float32(1e-30)))


def _bits(alive: NDArray[np.uint8], blocks: int, lanes: int, put: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
    """`alive` as bool [edges, blocks, lanes], after writing `put` to it: by block a byte per edge, of which `blocks` bits are
    used; by feature 16 bits per edge and block."""
    bits = np.unpackbits(alive, bitorder="little").reshape(-1, blocks if lanes > 1 else 8, lanes)
    if put is not None:
        bits[:, :blocks] = put
        alive[:] = np.packbits(bits, bitorder="little").reshape(alive.shape)
    return bits[:, :blocks].astype(bool)
