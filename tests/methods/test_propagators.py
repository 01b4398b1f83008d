"""The contract of `Propagator`, for every method and every model that it works on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from method_cases import PAIRS, PROPAGATORS, graph_of, learnable, words
from method_cases import propagated as propagated_by
from real_data import FOLDER
from scipy.sparse import csr_array

import unifews as uf
from unifews.errors import GraphError, InputError, ShapeError
from unifews.methods import registry
from unifews.methods.base import Propagator
from unifews.methods.selection import TOLERANCE

pytestmark = pytest.mark.slow

GRAPH, X = graph_of(), words()
QUICK = {"width": 16, "batch": 32, "epochs": 12, "patience": 0, "lr": 1e-2}
ON_CORA = {"width": 64, "epochs": 25}

every_pair = pytest.mark.parametrize("name, model", PAIRS)
every_method = pytest.mark.parametrize("name", PROPAGATORS)


def propagated(name, model, graph=GRAPH, x=X, hops=6, **settings):
    return propagated_by(name, graph, x, model, hops, **settings)


@every_method
def test_it_fulfils_the_contract_and_describes_itself(name):
    method = registry.resolve(name)
    assert isinstance(method, Propagator) and type(method).__doc__ and method.propagate.__doc__
    assert method.card.paper and method.card.prunes and set(method.card.backbones) <= {"sgc", "appnp"}


@every_pair
def test_the_same_seed_gives_the_same_bits(name, model):
    one, two = (propagated(name, model, edge_sparsity=0.5, seed=7) for _ in range(2))
    assert np.array_equal(one.embedding, two.embedding)
    assert [hop.kept for hop in one.trace.hops] == [hop.kept for hop in two.trace.hops]


@every_pair
@pytest.mark.parametrize("settings", [{}, {"threshold": 0.05}, {"edge_sparsity": 0.4}])
def test_counts_are_whole_and_agree(name, model, settings):
    out = propagated(name, model, **settings)
    features = X.shape[1]
    assert out.embedding.shape == X.shape and out.embedding.dtype == np.float32 and np.isfinite(out.embedding).all()
    assert sum(hop.dense_macs for hop in out.trace.hops) == 6 * GRAPH.num_edges * features
    for hop in out.trace.hops:
        assert all(type(count) is int for count in (hop.entries, hop.kept, hop.zeros, hop.macs, hop.zero_macs))
        width = hop.dense_macs // hop.entries  # features of one entry
        assert hop.macs == hop.kept * width and hop.zero_macs == hop.zeros * width
    assert out.trace.macs == sum(hop.macs for hop in out.trace.hops) and out.trace.seconds > 0


@every_pair
@pytest.mark.parametrize("sparsity", [0.3, 0.6, 0.9])
def test_a_sparsity_is_met_or_a_note_reports_the_difference(name, model, sparsity):
    graph, x = graph_of(500, 1500), words(500, 24)
    try:
        trace = propagated(name, model, graph, x, 10, edge_sparsity=sparsity).trace
    except InputError as error:
        assert "cannot remove" in str(error) and "method='unifews'" in str(error)
        return
    met = abs(trace.edge_sparsity - sparsity) <= TOLERANCE
    assert met or any("instead of" in note for note in trace.notes)
    assert f"{sparsity:g}" in trace.requested


@every_pair
def test_features_of_any_kind(name, model):
    plain = propagated(name, model).embedding
    tensor = propagated(name, model, x=torch.from_numpy(X)).embedding
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(tensor.numpy(), plain)
    np.testing.assert_allclose(propagated(name, model, x=csr_array(X)).embedding, plain, atol=1e-6)


@every_method
def test_what_is_given_is_checked(name):
    model = registry.find(name).card.backbones[0]
    with pytest.raises(ShapeError, match="rows but the graph has"):
        propagated(name, model, x=X[:-1])
    with pytest.raises(GraphError, match="build one with"):
        propagated(name, model, graph=np.eye(3))
    with pytest.raises(InputError, match="edge_sparsity"):
        propagated(name, model, edge_sparsity=50)
    with pytest.raises(InputError, match="got both"):
        propagated(name, model, edge_sparsity=0.5, threshold=0.1)
    with pytest.raises(InputError, match="not on"):
        propagated(name, uf.Polynomial([0.5, 0.5]), hops=None)


@every_method
def test_progress_ends_at_all(name):
    seen = []
    propagated(name, registry.find(name).card.backbones[0], progress=lambda *step: seen.append(step))
    assert seen and seen[-1][0] == seen[-1][1]


@every_pair
def test_a_model_is_trained_and_repeats_its_scores(name, model):
    data = learnable()
    run = uf.train(data, model, name, edge_sparsity=0.3, hops=4, **QUICK)
    assert run.accuracy.test > 60  # of three classes
    split = data.split(run.spec.seed, None)
    with torch.no_grad():
        right = run.model(data.x, data.graph).argmax(1).numpy()[split.test] == data.y[split.test]
    assert 100 * right.mean() == pytest.approx(run.accuracy.test)
    assert run.trace.layers and run.spec.method == name


@pytest.fixture(scope="module")
def without_edges():
    return uf.train(FOLDER / "cora-lcc.npz", "mlp", **ON_CORA).accuracy.test


@pytest.mark.data
@pytest.mark.skipif(not FOLDER.is_dir(), reason="the real graphs are not on this machine (UNIFEWS_DATA)")
class TestOnCora:
    @pytest.fixture(autouse=True)
    def folder(self, monkeypatch):
        monkeypatch.setenv("UNIFEWS_DATA", str(FOLDER))

    @pytest.mark.parametrize("name, model", [pair for pair in PAIRS if pair[0] in ("ndls", "nigcn")])
    def test_it_is_better_than_a_model_that_sees_no_edges(self, name, model, without_edges):
        assert uf.train("cora-lcc", model, name, **ON_CORA).accuracy.test > without_edges + 4

    @pytest.mark.parametrize("name, model", [pair for pair in PAIRS if pair[0] not in ("ndls", "nigcn")])
    def test_so_are_those_that_push(self, name, model, without_edges):
        """At five hops, with the same settings: twenty take four times as long."""
        assert uf.train("cora-lcc", model, name, hops=5, **ON_CORA).accuracy.test > without_edges + 4

    @pytest.mark.parametrize("model, thr, share", [("sgc", 1e-3, 0.459), ("appnp", 1e-5, 0.326)])
    def test_the_authors_push_multiplies_as_often_as_theirs(self, model, thr, share):
        """Measured with their compiled code, of 20 · 12,623 · 1,433 products."""
        data = uf.load_dataset("cora-lcc")
        trace = propagated_by(f"unifews-push:thr={thr}", data.graph, data.x, model).trace
        (note,) = (note for note in trace.notes if "with themselves" in note)  # theirs are counted with loops
        loops = int(note.split()[0].replace(",", ""))
        assert trace.macs + loops == pytest.approx(share * 20 * 12_623 * 1_433, rel=0.02)
