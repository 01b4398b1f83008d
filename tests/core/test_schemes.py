"""Schemes: their coefficients, how much a message of each hop weighs, and how they are named."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unifews.core.diffusion import Diffusion
from unifews.core.graph import Graph
from unifews.core.schemes import SKIPS, Appnp, Polynomial, Scheme, Sgc, keep_factor, resolve
from unifews.errors import InputError, UnknownNameError

HOPS = st.integers(1, 60)
ALPHA = st.floats(0.01, 1)


@given(alpha=ALPHA, hops=HOPS)
def test_appnp_with_its_tail_shares_out_exactly_one(alpha, hops):
    theta = Appnp(alpha).coefficients(hops)
    assert theta.shape == (hops + 1,) and theta.sum() == pytest.approx(1)
    assert theta[:-1] == pytest.approx([alpha * (1 - alpha) ** hop for hop in range(hops)])


@given(alpha=ALPHA, hops=HOPS)
def test_appnp_without_its_tail_lacks_what_the_tail_carries(alpha, hops):
    theta = Appnp(alpha, tail=False).coefficients(hops)
    assert theta[-1] == 0 and theta.sum() == pytest.approx(1 - (1 - alpha) ** hops)


def test_the_tail_of_the_usual_appnp_is_an_eighth():
    assert Appnp(0.1).coefficients(20)[-1] == pytest.approx(0.1216, abs=1e-4)


@given(alpha=ALPHA, hops=HOPS)
def test_an_appnp_message_weighs_what_is_sent_on(alpha, hops):
    assert Appnp(alpha).influence(hops) == pytest.approx([(1 - alpha) ** (hop + 1) for hop in range(hops)])


@given(hops=HOPS, skip=st.sampled_from(SKIPS))
def test_sgc_is_the_last_power_alone(hops, skip):
    theta = Sgc(skip).coefficients(hops)
    assert theta.tolist() == [0.0] * hops + [1.0]
    assert Sgc(skip).influence(hops).tolist() == [1.0] * hops


def test_the_skips_are_those_of_the_paper():
    assert Sgc().skip == "identity" and Appnp().skip == "diagonal" and Polynomial([1, 1]).skip == "diagonal"


@given(time=st.floats(0.1, 5))
def test_the_heat_kernel_is_a_poisson_distribution(time):
    theta = Polynomial.heat(time, hops=40).coefficients(40)
    assert theta[:4] == pytest.approx([math.exp(-time) * time**k / math.factorial(k) for k in range(4)])
    assert theta.sum() == pytest.approx(1)


def test_ssgc_is_a_mean_of_powers_and_a_share_of_the_input():
    theta = Polynomial.ssgc(hops=4, alpha=0.2).coefficients(4)
    assert theta == pytest.approx([0.2, 0.2, 0.2, 0.2, 0.2]) and theta.sum() == pytest.approx(1)


def test_gbp_takes_its_weights_as_they_are():
    assert Polynomial.gbp([0.5, 0.25, 0.25]).theta == (0.5, 0.25, 0.25)


@given(theta=st.lists(st.floats(-10, 10), min_size=2, max_size=12))
def test_a_message_weighs_the_later_coefficients(theta):
    scheme = Polynomial(theta)
    assert scheme.hops == len(theta) - 1 and scheme.coefficients(scheme.hops).tolist() == theta
    expected = [sum(abs(t) for t in theta[hop + 1 :]) for hop in range(scheme.hops)]
    assert scheme.influence(scheme.hops) == pytest.approx(expected)
    assert (np.diff(scheme.influence(scheme.hops)) <= 1e-12).all()


def test_keep_factors_are_those_of_the_table():
    diffusion = Diffusion(Graph.from_edge_index([[0, 1], [1, 0]], num_nodes=3), 0.5)
    loop = np.array([0.5, 0.5, 1.0])
    assert keep_factor(diffusion, "diagonal") == pytest.approx(loop)
    assert keep_factor(diffusion, "identity") == pytest.approx(np.ones(3))
    assert keep_factor(diffusion, "identity+loop") == pytest.approx(1 + loop)
    assert keep_factor(diffusion, "none") == pytest.approx(np.zeros(3))
    with pytest.raises(UnknownNameError, match="diagonal"):
        keep_factor(diffusion, "diagnal")


def test_names_and_objects_are_resolved():
    assert resolve("appnp", None) == (Appnp(), 20)
    assert resolve("sgc", 3) == (Sgc(), 3)
    assert resolve(Polynomial([1, 2, 3]), None)[1] == 2
    assert isinstance(resolve(Appnp(0.3), np.int64(4))[1], int)
    with pytest.raises(UnknownNameError, match="Did you mean 'appnp'"):
        resolve("apnp", None)
    with pytest.raises(InputError, match="2 hops"):
        resolve(Polynomial([1, 2, 3]), 4)


def test_schemes_are_values():
    assert Appnp(0.2) == Appnp(0.2) and hash(Appnp(0.2)) == hash(Appnp(0.2))
    assert Polynomial([1, 2]) == Polynomial((1.0, 2.0)) and Polynomial([1, 2]) != Polynomial([1, 3])
    assert all(isinstance(scheme, Scheme) for scheme in (Appnp(), Sgc(), Polynomial([1, 1])))
