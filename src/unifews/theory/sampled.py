"""How large a matrix is that was only seen in random directions.

For Ω [f, k] of independent standard normal numbers, ‖EΩ‖_F² / k is ‖E‖_F² on average. With the singular values σ_i of E it is
distributed as Σ σ_i²·χ²_k(i) / k, and by Chernoff, with w_i = σ_i² / ‖E‖²,

    P(‖EΩ‖² ≤ t·k·‖E‖²)  ≤  min_{λ>0} e^(λtk)  · Π_i (1 + 2λw_i)^(-k/2)      for t < 1,
    P(‖EΩ‖² ≥ t·k·‖E‖²)  ≤  min_{λ>0} e^(-λtk) · Π_i (1 - 2λw_i)^(-k/2)      for t > 1.

-log(1 ± 2λw) is convex in w, so both products are largest where one w_i is 1 and the others are 0: rank one is the worst case,
and either chance is at most (t·e^(1-t))^(k/2), whatever E is. Nothing of this is in the paper.
"""

from __future__ import annotations

import math

from unifews.errors import InputError


def sample_range(directions: int, failure: float) -> tuple[float, float]:
    """The two t, below and above 1, with (t·e^(1-t))^(k/2) = `failure`: ‖EΩ‖² / k lies between t₁·‖E‖² and t₂·‖E‖².

    Each end fails with that chance at most.

    >>> [round(1 / math.sqrt(t), 2) for t in sample_range(16, 1e-6)]    # times the size that was seen
    [3.8, 0.51]
    """
    from scipy.special import lambertw

    if isinstance(directions, bool) or not isinstance(directions, int) or directions < 1:
        raise InputError(f"`directions` is a whole number of at least 1; got {directions!r}.")
    if isinstance(failure, bool) or not isinstance(failure, int | float) or not 0 < failure < 1:
        raise InputError(f"`failure` is a probability between 0 and 1; got {failure!r}.")
    at = -(failure ** (2 / directions)) / math.e
    return float(-lambertw(at, 0).real), float(-lambertw(at, -1).real)
