"""Propagation with all values in memory: the basis, the hops, the error bound, and the result of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from unifews.propagation.assembly import make_trace
from unifews.propagation.certify import Prices, joined, left_out, norm_of
from unifews.propagation.driver import InMemoryResult, run_in_memory
from unifews.propagation.estimate import unpruned_seconds
from unifews.propagation.features import FeatureMatrix, Floats
from unifews.propagation.operator import HopOperator
from unifews.propagation.result import Hops, Propagated, Remainder
from unifews.propagation.sampled import SAMPLED, sampled
from unifews.propagation.store import peak_of, remaining
from unifews.propagation.task import PropagationTask
from unifews.propagation.view import View


def in_memory(task: PropagationTask, progress: Callable[[int, int], None] | None, began: float) -> Propagated:
    """`propagate`, once its arguments are checked; `began` is when it was called."""
    op, features, config = task.op, task.features, task.config
    basis = task.find_basis()
    budget = task.budget_on(basis.width(features.f))
    prices = Prices(op) if config.is_proven else None

    view = View(features, basis, op)
    if prices and view.is_partial:
        view.square = np.zeros(op.graph.num_nodes, dtype=np.float32)
        if features.sparse is not None and budget is None:
            view.sent = np.zeros(op.graph.num_nodes)
    outcome = run_in_memory(task, view, budget, prices, every_hop=config.every_hop, progress=progress)
    macs, notes = 0, [SAMPLED] if config.is_sampled else []
    values, axes = _with_mean_axis(outcome, view)
    exponent = scale_back(values, outcome.growth + features.exponent)
    remainder = Remainder(features, op) if view.is_partial else None
    bound, least = None if prices is None else _proven(exponent, outcome, op, view, prices), 0.0
    if config.is_sampled:
        bound = 0.0
        if view.is_partial or task.budget is not None:
            bound, least, extra = sampled(task, values, axes, exponent)
            macs += extra
    hops = _hops(outcome, view, remainder) if config.every_hop else None
    trace = make_trace(
        task,
        view,
        outcome.hops,
        began,
        groups=outcome.groups,
        exponent=exponent,
        extra_macs=macs,
        notes=notes,
        error_bound=bound,
        relative_error_bound=None if bound is None else relative(bound, values, least),
    )
    if task.budget or basis.axes is not None:
        trace = replace(trace, unpruned_seconds=unpruned_seconds(op, features.f, values, perf_counter() - began))
    return Propagated(values, axes, trace, exponent, hops, caller_kind(features), remainder)


def _proven(exponent: int, outcome: InMemoryResult, op: HopOperator, view: View, prices: Prices) -> float:
    """The certified error of values that are given over 2^exponent."""
    parts = [*outcome.certificates, *([left_out(op, view, prices)] if view.square is not None else [])]
    return joined(parts, exponent) if parts else 0.0


def relative(bound: float, values: Floats, least: float) -> float:
    """A bound relative to the unpruned norm, which is `least` at least, and that of the values less the bound."""
    if bound == 0:
        return 0.0
    least = max(least, norm_of(values) - bound)  # what lies outside the axes would only add to it
    return bound / least if least > 0 else math.inf


def scale_back(values: Floats, exponent: int) -> int:
    """Multiply by 2^exponent where float32 can hold it; returns the exponent that remains."""
    if not exponent:
        return 0
    peak = peak_of(values)
    assert math.isfinite(peak), "values are brought down before they outgrow float32"
    left = remaining(exponent, peak)
    if left != exponent:
        values *= np.float32(math.ldexp(1, exponent))
    return left


def _with_mean_axis(outcome: InMemoryResult, view: View) -> tuple[Floats, Floats | None]:
    """Coordinates and axes; where the axes do not span the stationary part's features c, with one more so that nothing is lost.

    Only the stationary part is propagated on it; of the rest a node keeps its own, as on every axis left out.
    """
    op, values, axes, phi, mean = view.op, outcome.values, view.basis.axes, view.phi, view.mean
    if axes is None or phi is None or mean is None:
        return values, axes
    outside = mean - axes @ (mean @ axes)
    size = float(np.linalg.norm(outside))
    if axes.shape[0] == axes.shape[1] or size <= 1e-6 * float(np.linalg.norm(mean)):
        return values, axes
    axis = (outside / size)[:, None]
    rest = view.features.times(axis, op.threads)[:, 0] - phi * np.float32(size)
    column = op.column(phi, outcome.growth) * np.float32(size) + op.alone(outcome.growth) * rest
    return np.concatenate([values, column[:, None]], axis=1), np.concatenate([axes, axis], axis=1)


def _hops(outcome: InMemoryResult, view: View, remainder: Remainder | None) -> Hops:
    shift, phi = view.features.exponent, view.phi
    columns = [] if phi is None else [(column, grown + shift) for column, grown in view.op.powers(phi)]
    values = [(hop, grown + shift) for hop, grown in outcome.snapshots]
    return Hops(values, columns, view.basis.axes, view.mean, remainder)


def caller_kind(features: FeatureMatrix) -> Callable[[Floats], Any]:
    """Back to what the caller gave: torch in, torch out, on the same device."""
    if not features.is_torch:
        return lambda array: array

    def to_torch(array: Floats) -> Any:
        import torch

        return torch.from_numpy(array).to(features.device)

    return to_torch
