"""`unifews train`: what it trains, keeps and prints, how it goes on after a stop, and what it says when something is wrong."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import call, fine, spawn, work_in, wrong

import unifews as uf
from unifews.cli import console
from unifews.datasets.dataset import About, Dataset, Split
from unifews.datasets.folder import save_dataset
from unifews.datasets.gencat import gencat
from unifews.experiments.runner import Status
from unifews.training.api import train
from unifews.training.layered import LayeredTraining
from unifews.training.ledger import Ledger
from unifews.training.loop import Epoch

pytestmark = pytest.mark.slow

DATA = gencat(300, 900, features=12, classes=3, seed=7, name="mine")
HEAD = ["--width", 8, "--epochs", 3, "--seeds", 2]
SMALL = ["--hops", 3, *HEAD]
SETTINGS = dict(hops=3, width=8, epochs=3, seeds=2)
GCN = ["--model", "gcn", *HEAD]
PRUNED = ["--edge-sparsity", 0.8, "--weight-sparsity", 0.5]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A place to work in with one dataset, and no other on the machine."""
    work_in(tmp_path, monkeypatch)
    save_dataset(DATA, "mine")
    Path("file").write_text("")
    return tmp_path


def run_json(*arguments):
    return json.loads(fine("train", *arguments, "--json").out)


def lines():
    return Ledger("runs").records()


class TestRuns:
    @pytest.mark.parametrize("options", [[*SMALL[:-2], *PRUNED], [*GCN[:-2], *PRUNED]], ids=["appnp", "gcn"])
    def test_seeds_of_another_run_are_not_trained_again(self, options, monkeypatch):
        from unifews.training.decoupled import DecoupledTraining

        trained = []
        for work in (DecoupledTraining, LayeredTraining):
            one = work.one_seed
            monkeypatch.setattr(
                work, "one_seed", lambda self, i, seed, watch, one=one: trained.append(seed) or one(self, i, seed, watch)
            )
        first = run_json("mine", *options, "--seeds", 1)["runs"]
        assert trained == [42, 42]
        both = run_json("mine", *options, "--seeds", 2)["runs"]
        assert trained == [42, 42, 43, 43]
        assert [run["seeds"][0] for run in both] == [run["seeds"][0] for run in first]
        later = run_json("mine", *options, "--seeds", 1, "--seed", 43)["runs"]
        assert trained == [42, 42, 43, 43] and later[1]["seeds"] == both[1]["seeds"][1:]
        fresh = run_json("mine", *options, "--seeds", 2, "--ledger", "other")["runs"]
        unlike = {"seconds", "finished"}
        for ours, theirs in zip(both, fresh, strict=True):
            assert ours["scores"] == theirs["scores"] and ours["id"] == theirs["id"]
            assert ours["trace"]["macs"] == theirs["trace"]["macs"] and ours.keys() - unlike == theirs.keys() - unlike

    def test_what_is_taken_from_another_run_is_said_and_again_trains_all(self):
        fine("train", "mine", *SMALL[:-1], 1)
        assert "has 1 of the 2 seeds of the unpruned run" in fine("train", "mine", *SMALL).err
        assert "from another run" not in fine("train", "mine", *SMALL, "--restart").err

    def test_a_record_without_what_a_seed_needs_is_passed_over(self):
        fine("train", "mine", *GCN[:-1], 1)
        record = lines()[0]
        for seed in record["seeds"]:
            seed.pop("trace")  # as earlier versions wrote it
        Path("runs/ledger.jsonl").write_text(json.dumps(record) + "\n" + json.dumps({**record, "seeds": [{}]}) + "\n")
        printed = fine("train", "mine", *GCN).err
        assert "from another run" not in printed and "line 2" in printed  # which is no record, so it is skipped
        assert len(lines()) == 2

    def test_the_former_name_of_the_ledger_is_still_understood(self):
        assert (
            "warning: --runs is deprecated and will be removed in version 0.4; use --ledger."
            in fine("train", "mine", *SMALL, "--runs", "there").err
        )
        assert len(Ledger("there").records()) == 1 and not Path("runs").exists()
        fine("train", "mine", *SMALL, "--ledger", "there/other.jsonl")
        assert len(Ledger("there/other.jsonl").records()) == 1

    def test_the_numbers_are_those_of_the_library(self):
        report = run_json("mine", *SMALL, *PRUNED)
        unpruned, pruned = report["runs"]
        for record, run in [
            (unpruned, train(DATA, **SETTINGS)),
            (pruned, train(DATA, **SETTINGS, edge_sparsity=0.8, weight_sparsity=0.5)),
        ]:
            assert record["id"] == run.id and record["spec"] == run.spec.to_dict()
            assert record["scores"]["test"] == run.accuracy.test and record["trace"]["macs"] == run.trace.macs
        assert report["against_unpruned"]["macs"] == unpruned["trace"]["macs"] / pruned["trace"]["macs"]
        assert [record["id"] for record in lines()] == [unpruned["id"], pruned["id"]]
        assert report["ledger"] == "runs/ledger.jsonl"
        assert report["run_files"] == [f"runs/{record['id']}.toml" for record in report["runs"]]

    @pytest.mark.parametrize(
        "options, settings",
        [
            ("--model sgc --skip identity --r 0.3", dict(model="sgc", skip="identity", r=0.3)),
            ("--alpha 0.3 --edge-threshold 0.01 --rank 5", dict(alpha=0.3, edge_threshold=0.01, rank=5)),
            ("--edge-sparsity 0.5 --entries feature --inherit", dict(edge_sparsity=0.5, entries="feature", inherit=True)),
            ("--edge-sparsity 0.5 --basis input", dict(edge_sparsity=0.5, basis="input")),
            ("--weight-sparsity 0.5 --weight-reference head", dict(weight_sparsity=0.5, weight_reference="head")),
            ("--seed 3 --split stratified --layers 1 --dropout 0", dict(seed=3, split="stratified", layers=1, dropout=0.0)),
            ("--batch 32 --patience 1 --lr 0.01 --weight-decay 0.1", dict(batch=32, patience=1, lr=0.01, weight_decay=0.1)),
        ],
    )
    def test_options_mean_what_the_settings_mean(self, options, settings):
        report = run_json("mine", *SMALL, *options.split(), "--no-baseline", "--no-ledger")
        assert len(report["runs"]) == 1
        assert report["runs"][0]["spec"] == train(DATA, **SETTINGS | {"seeds": 1} | settings).spec.to_dict() | {"seeds": 2}

    @pytest.mark.usefixtures("estimates_on_any_size")
    def test_an_allowed_error(self):
        options = ["--hops", 20, *HEAD, "--max-error", 0.1]
        report = run_json("mine", *options)
        run = train(DATA, **SETTINGS | {"hops": 20}, max_error=0.1)
        unpruned, record = report["runs"]
        assert record["spec"] == run.spec.to_dict() and record["id"] == run.id and record["scores"]["test"] == run.accuracy.test
        assert record["trace"]["estimated_error"] == run.trace.estimated_error and "max_error" not in unpruned["spec"]
        assert report["against_unpruned"]["macs"] > 2
        printed = " ".join(fine("train", "mine", *options).out.split())
        assert "max error .1" in printed and f"estimated error 0 {run.trace.estimated_error:.2g}" in printed
        assert f"note: estimated error {run.trace.estimated_error:.3g}, 0.1 allowed: " in printed

    def test_an_mlp(self):
        record = run_json("mine", *HEAD, "--model", "mlp", "--weight-threshold", 0.2, "--no-ledger")["runs"][1]
        run = train(DATA, "mlp", **{name: value for name, value in SETTINGS.items() if name != "hops"}, weight_threshold=0.2)
        assert record["spec"] == run.spec.to_dict() and record["scores"]["test"] == run.accuracy.test

    def test_the_paper_s_form(self):
        spec = run_json("mine", *SMALL, "--edge-sparsity", 0.5, "--paper-form", "--no-baseline")["runs"][0]["spec"]
        assert (spec["entries"], spec["basis"], spec["inherit"]) == ("node", "input", True)

    def test_an_unpruned_model_needs_no_second_one_beside_it(self):
        report = run_json("mine", *SMALL)
        assert len(report["runs"]) == 1 and report["against_unpruned"] is None

    def test_five_seeds_unless_told_otherwise(self):
        assert len(run_json("mine", *SMALL[:-2], "--no-ledger")["runs"][0]["seeds"]) == 5

    def test_no_ledger_no_files(self):
        assert run_json("mine", *SMALL, "--no-ledger")["ledger"] is None
        assert not Path("runs").exists()

    def test_a_file_too(self, monkeypatch):
        np.savez("own.npz", indptr=DATA.graph.indptr, indices=DATA.graph.indices, x=DATA.x, y=DATA.y)
        assert run_json("own.npz", *SMALL)["runs"][0]["spec"]["dataset"] == "own"


class TestTable:
    def test_both_models_and_the_ratio(self):
        result = fine("train", "mine", *SMALL, *PRUNED)
        record = lines()[1]
        assert result.err == ""
        for part in [
            "APPNP, 3 hops, 2 seeds: Dataset('mine', 300 nodes",
            "accuracy, % on test nodes",
            f"{record['scores']['test']:.1f} ± {record['scores']['test_std']:.1f}",
            "edges .8, weights .5",
            "against",
            "2.0x fewer",
            f"{record['trace']['edge_sparsity']:.1%}",
            "propagation seconds",
            "training seconds",
            f"runs/{record['id']}.toml",
        ]:
            assert part in result.out

    def test_it_fits_a_small_terminal(self):
        assert max(map(len, fine("train", "mine", *SMALL, *PRUNED).out.splitlines()[:14])) <= 88

    def test_an_mlp_has_no_lines_about_edges(self):
        out = fine("train", "mine", *HEAD, "--model", "mlp", "--no-ledger").out
        assert "MLP, 2 seeds" in out and "transformation MACs" in out and "propagation" not in out.split("training seconds")[0]

    def test_one_seed_has_no_spread(self):
        assert "±" not in fine("train", "mine", *SMALL, *PRUNED, "--seeds", 1, "--no-ledger").out

    def test_other_metrics_are_named(self):
        y = np.stack([DATA.y == 0, DATA.y == 1], axis=1).astype(np.uint8)
        save_dataset(Dataset("many", DATA.graph, DATA.x, y, about=About(metric="f1")), "many")
        assert "micro-F1, % on test nodes" in fine("train", "many", *SMALL, "--no-ledger").out


class TestLayers:
    """Models whose layers propagate: the same command, table, ledger and run files."""

    def test_the_numbers_are_those_of_the_library(self):
        report = run_json("mine", *GCN, *PRUNED)
        how = dict(model="gcn", width=8, epochs=3, seeds=2)
        for record, run in zip(
            report["runs"], (train(DATA, **how), train(DATA, **how, edge_sparsity=0.8, weight_sparsity=0.5)), strict=True
        ):
            assert record["id"] == run.id and record["spec"] == run.spec.to_dict()
            assert record["scores"]["test"] == run.accuracy.test and record["trace"]["macs"] == run.trace.macs
        assert [record["id"] for record in lines()] == [record["id"] for record in report["runs"]]
        assert report["against_unpruned"]["transform_macs"] == pytest.approx(2, rel=0.01)

    @pytest.mark.parametrize(
        "options, settings",
        [
            ("--model gat --heads 2 --layers 3", dict(model="gat", heads=2, layers=3)),
            ("--model gcnii --alpha 0.2 --theta 1", dict(model="gcnii", alpha=0.2, theta=1.0)),
            ("--model sage --edge-threshold 0.5 --entries feature", dict(model="sage", edge_threshold=0.5, entries="feature")),
            ("--model gin --edge-sparsity 0.5 --budget layers", dict(model="gin", edge_sparsity=0.5, budget="layers")),
            ("--model gcn --edge-sparsity 0.5 --settle 0.3", dict(model="gcn", edge_sparsity=0.5, settle=0.3)),
            (
                "--model gcn --weight-threshold 0.1 --absolute --no-inherit",
                dict(model="gcn", weight_threshold=0.1, absolute=True, inherit=False),
            ),
        ],
    )
    def test_options_mean_what_the_settings_mean(self, options, settings):
        record = run_json("mine", *HEAD, *options.split(), "--no-baseline", "--no-ledger")["runs"][0]
        assert record["spec"] == train(DATA, width=8, epochs=3, **settings).spec.to_dict() | {"seeds": 2}

    def test_the_table(self):
        out = fine("train", "mine", *GCN, *PRUNED).out
        assert "GCN, 2 layers, 2 seeds: Dataset('mine', 300 nodes" in out and "edges .8, weights .5" in out
        assert "against" in out and "propagation MACs" in out and "propagation seconds" not in out
        assert max(map(len, out.splitlines()[:14])) <= 88

    def test_the_paper_s_form_with_and_without_its_lock(self):
        options = [*GCN, "--edge-sparsity", 0.5, "--paper-form", "--no-baseline"]
        spec = run_json("mine", *options)["runs"][0]["spec"]
        assert (spec["entries"], spec["budget"], spec["inherit"], spec["weight_ramp"]) == ("node", "layers", True, 1)
        assert "paper's form," in fine("train", "mine", *options, "--node-lock").out

    def test_links(self):
        options = ["--model", "gcn", "--task", "links", *HEAD, "--edge-sparsity", 0.5]
        out = fine("train", "mine", *options).out
        assert "GCN, 3 layers, links, 2 seeds" in out and "ROC-AUC, % on test links" in out
        assert [record["metric"] for record in lines()] == ["auc", "auc"]

    def test_a_kept_run_file_repeats_the_run(self):
        record = run_json("mine", *GCN, *PRUNED)["runs"][1]
        text = Path(f"runs/{record['id']}.toml").read_text()
        assert "hops" not in text and "batch" not in text and 'entries = "unit"' in text
        assert run_json("--run-file", f"runs/{record['id']}.toml", "--restart")["runs"][1]["id"] == record["id"]

    @pytest.mark.parametrize(
        "options, says",
        [
            (["--model", "gcn", "--hops", 3], "--hops concerns propagation once before training"),
            (["--model", "gcn", "--batch", 32], "trained on the whole graph at once"),
            (["--heads", 4], "--heads belongs to --model gat"),
            (["--model", "sage", "--alpha", 0.1], "--alpha belongs to --model gcnii or appnp"),
            (["--model", "gat", "--width", 10], "8 heads do not divide a width of 10"),
            (["--model", "gcn", "--node-lock"], "--node-lock has no effect without --edge-sparsity"),
        ],
    )
    def test_what_a_model_does_not_have(self, options, says):
        wrong("train", "mine", "--epochs", 2, *options, says=says)


class TestAgain:
    def test_what_the_ledger_has_is_not_repeated(self):
        first = run_json("mine", *SMALL, *PRUNED)
        result = fine("train", "mine", *SMALL, *PRUNED, "--json")
        assert json.loads(result.out) == first and len(lines()) == 2
        assert result.err.count("note: the ") == 2 and "--restart repeats it" in result.err
        assert json.loads(fine("train", "mine", *SMALL, *PRUNED, "--restart", "--json").out) != first and len(lines()) == 4

    def test_the_baseline_is_shared(self):
        run_json("mine", *SMALL, *PRUNED)
        run_json("mine", *SMALL, "--edge-sparsity", 0.5, "--paper-form")
        assert len(lines()) == 3

    def test_other_data_of_the_same_name_and_size_is_another_run(self):
        run_json("mine", *SMALL)
        x = DATA.x.copy()
        x[17, 3] += 1
        shutil.rmtree("mine")
        save_dataset(Dataset("mine", DATA.graph, x, DATA.y, about=DATA.about), "mine")
        assert fine("train", "mine", *SMALL).err == "" and len(lines()) == 2

    def test_an_interrupted_run_goes_on_with_its_second_seed(self, monkeypatch):
        seen = []

        def stop(number, epoch):
            seen.append((number, epoch.number))
            if number == 1:
                raise KeyboardInterrupt

        monkeypatch.setattr(console, "training_progress", lambda *args: SimpleContext(stop))
        result = call("train", "mine", *SMALL)
        assert result.code == 130 and "finished runs are in runs, run the same command to resume" in result.err
        assert lines() == [] and len(list(Path("runs").glob(".*.partial.json"))) == 1
        seen.clear()
        monkeypatch.setattr(
            console, "training_progress", lambda *args: SimpleContext(lambda number, epoch: seen.append((number, 0)))
        )
        record = run_json("mine", *SMALL)["runs"][0]
        assert {number for number, _ in seen} == {1}
        monkeypatch.undo()
        fresh = train(DATA, **SETTINGS)
        assert [seed["test"] for seed in record["seeds"]] == [seed.test for seed in fresh.seeds]
        assert not list(Path("runs").glob(".*.partial.json"))


class SimpleContext:
    """Stands in for the display: hands out a watcher of the test's."""

    def __init__(self, watch):
        self.watch = watch

    def __enter__(self):
        return None, self.watch

    def __exit__(self, *error):
        return None


class TestRunFile:
    def test_the_kept_one_repeats_the_run(self, folder, monkeypatch):
        first = run_json("mine", *SMALL, *PRUNED)
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        monkeypatch.chdir(elsewhere)
        report = run_json("--run-file", folder / first["run_files"][1])
        assert [r["id"] for r in report["runs"]] == [r["id"] for r in first["runs"]]
        assert report["runs"][1]["scores"] == first["runs"][1]["scores"]

    def test_the_command_line_wins(self):
        Path("run.toml").write_text(
            'dataset = "mine"\nhops = 3\nseeds = 2\nedge_sparsity = 0.5\n\n[recipe]\nwidth = 8\nepochs = 9\n'
        )
        spec = run_json("-f", "run.toml", "--epochs", 3, "--edge-threshold", 0.01, "--no-baseline", "--no-ledger")["runs"][0][
            "spec"
        ]
        assert (spec["recipe"]["width"], spec["recipe"]["epochs"], spec["hops"], spec["seeds"]) == (8, 3, 3, 2)
        assert (spec["edge_sparsity"], spec["edge_threshold"]) == (None, 0.01)
        Path("error.toml").write_text("max_error = 0.1\ndegree = 2\n")
        options = ["mine", "-f", "error.toml", *SMALL, "--no-baseline", "--no-ledger"]
        spec = run_json(*options, "--max-error", 0.2)["runs"][0]["spec"]
        assert (spec["max_error"], spec["degree"]) == (0.2, 2)
        assert run_json(*options, "--edge-sparsity", 0.5)["runs"][0]["spec"].keys().isdisjoint({"max_error", "degree"})
        save_dataset(gencat(200, 600, features=5, classes=2, seed=9, name="other"), "other")
        assert run_json("other", "-f", "run.toml", "--epochs", 3, "--no-ledger")["runs"][1]["spec"]["dataset"] == "other"

    @pytest.mark.parametrize(
        "text, says",
        [
            ("edge_sparsty = 0.5", ["in run.toml, no setting", "Did you mean 'edge_sparsity'?"]),
            ("edge_sparsity = 50", ["in run.toml", "edge_sparsity=0.5"]),
            ('edge_sparsity = "much"', ["in run.toml", "edge_sparsity"]),
            ("edge_sparsity = 0.5\nedge_threshold = 1", ["in run.toml", "give one of them"]),
            ("[recipe]\nwidht = 3", ["in run.toml", "Did you mean 'width'?"]),
            ("[recipe]\nwidth = 0", ["in run.toml", "`width`"]),
            ("recipe = 3", ["in run.toml", "`recipe` is a table"]),
            ("rank = true", ["in run.toml", "`rank`"]),
            ("inherit = 1", ["in run.toml", "`inherit` must be True or False"]),
            ("dataset = 3", ["in run.toml", "`dataset`"]),
            ("edge_threshold = inf", ["in run.toml", "`edge_threshold` must be a number", "got inf"]),
            ("hops = ", ["run.toml is no run file", "Invalid value"]),
            ("# nothing", ["no dataset is given", "unifews train cora"]),
        ],
    )
    def test_mistakes_in_it(self, text, says):
        Path("run.toml").write_text(text)
        wrong("train", "--run-file", "run.toml", says=says)
        assert not Path("runs").exists()

    def test_a_run_file_is_no_dataset(self):
        wrong("train", "run.toml", says="--run-file run.toml")
        wrong("train", "mine", "-f", "none.toml", says="there is no run file none.toml")


def test_a_line_of_the_ledger_that_was_cut_off_is_told():
    Ledger("runs").append({"id": "a"})
    with Path("runs/ledger.jsonl").open("a") as file:
        file.write('{"id": "b", "sc')
    assert "note: line 2 of runs/ledger.jsonl is cut off" in fine("train", "mine", *SMALL).err
    again = fine("train", "mine", *SMALL).err
    assert again.count("is cut off") == 1 and "is in runs/ledger.jsonl; --restart repeats it" in again


class TestMistakes:
    @pytest.mark.parametrize(
        "options, says",
        [
            ("cora-lc", "Did you mean 'cora-lcc'?"),
            ("./nowhere", "nowhere"),
            ("", "no dataset is given"),
            ("mine --model gcm", "no model named 'gcm'"),
            ("mine --edge-sparsity 90", "--edge-sparsity 0.9"),
            ("mine --weight-sparsity 1", "--weight-sparsity"),
            ("mine --edge-sparsity 0.9 --edge-threshold 1", "give one of them"),
            ("mine --weight-sparsity 0.9 --weight-threshold 1", "give one of them"),
            ("mine --edge-threshold nan", "--edge-threshold"),
            ("mine --seeds 0", "--seeds"),
            ("mine --seed -1", "--seed"),
            ("mine --hops 0", "--hops"),
            ("mine --epochs 0", "--epochs"),
            ("mine --dropout 1", "--dropout"),
            ("mine --split random", "no --split named 'random'"),
            ("mine --split stored", "has no stored split"),
            ("mine --entries row", "no --entries named 'row'"),
            ("mine --skip all", "no skip connection named 'all'"),
            ("mine --alpha 0", "--alpha"),
            ("mine --model sgc --alpha 0.1", "--alpha has no effect with --model sgc"),
            ("mine --model mlp --hops 3", "--hops has no effect with --model mlp"),
            ("mine --model mlp --edge-sparsity 0.5", "an MLP sees no edges"),
            ("mine --paper-form", "--paper-form prunes nothing by itself"),
            (
                "mine --paper-form --max-error .1",
                "--paper-form removes edges, and --max-error none; give --edge-sparsity instead.",
            ),
            ("mine --max-error .1 --rank 3", "--max-error propagates all columns; leave out --rank"),
            ("mine --model gcn --max-error .1", "--max-error concerns propagation once before training, and gcn propagates in"),
            ("mine --inherit --weight-sparsity 0.5", "--inherit has no effect without --edge-sparsity"),
            (
                "mine --edge-sparsity 0.5 --paper-form --entries block",
                "--paper-form sets --entries node, but --entries block is given",
            ),
            (
                "mine --weight-sparsity 0.5 --paper-form --weight-ramp 5",
                "--paper-form sets --weight-ramp 1, but --weight-ramp 5 is given",
            ),
            ("mine --weight-ramp 5", "--weight-ramp has no effect without --weight-sparsity"),
            ("mine --weight-threshold .5 --weight-ramp 5", "--weight-ramp has no effect without --weight-sparsity"),
            ("mine --weight-sparsity 0.5 --weight-ramp 0", "--weight-ramp must be an integer of at least 1; got 0"),
            ("mine --edge-sparsity 0.5 --basis input --rank 3", "--rank has no effect with --basis input"),
            ("mine --edge-sparsity 0.5 --rank 13", "12 features"),
            (
                "mine --paper-form --edge-sparsity .5 --method agp",
                "--paper-form is a setting of --method unifews; leave it out with --method agp",
            ),
            ("mine --paper-form --model mlp", "--paper-form prunes a propagation"),
            (
                "mine --method agp --model gcn",
                "method 'agp' works on --model sgc or appnp, not on 'gcn'; for gcn take --method",
            ),
            ("mine --method agp --weight-sparsity .5", "leave --weight-sparsity and --weight-threshold out"),
            ("mine --log wandb", "no log named 'wandb'"),
            ("mine --ledger file", "is not a folder"),
            ("mine --ledger file/deep", "is not a folder"),
        ],
    )
    def test_one_sentence_and_no_ledger_line(self, options, says):
        wrong("train", *options.split(), says=says)
        assert lines() == []

    def test_labels_that_cannot_be_learnt(self):
        none = np.full(300, -1)
        save_dataset(Dataset("none", DATA.graph, DATA.x, none), "none")
        wrong("train", "none", says="set of none is empty")
        rare = DATA.y.copy()
        rare[5] = 3
        split = Split.of(np.arange(20, 150), np.arange(150, 200), np.arange(20), num_nodes=300)
        save_dataset(Dataset("rare", DATA.graph, DATA.x, rare, (split,), About(split="stored")), "rare")
        wrong("train", "rare", says=["class 3 of rare has no training node", "merge rare classes"])
        assert not Path("runs").exists()

    @pytest.mark.parametrize("model", ["appnp", "mlp", "gcn"])
    def test_features_that_are_no_numbers(self, model):
        x = DATA.x.copy()
        x[7, 2], x[9, :3] = np.nan, np.inf
        save_dataset(Dataset("holes", DATA.graph, x, DATA.y), "holes")
        wrong(
            "train", "holes", "--model", model, says="the features of holes hold 4 NaN or infinite values, the first in row 7"
        )
        assert not Path("runs").exists()

    def test_a_file_without_labels(self):
        np.savez("own.npz", indptr=DATA.graph.indptr, indices=DATA.graph.indices, x=DATA.x)
        wrong("train", "own.npz", says="own.npz")
        np.savez("own.npz", indptr=DATA.graph.indptr, indices=DATA.graph.indices, x=DATA.x, y=DATA.y[:-1])
        wrong("train", "own.npz", says=["299", "300"])

    def test_a_write_protected_folder(self, monkeypatch):
        monkeypatch.setattr("unifews.cli.train.os.access", lambda path, mode: False)
        wrong("train", "mine", *SMALL, says=["cannot store runs in runs", "write-protected", "--no-ledger"])

    def test_a_full_disk_is_noticed_before_training(self, monkeypatch):
        monkeypatch.setattr("unifews.cli.train.shutil.disk_usage", lambda path: SimpleNamespace(free=100))
        monkeypatch.setattr("unifews.training.api.train", lambda *args, **settings: 1 / 0)
        wrong("train", "mine", *SMALL, says=["only 100 bytes are free"])
        assert not Path("runs").exists()

    def test_a_foreign_ledger_is_left_alone(self):
        Path("runs").mkdir()
        Path("runs/ledger.jsonl").write_text("not a ledger\n")
        wrong("train", "mine", *SMALL, says="is no ledger")
        assert Path("runs/ledger.jsonl").read_text() == "not a ledger\n"


class TestLog:
    def test_curves_of_every_seed(self):
        import tensorboard.backend.event_processing.event_accumulator as loading

        run_json("mine", *SMALL, "--weight-sparsity", 0.5, "--no-baseline", "--log", "tensorboard")
        (name,) = [path.name for path in Path("runs/tensorboard").iterdir()]
        assert name == lines()[0]["id"]
        first = lines()[0]["spec"]["seed"]
        for seed in (first, first + 1):
            events = loading.EventAccumulator(f"runs/tensorboard/{name}/seed-{seed}")
            events.Reload()
            assert [event.step for event in events.Scalars("loss/train")] == [0, 1, 2]
            assert events.Scalars("weights/kept")[-1].value == pytest.approx(0.5, abs=0.02)
            assert 0 <= events.Scalars("score/validation")[-1].value <= 100

    def test_without_tensorboard(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
        wrong("train", "mine", "--log", "tensorboard", says="TensorBoard is not installed; pip install tensorboard")


class TestLive:
    EPOCH = Epoch(3, 200, 0.51234, 85.04, 86.0, 10, 100, 0.1)

    def test_a_log_has_nothing_in_the_first_minute_and_a_line_in_each_other(self, monkeypatch, capsys):
        now = [0.0]
        monkeypatch.setattr(console, "perf_counter", lambda: now[0])
        with console.training_progress("unpruned", 41, 5) as (progress, watch):
            assert progress is None
            for now[0] in (1.0, 59.0, 61.0, 62.0, 120.0, 122.0):
                watch(1, self.EPOCH)
        line = (
            "note: unpruned: seed 42 (2 of 5), loss 0.512, validation 85.0 (best 86.0), 10% of weights kept (4 of 200 epochs)\n"
        )
        assert capsys.readouterr().err == 2 * line

    def test_a_log_of_many_runs(self, monkeypatch, capsys):
        now = [0.0]
        monkeypatch.setattr(console, "perf_counter", lambda: now[0])
        with console.cells_progress("loading") as progress:
            for now[0], done in ((30.0, 1), (70.0, 2), (200.0, 9)):  # and none where all is done
                progress(Status(done, 9, ("cora gcn", "cora gat, seed 42"), 600.0))
        assert capsys.readouterr().err == "note: about 10 min left, cora gcn; cora gat, seed 42 (2 of 9 runs)\n"

    def test_one_line_for_whoever_does(self, monkeypatch):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        with console.training_progress("unpruned", 41, 5) as (progress, watch):
            progress(1, 20)
            watch(2, Epoch(0, 200, 1.0, 50.0, -np.inf, 10, 100, 0.1))

    def test_what_an_epoch_says(self):
        assert console.epoch_summary(self.EPOCH) == "loss 0.512, validation 85.0 (best 86.0), 10% of weights kept"
        assert console.epoch_summary(Epoch(3, 200, 0.5, 85.0, -np.inf, 100, 100, 0.1)) == "loss 0.500, validation 85.0"


def test_help_and_a_process_of_its_own():
    assert "unifews data list" in fine("train", "--help").out
    done = spawn("train", "mine", *SMALL, *PRUNED, OMP_NUM_THREADS="1")
    assert done.returncode == 0 and done.stderr == "" and "against" in done.stdout
    assert len(lines()) == 2


def test_the_seeds_of_others_are_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run_json("mine", *SMALL, "--no-ledger")
    assert torch.equal(torch.rand(3), expected)


def test_the_public_name():
    assert uf.train is train
