"""Recipes and the schedule of weight pruning."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unifews.errors import InputError
from unifews.training.recipe import Recipe, WeightPruning


def test_the_papers_recipe():
    """The authors' configuration of decoupled models."""
    paper = asdict(Recipe.paper())
    assert paper == dict(
        width=512, layers=2, dropout=0.5, batch=512, epochs=200, patience=0, lr=1e-2, weight_decay=1e-5, plateau=15
    )
    assert set(Recipe.names()) == set(paper)
    assert asdict(Recipe.paper(layered=True)) == paper | {"lr": 1e-3}


@pytest.mark.parametrize(
    "name, value",
    [
        *((name, value) for name in ("width", "layers", "epochs", "plateau") for value in (0, -3, 2.5, "8", True, None)),
        *(("batch", value) for value in (1, 0, 32.0)),
        ("patience", -1),
        *((name, value) for name in ("dropout", "lr", "weight_decay") for value in (-0.1, math.nan, math.inf, "1", True)),
        *(("dropout", value) for value in (1, 1.0, 50)),
        ("lr", 0),
    ],
)
def test_numbers_that_cannot_work(name, value):
    with pytest.raises(InputError, match=f"`{name}` must be (an integer|a number)"):
        Recipe(**{name: value})


def test_however_a_number_is_written_it_is_the_same_recipe():
    assert Recipe(width=np.int64(8), lr=1, dropout=np.float32(0.5)) == Recipe(width=8, lr=1.0, dropout=0.5)
    assert {type(value) for value in asdict(Recipe(width=np.int64(8), lr=1, dropout=np.float32(0.5))).values()} == {int, float}


@pytest.mark.parametrize("sparsity", [1, 90, -0.1, float("nan"), "half"])
def test_a_share_is_a_fraction(sparsity):
    with pytest.raises(InputError, match=r"`weight_sparsity` must be a number in \[0, 1\)"):
        WeightPruning(sparsity)


def test_a_threshold_is_a_magnitude_and_the_only_wish():
    with pytest.raises(InputError, match="`weight_threshold` must be a number of at least 0"):
        WeightPruning(threshold=-1)
    with pytest.raises(InputError, match="exclude each other"):
        WeightPruning(0.5, 0.5)


def test_nothing_asked_for_is_nothing_done():
    assert not WeightPruning().active and not WeightPruning(sparsity=0).active and not WeightPruning(threshold=0.0).active
    assert WeightPruning().reached(0, 200)


@given(st.floats(0.01, 0.99), st.integers(1, 300))
def test_the_share_grows_to_the_target_and_stays(sparsity, epochs):
    pruning = WeightPruning(sparsity)
    shares = [pruning.at(epoch, epochs)["sparsity"] for epoch in range(epochs)]
    assert shares == sorted(shares) and shares[-1] == sparsity and shares[0] > 0
    reached = [pruning.reached(epoch, epochs) for epoch in range(epochs)]
    assert [share == sparsity for share in shares] == reached
    assert reached.index(True) + 1 == max(1, min(pruning.ramp, epochs // 2))


@given(st.floats(0.01, 0.99), st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_smaller_head_is_pruned_only_down_to_the_budget(sparsity, weights, more):
    unpruned = weights + more
    share = WeightPruning(sparsity).within(weights, unpruned).sparsity
    kept, budget = (1 - share) * weights, (1 - sparsity) * unpruned
    assert 0 <= share <= sparsity
    assert kept == pytest.approx(min(weights, budget))


def test_what_is_no_share_of_weights_is_left_alone():
    for pruning in (WeightPruning(), WeightPruning(0.0), WeightPruning(threshold=0.5)):
        assert pruning.within(10, 100) == pruning
    assert not WeightPruning(0.9).within(10, 100).active and WeightPruning(0.9).within(11, 100).active
    assert WeightPruning(0.9).within(100, 100).sparsity == pytest.approx(0.9)


def test_the_papers_schedule_prunes_fully_from_the_first_epoch():
    pruning = WeightPruning(0.9, ramp=1, feedback=False)
    assert pruning.at(0, 200) == {"sparsity": 0.9, "monotone": False} and pruning.reached(0, 200)


def test_masks_regrow_in_the_first_half_and_only_shrink_after_it():
    for pruning in (WeightPruning(0.5), WeightPruning(threshold=0.5), replace(WeightPruning(0.5), settle=0.5)):
        assert [pruning.at(epoch, 10)["monotone"] for epoch in range(10)] == [False] * 5 + [True] * 5
    assert WeightPruning(threshold=0.5).at(0, 10) == {"threshold": 0.5, "monotone": False}


@pytest.mark.parametrize("name", ["lr", "weight_decay"])
def test_rates_beyond_any_use_are_refused_before_they_overflow(name):
    with pytest.raises(InputError, match=rf"`{name}` must be a number in [\[(]0, 1e\+38\); got 1e\+99"):
        Recipe(**{name: 1e99})
