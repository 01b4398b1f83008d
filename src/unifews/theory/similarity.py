"""How far a pruned diffusion is from the whole one, for every vector there is ([P] Definition 3.2).

With Υ = T - T̂ = L̂ - L, entry by entry at least 0, T not being renormalised:

    quadratic ε = max |xᵀΥx| / ‖x‖² = λ_max((Υ + Υᵀ)/2)     the smallest ε of Definition 3.2
    spectral ε  = ‖Υ‖₂ ≥ quadratic ε                         the one that the lemmas after it need

[P] takes them for the same number; they are where Υ is symmetric. The multiplicative similarity usual elsewhere,
(1-ε)L ≼ L̂ ≼ (1+ε)L, is never met: φ = d^½ has φᵀLφ = 0 and φᵀL̂φ > 0 as soon as an edge is gone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unifews.core import csr
from unifews.core.diffusion import Diffusion
from unifews.errors import InputError, ShapeError
from unifews.theory.perron import ROUNDING, Bracket, perron, singular

_DENSE = 500  # nodes up to which an eigenvalue decomposition takes a fraction of a second


@dataclass(frozen=True)
class Similarity:
    """Both ε of a removal, each between proven bounds; the bounds meet where it was computed exactly."""

    quadratic: Bracket
    spectral: Bracket


def similarity(removed: Any, *, exact: bool | None = None, steps: int = 200, tolerance: float = 1e-3) -> Similarity:
    """The quadratic and the spectral ε of Υ = T - T̂ ≥ 0, a scipy sparse or dense matrix [n, n].

    ``exact=True`` decomposes the dense matrix, n³ operations, the choice up to 500 nodes; ``exact=False`` takes at most
    2·`steps` sparse products and gives bounds that contain the truth however early they stop.
    """
    if removed.ndim != 2 or removed.shape[0] != removed.shape[1]:
        raise ShapeError(f"what was removed from a diffusion is a square matrix; this one has shape {list(removed.shape)}.")
    if removed.shape[0] and removed.min() < 0:
        raise InputError(f"`removed` is T - T̂ and has no negative entries when T̂ ≤ T; its smallest is {removed.min():.3g}.")
    n = removed.shape[0]
    if n == 0 or abs(removed).sum() == 0:
        return Similarity(Bracket(0.0, 0.0), Bracket(0.0, 0.0))
    if n <= _DENSE if exact is None else exact:
        dense = removed.toarray() if hasattr(removed, "toarray") else np.asarray(removed)
        quadratic = float(np.linalg.eigvalsh((dense + dense.T) / 2)[-1])
        spectral = float(np.linalg.norm(dense, 2))
        return Similarity(Bracket(quadratic, quadratic), Bracket(spectral, spectral))
    both, start = removed.T, np.ones(n)
    return Similarity(
        perron(lambda x: (removed @ x + both @ x) / 2, start, steps=steps, tolerance=tolerance),
        singular(lambda x: removed @ x, lambda x: both @ x, start, steps=steps, tolerance=tolerance),
    )


def spectral_bound(removed: Any) -> float:
    """An upper bound on ‖Υ‖₂ from one look at its entries: the smaller of ‖Υ‖_F and √(max row sum · max column sum)."""
    size = abs(removed)
    frobenius = math.sqrt(float((size * size).sum()))
    rows, columns = (float(np.max(size.sum(axis=axis), initial=0.0)) for axis in (1, 0))
    return min(frobenius, math.sqrt(rows * columns)) * ROUNDING


def removed_matrix(diffusion: Diffusion, kept: ArrayLike) -> Any:
    """Υ = T - T̂ as a float64 scipy CSR array, where `kept` says which edges stay: bool [m], in the order of the graph's
    `indices`. The diagonal is never removed."""
    from scipy.sparse import csr_array

    graph, stays = diffusion.graph, np.asarray(kept)
    if stays.shape != (graph.num_edges,) or stays.dtype != bool:
        raise ShapeError(
            f"`kept` has shape {list(stays.shape)} and type {stays.dtype}; it must be bool [{graph.num_edges:,}], one per edge."
        )
    row = csr.targets(graph.indptr)[~stays]
    values = edge_factors(diffusion)[~stays]
    return csr_array((values, (row, graph.indices[~stays])), shape=(graph.num_nodes, graph.num_nodes))


def edge_factors(diffusion: Diffusion) -> NDArray[np.float64]:
    """T[u, v] of every edge, float64 [m], in the order of the graph's `indices`."""
    graph, r = diffusion.graph, diffusion.r
    values: NDArray[np.float64] = np.repeat(diffusion.degree ** (r - 1), graph.degree) * (diffusion.degree**-r)[graph.indices]
    return values if graph.weight is None else values * graph.weight
