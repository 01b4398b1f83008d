"""Does sparsity pay? Seconds against multiply-adds, from features to embedding, everything included."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any, Literal

from unifews.datasets.dataset import Dataset
from unifews.experiments.measure import measure
from unifews.propagation import propagate


@measure("clock", cost=20.0, alone=True)
def clock(
    data: Dataset, *, model: Literal["sgc", "appnp"] = "appnp", hops: int = 20, edge_sparsity: float, trials: int = 5
) -> dict[str, Any]:  # fmt: skip
    """Median seconds of pruned and unpruned propagation, in turns, so that a slow minute hits both alike.

    The embedding is on principal coordinates, which a head trains on; rotating to them is in the seconds and in `axes_gmacs`.
    """
    pruned: list[float] = []
    unpruned: list[float] = []
    traces = {}
    for _ in range(trials):
        for share, times in ((edge_sparsity, pruned), (0.0, unpruned)):
            began = perf_counter()
            out = propagate(data.graph, data.x, model, hops, edge_sparsity=share or None)
            times.append(perf_counter() - began)
            traces[share] = out.trace
            del out
    trace, whole = traces[edge_sparsity], traces[0.0]
    return {
        "seconds": median(pruned),
        "seconds_spread": (max(pruned) - min(pruned)) / 2,
        "times_faster": median(unpruned) / median(pruned),
        "times_fewer": whole.macs / trace.macs,
        "prop_gmacs": trace.macs / 1e9,
        "axes_gmacs": trace.basis_macs / 1e9,
        "edge_removed": 100 * trace.edge_sparsity,
    }
