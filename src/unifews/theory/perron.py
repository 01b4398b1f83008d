"""The largest eigenvalue of a symmetric matrix without negative entries, between two bounds that are both proven.

For M = Mᵀ ≥ 0 the largest eigenvalue ρ is also the largest in size (Perron-Frobenius), and every vector x > 0 gives

    xᵀMx / xᵀx  ≤  ρ  ≤  max_u (Mx)[u] / x[u]        (Rayleigh; Collatz-Wielandt)

so a power iteration that is stopped early leaves a wider bracket, never a wrong one. Lanczos would find ρ in fewer
products but only ever from below. What is removed from a diffusion, T - T̂, has no negative entries, and neither has T:
that is why spectral norms can be certified here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Apply = Callable[[Vector], Vector]

ROUNDING = 1 + 1e-9
"""Upper bounds are raised by this much: more than float64 can lose in the sums behind them."""


@dataclass(frozen=True)
class Bracket:
    """lower ≤ the number meant ≤ upper."""

    lower: float
    upper: float


def perron(apply: Apply, start: Vector, *, steps: int = 100, tolerance: float = 1e-3) -> Bracket:
    """ρ(M) of a symmetric M ≥ 0, given as the product x ↦ Mx, from an x > 0.

    Ends after `steps` products, or once the bounds are within `tolerance` of each other, relatively.
    """
    x = np.asarray(start, dtype=np.float64)
    lower, upper = 0.0, math.inf
    for _ in range(max(steps, 1)):
        x = x / x.max()
        after = apply(x)
        lower = max(lower, float(x @ after) / float(x @ x))
        upper = min(upper, float((after / x).max()))
        if upper == 0 or upper - lower <= tolerance * upper:
            break
        # Half a step: M alone would swing between the two sides of a bipartite graph for ever.
        x = after / upper + x
    return Bracket(min(lower, upper), upper * ROUNDING)


def singular(apply: Apply, transpose: Apply, start: Vector, *, steps: int = 100, tolerance: float = 1e-3) -> Bracket:
    """‖M‖₂ of any M ≥ 0, square root of ρ(MᵀM), given as x ↦ Mx and x ↦ Mᵀx."""
    square = perron(lambda x: transpose(apply(x)), start, steps=steps, tolerance=tolerance)
    return Bracket(math.sqrt(square.lower), math.sqrt(square.upper))
