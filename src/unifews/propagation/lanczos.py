"""`propagate` with `max_error`: as many hops, in as few bytes, as the allowed error needs (ADR 27).

Columns are propagated tile by tile, each tile until the estimated error of its columns is small enough; tiles know nothing of
each other, so memory holds the iterates of one, and the result does not depend on how columns are grouped. A tile starts in the
narrowest row format whose rounding leaves room; a few columns that need a wider one are propagated again by themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.schemes import SpectralFilter, response_of
from unifews.core.trace import HopTrace
from unifews.kernels import LANES, aligned, native
from unifews.kernels.formats import AUTOMATIC, RowFormat, row_format
from unifews.propagation.config import ErrorNorm
from unifews.propagation.features import FeatureMatrix, Floats
from unifews.propagation.operator import HopOperator
from unifews.propagation.plan import Method, Step
from unifews.propagation.recurrence import Accuracy, Recurrence
from unifews.propagation.spectral import Doubles, Series
from unifews.propagation.symmetric import INTERVALS, SymmetricOperator
from unifews.propagation.tiles import Shape, cut
from unifews.resources import Progress


class NotReached(Exception):
    """So many hops as can be combined are not enough; `args[0]` is the error they have."""


_LEAST = 2  # hops before the first estimate
_WORST = 3.0  # times the tolerance: the error of no column is larger
_ROUNDED = 0.92  # of the tolerance may be rounding: a hop more in a narrow format is cheaper than wider rows
_POOR = 0.5  # of what a column may have: if its rounding exceeds this, the column is propagated again in a wider format
_SETTLED = 0.5  # of the tolerance: truncation that more hops need not lower
_AGAIN = 0.25  # of a tile's columns: if more of them need a wider format, all are propagated again
_ROOM = 0.9  # of the tolerance, for the rounding that is expected in the result
_CAUTIOUS = 0.3, 0.5  # instead of _ROOM and _ROUNDED where the result has much more rounding than what is stored:
_FAR = 5.0  # times more. Such a function removes most of a column, and the estimate of what rounding leaves is rougher
_CLOSE, _TINY = 1e-5, 1e-30  # squares of a column less than this, relative and absolute, are added up in float64
_FIRST = 0.7  # of the interval from below: the guess of a_0
_LARGE = 16 << 20  # bytes of an iterate from which its rows are limited to _ROW
_ROW = 128  # bytes of a row: two cache lines
_NARROW_ROW, _INT8_BLOCKS = 64, 3  # with MANY nodes or more: one cache line, which in int8 holds 3 blocks and their steps
_FASTEST = 4.0  # times smaller is the error after a hop, at most
MOST_HOPS = 63
"""Iterates that the kernels combine, less one."""
MANY = 1 << 25
"""Nodes from which tiles are narrower, so that the two iterates of a hop take at most 128 bytes per node in every format."""


@dataclass(frozen=True)
class Goal:
    """When to stop."""

    tolerance: float
    norm: ErrorNorm = "columns"
    degree: int | None = None
    """A fixed number of hops instead."""
    formats: tuple[RowFormat, ...] = AUTOMATIC
    """Row formats to choose from, the narrowest first."""
    room: float = _ROOM
    """Of the tolerance: a format that loses more of the input than this loses too much in the end."""
    method: Method = "lanczos"
    """How tiles are propagated: here, or by `chebyshev`."""
    steps: tuple[Step, ...] = ()
    """The tiles of an earlier run that is repeated."""

    def of_tile(self, shape: Shape) -> tuple[Step, ...]:
        """The steps of a tile of columns, counted from its first."""
        last = shape.column + shape.width
        return tuple(step.moved(shape.column) for step in self.steps if shape.column <= step.column < last)


@dataclass(frozen=True)
class TileResult:
    """A tile, propagated."""

    shape: Shape
    format: RowFormat
    degree: int
    errors: Doubles
    """Estimated relative error of each column, [width]"""
    norms: Doubles
    """Norm of each column without its stationary part, and with it, [2, width]"""
    seconds: tuple[float, ...]
    """Of each hop."""
    redone: tuple[int, ...] = ()
    """Columns that were propagated again in a wider format."""
    again: tuple[Step, ...] = ()
    """How they were."""
    stops: tuple[int, ...] = ()
    """Of a Chebyshev polynomial: degrees before the last at which the error was looked at."""

    @property
    def step(self) -> Step:
        """What repeats it."""
        shape = self.shape
        return Step(shape.column, shape.width, self.format.name, self.degree, self.stops, self.redone, self.again)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        shape, arrays = self.shape, {"errors": self.errors.tolist(), "norms": self.norms.tolist()}
        named = {"format": self.format.name, "again": [step.to_dict() for step in self.again]}
        return {**vars(self), **arrays, "shape": [shape.column, shape.width, shape.blocks], **named}

    @classmethod
    def of_dict(cls, kept: dict[str, Any], column: int = 0) -> TileResult:
        """Of a tile whose columns were counted from `column`."""
        first, width, blocks = kept["shape"]
        errors, norms = np.array(kept["errors"]), np.array(kept["norms"])
        times, redone = tuple(kept["seconds"]), tuple(kept["redone"])
        shape = Shape(column + first, width, blocks)
        again, stops = tuple(Step.of_dict(each) for each in kept["again"]), tuple(kept["stops"])
        return cls(shape, row_format(kept["format"]), kept["degree"], errors, norms, times, redone, again, stops)


@dataclass(frozen=True)
class Outcome:
    """All tiles, propagated."""

    tiles: list[TileResult]

    @property
    def column_errors(self) -> Doubles:
        return np.concatenate([tile.errors for tile in self.tiles])

    @property
    def absolute_errors(self) -> Doubles:
        """‖(P̂ - P)_j‖, as the relative ones are estimated or proven."""
        return np.concatenate([tile.errors * tile.norms[0] for tile in self.tiles])

    def error(self, norm: ErrorNorm) -> float:
        return overall(self.column_errors, np.concatenate([tile.norms for tile in self.tiles], axis=1), norm)

    @property
    def degree(self) -> int:
        return max(tile.degree for tile in self.tiles)

    def seconds(self, hop: int) -> float:
        return sum(tile.seconds[hop] for tile in self.tiles if hop < tile.degree)

    def hops(self, edges: int, planned: int) -> list[HopTrace]:
        """What each hop multiplied; hops that the scheme has and the run left out have kept nothing."""
        count, width = max(self.degree, planned), sum(tile.shape.width for tile in self.tiles)
        traces = []
        for hop in range(count):
            running = [tile for tile in self.tiles if hop < tile.degree]
            columns = sum(tile.shape.width for tile in running)
            decisions = sum(tile.shape.blocks for tile in running)
            traces.append(
                HopTrace(
                    hop,
                    edges * sum(tile.shape.blocks for tile in self.tiles),
                    edges * decisions,
                    0,
                    edges * columns,
                    edges * width,
                    0,
                    threshold=None,
                    seconds=self.seconds(hop),
                )
            )
        return traces


def room_for(amplification: float) -> float:
    """Of the tolerance: a format that loses more of the input than this is expected to lose too much in the end."""
    return (_ROOM if amplification <= _FAR else _CAUTIOUS[0]) / amplification


def overall(errors: Doubles, norms: Doubles, norm: ErrorNorm) -> float:
    """One number for the errors of columns: their root mean square, or ‖P̂ - P‖_F/‖P‖_F."""
    if norm == "frobenius":
        whole = float(np.linalg.norm(norms[1]))
        return float(np.linalg.norm(errors * norms[0])) / whole if whole else 0.0
    active = norms[0] > 0
    return math.sqrt(float(np.square(errors[active]).mean())) if active.any() else 0.0


def series_of(op: HopOperator) -> Series:
    """f of the scheme on the interval of the operator's eigenvalues."""
    low, high = INTERVALS[op.scheme.skip]
    degree = None if isinstance(op.scheme, SpectralFilter) else op.hops
    return Series.of(response_of(op.scheme, op.hops), low, high, degree)


def lanczos(op: HopOperator, features: FeatureMatrix, goal: Goal, progress: Progress | None = None) -> tuple[Floats, Outcome]:
    """f(S) X to the goal, float32 [n, f]; the graph is undirected."""
    operator = SymmetricOperator.of(op, series_of(op))
    values = aligned(features.n, features.f)
    sums = column_sums(operator, features)
    shapes = tile_shapes(features.f, features.n)
    tiles: list[TileResult] = []
    for number, shape in enumerate(shapes):
        own = sums[:, shape.column : shape.column + shape.width]
        tiles.extend(propagate_tile(operator, features, shape, own, goal, values))
        if progress:
            progress(number + 1, len(shapes))
    fill_isolated(operator, features, values)
    return values, Outcome(tiles)


def column_sums(op: SymmetricOperator, features: FeatureMatrix) -> Doubles:
    """Σ weight·q and Σ weight·q² of all columns, [2, f]."""
    factor, square = op.factors
    sums = np.zeros((2, features.f))
    if features.sparse is not None:
        x, data = features.sparse, np.ascontiguousarray(features.sparse.data, dtype=np.float32)
        arrays = {"indptr": x.indptr, "indices": x.indices, "values": data, "factor": factor, "square": square}
        native.sparse_column_sums(**arrays, sums=sums, threads=op.hop.threads)
    else:
        for first, last in features.chunks():
            part = slice(first, last)
            native.column_sums(
                x=features.rows(first, last), factor=factor[part], square=square[part], sums=sums, threads=op.hop.threads
            )
    sums = op.reduced(sums)
    rest = sums[1] - np.square(sums[0]) / max(op.total, 1.0)
    close = np.flatnonzero((rest < _CLOSE * sums[1]) | (sums[1] < _TINY))  # float32 does not tell whether anything is left
    if len(close) and op.total:
        sums[:, close] = _exact_sums(op, features, close)
    return sums


def _exact_sums(op: SymmetricOperator, features: FeatureMatrix, columns: NDArray[np.int64]) -> Doubles:
    """The same of some columns in float64, with Σ weight·(q - mean)² added up by itself."""
    weight, source = op.weight.astype(np.float64), op.hop.diffusion.source.astype(np.float64)
    whole, rest = np.zeros(len(columns)), np.zeros(len(columns))
    for first, last in features.chunks():
        q = source[first:last, None] * features.rows(first, last)[:, columns]
        whole += weight[first:last] @ q
    whole = op.reduced(whole)
    for first, last in features.chunks():
        q = source[first:last, None] * features.rows(first, last)[:, columns]
        rest += weight[first:last] @ np.square(q - whole / op.total)
    return np.stack([whole, op.reduced(rest) + np.square(whole) / op.total])


def propagate_tile(
    op: SymmetricOperator, features: FeatureMatrix, shape: Shape, sums: Doubles, goal: Goal, values: Floats
) -> list[TileResult]:
    """Propagate the columns of a tile into `values`, in the first format that takes them, in narrower tiles if it is wide."""
    if goal.steps:
        return [_repeat(op, features, shape, sums, goal, step, values) for step in goal.of_tile(shape)]
    format, wider = goal.formats[0], goal.formats[1:]
    parts = parts_of(shape, format, op.nodes)
    ran = recurrence = None
    if wider and format.typical > goal.room * goal.tolerance:
        parts, goal = [shape], replace(goal, formats=wider)
    elif len(parts) == 1:
        recurrence = Recurrence(op, features, shape, sums)
        lost = recurrence.start(format)
        if not wider or op.decided(_rms(lost[: shape.width]) <= goal.room * goal.tolerance):
            ran = _hops(recurrence, goal, bool(wider))
        if ran is None:
            recurrence.release()
        goal = replace(goal, formats=wider)
    if ran is None or recurrence is None:
        results = []
        for part in parts:
            own = sums[:, part.column - shape.column :][:, : part.width]
            results += propagate_tile(op, features, part, own, goal, values)
        return results
    return [_finish(recurrence, ran, format, goal, values)]


def _finish(
    recurrence: Recurrence,
    ran: tuple[Accuracy, NDArray[np.bool_], list[float]],
    format: RowFormat,
    goal: Goal,
    values: Floats,
) -> TileResult:
    """The result of a tile; columns that rounding has spoilt are propagated again, to `goal`."""
    (accuracy, poor, seconds), shape = ran, recurrence.shape
    recurrence.finish(accuracy.found.coefficients, values)
    errors, norms, columns = accuracy.errors, recurrence.norms(accuracy.found), np.flatnonzero(poor)
    recurrence.release()
    again: tuple[Step, ...] = ()
    if len(columns):
        errors = errors.copy()
        some = shape.column + columns
        errors[columns], norms[:, columns], again = _again(recurrence.op, recurrence.features, some, goal, values)
    return TileResult(shape, format, len(seconds), errors, norms, tuple(seconds), tuple(columns.tolist()), again)


def _repeat(
    op: SymmetricOperator, features: FeatureMatrix, tile: Shape, sums: Doubles, goal: Goal, step: Step, values: Floats
) -> TileResult:
    """A step of an earlier run; its columns are counted from the first of the tile, which `sums` are of."""
    shape = Shape(tile.column + step.column, step.width, -(-step.width // LANES))
    recurrence, format = Recurrence(op, features, shape, sums[:, step.column :][:, : step.width]), row_format(step.format)
    recurrence.start(format)
    ran = _hops(recurrence, replace(goal, degree=step.hops), False)
    assert ran is not None
    poor = np.zeros(step.width, dtype=bool)
    poor[list(step.redone)] = True
    return _finish(recurrence, (ran[0], poor, ran[2]), format, replace(goal, steps=step.again), values)


def tile_shapes(width: int, n: int) -> list[Shape]:
    """The tiles for `width` columns of n nodes. The result depends on them, so they do not depend on memory."""
    blocks = -(-width // LANES)
    return cut(width) if n < MANY else cut(width, -(-blocks // _INT8_BLOCKS))


def parts_of(shape: Shape, format: RowFormat, n: int) -> list[Shape]:
    """The tile, or tiles of rows as long as those of int8: all iterates of a tile are in memory."""
    blocks = (_ROW if n < MANY else _NARROW_ROW) // format.bytes_per_block
    if shape.blocks <= blocks or n * format.stride(shape.blocks) < _LARGE:
        return [shape]
    starts = range(0, shape.width, blocks * LANES)
    widths = [min(blocks * LANES, shape.width - start) for start in starts]
    return [Shape(shape.column + start, width, -(-width // LANES)) for start, width in zip(starts, widths, strict=True)]


def _again(
    op: SymmetricOperator, features: FeatureMatrix, columns: NDArray[np.int64], goal: Goal, values: Floats
) -> tuple[Doubles, Doubles, tuple[Step, ...]]:
    """Propagate some columns by themselves; returns their errors and norms, and what repeats it."""
    op.buffers.clear()
    part = op.files.allocate(features.n, len(columns)) if op.files else aligned(features.n, len(columns))
    for first, last in features.chunks():
        part[first:last] = features.rows(first, last)[:, columns]
    some = op.matrix(part)
    result = op.files.allocate(features.n, len(columns)) if op.files else aligned(features.n, len(columns))
    done = propagate_tile(op, some, cut(len(columns))[0], column_sums(op, some), goal, result)
    for first, last in some.chunks():
        rows = result[first:last]
        values[first:last, columns] = np.ldexp(rows, some.exponent) if some.exponent else rows
    scale = 2.0**some.exponent
    norms = scale * np.concatenate([each.norms for each in done], axis=1)
    return np.concatenate([each.errors for each in done]), norms, tuple(each.step for each in done)


def _hops(recurrence: Recurrence, goal: Goal, can_widen: bool) -> tuple[Accuracy, NDArray[np.bool_], list[float]] | None:
    """Hops until the goal is met: the accuracy, columns that rounding has spoilt, and the seconds of each hop.

    None: rounding has spoilt too much, and there is a wider format.
    """
    op, tolerance = recurrence.op, goal.tolerance
    shift: Doubles | float = op.series.low + _FIRST * (op.series.high - op.series.low)
    seconds: list[float] = []
    least, most = (goal.degree, goal.degree) if goal.degree else (min(_LEAST, op.hop.hops), min(op.hop.hops, MOST_HOPS))
    while True:
        began = perf_counter()
        recurrence.hop(shift)
        seconds.append(perf_counter() - began)
        shift = recurrence.next_shift()
        if len(seconds) < least:
            continue
        accuracy = recurrence.estimate(tolerance).shared(op)
        least = len(seconds) + op.decided(_until(accuracy, tolerance)) if not goal.degree else least
        poor = accuracy.active & (accuracy.rounding > _WORST * _POOR * tolerance) & can_widen
        if can_widen and goal.norm == "columns":
            good = accuracy.rounding[accuracy.active & ~poor]
            is_far = _rms(good) > _FAR * _rms(recurrence.lost[accuracy.active & ~poor])
            limit = (_CAUTIOUS[1] if is_far else _ROUNDED) * tolerance
            if op.decided(poor.sum() > _AGAIN * accuracy.active.sum() or _rms(good) > limit):
                return None
        errors, norms = accuracy.errors[~poor], recurrence.norms(accuracy.found)[:, ~poor]  # the others reach ε by themselves
        worst = errors.max(initial=0.0) if goal.norm == "columns" else 0.0
        total = overall(errors, norms, goal.norm)
        met = op.decided(total <= tolerance and worst <= _WORST * tolerance)
        if met or len(seconds) >= most:
            if len(seconds) >= most < op.hop.hops and not goal.degree:
                raise NotReached(total)
            return accuracy, poor, seconds
        if not can_widen and not goal.degree and op.decided(_is_rounded(accuracy, tolerance)):
            return accuracy, poor, seconds


def _until(accuracy: Accuracy, tolerance: float) -> int:
    """Hops to the next estimate: a hop rarely divides the error by more than 4."""
    truncation = accuracy.found.truncation[accuracy.active & np.isfinite(accuracy.found.truncation)]
    ahead = _rms(truncation) / tolerance
    return 1 if ahead <= _FASTEST else min(int(math.log(ahead, _FASTEST)), _LEAST)


def _is_rounded(accuracy: Accuracy, tolerance: float) -> bool:
    """Whether the format's rounding, which more hops do not make smaller, is what is left of the error."""
    determined = accuracy.active & np.isfinite(accuracy.rounding)
    truncation, rounding = accuracy.found.truncation[determined], accuracy.rounding[determined]
    settled = _rms(truncation) <= _SETTLED * tolerance and truncation.max(initial=0.0) <= _WORST * _SETTLED * tolerance
    exceeds = (
        bool((accuracy.active & ~determined).any())
        or _rms(rounding) > tolerance
        or rounding.max(initial=0.0) > _WORST * tolerance
    )
    return settled and exceeds


def _rms(values: Doubles) -> float:
    return math.sqrt(float(np.square(values).mean())) if len(values) else 0.0


def fill_isolated(op: SymmetricOperator, features: FeatureMatrix, values: Floats) -> None:
    """f(keep(u)) x(u) for nodes without edges."""
    nodes, f = np.flatnonzero(op.weight == 0), response_of(op.hop.scheme, op.hop.hops)
    for first, last in features.chunks() if len(nodes) else []:
        some = nodes[np.searchsorted(nodes, first) : np.searchsorted(nodes, last)]
        values[some] = features.some(some) * f(op.hop.keep[some].astype(np.float64))[:, None].astype(np.float32)
