"""`certify="sampled"`: the error measured in 16 random directions, and with it a bound that fails once in a million.

P Ω = h(S)(X Ω) for any Ω [f, 16] costs 16 columns to propagate, one block, whatever f is; P̂ Ω is a product with what is at
hand. What the two differ by is the error itself, cancellations included, seen from a few sides (`unifews.theory.sample_range`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from unifews.propagation.basis import Basis
from unifews.propagation.certify import norm_of
from unifews.propagation.driver import run_in_memory
from unifews.propagation.task import PropagationTask
from unifews.propagation.tiles import Floats
from unifews.propagation.view import View
from unifews.theory.bounds import sample_range

DIRECTIONS = 16
FAILURE = 1e-6
SAMPLED = f"the error was measured in {DIRECTIONS} random directions; the bound fails with a chance of {FAILURE:g}"
"""A note for traces."""
_SEED = 20250718  # pruning never sees these directions, so they are as good as fresh ones


class Sampled(NamedTuple):
    """‖P̂ - P‖_F is at most `bound` and ‖P‖_F at least `norm`, over 2^exponent, but for a chance of `FAILURE` in all."""

    bound: float
    norm: float
    macs: int


def sampled(task: PropagationTask, values: Floats, axes: Floats | None, exponent: int) -> Sampled:
    """The bound for an embedding of coordinates `values` on `axes` (None: the input's), given over 2^exponent.

    What lies outside the axes is what a node keeps of its own features (ADR 10). Up to 16 features all of the error is seen.
    """
    op, features, f = task.op, task.features, task.features.f
    if f <= DIRECTIONS:
        directions, least, most = np.eye(f, dtype=np.float32), 1.0, 1.0
    else:
        directions = np.random.default_rng(_SEED).standard_normal((f, DIRECTIONS), dtype=np.float32)
        least, most = (DIRECTIONS * t for t in sample_range(DIRECTIONS, FAILURE / 2))
    whole = run_in_memory(task, View(features, Basis(directions, None), op))
    exact = whole.values * 2.0 ** (whole.growth + features.exponent - exponent)
    seen = values @ directions if axes is None else values @ (axes.T @ directions)
    if axes is not None and axes.shape[1] < f:
        own = features.times(np.ascontiguousarray(directions - axes @ (axes.T @ directions)), op.threads)
        seen += op.alone(exponent - features.exponent)[:, None] * own
    k = directions.shape[1]
    macs = features.nnz * k + op.graph.num_edges * op.hops * k + values.size * k
    return Sampled(norm_of(seen - exact) / math.sqrt(least), norm_of(exact) / math.sqrt(most), macs)
