"""Columns propagated in groups, one after the other: the same definition, less memory, one budget."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp

import unifews as uf
from unifews import propagate
from unifews.propagation import planner


@pytest.fixture(scope="module")
def made():
    return uf.powerlaw(6_000, 60_000, num_features=100, num_classes=8, seed=11)


@pytest.fixture
def small_is_large(monkeypatch):
    monkeypatch.setattr(planner, "LARGE", 1)


@pytest.mark.parametrize("entries", ["block", "feature"])
@pytest.mark.parametrize("scheme", ["appnp", "sgc"])
def test_a_threshold_means_the_same_in_groups(made, monkeypatch, scheme, entries):
    common = dict(scheme=scheme, hops=5, threshold=0.02, entries=entries)
    whole = propagate(made.graph, made.x, **common)
    monkeypatch.setattr(planner, "LARGE", 1)
    groups = propagate(made.graph, made.x, **common)
    assert "2 groups" in groups.trace.notes[0] and not whole.trace.notes
    np.testing.assert_allclose(groups.coordinates, whole.coordinates, rtol=1e-3, atol=1e-3 * np.abs(whole.coordinates).max())
    for one, two in zip(groups.trace.hops, whole.trace.hops, strict=True):
        assert (one.entries, one.zeros, one.dense_macs) == (two.entries, two.zeros, two.dense_macs)
        assert one.kept == pytest.approx(two.kept, rel=1e-3)  # a rotation by fewer columns rounds otherwise
        assert one.macs == pytest.approx(two.macs, rel=1e-3)


@pytest.mark.parametrize("inherit", [False, True])
@pytest.mark.parametrize("scheme", ["appnp", "sgc"])
@pytest.mark.parametrize("sparsity", [0.3, 0.5, 0.9, 0.97])
def test_a_target_is_met_in_groups(made, small_is_large, scheme, sparsity, inherit):
    out = propagate(made.graph, made.x, scheme, 8, edge_sparsity=sparsity, inherit=inherit)
    assert out.trace.edge_sparsity == pytest.approx(sparsity, abs=0.01)
    assert len(out.trace.notes) == 1


@pytest.mark.parametrize("entries", ["block", "feature"])
@pytest.mark.parametrize("scheme", ["appnp", "sgc"])
@pytest.mark.parametrize("sparsity", [0.3, 0.5, 0.8])
def test_a_target_is_met_in_groups_of_features_that_are_mostly_zero_at_first(made, scheme, sparsity, entries):
    """A bag of words: hardly any products in the first hop, nearly all of them a few hops later."""
    x = sp.random_array((6_000, 300), density=0.004, rng=np.random.default_rng(2), dtype=np.float32, format="csr")
    out = propagate(made.graph, x, scheme, 8, edge_sparsity=sparsity, basis="input", entries=entries)
    first, last = out.trace.hops[0], out.trace.hops[-1]
    assert first.zeros > 0.9 * first.entries and last.zeros < first.zeros
    assert "3 groups" in out.trace.notes[0]
    assert out.trace.edge_sparsity == pytest.approx(sparsity, abs=0.03)


@pytest.mark.parametrize("scheme", ["appnp", "sgc"])
def test_groups_lose_no_more_than_one_threshold_for_all(made, monkeypatch, scheme):
    exact = propagate(made.graph, made.x, scheme, 10).embedding
    errors = []
    for large in (1 << 60, 1):
        monkeypatch.setattr(planner, "LARGE", large)
        errors.append(np.linalg.norm(propagate(made.graph, made.x, scheme, 10, edge_sparsity=0.8).embedding - exact))
    assert errors[1] <= 1.05 * errors[0]


def test_every_hop_in_groups_is_every_hop(made, small_is_large):
    common = dict(scheme="sgc", hops=3, edge_sparsity=0.8)
    out = propagate(made.graph, made.x, every_hop=True, **common)
    hops = out.hop_embeddings
    np.testing.assert_allclose(hops[0], made.x, atol=1e-4)
    np.testing.assert_allclose(hops[-1], out.embedding, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(out.coordinates, propagate(made.graph, made.x, **common).coordinates)


def test_progress_is_told_over_all_groups(made, small_is_large):
    seen = []
    propagate(made.graph, made.x, hops=3, edge_sparsity=0.9, progress=lambda done, steps: seen.append((done, steps)))
    assert seen == [(done, 6) for done in range(1, 7)]


def test_no_more_than_three_embeddings_stand_at_a_time(small_is_large):
    made = uf.powerlaw(40_000, 200_000, num_features=100, num_classes=8, seed=5)
    _ = made.graph.degree
    tracemalloc.start()
    try:
        _ = propagate(made.graph, made.x, hops=3, edge_sparsity=0.9).embedding
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 3 * made.x.nbytes


def test_whole_rows_and_relative_thresholds_need_all_columns(made, small_is_large):
    for options in ({"entries": "node", "edge_sparsity": 0.5}, {"relative_threshold": 0.5}):
        assert not propagate(made.graph, made.x, hops=2, **options).trace.notes
