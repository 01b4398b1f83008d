"""Diffusion: the factors and the matrix against the dense formula."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unifews.core.diffusion import Diffusion
from unifews.core.graph import Graph
from unifews.errors import InputError


def random_graph(n, m, weighted, seed):
    rng = np.random.default_rng(seed)
    weight = rng.random(m) * 3 if weighted else None
    return Graph.from_edge_index(rng.integers(0, n, (2, m)), n, weight)


graphs = st.builds(random_graph, st.integers(1, 9), st.integers(0, 25), st.booleans(), st.integers(0, 2**32 - 1))


@given(graphs, st.floats(0, 1))
def test_it_is_the_normalised_adjacency_with_self_loops(graph, r):
    looped = graph.to_scipy().toarray().astype(np.float64) + np.eye(graph.num_nodes)
    d = looped.sum(axis=1)
    expected = np.diag(d ** -(1 - r)) @ looped @ np.diag(d**-r)
    diffusion = Diffusion(graph, r)
    np.testing.assert_allclose(diffusion.to_scipy().toarray(), expected, rtol=1e-12)
    np.testing.assert_allclose(diffusion.to_scipy(loops=False).toarray(), expected - np.diag(np.diag(expected)), atol=1e-12)
    np.testing.assert_allclose(diffusion.degree, d, rtol=1e-12)
    factors = diffusion.target[:, None] * graph.to_scipy().toarray() * diffusion.source + np.diag(diffusion.diagonal)
    np.testing.assert_allclose(factors, expected, rtol=1e-6)
    assert {a.dtype for a in (diffusion.target, diffusion.source, diffusion.diagonal)} == {np.dtype(np.float32)}


@given(graphs)
def test_at_r_zero_every_row_is_a_mean(graph):
    np.testing.assert_allclose(Diffusion(graph, 0).to_scipy().sum(axis=1), 1, rtol=1e-12)


def test_an_isolated_node_keeps_its_own_value():
    diffusion = Diffusion(Graph.from_edge_index(np.empty((2, 0), int), 3))
    assert np.array_equal(diffusion.to_scipy().toarray(), np.eye(3))


@pytest.mark.parametrize("r", [-0.1, 1.1, float("nan")])
def test_an_exponent_outside_the_unit_interval_is_refused(r):
    with pytest.raises(InputError, match=r"must be in \[0, 1\]; got"):
        Diffusion(random_graph(3, 4, False, 11), r)
