"""What random directions say about the size of a matrix."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import chi2

from unifews.errors import InputError
from unifews.theory import sample_range


@pytest.mark.parametrize("directions", [1, 4, 16, 64])
@pytest.mark.parametrize("failure", [0.5, 0.01, 1e-6])
def test_both_ends_solve_the_equation_and_hold_for_rank_one(directions, failure):
    low, high = sample_range(directions, failure)
    assert 0 < low < 1 < high
    for t in (low, high):
        assert (t * math.exp(1 - t)) ** (directions / 2) == pytest.approx(failure, rel=1e-6)
    assert chi2.cdf(directions * low, directions) <= failure  # exactly, for the worst matrix
    assert chi2.sf(directions * high, directions) <= failure


@pytest.mark.parametrize("spread", [[1.0], [1.0, 1.0], [1.0, 0.1, 0.01], [1.0] * 30])
def test_the_chance_is_no_larger_than_promised(spread):
    """Σ w_i χ²_k, drawn many times."""
    k, failure, draws = 8, 0.02, 20_000
    rng, w = np.random.default_rng(3), np.array(spread) / sum(spread)
    seen = (rng.chisquare(k, (draws, len(w))) @ w) / k
    low, high = sample_range(k, failure)
    noise = 4 * math.sqrt(failure / draws)
    assert (seen <= low).mean() <= failure + noise and (seen >= high).mean() <= failure + noise


def test_more_directions_tell_more():
    assert [round(1 / math.sqrt(sample_range(k, 1e-6)[0]), 1) for k in (8, 16, 32, 64)] == [9.2, 3.8, 2.3, 1.7]


def test_mistakes_are_reported():
    for directions in (0, 1.5, True):
        with pytest.raises(InputError, match="`directions` is a whole number of at least 1"):
            sample_range(directions, 0.1)
    for failure in (0, 1, -0.1, math.nan, "0.1", True):
        with pytest.raises(InputError, match="`failure` is a probability between 0 and 1"):
            sample_range(16, failure)
