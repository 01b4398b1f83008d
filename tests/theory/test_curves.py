"""Theorem 4.2: sparsity as a function of the threshold, and back."""

from __future__ import annotations

import math

import numpy as np
import pytest
from graphs import graphs, needs_data, real
from hypothesis import given
from hypothesis import strategies as st

import unifews as uf
from unifews.errors import InputError
from unifews.theory import PowerLaw, Quantile, SemiEmpirical, edge_factors, fit_tail, removed_norm_by_count, spread

REFERENCE = {
    2.1: {0.05: 0.020893, 0.5: 0.204620, 2: 0.634338, 8: 0.918355},
    2.5: {0.05: 0.023931, 0.5: 0.233965, 2: 0.709677, 8: 0.961991, 40: 0.996600},
    2.9: {0.5: 0.255098, 2: 0.759914, 8: 0.981430},
}
ALPHAS = st.floats(1.2, 5)
SCALES = st.floats(1e-4, 1e4)


@pytest.mark.parametrize("alpha, z, eta", [(a, z, eta) for a, row in REFERENCE.items() for z, eta in row.items()])
def test_reference_values(alpha, z, eta):
    assert PowerLaw(alpha).sparsity(z) == pytest.approx(eta, abs=5e-7)
    assert PowerLaw(alpha, x_min=0.07, sigma=3.0).sparsity(z * 0.07 * 3.0) == pytest.approx(eta, abs=5e-7)


@pytest.mark.parametrize("alpha", [1.4, 2.5, 3.7])
def test_the_formula_is_the_integral_it_stands_for(alpha):
    from scipy.integrate import quad

    law = PowerLaw(alpha, x_min=0.2, sigma=1.7)

    def density(x, delta):
        return (1 - (delta / x / 0.2) ** (1 - alpha)) * 2 * math.exp(-x * x / (2 * 1.7**2)) / math.sqrt(2 * math.pi * 1.7**2)

    for delta in (0.01, 0.3, 2.0):
        assert law.sparsity(delta) == pytest.approx(quad(density, 0, delta / 0.2, args=(delta,))[0], abs=1e-6)


def test_it_counts_drawn_messages():
    rng = np.random.default_rng(907)
    factors = 0.2 * (1 - rng.random(200_000)) ** (-1 / 1.5)
    messages = factors * np.abs(0.3 * rng.standard_normal(200_000))
    law, truth = PowerLaw(2.5, 0.2, 0.3), Quantile(messages)
    for delta in (0.01, 0.06, 0.3, 2.0):
        assert law.sparsity(delta) == pytest.approx(truth.sparsity(delta), abs=4e-3)


@given(ALPHAS, SCALES, SCALES, st.floats(0, 0.999))
def test_threshold_and_sparsity_undo_each_other(alpha, x_min, sigma, eta):
    law = PowerLaw(alpha, x_min, sigma)
    assert law.sparsity(law.threshold(eta)) == pytest.approx(eta, abs=1e-12, rel=1e-12)


@given(ALPHAS, st.floats(1e-6, 20))
def test_sparsity_and_threshold_undo_each_other(alpha, z):
    law = PowerLaw(alpha)
    assert law.threshold(law.sparsity(z)) == pytest.approx(z, rel=1e-6)


@given(ALPHAS, st.floats(0, 1e3), st.floats(1e-3, 1e3))
def test_more_threshold_removes_more(alpha, z, more):
    law = PowerLaw(alpha)
    assert 0 <= law.sparsity(z) <= law.sparsity(z + more) <= 1
    assert law.kept(z) == pytest.approx(1 - law.sparsity(z), abs=1e-12)


@given(ALPHAS)
def test_small_and_large_thresholds_have_the_asymptotes(alpha):
    law = PowerLaw(alpha, 0.1, 2.0)
    small = 1e-6 * law.scale
    assert law.sparsity(small) == pytest.approx(math.sqrt(2 / math.pi) * (alpha - 1) / alpha * 1e-6, rel=1e-6)
    large = 50 * law.scale
    assert 1 - law.asymptotic_sparsity(large) == pytest.approx(law.kept(large), rel=1e-9)
    assert law.asymptotic_sparsity(law.asymptotic_threshold(0.7)) == pytest.approx(0.7)


@given(st.floats(2, 3), st.floats(0.77, 0.999), SCALES)
def test_the_asymptote_serves_where_most_is_removed(alpha, eta, sigma):
    law = PowerLaw(alpha, 1.0, sigma)
    assert law.sparsity(law.asymptotic_threshold(eta)) == pytest.approx(eta, abs=0.02)
    assert law.asymptotic_sparsity(law.threshold(eta)) == pytest.approx(eta, abs=0.02)


def test_the_printed_power_of_sigma_is_wrong():
    alpha, sigma = 2.5, 0.3
    law, delta = PowerLaw(alpha, 1.0, sigma), 8 * sigma
    factor = 2 * 2 ** ((alpha - 3) / 2) * math.gamma(alpha / 2) / math.sqrt(math.pi) * delta ** (1 - alpha)
    assert 1 - factor / sigma ** (alpha + 1) == pytest.approx(-14.6, abs=0.05)  # eq:sp_q_a
    assert 1 - factor * sigma ** (alpha - 1) == pytest.approx(law.sparsity(delta), abs=1e-6)
    assert law.sparsity(delta) == pytest.approx(0.961991, abs=1e-6)


@given(st.floats(2.01, 2.99))
def test_the_theorem_s_exponent_lies_between_a_half_and_one(alpha):
    law = PowerLaw(alpha)
    assert 0.5 < law.exponent < 1
    assert law.asymptotic_threshold(0.9) == pytest.approx(law.constant * 0.1**-law.exponent)


def test_epsilon_is_the_lemma_s_for_that_many_edges():
    law = PowerLaw(2.5, 0.1, 0.5)
    assert law.epsilon(0.5, 1000, 20.0) == pytest.approx(removed_norm_by_count(500, law.threshold(0.5)) / 20)


@given(graphs(least=3), st.floats(0, 0.99), st.floats(0.01, 100))
def test_the_semi_empirical_curve_is_inverted_and_scales_with_sigma(problem, eta, sigma):
    graph, _ = problem
    if graph.num_edges == 0:
        return
    factors = edge_factors(uf.Diffusion(graph))
    curve = SemiEmpirical(factors, sigma)
    delta = curve.threshold(eta)
    assert curve.sparsity(delta) == pytest.approx(eta, abs=1e-12)
    assert SemiEmpirical(factors).threshold(eta) * sigma == pytest.approx(delta, rel=1e-9)


@given(st.integers(1, 60), st.floats(0, 0.999), st.integers(0, 2**32 - 1))
def test_a_quantile_removes_what_it_is_asked_to(count, eta, seed):
    messages = np.random.default_rng(seed).random(count)
    curve = Quantile(messages)
    removed = (messages < curve.threshold(eta)).sum()
    assert removed == min(round(eta * count), count - 1)
    assert curve.sparsity(curve.threshold(eta)) == removed / count
    assert curve.sparsity(0.0) == 0


def test_bad_input_is_reported():
    for wrong in (dict(alpha=1.0), dict(alpha=2.5, x_min=0.0), dict(alpha=2.5, sigma=-1.0)):
        with pytest.raises(InputError, match="must be"):
            PowerLaw(**wrong)
    with pytest.raises(InputError, match=r"write sparsity=0\.5"):
        PowerLaw(2.5).threshold(50)
    with pytest.raises(InputError, match="at least one value"):
        Quantile([]).sparsity(0.1)
    with pytest.raises(InputError, match="greater than 0"):
        SemiEmpirical([0.0, 1.0]).sparsity(0.1)


class TestOnCora:
    """Gaussian values on the real factors."""

    pytestmark = needs_data

    def curves(self):
        graph, _ = real("cora-lcc", 1)
        diffusion = uf.Diffusion(graph)
        p = np.random.default_rng(907).standard_normal(graph.num_nodes)
        factors = edge_factors(diffusion)
        return diffusion, p, factors, Quantile(factors * np.abs(p[graph.indices]))

    def test_the_semi_empirical_curve_is_within_two_hundredths(self):
        diffusion, p, _, truth = self.curves()
        curve = SemiEmpirical.of(diffusion, p)
        assert curve.sigma == spread(p)
        for eta in (0.1, 0.5, 0.75, 0.9, 0.99):
            assert curve.sparsity(truth.threshold(eta)) == pytest.approx(eta, abs=0.02)

    def test_a_power_law_from_the_smallest_factor_is_far_off(self):
        _, _, factors, truth = self.curves()
        fit = fit_tail(factors, x_min=float(factors.min()))
        assert fit.alpha == pytest.approx(1.43, abs=0.005)
        expected = {0.1: 0.20, 0.5: 0.63, 0.75: 0.72, 0.9: 0.78, 0.99: 0.83}
        for eta, predicted in expected.items():
            assert fit.curve(1.0).sparsity(truth.threshold(eta)) == pytest.approx(predicted, abs=0.035)
