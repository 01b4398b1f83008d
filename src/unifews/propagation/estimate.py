"""How long would the same propagation take unpruned? Estimated from some of its rows, timed on the graph itself.

An unpruned hop goes over the input's columns tile by tile, and a tile's time hardly depends on its values. So one hop of some
rows, gathered from the values that the run has left in memory, stands for all rows, tiles and hops; what filling and finishing
tiles takes is estimated from how fast fresh memory is written. Some milliseconds in all, and counted as processor time: other
programs on the machine then slow neither side of the comparison.
"""

from __future__ import annotations

from statistics import median
from time import process_time

import numpy as np
from numpy.typing import NDArray

from unifews.kernels import LANES, MAX_BLOCKS, aligned, native
from unifews.propagation.operator import Operator
from unifews.propagation.tiles import Floats, cut

_EDGES = 1 << 18  # that are timed at a time, at most about
_ROWS = 256  # consecutive ones, so that neighbours of neighbouring nodes are found in the cache as in a whole hop
_MOST = 16 << 20  # bytes of the rows that are timed at a time
_TRIALS = 5
_COPIES = 4  # of the values that an unpruned run writes beside its hops: two buffers of a tile, its sum, the result
_BYTES = 4 << 20  # written to see how fast fresh memory is


def unpruned_seconds(op: Operator, features: int, values: Floats) -> float | None:
    """Seconds of processor time, estimated, for so many features; None for a graph without edges.

    `values` [n, any] are what the pruned run has ended in, or anything as large.
    """
    graph = op.graph
    n, m = graph.num_nodes, graph.num_edges
    if not m:
        return None
    q = _gathered(values, n)
    step = max(-(-m // _EDGES), -(-n * 3 * q.itemsize * q.shape[1] // _MOST))
    hop = _Hop(op, q.shape[1], min(n, -(-n // step) + _ROWS))
    taken = []
    for trial in range(_TRIALS):
        rows = slice(None) if step == 1 else _some(n, step, trial)
        seconds, share = hop(q, rows)
        taken.append(seconds / share)
        if step == 1:
            q = hop.turn()
    tiles = sum(shape.blocks for shape in cut(features)) * LANES / q.shape[1]
    began = process_time()
    np.empty(_BYTES // 4, dtype=np.float32).fill(1)
    fresh = (process_time() - began) / _BYTES
    return float(op.hops * tiles * median(taken) + _COPIES * 4 * n * features * fresh)


class _Hop:
    """An unpruned hop of one tile, of some of its rows."""

    def __init__(self, op: Operator, columns: int, rows: int) -> None:
        self.op, self.blocks = op, columns // LANES
        self.after, self.before = _touched(rows, columns), _touched(rows, columns)
        self.out = _touched(rows, columns) if op.accumulate else None

    def __call__(self, q: Floats, rows: slice | NDArray[np.int64]) -> tuple[float, float]:
        """Seconds, and the share of a whole hop's work that they are for."""
        op, graph = self.op, self.op.graph
        start, end, keep, gain = graph.indptr[:-1][rows], graph.indptr[1:][rows], op.keep[rows], op.gain[rows]
        began = process_time()
        native.full_hop(
            start=start, end=end, indices=graph.indices, weight=graph.weight, blocks=self.blocks, keep=keep, gain=gain, q=q,
            q_out=self.after, coefficient=0.5, out=self.out, square=None, threads=op.threads,
        )  # fmt: skip
        seconds = process_time() - began
        return seconds, (int((end - start).sum()) + len(start)) / (graph.num_edges + graph.num_nodes)

    def turn(self) -> Floats:
        """What the last hop gave, of all rows: the next one reads it, as hops do."""
        self.before, self.after = self.after, self.before
        return self.before


def _some(n: int, step: int, trial: int) -> NDArray[np.int64]:
    """One of `step` runs of rows, others in each trial."""
    first = np.arange(trial % step * _ROWS, n, step * _ROWS)
    rows = (first[:, None] + np.arange(_ROWS)).ravel()
    return rows[rows < n]


def _gathered(values: Floats, n: int) -> Floats:
    """Memory of the values as a tile of as many whole blocks as it holds, at the start of a cache line; only read."""
    flat = values.reshape(-1)
    skip = -flat.ctypes.data % 64 // 4
    for blocks in range(min(MAX_BLOCKS, values.shape[1] // LANES), 0, -1):
        if flat.size - skip >= n * blocks * LANES:
            return flat[skip : skip + n * blocks * LANES].reshape(n, blocks * LANES)
    return _touched(n, LANES)


def _touched(rows: int, columns: int) -> Floats:
    array = aligned(rows, columns)
    array.fill(1)
    return array
