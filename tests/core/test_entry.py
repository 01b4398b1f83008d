"""The rule: what stays and what goes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unifews.core.entry import survives

SIZES = st.floats(0, 1e6)


def test_ties_stay():
    assert survives(0.5, 2.0, 1.0)
    assert survives(-0.5, 2.0, 1.0)
    assert not survives(0.5, 2.0, np.nextafter(1.0, 2))


def test_zeros_are_no_entries_whatever_the_threshold():
    assert not survives(0.0, 3.0, 0.0) and not survives(3.0, 0.0, 0.0) and not survives(0.0, 0.0, 1.0)


def test_a_zero_threshold_keeps_whatever_is_not_zero():
    factor = np.array([-2.0, 0.0, 1e-30, 5.0])
    assert survives(factor, 1.0, 0.0).tolist() == [True, False, True, True]


def test_an_infinite_threshold_keeps_nothing():
    assert not survives([1.0, 1e30], 1.0, np.inf).any()


def test_factors_and_norms_are_broadcast():
    assert survives(np.array([[1.0], [2.0]]), np.array([1.0, 3.0]), 2.5).tolist() == [[False, True], [False, True]]


@given(factor=st.floats(-1e3, 1e3), norm=SIZES, a=SIZES, b=SIZES)
def test_a_larger_threshold_never_keeps_more(factor, norm, a, b):
    assert not survives(factor, norm, max(a, b)) or survives(factor, norm, min(a, b))
