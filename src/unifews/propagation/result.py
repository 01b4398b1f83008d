"""What `propagate` returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.trace import Trace
from unifews.errors import InputError
from unifews.propagation.features import FeatureMatrix
from unifews.propagation.operator import HopOperator
from unifews.propagation.plan import ErrorPlan
from unifews.propagation.tiles import Floats


@dataclass(frozen=True)
class EstimatedError:
    """What `propagate` with `max_error` knows of its error."""

    error: float
    columns: NDArray[np.float64]
    plan: ErrorPlan | None
    """None: rows of a format were asked for, and no error."""


@dataclass(frozen=True)
class Remainder:
    """What lies outside the axes is not propagated, but the skip connection is never pruned: every node keeps its own."""

    features: FeatureMatrix
    op: HopOperator

    def embedding(self, coordinates: Floats, axes: Floats, exponent: int, hop: int | None = None) -> Floats:
        """coordinates · Aᵀ + h(keep) ∘ X (I - A Aᵀ), over 2^exponent; with `hop`, keep^hop in place of h(keep)."""
        factor = self.op.alone(exponent - self.features.exponent, hop)
        whole = rotate_back(coordinates - factor[:, None] * self.features.times(axes, self.op.threads), axes)
        self.features.add_scaled(factor, whole)
        return whole


@dataclass(frozen=True)
class Hops:
    """The embedding of every hop, in parts: S^l X = S^l Z · axesᵀ + S^l φ · meanᵀ, each part with its own power of two."""

    values: list[tuple[Floats, int]]
    columns: list[tuple[Floats, int]]
    """S^l φ; empty when the stationary part was not split off."""
    axes: Floats | None
    mean: Floats | None
    remainder: Remainder | None = None

    def embedding(self, hop: int, exponent: int) -> Floats:
        """S^hop X over 2^exponent."""
        values, grown = self.values[hop]
        values = values * np.float32(math.ldexp(1, grown - exponent))
        if self.remainder is None or self.axes is None:
            whole = rotate_back(values, self.axes)
        else:
            whole = self.remainder.embedding(values, self.axes, exponent, hop)
        if self.columns and self.mean is not None:
            column, grown = self.columns[hop]
            whole += (column * np.float32(math.ldexp(1, grown - exponent)))[:, None] * self.mean
            if self.remainder is not None and self.axes is not None:
                # The stationary part is carried whole, so what of it lies outside the axes is no remainder.
                factor = self.remainder.op.alone(exponent - self.remainder.features.exponent, hop)
                whole -= (factor * self.columns[0][0])[:, None] * (self.mean - self.axes @ (self.mean @ self.axes))
        return whole


class Propagated:
    """The result of `propagate`.

    ``embedding`` is ``coordinates @ basis.T``, made when first asked for: a head can train on the narrower coordinates and
    never pay for the rotation back. Where axes were left out, it also has what a node keeps of its own features outside of
    them; ``coordinates`` is ``embedding @ basis`` in any case. Arrays are of the kind that `x` was (numpy or torch).
    """

    def __init__(
        self,
        coordinates: Floats,
        axes: Floats | None,
        trace: Trace,
        exponent: int,
        hops: Hops | None,
        to_caller: Callable[[Floats], Any],
        remainder: Remainder | None = None,
        accuracy: EstimatedError | None = None,
    ) -> None:
        self._coordinates, self._axes, self._hops, self._to_caller = coordinates, axes, hops, to_caller
        self._remainder = remainder
        self._embedding: Floats | None = coordinates if axes is None else None
        self.trace = trace
        """What was kept and what it cost, a `Trace`."""
        self.exponent = exponent
        """True values are the given ones times 2^exponent; 0 unless they are too large or too small for float32."""
        self.accuracy = accuracy

    @property
    def error(self) -> float:
        """With ``max_error=ε``: the estimated relative error, the root mean square of `column_errors`, or with
        ``error_norm="frobenius"`` that of the whole matrix; with ``certify=True`` an upper bound on it."""
        return self._estimated().error

    @property
    def column_errors(self) -> NDArray[np.float64]:
        """With ``max_error=ε``: estimates of ‖(P̂ - P)_j‖ / ‖P_j‖, P_j without its stationary part; float64 [f]. With
        ``certify=True`` upper bounds.

        Where the filter leaves less than 2^-16 of a column, the error is relative to that much: float32 resolves no more.
        """
        return self._estimated().columns

    @property
    def plan(self) -> ErrorPlan | None:
        """With ``max_error=ε``: the method, hops and row formats that reached it, and what was expected of others.
        ``propagate(..., plan=out.plan)`` repeats it, also with ``out.plan.to_dict()``, which is JSON."""
        return self._estimated().plan

    def _estimated(self) -> EstimatedError:
        if self.accuracy is None:
            raise InputError("this run has no estimate of its error; call propagate(..., max_error=0.05).")
        return self.accuracy

    @property
    def embedding(self) -> Any:
        """P, float32 [n, f], on the input axes."""
        if self._embedding is None:
            began = perf_counter()
            n, k = self._coordinates.shape
            if self._remainder is None or self._axes is None:
                self._embedding, extra = rotate_back(self._coordinates, self._axes), 0
            else:
                self._embedding = self._remainder.embedding(self._coordinates, self._axes, self.exponent)
                extra = self._remainder.features.nnz * (k + 1)
            self.trace = replace(
                self.trace,
                basis_macs=self.trace.basis_macs + n * k * self._embedding.shape[1] + extra,
                basis_seconds=self.trace.basis_seconds + perf_counter() - began,
            )
        return self._to_caller(self._embedding)

    @property
    def coordinates(self) -> Any:
        """P on the basis, float32 [n, rank]; one column more where the axes do not hold the stationary part."""
        return self._to_caller(self._coordinates)

    @property
    def basis(self) -> Any:
        """The axes, float32 [f, rank] with orthonormal columns; None on the input axes."""
        return None if self._axes is None else self._to_caller(self._axes)

    @property
    def error_bound(self) -> float:
        """With `certify`: ‖embedding - P‖_F is at most this, up to the rounding of float32, where P is what
        the unpruned propagation gives; with ``certify="sampled"`` but for a chance of one in a million."""
        return self._certified(self.trace.error_bound)

    @property
    def relative_error_bound(self) -> float:
        """And ‖embedding - P‖_F / ‖P‖_F at most this: `error_bound` over a lower bound on ‖P‖_F, which is ‖embedding‖_F less
        `error_bound` or what random directions show; infinite where neither is positive."""
        return self._certified(self.trace.relative_error_bound)

    def _certified(self, bound: float | None) -> float:
        if bound is None:
            raise InputError("this run has no error bound; call propagate(..., certify=True).")
        return bound

    @property
    def hop_embeddings(self) -> list[Any]:
        """With ``every_hop=True``: S^l X for l = 0..L on the input axes, SIGN-style, each float32 [n, f]."""
        if self._hops is None:
            raise InputError("the hops were not kept; call propagate(..., every_hop=True) for the embedding of every hop.")
        return [self._to_caller(self._hops.embedding(hop, self.exponent)) for hop in range(len(self._hops.values))]

    def __repr__(self) -> str:
        n = self._coordinates.shape[0]
        f = self._coordinates.shape[1] if self._axes is None else self._axes.shape[0]
        trace = self.trace
        return f"Propagated([{n:,}, {f:,}], {trace.edge_sparsity:.1%} removed, {trace.macs:,} MACs, {trace.seconds:.3f} s)"


def rotate_back(coordinates: Floats, axes: Floats | None) -> Floats:
    if axes is None:
        return coordinates
    return np.asarray(coordinates @ np.ascontiguousarray(axes.T))
