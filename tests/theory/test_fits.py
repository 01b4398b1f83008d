"""Fits find the power law that values were drawn from, and say how far real ones are from any."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import needs_data, real

import unifews as uf
from unifews.errors import InputError
from unifews.theory import edge_factors, fit_curve, fit_tail


def pareto(rng, count, alpha, x_min):
    return x_min * (1 - rng.random(count)) ** (1 / (1 - alpha))


@pytest.mark.parametrize("alpha", [1.6, 2.5, 3.4])
def test_a_pure_tail_is_recovered(alpha):
    fit = fit_tail(pareto(np.random.default_rng(31), 20_000, alpha, 0.4), x_min=0.4)
    assert fit.alpha == pytest.approx(alpha, rel=0.02) and fit.distance < 0.02 and fit.size == 20_000


def test_the_start_of_the_tail_is_found():
    rng = np.random.default_rng(577)
    values = np.concatenate([rng.uniform(0, 2, 5_000), pareto(rng, 5_000, 2.5, 2.0)])
    fit = fit_tail(values)
    assert fit.x_min > 1.9 and fit.alpha == pytest.approx(2.5, rel=0.06)  # any part of the tail has its exponent
    assert fit.distance < fit_tail(values, x_min=0.5).distance / 5


def test_whole_numbers_have_their_own_likelihood():
    rng, k = np.random.default_rng(907), np.arange(2, 20_000)
    degrees = rng.choice(k, 20_000, p=k**-2.4 / (k**-2.4).sum())
    fit = fit_tail(degrees, discrete=True)
    assert fit.alpha == pytest.approx(2.4, rel=0.04) and fit.distance < 0.01
    assert abs(fit_tail(degrees, x_min=2).alpha - 2.4) > 0.2  # the continuous formula does not fit them


def test_a_generated_graph_has_the_exponent_it_was_drawn_with():
    graph = uf.powerlaw(20_000, 200_000, num_features=1, seed=31).graph
    fit = fit_tail(graph.degree, discrete=True)
    assert 2 < fit.alpha < 3.5


@pytest.mark.parametrize("sigma", [0.3, 1.0])
def test_least_squares_recovers_a_curve_from_its_messages(sigma):
    rng = np.random.default_rng(12_289)
    messages = pareto(rng, 40_000, 2.5, 0.1) * np.abs(sigma * rng.standard_normal(40_000))
    fit = fit_curve(messages, sigma)
    assert fit.error < 0.01
    assert fit.curve.alpha == pytest.approx(2.5, rel=0.05) and fit.curve.x_min == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize(
    "given, sentence",
    [
        (dict(values=[1.0] * 50), "not all the same"),
        (dict(values=[1.0, 2.0]), "at least 10 values"),
        (dict(values=[*range(20), np.nan]), "finite"),
        (dict(values=[*range(20), 0.5], discrete=True), "whole numbers such as degrees"),
        (dict(values=[*range(1, 20)], x_min=19), "two different values, so at most 18"),
    ],
)
def test_what_cannot_be_fitted_is_reported(given, sentence):
    with pytest.raises(InputError, match=sentence):
        fit_tail(**given)


def test_a_curve_needs_different_messages():
    with pytest.raises(InputError, match="different sizes"):
        fit_curve(np.ones(50), 1.0)


class TestOnCora:
    """What is doubtful in print: the factors of a real graph are no power law, and not of the degrees' exponent."""

    pytestmark = needs_data

    def test_factors_are_no_power_law(self):
        factors = edge_factors(uf.Diffusion(real("cora-lcc", 1)[0]))
        assert fit_tail(factors, x_min=0.109).alpha == pytest.approx(2.95, abs=0.01)
        best = fit_tail(factors)
        assert best.x_min == pytest.approx(1 / 6) and best.alpha == pytest.approx(4.50, abs=0.01)
        assert best.distance > 0.1  # 4,512 values of a true power law would be within about 0.02

    def test_degrees_are_nearly_one_with_another_exponent(self):
        degrees = uf.Diffusion(real("cora-lcc", 1)[0]).degree
        fit = fit_tail(degrees, discrete=True)
        assert fit.alpha == pytest.approx(3.15, abs=0.01) and fit.distance < 0.04

    def test_least_squares_follows_the_curve_to_a_few_hundredths(self):
        graph, _ = real("cora-lcc", 1)
        p = np.random.default_rng(907).standard_normal(graph.num_nodes)
        assert fit_curve(edge_factors(uf.Diffusion(graph)) * np.abs(p[graph.indices]), 1.0).error < 0.045
