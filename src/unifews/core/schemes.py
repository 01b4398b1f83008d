"""Decoupled propagation schemes: which polynomial of the diffusion is wanted.

Every scheme is ``P = Σ_l θ_l S^l X`` over hops l = 0..L, where one hop of S is

    (S P)[u] = keep(u) · P[u] + Σ_{v ≠ u} T[u, v] · P[v].

Only the sum over v ≠ u can be pruned. ``keep``, the skip connection, is never pruned (it changes the model, so it
is an explicit argument):

=================  ==========================  ==================================================================
skip               keep(u)                     unpruned meaning
=================  ==========================  ==================================================================
``diagonal``       T[u, u] = 1/d(u)            S = T: the original SGC, APPNP
``identity``       1                           S = I + T_off: Algorithm 1 as printed, the default of `Sgc`
``identity+loop``  1 + 1/d(u)                  S = I + T: what the authors' C++ does when the file has self-loops
``none``           0                           S = T_off
=================  ==========================  ==================================================================
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from unifews.core.diffusion import Diffusion
from unifews.errors import InputError, unknown_name

Skip = Literal["identity", "diagonal", "identity+loop", "none"]
SKIPS: tuple[Skip, ...] = ("identity", "diagonal", "identity+loop", "none")
DEFAULT_HOPS = 20


@runtime_checkable
class Scheme(Protocol):
    """The properties of a scheme that `propagate` uses."""

    @property
    def skip(self) -> Skip: ...

    @property
    def focus(self) -> float:
        """Where a budget of kept entries is best spent: 0 = the same share at every hop, 1 = one δ for all hops, so mostly
        on the early ones. An output that itself sums over hops gains by the latter, a last hop alone does not (ADR 7)."""

    def coefficients(self, hops: int) -> NDArray[np.float64]:
        """θ_0 .. θ_L, float64 [hops + 1]."""

    def influence(self, hops: int) -> NDArray[np.float64]:
        """How much a message of hop l weighs in the output, float64 [hops].

        The entry rule compares ``influence_l · |T[u,v]| · ‖(S^l X)[v]‖`` with δ: the message that is actually sent.
        """


def keep_factor(diffusion: Diffusion, skip: Skip) -> NDArray[np.float32]:
    """keep(u) of the table above, float32 [n]."""
    diagonal = diffusion.diagonal
    if skip == "diagonal":
        return diagonal
    if skip == "identity":
        return np.ones_like(diagonal)
    if skip == "identity+loop":
        return 1 + diagonal
    if skip == "none":
        return np.zeros_like(diagonal)
    raise unknown_name("skip connection", skip, SKIPS)


def _check_skip(skip: str) -> None:
    if skip not in SKIPS:
        raise unknown_name("skip connection", skip, SKIPS)


@dataclass(frozen=True)
class Sgc:
    """Simplified graph convolution, ``P = S^L X`` (Wu et al., ICML 2019; [P] Algorithm 1).

    ``skip="identity"`` is the paper's Unifews-SGC; ``skip="diagonal"`` is the original backbone ``T^L X``.
    """

    skip: Skip = "identity"
    focus: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        _check_skip(self.skip)

    def coefficients(self, hops: int) -> NDArray[np.float64]:
        theta = np.zeros(hops + 1)
        theta[hops] = 1
        return theta

    def influence(self, hops: int) -> NDArray[np.float64]:
        return np.ones(hops)


@dataclass(frozen=True)
class Appnp:
    """Personalised PageRank, ``P = Σ_{l<L} α(1-α)^l T^l X + (1-α)^L T^L X`` (Klicpera et al., ICLR 2019).

    The last term, the tail, carries (1-α)^L of the mass (12 % at α = 0.1, L = 20). [P] prints the sum without it; the
    authors' code has it. ``tail=False`` gives the printed form.
    """

    alpha: float = 0.1
    tail: bool = True
    skip: Skip = "diagonal"
    focus: ClassVar[float] = 0.7

    def __post_init__(self) -> None:
        _check_skip(self.skip)
        if not 0 < self.alpha <= 1:
            raise InputError(
                f"`alpha` is the share of a node's own features kept at each hop and must be in (0, 1]; got {self.alpha}."
            )

    def coefficients(self, hops: int) -> NDArray[np.float64]:
        decay = (1 - self.alpha) ** np.arange(hops + 1, dtype=np.float64)
        theta = self.alpha * decay
        theta[hops] = decay[hops] if self.tail else 0
        return theta

    def influence(self, hops: int) -> NDArray[np.float64]:
        # The residue sent on is (1-α)^(l+1) T^(l+1) X.
        return (1 - self.alpha) ** np.arange(1, hops + 1, dtype=np.float64)


@dataclass(frozen=True)
class Polynomial:
    """Any polynomial ``P = Σ_l θ_l S^l X``; its length fixes the number of hops.

    `heat`, `ssgc` and `gbp` build the usual ones.
    """

    theta: tuple[float, ...]
    skip: Skip = "diagonal"
    focus: ClassVar[float] = 0.7

    def __init__(self, coefficients: Sequence[float], skip: Skip = "diagonal") -> None:
        _check_skip(skip)
        theta = tuple(float(c) for c in coefficients)
        if len(theta) < 2 or not all(map(math.isfinite, theta)):
            raise InputError(
                "`Polynomial` needs at least two finite coefficients θ_0, θ_1, ... (one per hop and one for the input); "
                f"got {list(coefficients)!r}."
            )
        object.__setattr__(self, "theta", theta)
        object.__setattr__(self, "skip", skip)

    @classmethod
    def heat(cls, time: float, hops: int = DEFAULT_HOPS) -> Polynomial:
        """Heat kernel ``e^-t Σ t^l/l! T^l`` (GDC, Klicpera et al., NeurIPS 2019)."""
        return cls([math.exp(-time + hop * math.log(time) - math.lgamma(hop + 1)) for hop in range(hops + 1)])

    @classmethod
    def ssgc(cls, hops: int = DEFAULT_HOPS, alpha: float = 0.05) -> Polynomial:
        """S²GC: ``1/L Σ_{l=1..L} ((1-α) T^l X + α X)`` (Zhu & Koniusz, ICLR 2021)."""
        return cls([alpha] + [(1 - alpha) / hops] * hops)

    @classmethod
    def gbp(cls, weights: Sequence[float]) -> Polynomial:
        """GBP's generalised PageRank weights w_0 .. w_L (Chen et al., NeurIPS 2020)."""
        return cls(weights)

    @property
    def hops(self) -> int:
        return len(self.theta) - 1

    def coefficients(self, hops: int) -> NDArray[np.float64]:
        return np.array(self.theta, dtype=np.float64)

    def influence(self, hops: int) -> NDArray[np.float64]:
        # What hop l sends takes part in every later power: Σ_{k > l} |θ_k|.
        return np.abs(self.coefficients(hops))[::-1].cumsum()[::-1][1:].copy()


class SpectralFilter(ABC):
    """Any function of the diffusion, ``P = f(S) X`` with f evaluated at the eigenvalues of S.

    It has no number of hops: `propagate` needs ``max_error`` to know when to stop.
    """

    skip: Skip = "diagonal"
    focus: ClassVar[float] = 0.0
    most_hops: ClassVar[int] = 1000

    @abstractmethod
    def response(self, eigenvalues: NDArray[np.float64]) -> NDArray[np.float64]:
        """f, elementwise."""

    def coefficients(self, hops: int) -> NDArray[np.float64]:
        raise InputError(
            f"{type(self).__name__} is no polynomial with a number of hops; say which error is allowed, such as max_error=0.05."
        )

    def influence(self, hops: int) -> NDArray[np.float64]:
        return self.coefficients(hops)


@dataclass(frozen=True)
class PersonalizedPageRank(SpectralFilter):
    """``P = α (I - (1-α) T)^-1 X``: `Appnp` with infinitely many hops (Klicpera et al., ICLR 2019)."""

    alpha: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise InputError(f"`alpha`, the restart probability, must be in (0, 1]; got {self.alpha}.")

    def response(self, eigenvalues: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(self.alpha / (1 - (1 - self.alpha) * eigenvalues))


@dataclass(frozen=True)
class HeatKernel(SpectralFilter):
    """``P = exp(-t (I - T)) X`` (GDC, Klicpera et al., NeurIPS 2019)."""

    time: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.time < math.inf:
            raise InputError(f"`time`, how long the heat diffuses, must be positive; got {self.time}.")

    def response(self, eigenvalues: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.exp(-self.time * (1 - eigenvalues)))


class Filter(SpectralFilter):
    """``P = f(S) X`` for a function f of the eigenvalues of S, which are in [-1, 1] (in [0, 2] with an identity skip).

    ``Filter(lambda t: np.exp(-5 * (1 - t)))`` is `HeatKernel(5)`. f takes and returns float64 arrays and is smooth.
    """

    def __init__(self, response: Callable[[NDArray[np.float64]], Any], skip: Skip = "diagonal") -> None:
        _check_skip(skip)
        if not callable(response):
            raise InputError(f"`Filter` takes a function of the eigenvalues, such as lambda t: t**3; got {response!r}.")
        self._response, self.skip = response, skip

    def response(self, eigenvalues: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(self._response(eigenvalues), dtype=np.float64)


def response_of(scheme: Scheme, hops: int) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """f of ``P = f(S) X``, as a function of the eigenvalues of S."""
    if isinstance(scheme, SpectralFilter):
        return scheme.response
    if isinstance(scheme, Sgc):
        return lambda eigenvalues: np.asarray(eigenvalues**hops)
    theta = scheme.coefficients(hops)
    return lambda eigenvalues: np.asarray(np.polynomial.polynomial.polyval(eigenvalues, theta))


SCHEMES: dict[str, type[Appnp | Sgc | PersonalizedPageRank | HeatKernel]] = {
    "appnp": Appnp,
    "sgc": Sgc,
    "ppr": PersonalizedPageRank,
    "heat": HeatKernel,
}
"""Schemes that have a name."""


def resolve(scheme: str | Scheme, hops: int | None) -> tuple[Scheme, int]:
    """The scheme meant by a name or an object, and its number of hops."""
    if isinstance(scheme, str):
        if scheme not in SCHEMES:
            raise unknown_name("scheme", scheme, sorted(SCHEMES))
        scheme = SCHEMES[scheme]()
    if isinstance(scheme, type) or not isinstance(scheme, Scheme):
        names = ", ".join(map(repr, SCHEMES))
        raise InputError(f"`scheme` is one of {names} or an object such as Appnp(alpha=0.1); got {scheme!r}.")
    if isinstance(scheme, SpectralFilter):
        if hops is not None:
            raise InputError(
                f"`hops` is {hops!r}, but {type(scheme).__name__} is no polynomial: its hops follow from `max_error`."
            )
        return scheme, scheme.most_hops
    if isinstance(scheme, Polynomial):
        if hops is not None and hops != scheme.hops:
            raise InputError(
                f"`hops` is {hops} but the polynomial has {scheme.hops + 1} coefficients, which makes {scheme.hops} hops; "
                "leave `hops` out."
            )
        return scheme, scheme.hops
    hops = DEFAULT_HOPS if hops is None else hops
    if not isinstance(hops, int | np.integer) or isinstance(hops, bool) or not 1 <= hops <= 60_000:
        raise InputError(f"`hops` is the number of propagation steps, a whole number from 1 to 60,000; got {hops!r}.")
    return scheme, int(hops)


def scheme_from_plain(value: Any) -> str | Scheme:
    """A scheme from its name, or from the mapping that `scheme_to_plain` returns."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise InputError(f"a propagation scheme is a name or a mapping with `name`; got {str(value)[:40]!r}.")
    settings = dict(value)
    name = settings.pop("name", None)
    try:
        if name in SCHEMES:
            return SCHEMES[name](**settings)
        if name == "polynomial":
            return Polynomial(settings.pop("coefficients"), **settings)
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise InputError(f"invalid settings of a propagation scheme: {str(value)[:80]!r}.") from error
    raise InputError(f"unknown propagation scheme {str(name)[:40]!r}; expected {', '.join(SCHEMES)} or polynomial.")


def scheme_to_plain(scheme: Any) -> str | dict[str, object]:
    """A scheme as strings and numbers, for files."""
    if isinstance(scheme, str):
        return scheme
    if isinstance(scheme, Appnp):
        return {"name": "appnp", "alpha": scheme.alpha, "tail": scheme.tail, "skip": scheme.skip}
    if isinstance(scheme, Sgc):
        return {"name": "sgc", "skip": scheme.skip}
    if isinstance(scheme, Polynomial):
        return {"name": "polynomial", "coefficients": list(scheme.theta), "skip": scheme.skip}
    if isinstance(scheme, PersonalizedPageRank):
        return {"name": "ppr", "alpha": scheme.alpha}
    if isinstance(scheme, HeatKernel):
        return {"name": "heat", "time": scheme.time}
    raise InputError(
        f"a custom scheme ({type(scheme).__name__}) cannot be written to a file; use a Polynomial with the same coefficients."
    )
