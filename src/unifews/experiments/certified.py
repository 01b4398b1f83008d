"""How tight is the certified error? The bound that comes with an embedding beside the error there is."""

from __future__ import annotations

import math
from typing import Any, Literal

from unifews.datasets.dataset import Dataset
from unifews.experiments.distance import relative, scheme_of
from unifews.experiments.measure import measure
from unifews.propagation import propagate


@measure("certified", cost=20.0)
def certified(
    data: Dataset,
    *,
    model: Literal["sgc", "appnp"] = "appnp",
    hops: int = 20,
    edge_sparsity: float | None = None,
    max_error: float | None = None,
) -> dict[str, Any]:
    """True and certified ‖P̂ - P‖/‖P‖ in percent, how many times the one is the other, and what was removed.

    Where a share is removed also the bound by random directions. With `max_error` as much is removed as keeps the certified
    error below it.
    """
    what = scheme_of(model)
    whole = propagate(data.graph, data.x, what, hops)
    out = propagate(data.graph, data.x, what, hops, edge_sparsity=edge_sparsity, max_error=max_error, certify=True)
    error, bound = relative(out.embedding, whole.embedding), 100 * out.relative_error_bound
    sampled = None
    if max_error is None:
        seen = propagate(data.graph, data.x, what, hops, edge_sparsity=edge_sparsity, certify="sampled")
        sampled = 100 * seen.relative_error_bound
    return {
        "error": error,
        "bound": bound if math.isfinite(bound) else None,
        "factor": bound / error if error and math.isfinite(bound) else None,
        "sampled": sampled,
        "sampled_factor": sampled / error if error and sampled else None,
        "edge_removed": 100 * out.trace.edge_sparsity,
        "prop_gmacs": out.trace.macs / 1e9,
        "whole_gmacs": whole.trace.macs / 1e9,
    }
