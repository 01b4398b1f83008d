"""Functions of Jacobi matrices: Chebyshev series, coefficients, continuations and what an error in the basis becomes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unifews import Appnp, Filter, HeatKernel, PersonalizedPageRank, Polynomial, Sgc
from unifews.core.schemes import response_of
from unifews.errors import InputError
from unifews.propagation.spectral import Series, amplification, continuations, estimate

FILTERS = {
    "PageRank .02": PersonalizedPageRank(0.02),
    "PageRank .5": PersonalizedPageRank(0.5),
    "heat 1": HeatKernel(1.0),
    "heat 20": HeatKernel(20.0),
    "cosine": Filter(lambda t: np.cos(7 * t)),
    "constant": Filter(lambda t: np.full_like(t, 3.0)),
    "zero": Filter(np.zeros_like),
}
SEEDS = st.integers(0, 2**32 - 1)


def jacobi(a, b):
    """The matrix of one column's a_0 .. a_{m-1} and b_0 .. b_{m-2}."""
    return np.diag(a) + np.diag(b[: len(a) - 1], 1) + np.diag(b[: len(a) - 1], -1)


def function_of(matrix, f):
    values, vectors = np.linalg.eigh(matrix)
    return vectors @ np.diag(f(values)) @ vectors.T


def measure(rng, nodes, m, columns, low=-1.0, high=1.0):
    """a, b [m, columns] of Lanczos on diagonal matrices with eigenvalues in the interval, in float64 with orthogonalisation."""
    a, b = np.zeros((m, columns)), np.zeros((m, columns))
    for column in range(columns):
        eigenvalues, basis = rng.uniform(low, high, nodes), []
        p = rng.standard_normal(nodes)
        for k in range(m):
            basis.append(p / np.linalg.norm(p))
            p = eigenvalues * basis[-1]
            a[k, column] = p @ basis[-1]
            for each in basis * 2:
                p = p - (p @ each) * each
            b[k, column] = np.linalg.norm(p)
    return a, b


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("interval", [(-1.0, 1.0), (-0.3, 0.9)])
def test_a_series_is_the_function(name, interval):
    f = FILTERS[name].response
    series, t = Series.of(f, *interval), np.linspace(*interval, 301)
    scale = max(float(np.abs(f(t)).max()), 1e-30)
    np.testing.assert_allclose(series(t) / scale, f(t) / scale, atol=1e-6)
    assert series.largest == pytest.approx(float(np.abs(f(t)).max()), rel=1e-3, abs=1e-12)


@pytest.mark.parametrize(
    "scheme, hops",
    [
        (Appnp(), 20),
        (Sgc("diagonal"), 20),
        (Sgc("identity"), 20),
        (Polynomial([0.5, -1, 0, 2]), 3),
        (Polynomial.heat(5.0), 20),
        (Appnp(alpha=1.0), 4),
    ],
)
def test_a_series_of_a_polynomial_has_its_degree(scheme, hops):
    low, high = (0.0, 2.0) if scheme.skip == "identity" else (-1.0, 1.0)
    f = response_of(scheme, hops)
    series, t = Series.of(f, low, high, hops), np.linspace(low, high, 101)
    assert series.degree <= hops
    np.testing.assert_allclose(series(t), f(t), atol=1e-6 * np.abs(f(t)).max())


def test_what_is_no_function_of_the_eigenvalues_is_refused():
    with pytest.raises(InputError, match="not finite"):
        Series.of(lambda t: np.full_like(t, np.nan), -1, 1)
    with pytest.raises(InputError, match="another shape"):
        Series.of(lambda t: np.array(1.0), -1, 1)
    with pytest.raises(InputError, match="not smooth"):
        Series.of(np.sign, -1, 1)


@settings(max_examples=40)
@given(seed=SEEDS, size=st.integers(1, 12), columns=st.integers(1, 40), name=st.sampled_from(sorted(FILTERS)))
def test_the_first_column_is_that_of_eigh(seed, size, columns, name):
    rng, f = np.random.default_rng(seed), FILTERS[name].response
    a, b = measure(rng, 30, size, columns)
    found = Series.of(f, -1.0, 1.0).first_column(a, b)
    for column in range(columns):
        expected = function_of(jacobi(a[:, column], b[:, column]), f)[:, 0]
        np.testing.assert_allclose(found[:, column], expected, atol=3e-5 * max(1.0, float(np.abs(f(np.ones(1))).max())))


@settings(max_examples=40)
@given(seed=SEEDS, m=st.integers(1, 8), end=st.sampled_from(["high", "low"]))
def test_gauss_radau_puts_an_eigenvalue_at_either_end(seed, m, end):
    rng = np.random.default_rng(seed)
    a, b = measure(rng, 30, m, 3)
    series = Series.of(np.exp, -1.0, 1.0)
    diagonal, off_diagonal = continuations(series, a, b, m + 1)
    way, at, other = (2, 1.0, -1.0) if end == "high" else (3, -1.0, 1.0)
    for column in range(3):
        values = np.linalg.eigvalsh(jacobi(diagonal[:, way, column], off_diagonal[:, way, column]))
        assert np.abs(values - at).min() < 1e-6
        assert values.min() > -1 - 1e-6 and values.max() < 1 + 1e-6, f"none beyond either end, {other}"


@settings(max_examples=30)
@given(seed=SEEDS, m=st.integers(2, 9), size=st.integers(0, 6))
def test_all_continuations_begin_with_what_is_known(seed, m, size):
    a, b = measure(np.random.default_rng(seed), 30, m, 4)
    diagonal, off_diagonal = continuations(Series.of(np.exp, -1.0, 1.0), a, b, m + 1 + size)
    for way in range(4):
        assert np.array_equal(diagonal[:m, way], a) and np.array_equal(off_diagonal[:m, way], b)


@pytest.mark.slow
@settings(max_examples=40)
@given(seed=SEEDS, nodes=st.integers(12, 40), name=st.sampled_from(["PageRank .02", "PageRank .5", "heat 1", "heat 20"]))
def test_the_error_of_m_coefficients_is_about_what_is_estimated(seed, nodes, name):
    """Against the whole Jacobi matrix, where it is not most of the column: within 3 times, and on average above it."""
    rng, f, m, columns = np.random.default_rng(seed), FILTERS[name].response, 6, 8
    a, b = measure(rng, nodes, nodes, columns, -0.6, 0.95)
    found = estimate(Series.of(f, -1.0, 1.0), a[:m], b[:m], np.ones((m + 1, columns)), 1e-3)
    true = np.zeros(columns)
    for column in range(columns):
        whole = function_of(jacobi(a[:, column], b[:, column]), f)[:, 0]
        part = np.zeros(nodes)
        part[: m + 1] = found.coefficients[:, column]
        true[column] = np.linalg.norm(whole - part) / np.linalg.norm(whole)
        if found.truncation[column] < 0.3:
            assert found.norm[column] == pytest.approx(np.linalg.norm(whole), rel=max(2 * found.truncation[column], 1e-3))
    some = found.truncation < 0.3
    true, estimated = true[some], found.truncation[some]
    assert (true <= 3 * estimated + 1e-4).all()
    assert np.sqrt(np.square(true).sum()) <= 1.2 * np.sqrt(np.square(estimated).sum()) + 3e-4


@pytest.mark.parametrize("degree", [1, 2, 5, 9])
def test_as_many_coefficients_as_a_polynomial_has_degrees_are_exact(degree):
    rng = np.random.default_rng(degree)
    a, b = measure(rng, 30, 30, 5)
    f = np.polynomial.Polynomial(rng.standard_normal(degree + 1))
    found = estimate(Series.of(f, -1.0, 1.0, degree), a[:degree], b[:degree], np.ones((degree + 1, 5)), 1e-3)
    for column in range(5):
        whole = function_of(jacobi(a[:, column], b[:, column]), f)[:, 0]
        np.testing.assert_allclose(found.coefficients[:, column], whole[: degree + 1], atol=1e-5)
    assert (found.truncation < 1e-4).all()


def test_a_column_whose_space_is_exhausted_is_exact():
    """b_k = 0: nothing that follows matters."""
    rng, f = np.random.default_rng(1), FILTERS["PageRank .02"].response
    a, b = measure(rng, 3, 3, 4)
    more = np.zeros((2, 4))
    a, b = np.concatenate([a, more]), np.concatenate([b * (b > 1e-9), more])
    found = estimate(Series.of(f, -1.0, 1.0), a, b, np.ones((6, 4)), 1e-3)
    assert (found.truncation < 1e-5).all()
    for column in range(4):
        expected = function_of(jacobi(a[:3, column], b[:3, column]), f)[:, 0]
        np.testing.assert_allclose(found.coefficients[:3, column], expected, atol=1e-5)


def test_matrices_with_eigenvalues_outside_of_the_interval_are_noticed():
    a, b = np.full((5, 2), 0.2), np.full((5, 2), 0.4)
    b[:, 1] = 2.0
    found = estimate(Series.of(FILTERS["heat 20"].response, -1.0, 1.0), a, b, np.ones((6, 2)), 1e-3)
    assert np.isfinite(found.truncation[0]) and np.isinf(found.truncation[1])
    assert np.isfinite(found.coefficients).all()


def test_a_column_that_f_removes_is_measured_against_what_float32_resolves():
    """T^20 of eigenvalues around 0.1 is 1e-20, of which float32 sums know nothing."""
    a, b = np.full((4, 1), 0.1), np.full((4, 1), 0.01)
    series = Series.of(lambda t: t**20, -1.0, 1.0, 20)
    found = estimate(series, a, b, np.ones((5, 1)), 1e-3)
    assert found.norm[0] == pytest.approx(series.resolved) and found.truncation[0] < 0.05


@settings(max_examples=30)
@given(seed=SEEDS, m=st.integers(1, 7))
def test_what_an_error_in_the_basis_becomes(seed, m):
    """Run the recurrence twice, once with an error in p_j: the difference of Σ c_k p_k is g_j(S) δ."""
    rng, n = np.random.default_rng(seed), 9
    s = rng.uniform(-1, 1, n)
    a, b, c = rng.uniform(-0.5, 0.5, m), rng.uniform(0.2, 0.6, m), rng.standard_normal(m + 1)
    error = rng.standard_normal(n)

    def combined(at):
        p, total = [np.ones(n)], np.zeros(n)
        for k in range(m + 1):
            p[k] = p[k] + error * (k == at)
            total += c[k] * p[k]
            if k < m:
                p.append((s * p[k] - a[k] * p[k] - (b[k - 1] * p[k - 1] if k else 0)) / b[k])
        return total

    found = amplification(c[:, None], a[:, None], b[:, None], s[:, None], np.zeros((n - 1, 1)), error[:, None])
    for j in range(m + 1):
        np.testing.assert_allclose(found[j, :, 0], combined(j) - combined(-1), rtol=1e-6, atol=1e-8)
