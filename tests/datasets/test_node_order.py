"""Nodes of a named dataset are in one order, so a seed draws the same split of the same nodes from every source."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny import FOLDER, assert_same, known, needs_data, record_for, tiny

from unifews.datasets.folder import save_dataset
from unifews.datasets.load import conform, load_dataset
from unifews.datasets.node_order import by_content, digest


def shuffled(dataset, order):
    """The nodes in another order, and no stored split."""
    return replace(dataset, graph=dataset.graph.permute(order), x=dataset.x[order], y=dataset.y[order], splits=())


def test_the_digest_changes_with_the_order_only():
    dataset = tiny(sparse=True)
    order = np.random.default_rng(3).permutation(24)
    other = shuffled(dataset, order)
    assert digest(dataset) != digest(other)
    assert digest(shuffled(other, np.argsort(order))) == digest(dataset)
    assert digest(replace(dataset, x=dataset.x * 2)) == digest(dataset)


def test_an_unknown_order_is_noted_and_the_known_one_is_not(monkeypatch):
    dataset = tiny(sparse=True)
    record = known(monkeypatch, record_for(dataset, order=digest(dataset)))
    assert not [note for note in conform(dataset, record, "a test").about.notes if "order" in note]
    notes = conform(shuffled(dataset, np.arange(24)[::-1]), record, "a test").about.notes
    assert "its nodes are in another order than the known one of tiny" in notes[-1]


def test_sorted_by_content_whatever_the_order_was():
    dataset = tiny(sparse=True)
    expected = by_content(dataset)
    assert digest(by_content(expected)) == digest(expected)
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(24)
        other = by_content(shuffled(dataset, order))
        assert digest(other) == digest(expected)
        assert (other.x != expected.x).nnz == 0


def test_stored_splits_follow_their_nodes():
    dataset = tiny(sparse=True)
    found = by_content(dataset)
    for before, after in zip(dataset.splits, found.splits, strict=True):
        for one, other in zip(before, after, strict=True):
            rows = [sorted(map(tuple, data.x[part].toarray())) for data, part in ((dataset, one), (found, other))]
            assert rows[0] == rows[1]


@needs_data
@pytest.mark.parametrize("name", ["cora", "cora-lcc"])
def test_cora_from_a_shuffled_copy_draws_the_same_split(tmp_path, monkeypatch, name):
    monkeypatch.setenv("UNIFEWS_DATA", str(FOLDER))
    expected = load_dataset(name)
    monkeypatch.delenv("UNIFEWS_DATA")
    order = np.random.default_rng(5).permutation(expected.num_nodes)
    save_dataset(shuffled(expected, order), tmp_path / name)
    found = load_dataset(name, cache=tmp_path)
    assert_same(found, replace(expected, splits=()))
    for ours, theirs in zip(found.split(42), expected.split(42), strict=True):
        np.testing.assert_array_equal(ours, theirs)
