"""Scores in percent, against their definitions counted out pair by pair."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from unifews.errors import InputError, UnknownNameError
from unifews.training.metrics import accuracy, evaluate, micro_f1, roc_auc

few = st.integers(-2, 2).map(float)  # few values: many ties


def tables(columns):
    rows = st.integers(1, 12)
    return rows.flatmap(
        lambda n: st.tuples(
            arrays(np.float32, (n, columns), elements=few), arrays(np.uint8, (n, columns), elements=st.integers(0, 1))
        )
    )


def pairwise_auc(score, positive):
    pairs = list(product(score[positive], score[~positive]))
    return sum(1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs) / len(pairs)


@given(tables(3))
def test_auc_is_the_chance_of_a_positive_above_a_negative(table):
    scores, y = table
    both = [j for j in range(3) if 0 < y[:, j].sum() < len(y)]
    if not both:
        with pytest.raises(InputError, match="every label is all one or all zero"):
            roc_auc(scores, y)
        return
    expected = np.mean([pairwise_auc(scores[:, j], y[:, j] == 1) for j in both])
    assert roc_auc(scores, y) == pytest.approx(100 * expected)


@given(tables(2))
def test_auc_of_two_classes_is_that_of_the_difference(table):
    scores, y = table
    y = y[:, 0].astype(np.int64)
    if 0 < y.sum() < len(y):
        assert roc_auc(scores, y) == pytest.approx(100 * pairwise_auc(scores[:, 1] - scores[:, 0], y == 1))


def test_auc_of_three_classes_is_refused():
    with pytest.raises(InputError, match="two classes or labels in columns; there are 3"):
        roc_auc(np.zeros((4, 3)), np.array([0, 1, 2, 0]))


@given(tables(3))
def test_micro_f1_counts_all_labels_together(table):
    scores, y = table
    hits = misses = alarms = 0
    for said, true in zip((scores > 0).ravel(), (y > 0).ravel(), strict=True):
        hits, misses, alarms = hits + (said and true), misses + (true and not said), alarms + (said and not true)
    expected = 100.0 if not (hits or misses or alarms) else 100 * 2 * hits / (2 * hits + alarms + misses)
    assert micro_f1(scores, y) == pytest.approx(expected)


@given(tables(4))
def test_of_single_classes_micro_f1_is_accuracy(table):
    scores, y = table
    y = y.argmax(1)
    right = sum(int(np.argmax(row)) == label for row, label in zip(scores, y, strict=True))
    assert accuracy(scores, y) == micro_f1(scores, y) == pytest.approx(100 * right / len(y))


@pytest.mark.parametrize("rows", [3, 4])  # as many rows as columns would compare the wrong things in silence
def test_accuracy_of_several_labels_is_refused(rows):
    with pytest.raises(InputError, match="one class per row"):
        accuracy(np.zeros((rows, 4)), np.zeros((rows, 4), dtype=np.uint8))


def test_by_name():
    scores, y = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([1, 0])
    assert [evaluate(name, scores, y) for name in ("accuracy", "f1", "auc")] == [100, 100, 100]
    with pytest.raises(UnknownNameError, match="Did you mean 'accuracy'"):
        evaluate("acuracy", scores, y)
