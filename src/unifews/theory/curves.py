"""Threshold and sparsity as functions of each other; each curve has `sparsity(δ)` and `threshold(η)`. Fits of power laws.

A curve describes one product: the fraction η of its entries whose message |T[u,v]|·|p[v]| is below δ. `Quantile` assumes
nothing, `SemiEmpirical` that factors and values are independent and values are Gaussian, and `PowerLaw` ([P] Theorem 4.2)
additionally that factors are Pareto; its asymptote is the theorem's formula, corrected.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unifews.core.checks import check_sparsity, check_threshold
from unifews.core.diffusion import Diffusion
from unifews.errors import InputError
from unifews.theory.bounds import Vector, edge_factors


class Curve(Protocol):
    """Sparsity η of a threshold δ, and the inverse."""

    def sparsity(self, threshold: float) -> float:
        """η, the fraction of messages below δ."""

    def threshold(self, sparsity: float) -> float:
        """δ that removes the fraction η."""


@dataclass(frozen=True, eq=False)
class Quantile:
    """The distribution of the messages themselves: exact for all of them, within sampling error for a sample.

    Works for norms ‖T[u,v]·P[v]‖ of any entry kind (edge, block, feature); recommended for a single layer.
    """

    messages: ArrayLike

    @cached_property
    def _ascending(self) -> Vector:
        return np.sort(_positive("messages", self.messages, zero=True))

    def sparsity(self, threshold: float) -> float:
        """Fraction of messages less than δ; messages equal to δ are kept."""
        return float(np.searchsorted(self._ascending, check_threshold("threshold", threshold)) / len(self._ascending))

    def threshold(self, sparsity: float) -> float:
        """The smallest δ that keeps the largest (1-η) of the messages; ties keep more."""
        values = self._ascending
        return float(values[min(round(check_sparsity("sparsity", sparsity) * len(values)), len(values) - 1)])


@dataclass(frozen=True, eq=False)
class SemiEmpirical:
    """η(δ) = mean over edges of erf(δ / (√2·σ·T_e)): the factors as they are, the values Gaussian.

    No power law is assumed: within .02 on cora, where every power-law fit is off by more. For scalar messages, not row norms.
    """

    factors: ArrayLike
    sigma: float = 1.0

    def __post_init__(self) -> None:
        _check_above_zero("sigma", self.sigma)

    @classmethod
    def of(cls, diffusion: Diffusion, p: ArrayLike) -> SemiEmpirical:
        """For the edges of a graph and the values of an embedding."""
        return cls(edge_factors(diffusion), spread(p))

    @cached_property
    def _scale(self) -> Vector:
        return _positive("factors", self.factors) * (math.sqrt(2) * self.sigma)

    def sparsity(self, threshold: float) -> float:
        """η of a δ."""
        from scipy.special import erf

        return float(np.mean(erf(check_threshold("threshold", threshold) / self._scale)))

    def kept(self, threshold: float) -> float:
        """1 - η, exact where η is close to 1."""
        from scipy.special import erfc

        return float(np.mean(erfc(check_threshold("threshold", threshold) / self._scale)))

    def threshold(self, sparsity: float) -> float:
        """δ of an η, by bisection."""
        return _invert(self.sparsity, self.kept, check_sparsity("sparsity", sparsity), float(np.median(self._scale)))


@dataclass(frozen=True)
class PowerLaw:
    """η(δ) for Pareto factors and Gaussian values ([P] Theorem 4.2 and its proof, eq:q_raw), exact.

    P(T ≤ t) = 1 - (t/x_min)^(1-α) for t ≥ x_min, p ~ N(0, σ²), independent. With z = δ/(x_min·σ):

        η = erf(z/√2) - z^(1-α) · K_z,    K_z = 2^(α/2)/√(2π) · γ(α/2, z²/2),    γ the lower incomplete gamma function

    * small δ:  η ≈ √(2/π)·(α-1)/α·z        as printed
    * large δ:  η ≈ 1 - K·z^(1-α),  K = 2^(α/2)·Γ(α/2)/√(2π);  in δ: 1 - K·σ^(α-1)·(δ/x_min)^(1-α)
      [P] Case 2 (eq:sp_q_a) has σ^(α+1) in the denominator instead of σ^(α-1) in the numerator: right for σ = 1 only, and
      at α = 2.5, σ = .3, z = 8 it gives -14.6 where the truth is .962.

    Real graphs follow it only approximately: T[u,v] = 1/√(d_u d_v) is bounded above and concentrates near 0 because of hubs,
    and its exponent is not that of the degrees, as [P] assumes. `fit_curve` and docs/theory.md measure the fit.
    """

    alpha: float
    x_min: float = 1.0
    sigma: float = 1.0

    def __post_init__(self) -> None:
        if not (self.alpha > 1 and math.isfinite(self.alpha)):
            raise InputError(f"`alpha` is the exponent of a density t^-alpha and must be greater than 1; got {self.alpha}.")
        _check_above_zero("x_min", self.x_min)
        _check_above_zero("sigma", self.sigma)

    @property
    def scale(self) -> float:
        """x_min·σ: thresholds are in units of it."""
        return self.x_min * self.sigma

    @property
    def tail(self) -> float:
        """K = 2^(α/2)·Γ(α/2)/√(2π)."""
        return float(2 ** (self.alpha / 2)) * math.gamma(self.alpha / 2) / math.sqrt(2 * math.pi)

    @property
    def exponent(self) -> float:
        """t = 1/(α-1) of δ = C(1-η)^-t: between ½ and 1 for 2 < α < 3."""
        return 1 / (self.alpha - 1)

    @property
    def constant(self) -> float:
        """C = x_min·σ·K^t of δ = C(1-η)^-t; it depends on ‖p‖ through σ."""
        return self.scale * math.pow(self.tail, self.exponent)

    def sparsity(self, threshold: float) -> float:
        """η of a δ, exact."""
        z = check_threshold("threshold", threshold) / self.scale
        if z < 1e-8:  # the next term is of order z³
            return math.sqrt(2 / math.pi) * (self.alpha - 1) / self.alpha * z
        return math.erf(z / math.sqrt(2)) - self._rest(z)

    def kept(self, threshold: float) -> float:
        """1 - η, exact where η is close to 1."""
        z = check_threshold("threshold", threshold) / self.scale
        return 1 - self.sparsity(threshold) if z < 1e-8 else math.erfc(z / math.sqrt(2)) + self._rest(z)

    def _rest(self, z: float) -> float:
        from scipy.special import gammainc  # γ(s, x) / Γ(s)

        return self.tail * z ** (1 - self.alpha) * float(gammainc(self.alpha / 2, z * z / 2)) if math.isfinite(z) else 0.0

    def threshold(self, sparsity: float) -> float:
        """δ of an η, by bisection on the exact formula."""
        return _invert(self.sparsity, self.kept, check_sparsity("sparsity", sparsity), self.scale)

    def asymptotic_sparsity(self, threshold: float) -> float:
        """1 - K·z^(1-α), for large δ: within .02 from η = .56 for α = 2 to η = .77 for α = 3; negative for small δ."""
        z = check_threshold("threshold", threshold) / self.scale
        return 1 - self.tail * z ** (1 - self.alpha) if z > 0 else -math.inf

    def asymptotic_threshold(self, sparsity: float) -> float:
        """δ = C(1-η)^-t, the formula of [P] Theorem 4.2 with the corrected C; for large η, as `asymptotic_sparsity`."""
        return self.constant * math.pow(1 - check_sparsity("sparsity", sparsity), -self.exponent)

    def epsilon(self, sparsity: float, edges: int, norm: float) -> float:
        """ε = η·m·δ(η)/‖p‖, [P] writes O(η(1-η)^-t): for the given p only, see `vector_epsilon`."""
        return sparsity * edges * self.threshold(sparsity) / _check_above_zero("norm", norm)


# ---------------------------------------------------------------------------------------------------------------------- fits

_MAX_CANDIDATES = 300  # values of x_min tried: about a second on 100,000 distinct values
_MIN_TAIL = 10  # a fit needs at least this many values


@dataclass(frozen=True)
class TailFit:
    """A density ∝ x^-alpha for x ≥ x_min."""

    alpha: float
    x_min: float
    distance: float
    """Kolmogorov-Smirnov distance between the fit and the values ≥ x_min."""
    size: int
    """Values ≥ x_min."""

    def curve(self, sigma: float) -> PowerLaw:
        """η(δ) of messages whose factors follow this tail."""
        return PowerLaw(self.alpha, self.x_min, sigma)


def fit_tail(values: ArrayLike, *, x_min: float | None = None, discrete: bool = False) -> TailFit:
    """The power law of the largest values (Clauset, Shalizi, Newman, SIAM Review 2009).

        continuous:  α = 1 + k / Σ ln(x_i / x_min)      over the k values ≥ x_min
        discrete:    α maximises -k ln ζ(α, x_min) - α Σ ln x_i,  as for degrees

    Without `x_min`, the one whose fit is closest to the values above it in the sense of Kolmogorov and Smirnov; of more
    than 300 distinct values, 300 quantiles are tried. Values of 0 are ignored.
    """
    array = np.asarray(values, dtype=np.float64).ravel()
    if not np.isfinite(array).all() or array.min(initial=0) < 0:
        raise InputError("`values` of a power law are finite and not negative.")
    if discrete and not np.array_equal(array, np.floor(array)):
        raise InputError("`discrete=True` needs whole numbers such as degrees; omit it for other values.")
    array = array[array > 0]
    distinct, counts = np.unique(array, return_counts=True)
    if len(distinct) < 2 or len(array) < _MIN_TAIL:
        raise InputError(
            f"a power law needs at least {_MIN_TAIL} values above 0, not all the same; got {len(array):,}, "
            f"{len(distinct):,} of them different."
        )
    if x_min is not None:
        if not 0 < x_min <= distinct[-2]:
            raise InputError(
                f"`x_min` must be above 0 and leave two different values, so at most {distinct[-2]:g}; got {x_min}."
            )
        return _fit(distinct, counts, float(x_min), discrete)
    tails = counts[::-1].cumsum()[::-1]
    candidates = distinct[:-1][tails[:-1] >= _MIN_TAIL]
    if len(candidates) > _MAX_CANDIDATES:
        # Quantiles of all values, not of the distinct ones: a tail often starts at a value with many copies.
        at = np.searchsorted(-tails, -np.linspace(len(array), tails[len(candidates) - 1], _MAX_CANDIDATES), side="right") - 1
        candidates = distinct[np.unique(at)]
    return min((_fit(distinct, counts, float(least), discrete) for least in candidates), key=lambda fit: fit.distance)


def _fit(distinct: Vector, counts: NDArray[np.int64], x_min: float, discrete: bool) -> TailFit:
    first = int(np.searchsorted(distinct, x_min))
    tail, copies = distinct[first:], counts[first:]
    size = int(copies.sum())
    upto = copies.cumsum() / size
    if discrete:
        alpha, distribution = _discrete(tail, copies, x_min)
        distance = float(np.abs(upto - distribution).max())
    else:
        alpha = 1 + size / float(copies @ np.log(tail / x_min))
        distribution = 1 - (tail / x_min) ** (1 - alpha)
        # The empirical distribution jumps at each value: the gap is largest just before or after it.
        distance = float(max((upto - distribution).max(), (distribution - upto + copies / size).max()))
    return TailFit(alpha, x_min, distance, size)


def _discrete(tail: Vector, copies: NDArray[np.int64], x_min: float) -> tuple[float, Vector]:
    from scipy.optimize import minimize_scalar
    from scipy.special import zeta

    logs = float(copies @ np.log(tail) / copies.sum())
    found = minimize_scalar(lambda a: math.log(zeta(a, x_min)) + a * logs, bounds=(1.0001, 20.0), method="bounded")
    alpha = float(found.x)
    return alpha, 1 - zeta(alpha, tail + 1) / zeta(alpha, x_min)


@dataclass(frozen=True)
class CurveFit:
    """A fitted curve and its error on the messages."""

    curve: PowerLaw
    error: float
    """Largest |η(δ) - empirical η| over the fitted thresholds."""


def fit_curve(messages: ArrayLike, sigma: float, *, points: int = 99) -> CurveFit:
    """(α, x_min) by least squares between η(δ) of `PowerLaw` and the empirical η, at `points` evenly spaced η."""
    from scipy.optimize import least_squares

    truth = Quantile(messages)
    sparsities = np.arange(1, points + 1) / (points + 1)
    thresholds = np.unique([truth.threshold(float(sparsity)) for sparsity in sparsities])
    thresholds = thresholds[thresholds > 0]
    if len(thresholds) < 2:
        raise InputError("fitting a curve needs messages of different sizes; these are all equal or zero.")
    wanted = np.array([truth.sparsity(float(delta)) for delta in thresholds])

    def curve(parameters: Vector) -> PowerLaw:
        return PowerLaw(1 + math.exp(parameters[0]), math.exp(parameters[1]), sigma)

    def gaps(parameters: Vector) -> Vector:
        law = curve(parameters)
        return np.asarray([law.sparsity(float(delta)) for delta in thresholds] - wanted)

    start = np.array([math.log(1.5), math.log(float(np.median(thresholds)) / sigma)])
    low, high = np.array([-3.0, start[1] - 15]), np.array([3.0, start[1] + 15])
    found = least_squares(gaps, start, bounds=(low, high))
    return CurveFit(curve(found.x), float(np.abs(gaps(found.x)).max()))


def spread(p: ArrayLike) -> float:
    """σ of values modelled as Gaussian with mean 0: √(mean p²)."""
    return float(np.sqrt(np.mean(np.square(np.asarray(p, dtype=np.float64)))))


def _invert(below: Callable[[float], float], above: Callable[[float], float], sparsity: float, guess: float) -> float:
    """δ > 0 where the rising η(δ), or the falling 1 - η(δ), crosses the given value; 0 for η = 0."""
    if sparsity == 0:
        return 0.0

    def too_small(threshold: float) -> bool:
        return below(threshold) < sparsity if sparsity < 0.5 else above(threshold) > 1 - sparsity

    low = high = guess
    while too_small(high):
        low, high = high, high * 4
    while not too_small(low):
        low, high = low / 4, low
    while high > low * (1 + 4e-16):
        middle = math.sqrt(low) * math.sqrt(high)
        if not low < middle < high:
            break
        low, high = (middle, high) if too_small(middle) else (low, middle)
    return high


def _positive(name: str, values: ArrayLike, *, zero: bool = False) -> Vector:
    array = np.asarray(values, dtype=np.float64).ravel()
    least = "0 or more" if zero else "greater than 0"
    if len(array) == 0 or not np.isfinite(array).all() or array.min() < 0 or (array.min() == 0 and not zero):
        raise InputError(f"`{name}` must hold at least one value, all finite and {least}.")
    return array


def _check_above_zero(name: str, value: float) -> float:
    if not (value > 0 and math.isfinite(value)):
        raise InputError(f"`{name}` must be finite and greater than 0; got {value}.")
    return float(value)
