"""What is to be propagated, and how: the one description that every way of running it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from unifews.core.entry import Amounts
from unifews.core.schemes import SpectralFilter
from unifews.errors import InputError
from unifews.propagation.basis import Basis, principal
from unifews.propagation.budget import Absolute, Budget, Relative, Target
from unifews.propagation.config import BY_ERROR, PropagationConfig
from unifews.propagation.features import FeatureMatrix
from unifews.propagation.operator import HopOperator
from unifews.propagation.plan import ErrorPlan
from unifews.propagation.symmetric import INTERVALS
from unifews.storage.journal import array_identity


@dataclass(frozen=True)
class PropagationTask:
    """P = Σ θ_l S^l X for one operator S and one matrix X: how much is removed, and how."""

    op: HopOperator
    features: FeatureMatrix
    amounts: Amounts
    config: PropagationConfig
    plan: ErrorPlan | None = None
    """Of an earlier run, which is repeated."""

    def __post_init__(self) -> None:
        rank, f = self.config.rank, self.features.f
        if self.plan is not None:
            self.plan.check(self.described)
        if rank is not None and rank > f:
            raise InputError(f"`rank` must be an integer from 1 to the {f:,} features; got {rank}.", setting="rank")

    @cached_property
    def budget(self) -> Budget | None:
        """The rule that sets the threshold of every hop; None if nothing is removed, or by `max_error`, which has its own."""
        amounts, config, op = self.amounts, self.config, self.op
        if amounts.edge_sparsity:
            focus = 1.0 if config.inherit else op.scheme.focus
            return Target(amounts.edge_sparsity, op.hops, op.scheme.influence(op.hops), focus)
        if amounts.edge_threshold is not None:
            return Absolute(amounts.edge_threshold)
        if amounts.relative_threshold is not None:
            return Relative(amounts.relative_threshold)
        return None

    def budget_on(self, width: int) -> Budget | None:
        """The budget where `width` columns are propagated: None where leaving out the others has spent it."""
        budget, f = self.budget, self.features.f
        spent = isinstance(budget, Target) and width <= math.ceil((1 - budget.sparsity) * f)
        return None if spent else budget

    @property
    def rotates(self) -> bool:
        """Whether principal components are propagated."""
        return self.config.basis == "principal" and (self.budget is not None or self.config.rank is not None)

    @property
    def deflates(self) -> bool:
        """Whether the stationary part is carried exactly, beside the columns that are pruned."""
        return self.rotates

    @property
    def is_by_error(self) -> bool:
        """Whether the error that is allowed decides how long to propagate (`unifews.propagation.tolerance`)."""
        return self.amounts.max_error is not None

    @property
    def carries(self) -> bool:
        """Whether the stationary part has hops of its own."""
        return self.deflates and self.op.scheme.skip != "diagonal"

    @property
    def by_feature(self) -> bool:
        return self.config.entries == "feature"

    def find_basis(self) -> Basis:
        """By passes over the rows of X."""
        op, features, config, budget, began = self.op, self.features, self.config, self.budget, perf_counter()
        basis = Basis(None, None)
        if self.rotates:
            sparsity = budget.sparsity if isinstance(budget, Target) else None
            basis = principal(features, op.diffusion, op.phi, config.rank, sparsity, op.threads)
        return replace(basis, seconds=perf_counter() - began)

    @property
    def requested(self) -> str:
        """The amount of pruning, as text."""
        max_error = self.amounts.max_error
        return str(self.budget) if self.budget else f"max error {max_error:g}" if max_error else "unpruned"

    @property
    def described(self) -> dict[str, Any]:
        """What a plan is for."""
        op = self.op
        return {
            "nodes": op.graph.num_nodes,
            "edges": op.graph.num_edges,
            "features": self.features.f,
            "scheme": self._scheme,
            "hops": op.hops,
            "r": float(op.diffusion.r),
            "error_norm": self.config.error_norm,
            "certify": self.config.is_proven,
        }

    @property
    def _scheme(self) -> str:
        op = self.op
        return repr(op.scheme) if is_dataclass(op.scheme) else f"{type(op.scheme).__name__} {_values(op)}"

    def identity(self, x: Any) -> tuple[dict[str, Any], list[Path]]:
        """What the result depends on: facts for JSON, and input files; `x` are the features as they were given."""
        op, config, graph = self.op, self.config, self.op.graph
        facts = {
            "task": "propagate",
            "scheme": self._scheme,
            "hops": op.hops,
            "r": float(op.diffusion.r),
            "edge_sparsity": self.amounts.edge_sparsity,
            "threshold": self.amounts.edge_threshold,
            "entries": config.entries,
            "basis": config.basis,
            "inherit": config.inherit,
            "deflate": self.deflates,
            "focus": self.budget.focus if isinstance(self.budget, Target) else None,
        }
        if self.is_by_error:
            facts |= {"max_error": self.amounts.max_error} | {name: getattr(config, name) for name in BY_ERROR[1:]}
        if self.plan is not None:
            facts["plan"] = [self.plan.method, [step.to_dict() for step in self.plan.steps]]
        inputs = []
        given = {"indptr": graph.indptr, "indices": graph.indices, "weight": graph.weight}
        for name, array in {**given, "x": self.features.dense if self.features.is_torch else np.asanyarray(x)}.items():
            if array is not None:
                files, own = array_identity(name, array)
                inputs += files
                facts |= own
        return facts, inputs


def _values(op: HopOperator) -> list[float]:
    """What tells one scheme of a kind from another: its coefficients, or its function at some eigenvalues."""
    if not isinstance(op.scheme, SpectralFilter):
        return [*op.coefficients.tolist()]
    return [*op.scheme.response(np.linspace(*INTERVALS[op.scheme.skip], 65)).tolist()]
