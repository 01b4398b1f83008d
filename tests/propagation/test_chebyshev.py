"""`propagate(max_error=ε, certify=True)`: the bound is never exceeded, against dense functions of the diffusion."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cases import SKIPS, adjacency, graph_of
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tolerance import MADE, SCHEMES, column_errors, dense_of, exact, misleading, rms

import unifews as uf
from unifews import Filter, HeatKernel, PersonalizedPageRank, propagate
from unifews.core.schemes import response_of
from unifews.errors import InputError
from unifews.propagation.chebyshev import Economised
from unifews.propagation.operator import HopOperator

GRAPHS = ["star", "bipartite", "components", "path", "communities"]


def proven(a, x, scheme, max_error, r=0.5, **options):
    """Propagate, and check that no bound is exceeded by more than the rounding of the oracle's comparison."""
    out = propagate(graph_of(a), x, scheme, r=r, max_error=max_error, certify=True, **options)
    errors = column_errors(a, x, scheme, r, out.embedding)
    if "degree" not in options:
        assert out.error <= max_error and out.column_errors.max() <= 3 * max_error
    if out.plan.method != "unpruned":
        assert (errors <= out.column_errors + 1e-12).all()
        expected = exact(a, x, scheme, r)
        assert np.linalg.norm(out.embedding - expected) <= out.error_bound
        assert out.error_bound <= 1.001 * out.relative_error_bound * np.linalg.norm(expected)
    return out, errors


def economised(scheme, hops=20):
    return Economised.of(HopOperator(uf.Diffusion(MADE.graph), scheme, hops, 1))


@pytest.mark.parametrize("max_error", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("name", SCHEMES)
def test_the_error_is_proven_and_not_far_from_the_truth(name, max_error):
    out, errors = proven(dense_of(MADE.graph), MADE.x, SCHEMES[name], max_error)
    assert out.column_errors.shape == (40,)
    assert out.error_bound == out.trace.error_bound and out.relative_error_bound <= 3 * max_error
    if out.plan.method != "unpruned":
        assert rms(errors) > 1e-3 * max_error, "more hops than needed"
        assert out.error == pytest.approx(rms(out.column_errors))
        assert any(note.startswith("proven error") for note in out.trace.notes)


@pytest.mark.parametrize("scheme", [uf.Appnp(), PersonalizedPageRank(0.02), HeatKernel(20.0), uf.Sgc("diagonal")], ids=repr)
@pytest.mark.parametrize("name", GRAPHS)
def test_no_graph_fools_a_proof(name, scheme):
    # Heat of time 20 removes nearly all of a column of noise, and float32 may round what is left.
    for max_error in (0.1,) if scheme == HeatKernel(20.0) else (0.01, 0.1):
        proven(*misleading(name), scheme, max_error)


@pytest.mark.parametrize("r", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("skip", SKIPS)
@pytest.mark.parametrize("weighted", [False, True])
def test_normalisations_skips_and_weights(r, skip, weighted):
    rng = np.random.default_rng(8)
    a = adjacency(rng, 120, 0.05, weighted=weighted)
    proven(a, rng.standard_normal((120, 20)).astype(np.float32), Filter(lambda t: np.exp(2 * t), skip=skip), 0.05, r)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), r=st.sampled_from([0.0, 0.5, 1.0]), name=st.sampled_from(sorted(SCHEMES)))
def test_random_graphs(seed, r, name):
    """Tiny ones, with isolated nodes, without edges, with one node."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 30))
    a, x = adjacency(rng, n, 0.3), rng.standard_normal((n, 20)).astype(np.float32)
    x[:, 3], x[:, 4], x[:, 5] = 0, 1, 1e-6 * x[:, 5]
    out = propagate(graph_of(a), x, SCHEMES[name], r=r, max_error=0.1, certify=True)
    expected = exact(a, x, SCHEMES[name], r)
    assert np.linalg.norm(out.embedding - expected) <= out.error_bound + 1e-5 * np.linalg.norm(expected)


def test_the_result_does_not_depend_on_threads():
    runs = [propagate(MADE.graph, MADE.x, max_error=0.05, certify=True, threads=t) for t in (1, 2, 3)]
    assert len({run.embedding.tobytes() for run in runs}) == 1 and len({run.error for run in runs}) == 1


def test_several_tiles_sparse_features_and_frobenius():
    x = np.where(np.random.default_rng(3).random((300, 300)) < 0.1, 1.0, 0.0).astype(np.float32)
    import scipy.sparse as sp

    dense, _ = proven(dense_of(MADE.graph), x, uf.Appnp(), 0.05)
    sparse = propagate(MADE.graph, sp.csr_array(x), max_error=0.05, certify=True)
    assert len(dense.plan.hops) == 3 and np.allclose(dense.embedding, sparse.embedding, atol=1e-5)
    whole = propagate(MADE.graph, x, max_error=0.01, certify=True, error_norm="frobenius")
    assert whole.error == whole.relative_error_bound <= 0.01 and max(whole.plan.hops) <= max(dense.plan.hops) + 4


def test_the_degree_is_raised_by_more_hops(monkeypatch):
    """The same result as if it had been right from the start, but for rounding."""
    right = propagate(MADE.graph, MADE.x, max_error=0.01, certify=True)
    monkeypatch.setattr(Economised, "expected_degree", lambda self, tolerance: 3)
    late = propagate(MADE.graph, MADE.x, max_error=0.01, certify=True)
    assert late.error <= 0.01 and 3 < late.plan.hops[0] <= right.plan.hops[0]
    fixed = propagate(MADE.graph, MADE.x, max_error=0.01, certify=True, degree=late.plan.hops[0])
    assert np.allclose(late.embedding, fixed.embedding, atol=1e-6 * np.abs(fixed.embedding).max())


@pytest.mark.parametrize(
    "scheme", [uf.Appnp(), uf.Appnp(0.5), uf.Sgc("diagonal"), uf.Sgc("identity"), HeatKernel(3.0)], ids=repr
)
def test_the_distance_between_polynomials_is_never_understated(scheme):
    way = economised(scheme)
    series, f = way.series, response_of(scheme, 20)
    t = np.linspace(series.low, series.high, 20_001)
    scaled = (t - 0.5 * (series.low + series.high)) / (0.5 * (series.high - series.low))
    for degree in range(1, series.degree + 1):
        terms = np.append(series.terms[:degree], way.last(degree))
        most = np.abs(np.polynomial.chebyshev.chebval(scaled, terms) - f(t)).max()
        assert most <= way.distance(degree) <= 1.1 * most + 2 * way.omitted


def test_the_last_term_makes_pagerank_the_best_approximation():
    """Bernstein: 1/(a - t) has the distance ρ^-d / (a² - 1) from polynomials of degree d, ρ = a + √(a² - 1)."""
    way, a = economised(PersonalizedPageRank(0.1)), 1 / 0.9
    for degree in (3, 6, 10):
        best = 0.1 / 0.9 * (a + math.sqrt(a * a - 1)) ** -degree / (a * a - 1)
        assert best <= way.distance(degree) <= 1.03 * best


def test_directed_graphs_and_few_hops_are_exact():
    rng = np.random.default_rng(4)
    a = adjacency(rng, 40, 0.1, directed=True)
    x = rng.standard_normal((40, 8)).astype(np.float32)
    out = propagate(graph_of(a), x, max_error=0.1, certify=True)
    assert out.error == out.error_bound == 0 and out.plan.method == "unpruned" and "directed" in out.trace.notes[-1]
    assert np.array_equal(out.embedding, propagate(graph_of(a), x).embedding)
    few = propagate(MADE.graph, MADE.x, hops=3, max_error=0.1, certify=True)
    assert few.error_bound == 0 and "cannot be made fewer" in few.trace.notes[-1]


@pytest.mark.parametrize("skip", SKIPS)
def test_values_that_outgrow_float32(skip):
    out = propagate(MADE.graph, MADE.x, uf.Sgc(skip), 120, max_error=0.3, certify=True)
    assert out.relative_error_bound <= 0.3 and np.isfinite(out.embedding).all()


def test_mistakes_are_reported():
    with pytest.raises(InputError, match="certify=True with max_error needs rows of float32, and precision is 'int8'"):
        propagate(MADE.graph, MADE.x, max_error=0.1, certify=True, precision="int8")
    with pytest.raises(InputError, match="`max_error` is 0"):
        propagate(MADE.graph, MADE.x, max_error=0, certify=True)
    with pytest.raises(InputError, match="max_error decides about no entries; leave out `entries`"):
        propagate(MADE.graph, MADE.x, max_error=0.1, certify=True, entries="node")
    with pytest.raises(InputError, match="`degree` is 30, more than the 20 hops there are"):
        propagate(MADE.graph, MADE.x, max_error=0.1, certify=True, degree=30)
    with pytest.raises(InputError, match="the rounding of float32 alone may be"):
        propagate(MADE.graph, MADE.x, PersonalizedPageRank(), max_error=1e-7, certify=True)
