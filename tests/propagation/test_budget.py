"""Budgets: thresholds as given, and thresholds found so that a share goes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unifews.core.checks import check_sparsity, check_threshold
from unifews.errors import InputError
from unifews.propagation.budget import Absolute, Messages, Relative, Target


def sample(rng, k=5_000, width=None, scale=1.0):
    magnitude = (scale * rng.lognormal(0, 1.5, k)).astype(np.float32)
    width = np.full(k, 16, dtype=np.float32) if width is None else width
    return Messages(magnitude, width, float(width.sum()))


def kept(messages, delta):
    return float(messages.width[messages.magnitude >= delta].sum()) / messages.total


def test_an_absolute_threshold_is_the_same_at_every_hop_but_for_the_unit():
    budget = Absolute(0.5)
    assert [budget.threshold(hop, None, 7.0, 0) for hop in range(3)] == [0.5] * 3
    assert budget.threshold(0, None, 7.0, 48) == 0.5 * 2.0**-48
    assert str(budget) == "threshold 0.5"


def test_a_relative_threshold_follows_the_mean():
    budget = Relative(0.5)
    assert budget.threshold(3, None, 7.0, 0) == 3.5 and budget.needs_mean and not budget.needs_sample


@given(seed=st.integers(0, 2**32 - 1), sparsity=st.floats(0.05, 0.95), hops=st.integers(1, 20))
def test_without_focus_the_same_share_goes_at_every_hop(seed, sparsity, hops):
    rng = np.random.default_rng(seed)
    budget = Target(sparsity, hops, np.ones(hops), focus=0.0)
    for hop in range(hops):
        messages = sample(rng, 500, scale=0.8**hop)
        share = kept(messages, budget.threshold(hop, messages, 0.0, 0))
        assert share == pytest.approx(1 - sparsity, abs=0.005 + 1 / 500)
        budget.record(hop, share)


@given(
    seed=st.integers(0, 2**32 - 1),
    sparsity=st.floats(0.1, 0.9),
    hops=st.integers(2, 20),
    shrink=st.floats(0.5, 1),
    focus=st.floats(0, 1),
)
def test_the_mean_over_hops_is_met_whatever_the_focus(seed, sparsity, hops, shrink, focus):
    rng = np.random.default_rng(seed)
    budget = Target(sparsity, hops, shrink ** np.arange(1, hops + 1), focus=focus)
    shares = []
    for hop in range(hops):
        messages = sample(rng, 500, scale=shrink ** (hop + 1))
        shares.append(kept(messages, budget.threshold(hop, messages, 0.0, 0)))
        budget.record(hop, shares[-1])
    assert 1 - np.mean(shares) == pytest.approx(sparsity, abs=0.01 + 1 / hops / 100)


def test_focus_spends_on_the_early_hops():
    def shares(focus):
        rng, found = np.random.default_rng(0), []
        budget = Target(0.7, 6, 0.9 ** np.arange(1, 7), focus=focus)
        for hop in range(6):
            messages = sample(rng, scale=(0.9 * 0.7) ** hop)
            found.append(kept(messages, budget.threshold(hop, messages, 0.0, 0)))
            budget.record(hop, found[-1])
        return found

    even, early = shares(0.0), shares(1.0)
    assert early[0] > 1.5 * even[0] and early[-1] < even[-1]
    assert early == sorted(early, reverse=True)
    assert np.mean(early) == pytest.approx(np.mean(even), abs=0.01)


@pytest.mark.parametrize("drift", [0.3, 0.05])
def test_what_was_kept_too_much_or_too_little_is_made_up_for(drift):
    """The sample said 20 %, the graph answered something else."""
    rng = np.random.default_rng(1)
    budget = Target(0.8, 5, np.ones(5), focus=0.0)
    budget.threshold(0, sample(rng), 0.0, 0)
    budget.record(0, drift)
    shares = [drift]
    for hop in range(1, 5):
        messages = sample(rng)
        shares.append(kept(messages, budget.threshold(hop, messages, 0.0, 0)))
        budget.record(hop, shares[-1])
    assert np.mean(shares) == pytest.approx(0.2, abs=0.002)


def test_a_budget_overspent_removes_all_that_is_left():
    budget = Target(0.8, 2, np.ones(2))
    budget.threshold(0, sample(np.random.default_rng(0)), 0.0, 0)
    budget.record(0, 0.9)
    messages = sample(np.random.default_rng(1))
    assert kept(messages, budget.threshold(1, messages, 0.0, 0)) == 0


def test_messages_too_few_for_the_budget_all_stay():
    rng = np.random.default_rng(0)
    messages = sample(rng, 100)
    few = Messages(messages.magnitude[:10], messages.width[:10], messages.total)
    assert Target(0.5, 1, np.ones(1)).threshold(0, few, 0.0, 0) == 0.0


def test_no_messages_at_all():
    none = np.zeros(0, dtype=np.float32)
    assert Target(0.5, 3, np.ones(3)).threshold(0, Messages(none, none, 0.0), 0.0, 0) == 0.0


@given(seed=st.integers(0, 2**32 - 1), sparsity=st.floats(0.1, 0.9))
def test_products_are_counted_not_entries(seed, sparsity):
    """A short last block covers fewer features than the others."""
    rng = np.random.default_rng(seed)
    width = rng.choice([16, 3], 2_000).astype(np.float32)
    messages = sample(rng, 2_000, width)
    budget = Target(sparsity, 1, np.ones(1))
    assert kept(messages, budget.threshold(0, messages, 0.0, 0)) == pytest.approx(1 - sparsity, abs=0.002)


@given(seed=st.integers(0, 2**32 - 1))
def test_messages_by_size_add_up(seed):
    rng = np.random.default_rng(seed)
    for width in (None, rng.choice([16, 5], 50).astype(np.float32)):
        messages = sample(rng, 50, width)
        ascending, share = messages.by_size()
        assert (np.diff(ascending) >= 0).all() and (np.diff(share) > 0).all()
        assert share[-1] == pytest.approx(1)
        assert share[9] == pytest.approx(kept(messages, ascending[-10]))


def test_checks():
    assert check_sparsity("edge_sparsity", 0) == 0.0 and check_sparsity("edge_sparsity", np.float32(0.5)) == 0.5
    assert check_threshold("threshold", np.inf) == np.inf
    with pytest.raises(InputError, match=r"edge_sparsity=0\.95"):
        check_sparsity("edge_sparsity", 95)
    with pytest.raises(InputError, match="threshold"):
        check_threshold("threshold", -0.0001)


def two_groups():
    rng = np.random.default_rng(31)
    each = [rng.lognormal(mean, 1.0, 4_000).astype(np.float32) for mean in (0.0, -1.0)]
    return [Messages(sizes, np.full(4_000, 16, dtype=np.float32), 2 * 4_000 * 16.0) for sizes in each]


@pytest.mark.parametrize("focus", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("sparsity", [0.3, 0.9])
def test_groups_of_columns_share_one_budget(focus, sparsity):
    budget = Target(sparsity, 6, 0.9 ** np.arange(1, 7), focus)
    parts = budget.divide(two_groups(), np.ones((6, 2)))
    assert sum(part._left for part in parts) == pytest.approx((1 - sparsity) * 6, rel=0.01)
    assert parts[0]._left > parts[1]._left  # larger messages, larger share
    assert [part.part for part in parts] == [0.5, 0.5]


def test_what_the_first_messages_have_no_use_for_is_dealt_out_all_the_same():
    """Nine of ten are zero: all of the others fit the budget, and what is left belongs to hops that have more of them."""
    groups = two_groups()
    for each in groups:
        each.magnitude[np.arange(len(each.magnitude)) % 10 > 0] = 0
    parts = Target(0.5, 6, np.ones(6)).divide(groups, np.ones((6, 2)))
    assert sum(part._left for part in parts) == pytest.approx(3.0)
    assert min(part._left for part in parts) > 1.4


def test_a_group_that_fades_is_given_less():
    budget = Target(0.8, 6, np.ones(6), 0.7)
    lasting = budget.divide(two_groups(), np.ones((6, 2)))
    fading = budget.divide(two_groups(), np.stack([np.ones(6), 0.3 ** np.arange(6)], axis=1))
    assert fading[1]._left < 0.7 * lasting[1]._left and fading[0]._left > lasting[0]._left


def test_a_group_takes_over_what_another_left_or_pays_for_what_it_overdrew():
    first, second = (Target(0.5, 4, np.ones(4)) for _ in range(2))
    first.record(0, 0.5)
    second.inherit(first)
    assert second._left == pytest.approx(2.0 + 1.5)
    first.record(1, 2.5)
    third = Target(0.5, 4, np.ones(4))
    third.inherit(first)
    assert third._left == pytest.approx(2.0 - 1.0)
