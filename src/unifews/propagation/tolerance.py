"""`propagate(..., max_error=ε)`: the plan, the run and its record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import numpy as np

from unifews.core.entry import Amounts
from unifews.core.schemes import SpectralFilter
from unifews.core.trace import Trace
from unifews.errors import InputError
from unifews.kernels import describe
from unifews.kernels.formats import FORMATS, row_format
from unifews.propagation.config import PropagationConfig
from unifews.propagation.inmemory import caller_kind, in_memory, relative, scale_back
from unifews.propagation.lanczos import MOST_HOPS, Goal, NotReached, Outcome, lanczos
from unifews.propagation.operator import HopOperator
from unifews.propagation.result import ErrorPlan, EstimatedError, Propagated
from unifews.propagation.sampled import SAMPLED, sampled
from unifews.propagation.task import PropagationTask

SMALL = 1_000_000
"""Nodes and edges, over all hops: of so few, estimates take longer than hops do."""
_SHORT = 3  # hops of a scheme for which fewer are hardly possible


def check(amounts: Amounts, config: PropagationConfig, scheme: object) -> None:
    """Refuse options that a propagation by its error cannot have."""
    if amounts.max_error is None:
        if isinstance(scheme, SpectralFilter):
            raise InputError(
                f"{type(scheme).__name__} has no number of hops; say which error is allowed, such as max_error=0.05.",
                setting="max_error",
            )
        for name in ("degree", "precision"):
            if getattr(config, name) is not None:
                raise InputError(f"`{name}` is for propagation by its error; give max_error=0.05 too.", setting=name)
        return
    if amounts.max_error == 0 and not config.is_proven:
        raise InputError("`max_error` is 0, and float32 rounds; leave it out for unpruned propagation.", setting="max_error")
    refused = {
        "every_hop": (config.every_hop, "has no embedding of each hop"),
        "inherit": (config.inherit, "removes no entries that later hops could leave out"),
        "entries": (config.entries != "block", "decides about no entries"),
        "rank": (config.rank is not None, "propagates all columns"),
        "focus": (config.focus is not None, "decides about no entries"),
        "deflate": (config.deflate is not None, "splits off the stationary part by itself"),
    }
    for name, (given, why) in refused.items():
        if given and not config.is_proven:
            raise InputError(
                f"max_error {why}; leave out `{name}`, or write edge_sparsity= instead of max_error=.", setting=name
            )


def propagate(task: PropagationTask, progress: Callable[[int, int], None] | None, began: float) -> Propagated:
    """Propagate until the estimated error is at most ε, or all hops of the scheme, whose error is 0."""
    op, features, config, max_error = task.op, task.features, task.config, task.amounts.max_error
    assert max_error is not None
    reason = _against(task)
    outcome = None if reason else _run(task, progress)
    if outcome is not None and not _is_asked_for(task) and outcome.error(config.error_norm) > max_error:
        outcome, reason = None, "rounding leaves too much of an error in fewer hops"
    if outcome is None:
        return _unpruned(task, reason or f"the error needs more than {MOST_HOPS} hops", progress, began)
    values = outcome.values
    exponent = scale_back(values, features.exponent)
    error, plan = outcome.error(config.error_norm), _plan(op, outcome, max_error)
    hops = outcome.hops(op.graph.num_edges, 0 if isinstance(op.scheme, SpectralFilter) else op.hops)
    notes = [f"estimated error {error:.3g}, {max_error:g} allowed: {plan}"]
    bound = least = None
    if config.is_sampled:
        bound, least, _ = sampled(task, values, None, exponent)
        notes.append(SAMPLED)
    trace = Trace(
        tuple(hops),
        requested=task.requested,
        kernel=describe(op.threads),
        setup_seconds=max(perf_counter() - began - sum(hop.seconds for hop in hops), 0.0),
        notes=tuple(notes),
        estimated_error=error,
        error_bound=bound,
        relative_error_bound=None if bound is None or least is None else relative(bound, values, least),
    )
    accuracy = EstimatedError(error, outcome.column_errors, plan)
    return Propagated(values, None, trace, exponent, None, caller_kind(features), accuracy=accuracy)


def _against(task: PropagationTask) -> str | None:
    """Why the scheme's own hops are the plan, if they are."""
    op = task.op
    is_filter = isinstance(op.scheme, SpectralFilter)
    if not op.graph.is_symmetric:
        if _is_asked_for(task):
            what = type(op.scheme).__name__ if is_filter else "`degree`" if task.config.degree else "`precision`"
            raise InputError(f"{what} needs an undirected graph, and this one is directed; use graph.undirected().")
        return "the graph is directed, and fewer hops need an undirected one"
    if _is_asked_for(task):
        return None
    if op.hops <= _SHORT or op.graph.num_edges == 0:
        return "so few hops cannot be made fewer"
    if op.hops * (op.graph.num_nodes + op.graph.num_edges) < SMALL:
        return "on a graph of this size all hops take no longer than estimates of the error"
    return None


def _is_asked_for(task: PropagationTask) -> bool:
    """Whether the scheme's own hops are no alternative: there are none, or the caller has said how to reach the error."""
    is_filter = isinstance(task.op.scheme, SpectralFilter)
    return is_filter or task.config.degree is not None or task.config.precision is not None


def _run(task: PropagationTask, progress: Callable[[int, int], None] | None) -> Outcome | None:
    op, config, max_error = task.op, task.config, task.amounts.max_error
    assert max_error is not None
    formats = tuple(FORMATS.values()) if config.precision is None else (row_format(config.precision),)
    if config.degree is not None and config.degree > min(op.hops, MOST_HOPS):
        raise InputError(
            f"`degree` is {config.degree}, more than the {min(op.hops, MOST_HOPS)} hops there are; give fewer.",
            setting="degree",
        )
    try:
        return lanczos(op, task.features, Goal(max_error, config.error_norm, config.degree, formats), progress)
    except NotReached as error:
        if isinstance(op.scheme, SpectralFilter):
            raise InputError(
                f"after {MOST_HOPS} hops the error is still {error.args[0]:.2g}; allow more than max_error={max_error:g}.",
                setting="max_error",
            ) from None
        return None


def _unpruned(task: PropagationTask, reason: str, progress: Callable[[int, int], None] | None, began: float) -> Propagated:
    """All hops of the scheme."""
    result = in_memory(replace(task, amounts=Amounts(), config=PropagationConfig(basis="input")), progress, began)
    note = f"propagated unpruned: {reason}"
    result.trace = replace(result.trace, requested=task.requested, estimated_error=0.0, notes=(*result.trace.notes, note))
    result.accuracy = EstimatedError(0.0, np.zeros(task.features.f), None)
    return result


def _plan(op: HopOperator, outcome: Outcome, max_error: float) -> ErrorPlan:
    n, m, moved = op.graph.num_nodes, op.graph.num_edges, 0
    for tile in outcome.tiles:
        row = tile.format.stride(tile.shape.blocks)
        own = tile.degree * (tile.degree + 1) // 2 + tile.degree + 1  # iterates read and written by the rows themselves
        moved += row * (tile.degree * m + n * own) + 8 * n * tile.shape.width
    return ErrorPlan(
        max_error,
        tuple(tile.degree for tile in outcome.tiles),
        tuple(tile.format.name for tile in outcome.tiles),
        sum(len(tile.redone) for tile in outcome.tiles),
        moved,
    )
