"""Power laws fitted to degrees, factors and norms, and `PowerLaw` curves fitted to messages."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unifews.errors import InputError
from unifews.theory.curves import PowerLaw, Quantile

Floats = NDArray[np.float64]

_CANDIDATES = 300  # values of x_min tried: a second's work on 100,000 different values
_LEAST_TAIL = 10  # values a tail must have to be fitted at all


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
    than 300 different values, 300 quantiles are tried. Values of 0 are left out.
    """
    array = np.asarray(values, dtype=np.float64).ravel()
    if not np.isfinite(array).all() or array.min(initial=0) < 0:
        raise InputError("`values` of a power law are finite and not negative.")
    if discrete and not np.array_equal(array, np.floor(array)):
        raise InputError("a discrete power law is for whole numbers such as degrees; leave out `discrete` for others.")
    array = array[array > 0]
    distinct, counts = np.unique(array, return_counts=True)
    if len(distinct) < 2 or len(array) < _LEAST_TAIL:
        raise InputError(
            f"a power law needs at least {_LEAST_TAIL} values above 0, not all the same; got {len(array):,}, "
            f"{len(distinct):,} of them different."
        )
    if x_min is not None:
        if not 0 < x_min <= distinct[-2]:
            raise InputError(
                f"`x_min` must be above 0 and leave two different values, so at most {distinct[-2]:g}; got {x_min}."
            )
        return _fit(distinct, counts, float(x_min), discrete)
    tails = counts[::-1].cumsum()[::-1]
    candidates = distinct[:-1][tails[:-1] >= _LEAST_TAIL]
    if len(candidates) > _CANDIDATES:
        # By the number of values, not of different ones: where there are many copies of one, a tail is likely to start.
        at = np.searchsorted(-tails, -np.linspace(len(array), tails[len(candidates) - 1], _CANDIDATES), side="right") - 1
        candidates = distinct[np.unique(at)]
    return min((_fit(distinct, counts, float(least), discrete) for least in candidates), key=lambda fit: fit.distance)


def _fit(distinct: Floats, counts: NDArray[np.int64], x_min: float, discrete: bool) -> TailFit:
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
        # The true share jumps at each value: the gap is largest just before or just after it.
        distance = float(max((upto - distribution).max(), (distribution - upto + copies / size).max()))
    return TailFit(alpha, x_min, distance, size)


def _discrete(tail: Floats, copies: NDArray[np.int64], x_min: float) -> tuple[float, Floats]:
    from scipy.optimize import minimize_scalar
    from scipy.special import zeta

    logs = float(copies @ np.log(tail) / copies.sum())
    found = minimize_scalar(lambda a: math.log(zeta(a, x_min)) + a * logs, bounds=(1.0001, 20.0), method="bounded")
    alpha = float(found.x)
    return alpha, 1 - zeta(alpha, tail + 1) / zeta(alpha, x_min)


@dataclass(frozen=True)
class CurveFit:
    """A curve and how well it follows the messages it was fitted to."""

    curve: PowerLaw
    error: float
    """Largest |η(δ) - true η| over the thresholds looked at."""


def fit_curve(messages: ArrayLike, sigma: float, *, points: int = 99) -> CurveFit:
    """(α, x_min) by least squares between η(δ) of `PowerLaw` and the true share, at `points` evenly spread shares."""
    from scipy.optimize import least_squares

    truth = Quantile(messages)
    shares = np.arange(1, points + 1) / (points + 1)
    thresholds = np.unique([truth.threshold(float(share)) for share in shares])
    thresholds = thresholds[thresholds > 0]
    if len(thresholds) < 2:
        raise InputError("a curve is fitted to messages of different sizes; these are all the same or zero.")
    wanted = np.array([truth.sparsity(float(delta)) for delta in thresholds])

    def curve(parameters: Floats) -> PowerLaw:
        return PowerLaw(1 + math.exp(parameters[0]), math.exp(parameters[1]), sigma)

    def gaps(parameters: Floats) -> Floats:
        law = curve(parameters)
        return np.asarray([law.sparsity(float(delta)) for delta in thresholds] - wanted)

    start = np.array([math.log(1.5), math.log(float(np.median(thresholds)) / sigma)])
    low, high = np.array([-3.0, start[1] - 15]), np.array([3.0, start[1] + 15])
    found = least_squares(gaps, start, bounds=(low, high))
    return CurveFit(curve(found.x), float(np.abs(gaps(found.x)).max()))
