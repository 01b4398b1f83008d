"""Filters, functions of the diffusion without a number of hops: their response, their checks, and how a scheme is resolved."""

from __future__ import annotations

import numpy as np
import pytest

from unifews import Appnp, Filter, HeatKernel, PersonalizedPageRank, Polynomial, Sgc
from unifews.core.schemes import SKIPS, Scheme, SpectralFilter, resolve, response_of
from unifews.errors import InputError, UnifewsError

T = np.linspace(-1, 1, 41)


def test_personalised_pagerank_is_appnp_with_infinitely_many_hops():
    for alpha in (0.1, 0.5, 1.0):
        limit = response_of(Appnp(alpha), 400)(T)
        np.testing.assert_allclose(PersonalizedPageRank(alpha).response(T), limit, atol=1e-12)


def test_the_heat_kernel_is_its_power_series():
    for time in (0.5, 3.0, 12.0):
        np.testing.assert_allclose(
            HeatKernel(time).response(T), response_of(Polynomial.heat(time, hops=120), 120)(T), atol=1e-12
        )


def test_both_leave_the_stationary_part_alone():
    """f(1) = 1."""
    for scheme in (PersonalizedPageRank(0.3), HeatKernel(7.0)):
        np.testing.assert_allclose(scheme.response(np.ones(1)), 1, rtol=1e-12)


def test_a_filter_is_its_function():
    assert np.array_equal(Filter(lambda t: t**3).response(T), T**3)
    assert Filter(lambda t: [1] * len(t)).response(T).dtype == np.float64


@pytest.mark.parametrize("skip", SKIPS)
def test_a_filter_has_a_skip_connection(skip):
    assert Filter(np.exp, skip=skip).skip == skip


@pytest.mark.parametrize("scheme, hops", [(Sgc(), 7), (Appnp(), 20), (Appnp(tail=False), 5), (Polynomial([1, 2, 3]), 2)])
def test_the_response_of_a_polynomial(scheme, hops):
    expected = sum(theta * T**power for power, theta in enumerate(scheme.coefficients(hops)))
    np.testing.assert_allclose(response_of(scheme, hops)(T), expected, atol=1e-12)


@pytest.mark.parametrize("alpha", [0, -0.1, 1.01, np.nan, np.inf])
def test_alpha_is_a_probability(alpha):
    with pytest.raises(InputError, match=r"alpha.*\(0, 1\]"):
        PersonalizedPageRank(alpha)


@pytest.mark.parametrize("time", [0, -1, np.inf, np.nan])
def test_a_time_is_positive(time):
    with pytest.raises(InputError, match=r"time.*positive"):
        HeatKernel(time)


def test_what_is_no_function_or_no_skip_is_refused():
    with pytest.raises(InputError, match="takes a function"):
        Filter(3)
    with pytest.raises(UnifewsError, match="skip"):
        Filter(np.exp, skip="loops")


@pytest.mark.parametrize("scheme", [PersonalizedPageRank(), HeatKernel(), Filter(np.exp)])
def test_a_filter_has_no_hops(scheme):
    assert isinstance(scheme, Scheme) and isinstance(scheme, SpectralFilter)
    found, hops = resolve(scheme, None)
    assert found is scheme and hops == scheme.most_hops
    with pytest.raises(InputError, match=r"hops.*max_error"):
        resolve(scheme, 20)
    for method in (scheme.coefficients, scheme.influence):
        with pytest.raises(InputError, match="max_error"):
            method(20)


def test_filters_with_the_same_settings_are_equal():
    assert PersonalizedPageRank(0.2) == PersonalizedPageRank(0.2) != PersonalizedPageRank(0.3)
    assert HeatKernel(2.0) == HeatKernel(2.0) != HeatKernel(3.0)
