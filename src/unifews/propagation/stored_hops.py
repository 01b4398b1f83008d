"""`propagate(..., precision="int8")`: all hops of a scheme, on rows stored in few bytes.

With s = x/‖x‖ of each column without its stationary part, P = Σ_l θ_l S^l x is found from the highest power down (Horner),

    z_L = θ_L s,    z_l = S z_{l+1} + θ_l s,    P = ‖x‖ z_0,

so memory holds three stored matrices however many hops there are. What each hop rounds, ‖stored - z_l‖, is measured in it. S
does not make it larger (undirected graphs), and errors of different hops are taken as independent: the error is estimated as
the root of the sum of their squares, and of (Σ |θ_l|)² times what the input has lost.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

import numpy as np

from unifews.core.trace import Trace
from unifews.errors import InputError
from unifews.kernels import aligned, describe, native
from unifews.kernels.formats import RowFormat, row_format
from unifews.propagation.features import FeatureMatrix, Floats
from unifews.propagation.inmemory import caller_kind, scale_back
from unifews.propagation.lanczos import Outcome, TileResult, column_sums, fill_isolated, parts_of, series_of, tile_shapes
from unifews.propagation.operator import HopOperator
from unifews.propagation.recurrence import Recurrence
from unifews.propagation.result import EstimatedError, Propagated
from unifews.propagation.spectral import Doubles
from unifews.propagation.symmetric import SymmetricOperator
from unifews.propagation.task import PropagationTask
from unifews.propagation.tiles import Shape
from unifews.resources import Progress

_LARGEST = 2.0**60  # of the coefficients in units of the operator's norm: squares of values must stay within float32


def propagate(task: PropagationTask, progress: Progress | None, began: float) -> Propagated:
    op, features, config = task.op, task.features, task.config
    assert config.precision is not None
    format = row_format(config.precision)
    values, outcome = stored_hops(op, features, format, progress)
    exponent, error = scale_back(values, features.exponent), outcome.error(config.error_norm)
    hops = outcome.hops(op.graph.num_edges, op.hops)
    trace = Trace(
        tuple(hops),
        requested=task.requested,
        kernel=describe(op.threads),
        setup_seconds=max(perf_counter() - began - sum(hop.seconds for hop in hops), 0.0),
        notes=(f"rows of {format.name}: estimated error {error:.3g}",),
        estimated_error=error,
    )
    accuracy = EstimatedError(error, outcome.column_errors, None)
    return Propagated(values, None, trace, exponent, None, caller_kind(features), accuracy=accuracy)


def stored_hops(
    op: HopOperator, features: FeatureMatrix, format: RowFormat, progress: Progress | None = None
) -> tuple[Floats, Outcome]:
    """Σ θ_l S^l X, float32 [n, f], and its estimated error."""
    operator = SymmetricOperator.of(op, series_of(op))
    if not op.graph.is_symmetric:
        operator = replace(operator, stationary=None)
    norm = operator.series.high  # of S
    theta = op.scheme.coefficients(op.hops) * norm ** np.arange(op.hops + 1)  # of powers of S/norm
    largest = float(np.abs(theta).max())
    if not largest <= _LARGEST:
        raise InputError(
            f"after {op.hops} hops with this skip connection values are too large for `precision`; leave it out.",
            setting="precision",
        )
    values, sums, tiles = aligned(features.n, features.f), column_sums(operator, features), []
    shapes = [part for shape in tile_shapes(features.f, features.n) for part in parts_of(shape, format, features.n)]
    for number, shape in enumerate(shapes):
        own = sums[:, shape.column : shape.column + shape.width]
        tiles.append(_tile(operator, features, shape, own, format, theta / (largest or 1.0), norm, largest, values))
        if progress:
            progress(number + 1, len(shapes))
    fill_isolated(operator, features, values)
    return values, Outcome(tiles)


def _tile(
    op: SymmetricOperator,
    features: FeatureMatrix,
    shape: Shape,
    sums: Doubles,
    format: RowFormat,
    theta: Doubles,
    norm: float,
    unit: float,
    values: Floats,
) -> TileResult:
    """Σ_l unit·theta_l (S/norm)^l of a tile's columns, into `values`."""
    start = Recurrence(op, features, shape, sums)
    start.start(format)
    assert start.state is not None
    (first,), edges, seconds = start.state.stored, op.hop.edges, []
    lost = start.state.losses[0] * np.abs(theta).sum() ** 2
    measured = np.zeros((4, start.padded))
    now = None
    for hop in range(len(theta) - 1):
        began, own = perf_counter(), theta[-2 - hop]
        read = [first] if now is None else [first, now] if own else [now]
        mix = aligned(len(read), start.padded, zero=True)
        mix[0] = own
        factor = aligned(start.padded)
        factor[:] = (theta[-1] if now is None else 1.0) / norm
        out = op.buffers.take(format, features.n, shape.blocks)
        native.recurrence_hop(
            format=format.code,
            start=edges["start"],
            end=edges["end"],
            indices=edges["indices"],
            edge_weight=edges["weight"],
            blocks=shape.blocks,
            keep=op.hop.keep,
            gain=op.hop.gain,
            weight=op.weight,
            own=op.own,
            rows=[each.rows for each in read],
            steps=[each.steps for each in read],
            factor=factor,
            mix=mix,
            out=out.rows,
            out_steps=out.steps,
            sums=measured,
            threads=op.hop.threads,
        )
        lost += measured[2]
        if now is not None:
            op.buffers.give(format, shape.blocks, [now])
        now = out
        seconds.append(perf_counter() - began)
    assert now is not None
    length = np.where(start.scale > 0, unit / np.where(start.scale > 0, start.scale, 1.0), 0.0)
    mix, offset = aligned(1, start.padded), aligned(start.padded)
    mix[:], offset[:] = length, start.mean * (op.stationary or 0.0)
    native.combine_rows(
        format=format.code,
        blocks=shape.blocks,
        width=shape.width,
        factor=op.target,
        weight=op.weight,
        rows=[now.rows],
        steps=[now.steps],
        mix=mix,
        offset=offset,
        result=values,
        column0=shape.column,
        threads=op.hop.threads,
    )
    op.buffers.give(format, shape.blocks, [now])
    start.release()
    errors = np.sqrt(lost / np.where(measured[1] > 0, measured[1], 1.0))
    total = float((op.weight if op.own is None else op.own).sum(dtype=np.float64))
    rest = length * np.sqrt(measured[1] if op.own is None else measured[3])
    whole = np.hypot(rest, start.mean * (op.stationary or 0.0) * np.sqrt(total))
    norms = np.stack([rest, whole])[:, : shape.width]
    return TileResult(shape, format, len(seconds), errors[: shape.width], norms, tuple(seconds))
