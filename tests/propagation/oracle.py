"""Pruned propagation straight from its definition, on dense float64 matrices: no tiles, no laziness.

    P = Σ_l θ_l S^l X,    (S P)[u] = keep(u)·P[u] + Σ_{v≠u} T[u,v]·P[v],    T = D^-(1-r) (A + I) D^-r

where the entry (u, v, g) of hop l, g a group of features, takes part iff influence_l·|T[u,v]|·‖P[v, g]‖ is neither below
δ_l nor zero, and with inheritance only if it was never below δ before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unifews import Appnp, Polynomial, Sgc


def degrees(a):
    return a.sum(axis=1) + 1


def off_diagonal(a, r):
    d = degrees(a)
    return d[:, None] ** (r - 1) * a * d[None, :] ** -r


def keep_of(skip, a):
    loop = 1 / degrees(a)
    return {"diagonal": loop, "identity": 1 + 0 * loop, "identity+loop": 1 + loop, "none": 0 * loop}[skip]


def theta_of(scheme, hops):
    """θ_0 .. θ_L and the influence of hops 0 .. L-1, written out once more."""
    if isinstance(scheme, Sgc):
        return [0.0] * hops + [1.0], [1.0] * hops
    if isinstance(scheme, Appnp):
        stay = 1 - scheme.alpha
        theta = [scheme.alpha * stay**hop for hop in range(hops)] + [stay**hops if scheme.tail else 0.0]
        return theta, [stay ** (hop + 1) for hop in range(hops)]
    assert isinstance(scheme, Polynomial)
    theta = list(scheme.theta)
    return theta, [sum(abs(t) for t in theta[hop + 1 :]) for hop in range(hops)]


def dense_hops(a, x, skip, r, hops):
    """S^l X for l = 0 .. hops, unpruned."""
    s = off_diagonal(a, r) + np.diag(keep_of(skip, a))
    values = [np.asarray(x, dtype=np.float64)]
    for _ in range(hops):
        values.append(s @ values[-1])
    return values


def dense(a, x, scheme, r, hops):
    """P, unpruned."""
    theta, _ = theta_of(scheme, hops)
    return sum(t * p for t, p in zip(theta, dense_hops(a, x, scheme.skip, r, hops), strict=True))


@dataclass
class Answer:
    embedding: np.ndarray
    entries: list[int]
    kept: list[int]
    zeros: list[int]
    macs: list[int]
    edges: list[np.ndarray]  # which entries took part, bool [n, n, groups] per hop
    magnitudes: list[np.ndarray]  # of all entries of a hop that are not zero
    margin: float  # how close, relatively, a magnitude came to δ: below 1e-5 or so, rounding decides


def pruned(a, x, scheme, hops, r, entries, *, delta=None, relative=None, inherit=False, axes=None, deflate=False):
    x = np.asarray(x, dtype=np.float64)
    n, f = x.shape
    t, keep, phi = off_diagonal(a, r), keep_of(scheme.skip, a), degrees(a) ** r
    theta, influence = theta_of(scheme, hops)

    mean = x.T @ phi / (phi @ phi) if deflate else np.zeros(f)
    z = x - np.outer(phi, mean)
    outside = 0.0
    if axes is not None:
        outside = z - z @ axes @ axes.T
        z = z @ axes
    width = z.shape[1]
    size = {"block": 16, "feature": 1, "node": max(width, 1)}[entries]
    groups = [slice(at, min(at + size, width)) for at in range(0, width, size)]
    decisions = {"block": -(-f // 16), "feature": f, "node": 1}[entries]
    edge = (a > 0)[:, :, None]
    alive = np.ones((n, n, len(groups)), dtype=bool)

    answer = Answer(np.zeros(0), [], [], [], [], [], [], np.inf)
    total = theta[0] * z
    for hop in range(hops):
        norms = np.stack([np.linalg.norm(z[:, g], axis=1) for g in groups], axis=1)
        magnitude = influence[hop] * t[:, :, None] * norms[None, :, :]
        m = int(edge.sum())
        here = np.broadcast_to(edge, magnitude.shape)
        level = delta if relative is None else relative * magnitude[here].mean() if m else 0.0
        below = magnitude < level
        nonzero = here & (magnitude > 0)
        if inherit:
            alive &= ~below
        used = nonzero & ~below & alive
        if level > 0 and nonzero.any():
            answer.margin = min(answer.margin, float(np.abs(magnitude[nonzero] / level - 1).min()))

        after = keep[:, None] * z
        for number, g in enumerate(groups):
            after[:, g] += (t * used[:, :, number]) @ z[:, g]
        z = after
        total = total + theta[hop + 1] * z
        answer.entries.append(m * decisions)
        answer.kept.append(int(used.sum()))
        answer.zeros.append(int((here & ~nonzero).sum()))
        answer.macs.append(int(sum(used[:, :, number].sum() * (g.stop - g.start) for number, g in enumerate(groups))))
        answer.edges.append(used)
        answer.magnitudes.append(magnitude[nonzero])

    if axes is not None:
        # No message is sent outside the axes, but the skip connection is not pruned.
        total = total @ axes.T + sum(theta[hop] * keep**hop for hop in range(hops + 1))[:, None] * outside
    # The stationary part is carried along unpruned.
    answer.embedding = total + np.outer(dense(a, phi[:, None], scheme, r, hops)[:, 0], mean)
    return answer
