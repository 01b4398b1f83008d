"""Definition 3.2: the two ε of a removal, and brackets that hold however early they stop."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import graphs, matrix_of, needs_data, random_removal, real
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

import unifews as uf
from unifews.core.schemes import SKIPS
from unifews.errors import InputError, ShapeError
from unifews.theory import HopMatrix, edge_factors, removed_matrix, similarity, spectral_bound

RS = st.sampled_from([0.0, 0.3, 0.5, 1.0])


@given(graphs(), RS, st.sampled_from([1, 5, 300]))
def test_brackets_contain_the_exact_values(problem, r, steps):
    graph, rng = problem
    removed = random_removal(uf.Diffusion(graph, r), rng)
    exact = similarity(removed, exact=True)
    for form in (removed, csr_array(removed)):
        found = similarity(form, exact=False, steps=steps)
        for bracket, truth in [(found.quadratic, exact.quadratic.upper), (found.spectral, exact.spectral.upper)]:
            assert bracket.lower <= truth * (1 + 1e-9) and truth <= bracket.upper * (1 + 1e-9)
            if steps == 300:
                assert bracket.upper <= 1.05 * truth + 1e-12
    assert exact.quadratic.upper <= exact.spectral.upper * (1 + 1e-9)
    assert exact.spectral.upper <= spectral_bound(removed) * (1 + 1e-9)


@given(graphs(), RS)
def test_the_quadratic_one_is_the_smallest_that_the_definition_allows(problem, r):
    graph, rng = problem
    removed = random_removal(uf.Diffusion(graph, r), rng)
    epsilon = similarity(removed).quadratic.upper
    x = rng.standard_normal((graph.num_nodes, 50))
    forms = np.abs(np.sum(x * (removed @ x), axis=0)) / np.sum(x * x, axis=0)
    assert (forms <= epsilon * (1 + 1e-9)).all()
    _, vectors = np.linalg.eigh((removed + removed.T) / 2)
    assert vectors[:, -1] @ removed @ vectors[:, -1] == pytest.approx(epsilon, abs=1e-12)


def test_no_multiplicative_similarity_survives_a_removal():
    diffusion = uf.Diffusion(uf.Graph.from_edge_index([[0, 1, 1, 2], [1, 0, 2, 1]]))
    phi, t = np.sqrt(diffusion.degree), diffusion.to_scipy().toarray()
    removed = removed_matrix(diffusion, np.array([True, False, True, True])).toarray()
    assert phi @ (np.eye(3) - t) @ phi == pytest.approx(0, abs=1e-12)
    assert phi @ (np.eye(3) - t + removed) @ phi > 0.1


@given(graphs(), RS, st.sampled_from(SKIPS), st.sampled_from([1, 60]))
def test_the_norm_of_a_hop_is_in_its_bracket(problem, r, skip, steps):
    graph, rng = problem
    hop = HopMatrix(uf.Diffusion(graph, r), skip)
    s = matrix_of(hop.diffusion, skip)
    x = rng.standard_normal(graph.num_nodes)
    np.testing.assert_allclose(hop.apply(x), s @ x, atol=1e-6)
    np.testing.assert_allclose(hop.transpose(x), s.T @ x, atol=1e-6)
    norm, truth = hop.norm(steps=steps), np.linalg.norm(s, 2)
    assert norm.lower <= truth * (1 + 1e-6) and truth <= norm.upper * (1 + 1e-6)


def test_only_the_symmetric_diffusion_is_a_contraction():
    star = uf.Graph.from_edge_index([[0] * 24 + [*range(1, 25)], [*range(1, 25)] + [0] * 24])
    assert HopMatrix(uf.Diffusion(star)).norm().upper == 1
    assert HopMatrix(uf.Diffusion(star, 0.0)).norm().lower > 2  # [P] takes 1 for it
    assert HopMatrix(uf.Diffusion(star), "identity").norm().lower > 1.5


@given(graphs(), RS)
def test_factors_are_those_of_the_diffusion(problem, r):
    graph, _ = problem
    diffusion = uf.Diffusion(graph, r)
    np.testing.assert_allclose(edge_factors(diffusion), diffusion.to_scipy(loops=False).data, rtol=1e-6)
    everything = removed_matrix(diffusion, np.zeros(graph.num_edges, dtype=bool))
    np.testing.assert_allclose(everything.toarray(), diffusion.to_scipy(loops=False).toarray(), rtol=1e-6)


def test_bad_input_is_reported():
    with pytest.raises(InputError, match=r"T - T̂ and has no negative entries"):
        similarity(np.array([[0.0, -1.0], [0.0, 0.0]]))
    with pytest.raises(ShapeError, match="square matrix"):
        similarity(np.ones((2, 3)))
    with pytest.raises(ShapeError, match=r"bool \[1\]"):
        removed_matrix(uf.Diffusion(uf.Graph.from_edge_index([[0], [1]])), np.ones(2, dtype=bool))


class TestOnCora:
    pytestmark = needs_data

    def test_a_large_removal_is_bounded_to_a_few_percent(self):
        graph, _ = real("cora-lcc", 1)
        diffusion = uf.Diffusion(graph)
        kept = edge_factors(diffusion) >= np.median(edge_factors(diffusion))
        found = similarity(removed_matrix(diffusion, kept))
        assert found.quadratic.upper < 1.05 * found.quadratic.lower < 1.05
        assert found.spectral.upper < 1.05 * found.spectral.lower
