"""Shorter polynomials g for a polynomial f of a symmetric matrix T, with a bound of |f - g| on its spectrum.

T = D^-½ A D^-½ of an undirected graph without negative weights has its eigenvalues in [-1, 1], so for every operand x, whatever
the graph is, ‖f(T) x - g(T) x‖ ≤ max |f - g| · ‖x‖ with the maximum over [-1, 1]. The bound holds for activations and for
gradients, which the same polynomial of Tᵀ = T is applied to. g(1) = f(1): the eigenvector of eigenvalue 1, to which features
converge with the number of hops, is propagated exactly (docs/adr/0032).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray
from scipy.optimize import linprog

_POINTS = 12  # points for each degree on which the distance is minimised
_DENSE = 16  # points for each degree where its maximum is looked for
_CONDITION = 1e3  # sum of the powers' coefficients above which Horner's scheme in float32 would round too much
_LONGEST = 64  # hops of a polynomial that is looked at

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Economised:
    """Polynomials of one degree near several given ones."""

    powers: tuple[tuple[float, ...], ...]
    """Coefficients of 1, t, t², ..., of each."""
    error: float
    """At least max |f - g| over [-1, 1] and all of them."""

    @property
    def degree(self) -> int:
        return len(self.powers[0]) - 1


@lru_cache(256)
def economise(powers: tuple[tuple[float, ...], ...], max_error: float) -> Economised:
    """The polynomials of least degree with max |f - g| ≤ max_error · max |f| for each f of these coefficients of 1, t, t², ...

    The given ones, of error 0, if there are none of a lower degree.
    """
    longest = max(map(len, powers))
    exact = Economised(tuple(_padded(each, longest) for each in powers), 0.0)
    if longest - 1 > _LONGEST:
        return exact
    series = [np.asarray(chebyshev.poly2cheb(np.array(each)), dtype=np.float64) for each in exact.powers]
    largest = max(_maximum(each) for each in series)
    for degree in range(1, longest - 1):
        near = []
        for terms in series:
            g = _nearest(terms, degree)
            if g is None or _distance(terms, g) > max_error * largest:
                break
            near.append(g)
        else:
            found = tuple(_padded(chebyshev.cheb2poly(g).tolist(), degree + 1) for g in near)
            if max(sum(map(abs, each)) for each in found) > _CONDITION * largest:
                return exact
            error = max(_distance(terms, g) for terms, g in zip(series, near, strict=True))
            return Economised(found, error)
    return exact


def _padded(values: Sequence[float], length: int) -> tuple[float, ...]:
    return (*values, *[0.0] * (length - len(values)))


def _nearest(terms: Doubles, degree: int) -> Doubles | None:
    """Nearly the best approximation g of this degree with g(1) = f(1): the least distance on many points, a linear program."""
    t = np.cos(np.linspace(0, np.pi, _POINTS * len(terms) + 1))
    f, basis, ones = chebyshev.chebval(t, terms), chebyshev.chebvander(t, degree), np.ones((len(t), 1))
    solved = linprog(
        np.append(np.zeros(degree + 1), 1.0),
        A_ub=np.vstack([np.hstack([basis, -ones]), np.hstack([-basis, -ones])]),
        b_ub=np.concatenate([f, -f]),
        A_eq=np.append(np.ones(degree + 1), 0.0)[None, :],
        b_eq=[float(terms.sum())],
        bounds=[(None, None)] * (degree + 1) + [(0, None)],
    )
    if not solved.success:
        return None
    found: Doubles = solved.x[:-1]
    found[0] += float(terms.sum()) - float(found.sum())
    return found


def _distance(f: Doubles, g: Doubles) -> float:
    return _maximum(np.asarray(chebyshev.chebsub(f, g), dtype=np.float64))


def _maximum(terms: Doubles) -> float:
    """At least max |Σ terms[k] C_k| on [-1, 1].

    A trigonometric polynomial of degree N is nowhere larger than its largest value at points π/M apart over cos(π N / 2M)
    (Ehlich and Zeller); here M = 16 N.
    """
    t = np.cos(np.linspace(0, np.pi, _DENSE * max(len(terms) - 1, 1) + 1))
    return float(np.abs(chebyshev.chebval(t, terms)).max()) / math.cos(math.pi / (2 * _DENSE))
