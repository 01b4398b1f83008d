"""Lemma 4.1: what a threshold says about the embedding it was applied to, and what it does not say about others."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from graphs import graphs
from hypothesis import given
from hypothesis import strategies as st

import unifews as uf
from unifews.errors import InputError
from unifews.theory import (
    edge_factors,
    removed_matrix,
    removed_norm,
    removed_norm_by_count,
    removed_norm_by_size,
    similarity,
    vector_epsilon,
)


def prune(diffusion, p, delta):
    """Υ of one product with P, pruned by the norm of whole rows, and the sizes of its messages [n, n]."""
    norms = np.linalg.norm(p.reshape(len(p), -1), axis=1)
    kept = edge_factors(diffusion) * norms[diffusion.graph.indices] >= delta
    removed = removed_matrix(diffusion, kept)
    return removed, removed.toarray() * norms


@given(graphs(), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([1, 4]))
def test_each_bound_holds_and_is_looser_than_the_one_before(problem, r, f):
    graph, rng = problem
    diffusion = uf.Diffusion(graph, r)
    p = rng.standard_normal((graph.num_nodes, f)) * 10.0 ** rng.uniform(-1, 1, (graph.num_nodes, 1))
    delta = float(rng.uniform(0, 2))
    removed, sizes = prune(diffusion, p, delta)
    by_row, total = (sizes > 0).sum(axis=1), (sizes > 0).sum()
    bounds = [
        removed_norm(removed, p),
        removed_norm_by_size(sizes.sum(axis=1)),
        removed_norm_by_count(by_row, delta),
        removed_norm_by_count(total, delta),
    ]
    assert all(better <= worse * (1 + 1e-9) + 1e-12 for better, worse in pairwise(bounds))


@given(graphs(least=2))
def test_epsilon_bounds_the_quadratic_form_of_the_given_vector(problem):
    graph, rng = problem
    diffusion = uf.Diffusion(graph)
    p = rng.standard_normal(graph.num_nodes)
    removed, sizes = prune(diffusion, p, 0.3)
    epsilon = vector_epsilon(removed_norm_by_count((sizes > 0).sum(), 0.3), p)
    assert abs(p @ (removed @ p)) <= epsilon * (p @ p) * (1 + 1e-9)


def test_it_says_nothing_about_other_vectors():
    n = 50
    v, u = np.nonzero(1 - np.eye(n))
    diffusion = uf.Diffusion(uf.Graph.from_edge_index(np.stack([v, u])))
    p = np.full(n, 1e-6)
    p[0] = 1e3
    removed, sizes = prune(diffusion, p, 1e-6)
    epsilon = vector_epsilon(removed_norm_by_count((sizes > 0).sum(), 1e-6), p)
    assert epsilon == pytest.approx(2.4e-6, rel=0.02)
    assert similarity(removed).spectral.lower > 0.96  # [P] Lemma 4.1 would have it below 2.4e-6
    assert similarity(removed).quadratic.lower > 0.96


def test_entries_that_stay_removed_may_carry_more_than_the_threshold():
    diffusion = uf.Diffusion(uf.Graph.from_edge_index([[0, 1, 1, 2], [1, 0, 2, 1]]))
    p = np.array([0.1, 1.0, 1.0])
    removed, sizes = prune(diffusion, p, 0.05)
    later = 4 * p  # what an identity skip does
    assert removed_norm(removed, later) > removed_norm_by_count((sizes > 0).sum(axis=1), 0.05)
    assert removed_norm(removed, later) <= removed_norm_by_size((removed.toarray() * np.abs(later)).sum(axis=1))


def test_an_embedding_of_zeros_and_a_bad_threshold():
    assert vector_epsilon(0.0, np.zeros(3)) == 0 and vector_epsilon(1.0, np.zeros(3)) == np.inf
    with pytest.raises(InputError, match="`threshold` is a magnitude"):
        removed_norm_by_count(3, np.inf)
