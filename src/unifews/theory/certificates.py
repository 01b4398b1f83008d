"""Certificates: upper bounds on the error of a pruned propagation or model, from what each hop or layer removed.

`Certificate` and `NodeCertificate` are [P] Proposition 4.3, `LayerCertificate` is [P] Proposition 4.4.


One hop is Z ← S Z; pruned, Ẑ ← S Ẑ - R with R = Υ Ẑ the removed messages. So the error E = Ẑ - Z obeys

    E_{l+1} = S E_l - R_l,      output error = Σ_l θ_l E_l = - Σ_l h_l(S) R_l,      h_l(s) = Σ_{k>l} θ_k s^(k-l-1)

exactly, and with ‖h_l(S)‖₂ ≤ w_l = Σ_{k>l} |θ_k|·‖S‖₂^(k-l-1)

    ‖P̂ - P‖_F  ≤  Σ_l w_l·‖R_l‖_F.

SGC with ‖T‖₂ = 1 is Σ ‖R_l‖; APPNP gives w_l = (1-α)^(l+1), its tail included; an identity skip has
‖I + T_off‖₂ up to 2, and its P grows as fast. [P] multiplies O(ε) by ‖T̂ - T‖₂, one factor too many, assumes ‖T‖₂ = 1
for every skip connection, and uses the last hop's ε only, though each hop adds its own.

`Certificate` needs one number per hop. `NodeCertificate` needs one per node and hop and a product of S with a vector; it
bounds every node's error, is never looser for the same removed norms, and needs no spectral norm, so it holds for any r.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from unifews.core.diffusion import Diffusion
from unifews.core.schemes import Scheme
from unifews.errors import InputError, ShapeError
from unifews.theory.bounds import ROUNDING, HopMatrix, Vector


class Certificate:
    """Bounds ‖P̂ - P‖_F for P = Σ_l θ_l S^l X, given ‖R_l‖_F after each hop.

    >>> certificate = Certificate([0.0, 0.0, 1.0])   # P = T² X, ‖T‖₂ = 1
    >>> [round(certificate.hop(removed), 6) for removed in (0.25, 0.5)]
    [0.25, 0.75]
    """

    def __init__(self, coefficients: ArrayLike, norm: float = 1.0, *, dropped: float = 0.0) -> None:
        """θ_0 .. θ_L, an upper bound on ‖S‖₂, and the norm of the features' principal components that are not propagated.

        Dropped components are orthogonal to those that are pruned, so the two errors add up as √(a² + b²).
        """
        theta = _check_coefficients(coefficients)
        self.hops, self.done = len(theta) - 1, 0
        self.norm = _check("norm", norm)
        # Base-2 logarithms: with an identity skip, 2,000 hops exceed the range of float64.
        logs, growth, after = _logs(theta), float(_logs(self.norm)), -math.inf
        self._weight = np.empty(self.hops + 1)  # log₂ Σ_{k≥l} |θ_k|·‖S‖^(k-l)
        for hop in range(self.hops, -1, -1):
            after = self._weight[hop] = np.logaddexp2(logs[hop], growth + after)
        self._dropped = float(self._weight[0] + _logs(_check("dropped", dropped)))
        self._pruned = np.full(1, -np.inf)  # log₂ Σ_l w_l·‖R_l‖ for each group of features

    @classmethod
    def of(cls, scheme: Scheme, hops: int, diffusion: Diffusion, *, dropped: float = 0.0) -> Certificate:
        """For a scheme on a graph. Free for an undirected graph with r = ½ and a diagonal skip; otherwise ‖S‖₂ is bounded by up
        to 50 products of S with a vector."""
        return cls(scheme.coefficients(hops), HopMatrix(diffusion, scheme.skip).norm().upper, dropped=dropped)

    @classmethod
    def smoothing(cls, b: float, c: float, hops: int) -> Certificate:
        """For `hops` steps P ← (1-b)P - bcLP + bX, T symmetric: e ← ‖(1-b)I - bcL‖₂·e + bc·‖ΥP̂‖ ([P] eq:emb_diff).

        The eigenvalues of L lie in [0, 2). Each `hop` takes bc·‖ΥP̂‖_F, what was removed from the step.
        """
        return cls([*[0.0] * hops, 1.0], max(abs(1 - b), abs(1 - b - 2 * b * c)))

    def weight(self, hop: int) -> float:
        """w_l: upper bound on the output error per unit of norm removed at this hop."""
        return _power(self._weight[hop + 1])

    def hop(self, removed_norm: ArrayLike, exponent: int = 0) -> float:
        """Record what the next hop removed, ‖R_l‖_F or an upper bound on it, in units of 2^exponent; returns `bound`.

        One number, or one per group of features [groups], the same groups at every hop: groups do not mix, so their bounds
        add up as √Σ b², never more than the bound without groups.
        """
        removed = np.atleast_1d(_check("removed_norm", removed_norm))
        if self.done == self.hops:
            raise InputError(f"this certificate is for {self.hops} hops, and all of them have been recorded.")
        if removed.ndim != 1 or (self.done and removed.shape != self._pruned.shape):
            raise ShapeError(
                f"`removed_norm` has shape {list(removed.shape)}; it is one number, or one per group of features, and of the "
                f"same shape at every hop{f': {list(self._pruned.shape)} so far' if self.done else ''}."
            )
        self._pruned = np.logaddexp2(self._pruned, _logs(removed) + (exponent + self._weight[self.done + 1]))
        self.done += 1
        return self.bound

    @property
    def bound(self) -> float:
        """Upper bound on ‖P̂ - P‖_F if the remaining hops remove nothing; infinite where it exceeds float64."""
        return self.bound_over(0)

    def bound_over(self, exponent: int) -> float:
        """The bound in units of 2^exponent, for embeddings scaled by it (`Propagated.exponent`)."""
        return _power(_root_of_squares([*self._pruned, self._dropped]) - exponent) * ROUNDING

    def relative(self, norm: float, exponent: int = 0) -> float:
        """‖P̂ - P‖ / ‖P‖ is at most bound / (‖P̂‖ - bound), given ‖P̂‖_F = norm·2^exponent; infinite if bound ≥ ‖P̂‖."""
        bound = self.bound_over(exponent)
        if bound == 0:
            return 0.0
        return bound / (norm - bound) if bound < norm else math.inf

    def allowance(self, error: float) -> float:
        """The norm that the next hop may remove with `bound` at most `error` afterwards; 0 if the error is used up.

        A caller with several hops to go uses a fraction of this for each.
        """
        if self.done == self.hops:
            return 0.0
        limit, spent, dropped = error / ROUNDING**2, _power(_root_of_squares(self._pruned)), _power(self._dropped)
        if spent >= limit or dropped >= limit:
            return 0.0
        remaining = math.sqrt((limit - dropped) * (limit + dropped)) - spent
        weight = self.weight(self.done)
        return 0.0 if remaining <= 0 else remaining / weight if weight else math.inf


class NodeCertificate:
    """Bounds the error of every node, ‖P̂[u] - P[u]‖: the recursion of `Certificate` with a vector in place of a number.

        e_{l+1} = S e_l + ρ_l,    ρ_l[u] ≥ ‖R_l[u]‖,    ‖P̂[u] - P[u]‖ ≤ Σ_l |θ_l|·e_l[u]

    S has no negative entries, so the triangle inequality holds row by row. Since ‖Σ S^k ρ‖ ≤ Σ ‖S‖₂^k·‖ρ‖, `bound` is at most
    that of `Certificate` for the same removed norms. One product of S with a vector per hop.
    """

    def __init__(self, matrix: HopMatrix, coefficients: ArrayLike) -> None:
        self._theta = _check_coefficients(coefficients)
        self._matrix = matrix
        self.hops, self.done = len(self._theta) - 1, 0
        self._error = np.zeros(matrix.diffusion.graph.num_nodes)
        self._output = self._error.copy()

    @classmethod
    def of(cls, scheme: Scheme, hops: int, diffusion: Diffusion) -> NodeCertificate:
        """For a scheme on a graph."""
        return cls(HopMatrix(diffusion, scheme.skip), scheme.coefficients(hops))

    def hop(self, removed: ArrayLike) -> None:
        """Record the norm of what the next hop removed from each node's sum, ‖R_l[u]‖ or an upper bound; [n]."""
        sizes = _check("removed", removed)
        if self.done == self.hops:
            raise InputError(f"this certificate is for {self.hops} hops, and all of them have been recorded.")
        if sizes.shape != self._error.shape:
            raise ShapeError(f"`removed` has shape {list(sizes.shape)}; it must be [{len(self._error)}], one norm per node.")
        self._error = self._matrix.apply(self._error) + sizes
        self.done += 1
        self._output += self._theta[self.done] * self._error

    @property
    def nodes(self) -> Vector:
        """Upper bound on ‖P̂[u] - P[u]‖ of every node, float64 [n]; available once all hops are recorded."""
        if self.done < self.hops:
            raise InputError(f"{self.done} of {self.hops} hops are recorded; the bound is available after the last one.")
        return self._output * ROUNDING

    @property
    def bound(self) -> float:
        """Upper bound on ‖P̂ - P‖_F; available once all hops are recorded."""
        return float(np.linalg.norm(self.nodes))


class LayerCertificate:
    """Bounds ‖Ĥ - H‖_F over layers H' = act(T H W), edges and weights pruned: Ĥ' = act(T̂ Ĥ Ŵ).

    With Υ = T - T̂, M = W - Ŵ, P̂ = T̂Ĥ and ℓ the Lipschitz constant of the activation, from

        P̂Ŵ - PW = (T(Ĥ - H) - ΥĤ)W - P̂M

    follows  e' = ℓ·(‖T‖₂‖W‖₂·e + ‖ΥĤ‖_F·‖W‖₂ + ‖P̂M‖_F),  starting from e = 0 at the input.

    [P] prunes one layer only, starting from an exact H, writes ‖W‖_F for ‖W‖₂, and O(ε‖H‖ + δ_w) for a sum whose last term
    is q_w·δ_w. Here ‖ΥĤ‖ and ‖P̂M‖ are measured, or bounded by `removed_norm_by_size` and `removed_norm_by_count`: with
    [P]'s weight rule |W[j,i]|·‖P̂[:,j]‖ < δ_w, ‖P̂M‖_F ≤ δ_w·√Σ_i q_i² for q_i weights removed from output i.
    """

    def __init__(self) -> None:
        self.bound = 0.0
        """Upper bound on ‖Ĥ - H‖_F after the layers recorded so far."""

    def layer(
        self,
        *,
        weight_norm: float,
        removed_edges: float = 0.0,
        removed_weights: float = 0.0,
        diffusion_norm: float = 1.0,
        lipschitz: float = 1.0,
        skip_norm: float = 0.0,
    ) -> float:
        """Record one layer; returns `bound`.

        Args:
            weight_norm: ‖W‖₂ of the unpruned weights, or ‖W‖_F.
            removed_edges: ‖ΥĤ‖_F or a bound on it.
            removed_weights: ‖P̂M‖_F or a bound on it.
            diffusion_norm: ‖T‖₂, 1 for r = ½ on an undirected graph; `HopMatrix.norm` otherwise.
            lipschitz: of the activation, 1 for ReLU; times max |γ|/√(var + eps) for a batch norm in evaluation mode.
            skip_norm: ‖W_s‖₂ of a residual branch H W_s added before the activation, 1 for the identity.
        """
        given = dict(
            weight_norm=weight_norm,
            removed_edges=removed_edges,
            removed_weights=removed_weights,
            diffusion_norm=diffusion_norm,
            lipschitz=lipschitz,
            skip_norm=skip_norm,
        )
        for name, value in given.items():
            if not value >= 0 or math.isinf(value):
                raise InputError(f"`{name}` is a norm and must be finite and 0 or more; got {value}.")
        inherited = (diffusion_norm * weight_norm + skip_norm) * self.bound
        self.bound = ROUNDING * lipschitz * (inherited + removed_edges * weight_norm + removed_weights)
        return self.bound


def rounding_norm(terms: int, norm: float) -> float:
    """Rounding error of one hop in float32, to be added to what it removed: γ_k·‖S‖₂·‖Ẑ‖_F, γ_k = ku/(1-ku), u = 2⁻²⁴.

    `terms` is the largest number of products in one sum, k = terms + 4 for the factors of T; `norm` is ‖S‖₂·‖Ẑ‖_F. The worst
    case (Higham, 2002, section 3.1); observed errors are smaller by about √k.
    """
    fraction = (terms + 4) * 2.0**-24
    if fraction >= 1:
        raise InputError(f"a float32 sum of {terms:,} products has no rounding bound; sum in parts or in float64.")
    return fraction / (1 - fraction) * norm


def _check(name: str, values: ArrayLike) -> Vector:
    array = np.asarray(values, dtype=np.float64)
    wrong = ~(array >= 0)
    if wrong.any():
        raise InputError(f"`{name}` is a norm and must be 0 or more; got {array[wrong][0]}.")
    return array


def _check_coefficients(coefficients: ArrayLike) -> Vector:
    theta = np.abs(np.asarray(coefficients, dtype=np.float64))
    if theta.ndim != 1 or len(theta) < 2 or not np.isfinite(theta).all():
        raise InputError("a certificate needs finite coefficients θ_0 .. θ_L, at least two: one for the input and one per hop.")
    return theta


def _logs(values: ArrayLike) -> Vector:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log2(values))


def _power(log: float) -> float:
    try:
        return float(2.0 ** float(log))
    except OverflowError:
        return math.inf


def _root_of_squares(logs: ArrayLike) -> float:
    """log₂ √Σ x² from the log₂ of the x."""
    array = np.asarray(logs)
    top = float(array.max())
    return top + 0.5 * math.log2(float(np.exp2(2 * (array - top)).sum())) if math.isfinite(top) else top
