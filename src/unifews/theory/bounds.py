"""Norms, spectral similarity, smoothing, sampling and operation counts: the paper's statements as functions.

T is a `Diffusion`, T̂ the same matrix with entries removed and not renormalised, and Υ = T - T̂, which has no negative entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unifews.core import csr
from unifews.core.checks import check_sparsity
from unifews.core.diffusion import Diffusion
from unifews.core.schemes import SKIPS, Skip
from unifews.errors import InputError, ShapeError, unknown_name

Vector = NDArray[np.float64]

# ------------------------------------------------------------------------------------------------------------- spectral norms

# For M = Mᵀ ≥ 0 the largest eigenvalue ρ is also the largest in magnitude (Perron-Frobenius), and every vector x > 0 gives
#
#     xᵀMx / xᵀx  ≤  ρ  ≤  max_u (Mx)[u] / x[u]        (Rayleigh; Collatz-Wielandt)
#
# so a power iteration that is stopped early returns a wider bracket, never a wrong one. Lanczos needs fewer products but gives
# lower bounds only. T and T - T̂ have no negative entries, which is why their spectral norms can be certified.


Apply = Callable[[Vector], Vector]

ROUNDING = 1 + 1e-9
"""Upper bounds are raised by this much: more than float64 can lose in the sums behind them."""


@dataclass(frozen=True)
class Bracket:
    """lower ≤ exact value ≤ upper."""

    lower: float
    upper: float


def perron(apply: Apply, start: Vector, *, steps: int = 100, tolerance: float = 1e-3) -> Bracket:
    """ρ(M) of a symmetric M ≥ 0, given as the product x ↦ Mx, from an x > 0.

    Stops after `steps` products, or once the relative gap between the bounds is at most `tolerance`.
    """
    x = np.asarray(start, dtype=np.float64)
    lower, upper = 0.0, math.inf
    for _ in range(max(steps, 1)):
        x = x / x.max()
        after = apply(x)
        lower = max(lower, float(x @ after) / float(x @ x))
        upper = min(upper, float((after / x).max()))
        if upper == 0 or upper - lower <= tolerance * upper:
            break
        # Half a step: M alone would alternate between the two sides of a bipartite graph forever.
        x = after / upper + x
    return Bracket(min(lower, upper), upper * ROUNDING)


def singular(apply: Apply, transpose: Apply, start: Vector, *, steps: int = 100, tolerance: float = 1e-3) -> Bracket:
    """‖M‖₂ of any M ≥ 0, square root of ρ(MᵀM), given as x ↦ Mx and x ↦ Mᵀx."""
    square = perron(lambda x: transpose(apply(x)), start, steps=steps, tolerance=tolerance)
    return Bracket(math.sqrt(square.lower), math.sqrt(square.upper))


# -------------------------------------------------------------------------------------------------------- one hop as a matrix


@dataclass(frozen=True, eq=False)
class HopMatrix:
    """S = diag(keep) + T_off, ``(S x)[u] = keep(u)·x[u] + Σ_{v≠u} T[u,v]·x[v]`` (see `unifews.core.schemes`).

    A product takes one pass over the edges, 1/f of the work of a hop with f features.
    """

    diffusion: Diffusion
    skip: Skip = "diagonal"

    def __post_init__(self) -> None:
        if self.skip not in SKIPS:
            raise unknown_name("skip connection", self.skip, SKIPS)

    @cached_property
    def keep(self) -> Vector:
        """keep(u), float64 [n]: never pruned."""
        loop = 1 / self.diffusion.degree
        return {"diagonal": loop, "identity": 1 + 0 * loop, "identity+loop": 1 + loop, "none": 0 * loop}[self.skip]

    @cached_property
    def _rows(self) -> NDArray[np.int64]:
        return csr.targets(self.diffusion.graph.indptr)

    @cached_property
    def _ends(self) -> tuple[Vector, Vector]:
        degree, r = self.diffusion.degree, self.diffusion.r
        return degree ** (r - 1), degree**-r

    def apply(self, x: Vector) -> Vector:
        """S x, for x [n]."""
        target, source = self._ends
        return self.keep * x + target * self._gather(self._rows, self.diffusion.graph.indices, source * x)

    def transpose(self, x: Vector) -> Vector:
        """Sᵀ x, for x [n]."""
        target, source = self._ends
        return self.keep * x + source * self._gather(self.diffusion.graph.indices, self._rows, target * x)

    def _gather(self, into: NDArray[np.integer], out_of: NDArray[np.integer], x: Vector) -> Vector:
        graph = self.diffusion.graph
        values = x[out_of] if graph.weight is None else graph.weight * x[out_of]
        return np.bincount(into, weights=values, minlength=graph.num_nodes).astype(np.float64, copy=False)

    def norm(self, *, steps: int = 50, tolerance: float = 1e-3) -> Bracket:
        """‖S‖₂, with a proven upper bound.

        An undirected graph with r = ½ and a diagonal skip has ‖T‖₂ = 1 exactly, at no cost. Otherwise T is not a contraction:
        an identity skip gives up to 2 - 1/d_max, and ‖T‖₂ can reach (d_max/d_min)^|r-½| ([P] writes 1 for all of them).
        """
        diffusion = self.diffusion
        symmetric = diffusion.r == 0.5 and diffusion.graph.is_symmetric
        if symmetric and self.skip == "diagonal":
            return Bracket(1.0, 1.0)
        # T d^r = d^r, so the first bound of a symmetric S is already max(keep + 1 - 1/d).
        start = diffusion.degree**diffusion.r
        if symmetric:
            return perron(self.apply, start, steps=steps, tolerance=tolerance)
        return singular(self.apply, self.transpose, start, steps=steps, tolerance=tolerance)


# ----------------------------------------------------------------------------------- spectral similarity ([P] Definition 3.2)


_DENSE_NODES = 500  # up to this many nodes an eigenvalue decomposition takes a fraction of a second


@dataclass(frozen=True)
class Similarity:
    """Distance of T̂ from T for every vector, with proven bounds; they are equal where ε was computed exactly.

        quadratic ε = max |xᵀΥx| / ‖x‖² = λ_max((Υ + Υᵀ)/2)     the smallest ε of [P] Definition 3.2
        spectral ε  = ‖Υ‖₂ ≥ quadratic ε                         the one that the lemmas after it need

    [P] treats them as one number; they are equal where Υ is symmetric. The multiplicative similarity common elsewhere,
    (1-ε)L ≼ L̂ ≼ (1+ε)L, never holds: φ = d^½ has φᵀLφ = 0 and φᵀL̂φ > 0 as soon as an edge is removed.
    """

    quadratic: Bracket
    spectral: Bracket


def similarity(removed: Any, *, exact: bool | None = None, steps: int = 200, tolerance: float = 1e-3) -> Similarity:
    """The quadratic and the spectral ε of Υ = T - T̂ ≥ 0, a scipy sparse or dense matrix [n, n].

    ``exact=True`` decomposes the dense matrix, n³ operations (default up to 500 nodes); ``exact=False`` takes at most 2·`steps`
    sparse products and returns bounds that contain the exact value however early they stop.
    """
    if removed.ndim != 2 or removed.shape[0] != removed.shape[1]:
        raise ShapeError(f"what was removed from a diffusion is a square matrix; this one has shape {list(removed.shape)}.")
    if removed.shape[0] and removed.min() < 0:
        raise InputError(f"`removed` is T - T̂ and has no negative entries when T̂ ≤ T; its smallest is {removed.min():.3g}.")
    n = removed.shape[0]
    if n == 0 or abs(removed).sum() == 0:
        return Similarity(Bracket(0.0, 0.0), Bracket(0.0, 0.0))
    if n <= _DENSE_NODES if exact is None else exact:
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
    """An upper bound on ‖Υ‖₂ from one pass over its entries: the smaller of ‖Υ‖_F and √(max row sum · max column sum)."""
    size = abs(removed)
    frobenius = math.sqrt(float((size * size).sum()))
    rows, columns = (float(np.max(size.sum(axis=axis), initial=0.0)) for axis in (1, 0))
    return min(frobenius, math.sqrt(rows * columns)) * ROUNDING


def removed_matrix(diffusion: Diffusion, kept: ArrayLike) -> Any:
    """Υ = T - T̂ as a float64 scipy CSR array, where `kept` marks the edges of T̂: bool [m], in the order of the graph's
    `indices`. The diagonal is never removed."""
    from scipy.sparse import csr_array

    graph, mask = diffusion.graph, np.asarray(kept)
    if mask.shape != (graph.num_edges,) or mask.dtype != bool:
        raise ShapeError(
            f"`kept` has shape {list(mask.shape)} and type {mask.dtype}; it must be bool [{graph.num_edges:,}], one per edge."
        )
    row = csr.targets(graph.indptr)[~mask]
    values = edge_factors(diffusion)[~mask]
    return csr_array((values, (row, graph.indices[~mask])), shape=(graph.num_nodes, graph.num_nodes))


def edge_factors(diffusion: Diffusion) -> NDArray[np.float64]:
    """T[u, v] of every edge, float64 [m], in the order of the graph's `indices`."""
    graph, r = diffusion.graph, diffusion.r
    values: NDArray[np.float64] = np.repeat(diffusion.degree ** (r - 1), graph.degree) * (diffusion.degree**-r)[graph.indices]
    return values if graph.weight is None else values * graph.weight


# --------------------------------------------------------------------------- norm of what one product removes ([P] Lemma 4.1)

# Υ holds the removed entries, each with a message of magnitude below δ. From what is known of them, tightest first:
#
#     ‖ΥP‖_F  ≤  √Σ_u (Σ_v ‖Υ[u,v]P[v]‖)²  ≤  δ·√Σ_u q_u²  ≤  δ·q        q_u removed entries of row u, q of them in total
#
# and ‖ΥP‖ / ‖P‖ bounds |pᵀΥp| / ‖p‖², for this P alone. [P] concludes from q·δ ≤ ε‖p‖ that L̂ is ε-similar to L, that is,
# close for *every* vector. It is not: on a complete graph of 50 nodes with p = (10³, 10⁻⁶, …) and δ = 10⁻⁶ nearly all edges
# are removed, qδ/‖p‖ is 2.4·10⁻⁶, and ‖Υ‖₂ is 0.97. `similarity` computes the ε for every vector.
#
# The bounds by δ need every removed message to be below δ at this hop. Entries that were removed at an earlier hop and remain
# removed (`inherit=True`) may carry larger messages, and always do with an identity skip: use the first two bounds then.


def removed_norm(removed: Any, p: ArrayLike) -> float:
    """‖ΥP‖_F exactly, at the cost of a product with the removed entries."""
    return float(np.linalg.norm(removed @ np.asarray(p, dtype=np.float64)))


def removed_norm_by_size(sizes: ArrayLike) -> float:
    """√Σ_u (Σ_v message size)²; `sizes` holds the sum of the removed messages' norms for each target, or for each target and
    group of features. A sum of norms takes 1/width of the operations of a sum of messages."""
    return float(np.linalg.norm(np.asarray(sizes, dtype=np.float64)))


def removed_norm_by_count(counts: ArrayLike, threshold: float) -> float:
    """δ·√Σ q_u² for the number of removed entries of each target (and group of features); with one number, δ·q.

    The same for weights: `counts` per output column, ‖P̂M‖_F ≤ δ_w·√Σ_i q_i².
    """
    if not (threshold >= 0 and math.isfinite(threshold)):
        raise InputError(f"`threshold` is a magnitude, finite and 0 or more; got {threshold}.")
    return threshold * float(np.linalg.norm(np.asarray(counts, dtype=np.float64)))


def vector_epsilon(removed_norm: float, p: ArrayLike) -> float:
    """ε for the given embedding only: bounds ‖ΥP‖/‖P‖ and |pᵀΥp|/‖p‖². Not a spectral bound, unlike [P] Lemma 4.1 states."""
    norm = float(np.linalg.norm(np.asarray(p, dtype=np.float64)))
    if norm == 0:
        return 0.0 if removed_norm == 0 else math.inf
    return removed_norm / norm


# ---------------------------------------------------------------------------- graph smoothing ([P] Definition 3.1, Lemma 3.3)

#     J(P) = ‖P - X‖² + c · tr(PᵀLP),    L = I - T,    argmin J = P* = (I + cL)⁻¹ X        for a symmetric T
#
# [P] restricts c to [0, 1]; APPNP is c = (1-α)/α, 9 at α = 0.1, so any c ≥ 0 is accepted. T is a `Diffusion`, a scipy sparse
# array or a dense one; of a pruned graph it is T̂, with the degrees of the unpruned graph.


def objective(diffusion: Any, x: ArrayLike, p: ArrayLike, c: float) -> float:
    """J(P) = ‖P - X‖² + c·tr(PᵀLP) ([P] eq:gsmooth, eq:gsmooth_mat); X and P are [n] or [n, f]."""
    t, x, p = _matrix(diffusion), _floats(x), _floats(p)
    return float(np.sum((p - x) ** 2) + _check_c(c) * np.sum(p * (p - t @ p)))


def smooth(diffusion: Any, x: ArrayLike, c: float, *, tolerance: float = 1e-10) -> Vector:
    """P* = (I + cL)⁻¹ X, float64.

    Found as the limit of P ← (X + cTP)/(1 + c), which is APPNP with α = 1/(1 + c) and contracts by c/(1 + c) per step:
    about (1 + c)·ln(1/tolerance) products, and no factorisation with fill-in. It stops once the error is below
    `tolerance`·‖P*‖ for an undirected graph with r = ½.
    """
    t, x = _matrix(diffusion), _floats(x)
    p = x / (1 + _check_c(c))
    for _ in range(1 + math.ceil((1 + c) * (math.log(1 / tolerance) + math.log(1 + c) + 40))):
        after = (x + c * (t @ p)) / (1 + c)
        change, p = float(np.linalg.norm(after - p)), np.asarray(after)
        if c * change <= tolerance * float(np.linalg.norm(p)):
            return p
    raise InputError(f"the optimum for c={c:g} cannot be computed to {tolerance:g} in float64; use a larger `tolerance`.")


def step(diffusion: Any, p: ArrayLike, x: ArrayLike, b: float, c: float) -> Vector:
    """One gradient step of length b/2 on J: P ← (1-b)P - bcLP + bX ([P] eq:optim_dec).

    * APPNP: b = α, c = (1-α)/α gives (1-α)TP + αX.
    * GCN: P = X, b = 1/c gives TX ([P] requires c = 1; any c > 0 works).
    * SGC: bc = 1 and b → 0, which drops the terms of X and P, gives TP.
    """
    t, x, p = _matrix(diffusion), _floats(x), _floats(p)
    return np.asarray((1 - b) * p - b * _check_c(c) * (p - t @ p) + b * x)


def smoothing_error(c: float, epsilon: float, norm: float) -> float:
    """Bound on ‖P̂* - P*‖_F for the optima of T and T̂: c·ε·‖P*‖_F ([P] Lemma 3.3), with ε = ‖T - T̂‖₂.

    Holds for 0 ≤ T̂ ≤ T with T symmetric, r = ½: then ‖T̂‖₂ ≤ 1 and ‖(I + cL̂)⁻¹‖₂ ≤ 1. Since P̂* - P* is both
    -c(I + cL̂)⁻¹(T - T̂)P* and -c(I + cL)⁻¹(T - T̂)P̂*, `norm` may be that of either optimum.

    [P] uses the ε of its Definition 3.2 (quadratic forms) and equates it with the spectral norm. They are equal where T̂ is
    symmetric; but (u,v) and (v,u) are tested separately, and where only one of the two is removed the statement with that ε
    is false: on two connected nodes the quadratic ε is ¼ and the error is up to c/2·‖P*‖. Its eigenvalue argument also
    assumes that the smallest eigenvalue of L̂ is 0, which no longer holds once an entry is removed.
    """
    return _check_c(c) * epsilon * norm


def _matrix(diffusion: Any) -> Any:
    return diffusion.to_scipy() if isinstance(diffusion, Diffusion) else diffusion


def _floats(values: ArrayLike) -> Vector:
    return np.asarray(values, dtype=np.float64)


def _check_c(c: float) -> float:
    if not (c >= 0 and math.isfinite(c)):
        raise InputError(f"`c` is the weight of smoothness and must be finite and at least 0; got {c}.")
    return float(c)


# ---------------------------------------------------------------------------------------------------------- random directions


def sample_range(directions: int, failure: float) -> tuple[float, float]:
    """The two t, below and above 1, with (t·e^(1-t))^(k/2) = `failure`: ‖EΩ‖² / k lies between t₁·‖E‖² and t₂·‖E‖².

    Each of the two bounds fails with at most that probability. For Ω [f, k] of independent standard normal numbers,
    ‖EΩ‖_F² / k is ‖E‖_F² in expectation. With the singular values σ_i of E it is distributed as Σ σ_i²·χ²_k(i) / k, and by
    Chernoff, with w_i = σ_i² / ‖E‖²,

        P(‖EΩ‖² ≤ t·k·‖E‖²)  ≤  min_{λ>0} e^(λtk)  · Π_i (1 + 2λw_i)^(-k/2)      for t < 1,
        P(‖EΩ‖² ≥ t·k·‖E‖²)  ≤  min_{λ>0} e^(-λtk) · Π_i (1 - 2λw_i)^(-k/2)      for t > 1.

    -log(1 ± 2λw) is convex in w, so both products are largest where one w_i is 1 and the others are 0: rank one is the worst
    case, and either probability is at most (t·e^(1-t))^(k/2) for any E. This is not in the paper.

    >>> [round(1 / math.sqrt(t), 2) for t in sample_range(16, 1e-6)]    # times the sampled norm
    [3.8, 0.51]
    """
    from scipy.special import lambertw

    if isinstance(directions, bool) or not isinstance(directions, int) or directions < 1:
        raise InputError(f"`directions` is a whole number of at least 1; got {directions!r}.")
    if isinstance(failure, bool) or not isinstance(failure, int | float) or not 0 < failure < 1:
        raise InputError(f"`failure` is a probability between 0 and 1; got {failure!r}.")
    at = -(failure ** (2 / directions)) / math.e
    return float(-lambertw(at, 0).real), float(-lambertw(at, -1).real)


# ----------------------------------------------------------------------------------------- operation counts ([P] section 4.3)


def propagation_macs(edges: int, features: int, hops: int = 1, *, sparsity: float = 0.0) -> int:
    """(1-η_a)·L·m·f: one multiply-add for each kept edge, feature and hop; edges are off-diagonal and directed.

    The paper's count for papers100M is a 32-bit counter that overflowed: 20 hops are 8,264 G, not 17.7 G. [P] also quotes a
    product (1-η_w)² of both factors' sparsity, a result of other work for other models, which is not implemented here.

    >>> propagation_macs(12_623, 1_433, hops=20)
    361775180
    """
    return _share(_product(edges=edges, features=features, hops=hops), sparsity)


def transform_macs(rows: int, widths: Sequence[int], *, sparsity: float = 0.0) -> int:
    """(1-η_w)·n·Σ f_i·f_{i+1} over the layers of a dense transformation, biases not counted.

    >>> transform_macs(169_343, [128, 512, 40])
    14566207488
    """
    if len(widths) < 2:
        raise InputError(f"`widths` are those of the input and of every layer, at least two; got {list(widths)}.")
    layers = (_product(rows=rows, width=here, next_width=there) for here, there in pairwise(widths))
    return _share(sum(layers), sparsity)


def _product(**factors: int) -> int:
    total = 1
    for name, value in factors.items():
        if isinstance(value, bool) or int(value) != value or value < 0:
            raise InputError(f"`{name}` is a count and must be a whole number, 0 or more; got {value!r}.")
        total *= int(value)
    return total


def _share(total: int, sparsity: float) -> int:
    sparsity = check_sparsity("sparsity", sparsity)
    return total if sparsity == 0 else round((1 - sparsity) * total)
