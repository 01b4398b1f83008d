"""`propagate(..., max_error=ε)`: the plan, the run and its record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np

from unifews.core.entry import Amounts
from unifews.core.schemes import SpectralFilter
from unifews.core.trace import Trace
from unifews.errors import InputError
from unifews.kernels import LANES, MAX_BLOCKS, describe
from unifews.kernels.formats import AUTOMATIC, row_format
from unifews.propagation.chebyshev import Economised, chebyshev
from unifews.propagation.config import PropagationConfig
from unifews.propagation.features import Floats
from unifews.propagation.inmemory import caller_kind, in_memory, relative, scale_back
from unifews.propagation.lanczos import MOST_HOPS, Goal, NotReached, Outcome, lanczos, room_for, series_of
from unifews.propagation.operator import HopOperator
from unifews.propagation.result import ErrorPlan, EstimatedError, Propagated
from unifews.propagation.sampled import SAMPLED, sampled
from unifews.propagation.spectral import Outlook, outlook
from unifews.propagation.task import PropagationTask
from unifews.resources import Progress

GAIN = 0.75
"""Of the unpruned hops: fewer hops must cost less than this, in expectation."""
_HOP = {"int8": 0.65, "bfloat16": 0.85, "float32": 1.1}  # of an unpruned hop
_OWN = 0.025  # of a hop for each iterate of a row that a hop reads
_PASSES = 6  # over the rows, beside the hops: sums, encoding, the result
_ENTRY = 50e-12  # seconds of an unpruned hop for each entry and column, on two cores of a server
_ESTIMATE, _TILE = 0.6e-3, 1.5e-3  # seconds of an estimate, and of what else is done for a tile
_PROVEN = 1.1  # of an unpruned hop: one that also subtracts the iterate before the last
_PROVEN_GAIN = 0.9  # of the unpruned hops: a proof must cost less than this, in expectation
_SHORT = 3  # hops of a scheme for which fewer are hardly possible


def check(amounts: Amounts, config: PropagationConfig, scheme: object) -> None:
    """Refuse options that a propagation by its error cannot have."""
    if amounts.max_error is None:
        if isinstance(scheme, SpectralFilter):
            raise InputError(
                f"{type(scheme).__name__} has no number of hops; say which error is allowed, such as max_error=0.05.",
                setting="max_error",
            )
        if config.degree is not None:
            raise InputError("`degree` is for propagation by its error; give max_error=0.05 too.", setting="degree")
        if config.precision is not None:
            _check_stored(amounts, config)
        return
    if amounts.max_error == 0:
        raise InputError("`max_error` is 0, and float32 rounds; leave it out for unpruned propagation.", setting="max_error")
    refused = {
        "every_hop": (config.every_hop, "has no embedding of each hop"),
        "inherit": (config.inherit, "removes no entries that later hops could leave out"),
        "entries": (config.entries != "block", "decides about no entries"),
        "rank": (config.rank is not None, "propagates all columns"),
    }
    for name, (given, why) in refused.items():
        if given:
            raise InputError(
                f"max_error {why}; leave out `{name}`, or write edge_sparsity= instead of max_error=.", setting=name
            )
    if config.is_proven and config.precision not in (None, "float32"):
        raise InputError(
            f"certify=True with max_error needs rows of float32, and precision is {config.precision!r}, whose rounding may "
            "exceed the allowed error; leave one of them out.",
            setting="precision",
        )


def _check_stored(amounts: Amounts, config: PropagationConfig) -> None:
    """Refuse options that unpruned hops on stored rows cannot have."""
    pruned = amounts.edge_sparsity or amounts.edge_threshold is not None or amounts.relative_threshold is not None
    refused = {
        "edge_sparsity or a threshold": (pruned, "prunes rows of float32"),
        "certify": (bool(config.certify), "needs rows of float32"),
        "every_hop": (config.every_hop, "needs rows of float32"),
        "entries": (config.entries != "block", "prunes rows of float32"),
        "rank": (config.rank is not None, "propagates principal components in float32"),
    }
    for name, (given, why) in refused.items():
        if given:
            raise InputError(
                f"precision={config.precision!r} without max_error runs all hops unpruned, and {name} {why}; leave one of "
                "them out.",
                setting="precision",
            )


def check_in_memory(amounts: Amounts, config: PropagationConfig, what: str) -> None:
    """Refuse `precision` without `max_error` where there are no such hops; `what` is the way of running."""
    if config.precision is not None and amounts.max_error is None:
        raise InputError(
            f"{what} has no hops of its own in {config.precision!r} rows; give max_error=0.05 too, or leave out `precision`.",
            setting="precision",
        )


def check_columns(task: PropagationTask) -> None:
    """Refuse rows of 4 bits where there is nothing to share a step with."""
    if task.config.precision == "int4" and task.features.f == 1:
        raise InputError(
            "precision='int4' keeps four bits of a value, too few for one column of features; write precision='int8'.",
            setting="precision",
        )


def propagate(task: PropagationTask, progress: Progress | None, began: float) -> Propagated:
    """Propagate until the estimated or proven error is at most ε, or all hops of the scheme, whose error is 0."""
    features, run = task.features, _proven if task.config.is_proven else _estimated
    found = run(task, progress)
    if isinstance(found, str):
        reason = found
        result = in_memory(unpruned(task), progress, began)
        result.trace, result.accuracy = unpruned_record(task, result.trace, reason)
        return result
    values, outcome = found
    exponent = scale_back(values, features.exponent)
    trace, accuracy = record(task, outcome, began)
    if task.config.is_proven:
        bound = float(np.linalg.norm(outcome.absolute_errors)) * 2.0 ** (features.exponent - exponent)
        trace = replace(trace, error_bound=bound, relative_error_bound=outcome.error("frobenius"))
    if task.config.is_sampled:
        bound, least, _ = sampled(task, values, None, exponent)
        notes, proven = (*trace.notes, SAMPLED), relative(bound, values, least)
        trace = replace(trace, notes=notes, error_bound=bound, relative_error_bound=proven)
    return Propagated(values, None, trace, exponent, None, caller_kind(features), accuracy=accuracy)


def _estimated(task: PropagationTask, progress: Progress | None) -> tuple[Floats, Outcome] | str:
    """By Lanczos recurrences; or why the scheme's own hops are to be run."""
    ahead = expected(task)
    reason = against(task, ahead)
    if reason is not None:
        return reason
    try:
        values, outcome = lanczos(task.op, task.features, goal_of(task, ahead), progress)
    except NotReached as error:
        return unreached(task, error.args[0])
    return missed(task, outcome) or (values, outcome)


def _proven(task: PropagationTask, progress: Progress | None) -> tuple[Floats, Outcome] | str:
    """By a polynomial whose distance from the scheme's is known; or why the scheme's own hops are to be run."""
    op, config, max_error = task.op, task.config, task.amounts.max_error
    assert max_error is not None
    reason = _unsuitable(task)
    if reason is not None:
        return reason
    way = Economised.of(op)
    if config.degree is not None and config.degree > way.series.degree:
        raise _too_many(config.degree, way.series.degree)
    if not _is_asked_for(task):
        n, m = op.graph.num_nodes, op.graph.num_edges
        cost = _PROVEN * way.expected_degree(max_error) + _PASSES * n / (2 * n + m)
        if cost > _PROVEN_GAIN * op.hops:
            return "a proof needs as many hops"
    try:
        return chebyshev(op, task.features, way, max_error, config.error_norm, config.degree, progress)
    except NotReached as error:
        if isinstance(op.scheme, SpectralFilter):
            raise InputError(
                f"the rounding of float32 alone may be {error.args[0]:.2g} of the result; allow more than "
                f"max_error={max_error:g}, or leave out certify=True.",
                setting="max_error",
            ) from error
        return "a proof needs all hops"


def record(
    task: PropagationTask, outcome: Outcome, began: float, workers: Sequence[Outcome] = ()
) -> tuple[Trace, EstimatedError]:
    """What the trace and the result tell of tiles that met the goal; a hop takes as long as the slowest of the workers."""
    op, config, max_error = task.op, task.config, task.amounts.max_error
    assert max_error is not None
    error, plan = outcome.error(config.error_norm), _plan(op, outcome, max_error, config.is_proven)
    hops = outcome.hops(op.graph.num_edges, 0 if isinstance(op.scheme, SpectralFilter) else op.hops)
    if workers:
        hops = [replace(hop, seconds=max(each.seconds(hop.index) for each in workers)) for hop in hops]
    trace = Trace(
        tuple(hops),
        requested=task.requested,
        kernel=describe(op.threads),
        setup_seconds=max(perf_counter() - began - sum(hop.seconds for hop in hops), 0.0),
        notes=(f"{'proven' if config.is_proven else 'estimated'} error {error:.3g}, {max_error:g} allowed: {plan}",),
        estimated_error=error,
    )
    return trace, EstimatedError(error, outcome.column_errors, plan)


def expected(task: PropagationTask) -> Outlook:
    """Of the task's function, before anything is propagated."""
    op, max_error = task.op, task.amounts.max_error
    assert max_error is not None
    return outlook(series_of(op), max_error, min(op.hops, MOST_HOPS))


def against(task: PropagationTask, ahead: Outlook) -> str | None:
    """Why the scheme's own hops are the plan, if they are."""
    reason, max_error = _unsuitable(task), task.amounts.max_error
    assert max_error is not None
    if reason is None and not _is_asked_for(task) and expected_cost(task.op, max_error, ahead) > GAIN * task.op.hops:
        return "fewer hops and their estimates would take as long"
    return reason


def _unsuitable(task: PropagationTask) -> str | None:
    """Why this graph and scheme leave no choice but the scheme's own hops, if so."""
    op = task.op
    if not op.graph.is_symmetric:
        if _is_asked_for(task):
            is_filter = isinstance(op.scheme, SpectralFilter)
            what = type(op.scheme).__name__ if is_filter else "`degree`" if task.config.degree else "`precision`"
            raise InputError(f"{what} needs an undirected graph, and this one is directed; use graph.undirected().")
        return "the graph is directed, and fewer hops need an undirected one"
    if task.config.is_proven and op.grows and not isinstance(op.scheme, SpectralFilter):
        return "values may outgrow float32"
    if not _is_asked_for(task) and (op.hops <= _SHORT or op.graph.num_edges == 0):
        return "so few hops cannot be made fewer"
    return None


def _is_asked_for(task: PropagationTask) -> bool:
    """Whether the scheme's own hops are no alternative: there are none, or the caller has said how to reach the error."""
    is_filter = isinstance(task.op.scheme, SpectralFilter)
    return is_filter or task.config.degree is not None or task.config.precision is not None


def expected_cost(op: HopOperator, tolerance: float, ahead: Outlook) -> float:
    """Of a propagation by its error, in unpruned hops: from the usual spectrum, so without touching the features."""
    n, m = op.graph.num_nodes, op.graph.num_edges
    fits = [each.name for each in AUTOMATIC if each.typical <= room_for(ahead.amplification) * tolerance]
    fixed = (_ESTIMATE * 0.7 * ahead.degree + _TILE) / (_ENTRY * MAX_BLOCKS * LANES * (n + m))
    return ahead.degree * (_HOP[fits[0]] + _OWN * ahead.degree) + _PASSES * n / (2 * n + m) + fixed


def goal_of(task: PropagationTask, ahead: Outlook) -> Goal:
    op, config, max_error = task.op, task.config, task.amounts.max_error
    assert max_error is not None
    formats = AUTOMATIC if config.precision is None else (row_format(config.precision),)
    if config.degree is not None and config.degree > min(op.hops, MOST_HOPS):
        raise _too_many(config.degree, min(op.hops, MOST_HOPS))
    return Goal(max_error, config.error_norm, config.degree, formats, room_for(ahead.amplification))


def _too_many(degree: int, most: int) -> InputError:
    return InputError(f"`degree` is {degree}, more than the {most} hops there are; give fewer.", setting="degree")


def missed(task: PropagationTask, outcome: Outcome) -> str | None:
    """Why the scheme's own hops are to be run after all, if they are."""
    max_error = task.amounts.max_error
    assert max_error is not None
    if _is_asked_for(task) or outcome.error(task.config.error_norm) <= max_error:
        return None
    return "rounding leaves too much of an error in fewer hops"


def unreached(task: PropagationTask, error: float) -> str:
    """The same where some tile has this error after as many hops as there may be; a filter has no hops of its own."""
    if isinstance(task.op.scheme, SpectralFilter):
        raise InputError(
            f"after {MOST_HOPS} hops the error is still {error:.2g}; allow more than max_error={task.amounts.max_error:g}.",
            setting="max_error",
        )
    return f"the error needs more than {MOST_HOPS} hops"


def unpruned(task: PropagationTask) -> PropagationTask:
    """All hops of the scheme."""
    return replace(task, amounts=Amounts(), config=PropagationConfig(basis="input"))


def unpruned_record(task: PropagationTask, trace: Trace, reason: str) -> tuple[Trace, EstimatedError]:
    """What the trace and the result tell of all hops of the scheme; `trace` is that of `unpruned`."""
    notes = (*trace.notes, f"propagated unpruned: {reason}")
    trace = replace(trace, requested=task.requested, estimated_error=0.0, notes=notes)
    if task.config.is_proven:
        trace = replace(trace, error_bound=0.0, relative_error_bound=0.0)
    return trace, EstimatedError(0.0, np.zeros(task.features.f), None)


def _plan(op: HopOperator, outcome: Outcome, max_error: float, is_proven: bool) -> ErrorPlan:
    n, m, moved = op.graph.num_nodes, op.graph.num_edges, 0
    for tile in outcome.tiles:
        row = tile.format.stride(tile.shape.blocks)
        # Iterates read and written by the rows themselves: the last few, and for the sum all of them.
        own = 5 * tile.degree if is_proven else 4 * tile.degree + 1
        moved += row * (tile.degree * m + n * own) + 8 * n * tile.shape.width
    return ErrorPlan(
        max_error,
        tuple(tile.degree for tile in outcome.tiles),
        tuple(tile.format.name for tile in outcome.tiles),
        sum(len(tile.redone) for tile in outcome.tiles),
        moved,
    )
