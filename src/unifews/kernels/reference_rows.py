"""The kernels on stored rows in plain NumPy: their specification, as `reference_hops` is for hops on float32 tiles.

Each function has the signature of the function of the same name in `_native`; rows.h describes the arrays. Values are computed
in float64, rounded to float32 and then to the row format by its own `encode`. `threads` is accepted and ignored.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.kernels.formats import FORMATS, RowFormat, StoredRows

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]

LANES = 16


def format_of(code: int) -> RowFormat:
    return next(each for each in FORMATS.values() if each.code == code)


def encode_rows(
    format: int,
    x: Floats,
    row0: int,
    column0: int,
    width: int,
    blocks: int,
    source: Floats,
    weight: Floats,
    own: Floats | None,
    mean: Floats,
    scale: Floats,
    rows: Bytes,
    steps: Bytes,
    sums: Doubles,
    threads: int,
) -> None:
    """y[u] = scale ∘ (source[u]·x[u] - mean), stored; zero where weight[u] = 0. `sums` are added to."""
    part = slice(row0, row0 + len(x))
    y = np.zeros((len(x), blocks * LANES))
    y[:, :width] = source[part, None].astype(np.float64) * x[:, column0 : column0 + width]
    y = np.where(weight[part, None] != 0, (y - mean) * scale, 0.0)
    stored = StoredRows(rows[part], steps[part] if steps.size else steps)
    lost = _store(format_of(format), y, stored)
    sums += _sums(weight[part], None if own is None else own[part], y, np.zeros_like(y), lost)


def recurrence_hop(
    format: int,
    start: Longs,
    end: Longs,
    indices: NDArray[Any],
    edge_weight: Floats | None,
    blocks: int,
    keep: Floats,
    gain: Floats,
    weight: Floats,
    own: Floats | None,
    rows: list[Bytes],
    steps: list[Bytes],
    factor: Floats,
    mix: Floats,
    out: Bytes,
    out_steps: Bytes,
    sums: Doubles,
    threads: int,
) -> None:
    """y'[u] = factor ∘ (keep[u]·y[u] + gain[u]·Σ_v A[u,v]·y[v]) + Σ_l mix[l] ∘ s_l[u], y the last iterate. `sums` are set."""
    kind = format_of(format)
    iterates = _decoded(kind, rows, steps, blocks)
    y = iterates[-1]
    received = np.zeros_like(y)
    for u in range(len(start)):
        edges = slice(int(start[u]), int(end[u]))
        messages = y[indices[edges]] if edge_weight is None else edge_weight[edges, None] * y[indices[edges]]
        received[u] = messages.sum(axis=0)
    after = factor * (keep[:, None] * y + gain[:, None] * received) + np.einsum("lj,luj->uj", mix, iterates)
    after = np.where(weight[:, None] != 0, after, 0.0)
    lost = _store(kind, after, StoredRows(out, out_steps))
    sums[:] = _sums(weight, own, after, y, lost)


def combine_rows(
    format: int,
    blocks: int,
    width: int,
    factor: Floats,
    weight: Floats,
    rows: list[Bytes],
    steps: list[Bytes],
    mix: Floats,
    offset: Floats,
    result: Floats,
    column0: int,
    threads: int,
) -> None:
    """result[u] = factor[u]·(Σ_l mix[l] ∘ s_l[u] + offset); rows of weight 0 are left alone."""
    total = np.einsum("lj,luj->uj", mix, _decoded(format_of(format), rows, steps, blocks)) + offset
    given = weight != 0
    result[given, column0 : column0 + width] = (factor[:, None] * total)[given, :width]


def column_sums(x: Floats, factor: Floats, square: Floats, sums: Doubles, threads: int) -> None:
    """Per column: Σ_u factor[u]·x[u] and Σ_u square[u]·x[u]², added to `sums` [2, width]."""
    values = x.astype(np.float64)
    sums[0] += factor @ values
    sums[1] += square @ values**2


def largest_magnitude(x: Floats, threads: int) -> float:
    """max |x|; NaN if there is one."""
    return float(np.abs(x).max(initial=0.0))


def tridiagonal_series(
    diagonal: Floats, off_diagonal: Floats, series: Doubles, centre: float, radius: float, out: Floats, threads: int
) -> None:
    """Σ_k series[k]·C_k((J - centre)/radius) e_1 of tridiagonal matrices J, one per column."""
    centred = diagonal.astype(np.float64) - centre

    def times(y: Doubles) -> Doubles:
        z = centred * y
        if len(y) > 1:
            z[1:] += off_diagonal[: len(y) - 1] * y[:-1]
            z[:-1] += off_diagonal[: len(y) - 1] * y[1:]
        return np.asarray(z / radius)

    now, before = np.zeros(diagonal.shape), np.zeros(diagonal.shape)
    now[0] = 1
    total = series[0] * now
    for k in range(1, len(series)):
        now, before = (times(now) if k == 1 else 2 * times(now) - before), now
        total += series[k] * now
    out[:] = total


def _decoded(kind: RowFormat, rows: list[Bytes], steps: list[Bytes], blocks: int) -> Doubles:
    """[iterates, n, blocks · 16]"""
    stored = (StoredRows(*each) for each in zip(rows, steps, strict=True))
    return np.stack([kind.decode(each, blocks).astype(np.float64) for each in stored])


def _store(kind: RowFormat, values: Doubles, into: StoredRows) -> Doubles:
    """Write the bytes that hold values; returns stored - values."""
    blocks, rounded = values.shape[1] // LANES, values.astype(np.float32)
    stored = kind.encode(rounded)
    for target, given in zip(kind.used(into, blocks), kind.used(stored, blocks), strict=True):
        target[:] = given
    return np.asarray(kind.decode(stored, blocks).astype(np.float64) - rounded)


def _sums(weight: Floats, own: Floats | None, y: Doubles, before: Doubles, lost: Doubles) -> Doubles:
    """[4, blocks · 16]; see rows.h."""
    norm = np.zeros(y.shape[1]) if own is None else own @ y**2
    return np.stack([weight @ (y * before), weight @ y**2, weight @ lost**2, norm])
