"""The push of `agp` and `unifews-push`, against a walk over lists, neighbour by neighbour."""

from __future__ import annotations

import numpy as np
import pytest
from method_cases import graph_of, words

import unifews as uf
from unifews import Appnp, Diffusion, Graph, Sgc
from unifews.errors import GraphError, InputError
from unifews.methods.base import propagate_by
from unifews.methods.push import Agp, NeighbourLists, PushRules, UnifewsPush, push, zeros

GRAPH, X, HOPS = graph_of(), words(), 6


def walked(x, hops, r, rules, deltas, seed):
    """The scheme in plain loops: pointers into lists sorted by degree, one uniform number per (node, hop, feature)."""
    n, f = x.shape
    adjacency = GRAPH.to_scipy().toarray() + np.eye(n)
    degree = adjacency.sum(1).astype(np.float32)
    lists = [sorted(np.flatnonzero(adjacency[u]), key=lambda v: (degree[v], v)) for u in range(n)]
    rng = np.random.default_rng(seed)
    going = [j for j in range(f) if not rules.stop or x[:, j].max() > deltas[0][j] or -x[:, j].min() > deltas[1][j]]
    values, pushes, itself = x.astype(np.float64), np.zeros(hops, int), np.zeros(hops, int)
    old, out = values.copy(), np.zeros_like(values)
    exact_end = {(u, j): len(lists[u]) for u in range(n) for j in going}
    rounded_end = dict(exact_end)
    for hop in range(hops):
        draws = rng.random((n, f), dtype=np.float32)
        new = np.zeros_like(old)
        for j in going:
            for u in range(n):
                value = old[u, j]
                delta = deltas[0][j] if value > 0 else deltas[1][j]
                if rules.alpha is None and rules.skip:
                    new[u, j] += value
                if not abs(value) > delta:
                    out[u, j] += value
                    continue
                out[u, j] += value * (rules.alpha or 0)
                at, ratio = 0, abs(value) * rules.test / delta
                while at < exact_end[u, j] and ratio > degree[lists[u][at]] ** (1 - r):
                    v = lists[u][at]
                    factor = 1 / degree[v]
                    if rules.alpha is not None:
                        factor = (1 - rules.alpha) * degree[u] ** -r * degree[v] ** (r - 1)
                    new[v, j] += value * factor
                    at += 1
                    pushes[hop] += 1
                    itself[hop] += v == u
                first = at
                while at < rounded_end[u, j] and ratio / draws[u, j] > degree[lists[u][at]] ** (1 - r):
                    v = lists[u][at]
                    factor = degree[v] ** (r - 1)
                    if rules.unbiased:
                        factor = degree[v] ** -r if rules.alpha is None else degree[u] ** -r
                    new[v, j] += np.sign(value) * delta * factor
                    at += 1
                    pushes[hop] += 1
                    itself[hop] += v == u
                if rules.inherit:
                    exact_end[u, j] = (first + at) // 2
                    rounded_end[u, j] = (at + len(lists[u])) // 2
        old[:, going] = new[:, going]
    values[:, going] = (old if rules.alpha is None else out + old)[:, going]
    return values, pushes, itself


@pytest.mark.parametrize("r", [0.47, 0.3])  # with r = ½ halves of δ add up to exactly δ, and rounding decides
@pytest.mark.parametrize(
    "rules",
    [
        PushRules(None, skip=True, inherit=True, stop=True, unbiased=False),
        PushRules(0.1, inherit=True, stop=True, unbiased=False),
        PushRules(None, stop=True),
        PushRules(0.2, test=0.8),
    ],
)
@pytest.mark.parametrize("size", [0.003, 0.05, 0.4])
def test_it_is_the_walk_over_sorted_lists(rules, r, size):
    x = words()
    x[:, ::3] *= -1
    x[:, 1] *= np.where(np.arange(len(x)) % 2, 1, -1)
    total = np.abs(x).sum(0)
    deltas = tuple((size * total * (0.7 + 0.3 * k)).astype(np.float32) for k in range(2))
    got = push(NeighbourLists(GRAPH, r), x, HOPS, r, rules, deltas, (11, 0))
    values, pushes, itself = walked(x, HOPS, r, rules, deltas, (11, 0))
    assert np.array_equal(got.sent + got.loops, pushes) and np.array_equal(got.loops, itself)
    np.testing.assert_allclose(got.values, values, rtol=2e-4, atol=1e-5 * max(1, np.abs(values).max()))


@pytest.mark.parametrize("r", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("scheme", [Sgc("diagonal"), Appnp(0.1)])
def test_agp_without_a_threshold_is_the_scheme(scheme, r):
    exact = uf.propagate(GRAPH, X, scheme, HOPS, r).embedding
    np.testing.assert_allclose(propagate_by(Agp(rmax=0), GRAPH, X, scheme, HOPS, r).embedding, exact, atol=1e-5)


def test_the_authors_sgc_without_a_threshold():
    mean = Diffusion(GRAPH, 0.0).to_scipy().toarray()
    exact = np.linalg.matrix_power(np.eye(len(X)) + mean, HOPS) @ X
    np.testing.assert_allclose(propagate_by(UnifewsPush(thr=0), GRAPH, X, "sgc", HOPS, 0.5).embedding, exact, rtol=1e-4)


@pytest.mark.parametrize("scheme, r", [("appnp", 0.5), ("appnp", 0.2), ("sgc", 0.2)])
def test_rounding_is_right_on_average_and_the_authors_is_not(scheme, r):
    """One hop of a value that every node sends, but not exactly to neighbours of a high degree."""
    column = np.linspace(1, 2, 60, dtype=np.float32)
    x = np.repeat(column[:, None], 3000, axis=1)
    exact = uf.propagate(GRAPH, column[:, None], Sgc("diagonal") if scheme == "sgc" else scheme, 1, r).embedding[:, 0]
    rmax = 0.35 / column.sum()  # every value is above it; times √d it is not

    def mean(compat):
        return propagate_by(Agp(compat=compat), GRAPH, x, scheme, 1, r, threshold=rmax).embedding.mean(axis=1)

    assert np.abs(mean(False) / exact - 1).max() < 0.02
    assert np.abs(mean(True) / exact - 1).max() > 0.05


@pytest.mark.parametrize("method", [Agp(), UnifewsPush(), UnifewsPush(inherit=False)])
def test_a_larger_threshold_sends_less(method):
    macs = [propagate_by(method, GRAPH, X, "appnp", HOPS, threshold=t).trace.macs for t in (0, 1e-3, 1e-2, 1e-1)]
    assert macs == sorted(macs, reverse=True) and macs[0] > macs[-1]


def test_zeros_are_those_of_the_unpruned_hops():
    mean = Diffusion(GRAPH, 0.0).to_scipy().toarray()
    expected = [int((GRAPH.degree[:, None] * (np.linalg.matrix_power(mean, k) @ X == 0)).sum()) for k in range(HOPS)]
    assert zeros(NeighbourLists(GRAPH, 0.5), X, HOPS).tolist() == expected
    trace = propagate_by(Agp(rmax=0), GRAPH, X, "sgc", HOPS).trace
    assert [hop.zeros for hop in trace.hops] == expected and trace.edge_sparsity == 0


def test_columns_do_not_depend_on_each_other_s_values():
    other = X.copy()
    other[:, 5] = 0
    one, two = (propagate_by(Agp(rmax=1e-3), GRAPH, x, "sgc", HOPS).embedding for x in (X, other))
    left = [j for j in range(X.shape[1]) if j != 5]
    assert np.array_equal(one[:, left], two[:, left]) and not two[:, 5].any()


@pytest.mark.parametrize("method", [Agp(), UnifewsPush()])
def test_graphs_that_cannot_be_pushed_over(method):
    directed = Graph.from_edge_index([[0, 1], [1, 2]])
    with pytest.raises(GraphError, match=r"undirected graph; take graph.undirected\(\), or method='unifews'"):
        propagate_by(method, directed, np.eye(3))
    weighted = Graph.from_edge_index([[0, 1], [1, 0]], edge_weight=[2.0, 2.0])
    with pytest.raises(GraphError, match="cannot use edge weights"):
        propagate_by(method, weighted, np.eye(2))


def test_values_that_outgrow_float32_are_found():
    with pytest.raises(InputError, match="outgrow float32 over 300 hops"):
        propagate_by(UnifewsPush(thr=0), GRAPH, X, "sgc", 300)


def test_a_teleport_of_one():
    with pytest.raises(InputError, match="below 1, or take method='agp'"):
        propagate_by(UnifewsPush(), GRAPH, X, Appnp(1.0))
