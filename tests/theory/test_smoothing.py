"""Definition 3.1 and Lemma 3.3: what propagation optimises, and how far a sparser graph moves the optimum."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import graphs, random_graph, random_removal
from hypothesis import given, settings
from hypothesis import strategies as st

import unifews as uf
from unifews.errors import InputError
from unifews.theory import objective, similarity, smooth, smoothing_error, step

CS = st.sampled_from([0.0, 0.1, 1.0, 9.0])


@settings(max_examples=40)
@given(graphs(undirected=True), CS)
def test_the_closed_form_solves_its_equation_and_nothing_nearby_is_better(problem, c):
    graph, rng = problem
    diffusion = uf.Diffusion(graph)
    x = rng.standard_normal((graph.num_nodes, 3))
    p = smooth(diffusion, x, c)
    laplacian = np.eye(graph.num_nodes) - diffusion.to_scipy().toarray()
    np.testing.assert_allclose(p, np.linalg.solve(np.eye(graph.num_nodes) + c * laplacian, x), atol=1e-8)
    best = objective(diffusion, x, p, c)
    assert best <= objective(diffusion, x, p + 1e-3 * rng.standard_normal(p.shape), c)
    assert best <= objective(diffusion, x, x, c) + 1e-9


def test_a_step_is_half_the_gradient_of_the_objective():
    rng = np.random.default_rng(907)
    diffusion = uf.Diffusion(random_graph(rng, 8))
    x, p, b, c = rng.standard_normal(8), rng.standard_normal(8), 0.3, 2.5
    gradient = np.array(
        [(objective(diffusion, x, p + 1e-6 * e, c) - objective(diffusion, x, p - 1e-6 * e, c)) / 2e-6 for e in np.eye(8)]
    )
    np.testing.assert_allclose(step(diffusion, p, x, b, c), p - b / 2 * gradient, atol=1e-7)


@settings(max_examples=40)
@given(graphs(undirected=True), st.sampled_from([0.1, 0.5, 0.9]))
def test_the_models_are_steps_of_it(problem, alpha):
    graph, rng = problem
    diffusion = uf.Diffusion(graph)
    t = diffusion.to_scipy()
    x, p = rng.standard_normal((2, graph.num_nodes, 2))
    np.testing.assert_allclose(step(diffusion, p, x, alpha, (1 - alpha) / alpha), (1 - alpha) * (t @ p) + alpha * x, atol=1e-12)
    np.testing.assert_allclose(step(diffusion, x, x, 1 / 3.0, 3.0), t @ x, atol=1e-12)  # GCN: b = 1/c
    np.testing.assert_allclose(step(diffusion, p, 0 * x, 1e-9, 1e9), t @ p, atol=1e-6)  # SGC: bc = 1, b → 0


def test_appnp_tends_to_the_optimum():
    rng = np.random.default_rng(31)
    graph, x = random_graph(rng, 40), rng.standard_normal((40, 5)).astype(np.float32)
    out = uf.propagate(graph, x, uf.Appnp(alpha=0.2), hops=120).embedding
    np.testing.assert_allclose(out, smooth(uf.Diffusion(graph), x, 4.0), atol=1e-5)


@settings(max_examples=40)
@given(graphs(undirected=True), CS)
def test_the_optimum_of_a_sparser_graph_stays_within_the_lemma(problem, c):
    graph, rng = problem
    diffusion = uf.Diffusion(graph)
    removed = random_removal(diffusion, rng)
    x = rng.standard_normal((graph.num_nodes, 2))
    whole, sparse = smooth(diffusion, x, c), smooth(diffusion.to_scipy().toarray() - removed, x, c)
    error = np.linalg.norm(sparse - whole)
    epsilon = similarity(removed).spectral.upper
    for p in (whole, sparse):  # either optimum will do
        assert error <= smoothing_error(c, epsilon, float(np.linalg.norm(p))) + 1e-8


def test_the_lemma_as_printed_fails_when_one_direction_of_an_edge_goes():
    diffusion = uf.Diffusion(uf.Graph.from_edge_index([[0, 1], [1, 0]]))
    removed = np.array([[0.0, 0.5], [0.0, 0.0]])
    c, x = 0.01, np.array([0.0, 1.0])
    whole, sparse = smooth(diffusion, x, c), smooth(diffusion.to_scipy().toarray() - removed, x, c)
    found, error = similarity(removed), np.linalg.norm(sparse - whole)
    assert found.quadratic.upper == pytest.approx(0.25) and found.spectral.upper == pytest.approx(0.5)
    assert error > 1.9 * smoothing_error(c, found.quadratic.upper, float(np.linalg.norm(whole)))  # the ε of Definition 3.2
    assert error <= smoothing_error(c, found.spectral.upper, float(np.linalg.norm(whole)))


def test_c_cannot_be_negative():
    with pytest.raises(InputError, match="`c` is the weight of smoothness"):
        smooth(uf.Diffusion(uf.Graph.from_edge_index([[0], [1]])), [1.0, 2.0], -1.0)
