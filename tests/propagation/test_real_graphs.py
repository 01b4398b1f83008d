"""What only real graphs show: bag-of-words features, hubs, isolated nodes. Read where they are, skipped where they are not."""

from __future__ import annotations

import numpy as np
import pytest
from real_data import FOLDER

import unifews as uf
from unifews.io.graphs import read_graph, read_matrix

SIZES = {"cora-lcc": (2_485, 10_138), "citeseer": (3_327, 9_104), "photo": (7_650, 238_162), "actor": (7_600, None)}

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="the real graphs are not on this machine (UNIFEWS_DATA)"),
]


def read(name):
    path = FOLDER / f"{name}.npz"
    return read_graph(path), read_matrix(path, dense=False)


@pytest.fixture(
    scope="module",
    params=["cora-lcc", "photo", *(pytest.param(name, marks=pytest.mark.slow) for name in ("citeseer", "actor"))],
)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def real(name):
    return read(name)


@pytest.fixture(scope="module")
def exact(real):
    return uf.propagate(*real).embedding


def test_files_hold_the_graphs_they_say(name, real):
    graph, x = real
    nodes, edges = SIZES[name]
    assert graph.num_nodes == nodes == x.shape[0] and graph.is_symmetric
    assert edges is None or graph.num_edges == edges


@pytest.mark.parametrize("sparsity", [0.9, 0.95])
def test_the_share_asked_for_is_met_and_the_embedding_stays_close(real, exact, sparsity):
    out = uf.propagate(*real, edge_sparsity=sparsity)
    assert out.trace.edge_sparsity == pytest.approx(sparsity, abs=0.01)
    assert out.trace.macs < 1.02 * (1 - sparsity) * out.trace.dense_macs + 1e4
    # Bag-of-words features are mostly noise to a propagation; that half of the norm stays is what accuracy needs.
    assert np.linalg.norm(out.embedding - exact) < 0.75 * np.linalg.norm(exact)


@pytest.mark.parametrize("scheme", ["appnp", "sgc"])
def test_half_means_half_on_any_number_of_features(real, scheme):
    assert uf.propagate(*real, scheme, edge_sparsity=0.5).trace.edge_sparsity == pytest.approx(0.5, abs=0.01)


def test_a_zero_threshold_gives_the_unpruned_embedding_of_a_bag_of_words():
    graph, x = read("cora-lcc")
    exact = uf.propagate(graph, x, "sgc", 5).embedding
    out = uf.propagate(graph, x, "sgc", 5, threshold=0.0, entries="feature", basis="input")
    np.testing.assert_allclose(out.embedding, exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())
    first = out.trace.hops[0]
    assert first.zeros + first.kept == first.entries and first.zeros > 0.9 * first.entries  # most words are absent
