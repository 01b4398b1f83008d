"""GenCAT graphs keep what they promise: exponent, class sizes, preferences, number of edges, and the seed."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from real_data import FOLDER
from scipy.optimize import minimize_scalar

import unifews as uf
from unifews.datasets.dataset import Dataset
from unifews.datasets.gencat import Statistics, cora_like, cora_statistics, gencat, statistics
from unifews.errors import InputError, ShapeError

CORA = cora_statistics(8)


def exponent(degree, least, most):
    """The exponent of a power law between `least` and `most` under which these degrees are likeliest."""
    tail = degree[degree >= least]
    low, high = least - 0.5, most + 0.5

    def unlikely(a):
        return a * np.log(tail).sum() - len(tail) * np.log((a - 1) / (low ** (1 - a) - high ** (1 - a)))

    return minimize_scalar(unlikely, bounds=(1.05, 6), method="bounded").x


def accuracy(x, y):
    """Of a ridge classifier: half of the nodes to fit on, half to judge."""
    train, test = np.split(np.random.default_rng(5).permutation(len(y)), [len(y) // 2])
    x = (x - x[train].mean(axis=0)).astype(np.float64)
    gram = x[train].T @ x[train]
    weight = np.linalg.solve(
        gram + 0.3 * np.trace(gram) / len(gram) * np.eye(len(gram)), x[train].T @ np.eye(y.max() + 1)[y[train]]
    )
    return (np.argmax(x[test] @ weight, axis=1) == y[test]).mean()


class TestGraph:
    @pytest.mark.parametrize("alpha", [2.1, 2.9])
    @pytest.mark.parametrize("edges", [None, 50_000])
    def test_degrees_have_the_exponent_asked_for(self, alpha, edges):
        degree = gencat(10_000, edges, alpha, features=2, seed=313).graph.degree
        least = 3 if edges is None else int(degree.min()) + 2
        assert exponent(degree, least, 1_000) == pytest.approx(alpha, abs=0.12)
        assert degree.max() <= 1.2 * 1_000

    @pytest.mark.parametrize("alpha", [2.1, 2.9])
    def test_the_authors_loop_ends_at_the_same_exponent_whatever_was_asked_for(self, alpha):
        data = gencat(alpha=alpha, features=2, compat=True, seed=313)
        assert exponent(data.graph.degree, 2, 100) == pytest.approx(1.5, abs=0.15)
        assert 1.4 < float(data.about.notes[0].split("exponent ")[1].split()[0]) < 1.6
        sizes = np.bincount(data.y)
        assert sizes.max() - sizes.min() <= 1  # not Cora's

    @pytest.mark.parametrize("edges", [3_000, 5_000, 20_000])
    def test_the_number_of_edges_is_met_and_every_node_has_one(self, edges):
        graph = gencat(edges=edges, alpha=2.5, features=2).graph
        assert graph.num_edges == 2 * edges and graph.is_symmetric and graph.degree.min() >= 1

    def test_no_edge_is_a_loop_or_a_copy(self):
        # The graph would have dropped or merged them, and counted that.
        for compat in (False, True):
            graph = gencat(features=2, compat=compat).graph
            assert graph.dropped_self_loops == graph.merged_duplicates == 0

    def test_class_sizes_are_those_given(self):
        assert np.array_equal(np.bincount(gencat(2485, 5069, features=2).y), [344, 214, 406, 726, 379, 285, 131])
        assert np.array_equal(np.bincount(gencat(1000, classes=4, features=2).y), [250] * 4)

    def test_neighbours_are_of_the_classes_preferred(self):
        found = statistics(gencat(10_000, 50_000, 2.5, features=2, seed=59))
        assert np.abs(np.diag(found.preference) - np.diag(CORA.preference)).max() < 0.1
        assert np.abs(found.preference - CORA.preference).mean() < 0.02

    def test_a_class_may_avoid_itself(self):
        apart = Statistics(np.full(2, 0.5), np.array([[0.1, 0.9], [0.9, 0.1]]), np.full((2, 2), 0.05))
        data = gencat(2_000, 8_000, 2.5, statistics=apart, features=2)
        source, target = data.graph.to_edge_index()
        assert (data.y[source] == data.y[target]).mean() < 0.3

    def test_the_seed_decides(self):
        first, again, other = (gencat(features=5, seed=seed) for seed in (83, 83, 89))
        assert np.array_equal(first.graph.indices, again.graph.indices) and np.array_equal(first.x, again.x)
        assert np.array_equal(first.y, again.y) and not np.array_equal(first.y, other.y)
        assert not np.array_equal(first.x, other.x)


class TestFeatures:
    def test_more_noise_makes_classes_harder_to_tell(self):
        clear, noisy = (gencat(sigma=sigma, features=200, seed=19) for sigma in (0.1, 1.0))
        assert accuracy(clear.x, clear.y) > accuracy(noisy.x, noisy.y) + 0.2

    def test_they_are_scaled_unless_asked_otherwise(self):
        x = gencat(features=20).x
        assert x.dtype == np.float32 and np.array_equal(x.min(axis=0), np.zeros(20)) and np.allclose(x.max(axis=0), 1)
        raw = gencat(features=20, scaled=False, sigma=2.0).x
        assert raw.std() == pytest.approx(2.0, rel=0.05)

    def test_attributes_are_those_of_the_classes(self):
        h = np.array([[0.8, 0.1], [0.1, 0.6]])
        like = Statistics(np.full(2, 0.5), np.array([[0.9, 0.1], [0.1, 0.9]]), np.full((2, 2), 0.05), h)
        data = gencat(4_000, 12_000, 2.5, statistics=like, attributes="bernoulli")
        assert sp.issparse(data.x) and set(data.x.data) == {1.0}
        assert np.abs(statistics(data).attributes - h).max() < 0.06


class TestCoraLike:
    def test_it_has_cora_s_counts(self):
        data = cora_like()
        assert (data.num_nodes, data.graph.num_edges, data.num_features, data.num_classes) == (2485, 10_138, 1433, 7)
        assert data.x.sum() / data.num_nodes == pytest.approx(18.3, abs=1.5)
        assert "not Cora" in data.about.notes[0]

    def test_words_help_and_neighbours_help_more(self):
        data = cora_like()
        alone = accuracy(data.x.toarray(), data.y)
        together = accuracy(uf.propagate(data.graph, data.x, hops=10).embedding, data.y)
        assert 0.65 < alone < 0.82 and alone + 0.08 < together < 0.95

    @pytest.mark.data
    def test_its_constants_are_those_of_the_real_one(self):
        from unifews.io.graphs import read_graph, read_matrix

        folder = FOLDER
        path = folder / "cora-lcc.npz"
        if not path.is_file():
            pytest.skip("the real graphs are not on this machine (UNIFEWS_DATA)")
        real = statistics(Dataset("cora-lcc", read_graph(path), read_matrix(path, dense=False), np.load(path)["y"]))
        for name in ("sizes", "preference", "deviation"):
            assert np.abs(getattr(real, name) - getattr(CORA, name)).max() < 6e-4
        assert cora_statistics().attributes.mean() == pytest.approx(real.attributes.mean(), rel=0.1)


class TestStatistics:
    GRAPH = uf.Graph.from_edge_index([[0, 1, 1, 2, 3, 0], [1, 0, 2, 1, 0, 3]], 5)
    X = np.eye(5, 2, dtype=np.float32)

    def test_shares_of_neighbours(self):
        # 0 ~ 1, 3; 1 ~ 0, 2; 2 ~ 1; 3 ~ 0; node 4 stands alone and counts only for size.
        found = statistics(Dataset("five", self.GRAPH, self.X, np.array([0, 0, 1, 1, 1])))
        assert np.allclose(found.sizes, [0.4, 0.6])
        assert np.allclose(found.preference, [[0.5, 0.5], [1.0, 0.0]]) and np.allclose(found.deviation, 0)
        assert np.allclose(found.attributes, [[0.5, 0], [0.5, 0]])

    def test_unlabelled_nodes_are_left_out(self):
        found = statistics(Dataset("five", self.GRAPH, self.X, np.array([0, 0, 1, -1, -1])))
        assert np.allclose(found.sizes, [2 / 3, 1 / 3]) and np.allclose(found.preference[0], [0.75, 0.25])

    def test_what_cannot_be_measured(self):
        with pytest.raises(InputError, match="several labels"):
            statistics(Dataset("many", self.GRAPH, self.X, np.ones((5, 2), dtype=np.uint8)))
        with pytest.raises(InputError, match="class 1 of gap has no nodes"):
            statistics(Dataset("gap", self.GRAPH, self.X, np.array([0, 0, 2, 2, 2])))
        with pytest.raises(ShapeError, match=r"\[3, 3\]"):
            Statistics(np.ones(2), np.ones((3, 3)), np.ones((2, 2)))
        with pytest.raises(InputError, match="finite"):
            Statistics(np.ones(2), np.full((2, 2), np.nan), np.ones((2, 2)))


@pytest.mark.parametrize(
    "options, says",
    [
        (dict(nodes=5), "nodes"),
        (dict(nodes=50), "too few for 7 classes"),
        (dict(edges=0), "edges"),
        (dict(edges=100), "between"),
        (dict(edges=400_000), "between"),
        (dict(alpha=1.0), "alpha"),
        (dict(sigma=-1), "sigma"),
        (dict(sigma=float("nan")), "sigma"),
        (dict(features=0), "features"),
        (dict(classes=0), "classes"),
        (dict(seed=-1), "seed"),
        (dict(attributes="gaussian"), "'normal' or 'bernoulli'"),
        (dict(statistics=CORA, classes=3), "leave `classes` out"),
    ],
)
def test_what_cannot_be_generated_is_told(options, says):
    with pytest.raises(InputError, match=says):
        gencat(**options)
