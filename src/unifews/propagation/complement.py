"""More axes than are worth finding: any orthonormal ones beside the principal ones that were found.

A target may leave work for thousands of axes, and finding that many principal ones costs far more than propagating them,
while the last of them carry little but noise. They need not be principal: any orthonormal axes are exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unifews.propagation.tiles import Floats


def complement(axes: Floats, energy: NDArray[np.float64], count: int) -> Floats:
    """`count` axes orthogonal to `axes` [f, p] and to each other, float32 [f, count]: input columns, turned out of the way.

    The block reflector H = I - Y (I + P)⁻¹ Yᵀ, Y = V + E Q, with E the identity's columns for p of the inputs and
    EᵀV = Q P (polar), takes V to -E Q; so it takes the identity's other columns to a basis of what V leaves. I + P is at least
    the identity, so nothing here is ill-conditioned. The p inputs given up are those that V covers best; of the others those
    with the most `energy` (squared norm of the input column, float64 [f]) left are taken.
    """
    v = axes.astype(np.float64)
    covered = np.square(v).sum(axis=1)
    by_cover = np.argsort(-covered, kind="stable")
    given_up, rest = by_cover[: v.shape[1]], by_cover[v.shape[1] :]
    left = energy[rest] * (1 - covered[rest])
    taken = np.sort(rest[np.argsort(-left, kind="stable")[:count]])
    u, s, wt = np.linalg.svd(v[given_up])  # Q = u wt, P = w s wt
    turned = v @ wt.T
    across = (turned[taken] / (1 + s)).T
    turned[given_up] += u
    found: Floats = (turned.astype(np.float32) @ -across.astype(np.float32)).astype(np.float32)
    found[taken, np.arange(len(taken))] += 1
    return found


def complement_macs(f: int, found: int, count: int) -> int:
    """Multiply-adds of `complement`: a singular value decomposition (11 p³, Golub & Van Loan) and two products."""
    return 11 * found**3 + f * found * found + f * found * count
