"""What propagation optimises, and what a sparser graph does to the optimum ([P] Definition 3.1, Lemma 3.3).

    J(P) = ‖P - X‖² + c · tr(PᵀLP),    L = I - T,    argmin J = P* = (I + cL)⁻¹ X        for a symmetric T

[P] restricts c to [0, 1]; APPNP is c = (1-α)/α, 9 at α = 0.1, so any c ≥ 0 is taken here. T is a `Diffusion`, a scipy
sparse array or a dense one; of a pruned graph it is T̂, with the degrees of the whole graph.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unifews.core.diffusion import Diffusion
from unifews.errors import InputError

Floats = NDArray[np.float64]


def objective(diffusion: Any, x: ArrayLike, p: ArrayLike, c: float) -> float:
    """J(P) = ‖P - X‖² + c·tr(PᵀLP) ([P] eq:gsmooth, eq:gsmooth_mat); X and P are [n] or [n, f]."""
    t, x, p = _matrix(diffusion), _floats(x), _floats(p)
    return float(np.sum((p - x) ** 2) + _check_c(c) * np.sum(p * (p - t @ p)))


def smooth(diffusion: Any, x: ArrayLike, c: float, *, tolerance: float = 1e-10) -> Floats:
    """P* = (I + cL)⁻¹ X, float64.

    Found as the limit of P ← (X + cTP)/(1 + c), which is APPNP with α = 1/(1 + c) and contracts by c/(1 + c) per step:
    about (1 + c)·ln(1/tolerance) products, and no factorisation that would fill up. It ends once the error is below
    `tolerance`·‖P*‖ for an undirected graph with r = ½.
    """
    t, x = _matrix(diffusion), _floats(x)
    p = x / (1 + _check_c(c))
    for _ in range(1 + math.ceil((1 + c) * (math.log(1 / tolerance) + math.log(1 + c) + 40))):
        after = (x + c * (t @ p)) / (1 + c)
        change, p = float(np.linalg.norm(after - p)), np.asarray(after)
        if c * change <= tolerance * float(np.linalg.norm(p)):
            return p
    raise InputError(f"the optimum for c={c:g} cannot be told to {tolerance:g} in float64; ask for a larger `tolerance`.")


def step(diffusion: Any, p: ArrayLike, x: ArrayLike, b: float, c: float) -> Floats:
    """One gradient step of length b/2 on J: P ← (1-b)P - bcLP + bX ([P] eq:optim_dec).

    * APPNP: b = α, c = (1-α)/α gives (1-α)TP + αX.
    * GCN: P = X, b = 1/c gives TX ([P] says c = 1 for it; any c does).
    * SGC: bc = 1 and the pull of X and P left out, b → 0, gives TP.
    """
    t, x, p = _matrix(diffusion), _floats(x), _floats(p)
    return np.asarray((1 - b) * p - b * _check_c(c) * (p - t @ p) + b * x)


def smoothing_error(c: float, epsilon: float, norm: float) -> float:
    """Bound on ‖P̂* - P*‖_F for the optima of T and T̂: c·ε·‖P*‖_F ([P] Lemma 3.3), with ε = ‖T - T̂‖₂.

    Holds for 0 ≤ T̂ ≤ T with T symmetric, r = ½: then ‖T̂‖₂ ≤ 1 and ‖(I + cL̂)⁻¹‖₂ ≤ 1. Since P̂* - P* is both
    -c(I + cL̂)⁻¹(T - T̂)P* and -c(I + cL)⁻¹(T - T̂)P̂*, `norm` may be that of either optimum.

    [P] takes the ε of its Definition 3.2 (quadratic forms) and says that it equals the spectral norm. It does where T̂ is
    symmetric; but (u,v) and (v,u) are tested apart, and where only one of the two is removed the statement with that ε is
    false: on two joined nodes the quadratic ε is ¼ and the error is up to c/2·‖P*‖. Its eigenvalue argument also takes
    the smallest eigenvalue of L̂ for 0, which it is not once something is removed.
    """
    return _check_c(c) * epsilon * norm


def _matrix(diffusion: Any) -> Any:
    return diffusion.to_scipy() if isinstance(diffusion, Diffusion) else diffusion


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float64)


def _check_c(c: float) -> float:
    if not (c >= 0 and math.isfinite(c)):
        raise InputError(f"`c` weighs smoothness against the input and must be finite and at least 0; got {c}.")
    return float(c)
