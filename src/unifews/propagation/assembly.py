"""From what the hops left to a result: its trace, with its notes, in memory or as JSON of a working folder."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from unifews.core.trace import HopTrace, Trace, Traffic
from unifews.kernels import describe
from unifews.propagation.budget import Target
from unifews.propagation.plan import ErrorPlan
from unifews.propagation.result import EstimatedError
from unifews.propagation.store import plain
from unifews.propagation.task import PropagationTask
from unifews.propagation.tiles import scaled
from unifews.propagation.view import View

_MISSED = 0.05  # of the products: a target that is missed by more is reported


def make_trace(
    task: PropagationTask,
    view: View,
    hops: list[HopTrace],
    began: float,
    *,
    groups: int,
    exponent: int,
    extra_macs: int = 0,
    notes: Sequence[str] = (),
    **more: Any,
) -> Trace:
    """The trace of a propagation that began at `began`, in so many groups of columns with thresholds of their own.

    `extra_macs` are those beside finding the basis and rotating into it; `more` are fields of `Trace`.
    """
    op, features, basis = task.op, task.features, view.basis
    macs = basis.macs + extra_macs
    if basis.axes is not None:
        macs += features.nnz * view.width
    if task.carries:
        macs += op.graph.num_edges * op.hops
    basis_seconds = basis.seconds + view.seconds
    return Trace(
        tuple(hops),
        requested=task.requested,
        kernel=describe(op.threads),
        rank=None if basis.axes is None else view.width,
        basis_macs=macs,
        basis_seconds=basis_seconds,
        setup_seconds=max(perf_counter() - began - basis_seconds - sum(hop.seconds for hop in hops), 0.0),
        dropped_norm=scaled(view.dropped_norm(), features.exponent),
        notes=(*notes, *_notes(task, view, hops, groups, exponent)),
        **more,
    )


def _notes(task: PropagationTask, view: View, hops: list[HopTrace], groups: int, exponent: int) -> list[str]:
    notes, budget = [], task.budget
    if groups > 1:
        notes.append(f"columns were propagated in {groups} groups; the thresholds shown are those of the leading one")
    if exponent:
        notes.append(f"values lie outside float32 and are given divided by 2^{exponent}")
    if isinstance(budget, Target) and view.basis.axes is not None:
        least = 1 - view.width / view.features.f
        if least > budget.sparsity + 0.01:
            notes.append(
                f"{view.width} of {view.features.f:,} axes hold what matters: that alone removes {least:.1%}, more than the "
                f"{budget.sparsity:.1%} asked for (rank= keeps more)"
            )
    if isinstance(budget, Target) and task.op.graph.num_edges:
        achieved = Trace(tuple(hops)).edge_sparsity
        if achieved < budget.sparsity - _MISSED:
            notes.append(f"{achieved:.1%} could be removed, not the {budget.sparsity:.1%} asked for")
    return notes


def accuracy_to_dict(accuracy: EstimatedError) -> dict[str, Any]:
    """The estimated error of a result, for JSON."""
    return {"error": accuracy.error, "columns": accuracy.columns.tolist(), "plan": accuracy.plan and accuracy.plan.to_dict()}


def accuracy_of_dict(kept: dict[str, Any]) -> EstimatedError:
    plan = kept["plan"] and ErrorPlan.of_dict(kept["plan"])
    return EstimatedError(kept["error"], np.array(kept["columns"], dtype=np.float64), plan)


def trace_to_dict(trace: Trace) -> dict[str, Any]:
    """A trace, for JSON."""
    return {**vars(trace), "hops": [plain(hop) for hop in trace.hops], "traffic": trace.traffic and vars(trace.traffic)}


def trace_of_dict(values: dict[str, Any]) -> Trace:
    hops, traffic = tuple(HopTrace(**hop) for hop in values["hops"]), values["traffic"]
    if traffic:
        traffic = Traffic(traffic["workers"], tuple(traffic["sent"]), tuple(traffic["unpruned"]))
    return Trace(**{**values, "hops": hops, "notes": tuple(values["notes"]), "layers": (), "traffic": traffic})
