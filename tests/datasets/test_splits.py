"""Splits: disjoint, complete, and fair to every class."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unifews.datasets.dataset import Split, split_stratified
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


# ------------------------------------------------------------------------------------------------------------ Split.of


def test_node_numbers_and_masks_are_the_same():
    numbers = Split.of([4, 0], [1], [2, 3], num_nodes=6)
    masks = Split.of(*(np.isin(np.arange(6), part) for part in numbers), num_nodes=6)
    for one, other in zip(numbers, masks, strict=True):
        assert np.array_equal(one, other) and one.dtype == other.dtype == np.int64
    assert numbers.train.tolist() == [0, 4]  # sorted


@pytest.mark.parametrize(
    "parts, sentence",
    [
        (([0, 1], [1, 2], [3]), "the split overlaps: 1 nodes, first 1, are in both train and val"),
        (([0, 1], [2], [0, 1]), "the split overlaps: 2 nodes, first 0, are in both train and test"),
        (([0], [1, 2], [2]), "first 2, are in both val and test"),
        (([], [1], [2]), "the train set is empty"),
        (([0], [1], [False] * 6), "the test set is empty"),
        (([0], [6], [2]), "the val set names node 6, but nodes are numbered 0 to 5"),
        (([-1], [1], [2]), "the train set names node -1"),
        (([0, 0, 0], [1], [2]), "the train set names 2 nodes more than once"),
        (([0.0], [1], [2]), "the train set holds float64 values"),
        (([[0]], [1], [2]), r"the train set has shape \[1, 1\]"),
        (([True, False], [1], [2]), "the train mask has 2 values, but the graph has 6 nodes"),
    ],
)
def test_sets_that_make_no_split(parts, sentence):
    with pytest.raises(InputError, match=sentence):
        Split.of(*parts, num_nodes=6)


@given(labels, st.integers(0, 2**32 - 1))
def test_a_drawn_split_is_a_proper_one(y, seed):
    parts = split_stratified(y, seed=seed)
    if all(len(part) for part in parts):
        for one, other in zip(Split.of(*parts, num_nodes=len(y)), parts, strict=True):
            assert np.array_equal(one, other)
    # Whatever class there is, some node of it is trained on.
    assert set(y[parts.train]) == set(y[y >= 0])
