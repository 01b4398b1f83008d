"""`train`: counts that can be counted by hand, a record that says it all, a model that repeats its score."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small import QUICK, small, with_test_labels, without_times

import unifews as uf
from unifews.core.graph import Graph
from unifews.datasets.dataset import About, Dataset, Split
from unifews.errors import FileFormatError, InputError, UnknownNameError
from unifews.training import api
from unifews.training.ledger import Ledger
from unifews.training.metrics import evaluate

pytestmark = pytest.mark.slow

DATA = small()
HOW = dict(hops=3, recipe=QUICK)
BOTH = dict(edge_sparsity=0.5, weight_sparsity=0.7)


# ---------------------------------------------------------------------------------------------------------------- counts


@pytest.mark.parametrize("model, hops", [("appnp", 3), ("sgc", 2), ("mlp", 0)])
def test_counts_of_an_unpruned_run(model, hops):
    run = uf.train(DATA, model, **HOW | {"hops": max(hops, 1)})
    edges, n, weights = DATA.graph.num_edges, 120, 12 * 16 + 16 * 3
    assert run.trace.dense_macs == hops * edges * 12 and len(run.trace.hops) == hops
    assert run.trace.macs == run.trace.dense_macs
    assert run.trace.edge_sparsity == run.trace.weight_sparsity == 0
    assert run.trace.transform_macs == run.trace.dense_transform_macs == n * weights
    assert run.seeds[0].kept == (12 * 16, 16 * 3)
    assert run.accuracy.test > 50  # it learns: a third of the nodes is of each class


@pytest.mark.parametrize("model", ["appnp", "sgc"])
@pytest.mark.usefixtures("estimates_on_any_size")
def test_a_run_to_an_allowed_error(model):
    """The head learns from the embedding whose hops, products and error the record has."""
    run = uf.train(DATA, model, seeds=2, **HOW | {"hops": 20}, max_error=0.1)
    scheme = uf.Appnp() if model == "appnp" else uf.Sgc(skip="diagonal")
    alone = uf.propagate(DATA.graph, DATA.x, scheme, 20, max_error=0.1)
    assert alone.plan.method != "unpruned" and 0 < run.trace.estimated_error == alone.error <= 0.1
    assert [hop.macs for hop in run.trace.hops] == [hop.macs for hop in alone.trace.hops]
    assert run.trace.macs == max(alone.plan.hops) * DATA.graph.num_edges * 12 < run.trace.dense_macs
    rows = torch.from_numpy(alone.embedding)
    assert torch.equal(run.model(DATA.x, DATA.graph), run.model.head(rows))
    record = run.to_dict()
    assert record["spec"]["max_error"] == 0.1 and record["trace"]["estimated_error"] == alone.error
    assert any(str(alone.plan) in note for note in record["trace"]["notes"])
    assert f"estimated error {alone.error:.2g}; " in str(run) and run.accuracy.test > 50
    unpruned = uf.train(DATA, model, seeds=2, **HOW | {"hops": 20})
    assert "estimated_error" not in unpruned.to_dict()["trace"] and "error" not in str(unpruned)


@pytest.mark.usefixtures("estimates_on_any_size")
def test_options_of_an_allowed_error_reach_the_propagation():
    run = uf.train(DATA, **HOW | {"hops": 20}, max_error=0.1, degree=3, precision="float32", error_norm="frobenius")
    alone = uf.propagate(DATA.graph, DATA.x, max_error=0.1, degree=3, precision="float32", error_norm="frobenius")
    assert run.trace.estimated_error == alone.error and run.trace.notes == alone.trace.notes


def test_counts_of_a_pruned_run():
    run = uf.train(DATA, seeds=3, **HOW, **BOTH)
    trace, inputs = run.trace, run.model.head.layers[0].in_features
    assert trace.macs == sum(hop.macs for hop in trace.hops) < trace.dense_macs == 3 * DATA.graph.num_edges * 12
    sizes = [inputs * 16, 16 * 3]
    kept = tuple(size - round(0.7 * size) for size in sizes)
    assert [seed.kept for seed in run.seeds] == [kept] * 3
    assert [layer.kept for layer in run.model.head.linears()] == list(kept)
    assert [layer.macs for layer in trace.layers] == [120 * k for k in kept]
    assert trace.transform_macs == 120 * sum(kept) and trace.dense_transform_macs == 120 * sum(sizes)
    assert trace.weight_sparsity == pytest.approx(1 - sum(kept) / sum(sizes))
    assert tuple(run.model.head.trace(120)) == trace.layers
    alone = uf.propagate(DATA.graph, DATA.x, uf.Appnp(), 3, edge_sparsity=0.5).trace
    assert [(hop.kept, hop.macs, hop.threshold) for hop in trace.hops] == [(h.kept, h.macs, h.threshold) for h in alone.hops]


def test_axes_that_a_head_is_not_fed_count_as_removed_weights():
    """12 features on 3 axes and the stationary one: 16·4 + 16·3 weights of 16·12 + 16·3 are left before any is pruned."""
    full, own = 16 * 12 + 16 * 3, 16 * 4 + 16 * 3
    runs = {
        (sparsity, reference): uf.train(
            DATA, edge_sparsity=0.8, rank=3, weight_sparsity=sparsity, weight_reference=reference, **HOW
        )
        for sparsity, reference in ((None, "unpruned"), (0.5, "unpruned"), (0.7, "unpruned"), (0.5, "head"))
    }
    kept = {how: sum(run.seeds[0].kept) for how, run in runs.items()}
    assert kept[None, "unpruned"] == kept[0.5, "unpruned"] == own  # less than half already: nothing is left to remove
    assert kept[0.7, "unpruned"] == pytest.approx(0.3 * full, abs=2) and kept[0.5, "head"] == pytest.approx(own / 2, abs=2)
    for how, run in runs.items():
        assert run.trace.weight_sparsity == pytest.approx(1 - kept[how] / full)
        assert run.head_sparsity == run.to_dict()["head"]["sparsity"] == pytest.approx(1 - kept[how] / own)
        assert run.head == (16 * 4, 16 * 3)
        assert run.trace.transform_macs == 120 * kept[how] and run.trace.dense_transform_macs == 120 * full
    assert runs[0.5, "head"].trace.notes[-1] == (
        "the head gets 4 principal components of 12 features: 76.7% of the unpruned model's weights are removed, "
        "50.0% of the head's own"
    )
    assert not any("the head gets" in note for note in uf.train(DATA, weight_sparsity=0.5, **HOW).trace.notes)


@pytest.mark.parametrize(
    "settings, axes",
    [
        (dict(model="sgc", edge_sparsity=0.5), 100),
        (dict(model="sgc", edge_sparsity=0.9), 48),  # never fewer
        (dict(model="sgc", edge_sparsity=0.5, rank=30), 30),
        (dict(model="sgc", edge_sparsity=0.5, skip="identity"), 200),  # a node keeps its own features: all axes matter
        (dict(model="appnp", edge_sparsity=0.5), 200),
        (dict(model="sgc", edge_threshold=0.01), 200),
        (dict(model="sgc", edge_sparsity=0.5, basis="input"), None),
    ],
)
def test_sgc_meets_a_target_by_leaving_axes_out(settings, axes):
    x = np.random.default_rng(353).normal(size=(120, 200)).astype(np.float32)
    trace = uf.train(replace(DATA, x=x), **HOW, **settings).trace
    assert trace.rank == axes
    if axes == 100:
        assert trace.edge_sparsity == pytest.approx(0.5, abs=0.01)
        assert all(hop.macs == DATA.graph.num_edges * 100 for hop in trace.hops)


@pytest.mark.parametrize(
    "settings, rotated",
    [
        (dict(model="appnp", edge_sparsity=0.5), False),  # work for 700 axes is left, more than are searched for
        (dict(model="appnp", edge_sparsity=0.6), False),
        (dict(model="appnp", edge_sparsity=0.7), True),
        (dict(model="sgc", edge_sparsity=0.5), False),
        (dict(model="sgc", edge_sparsity=0.6), True),  # more than SGC can do without
        (dict(model="sgc", edge_sparsity=0.6, skip="identity"), False),
        (dict(model="appnp", edge_sparsity=0.5, basis="principal"), True),
        (dict(model="appnp", edge_sparsity=0.5, rank=90), True),
        (dict(model="appnp", edge_sparsity=0.5, head="coordinates"), True),
        (dict(model="appnp", edge_threshold=0.01), True),
    ],
)
def test_wide_features_are_pruned_on_their_own_axes_where_too_many_would_have_to_be_found(settings, rotated):
    x = np.random.default_rng(359).normal(size=(120, 1_400)).astype(np.float32)
    trace = uf.train(replace(DATA, x=x), **HOW, **settings).trace
    assert (trace.rank is not None, trace.basis_macs > 0) == (rotated, rotated)
    if not rotated:
        assert trace.edge_sparsity == pytest.approx(settings["edge_sparsity"], abs=0.03)


def test_what_a_threshold_keeps_is_averaged_over_seeds():
    run = uf.train(DATA, seeds=3, weight_threshold=0.4, **HOW)
    for i, layer in enumerate(run.trace.layers):
        assert layer.kept == round(np.mean([seed.kept[i] for seed in run.seeds])) < layer.weights
        assert layer.macs == 120 * layer.kept


def test_rotating_back_for_the_head_is_paid_for():
    one, other = (uf.train(DATA, edge_sparsity=0.5, head=head, **HOW).trace for head in ("coordinates", "embedding"))
    assert other.basis_macs == one.basis_macs + 120 * other.layers[0].weights // 16 * one.layers[0].weights // 16


# ---------------------------------------------------------------------------------------------------------------- record


@pytest.mark.parametrize("settings", [{}, BOTH, {"model": "mlp"}], ids=["unpruned", "pruned", "mlp"])
def test_the_record_is_json_and_says_it_all(settings):
    run = uf.train(DATA, seeds=2, seed=313, **HOW, **settings)
    record = json.loads(json.dumps(run.to_dict(), allow_nan=False))
    assert record == run.to_dict()
    assert api.TrainSpec.of(record["spec"]) == run.spec and record["id"] == run.id == run.spec.id(DATA)
    assert [seed["seed"] for seed in record["seeds"]] == [313, 314]
    assert set(record["seeds"][0]) == {"seed", "train", "val", "test", "epoch", "epochs", "seconds", "kept"}
    tests = [seed["test"] for seed in record["seeds"]]
    assert record["scores"]["test"] == pytest.approx(np.mean(tests)) == run.accuracy.test
    assert record["scores"]["test_std"] == pytest.approx(np.std(tests)) == run.accuracy.std
    assert record["metric"] == "accuracy" and record["dataset"]["nodes"] == 120 and record["dataset"]["source"] == "a test"
    assert {"unifews", "python", "torch", "numpy"} <= set(record["versions"]) and record["machine"]["cores"] >= 1
    trace = record["trace"]
    assert (trace["macs"], trace["transform_macs"]) == (run.trace.macs, run.trace.transform_macs)
    assert trace["weight_sparsity"] == run.trace.weight_sparsity and len(trace["layers"]) == 2
    assert record["seconds"]["propagate"] >= 0 and record["seconds"]["train"] == run.train_seconds > 0
    assert "on small: accuracy" in str(run) and "over 2 seeds" in str(run)


def test_runs_repeat():
    one, two = (uf.train(DATA, seeds=2, **HOW, **BOTH).to_dict() for _ in range(2))
    assert without_times(one) == without_times(two)
    other = uf.train(DATA, seeds=2, seed=317, **HOW, **BOTH).to_dict()
    assert other["id"] != one["id"] and other["seeds"] != one["seeds"]


def test_a_seed_means_the_same_wherever_it_stands():
    three, third = uf.train(DATA, seeds=3, seed=331, **HOW), uf.train(DATA, seed=333, **HOW)
    assert replace(three.seeds[2], seconds=0) == replace(third.seeds[0], seconds=0)
    assert len({seed.test for seed in three.seeds} | {seed.val for seed in three.seeds}) > 2  # seeds differ


def test_the_callers_generator_is_left_alone():
    torch.manual_seed(337)
    before = torch.get_rng_state()
    one = uf.train(DATA, **HOW, **BOTH)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(347)
    two = uf.train(DATA, **HOW, **BOTH)
    assert without_times(one.to_dict()) == without_times(two.to_dict())


# ----------------------------------------------------------------------------------------------------------------- model


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    "model, settings",
    [
        ("appnp", {}),
        ("appnp", BOTH),
        ("appnp", {"edge_sparsity": 0.5, "head": "embedding", "standardise": "column"}),
        ("sgc", {"edge_threshold": 0.05, "entries": "node", "basis": "input", "inherit": True}),
        ("sgc", {"skip": "identity", "hops": 150, "weight_threshold": 0.3}),
        ("mlp", {"weight_sparsity": 0.5}),
    ],
)
def test_the_model_repeats_the_score_of_the_best_seed(model, settings, sparse):
    data = small(sparse=sparse)
    run = uf.train(data, model, seeds=3, **HOW | settings)
    best = max(run.seeds, key=lambda seed: seed.val)
    test = data.split(best.seed).test
    x = data.x if sparse else torch.from_numpy(data.x)
    scores = run.model(x, torch.from_numpy(data.graph.to_edge_index()))
    assert evaluate("accuracy", scores[test].numpy(), data.y[test]) == best.test
    assert best.test > 50 or run.spec.hops == 150  # by then all nodes look alike, and values lie outside float32
    assert not run.model.training and not run.model.head.training


def test_standardisation_sees_training_rows_only():
    split = DATA.split(42)
    x = DATA.x.copy()
    x[split.test] += 1000
    heads = [uf.train(replace(DATA, x=values), "mlp", **HOW).model.head for values in (DATA.x, x)]
    assert torch.equal(heads[0].mean, heads[1].mean) and torch.equal(heads[0].scale, heads[1].scale)
    np.testing.assert_allclose(heads[0].mean.numpy(), DATA.x[split.train].mean(0), rtol=1e-5, atol=1e-6)


def test_test_labels_change_the_test_score_alone():
    split = DATA.split(42)
    data = stored(*split)
    other = with_test_labels(data, split, np.roll(data.y[split.test], 1))
    one, two = (uf.train(each, **HOW, **BOTH) for each in (data, other))
    assert replace(one.seeds[0], test=0, seconds=0) == replace(two.seeds[0], test=0, seconds=0)
    assert one.seeds[0].test > two.seeds[0].test
    for a, b in zip(one.model.state_dict().values(), two.model.state_dict().values(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind, name", [("labels", "micro-F1"), ("auc", "ROC-AUC")])
def test_other_labels_and_metrics(kind, name):
    run = uf.train(small(kind), **HOW, **BOTH)
    assert run.accuracy.test > 60 and name in str(run)


def test_it_tells_how_it_goes():
    steps, epochs = [], []
    uf.train(DATA, seeds=2, progress=lambda *step: steps.append(step), watch=lambda *seen: epochs.append(seen), **HOW, **BOTH)
    assert steps[-1][0] == steps[-1][1] > 0
    assert [(number, epoch.number) for number, epoch in epochs] == [(s, e) for s in range(2) for e in range(QUICK.epochs)]
    assert epochs[-1][1].kept == uf.train(DATA, seed=43, **HOW, **BOTH).trace.layers[0].kept + round(0.3 * 48)


# ------------------------------------------------------------------------------------------------------------------ data


def test_by_path_and_by_name(tmp_path, monkeypatch):
    uf.save_dataset(DATA, tmp_path / "small")
    expected = without_times(uf.train(DATA, **HOW).to_dict())
    for given in (tmp_path / "small", str(tmp_path / "small")):
        assert without_times(uf.train(given, **HOW).to_dict()) == expected
    monkeypatch.setenv("UNIFEWS_DATA", str(tmp_path))
    with pytest.raises(UnknownNameError, match="Did you mean 'cora'"):
        uf.train("corra", **HOW)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("model", ["appnp", "mlp"])
def test_memory_maps_are_read(tmp_path, monkeypatch, model):
    monkeypatch.setattr("unifews.datasets.folder._MAP", 1)
    uf.save_dataset(small(stored=True), tmp_path / "small")
    data = uf.open_dataset(tmp_path / "small")
    assert isinstance(data.x, np.memmap) and not data.x.flags.writeable
    assert uf.train(data, model, **HOW).accuracy == uf.train(small(stored=True), model, **HOW).accuracy


def test_features_of_other_types():
    expected = uf.train(DATA, "mlp", **HOW).accuracy
    wide = replace(small(sparse=True), x=small(sparse=True).x.astype(np.float64))
    assert uf.train(wide, "mlp", **HOW).accuracy == uf.train(replace(DATA, x=np.asfortranarray(DATA.x)), "mlp", **HOW).accuracy
    assert uf.train(wide, "mlp", **HOW).accuracy == expected


@pytest.mark.parametrize("model", ["appnp", "mlp"])
def test_features_that_are_no_numbers(model):
    x = DATA.x.copy()
    x[7, 3] = np.nan
    with pytest.raises(InputError, match="1 NaN or infinite value, the first in row 7 "):
        uf.train(replace(DATA, x=x), model, **HOW)


def stored(train, val, test, **changes):
    parts = (np.asarray(part, dtype=np.int64) for part in (train, val, test))
    return replace(DATA, splits=(Split(*parts),), about=About("a test", split="stored"), **changes)


NONE, SOME = np.arange(0), np.arange(0, 30)


@pytest.mark.parametrize(
    "data, sentence",
    [
        (stored(NONE, SOME, SOME + 30), "the train set of small is empty"),
        (stored(SOME, NONE, SOME + 30), "the val set of small is empty"),
        (stored(SOME, SOME + 30, NONE), "the test set of small is empty"),
        (stored(SOME, SOME + 29, SOME + 60), "the split overlaps: 1 nodes, first 29, are in both train and val"),
        (stored(SOME, SOME + 30, SOME + 1), "are in both train and test"),
        (stored([0], [1], [2]), "small has a single training node"),
        (stored([0, 1, 3, 4], [2], [5]), r"class 2 of small has no training node \(1 of 3 classes lack one\)"),
        (stored([0, 1, 3, 4], [2], [5]), "predicted; take split='stratified', or merge rare classes"),
        (
            replace(stored([0, 1], [2], [5]), splits=(Split(*map(np.array, ([0, 1], [2], [5]))),) * 4),
            "take split='stratified', another `seed`, which picks one of its 4 stored splits, or merge rare classes",
        ),
        (replace(DATA, y=np.full(120, -1)), "the train set of small is empty: 120 nodes are too few"),
        (replace(DATA, y=np.where(DATA.y == 1, 1, -1)), "every labelled node of small is of class 1, so there is nothing"),
        (replace(DATA, about=About(metric="auc")), "cannot be evaluated: ROC-AUC needs two classes"),
        (replace(small("auc"), y=np.zeros(120, np.int64)), "cannot be evaluated: ROC-AUC needs"),
        (replace(small("labels"), about=About(metric="accuracy")), "cannot be evaluated: accuracy needs one class per row"),
        (replace(small("labels"), y=np.ones((120, 2), np.uint8), about=About(metric="auc")), "every label is all one"),
        (replace(small("labels"), splits=(Split(*np.arange(3)[:, None]),)), "small has a single training node"),
    ],
)
def test_data_that_cannot_be_trained_on_is_told_before_any_work(data, sentence, tmp_path, monkeypatch):
    monkeypatch.setattr("unifews.methods.unifews.propagate", lambda *_, **__: pytest.fail("it began to work"))
    with pytest.raises(InputError, match=sentence):
        uf.train(data, ledger=tmp_path / "runs", **HOW)
    assert not (tmp_path / "runs").exists()


def test_splits_outside_the_graph():
    with pytest.raises(InputError, match="the test set of small names nodes that are not among its 120"):
        stored(SOME, SOME + 30, SOME + 100)


def test_a_class_that_only_unjudged_nodes_have_does_no_harm():
    y = np.where(np.arange(120) == 119, 3, DATA.y)
    assert uf.train(stored(SOME, SOME + 30, SOME + 60, y=y), **HOW).accuracy.test > 50


# ---------------------------------------------------------------------------------------------------------------- ledger


class Killed(BaseException):
    """What stops a run in the middle, however it comes."""


def test_a_killed_run_goes_on_where_it_was(tmp_path):
    how = HOW | BOTH | {"seeds": 3}
    whole = uf.train(DATA, ledger=tmp_path / "whole", **how)

    def kill(number, epoch):
        if (number, epoch.number) == (1, 5):
            raise Killed

    with pytest.raises(Killed):
        uf.train(DATA, ledger=tmp_path / "runs", watch=kill, **how)
    book = Ledger(tmp_path / "runs")
    assert book.records() == [] and len(book.partial(whole.id)) == 1

    trained = []
    resumed = uf.train(DATA, ledger=book, watch=lambda number, epoch: trained.append(number), **how)
    assert set(trained) == {1, 2}
    [record] = book.records()
    assert without_times(record) == without_times(Ledger(tmp_path / "whole").records()[0]) == without_times(resumed.to_dict())
    assert record["seeds"][0]["seconds"] > 0 and book.partial(whole.id) == []
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["ledger.jsonl"]


def test_other_settings_do_not_take_what_was_left(tmp_path):
    def kill(number, epoch):
        if number == 1:
            raise Killed

    with pytest.raises(Killed):
        uf.train(DATA, seeds=2, ledger=tmp_path, watch=kill, **HOW)
    trained = []
    uf.train(DATA, seeds=2, hops=2, recipe=QUICK, ledger=tmp_path, watch=lambda number, epoch: trained.append(number))
    uf.train(small(seed=349), seeds=2, ledger=tmp_path, watch=lambda number, epoch: trained.append(number), **HOW)
    assert trained == [n for _ in range(2) for n in range(2) for _ in range(QUICK.epochs)]


def test_a_killed_process_goes_on_where_it_was(tmp_path):
    """The same with a process that is gone for good, without a chance to tidy up."""
    script = (
        "import os, sys; sys.path.insert(0, sys.argv[2]); from small import QUICK, small; import unifews as uf\n"
        "end = lambda number, epoch: os._exit(9) if (number, epoch.number) == (1, 3) else None\n"
        "uf.train(small(), seeds=2, hops=3, recipe=QUICK, ledger=sys.argv[1], watch=end)"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path, Path(__file__).parent], timeout=120)
    assert done.returncode == 9
    seen = []
    run = uf.train(DATA, seeds=2, ledger=tmp_path, watch=lambda number, epoch: seen.append(number), **HOW)
    assert set(seen) == {1} and len(run.seeds) == 2 and len(Ledger(tmp_path).records()) == 1


def test_a_damaged_partial_file_says_what_to_do(tmp_path):
    run_id = uf.train(DATA, seeds=2, **HOW).id
    Ledger(tmp_path).save_partial(run_id, [{"seed": 3}])
    with pytest.raises(FileFormatError, match=r"partial\.json is damaged; delete it to restart this run"):
        uf.train(DATA, seeds=2, ledger=tmp_path, **HOW)


def test_a_foreign_ledger_is_told_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr("unifews.methods.unifews.propagate", lambda *_, **__: pytest.fail("it began to work"))
    (tmp_path / "notes.txt").write_text("my notes\n")
    with pytest.raises(FileFormatError, match=r"notes\.txt is no ledger"):
        uf.train(DATA, ledger=tmp_path / "notes.txt", **HOW)
    assert (tmp_path / "notes.txt").read_text() == "my notes\n"


def test_every_run_is_a_line(tmp_path):
    runs = [uf.train(DATA, ledger=tmp_path / "a.jsonl", **HOW, **settings) for settings in ({}, BOTH)]
    assert [record["id"] for record in Ledger(tmp_path / "a.jsonl").records()] == [run.id for run in runs]


def test_a_graph_without_edges():
    data = Dataset("lonely", Graph.from_edge_index(np.zeros((2, 0), int), 120), DATA.x, DATA.y)
    run = uf.train(data, **HOW, **BOTH)
    assert run.trace.macs == 0 and run.accuracy.test > 50
