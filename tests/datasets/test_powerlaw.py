"""Generated graphs: what was asked for is what comes out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unifews.core import csr
from unifews.core.diffusion import Diffusion
from unifews.datasets import powerlaw as module
from unifews.datasets.powerlaw import powerlaw
from unifews.errors import InputError


@pytest.fixture(scope="module")
def sample():
    return powerlaw(20_000, 300_000, seed=7_919)


def edge_homophily(data):
    source, target = data.graph.to_edge_index()
    return (data.y[source] == data.y[target]).mean()


def probe(x, y):
    """Accuracy of a ridge regression onto the classes, on the nodes it has not seen."""
    half = len(y) // 2
    x = np.c_[(x - x.mean(axis=0)) / x.std(axis=0), np.ones(len(y))]
    onehot = np.eye(y.max() + 1)[y]
    weight = np.linalg.solve(x[:half].T @ x[:half] + np.eye(x.shape[1]), x[:half].T @ onehot[:half])
    return ((x[half:] @ weight).argmax(axis=1) == y[half:]).mean()


def energy(x, axes):
    """Share of ‖x‖² on the leading axes."""
    values = np.linalg.eigvalsh(x.T.astype(np.float64) @ x)[::-1]
    return (values.cumsum() / values.sum())[np.array(axes) - 1]


@pytest.mark.parametrize("n, m", [(2, 2), (50, 200), (300, 3_001), (1_000, 20_000), (5_000, 5_000)])
def test_the_number_of_edges_is_met(n, m):
    graph = powerlaw(n, m, num_features=3, num_classes=2, seed=31).graph
    assert graph.num_nodes == n and graph.num_edges == m - m % 2
    assert csr.examine(graph.indptr, graph.indices).is_canonical


@given(st.integers(2, 30), st.integers(2, 200), st.integers(1, 4), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_the_smallest_graphs_are_drawn_or_refused(n, m, classes, homophily, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_EDGES", 500)
        try:
            data = powerlaw(n, m, num_features=2, num_classes=min(classes, n), homophily=homophily, seed=seed)
        except InputError as error:
            assert "too dense" in str(error)
        else:
            assert data.graph.num_edges == m - m % 2 and csr.examine(data.graph.indptr, data.graph.indices).is_canonical
            assert data.y.min() >= 0 and data.y.max() < classes and np.isfinite(data.x).all()


def test_the_graph_is_undirected(sample):
    assert np.array_equal(sample.graph.transpose().indices, sample.graph.indices)
    assert sample.graph.is_symmetric


def test_degrees_have_a_heavy_tail(sample):
    degree = np.sort(sample.graph.degree)[::-1]
    assert degree[0] > 15 * degree.mean()
    # Degrees of a power law γ fall with rank r like r^(-1/(γ-1)), here -2/3.
    rank = np.arange(200, 4_000)
    slope = np.polyfit(np.log(rank), np.log(degree[rank]), 1)[0]
    assert -0.8 < slope < -0.55


@pytest.mark.parametrize("homophily", [0.0, 0.1, 0.5, 0.7, 0.9, 1.0])
@pytest.mark.parametrize("classes", [2, 5])
def test_the_homophily_of_the_labels_is_met(homophily, classes):
    data = powerlaw(8_000, 80_000, num_features=2, num_classes=classes, homophily=homophily, seed=53)
    assert edge_homophily(data) == pytest.approx(homophily, abs=0.03)


def test_one_class_and_one_feature_are_enough():
    data = powerlaw(100, 400, num_features=1, num_classes=1, seed=59)
    assert data.x.shape == (100, 1) and not data.y.any()


def test_classes_are_of_like_size(sample):
    size = np.bincount(sample.y, minlength=16)
    assert len(size) == 16 and size.min() > 0.8 * size.max()


def test_neighbours_tell_the_class_better_than_features_and_nobody_tells_it_perfectly(sample):
    averaged = Diffusion(sample.graph, 0).to_scipy() @ sample.x
    alone, together = probe(sample.x, sample.y), probe(averaged, sample.y)
    assert 4 / 16 < alone < together < 0.93


def test_the_energy_of_the_features_is_spread_like_arxivs():
    # Shares of ‖X‖² on the leading axes of the 128 features of arxiv-sub, measured once.
    axes, arxiv = [1, 2, 4, 8, 16, 32, 64], [0.028, 0.045, 0.072, 0.115, 0.186, 0.310, 0.546]
    x = powerlaw(20_000, 40_000, seed=61).x
    assert x.dtype == np.float32
    np.testing.assert_allclose(energy(x, axes), arxiv, atol=0.03)


def test_a_steeper_spectrum_gathers_the_energy_on_fewer_axes():
    flat, steep = (powerlaw(2_000, 4_000, spectrum=s, seed=67).x for s in (0.0, 1.5))
    assert energy(steep, [8]) > 0.6 > 0.2 > energy(flat, [8])


def test_the_same_seed_gives_the_same_bits_whatever_the_threads(monkeypatch):
    def draw(seed):
        return powerlaw(3_000, 30_000, num_features=5, seed=seed)

    monkeypatch.setattr(module, "_EDGES", 1_000)
    first, other = draw(71), draw(73)
    monkeypatch.setattr(module.os, "cpu_count", lambda: 1)
    again = draw(71)
    assert np.array_equal(first.graph.indices, again.graph.indices)
    assert np.array_equal(first.x, again.x) and np.array_equal(first.y, again.y)
    assert not np.array_equal(first.graph.indices, other.graph.indices)


def test_progress_is_told():
    heard = []
    powerlaw(1_000, 4_000, num_features=2, seed=79, progress=lambda *event: heard.append(event))
    assert ("edges", 1, 1) in heard and ("features", 1, 1) in heard


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(num_nodes=1), "`num_nodes` must be between 2"),
        (dict(num_edges=0), "`num_edges` must be at least 2"),
        (dict(num_edges=9_000), "too dense for a power law on 100 nodes"),
        (dict(num_features=0), "`num_features`"),
        (dict(num_classes=101), "`num_classes`"),
        (dict(exponent=2.0), "`exponent` must be above 2"),
        (dict(homophily=70), r"`homophily` must be in \[0, 1\].*got 70"),
        (dict(spectrum=-1.0), "`spectrum`"),
        (dict(seed=-1), "`seed`"),
    ],
)
def test_a_graph_that_cannot_be_drawn_is_explained(change, message):
    with pytest.raises(InputError, match=message):
        powerlaw(**{"num_nodes": 100, "num_edges": 400, **change})
