"""How far a pruned embedding is from the whole one, and from where it would end up (fig:proc; entry shapes and axes)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from unifews.core.entry import Entries
from unifews.core.graph import Graph
from unifews.core.schemes import Appnp, Scheme, Sgc
from unifews.datasets.dataset import Dataset
from unifews.experiments.measure import measure
from unifews.propagation import propagate


@measure("distance", cost=10.0)
def distance(
    data: Dataset,
    *,
    model: Literal["sgc", "appnp"] = "sgc",
    hops: int = 20,
    edge_sparsity: float | None = None,
    relative_threshold: float | None = None,
    entries: Entries = "block",
    basis: Literal["principal", "input"] = "principal",
    rank: int | None = None,
    inherit: bool = False,
) -> dict[str, Any]:
    """‖P̂ - P‖/‖P‖ in percent, ‖P̂ - P*‖/‖P*‖ in percent (P* = T^∞ X; of SGC), what was removed and the multiply-adds left.

    SGC is T^L X here, which is what converges to P*.
    """
    what = scheme_of(model)
    whole = propagate(data.graph, data.x, what, hops)
    out = propagate(
        data.graph, data.x, what, hops, edge_sparsity=edge_sparsity, relative_threshold=relative_threshold, entries=entries,
        basis=basis, rank=rank, inherit=inherit,
    )  # fmt: skip
    found = {
        "error": relative(out.embedding, whole.embedding),
        "edge_removed": 100 * out.trace.edge_sparsity,
        "prop_gmacs": out.trace.macs / 1e9,
    }
    if model == "sgc":
        found["to_limit"] = relative(out.embedding, limit(data.graph, data.x))
    return found


def limit(graph: Graph, x: Any) -> Any:
    """P* = T^∞ X for r = ½: in every component φφᵀX / ‖φ‖², φ = √d, d with the self-loop."""
    from scipy.sparse.csgraph import connected_components

    phi = np.sqrt(graph.degree + 1.0)
    parts, which = connected_components(graph.to_scipy(), directed=False)
    rows = x.toarray() if hasattr(x, "toarray") else np.asarray(x)
    sums = np.zeros((parts, rows.shape[1]))
    np.add.at(sums, which, phi[:, None] * rows)
    mass = np.bincount(which, weights=phi**2, minlength=parts)
    return phi[:, None] * (sums / mass[:, None])[which]


def scheme_of(name: str) -> Scheme:
    """APPNP, or SGC as T^L X."""
    return Sgc(skip="diagonal") if name == "sgc" else Appnp()


def relative(one: Any, other: Any) -> float:
    """‖one - other‖ / ‖other‖ in percent."""
    return 100 * float(np.linalg.norm(np.asarray(one, np.float64) - other) / np.linalg.norm(other))
