"""Threshold and sparsity as functions of each other, in four ways; each is a curve with `sparsity(δ)` and `threshold(η)`.

A curve is about one product: the share η of its entries whose message |T[u,v]|·|p[v]| is below δ. In order of what they
assume, `Quantile` nothing, `SemiEmpirical` that factors and values are independent and values are Gaussian, and
`PowerLaw` ([P] Theorem 4.2) that factors are Pareto besides; its asymptote is the theorem's own formula, corrected.
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
from unifews.theory.similarity import edge_factors

Floats = NDArray[np.float64]


class Curve(Protocol):
    """How much a threshold removes, and the threshold that removes so much."""

    def sparsity(self, threshold: float) -> float:
        """η, the share of messages below δ."""

    def threshold(self, sparsity: float) -> float:
        """δ that removes the share η."""


@dataclass(frozen=True, eq=False)
class Quantile:
    """The distribution of the messages themselves: exact for all of them, within sampling error for a sample.

    Works for sizes ‖T[u,v]·P[v]‖ of any kind (node, block, feature), and is what a single layer should use.
    """

    messages: ArrayLike

    @cached_property
    def _ascending(self) -> Floats:
        return np.sort(_positive("messages", self.messages, zero=True))

    def sparsity(self, threshold: float) -> float:
        """Messages less than δ, as a share: ties stay."""
        return float(np.searchsorted(self._ascending, check_threshold("threshold", threshold)) / len(self._ascending))

    def threshold(self, sparsity: float) -> float:
        """The smallest δ that leaves the largest (1-η) of the messages, where no two are equal; more where they are."""
        values = self._ascending
        return float(values[min(round(check_sparsity("sparsity", sparsity) * len(values)), len(values) - 1)])


@dataclass(frozen=True, eq=False)
class SemiEmpirical:
    """η(δ) = mean over edges of erf(δ / (√2·σ·T_e)): the factors as they are, the values Gaussian.

    No power law: within .02 on cora, where every power-law fit is off by more. One value per message, not the norm of a row.
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
    def _scale(self) -> Floats:
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

    How far it describes a graph is another matter: T[u,v] = 1/√(d_u d_v) is bounded above and piles up near 0 because of hubs,
    and its exponent is not that of the degrees ([P] says it is). `unifews.theory.fits` and docs/theory.md measure it.
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
        """C = x_min·σ·K^t of δ = C(1-η)^-t; [P] says that ‖p‖ determines it, and that is by way of σ."""
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
        """ε = η·m·δ(η)/‖p‖, in [P]'s words O(η(1-η)^-t): for the given p only, see `unifews.theory.removal`."""
        return sparsity * edges * self.threshold(sparsity) / _check_above_zero("norm", norm)


def spread(p: ArrayLike) -> float:
    """σ of values taken for Gaussian with mean 0: √(mean p²)."""
    return float(np.sqrt(np.mean(np.square(np.asarray(p, dtype=np.float64)))))


def _invert(below: Callable[[float], float], above: Callable[[float], float], sparsity: float, guess: float) -> float:
    """δ > 0 where the rising η(δ), or the falling 1 - η(δ), passes the value asked for; 0 for η = 0."""
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


def _positive(name: str, values: ArrayLike, *, zero: bool = False) -> Floats:
    array = np.asarray(values, dtype=np.float64).ravel()
    least = "0 or more" if zero else "greater than 0"
    if len(array) == 0 or not np.isfinite(array).all() or array.min() < 0 or (array.min() == 0 and not zero):
        raise InputError(f"`{name}` must hold at least one value, all finite and {least}.")
    return array


def _check_above_zero(name: str, value: float) -> float:
    if not (value > 0 and math.isfinite(value)):
        raise InputError(f"`{name}` must be finite and greater than 0; got {value}.")
    return float(value)
