"""`max_error` with `certify=True`: a polynomial of low degree whose distance from f is known on the whole spectrum (ADR 16).

S is symmetric in the inner product of `symmetric`, and its eigenvalues lie in an interval that the skip connection gives. So
for every polynomial g, whatever the graph and the column x are,

    ‖f(S) x - g(S) x‖ ≤ max |f - g| · ‖x‖        and        ‖f(S) x‖ ≥ ‖g(S) x‖ - max |f - g| · ‖x‖,

with the maximum over the interval, and x without its stationary part where that is an eigenvector. The quotient of both is a
proven relative error. g is the Chebyshev series of f up to some degree, its last term corrected (`Economised`). It is summed up
along the three-term recurrence

    t_0 = x,    t_1 = R x,    t_{k+1} = 2 R t_k - t_{k-1}        with R = (S - centre)/radius,

so a degree that turns out too low is raised by more hops, not by starting over. Rows are float32: in fewer bits the worst that
rounding can do in such a recurrence exceeds the error that is usually allowed. What float32 itself rounds is not proven but
added by a rule that overstates it (`_rounding`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter

import numpy as np

from unifews.core.schemes import SpectralFilter
from unifews.kernels import aligned, native
from unifews.kernels.formats import StoredRows, row_format
from unifews.propagation.config import ErrorNorm
from unifews.propagation.features import FeatureMatrix, Floats
from unifews.propagation.lanczos import Goal, NotReached, Outcome, TileResult, column_sums, fill_isolated, overall, series_of
from unifews.propagation.operator import HopOperator
from unifews.propagation.recurrence import Recurrence
from unifews.propagation.spectral import Doubles, Series, estimate
from unifews.propagation.symmetric import SymmetricOperator
from unifews.propagation.tiles import Shape, cut, full_hop
from unifews.resources import Progress

_WORST = 3.0  # times the tolerance: the error of no column is larger
_CUT = 1e-8  # of the largest term: terms of a series that are left out are smaller (`Series.of`)
_DENSE = 8  # points for each degree of a polynomial where its maximum is looked for
_LONG = 512  # terms of a series: the maximum of a longer one is bounded by the sum of its terms
_UNIT = 2.0**-24  # rounding of float32
_SUMS = 1e-5  # what norms of float32 columns may be off
_USUAL = 0.25, 0.38, 12  # a_k, b_k and rows of the Jacobi matrix of a usual column (`spectral.outlook`)


@dataclass(frozen=True)
class Economised:
    """Polynomials g_d = Σ_{k≤d} c_k C_k + η_d C_d of every degree d, for a Chebyshev series Σ c_k C_k of f.

    η_d = c_{d+2} + c_{d+4} + ... makes g_d the best approximation where f(t) = 1/(a - t) (Bernstein), as PageRank is; where it
    does not help it is 0.
    """

    series: Series
    omitted: float
    """A bound on what the series itself leaves out of f."""

    @classmethod
    def of(cls, op: HopOperator) -> Economised:
        series = series_of(op)
        count = 2 * len(series.terms) if isinstance(op.scheme, SpectralFilter) else op.hops
        return cls(series, count * _CUT * float(np.abs(series.terms).max()))

    @cached_property
    def _tails(self) -> Doubles:
        """Σ_{k>d} |c_k| for d = 0, 1, ..."""
        size = np.abs(self.series.terms)
        return np.append(size[::-1].cumsum()[::-1][1:], 0.0)

    @cached_property
    def _angles(self) -> Doubles:
        return np.linspace(0, np.pi, _DENSE * max(self.series.degree, 1) + 1)

    def last(self, degree: int) -> float:
        """c_d + η_d."""
        return self._choice(degree)[0]

    def distance(self, degree: int) -> float:
        """At least max |f - g_d| on the interval."""
        return self._choice(degree)[1] + self.omitted

    @cached_property
    def _chosen(self) -> dict[int, tuple[float, float]]:
        return {}

    def _choice(self, degree: int) -> tuple[float, float]:
        """The last coefficient and the largest distance of a degree.

        A trigonometric polynomial of degree N is nowhere larger than its largest value at points π/M apart over
        cos(π N / 2M) (Ehlich and Zeller); here M = 8 N.
        """
        if degree not in self._chosen:
            terms, degree_ = self.series.terms, min(degree, self.series.degree)
            own, tail = float(terms[degree_]) if degree == degree_ else 0.0, float(self._tails[degree_])
            found = own, tail
            if tail and len(terms) <= _LONG:
                more = float(terms[degree + 2 :: 2].sum())
                rest = terms.copy()
                rest[: degree + 1] = 0
                rest[degree] = -more
                values = np.polynomial.chebyshev.chebval(np.cos(self._angles), rest)
                most = float(np.abs(values).max()) / math.cos(math.pi / (2 * _DENSE))
                found = (own + more, most) if most < tail else found
            self._chosen[degree] = found
        return self._chosen[degree]

    def degree_for(self, distance: float, least: int = 1) -> int:
        """The least degree that comes this close to f, or that of the whole series."""
        degree = least
        while degree < self.series.degree and self.distance(degree) > distance:
            degree += 1
        return degree

    @cached_property
    def usual_norm(self) -> float:
        """‖f(S) x‖ / ‖x‖ of a column with the spectrum that features on graphs usually have."""
        series, (a, b, size) = self.series, _USUAL
        centre, radius = 0.5 * (series.high + series.low), 0.5 * (series.high - series.low)
        rows = np.full((size, 1), centre + radius * a), np.full((size, 1), radius * b)
        return float(estimate(series, *rows, np.ones((size + 1, 1)), 0.01).norm[0])

    def expected_degree(self, tolerance: float) -> int:
        """Hops until the error of a usual column is proven."""
        return self.degree_for(tolerance / (1 + tolerance) * self.usual_norm)


class _Tile:
    """The recurrence of one tile of columns."""

    def __init__(
        self, op: SymmetricOperator, features: FeatureMatrix, shape: Shape, sums: Doubles, way: Economised, memory: list[Floats]
    ) -> None:
        """`memory`: three arrays of another tile, used again if they are as wide, and replaced if not."""
        self.op, self.shape, self.way, self.degree = op, shape, way, 0
        start = Recurrence(op, features, shape, sums)  # splits off the stationary part
        self.start, width = start, shape.width
        self.mean, self.rest = start.mean[:width], np.sqrt(start.rest[:width])
        self.whole = np.sqrt(np.maximum(sums[1], start.rest[:width]))
        self.active = self.rest > 0
        n, columns = features.n, shape.padded
        if not memory or memory[0].shape != (n, columns):
            memory[:] = [aligned(n, columns) for _ in range(3)]
        *self.buffers, self.out = memory
        direction, phi = self.mean.astype(np.float32), op.hop.phi
        for first, rows, column in start._rows():
            native.ingest(
                x=rows,
                row0=first,
                column0=column,
                width=width,
                blocks=shape.blocks,
                source=op.hop.diffusion.source,
                offset=phi if direction.any() else None,
                direction=direction if direction.any() else None,
                largest=False,
                q=self.buffers[0],
                size=None,
                top=None,
                square=None,
                threads=op.hop.threads,
            )
        np.multiply(self.buffers[0], np.float32(way.series.terms[0]), out=self.out)
        self.added = 0.0  # η of the last hop
        self.seconds: list[float] = []
        series = way.series
        centre, radius = 0.5 * (series.high + series.low), 0.5 * (series.high - series.low)
        self.keep = ((op.hop.keep.astype(np.float64) - centre) / radius).astype(np.float32)
        self.gain = (op.hop.gain / np.float32(radius)).astype(np.float32)

    def run(self, degree: int) -> None:
        """Hops up to this degree, the last one with its corrected coefficient."""
        hop, terms = self.op.hop, self.way.series.terms
        if self.added:
            self.out -= np.float32(self.added) * self.buffers[self.degree % 2]
        for k in range(self.degree, degree):
            began = perf_counter()
            coefficient = self.way.last(degree) if k + 1 == degree else float(terms[k + 1])
            factor = np.float32(2 if k else 1)
            full_hop(
                hop.edges,
                self.buffers[k % 2],
                self.buffers[(k + 1) % 2],
                hop.threads,
                keep=factor * self.keep,
                gain=factor * self.gain,
                coefficient=coefficient,
                out=self.out,
                previous=1.0 if k else 0.0,
            )
            self.seconds.append(perf_counter() - began)
        self.degree, self.added = degree, self.way.last(degree) - float(terms[degree])

    def sizes(self) -> Doubles:
        """‖g(S) x‖ of each column in the caller's norm, without its stationary part; at most what it is, [width]."""
        weight = self.op.weight if self.op.own is None else self.op.own
        found = np.zeros((2, self.shape.padded))
        native.column_sums(x=self.out, factor=weight, square=weight, sums=found, threads=self.op.hop.threads)
        return (1 - _SUMS) * np.sqrt(found[1, : self.shape.width])

    def errors(self, sizes: Doubles, degree: int) -> tuple[Doubles, Doubles]:
        """The proven relative error of each column after so many hops, and norms of f(S) X as `TileResult` has them."""
        op, series = self.op, self.way.series
        rounding = _rounding(op, series.terms[: degree + 1]) * self.rest + _UNIT * self.whole * series.largest
        bound = _widest(op) * (self.way.distance(degree) * self.rest + rounding)
        least = np.maximum(sizes - bound, series.resolved * self.rest * _narrowest(op))
        errors = np.where(self.active, bound / np.maximum(least, 1e-300), 0.0)
        total = float((op.weight if op.own is None else op.own).sum(dtype=np.float64))
        settled = self.mean * (op.stationary or 0.0) * math.sqrt(total)
        return errors, np.stack([np.where(self.active, least, 0.0), np.hypot(np.where(self.active, least, 0.0), settled)])

    def finish(self, result: Floats) -> None:
        """Write g(S) x, with the stationary part, into the tile's columns."""
        op, columns = self.op, self.shape.padded
        offset, ones = aligned(columns, zero=True), aligned(1, columns)
        offset[: self.shape.width], ones[:] = self.mean * (op.stationary or 0.0), 1.0
        stored = StoredRows(self.out.view(np.uint8), np.empty(0, dtype=np.uint8))
        native.combine_rows(
            format=row_format("float32").code,
            blocks=self.shape.blocks,
            width=self.shape.width,
            factor=op.target,
            weight=op.weight,
            rows=[stored.rows],
            steps=[stored.steps],
            mix=ones,
            offset=offset,
            result=result,
            column0=self.shape.column,
            threads=op.hop.threads,
        )


def chebyshev(
    op: HopOperator,
    features: FeatureMatrix,
    way: Economised,
    tolerance: float,
    norm: ErrorNorm = "columns",
    degree: int | None = None,
    progress: Progress | None = None,
    goal: Goal | None = None,
) -> tuple[Floats, Outcome]:
    """f(S) X with a proven error, float32 [n, f]; the graph is undirected. With `degree`, after so many hops.

    `goal` instead of tolerance, norm and degree may also have the steps of an earlier run.
    """
    goal = goal or Goal(tolerance, norm, degree, method="chebyshev")
    operator = SymmetricOperator.of(op, way.series)
    values, sums = aligned(features.n, features.f), column_sums(operator, features)
    shapes, results, memory = cut(features.f), [], list[Floats]()
    for number, shape in enumerate(shapes):
        own = sums[:, shape.column : shape.column + shape.width]
        results.append(chebyshev_tile(operator, features, shape, own, way, goal, values, memory))
        if progress:
            progress(number + 1, len(shapes))
    fill_isolated(operator, features, values)
    return values, Outcome(results)


def chebyshev_tile(
    op: SymmetricOperator,
    features: FeatureMatrix,
    shape: Shape,
    sums: Doubles,
    way: Economised,
    goal: Goal,
    values: Floats,
    memory: list[Floats],
) -> TileResult:
    """Propagate the columns of a tile into `values`; `memory` as `_Tile` has it."""
    tolerance, norm, most = goal.tolerance, goal.norm, way.series.degree
    tile = _Tile(op, features, shape, sums, way, memory)
    steps, stops = goal.of_tile(shape), list[int]()
    planned = [*steps[0].stops, steps[0].hops] if steps else []
    tile.run(planned[0] if planned else min(goal.degree or way.expected_degree(tolerance), max(most, 1)))
    while True:
        sizes = tile.sizes()
        errors, norms = tile.errors(sizes, tile.degree)
        if tile.degree == planned[-1] if planned else goal.degree or _is_reached(errors, norms, tolerance, norm):
            break
        if tile.degree >= most:
            raise NotReached(overall(errors, norms, norm))
        more = tile.degree + 1  # as many as are enough if ‖g(S) x‖ stays what it is
        while more < most and not _is_reached(*tile.errors(sizes, more), tolerance, norm):
            more += 1
        stops.append(tile.degree)
        tile.run(planned[len(stops)] if planned else more)
    tile.finish(values)
    times = tuple(tile.seconds)
    return TileResult(shape, row_format("float32"), tile.degree, errors, norms, times, stops=tuple(stops))


def _is_reached(errors: Doubles, norms: Doubles, tolerance: float, norm: ErrorNorm) -> bool:
    worst = float(errors.max(initial=0.0)) if norm == "columns" else 0.0
    return overall(errors, norms, norm) <= tolerance and worst <= _WORST * tolerance


def _widest(op: SymmetricOperator) -> float:
    """The caller's norm is at most this times that of the inner product."""
    return 1.0 if op.own is None else math.sqrt(_ratios(op)[1])


def _narrowest(op: SymmetricOperator) -> float:
    """And at least this times."""
    return 1.0 if op.own is None else math.sqrt(_ratios(op)[0])


def _ratios(op: SymmetricOperator) -> tuple[float, float]:
    assert op.own is not None
    some = op.weight > 0
    ratio = op.own[some].astype(np.float64) / op.weight[some]
    return (float(ratio.min()), float(ratio.max())) if len(ratio) else (1.0, 1.0)


def _rounding(op: SymmetricOperator, terms: Doubles) -> float:
    """What float32 rounds in the recurrence, over ‖x‖: √(largest degree) units at every hop.

    An error made at t_k appears in the sum as Σ_{i≥k} c_i U_{i-k}(R) of it, where |U_j| ≤ j + 1.
    """
    edges = op.hop.graph.degree
    units = math.sqrt(float(edges.max(initial=0)) + 8)
    after = np.arange(1, len(terms) + 1, dtype=np.float64)
    return _UNIT * units * float(np.abs(terms) @ (after * (after + 1) / 2))
