"""Propagation with all values in memory: the axes, the hops, the bound, and the record of it all."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from unifews.core.trace import Trace
from unifews.errors import InputError
from unifews.kernels import describe
from unifews.propagation import local
from unifews.propagation.basis import VERY_WIDE, Basis, principal, stationary_mean
from unifews.propagation.bounded import bounded
from unifews.propagation.budget import Budget, Target
from unifews.propagation.certify import Prices, joined, left_out, norm_of
from unifews.propagation.config import PropagationConfig
from unifews.propagation.estimate import unpruned_seconds
from unifews.propagation.features import FeatureMatrix, Floats
from unifews.propagation.operator import HopOperator, stationary
from unifews.propagation.result import Hops, Propagated, Remainder
from unifews.propagation.sampled import DIRECTIONS, FAILURE, sampled
from unifews.propagation.view import View

_MISSED = 0.05  # of the products: a target that is missed by more is reported


@dataclass(frozen=True)
class Frame:
    """What the columns of the values mean: their basis, and the stationary part beside them."""

    features: FeatureMatrix
    basis: Basis | None
    phi: Floats | None
    mean: Floats | None
    macs: int
    """Spent on finding them."""

    @property
    def width(self) -> int:
        return self.basis.rank if self.basis else self.features.f

    @property
    def is_partial(self) -> bool:
        """Whether axes are left out."""
        return self.width < self.features.f

    def meets(self, budget: Budget | None) -> bool:
        """Whether nothing is left to prune: the axes left out are more than was asked for."""
        return isinstance(budget, Target) and self.width <= math.ceil((1 - budget.sparsity) * self.features.f)

    @classmethod
    def of(
        cls, features: FeatureMatrix, op: HopOperator, budget: Budget | None, config: PropagationConfig, max_error: float | None
    ) -> Frame:
        """With an error bound all principal components are used, or the input columns where there are too many."""
        is_bounded, on_axes = bool(max_error), config.basis == "principal"
        rotate = on_axes and (budget is not None or config.rank is not None or (is_bounded and features.f <= VERY_WIDE))
        deflate = rotate or (is_bounded and on_axes) if config.deflate is None else config.deflate
        phi = stationary(op.diffusion) if deflate else None
        if not rotate:
            return cls(features, None, phi, None if phi is None else stationary_mean(features, phi, op.threads), 0)
        sparsity = 0.0 if is_bounded else budget.sparsity if isinstance(budget, Target) else None
        basis = principal(features, op.diffusion, phi, config.rank, sparsity, op.threads)
        # Fewer nodes than features have no more axes than nodes.
        short = is_bounded and config.rank is None and basis.rank < features.f
        return cls(features, None if short else basis, phi, basis.mean, basis.macs)


def in_memory(
    op: HopOperator,
    x: Any,
    budget: Budget | None,
    config: PropagationConfig,
    max_error: float | None,
    progress: Callable[[int, int], None] | None,
    began: float,
) -> Propagated:
    """`propagate`, once its arguments are checked; `began` is when it was called."""
    called = began
    features = FeatureMatrix(x, op.graph.num_nodes)
    _check_rank(config.rank, features.f)
    setup, began = perf_counter() - began, perf_counter()
    frame = Frame.of(features, op, budget, config, max_error)
    basis_seconds, began = perf_counter() - began, perf_counter()
    prices = Prices(op) if config.is_proven or max_error is not None else None
    spent = frame.meets(budget)

    def fresh() -> View:
        view = View(features, frame.basis, frame.phi, frame.mean, op.diffusion, op.threads)
        if prices and frame.is_partial:
            view.square = np.zeros(op.graph.num_nodes, dtype=np.float32)
            if features.sparse is not None and not max_error and (spent or budget is None):
                view.sent = np.zeros(op.graph.num_nodes)
        return view

    def run(view: View, budget: Budget | None) -> local.GroupResult:
        if budget is None:
            return local.unpruned(op, view, config.every_hop, progress)
        return local.pruned(op, view, config.entries, config.inherit, budget, config.every_hop, progress, prices)

    runs, macs = 1, frame.macs
    if max_error and prices:
        done = bounded(op, fresh, prices, max_error, run)
        view, outcome, runs, macs = done.view, done.outcome, done.runs, macs + done.macs
    else:
        view = fresh()
        outcome = run(view, None if spent else budget)
    macs += view.macs
    values, axes = _with_mean_axis(outcome, frame, op)
    if frame.phi is not None and op.scheme.skip != "diagonal":
        macs += op.graph.num_edges * op.hops
    exponent = _scale_back(values, outcome.growth + features.exponent)
    remainder = Remainder(features, op) if frame.is_partial else None
    bound, least = None if prices is None else _proven(exponent, outcome, op, view, prices), 0.0
    if config.is_sampled:
        bound = 0.0
        if frame.is_partial or budget is not None:
            bound, least, extra = sampled(op, features, values, axes, exponent)
            macs += extra
    hops = _hops(outcome, frame, op, remainder) if config.every_hop else None
    setup += perf_counter() - began - sum(hop.seconds for hop in outcome.hops) - view.seconds
    pruned = budget or max_error or frame.basis
    whole = unpruned_seconds(op, features.f, values, perf_counter() - called) if pruned else None
    trace = Trace(
        tuple(outcome.hops),
        requested=str(budget) if budget else f"max error {max_error:g}" if max_error else "unpruned",
        kernel=describe(op.threads),
        rank=view.width if frame.basis else None,
        basis_macs=macs,
        basis_seconds=basis_seconds + view.seconds,
        setup_seconds=max(setup, 0.0),
        dropped_norm=local.scaled(view.dropped_norm(), features.exponent),
        notes=_notes(budget, exponent, view, outcome, runs, config.is_sampled),
        error_bound=bound,
        relative_error_bound=None if bound is None else _relative(bound, values, least),
        unpruned_seconds=whole,
    )
    return Propagated(values, axes, trace, exponent, hops, _caller_kind(features), remainder)


def _check_rank(rank: int | None, features: int) -> None:
    if rank is not None and rank > features:
        raise InputError(f"`rank` must be an integer from 1 to the {features:,} features; got {rank}.", setting="rank")


def _proven(exponent: int, outcome: local.GroupResult, op: HopOperator, view: View, prices: Prices) -> float:
    """The certified error of values that are given over 2^exponent."""
    parts = [*outcome.certificates, *([left_out(op, view, prices)] if view.square is not None else [])]
    return joined(parts, exponent) if parts else 0.0


def _relative(bound: float, values: Floats, least: float) -> float:
    """A bound relative to the unpruned norm, which is `least` at least, and that of the values less the bound."""
    if bound == 0:
        return 0.0
    least = max(least, norm_of(values) - bound)  # what lies outside the axes would only add to it
    return bound / least if least > 0 else math.inf


def _scale_back(values: Floats, exponent: int) -> int:
    """Multiply by 2^exponent where float32 can hold it; returns the exponent that remains."""
    if not exponent:
        return 0
    peak = max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))
    assert math.isfinite(peak), "values are brought down before they outgrow float32"
    if not 2.0**-100 < local.scaled(peak, exponent) < 2.0**120:
        return exponent
    values *= np.float32(math.ldexp(1, exponent))
    return 0


def _with_mean_axis(outcome: local.GroupResult, frame: Frame, op: HopOperator) -> tuple[Floats, Floats | None]:
    """Coordinates and axes; where the axes do not span the stationary part's features c, with one more so that nothing is lost.

    Only the stationary part is propagated on it; of the rest a node keeps its own, as on every axis left out.
    """
    values, phi, mean = outcome.values, frame.phi, frame.mean
    if frame.basis is None:
        return values, None
    axes = frame.basis.axes
    if phi is None or mean is None:
        return values, axes
    outside = mean - axes @ (mean @ axes)
    size = float(np.linalg.norm(outside))
    if axes.shape[0] == axes.shape[1] or size <= 1e-6 * float(np.linalg.norm(mean)):
        return values, axes
    axis = (outside / size)[:, None]
    rest = frame.features.times(axis, op.threads)[:, 0] - phi * np.float32(size)
    column = op.column(phi, outcome.growth) * np.float32(size) + op.alone(outcome.growth) * rest
    return np.concatenate([values, column[:, None]], axis=1), np.concatenate([axes, axis], axis=1)


def _hops(outcome: local.GroupResult, frame: Frame, op: HopOperator, remainder: Remainder | None) -> Hops:
    shift, phi = frame.features.exponent, frame.phi
    columns = [] if phi is None else [(column, grown + shift) for column, grown in op.powers(phi)]
    values = [(hop, grown + shift) for hop, grown in outcome.snapshots]
    return Hops(values, columns, frame.basis.axes if frame.basis else None, frame.mean, remainder)


def _notes(
    budget: Budget | None, exponent: int, view: View, outcome: local.GroupResult, runs: int, by_sample: bool
) -> tuple[str, ...]:
    notes = []
    if by_sample:
        notes.append(f"the error was measured in {DIRECTIONS} random directions; the bound fails with a chance of {FAILURE:g}")
    if runs > 1:
        notes.append(f"propagated {runs} times until the bound was met")
    if outcome.groups > 1:
        notes.append(f"columns were propagated in {outcome.groups} groups; the thresholds shown are those of the leading one")
    if exponent:
        notes.append(f"values lie outside float32 and are given divided by 2^{exponent}")
    if isinstance(budget, Target) and view.basis is not None:
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


def _caller_kind(features: FeatureMatrix) -> Callable[[Floats], Any]:
    """Back to what the caller gave: torch in, torch out, on the same device."""
    if not features.is_torch:
        return lambda array: array

    def to_torch(array: Floats) -> Any:
        import torch

        return torch.from_numpy(array).to(features.device)

    return to_torch
