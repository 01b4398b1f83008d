"""Nodes of a named dataset are in one order, so a seed draws the same split of the same nodes from every source."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tiny import FOLDER, assert_same, known, needs_data, record_for, tiny

from unifews.datasets import node_order
from unifews.datasets.folder import save_dataset
from unifews.datasets.load import conform, load_dataset
from unifews.datasets.node_order import digest
from unifews.datasets.records import RECORDS


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


@needs_data
def test_a_cache_of_before_in_the_order_of_cora_content_is_brought_into_planetoid_s(tmp_path, monkeypatch):
    monkeypatch.setenv("UNIFEWS_DATA", str(FOLDER))
    expected = load_dataset("cora")
    monkeypatch.delenv("UNIFEWS_DATA")
    order = np.frombuffer(node_order.decompress(node_order.b85decode("".join(node_order._CORA))), dtype="<u2")
    note = "nodes in the order of cora.content, another than Planetoid's, and without the public split"
    old = shuffled(expected, np.argsort(order))
    save_dataset(replace(old, about=replace(old.about, notes=(note,))), tmp_path / "cora")
    found = load_dataset("cora", cache=tmp_path)
    assert_same(found, expected)
    assert found.about.notes == RECORDS["cora"].notes
    assert np.array_equal(load_dataset("cora-lcc", cache=tmp_path).split(42).train, _lcc(monkeypatch).split(42).train)


def _lcc(monkeypatch):
    monkeypatch.setenv("UNIFEWS_DATA", str(FOLDER))
    return load_dataset("cora-lcc")
