"""Propagation with all values in memory: the axes, the hops, the bound, and the record of it all."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from unifews.core.trace import Trace
from unifews.kernels import describe
from unifews.propagation import local
from unifews.propagation.bounded import bounded
from unifews.propagation.budget import Budget, Target
from unifews.propagation.certify import Prices, joined, left_out, norm_of
from unifews.propagation.estimate import unpruned_seconds
from unifews.propagation.features import FeatureMatrix, Floats
from unifews.propagation.operator import HopOperator
from unifews.propagation.result import Hops, Propagated, Remainder
from unifews.propagation.sampled import SAMPLED, sampled
from unifews.propagation.task import PropagationTask
from unifews.propagation.tiles import scaled
from unifews.propagation.view import View

_MISSED = 0.05  # of the products: a target that is missed by more is reported


def in_memory(task: PropagationTask, progress: Callable[[int, int], None] | None, began: float) -> Propagated:
    """`propagate`, once its arguments are checked; `began` is when it was called."""
    op, features, config, max_error = task.op, task.features, task.config, task.amounts.max_error
    basis = task.find_basis()
    budget = task.budget_on(basis.width(features.f))
    prices = Prices(op) if config.is_proven or max_error is not None else None

    def fresh() -> View:
        view = View(features, basis, op)
        if prices and view.is_partial:
            view.square = np.zeros(op.graph.num_nodes, dtype=np.float32)
            if features.sparse is not None and not max_error and budget is None:
                view.sent = np.zeros(op.graph.num_nodes)
        return view

    def run(view: View, budget: Budget | None) -> local.GroupResult:
        return local.propagate_groups(
            op,
            view,
            budget,
            entries=config.entries,
            inherit=config.inherit,
            every_hop=config.every_hop,
            progress=progress,
            prices=prices,
        )

    runs, macs = 1, basis.macs
    if max_error and prices:
        done = bounded(op, fresh, prices, max_error, run)
        view, outcome, runs, macs = done.view, done.outcome, done.runs, macs + done.macs
    else:
        view = fresh()
        outcome = run(view, budget)
    if basis.axes is not None:
        macs += features.nnz * view.width
    values, axes = _with_mean_axis(outcome, view)
    if task.carries:
        macs += op.graph.num_edges * op.hops
    exponent = scale_back(values, outcome.growth + features.exponent)
    remainder = Remainder(features, op) if view.is_partial else None
    bound, least = None if prices is None else _proven(exponent, outcome, op, view, prices), 0.0
    if config.is_sampled:
        bound = 0.0
        if view.is_partial or budget is not None:
            bound, least, extra = sampled(op, features, values, axes, exponent)
            macs += extra
    hops = _hops(outcome, view, remainder) if config.every_hop else None
    setup = perf_counter() - began - basis.seconds - view.seconds - sum(hop.seconds for hop in outcome.hops)
    pruned = budget or max_error or basis.axes is not None
    whole = unpruned_seconds(op, features.f, values, perf_counter() - began) if pruned else None
    trace = Trace(
        tuple(outcome.hops),
        requested=task.requested,
        kernel=describe(op.threads),
        rank=None if basis.axes is None else view.width,
        basis_macs=macs,
        basis_seconds=basis.seconds + view.seconds,
        setup_seconds=max(setup, 0.0),
        dropped_norm=scaled(view.dropped_norm(), features.exponent),
        notes=_notes(task.budget, exponent, view, outcome, runs, config.is_sampled),
        error_bound=bound,
        relative_error_bound=None if bound is None else relative(bound, values, least),
        unpruned_seconds=whole,
    )
    return Propagated(values, axes, trace, exponent, hops, caller_kind(features), remainder)


def _proven(exponent: int, outcome: local.GroupResult, op: HopOperator, view: View, prices: Prices) -> float:
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
    peak = max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))
    assert math.isfinite(peak), "values are brought down before they outgrow float32"
    if not 2.0**-100 < scaled(peak, exponent) < 2.0**120:
        return exponent
    values *= np.float32(math.ldexp(1, exponent))
    return 0


def _with_mean_axis(outcome: local.GroupResult, view: View) -> tuple[Floats, Floats | None]:
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


def _hops(outcome: local.GroupResult, view: View, remainder: Remainder | None) -> Hops:
    shift, phi = view.features.exponent, view.phi
    columns = [] if phi is None else [(column, grown + shift) for column, grown in view.op.powers(phi)]
    values = [(hop, grown + shift) for hop, grown in outcome.snapshots]
    return Hops(values, columns, view.basis.axes, view.mean, remainder)


def _notes(
    budget: Budget | None, exponent: int, view: View, outcome: local.GroupResult, runs: int, by_sample: bool
) -> tuple[str, ...]:
    notes = []
    if by_sample:
        notes.append(SAMPLED)
    if runs > 1:
        notes.append(f"propagated {runs} times until the bound was met")
    if outcome.groups > 1:
        notes.append(f"columns were propagated in {outcome.groups} groups; the thresholds shown are those of the leading one")
    if exponent:
        notes.append(f"values lie outside float32 and are given divided by 2^{exponent}")
    if isinstance(budget, Target) and view.basis.axes is not None:
        least = 1 - view.width / view.features.f
        if least > budget.sparsity + 0.01:
            notes.append(
                f"{view.width} of {view.features.f:,} axes hold what matters: that alone removes {least:.1%}, more than the "
                f"{budget.sparsity:.1%} asked for (rank= keeps more)"
            )
    if isinstance(budget, Target) and view.diffusion.graph.num_edges:
        achieved = Trace(tuple(outcome.hops)).edge_sparsity
        if achieved < budget.sparsity - _MISSED:
            notes.append(f"{achieved:.1%} could be removed, not the {budget.sparsity:.1%} asked for")
    return tuple(notes)


def caller_kind(features: FeatureMatrix) -> Callable[[Floats], Any]:
    """Back to what the caller gave: torch in, torch out, on the same device."""
    if not features.is_torch:
        return lambda array: array

    def to_torch(array: Floats) -> Any:
        import torch

        return torch.from_numpy(array).to(features.device)

    return to_torch
