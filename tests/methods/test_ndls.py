"""NDLS: nodes stop when they are near their end, which is known in closed form."""

from __future__ import annotations

import numpy as np
import pytest
from method_cases import graph_of, words

from unifews import Diffusion, Graph
from unifews.errors import GraphError, InputError
from unifews.methods.base import propagate_by
from unifews.methods.ndls import Ndls

GRAPH, X, HOPS = graph_of(), words(), 8


def defined(graph, x, hops, r, epsilon, own, normalise=True):
    """The definition on dense matrices, with rows that have stopped left as they are; and the hops of each node."""
    t = Diffusion(graph, r).to_scipy().toarray()
    if normalise:
        x = x / np.maximum(np.abs(x).sum(1, keepdims=True), 1e-30)
    end = np.linalg.matrix_power(t, 1 << 14) @ x
    now, depth = x.astype(float), np.full(len(x), hops)
    powers = [now]
    active = np.ones(len(x), bool)
    for k in range(hops):
        stops = active & (np.linalg.norm(now - end, axis=1) < epsilon)
        depth[stops] = k
        active &= ~stops
        now = np.where(active[:, None], t @ now, now)
        powers.append(now)
    found = [np.mean([(1 - own) * p[v] + own * x[v] for p in powers[: depth[v]]] or [x[v]], axis=0) for v in range(len(x))]
    return np.array(found), depth


@pytest.mark.parametrize("r", [0.0, 0.5])
@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.2, 10.0])
def test_it_is_the_definition(epsilon, r):
    out = propagate_by(Ndls(epsilon=epsilon, own=0.2), GRAPH, X, "sgc", HOPS, r)
    found, depth = defined(GRAPH, X, HOPS, r, epsilon, 0.2)
    np.testing.assert_allclose(out.embedding, found, atol=1e-6)
    assert [hop.kept for hop in out.trace.hops] == [int(GRAPH.degree[depth > k].sum()) for k in range(HOPS)]


def test_every_component_has_its_own_end():
    """Two triangles and a lone node: all settle at once, each at its own mean."""
    edges = np.array([[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3]])
    graph = Graph.from_edge_index(edges, 7).undirected()
    x = np.eye(7, dtype=np.float32)
    out = propagate_by(Ndls(epsilon=1e-4, own=0.0), graph, x, "sgc", 20)
    assert [hop.kept for hop in out.trace.hops] == [12] + [0] * 19  # one hop averages a triangle
    assert np.array_equal(out.embedding, x)  # found by what came before it settled


@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.5, 0.9])
def test_a_share_is_met(sparsity):
    graph, x = graph_of(400, 1500), words(400)
    out = propagate_by(Ndls(), graph, x, "sgc", 20, edge_sparsity=sparsity)
    assert out.trace.edge_sparsity == pytest.approx(sparsity, abs=0.01)
    assert out.trace.macs == sum(hop.kept for hop in out.trace.hops) * x.shape[1]


def test_a_threshold_is_epsilon_and_rows_may_stay_as_they_are():
    kept = propagate_by(Ndls(epsilon=0.2), GRAPH, X, "sgc", HOPS)
    assert np.array_equal(propagate_by(Ndls(), GRAPH, X, "sgc", HOPS, threshold=0.2).embedding, kept.embedding)
    raw = propagate_by(Ndls(epsilon=0.2, normalise=False), GRAPH, X, "sgc", HOPS).embedding
    np.testing.assert_allclose(raw, defined(GRAPH, X, HOPS, 0.0, 0.2, 0.15, normalise=False)[0], atol=1e-6)


def test_what_it_cannot_do():
    with pytest.raises(GraphError, match="undirected"):
        propagate_by(Ndls(), Graph.from_edge_index([[0, 1], [1, 2]]), np.eye(3))
    with pytest.raises(InputError, match="works on model='sgc', not on 'appnp'"):
        propagate_by(Ndls(), GRAPH, X, "appnp")
    with pytest.raises(InputError, match="give one of `edge_sparsity`"):
        propagate_by(Ndls(), GRAPH, X, edge_sparsity=0.5, threshold=0.1)
