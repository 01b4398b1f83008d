"""`max_error`: as few entries as an error bound allows.

The bound must stay below ε·‖P‖, and ‖P‖ is not known before the end, so it is estimated: 16 directions are propagated whole,
some that hold most of it and some at random for the rest. After the run ‖P̂‖ - bound ≤ ‖P‖ decides; where the estimate was
too high, or the sample behind a threshold too kind, it is run again with less to spend.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.errors import InputError
from unifews.propagation.basis import Basis, stationary_mean
from unifews.propagation.budget import Budget, MaxError
from unifews.propagation.certify import Prices, joined, left_out, norm_of
from unifews.propagation.driver import InMemoryResult, run_in_memory
from unifews.propagation.task import PropagationTask
from unifews.propagation.tiles import Floats, scaled
from unifews.propagation.view import View

Run = Callable[[View, Budget | None], InMemoryResult]

DIRECTIONS, RANDOM = 16, 8  # one block; half of them at random
TRIES = 5
_SEED = 20250717


@dataclass(frozen=True)
class Bounded:
    """A propagation within its bound, and what it took."""

    view: View
    outcome: InMemoryResult
    runs: int
    macs: int


def bounded(task: PropagationTask, fresh: Callable[[], View], prices: Prices, max_error: float, run: Run) -> Bounded:
    """Run with thresholds chosen so that the certified ‖P̂ - P‖/‖P‖ is at most `max_error`; `fresh` makes an unfilled view."""
    op, first = task.op, fresh()
    norm, exponent = estimated_norm(task, first)
    macs = op.diffusion.graph.num_edges * op.hops * DIRECTIONS + first.features.nnz * DIRECTIONS
    error = max_error / (1 + max_error) * norm
    for attempt in range(TRIES):
        view = first if attempt == 0 else fresh()
        last = attempt == TRIES - 1 or not error > 0
        outcome = run(view, None if last else MaxError(error, exponent, op.hops, op.scheme.influence(op.hops)))
        dropped = left_out(op, view, prices).bound_over(exponent) if view.square is not None else 0.0
        pruned = joined(outcome.certificates, exponent)
        size = scaled(norm_of(outcome.values), outcome.growth + view.features.exponent - exponent)
        bound = math.hypot(pruned, dropped)
        if bound <= max_error * (size - bound) or (last and not dropped):
            return Bounded(view, outcome, attempt + 1, macs)
        # ‖P‖ lies between size - bound and size + bound, and what axes left out may cost is no longer to be had.
        budget = max_error / (1 + max_error) * size
        if dropped >= 0.99 * budget:
            raise InputError(
                f"rank={view.width} leaves out axes that may cost an error of {dropped / size:.2g}, which is all that "
                f"max_error={max_error:g} allows; keep more axes, or leave `rank` out."
            )
        error = 0.97 * math.sqrt(budget**2 - dropped**2) * min(1.0, error / pruned if pruned else 1.0)
    raise AssertionError("the last run is unpruned and within every bound")


def estimated_norm(task: PropagationTask, view: View) -> tuple[float, int]:
    """About ‖P‖_F, as (number, e) with the norm 2^e times that; exact for up to 16 features."""
    features = view.features
    axes, known = _directions(view)
    outcome = run_in_memory(task, View(features, Basis(axes, view.mean), task.op))
    square = np.square(outcome.values, dtype=np.float64).sum(axis=0)
    rest = features.f - known
    whole = float(square[:known].sum()) + (float(square[known:].mean()) * rest if rest else 0.0)
    return math.sqrt(whole), outcome.growth + features.exponent


def _directions(view: View) -> tuple[Floats, int]:
    """Orthonormal directions [f, ≤ 16], those that matter first, and the number of these; the others are random."""
    features, op = view.features, view.op
    if features.f <= DIRECTIONS:
        return np.eye(features.f, dtype=np.float32), features.f
    mean = view.mean if view.mean is not None else stationary_mean(features, op.phi, op.threads)
    parts: list[NDArray[Any]] = [mean[:, None]] if mean.any() else []
    if view.basis.axes is not None:
        parts.append(view.basis.axes[:, : DIRECTIONS - RANDOM - 1])
    known = sum(part.shape[1] for part in parts)
    parts.append(np.random.default_rng(_SEED).standard_normal((features.f, DIRECTIONS - known)))
    return np.linalg.qr(np.concatenate(parts, axis=1).astype(np.float64))[0].astype(np.float32), known
