"""NIGCN: walks that are right on average, and end where they should."""

from __future__ import annotations

import math

import numpy as np
import pytest
from method_cases import graph_of, words
from scipy.sparse import csr_array

from unifews import Diffusion, Graph
from unifews.errors import GraphError, InputError
from unifews.methods.base import propagate_by
from unifews.methods.nigcn import Nigcn

GRAPH, X = graph_of(), words()


def lengths(graph, tau, hops):
    degree = graph.degree + 1
    m, n = graph.num_edges + graph.num_nodes, graph.num_nodes
    limit = [tau * math.log(2 * m / math.sqrt(degree.min() * d)) / math.log(math.sqrt(2 * m / n)) for d in degree]
    return np.minimum(np.floor(limit).astype(int), hops)


def weights(omega, rho):
    w = [1.0]
    for i in range(1, 512):
        w.append(w[-1] * omega / i**rho)
    return np.array(w) / sum(w)


def test_it_is_the_truncated_sum_on_average():
    method = Nigcn(epsilon=0.005)
    out = propagate_by(method, GRAPH, X, "sgc", 20)
    t, length, w = Diffusion(GRAPH, 0.0).to_scipy().toarray(), lengths(GRAPH, method.tau, 20), weights(method.omega, method.rho)
    exact = sum((i <= length)[:, None] * w[i] * (np.linalg.matrix_power(t, i) @ X) for i in range(21))
    assert len(set(length)) > 1
    assert np.linalg.norm(out.embedding - exact) < 0.02 * np.linalg.norm(exact)


def test_hubs_walk_less_far_and_hops_are_the_longest_walk():
    length = lengths(GRAPH, 1.7, 20)
    assert length[GRAPH.degree.argmax()] < length[GRAPH.degree.argmin()]
    near = propagate_by(Nigcn(), GRAPH, np.eye(60), "sgc", 1).embedding > 0
    assert np.array_equal(near, (GRAPH.to_scipy().toarray() + np.eye(60)) > 0)


@pytest.mark.parametrize("compat", [False, True])
def test_walks_that_end_early_lose_no_mass_but_for_the_authors(compat):
    ones = np.ones((300, 1), dtype=np.float32)
    graph = graph_of(300, 1200)
    method = Nigcn(compat=compat)
    found = propagate_by(method, graph, ones, "sgc", 20, edge_sparsity=0.5).embedding[:, 0]
    w = weights(method.omega, method.rho)
    expected = np.array([w[: length + 1].sum() for length in lengths(graph, method.tau, 20)])
    if compat:
        assert (found < 0.8 * expected).mean() > 0.9
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_what_is_kept_are_different_nodes():
    trace = propagate_by(Nigcn(), GRAPH, np.eye(60), "sgc", 20, threshold=0.2).trace
    found = propagate_by(Nigcn(epsilon=0.2), GRAPH, np.eye(60), "sgc", 20)
    others = (found.embedding > 0).sum() - 60
    assert trace.hops[0].kept == found.trace.hops[0].kept == others and trace.macs == others * 60


@pytest.mark.parametrize("sparsity", [0.3, 0.5, 0.8])
def test_a_share_is_met(sparsity):
    out = propagate_by(Nigcn(), graph_of(3000, 9000), words(3000), "sgc", 20, edge_sparsity=sparsity)
    assert out.trace.edge_sparsity == pytest.approx(sparsity, abs=0.01)


def test_a_share_that_a_single_walk_exceeds_is_refused():
    with pytest.raises(InputError, match=r"cannot remove 99.0%: a single walk .* is the most .* method='unifews'"):
        propagate_by(Nigcn(), graph_of(3000, 9000), words(3000), "sgc", 20, edge_sparsity=0.99)


def test_a_share_that_walks_do_not_use_up_is_found():
    """Pairs of nodes: a walk meets the other and nobody else."""
    pairs = np.arange(40).reshape(2, 20)
    trace = propagate_by(Nigcn(), Graph.from_edge_index(pairs).undirected(), np.eye(40), "sgc", 20, edge_sparsity=0.5).trace
    assert trace.edge_sparsity == pytest.approx(0.95)
    assert any("95.0% instead of the 50.0%" in note for note in trace.notes)


def test_sparse_features_and_dense_ones_give_the_same():
    one = propagate_by(Nigcn(), GRAPH, X, "sgc", 5).embedding
    two = propagate_by(Nigcn(), GRAPH, csr_array(X), "sgc", 5).embedding
    np.testing.assert_allclose(one, two, atol=1e-6)


def test_what_it_cannot_do():
    with pytest.raises(InputError, match=r"which is r=0; got r=0\.5"):
        propagate_by(Nigcn(), GRAPH, X, "sgc", 5, 0.5)
    with pytest.raises(GraphError, match="edge weights"):
        propagate_by(Nigcn(), Graph.from_edge_index([[0, 1], [1, 0]], edge_weight=[2.0, 3.0]), np.eye(2))
    lone = propagate_by(Nigcn(), Graph.from_edge_index(np.zeros((2, 0), int), 3), np.eye(3), "sgc", 5)
    assert lone.trace.macs == 0 and (np.diag(lone.embedding) > 0).all()
