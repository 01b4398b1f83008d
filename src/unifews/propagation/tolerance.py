"""`propagate(..., max_error=ε)`: the plan, the run and its record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from unifews.core.entry import Amounts
from unifews.core.schemes import SpectralFilter
from unifews.core.trace import Trace
from unifews.errors import InputError
from unifews.kernels import describe
from unifews.kernels.formats import AUTOMATIC, row_format
from unifews.propagation import plan as plans
from unifews.propagation.chebyshev import Economised, chebyshev
from unifews.propagation.config import PropagationConfig
from unifews.propagation.cost import CALIBRATED_FROM, Costs, built_in, calibrated, read
from unifews.propagation.features import Floats
from unifews.propagation.inmemory import caller_kind, in_memory, relative, scale_back
from unifews.propagation.lanczos import MOST_HOPS, Goal, NotReached, Outcome, lanczos, room_for, series_of, tile_shapes
from unifews.propagation.operator import HopOperator
from unifews.propagation.plan import Alternative, ErrorPlan, Method, Step
from unifews.propagation.result import EstimatedError, Propagated
from unifews.propagation.sampled import SAMPLED, sampled
from unifews.propagation.spectral import Outlook, outlook
from unifews.propagation.task import PropagationTask
from unifews.propagation.tiles import cut
from unifews.resources import Progress

GAIN = 0.75
"""Of the unpruned hops: another plan must take less than this, in expectation."""
METHODS: tuple[Method, ...] = plans.METHODS
"""What may be planned, where the caller does not say how."""
_ECONOMISED = 1.2  # of an unpruned hop: one that also subtracts the iterate before the last
_THREADS = 2  # for which built-in costs are taken: short propagations have the same plan whatever their threads are
_ESTIMATES = 0.5  # of the hops of a recurrence have an estimate
_SETUP = 1.2e-3, 0.1e-3  # seconds of a tile of a recurrence, and of a polynomial, whatever its size
_PASSES = 3  # rows of a recurrence, beside its hops: encoding, the result
_FEW = 1 << 15  # nodes: up to here a Chebyshev polynomial may be the plan. It works on three float32 tiles
_PROVEN_GAIN = 0.95  # of the unpruned hops: a proof must cost less than this, in expectation
_SHORT = 3  # hops of a scheme for which fewer are hardly possible


@dataclass(frozen=True)
class Decision:
    """How the error is to be reached, before anything is propagated."""

    method: Method
    reason: str | None = None
    """Why the scheme's own hops are the plan, if they are."""
    considered: tuple[Alternative, ...] = ()
    costs: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "considered": [vars(each) for each in self.considered]}

    @classmethod
    def of_dict(cls, kept: dict[str, Any]) -> Decision:
        return cls(**{**kept, "considered": tuple(Alternative(**each) for each in kept["considered"])})


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
    features, made = task.features, decide(task)
    found = _run(task, made, progress)
    if isinstance(found, str):
        result = in_memory(unpruned(task), progress, began)
        result.trace, result.accuracy = unpruned_record(task, result.trace, made, found, began)
        return result
    values, outcome, made = found
    exponent = scale_back(values, features.exponent)
    trace, accuracy = record(task, outcome, made, began)
    if task.config.is_proven:
        bound = float(np.linalg.norm(outcome.absolute_errors)) * 2.0 ** (features.exponent - exponent)
        trace = replace(trace, error_bound=bound, relative_error_bound=outcome.error("frobenius"))
    if task.config.is_sampled:
        bound, least, _ = sampled(task, values, None, exponent)
        notes, proven = (*trace.notes, SAMPLED), relative(bound, values, least)
        trace = replace(trace, notes=notes, error_bound=bound, relative_error_bound=proven)
    return Propagated(values, None, trace, exponent, None, caller_kind(features), accuracy=accuracy)


def _run(task: PropagationTask, made: Decision, progress: Progress | None) -> tuple[Floats, Outcome, Decision] | str:
    """By the method that was decided on; or why the scheme's own hops are to be run."""
    while made.method != "unpruned":
        goal = goal_of(task, made)
        try:
            if made.method == "lanczos":
                values, outcome = lanczos(task.op, task.features, goal, progress)
            else:
                values, outcome = chebyshev(task.op, task.features, way_of(task), goal.tolerance, progress=progress, goal=goal)
        except NotReached as error:
            found = unreached(task, made, error.args[0])
            if isinstance(found, str):
                return found
            made = found
            continue
        return missed(task, outcome) or (values, outcome, made)
    return made.reason or ""


def decide(task: PropagationTask, methods: Sequence[Method] | None = None, measures: bool = True) -> Decision:
    """The method, by what each is expected to take. Without `measures` the machine is not measured, which takes memory."""
    config, methods = task.config, METHODS if methods is None else tuple(each for each in methods if each in METHODS)
    if task.plan is not None:
        return Decision(task.plan.method, "as in the plan given", task.plan.considered, task.plan.costs)
    reason = _unsuitable(task)
    if config.is_proven:
        return Decision("unpruned", reason) if reason is not None else _proof(task)
    if reason is not None:
        return Decision("unpruned", reason)
    if config.degree is not None or config.precision is not None:
        return Decision("lanczos")
    costs = built_in(_THREADS)
    if unpruned_cost(task, costs) >= CALIBRATED_FROM:
        costs = calibrated(task.op.threads) if measures else read(task.op.threads) or costs
    considered = forecast(task, costs, methods)
    own = next((each.seconds for each in considered if each.method == "unpruned"), math.inf)
    best = min((each for each in considered if each.method != "unpruned"), key=lambda each: each.seconds)
    if "unpruned" in methods and best.seconds > GAIN * own:
        return Decision("unpruned", "fewer hops and their estimates would take as long", considered, costs.source)
    return Decision(best.method, None, considered, costs.source)


def _proof(task: PropagationTask) -> Decision:
    """A polynomial, or the scheme's own hops where a proof needs as many."""
    config, way = task.config, way_of(task)
    assert task.amounts.max_error is not None
    if config.degree is not None and config.degree > way.series.degree:
        raise _too_many(config.degree, way.series.degree)
    if not _is_asked_for(task):
        costs = built_in(_THREADS)
        own, proof = unpruned_cost(task, costs), _polynomial(task, costs)
        if proof.seconds > _PROVEN_GAIN * own:
            return Decision("unpruned", "a proof needs as many hops")
    return Decision("chebyshev")


def forecast(task: PropagationTask, costs: Costs, methods: Sequence[Method]) -> tuple[Alternative, ...]:
    """Seconds of each method, from the usual spectrum, so without touching the features."""
    op, ahead = task.op, expected(task)
    found = []
    if not isinstance(op.scheme, SpectralFilter):
        found.append(Alternative("unpruned", "float32", op.hops, unpruned_cost(task, costs)))
    if task.features.n <= _FEW and not (op.grows and not isinstance(op.scheme, SpectralFilter)):
        found.append(_polynomial(task, costs))
    found.append(_recurrence(task, costs, ahead))
    return tuple(each for each in found if each.method in methods or each.method == "unpruned")


def unpruned_cost(task: PropagationTask, costs: Costs) -> float:
    """Expected seconds of the scheme's own hops; of a filter, of 20."""
    graph, hops = task.op.graph, 20 if isinstance(task.op.scheme, SpectralFilter) else task.op.hops
    tiles = tile_shapes(task.features.f, graph.num_nodes)
    return hops * sum(costs.kernel("unpruned", graph.num_nodes, graph.num_edges, tile.blocks) + costs.call for tile in tiles)


def _polynomial(task: PropagationTask, costs: Costs) -> Alternative:
    graph, max_error = task.op.graph, task.amounts.max_error
    assert max_error is not None
    degree = way_of(task).expected_degree(max_error)
    tiles = tile_shapes(task.features.f, graph.num_nodes)
    hops = sum(costs.kernel("unpruned", graph.num_nodes, graph.num_edges, tile.blocks) for tile in tiles)
    seconds = degree * (_ECONOMISED * hops + costs.call * len(tiles)) + _SETUP[1] * len(tiles)
    return Alternative("chebyshev", "float32", degree, seconds)


def _recurrence(task: PropagationTask, costs: Costs, ahead: Outlook) -> Alternative:
    graph, max_error, degree = task.op.graph, task.amounts.max_error, ahead.degree
    assert max_error is not None
    room = room_for(ahead.amplification) * max_error
    format = next((each.name for each in AUTOMATIC if each.typical <= room), "float32")
    tiles = tile_shapes(task.features.f, graph.num_nodes)
    fixed = degree * (costs.hop + _ESTIMATES * costs.estimate) + _SETUP[0]
    passes = _PASSES * graph.num_nodes * sum(costs.kernel(format, graph.num_nodes, 0, tile.blocks) for tile in tiles)
    hops = sum(costs.kernel(format, graph.num_nodes, graph.num_edges, tile.blocks) for tile in tiles)
    return Alternative("lanczos", format, degree, degree * hops + passes / graph.num_nodes + fixed * len(tiles))


def record(
    task: PropagationTask, outcome: Outcome, made: Decision, began: float, workers: Sequence[Outcome] = ()
) -> tuple[Trace, EstimatedError]:
    """What the trace and the result tell of tiles that met the goal; a hop takes as long as the slowest of the workers."""
    op, config, max_error = task.op, task.config, task.amounts.max_error
    assert max_error is not None
    error, steps = outcome.error(config.error_norm), tuple(tile.step for tile in outcome.tiles)
    plan = _plan(task, made, steps, _moved(op, outcome, made.method == "chebyshev"), began)
    hops = outcome.hops(op.graph.num_edges, 0 if isinstance(op.scheme, SpectralFilter) else op.hops)
    if workers:
        hops = [replace(hop, seconds=max(each.seconds(hop.index) for each in workers)) for hop in hops]
    kind = "proven" if made.method == "chebyshev" else "estimated"
    trace = Trace(
        tuple(hops),
        requested=task.requested,
        kernel=describe(op.threads),
        setup_seconds=max(perf_counter() - began - sum(hop.seconds for hop in hops), 0.0),
        notes=(f"{kind} error {error:.3g}, {max_error:g} allowed: {plan}", *([plan.forecast] if plan.forecast else [])),
        estimated_error=error,
    )
    return trace, EstimatedError(error, outcome.column_errors, plan)


def expected(task: PropagationTask) -> Outlook:
    """Of the task's function, before anything is propagated."""
    op, max_error = task.op, task.amounts.max_error
    assert max_error is not None
    return outlook(series_of(op), max_error, min(op.hops, MOST_HOPS))


def way_of(task: PropagationTask) -> Economised:
    """Polynomials of low degree for the task's function."""
    return Economised.of(task.op)


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


def goal_of(task: PropagationTask, made: Decision) -> Goal:
    op, config, max_error = task.op, task.config, task.amounts.max_error
    assert max_error is not None
    steps = () if task.plan is None else task.plan.steps
    if made.method == "chebyshev":
        single = (row_format("float32"),)
        return Goal(max_error, config.error_norm, config.degree, single, method="chebyshev", steps=steps)
    ahead = expected(task)
    formats = AUTOMATIC if config.precision is None else (row_format(config.precision),)
    if config.degree is not None and config.degree > min(op.hops, MOST_HOPS):
        raise _too_many(config.degree, min(op.hops, MOST_HOPS))
    return Goal(max_error, config.error_norm, config.degree, formats, room_for(ahead.amplification), steps=steps)


def _too_many(degree: int, most: int) -> InputError:
    return InputError(f"`degree` is {degree}, more than the {most} hops there are; give fewer.", setting="degree")


def missed(task: PropagationTask, outcome: Outcome) -> str | None:
    """Why the scheme's own hops are to be run after all, if they are."""
    max_error = task.amounts.max_error
    assert max_error is not None
    if task.plan is not None or _is_asked_for(task) or outcome.error(task.config.error_norm) <= max_error:
        return None
    return "rounding leaves too much of an error in fewer hops"


def unreached(task: PropagationTask, made: Decision, error: float) -> str | Decision:
    """The same where some tile has this error after as many hops as there may be; a filter has no hops of its own."""
    is_filter, max_error = isinstance(task.op.scheme, SpectralFilter), task.amounts.max_error
    if task.config.is_proven:
        if is_filter:
            raise InputError(
                f"the rounding of float32 alone may be {error:.2g} of the result; allow more than "
                f"max_error={max_error:g}, or leave out certify=True.",
                setting="max_error",
            )
        return "a proof needs all hops"
    if made.method == "chebyshev":
        return replace(made, method="lanczos") if is_filter else "a polynomial of lower degree is not accurate enough"
    if is_filter:
        raise InputError(
            f"after {MOST_HOPS} hops the error is still {error:.2g}; allow more than max_error={max_error:g}.",
            setting="max_error",
        )
    return f"the error needs more than {MOST_HOPS} hops"


def unpruned(task: PropagationTask) -> PropagationTask:
    """All hops of the scheme."""
    return replace(task, amounts=Amounts(), config=PropagationConfig(basis="input"), plan=None)


def unpruned_record(
    task: PropagationTask, trace: Trace, made: Decision, reason: str, began: float
) -> tuple[Trace, EstimatedError]:
    """What the trace and the result tell of all hops of the scheme; `trace` is that of `unpruned`."""
    op, f = task.op, task.features.f
    steps = tuple(Step(tile.column, tile.width, "float32", op.hops) for tile in cut(f))
    moved = 4 * f * op.hops * (op.graph.num_edges + 3 * op.graph.num_nodes)
    plan = _plan(task, replace(made, method="unpruned"), steps, moved, began)
    notes = (*trace.notes, *([plan.forecast] if plan.forecast else []), f"propagated unpruned: {reason}")
    trace = replace(trace, requested=task.requested, estimated_error=0.0, notes=notes)
    if task.config.is_proven:
        trace = replace(trace, error_bound=0.0, relative_error_bound=0.0)
    return trace, EstimatedError(0.0, np.zeros(f), plan)


def _plan(task: PropagationTask, made: Decision, steps: tuple[Step, ...], moved: int, began: float) -> ErrorPlan:
    max_error, took = task.amounts.max_error, perf_counter() - began
    assert max_error is not None
    return ErrorPlan(max_error, made.method, steps, moved, task.described, made.considered, took, made.costs)


def _moved(op: HopOperator, outcome: Outcome, is_polynomial: bool) -> int:
    """Bytes of rows over all hops."""
    n, m, moved = op.graph.num_nodes, op.graph.num_edges, 0
    for tile in outcome.tiles:
        row = tile.format.stride(tile.shape.blocks)
        # Iterates read and written by the rows themselves: the last few, and for the sum all of them.
        own = 5 * tile.degree if is_polynomial else 4 * tile.degree + 1
        moved += row * (tile.degree * m + n * own) + 8 * n * tile.shape.width
    return moved
