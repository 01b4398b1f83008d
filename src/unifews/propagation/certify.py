"""An upper bound on ‖P̂ - P‖_F from what the kernels add up on the way (docs/adr/0016).

A pruned hop is Ẑ ← S Ẑ - R, so the output's error is -Σ_l h_l(S) R_l with h_l(s) = Σ_{k>l} θ_k s^(k-l-1)
(`unifews.theory.certificates`). Two inequalities, both Cauchy and Schwarz's with the stationary vector φ as weights, T φ = φ,
turn that into sums that cost next to nothing:

* What row u loses in a block:  ‖R[u]‖² ≤ (T_off φ)[u] · Σ_v T[u,v]·‖Ẑ[v]‖²/φ[v]  over the removed v. Weighted by row and added
  up, what v sends costs a multiple of its squared size, so the sum over the removed entries is that over all, which needs no
  edges, less that over the others, which the kernel visits anyway. Why an entry was removed, by δ, by inheritance or because a
  block was left behind, makes no difference. Of the sources that a row looks at, because some block of them is kept, it
  knows the removed sizes, and adds them up by the triangle inequality instead (`Bill` in native/kernels.cpp).
* What a loss becomes:  ‖h_l(S) R‖² ≤ Σ_u y_l[u]·‖R[u]‖²  with  y_{l-1} = |θ_l|² and Schur's test for one more hop,
  (S E)[u]² ≤ (S φ)[u]·Σ_v S[u,v]·‖E[v]‖²/φ[v]. On an undirected graph with r = ½ and a diagonal skip y is the same for all
  nodes, w_l², which is ‖T‖₂ = 1; otherwise it is one number per node and hop, which follows where an identity skip really
  grows and where a T that is no contraction really sends, instead of raising a norm to the 20th power.

Blocks of columns do not mix, and neither do axes that were left out, so their bounds add up as √Σ b².
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.errors import InputError
from unifews.kernels import native
from unifews.propagation.operator import HUGE, HopOperator
from unifews.propagation.tiles import SHIFT, Floats
from unifews.propagation.view import View
from unifews.theory.certificates import Certificate

Doubles = NDArray[np.float64]

ROUNDING = 1 + 1e-6  # more than what float32 factors and sizes lose in one step
MOST = 1 << 28  # weights of nodes and hops that are worth their memory, 16 bytes each
_FLOOR = 1e-30  # of the largest weight: smaller ones are raised to it before they can vanish


@dataclass(frozen=True)
class Price:
    """What removing entries of one hop costs the output at most: scale·2^exponent·√b, for either of two sums b over them."""

    cost: Floats
    """Per receiving node, float32 [n]: b = Σ cost[u]·A[u,v]·‖q[v]‖²."""
    charge: Doubles
    """The same per sending node of which nothing arrives: Aᵀ·cost, float64 [n]."""
    toll: Floats
    """Per receiving node, float32 [n]: b = Σ_u toll[u]·(Σ_v A[u,v]·‖q[v]‖)²."""
    scale: float = 1.0
    exponent: int = 0

    def bill(self, removed: Doubles) -> dict[str, Any]:
        """As pruned hops take it; they add what they remove to `removed` [blocks]."""
        return {"cost": self.cost, "charge": self.charge, "toll": self.toll, "removed": removed}

    def of(self, squares: Doubles) -> Doubles:
        """The cost of removing everything, for squared sizes [n, groups]; as `removed` of the kernels, [groups]."""
        return np.asarray(self.charge @ squares)


class Prices:
    """The price of every hop of a scheme on a graph; one pass over the edges, or one per hop (see above)."""

    def __init__(self, op: HopOperator) -> None:
        self.op = op
        degree, r = op.diffusion.degree, op.diffusion.r
        keep, loop = op.keep.astype(np.float64), 1 / degree
        self._own = keep * (keep + 1 - loop)
        self._sent = np.stack([1 - loop, keep + 1 - loop], axis=1) * (degree ** (2 * r - 1))[:, None]
        self._back = degree ** (-2 * r)
        self._toll = degree ** (2 * r - 2)
        theta = np.abs(op.scheme.coefficients(op.hops))
        price, after = self._step(np.ones(len(degree)))
        if float(after.max(initial=0.0)) <= 1 + 1e-6:  # up to the rounding of float32
            weight = theta[::-1].cumsum()[::-1][1:].tolist()
            self._hops = [replace(price, scale=scale * (1 + 1e-6) ** (op.hops / 2)) for scale in weight]
        else:
            self._hops = self._by_node(theta.tolist())

    def __getitem__(self, hop: int) -> Price:
        return self._hops[hop]

    def _step(self, y: Doubles, exponent: int = 0) -> tuple[Price, Doubles]:
        """The price of a hop whose losses weigh y·2^exponent, and what losses of the hop before it weigh by way of this one."""
        op = self.op
        sent = np.ascontiguousarray(self._sent * y[:, None], dtype=np.float32)
        arrived = np.empty((len(y), 2))
        native.column_push(**op.edges, x=sent, out=arrived, threads=op.threads)
        cost, charge, toll = sent[:, 0].copy(), arrived[:, 0].copy(), (self._toll * y).astype(np.float32)
        return Price(cost, charge, toll, ROUNDING, exponent // 2), self._own * y + self._back * arrived[:, 1]

    def _by_node(self, theta: list[float]) -> list[Price]:
        n, hops = len(self._own), self.op.hops
        if n * hops > MOST:
            raise InputError(
                f"an error bound needs a weight for each of {n:,} nodes at each of {hops:,} hops here, "
                f"{16 * n * hops >> 30:,} GB; use fewer hops, or r=0.5 and a diagonal skip on an undirected graph, where one "
                "for all nodes is enough."
            )
        prices: list[Price] = []
        y, exponent = np.full(n, theta[hops] ** 2), 0  # weights are y·2^exponent
        for hop in range(hops - 1, -1, -1):
            price, after = self._step(y, exponent)
            prices.append(price)
            own, rest = math.ldexp(theta[hop], -exponent // 2), math.sqrt(float(after.mean()))
            # ‖a + b‖² ≤ ‖a‖²/p + ‖b‖²/(1-p) for the loss itself, θ_l of it, and what later hops make of it.
            y = own * (own + rest) + after * (1 + own / rest) if rest else np.full(n, own**2)
            y *= ROUNDING
            peak = float(y.max(initial=0.0))
            if peak:
                np.maximum(y, _FLOOR * peak, out=y)
                shift = math.frexp(peak)[1] // 2 * 2
                y, exponent = np.ldexp(y, -shift), exponent + shift
        return prices[::-1]


def certificate(hops: int) -> Certificate:
    """A certificate to be fed with losses that are weighted already."""
    return Certificate([*[0.0] * hops, 1.0])


def left_out(op: HopOperator, view: View, prices: Prices) -> Certificate:
    """The bound for components that are not propagated: no messages are sent on them, and every node keeps its own (ADR 10)."""
    found = certificate(op.hops)
    square, exponent = view.outside(), 0
    sent = None if view.sent is None else view.sent_outside()
    fade = op.keep.astype(np.float64) ** 2
    for hop in range(op.hops):
        price = prices[hop]
        lost = float(price.charge @ square)
        if sent is not None and (hop == 0 or op.scheme.skip == "identity"):  # what would be sent is known, signs and all
            lost = min(lost, float(price.toll @ sent))
        lost = math.sqrt(lost)
        found.hop(price.scale * lost, price.exponent + view.features.exponent + exponent)
        square *= fade
        if float(square.max(initial=0.0)) > HUGE:
            square, exponent = np.ldexp(square, -2 * SHIFT), exponent + SHIFT
    return found


def joined(certificates: list[Certificate], exponent: int) -> float:
    """The bound for all columns, over 2^exponent, from those of groups that do not mix."""
    return math.hypot(*(each.bound_over(exponent) for each in certificates)) * ROUNDING


def norm_of(values: Floats) -> float:
    """‖values‖_F, summed in pieces that float32 can hold, or else in float64."""
    flat, total = values.reshape(-1), 0.0
    with np.errstate(over="ignore"):
        for at in range(0, flat.size, 65_536):
            piece = flat[at : at + 65_536]
            square = float(np.dot(piece, piece))
            total += square if 1e-20 < square < math.inf else float(np.square(piece, dtype=np.float64).sum())
    return math.sqrt(total)
