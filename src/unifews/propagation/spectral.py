"""Functions of an operator from its Jacobi matrix: the coefficients of f(S)x in a Lanczos basis, and the error of m of them.

Lanczos on a column x gives orthonormal p_0 = x/‖x‖, p_1, ... with S p_k = b_k p_{k+1} + a_k p_k + b_{k-1} p_{k-1}, and

    f(S) x = ‖x‖ Σ_k c_k p_k,    c = f(J) e_1,

where J is the (infinite) tridiagonal matrix of a and b. After m hops its first m rows are known. Continued in some way, the
leading m + 1 entries of f(J) e_1 are the coefficients, and the others the error. The true continuation is not known, so the
error is taken from the worst of four (ADR 27): the mean of the last three a, b; the last two, alternating; and one more row
that gives J an eigenvalue at either end of the spectrum (Gauss-Radau).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from unifews.errors import InputError
from unifews.kernels import LANES, aligned, native

Doubles = NDArray[np.float64]
Response = Callable[[Doubles], Doubles]
_EXACT = 1e-7  # of the largest coefficient: where a series of f ends
_RESOLVED = 2.0**-16  # of ‖f‖·‖x‖: errors are relative to at least this much, about 100 times what float32 rounds
_MARGIN = 0.02  # of the interval: what rounding may add to its ends
_LONGEST = 4096  # terms of a series


@dataclass(frozen=True)
class Series:
    """f on an interval that holds the spectrum, as a Chebyshev series: f(t) = Σ_k terms[k] C_k((t - centre)/radius)."""

    low: float
    high: float
    terms: Doubles

    @classmethod
    def of(cls, response: Response, low: float, high: float, degree: int | None = None) -> Series:
        """Of a polynomial of that degree, or of any function that is smooth on the interval."""
        count = 32 if degree is None else degree + 1
        while True:
            terms = _chebyshev(response, low, high, count)
            size = float(np.abs(terms).max())
            if degree is not None or np.abs(terms[-4:]).max() <= _EXACT * size:
                kept = np.flatnonzero(np.abs(terms) > 0.1 * _EXACT * size)
                return cls(low, high, terms[: int(kept[-1]) + 1 if len(kept) else 1])
            if count >= _LONGEST:
                raise InputError(
                    f"the filter is not smooth on [{low:g}, {high:g}], where the operator's eigenvalues are: a polynomial "
                    f"of degree {_LONGEST} does not approximate it. Use a smoother one."
                )
            count *= 2

    @property
    def degree(self) -> int:
        return len(self.terms) - 1

    @cached_property
    def largest(self) -> float:
        """The largest magnitude of f, which is the norm of f(S)."""
        centre, radius = 0.5 * (self.high + self.low), 0.5 * (self.high - self.low)
        return float(np.abs(self(centre + radius * np.cos(np.linspace(0, np.pi, 2 * len(self.terms) + 8)))).max())

    @property
    def resolved(self) -> float:
        """The least norm of f(S) x, for ‖x‖ = 1, of which float32 leaves a few digits."""
        return _RESOLVED * self.largest

    def __call__(self, t: Doubles) -> Doubles:
        scaled = (np.asarray(t, dtype=np.float64) - 0.5 * (self.high + self.low)) / (0.5 * (self.high - self.low))
        return np.asarray(np.polynomial.chebyshev.chebval(scaled, self.terms))

    def first_column(self, diagonal: Doubles, off_diagonal: Doubles, threads: int = 1) -> Doubles:
        """f(J) e_1 for matrices J with these diagonals, one per column; [size, columns]."""
        size, columns = diagonal.shape
        padded = -(-columns // LANES) * LANES
        parts = [aligned(rows, padded, zero=True) for rows in (size, max(size - 1, 1), size)]
        parts[0][:, :columns], parts[1][: size - 1, :columns] = diagonal, off_diagonal[: size - 1]
        centre, radius = 0.5 * (self.high + self.low), 0.5 * (self.high - self.low)
        native.tridiagonal_series(
            diagonal=parts[0],
            off_diagonal=parts[1],
            series=self.terms,
            centre=centre,
            radius=radius,
            out=parts[2],
            threads=threads,
        )
        return parts[2][:, :columns].astype(np.float64)


def _chebyshev(response: Response, low: float, high: float, count: int) -> Doubles:
    """The first `count` coefficients, by interpolation at Chebyshev points."""
    points = max(2 * count, 8)
    angle = np.pi * (np.arange(points) + 0.5) / points
    values = np.asarray(response(0.5 * (high + low) + 0.5 * (high - low) * np.cos(angle)), dtype=np.float64)
    if values.shape != angle.shape or not np.isfinite(values).all():
        raise InputError(
            f"the filter must give a finite number for each eigenvalue of the operator, from {low:g} to {high:g}; it gave "
            f"{'another shape' if values.shape != angle.shape else 'values that are not finite'}."
        )
    transform = np.fft.rfft(np.concatenate([values, values[::-1]]))[:count]  # the cosine transform of the values, but for:
    terms = (transform * np.exp(-0.5j * np.pi * np.arange(count) / points)).real / points
    terms[0] /= 2
    return np.asarray(terms)


@dataclass(frozen=True)
class Estimate:
    """What m hops know of f(S) x, per column, for columns of norm 1 (in the operator's own inner product)."""

    coefficients: Doubles
    """c_0 .. c_m, [m + 1, columns]"""
    norm: Doubles
    """‖f(S) x‖, [columns]; at least what float32 resolves of a column that f removes"""
    truncation: Doubles
    """The error of the coefficients, relative to that norm, [columns]"""


def estimate(series: Series, a: Doubles, b: Doubles, sizes: Doubles, tolerance: float, threads: int = 1) -> Estimate:
    """From a_0 .. a_{m-1} and b_0 .. b_{m-1}, [m, columns].

    `sizes` [m + 1, columns] are norms of the basis vectors where the error is measured in another norm than that in which they
    are orthonormal; ones otherwise. J grows until its last coefficients are below a hundredth of `tolerance`.
    """
    m = len(a)
    longest = max(series.degree + 1, m + 1)
    size = min(longest, 2 * m + 12)
    while True:
        ways = first_columns(series, *continuations(series, a, b, size), threads)
        tail = np.abs(ways[-2:, 0]).max(initial=0.0)
        if size >= longest or tail <= 0.01 * tolerance * np.abs(ways[:, 0]).max(initial=0.0):
            break
        size = min(longest, 2 * size)
    chosen = ways[: m + 1, 0].copy()
    weights = np.concatenate([sizes, np.repeat(sizes[-1:], size - len(sizes), axis=0)])
    norm = np.maximum(_norm(ways[:, 0] * weights), series.resolved * sizes[0])
    with np.errstate(invalid="ignore", over="ignore"):
        ways[: m + 1] -= chosen[:, None]
        error = _norm(ways * weights[:, None]).max(axis=0)
    truncation = error / np.maximum(norm, 1e-300)
    broken = ~np.isfinite(truncation) | _is_outside(a, b, series)
    chosen[:, broken], norm[broken], truncation[broken] = 0.0, 0.0, np.inf
    return Estimate(chosen, norm, truncation)


def first_columns(series: Series, diagonal: Doubles, off_diagonal: Doubles, threads: int) -> Doubles:
    """f(J) e_1 of each of the matrices [size, ways, columns]."""
    size = len(diagonal)
    found = series.first_column(diagonal.reshape(size, -1), off_diagonal.reshape(size - 1, -1), threads)
    return found.reshape(diagonal.shape)


def continuations(series: Series, a: Doubles, b: Doubles, size: int) -> tuple[Doubles, Doubles]:
    """Four Jacobi matrices for each column that begin with a, b: their diagonals [size, 4, columns], off-diagonals one less."""
    m = len(a)
    diagonal, off_diagonal = np.zeros((size, 4, a.shape[1])), np.zeros((size - 1, 4, a.shape[1]))
    for whole, part in ((diagonal, a), (off_diagonal, b)):
        rest = len(whole) - m
        whole[:m] = part[:, None]
        whole[m:, 0] = part[-min(3, m) :].mean(axis=0)
        whole[m:, 1] = part[[m - 2 + turn % 2 if m > 1 else 0 for turn in range(rest)]]
    for way, end in ((2, series.high), (3, series.low)):
        diagonal[m, way] = np.clip(_radau(a, b, end), series.low, series.high)  # as every entry of J is
    return diagonal, off_diagonal


def amplification(
    coefficients: Doubles, a: Doubles, b: Doubles, diagonal: Doubles, off_diagonal: Doubles, e: Doubles
) -> Doubles:
    """g_j(M) e for j = 0 .. m, [m + 1, size, columns], where an error δ made at p_j appears in Σ_k c_k p_k as g_j(S) δ.

    g_j = Σ_{k≥j} c_k π_{k-j} with the polynomials π of the recurrence that begins with a_j, b_j: Clenshaw's sums, from the last
    to the first. M is tridiagonal, one matrix per column.
    """
    m = len(b)
    inverse = np.where(b > 0, 1 / np.where(b > 0, b, 1.0), 0.0)
    sums = np.zeros((m + 2, *e.shape))
    sums[m] = coefficients[m] * e
    for k in range(m - 1, -1, -1):
        after = sums[k + 1]
        product = (diagonal - a[k]) * after
        product[1:] += off_diagonal * after[:-1]
        product[:-1] += off_diagonal * after[1:]
        sums[k] = coefficients[k] * e + inverse[k] * product
        if k + 1 < m:
            sums[k] -= b[k] * inverse[k + 1] * sums[k + 2]
    return sums[: m + 1]


def _is_outside(a: Doubles, b: Doubles, series: Series) -> NDArray[np.bool_]:
    """Whether J has eigenvalues outside of the interval, of each column: rounding has spoilt it, and f is not known there."""
    margin = _MARGIN * (series.high - series.low)
    above, below = (_pivots(a, b, end) for end in (series.high + margin, series.low - margin))
    return np.asarray((above >= 0).any(axis=0) | (below <= 0).any(axis=0))


def _radau(a: Doubles, b: Doubles, end: float) -> Doubles:
    """The last diagonal entry that gives J an eigenvalue at `end`: end + b² / (last pivot of J - end)."""
    return np.asarray(end + b[-1] ** 2 / _pivots(a, b, end)[-1])


def _pivots(a: Doubles, b: Doubles, end: float) -> Doubles:
    """Of J - end, [m, columns], none zero; as many are positive as J has eigenvalues above `end`."""
    tiny = 1e-9 * (1 + abs(end))
    pivots = a - end
    for k in range(len(a)):
        if k:
            pivots[k] -= b[k - 1] ** 2 / pivots[k - 1]
        pivots[k] = np.where(np.abs(pivots[k]) < tiny, np.copysign(tiny, pivots[k]), pivots[k])
    return pivots


def _norm(values: Doubles) -> Doubles:
    """Over the first axis."""
    return np.asarray(np.sqrt(np.square(values).sum(axis=0)))


@dataclass(frozen=True)
class Outlook:
    """What to expect of a function before the first hop, from the spectrum that features on graphs usually have."""

    degree: int
    """Hops until the error is at most the tolerance."""
    amplification: float
    """Error of the result over the rounding of each iterate, both relative."""


_USUAL = 0.25, 0.38  # a_k and b_k on [-1, 1]: 0.1 to 0.35 and 0.35 to 0.45 on the citation, co-purchase and co-author graphs


def outlook(series: Series, tolerance: float, most: int) -> Outlook:
    """By a Jacobi matrix with the usual a and b in all rows; after `most` hops at the latest."""
    return _outlook(series.low, series.high, series.terms.tobytes(), tolerance, most)


@lru_cache(maxsize=64)  # takes a millisecond, which is a hop of a small graph
def _outlook(low: float, high: float, terms: bytes, tolerance: float, most: int) -> Outlook:
    series = Series(low, high, np.frombuffer(terms))
    centre, radius = 0.5 * (series.high + series.low), 0.5 * (series.high - series.low)
    for m in range(1, most + 1):
        a, b = np.full((m, 1), centre + radius * _USUAL[0]), np.full((m, 1), radius * _USUAL[1])
        found = estimate(series, a, b, np.ones((m + 1, 1)), tolerance)
        if float(found.truncation[0]) <= tolerance:
            break
    later = np.square(found.coefficients[:, 0])[::-1].cumsum()
    return Outlook(m, float(np.sqrt(later.sum()) / max(float(found.norm[0]), 1e-300)))
