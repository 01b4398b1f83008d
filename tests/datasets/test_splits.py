"""Splits: disjoint, complete, and fair to every class."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unifews.datasets.splits import split_stratified
from unifews.errors import InputError, ShapeError

labels = st.lists(st.integers(-1, 4), max_size=60).map(lambda values: np.array(values, dtype=np.int64))


@given(labels, st.integers(0, 2**32 - 1))
def test_every_labelled_node_is_in_exactly_one_set(y, seed):
    together = np.concatenate(split_stratified(y, seed=seed))
    assert np.array_equal(np.sort(together), np.flatnonzero(y >= 0))


@given(labels, st.sampled_from([(0.5, 0.25, 0.25), (0.6, 0.2, 0.2), (0.1, 0.0, 0.4)]))
def test_every_class_is_within_one_node_of_its_share(y, fractions):
    for part, fraction in zip(split_stratified(y, fractions), fractions, strict=True):
        for c in range(5):
            assert abs((y[part] == c).sum() - fraction * (y == c).sum()) <= 1


def test_the_seed_decides():
    y = np.arange(1_000) % 7
    first, again, other = (
        split_stratified(y, seed=83)[0],
        split_stratified(y, seed=83)[0],
        split_stratified(y, seed=89)[0],
    )
    assert np.array_equal(first, again) and not np.array_equal(first, other)


@pytest.mark.parametrize("fractions", [(0.5, 0.5), (0.5, 0.5, 0.5), (-0.1, 0.5, 0.5), (0, 0, 0)])
def test_fractions_that_make_no_split_are_refused(fractions):
    with pytest.raises(InputError, match="three numbers, at least 0, of sum at most 1"):
        split_stratified(np.zeros(9, int), fractions)


def test_labels_are_a_vector_of_integers():
    with pytest.raises(ShapeError, match="vector of class numbers"):
        split_stratified(np.zeros((3, 2)))
