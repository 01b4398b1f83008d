"""Models whose layers propagate: counts by hand, one pass for accuracy and cost, seeds that go on, links that are hidden."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from small import small, with_test_labels, without_times

import unifews as uf
from unifews.core.graph import Graph
from unifews.datasets.dataset import Dataset
from unifews.errors import InputError
from unifews.nn.models import MODELS
from unifews.training import layered
from unifews.training.ledger import Ledger
from unifews.training.links import LinkSplit, both_ways, check_links
from unifews.training.metrics import evaluate
from unifews.training.spec import TrainSpec, paper_form

DATA = small()
EDGES, N = DATA.graph.num_edges, 120
HOW = dict(width=16, epochs=12, patience=0, lr=1e-2)
BOTH = dict(edge_sparsity=0.5, weight_sparsity=0.7)


# ---------------------------------------------------------------------------------------------------------------- counts


@pytest.mark.parametrize("model", MODELS)
def test_every_model_learns_unpruned_and_pruned(model):
    for settings in ({}, BOTH):
        run = uf.train(DATA, model, **HOW | {"epochs": 30}, **settings)
        assert run.accuracy.test > 60  # a third of the nodes is of each class
        assert bool(run.trace.edge_sparsity) == bool(run.trace.weight_sparsity) == bool(settings)


@pytest.mark.slow
def test_thirty_two_layers_learn_too():
    run = uf.train(DATA, "gcnii", layers=32, **HOW | {"epochs": 40}, **BOTH, renormalize=False)
    assert run.accuracy.test > 60 and len(run.trace.hops) == 32
    assert run.trace.edge_sparsity == pytest.approx(0.5, abs=0.05)


def test_counts_of_an_unpruned_gcn():
    """Loops on neither side; the first layer multiplies on the narrower side of its weights: 12 features, not 16 units."""
    run = uf.train(DATA, "gcn", **HOW)
    assert run.trace.macs == run.trace.dense_macs == EDGES * 12 + EDGES * 3
    assert run.trace.transform_macs == run.trace.dense_transform_macs == N * (12 * 16 + 16 * 3)
    assert run.head == (12 * 16, 16 * 3) == run.seeds[0].kept and run.head_sparsity == 0


def test_counts_of_a_pruned_gcn():
    run = uf.train(DATA, "gcn", **HOW, **BOTH)
    kept = (55, 17)  # 72 of 192 + 48 weights stay: 192 (1/12 + 1/16)^¼ parts of them, and 48 (1/16 + 1/3)^¼ parts
    assert run.seeds[0].kept == kept and run.trace.transform_macs == N * sum(kept)
    assert run.trace.edge_sparsity == pytest.approx(0.5, abs=0.05)
    assert run.trace.macs == sum(hop.macs for hop in run.trace.hops)
    assert run.propagate_seconds == 0


def test_accuracy_and_cost_are_of_the_same_pass():
    run = uf.train(DATA, "sage", seed=331, **HOW, **BOTH)
    split = DATA.split(331)
    with torch.no_grad():
        scores = run.model(torch.from_numpy(DATA.x), torch.from_numpy(DATA.graph.to_edge_index())).numpy()
    for name in ("train", "val", "test"):
        part = getattr(split, name)
        assert evaluate("accuracy", scores[part], DATA.y[part]) == getattr(run.accuracy, name)
    again = uf.trace(run.model)
    assert (again.macs, again.transform_macs) == (run.trace.macs, run.trace.transform_macs)
    weights = [module.matrix for module in run.model.modules() if hasattr(module, "settle")]
    assert [int((weight != 0).sum()) for weight in weights] == list(run.seeds[0].kept)


def test_what_a_threshold_keeps_is_the_mean_over_seeds():
    run = uf.train(DATA, "gcn", seeds=3, edge_threshold=1.0, weight_threshold=0.4, entries="block", **HOW)
    traces = [seed.trace for seed in run.seeds]
    for i, hop in enumerate(run.trace.hops):
        assert hop.macs == round(np.mean([found.hops[i].macs for found in traces]))
    for i, layer in enumerate(run.trace.layers):
        assert layer.kept == round(np.mean([found.layers[i].kept for found in traces])) < layer.weights


@pytest.mark.parametrize("entries", ["unit", "feature", "block", "node"])
def test_every_kind_of_entry_meets_its_target(entries):
    run = uf.train(DATA, "gcn", edge_sparsity=0.6, entries=entries, **HOW | {"width": 64})
    assert run.trace.edge_sparsity == pytest.approx(0.6, abs=0.05)


# -------------------------------------------------------------------------------------------------------------- training


def test_only_passes_that_are_sparse_enough_count():
    run = uf.train(DATA, "gcn", weight_sparsity=0.7, weight_ramp=6, **HOW)
    assert run.seeds[0].epoch >= 5 and run.trace.weight_sparsity == pytest.approx(0.7, abs=0.01)
    assert not any("still being pruned" in note for note in run.trace.notes)


def test_later_epochs_only_remove_more_where_asked_for(monkeypatch):
    phases = []
    monkeypatch.setattr("unifews.nn.sparsify.set_schedule", lambda model, phase: phases.append(phase))
    uf.train(DATA, "gcn", settle=0.5, **HOW, **BOTH)
    assert phases == ["regrow"] * 6 + ["monotone-weights"] * 6
    phases.clear()
    uf.train(DATA, "gcn", **HOW, **BOTH)
    assert phases == ["regrow"] * 12  # unless asked for, what is missed may come back to the end


def test_the_learning_rate_is_not_lowered_while_weights_go():
    rates = []
    how = HOW | {"epochs": 40, "plateau": 1, "lr": 1e-4}
    uf.train(DATA, "gcn", weight_sparsity=0.9, weight_ramp=20, watch=lambda number, epoch: rates.append(epoch.lr), **how)
    assert set(rates[:19]) == {1e-4} and rates[-1] < 1e-4


def test_patience_ends_a_training_and_the_best_epoch_is_kept():
    seen = []
    run = uf.train(DATA, "gcn", watch=lambda number, epoch: seen.append(epoch.val), **HOW | {"epochs": 80, "patience": 3})
    assert run.seeds[0].epochs == min(80, run.seeds[0].epoch + 1 + 3)
    assert run.seeds[0].val == max(seen)


def test_same_settings_same_numbers_whatever_else_draws():
    torch.manual_seed(1)
    one = uf.train(DATA, "gat", seeds=2, **HOW, **BOTH)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    two = uf.train(DATA, "gat", seeds=2, watch=lambda number, epoch: torch.rand(3), **HOW, **BOTH)
    assert without_times(one.to_dict()) == without_times(two.to_dict())
    assert torch.equal(torch.get_rng_state(), state)


def test_labels_of_test_nodes_do_not_leak():
    split = DATA.split(42)
    other = with_test_labels(DATA, split, np.roll(DATA.y[split.test], 1))
    seen = []
    for data in (DATA, other):
        data = replace(data, splits=(split,))
        uf.train(data, "gcn", split="stored", watch=lambda number, epoch: seen.append((epoch.loss, epoch.val)), **HOW, **BOTH)
    assert seen[:12] == seen[12:]


@pytest.mark.parametrize("kind, metric", [("labels", "f1"), ("auc", "auc")])
def test_other_metrics(kind, metric):
    run = uf.train(small(kind), "gcn", **HOW | {"epochs": 80}, **BOTH)
    assert run.metric == metric and run.accuracy.test > 60


def test_the_node_lock_judges_with_more_edges_than_it_trains_on():
    how = dict(edge_sparsity=0.8, **paper_form("gcn"))
    honest, flattered = (uf.train(DATA, "gcn", node_lock=lock, **HOW, **how) for lock in (False, True))
    assert flattered.trace.hops[0].macs > honest.trace.hops[0].macs  # and they are counted


def test_sparse_features_are_fed_as_they_are(monkeypatch):
    few = np.where(np.random.default_rng(337).random((N, 200)) < 0.01, np.float32(1), np.float32(0))
    few[np.arange(N), DATA.y] = 1
    wide = Dataset("wide", DATA.graph, csr_array(few), DATA.y)
    assert layered.features(wide).layout == torch.sparse_csr
    assert layered.features(wide, sparse=False).layout == layered.features(DATA).layout == torch.strided
    one = uf.train(wide, "gcn", **HOW, **BOTH)
    two = uf.train(replace(wide, x=few), "gcn", **HOW, **BOTH)
    assert one.trace.macs == two.trace.macs and one.accuracy.test == pytest.approx(two.accuracy.test, abs=5)
    assert uf.train(wide, "gin", **HOW).accuracy.test > 50


@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_sparse_features_meet_the_weights_first_and_are_counted_so(model):
    few = np.where(np.random.default_rng(347).random((N, 6)) < 0.1, np.float32(1), np.float32(0))
    run = uf.train(Dataset("narrow", DATA.graph, csr_array(few), DATA.y), model, width=16, seeds=1, epochs=2)
    assert run.trace.edge_sparsity == 0 and run.trace.hops[0].width == 16  # not 6, which would be narrower


# ---------------------------------------------------------------------------------------------------------------- record


def test_the_record_is_json_and_says_it_all():
    run = uf.train(DATA, "gcnii", seeds=2, seed=313, **HOW, **BOTH)
    record = json.loads(json.dumps(run.to_dict(), allow_nan=False))
    assert record == run.to_dict()
    assert TrainSpec.of(record["spec"]) == run.spec and record["id"] == run.id == run.spec.id(DATA)
    assert [seed["macs"] for seed in record["seeds"]] == [seed.trace.macs for seed in run.seeds]
    assert [hop["kind"] for hop in record["trace"]["hops"]] == ["GCN2Conv"] * 2
    assert record["trace"]["mean_edge_sparsity"] == run.trace.mean_edge_sparsity


def test_an_interrupted_run_goes_on_with_the_next_seed(tmp_path):
    whole = uf.train(DATA, "gcn", seeds=3, **HOW, **BOTH)

    def stop(number, epoch):
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        uf.train(DATA, "gcn", seeds=3, ledger=tmp_path, watch=stop, **HOW, **BOTH)
    seen = set()
    run = uf.train(DATA, "gcn", seeds=3, ledger=tmp_path, watch=lambda number, epoch: seen.add(number), **HOW, **BOTH)
    assert seen == {2}
    assert without_times(run.to_dict()) == without_times(whole.to_dict())
    assert [without_times(record) for record in Ledger(tmp_path).records()] == [without_times(whole.to_dict())]


# ------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize("model", ["sage", "gat", "gin"])
def test_edge_weights_that_a_model_has_no_place_for(model):
    weighted = replace(DATA, graph=Graph.from_scipy(DATA.graph.to_scipy() * 2))
    with pytest.raises(InputError, match="takes no edge weights"):
        uf.train(weighted, model, **HOW)
    assert uf.train(weighted, "gcn", **HOW).accuracy.test > 50


@pytest.mark.parametrize("kind", [np.asarray, csr_array])
def test_features_that_are_no_numbers(kind):
    x = DATA.x.copy()
    x[3, 4], x[5, :2] = np.nan, np.inf
    with pytest.raises(InputError, match="the features of small hold 3 NaN or infinite values, the first in row 3 "):
        uf.train(replace(DATA, x=kind(x)), "gcn", **HOW)


def test_a_learning_rate_that_leads_astray():
    with pytest.raises(InputError, match="training diverged"):
        uf.train(DATA, "gcn", **HOW | {"lr": 1e30})


# ----------------------------------------------------------------------------------------------------------------- links


def pairs_of(tensor):
    return set(map(tuple, tensor.T.tolist()))


def test_hidden_edges_are_apart_and_pairs_without_one_have_none():
    split = LinkSplit.of(DATA.graph, 347)
    edges = {tuple(edge) for edge in DATA.graph.to_edge_index().T.tolist() if edge[0] < edge[1]}
    parts = [pairs_of(part) for part in (split.train, split.val, split.test)]
    assert set.union(*parts) == edges and sum(map(len, parts)) == len(edges)
    assert [len(part) for part in parts[1:]] == [int(0.05 * len(edges)), int(0.1 * len(edges))]
    for part, without in zip(parts, (split.train_without, split.val_without, split.test_without), strict=True):
        assert without.shape[1] == len(part) and not pairs_of(without) & edges
        assert bool((without[0] < without[1]).all())
    assert pairs_of(LinkSplit.of(DATA.graph, 347).test) == parts[2] != pairs_of(LinkSplit.of(DATA.graph, 349).test)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, BOTH, {"edge_sparsity": 0.5, "entries": "node"}], ids=["unpruned", "unit", "node"])
def test_links_are_found(settings):
    run = uf.train(DATA, "gcn", task="links", seeds=2, dropout=0.2, **HOW | {"epochs": 30}, **settings)
    assert run.metric == "auc" and run.accuracy.test > 55
    assert len(run.trace.hops) == 3 and run.to_dict()["metric"] == "auc"
    assert bool(run.trace.edge_sparsity) == bool(settings)


def test_the_test_score_of_links_is_that_of_training_and_validation_edges():
    run = uf.train(DATA, "gcn", task="links", seed=353, edge_sparsity=0.5, entries="node", **HOW)
    split = LinkSplit.of(DATA.graph, 353)
    pairs, there = torch.cat([split.test, split.test_without], 1), np.repeat([1, 0], split.test.shape[1])[:, None]
    later = both_ways(torch.cat([split.train, split.val], 1))
    with torch.no_grad():
        logits = run.model(torch.from_numpy(DATA.x), later, pairs)
    assert evaluate("auc", logits[:, None].numpy(), there) == run.accuracy.test
    assert uf.trace(run.model).hops[0].edges == later.shape[1]
    removed = {(int(key) % N, int(key) // N) for key in run.model.encoder.convs[0].removed}
    assert removed <= pairs_of(both_ways(split.train))  # by their ends: an edge that came later is never among them


@pytest.mark.parametrize(
    "graph, sentence",
    [
        (Graph.from_edge_index(np.array([[0, 1], [1, 2]]), 3), "is directed"),
        (Graph.from_edge_index(np.array([[0], [1]]), 3).undirected(), "has 1 edges; links need at least 20"),
        (Graph.from_scipy(DATA.graph.to_scipy() * 2), "have weights"),
        (Graph.from_scipy(csr_array(1 - np.eye(9))), "has an edge between most of its pairs"),
    ],
    ids=["directed", "few", "weighted", "full"],
)
def test_graphs_without_links_to_hide(graph, sentence):
    with pytest.raises(InputError) as error:
        check_links("mine", graph)
    assert sentence in str(error.value)
