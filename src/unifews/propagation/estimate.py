"""How long would the same propagation take unpruned? Estimated from some of its rows, timed on the graph itself.

An unpruned hop goes over the input's columns tile by tile, and a tile's time hardly depends on its values. So hops of some
rows, gathered from the values that the run has left in memory, stand for all rows, tiles and hops; what filling and finishing
tiles takes is estimated from how fast fresh memory is written. All this takes a tenth of the run, or a quarter of one hop.

Threads that still spin after a matrix product make trials of several threads too long; one thread by its CPU clock does not
wait for them. On a machine that is busy with other work there is no estimate: the pruned run includes its own waiting, and
comparing the two would blame pruning for it.
"""

from __future__ import annotations

import math
import os
from time import perf_counter, thread_time

import numpy as np
from numpy.typing import NDArray

from unifews.kernels import LANES, MAX_BLOCKS, aligned
from unifews.propagation.operator import HopOperator
from unifews.propagation.tiles import Floats, cut, full_hop
from unifews.resources import cores

_SMALL = 1 << 16  # edges that are timed at a time, at least, unless there are fewer
_STEP = 12  # of a large graph every twelfth run of rows is timed, and
_ROWS = 256  # rows make a run, so that neighbours of neighbouring nodes are found in the cache as in a whole hop
_BUSY = 1.5  # runnable threads for each core: more than this process has alone
_TRIALS = 3  # at least, each of other rows, which an earlier one has not brought into the cache
_SHARE, _LONGEST = 0.1, 0.06  # of the run's time, and seconds, for trials: threads of a matrix product before spin that long
_COPIES = 4  # of the values that an unpruned run writes beside its hops: two buffers of a tile, its sum, the result
_BYTES = 4 << 20  # written to see how fast fresh memory is


def unpruned_seconds(op: HopOperator, features: int, values: Floats, taken: float = 0.0) -> float | None:
    """Seconds, estimated, for so many features; None for a graph without edges, and on a busy machine.

    `values` [n, any] are what the pruned run has ended in, or anything as large; `taken`: how long it took.
    """
    graph = op.graph
    n, m = graph.num_nodes, graph.num_edges
    if not m or _is_busy():
        return None
    q = _gathered(values, n)
    step = max(1, min(_STEP, m // _SMALL, n // (_TRIALS * _ROWS)))
    hop = _Hop(op, q.shape[1], min(n, -(-n // step) + _ROWS))
    best, trial, until = math.inf, 0, perf_counter() + min(_LONGEST, _SHARE * taken)
    while trial < _TRIALS or perf_counter() < until:
        rows = _some(n, step, trial)
        best = min(best, hop(q, rows, op.threads), hop(q, rows, 1) if trial < _TRIALS else math.inf)
        trial += 1
    tiles = sum(shape.blocks for shape in cut(features)) * LANES / q.shape[1]
    fresh = min(_fresh_memory() for _ in range(_TRIALS))
    return float(op.hops * tiles * best + _COPIES * 4 * n * features * fresh)


def _is_busy() -> bool:
    """Whether other processes have kept the cores busy for the last minute."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > _BUSY * cores()


def _fresh_memory() -> float:
    """Seconds to write a byte of memory that has just been taken."""
    began = thread_time()
    np.empty(_BYTES // 4, dtype=np.float32).fill(1)
    return (thread_time() - began) / _BYTES


class _Hop:
    """An unpruned hop of one tile, of some of its rows."""

    def __init__(self, op: HopOperator, columns: int, rows: int) -> None:
        self.op = op
        self.after = _touched(rows, columns)
        self.out = _touched(rows, columns) if op.accumulate else None

    def __call__(self, q: Floats, rows: NDArray[np.int64], threads: int) -> float:
        """Seconds of a whole hop, by these rows; of one thread, seconds that it has run."""
        op, graph, clock = self.op, self.op.graph, thread_time if threads == 1 else perf_counter
        edges, keep, gain = op.edges, op.keep[rows], op.gain[rows]
        start, end = edges["start"][rows], edges["end"][rows]
        edges |= {"start": start, "end": end}
        began = clock()
        full_hop(edges, q, self.after, threads, keep=keep, gain=gain, coefficient=0.5, out=self.out)
        seconds = clock() - began
        return seconds * (graph.num_edges + graph.num_nodes) / (int((end - start).sum()) + len(start))


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
