"""`propagate(precision=...)` without `max_error`: all hops on stored rows, and what rounding does to them."""

from __future__ import annotations

import numpy as np
import pytest
from cases import adjacency, graph_of
from hypothesis import given, settings
from hypothesis import strategies as st

import unifews as uf
from unifews import Appnp, Polynomial, Sgc, propagate
from unifews.kernels.formats import FORMATS

MADE = uf.powerlaw(300, 1_800, num_features=40, seed=4)
SCHEMES = [Appnp(), Sgc("diagonal"), Sgc("identity"), Polynomial.ssgc(), Polynomial([0.5, -0.25, 0.0, 0.5])]
LOST = {"float32": 2e-6, "bfloat16": 0.02, "int8": 0.04, "int4": 0.6}


def relative(found, expected):
    return np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-30)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_the_error_is_what_is_estimated(name, scheme):
    expected = propagate(MADE.graph, MADE.x, scheme).embedding
    out = propagate(MADE.graph, MADE.x, scheme, precision=name, error_norm="frobenius")
    error = relative(out.embedding, expected)
    assert error <= 1.2 * out.error + 2e-6 and error <= LOST[name]
    assert name == "float32" or out.error <= 30 * error  # it says something
    assert out.trace.estimated_error == out.error and name in str(out.trace.notes)
    assert out.plan is None and len(out.trace.hops) == len(propagate(MADE.graph, MADE.x, scheme).trace.hops)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.sampled_from([1, 2, 7, 60]),
    density=st.sampled_from([0.0, 0.05, 0.3]),
    width=st.sampled_from([2, 16, 17, 40, 130]),
    r=st.sampled_from([0.0, 0.5, 1.0]),
    scheme=st.sampled_from(SCHEMES),
    size=st.sampled_from([1.0, 1e-20, 1e20]),
)
def test_any_graph(name, seed, n, density, width, r, scheme, size):
    """Isolated nodes and columns of zeros are exact; others are as accurate as their format."""
    rng = np.random.default_rng(seed)
    graph, x = graph_of(adjacency(rng, n, density)), (size * rng.standard_normal((n, width))).astype(np.float32)
    x[:, 1] = 0
    expected = propagate(graph, x, scheme, r=r).embedding / size
    out = propagate(graph, x, scheme, r=r, precision=name)
    found = out.embedding / size
    alone = graph.degree == 0
    np.testing.assert_allclose(found[alone], expected[alone], rtol=1e-5, atol=1e-6)
    assert not found[:, 1].any()
    norm = 2.0**20 if scheme == Sgc("identity") else 1.0
    norm *= 1 + graph.degree.max(initial=0) ** abs(2 * r - 1)  # D^(r-1/2) and its inverse
    assert np.linalg.norm(found - expected) <= 1e-4 * np.linalg.norm(expected) + 2 * norm * LOST[name] * np.linalg.norm(
        x / size
    )


def test_a_directed_graph():
    rng = np.random.default_rng(3)
    graph = uf.Graph.from_edge_index(rng.integers(0, 200, (2, 1500)), num_nodes=200)
    assert not graph.is_symmetric
    x = rng.standard_normal((200, 20)).astype(np.float32)
    expected = propagate(graph, x).embedding
    assert relative(propagate(graph, x, precision="int8").embedding, expected) <= 0.03
    assert relative(propagate(graph, x, precision="float32").embedding, expected) <= 1e-5


@pytest.mark.parametrize("name", FORMATS)
def test_threads_do_not_change_a_bit(name):
    outs = [propagate(MADE.graph, MADE.x, precision=name, threads=each).embedding for each in (1, 2, 3)]
    assert outs[0].tobytes() == outs[1].tobytes() == outs[2].tobytes()
