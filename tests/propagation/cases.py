"""Small random graphs and features, and thresholds that rounding cannot tip over."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from unifews import Appnp, Graph, Polynomial, Sgc

SKIPS = ["diagonal", "identity", "identity+loop", "none"]


def adjacency(rng, n, density=0.25, *, directed=False, weighted=False):
    """A[u, v] ≥ 0 without self-loops; some nodes are isolated, node 0 is often a hub."""
    a = (rng.random((n, n)) < density).astype(np.float64)
    if rng.random() < 0.5:
        a[0, :] = a[:, 0] = 1
    alone = rng.random(n) < 0.15
    a[alone] = a[:, alone] = 0
    if weighted:
        a *= rng.uniform(0.2, 3, (n, n)).astype(np.float32)
    if not directed:
        a = np.triu(a) + np.triu(a).T
    np.fill_diagonal(a, 0)
    return a


def graph_of(a):
    """The package's graph of an adjacency matrix A[u, v]: the edge v → u."""
    u, v = np.nonzero(a)
    weight = a[u, v]
    return Graph.from_edge_index(np.stack([v, u]), len(a), None if (weight == 1).all() else weight)


def features(rng, n, f):
    """Rows and columns of very different size, some rows being zero."""
    x = rng.standard_normal((n, f)) * 10.0 ** rng.uniform(-1, 1, (n, 1)) * 10.0 ** rng.uniform(-1, 0, f)
    x *= rng.random((n, 1)) < 0.85
    return x.astype(np.float32)


@st.composite
def problems(draw, most=12):
    """(A, X, generator)"""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(1, most))
    a = adjacency(rng, n, draw(st.sampled_from([0.0, 0.2, 0.5])), directed=draw(st.booleans()), weighted=draw(st.booleans()))
    return a, features(rng, n, draw(st.sampled_from([1, 3, 16, 20, 40, 150]))), rng


HOPS = 4
SCHEMES = st.one_of(
    st.builds(Sgc, skip=st.sampled_from(SKIPS)),
    st.builds(Appnp, alpha=st.sampled_from([0.1, 0.5]), tail=st.booleans()),
    st.just(Polynomial.heat(2.0, hops=HOPS)),
    st.just(Polynomial.ssgc(hops=HOPS)),
    st.just(Polynomial([0.5, -0.2, 0.3, 0.0, 0.2], skip="identity")),
)
RS = st.sampled_from([0.0, 0.3, 0.5, 1.0])
ENTRIES = st.sampled_from(["block", "feature", "node"])


def gap_near(solve, start, tries=25):
    """A threshold near `start` at which `solve(threshold)` has no magnitude close to δ at any hop, and its answer."""
    value = start
    for _ in range(tries):
        answer = solve(value)
        if answer.margin > 1e-4:
            return value, answer
        value *= 1.013
    return None, None


def near(got, expected, tolerance=1e-4):
    scale = max(float(np.abs(expected).max(initial=0)), 1e-30)
    np.testing.assert_allclose(np.asarray(got) / scale, np.asarray(expected) / scale, atol=tolerance, rtol=0)
