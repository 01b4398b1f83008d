"""A `Dataset`: parts that fit together, splits by seed, one sentence where they do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny import tiny

from unifews.datasets.dataset import About, Dataset, Split
from unifews.errors import InputError, ShapeError

TINY = tiny()
VAL = TINY.splits[0].val


def test_what_it_is():
    assert (TINY.num_nodes, TINY.num_features, TINY.num_classes) == (24, 5, 3) and not TINY.is_multilabel
    assert repr(TINY) == f"Dataset('tiny', 24 nodes, {TINY.graph.num_edges} edges, 5 features, 3 classes)"
    several = replace(TINY, y=np.eye(24, 4, dtype=np.uint8), splits=())
    assert several.is_multilabel and several.num_classes == 4 and "4 labels" in repr(several)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8, np.uint64])
def test_classes_of_any_integer_type(dtype):
    assert replace(TINY, y=TINY.y.astype(dtype)).num_classes == 3


def test_unlabelled_nodes_are_no_class():
    assert replace(TINY, y=np.full(24, -1), splits=()).num_classes == 0
    assert replace(TINY, y=np.where(np.arange(24) < 20, -1, 1), splits=()).num_classes == 2


@pytest.mark.parametrize(
    "change, error, sentence",
    [
        ({"x": TINY.x[:23]}, ShapeError, "tiny has 23 rows of features, but its graph has 24 nodes"),
        ({"x": TINY.x[:, 0]}, ShapeError, r"features are a matrix \[nodes, features\]; tiny has \[24\]"),
        ({"y": TINY.y[:23]}, ShapeError, "tiny has 23 rows of labels"),
        ({"y": np.zeros((24, 2, 2), int)}, ShapeError, r"labels are class numbers \[n\] or 0/1 columns"),
        ({"y": TINY.y - 2}, InputError, "whole numbers from 0, -1 for unlabelled; got int64 values such as -2, -1, 0"),
        ({"y": TINY.y.astype(float)}, InputError, "whole numbers from 0"),
        ({"y": TINY.y.astype(str)}, InputError, "whole numbers from 0"),
        ({"y": np.full((24, 2), 2)}, InputError, "have a column per class and are 0 or 1; got int64 values such as 2, 2, 2"),
        ({"y": np.where(np.arange(24) == VAL[1], -1, TINY.y)}, InputError, "val set of tiny has 1 unlabelled nodes"),
        ({"splits": (Split(*np.arange(22, 25)[:, None]),)}, InputError, "the test set of tiny names nodes that are not among"),
        ({"splits": (Split(*np.arange(-1, 2)[:, None]),)}, InputError, "the train set of tiny names nodes that are not among"),
    ],
)
def test_parts_that_do_not_fit(change, error, sentence):
    with pytest.raises(error, match=sentence):
        replace(TINY, **change)


def test_a_stored_split_is_taken_by_number():
    data = tiny(splits=3)
    for seed in range(7):
        assert data.split(seed) is data.splits[seed % 3]
    assert data.split(1, "stored") is data.splits[1]
    with pytest.raises(InputError, match="has no stored split; use split='stratified'"):
        tiny(splits=0).split(0, "stored")
    with pytest.raises(InputError, match="'stratified' or 'stored'; got 'public'"):
        data.split(0, "public")


@pytest.mark.parametrize("kind", [None, "stratified"])
def test_a_drawn_split_is_decided_by_the_seed(kind):
    data = tiny(splits=0)
    one, again, other = data.split(359, kind), data.split(359, kind), data.split(367, kind)
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one.train, other.train)
    assert [len(part) for part in one] == [12, 6, 6]
    assert [np.bincount(data.y[part]).tolist() for part in one] == [[4, 4, 4], [2, 2, 2], [2, 2, 2]]


def test_what_is_drawn_can_be_asked_for_where_a_split_is_stored():
    assert not np.array_equal(TINY.split(0, "stratified").train, TINY.split(0).train)


def test_nodes_with_several_labels_are_drawn_alike():
    data = Dataset("several", TINY.graph, TINY.x, np.eye(24, 4, dtype=np.uint8), about=About())
    assert sorted(np.concatenate(data.split(373)).tolist()) == list(range(24))


def test_a_label_that_makes_more_classes_than_there_can_be():
    y = TINY.y.copy()
    y[3] = 2**31 - 1
    with pytest.raises(InputError, match=r"a label of absurd is 2,147,483,647, which makes 2,147,483,648 classes for 24 nodes"):
        Dataset("absurd", TINY.graph, TINY.x, y)
    y[3] = 900  # more than there are nodes, as in a part of a larger dataset
    assert Dataset("part", TINY.graph, TINY.x, y).num_classes == 901
