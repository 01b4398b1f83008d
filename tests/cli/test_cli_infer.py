"""`unifews infer` and `unifews train --save`: what is written and printed, and what is printed when something is wrong."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from commands import fine, work_in, wrong

import unifews as uf
from unifews.cli import infer
from unifews.datasets.dataset import Dataset
from unifews.datasets.folder import save_dataset
from unifews.datasets.gencat import gencat
from unifews.nn.models import build
from unifews.training.ledger import Ledger

DATA = gencat(300, 900, features=12, classes=3, seed=7, name="mine")
HEAD = ["--width", 16, "--epochs", 5, "--seeds", 2]
PRUNED = ["--edge-sparsity", 0.5, "--weight-sparsity", 0.5]


@cache
def trained(model="gcn", several=False):
    more = {} if model == "gcn" else {"hops": 3}
    run = uf.train(DATA, model=model, width=16, epochs=5, edge_sparsity=0.5, weight_sparsity=0.5, **more)
    return uf.compress(run.model, DATA.x, DATA.graph, record={"multilabel": several})


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A place to work in with one dataset and one model."""
    work_in(tmp_path, monkeypatch)
    save_dataset(DATA, "mine")
    trained().save("model")


def scores(model="gcn"):
    return trained(model)(DATA.x, DATA.graph).numpy()


def run_json(*arguments):
    return json.loads(fine("infer", *arguments, "--json").out)


class TestPredictions:
    def test_csv_of_some_nodes_in_the_order_given(self):
        fine("infer", "model", "mine", "--nodes", "7,1,5,1", "--out", "p.csv", "--scores")
        table = np.genfromtxt("p.csv", delimiter=",", names=True)
        assert list(table.dtype.names) == ["node", "class", "score_0", "score_1", "score_2"]
        assert table["node"].tolist() == [7, 1, 5, 1]
        found = np.stack([table[f"score_{i}"] for i in range(3)], axis=1)
        np.testing.assert_allclose(found, scores()[[7, 1, 5, 1]], rtol=1e-4, atol=1e-5)
        assert table["class"].tolist() == found.argmax(1).tolist()

    def test_parquet_of_all_nodes(self):
        report = run_json("model", "mine", "--out", "p.parquet")
        table = pyarrow.parquet.read_table("p.parquet").to_pydict()
        assert list(table) == ["node", "class"]
        assert table["node"] == list(range(300))
        assert table["class"] == scores().argmax(1).tolist()
        assert report["latency"] is None and report["nodes"] == 300

    @pytest.mark.parametrize("model", ["gcn", "appnp"])
    def test_npy_of_all_nodes(self, model):
        trained(model).save("other")
        fine("infer", "other", "mine", "--out", "p.npy")
        np.testing.assert_array_equal(np.load("p.npy"), scores(model).argmax(1))
        fine("infer", "other", "mine", "--out", "p.npy", "--scores", "--overwrite")
        np.testing.assert_allclose(np.load("p.npy"), scores(model), rtol=1e-4, atol=1e-5)

    @pytest.mark.usefixtures("estimates_on_any_size")
    def test_a_model_of_an_allowed_error(self):
        fine("train", "mine", "--width", 8, "--epochs", 3, "--seeds", 1, "--max-error", 0.1, "--no-baseline", "--save", "other")
        assert run_json("other", "mine", "--out", "p.npy", "--scores")["model"]["pruned"] == "max_error=0.1"
        model = uf.train(DATA, width=8, epochs=3, max_error=0.1).model
        np.testing.assert_allclose(np.load("p.npy"), model(DATA.x, DATA.graph).detach().numpy(), rtol=1e-4, atol=1e-5)

    def test_several_labels_are_columns_of_0_and_1(self):
        trained(several=True).save("other")
        fine("infer", "other", "mine", "--out", "p.csv", "--nodes", "4,9")
        table = np.genfromtxt("p.csv", delimiter=",", names=True)
        assert list(table.dtype.names) == ["node", "label_0", "label_1", "label_2"]
        assert [list(row)[1:] for row in table.tolist()] == (scores()[[4, 9]] > 0).tolist()
        fine("infer", "other", "mine", "--out", "p.npy", "--nodes", "4,9")
        np.testing.assert_array_equal(np.load("p.npy"), scores()[[4, 9]] > 0)

    @pytest.mark.parametrize("kind", ["numbers", "text", "mask", "zeros and ones"])
    def test_nodes_from_a_file(self, kind):
        mask = np.zeros(300, bool)
        mask[[3, 8, 250]] = True
        name = "nodes.txt" if kind == "text" else "nodes.npy"
        if kind == "text":
            Path(name).write_text("node\n3\n8\n250\n")
        else:
            np.save(name, {"numbers": np.array([3, 8, 250]), "mask": mask, "zeros and ones": mask.astype(int)}[kind])
        fine("infer", "model", "mine", "--nodes", name, "--out", "p.csv")
        assert np.genfromtxt("p.csv", delimiter=",", names=True)["node"].tolist() == [3, 8, 250]

    def test_files_instead_of_a_dataset(self):
        np.save("x.npy", DATA.x)
        edges = DATA.graph.to_edge_index()
        half = edges[:, edges[0] < edges[1]]
        np.savetxt("edges.csv", half.T, fmt="%d", delimiter=",")
        fine("infer", "model", "edges.csv", "--features", "x.npy", "--undirected", "--out", "p.npy")
        np.testing.assert_array_equal(np.load("p.npy"), scores().argmax(1))
        told_so = fine("infer", "model", "edges.csv", "--features", "x.npy", "--out", "q.npy")
        assert "900 reverse edges were added" in told_so.err
        np.testing.assert_array_equal(np.load("q.npy"), np.load("p.npy"))
        assert fine("infer", "model", "edges.csv", "--features", "x.npy", "--directed", "--out", "r.npy").err == ""

    def test_a_file_without_labels(self):
        np.savez("new.npz", edge_index=DATA.graph.to_edge_index(), x=DATA.x, num_nodes=np.array(300))
        fine("infer", "model", "new.npz", "--out", "p.npy")
        np.testing.assert_array_equal(np.load("p.npy"), scores().argmax(1))


class TestSpeed:
    def test_few_nodes_are_timed_one_by_one(self):
        report = run_json("model", "mine", "--nodes", "1,5,7", "--out", "p.csv")
        assert 0 < report["latency"]["median_ms"] <= report["latency"]["p95_ms"]
        assert report["nodes_per_second"] == pytest.approx(3 / report["seconds"]["predict"])

    def test_many_nodes_are_predicted_in_one_go(self, monkeypatch):
        monkeypatch.setattr(infer, "_SINGLE_NODES", 2)
        report = run_json("model", "mine", "--nodes", "1,5,7", "--out", "p.csv")
        assert report["latency"] is None and report["nodes_per_second"] > 0

    def test_what_is_printed(self):
        printed = fine("infer", "model", "mine", "--nodes", "1,5,7", "--out", "p.csv").out
        for part in ("12 features to 3 scores", "300 nodes", "3 nodes one at a time: median", "95th percentile", "per second"):
            assert part in printed
        assert "wrote p.csv: node, class of 3 nodes" in printed
        assert "predicted 300 nodes in" in fine("infer", "model", "mine", "--out", "p.npy", "--threads", 1).out


class TestMistakes:
    def test_output(self, monkeypatch):
        def never(folder, threads):
            raise AssertionError("the output is checked before any work")

        monkeypatch.setattr(infer, "_open", never)
        wrong("infer", "model", "mine", "--out", "p.txt", says="must end in .parquet or .csv or .npy")
        wrong("infer", "model", "mine", "--out", "none/p.csv", says="there is no folder none")
        Path("there.csv").write_text("mine")
        wrong("infer", "model", "mine", "--out", "there.csv", says="already exists; add --overwrite")
        wrong("infer", "model", "there.csv", "--out", "there.csv", "--overwrite", says="is one of the inputs")
        Path("folder.csv").mkdir()
        wrong("infer", "model", "mine", "--out", "folder.csv", "--overwrite", says="it is a folder")
        assert Path("there.csv").read_text() == "mine"

    def test_models(self):
        wrong("infer", "nothing", "mine", "--out", "p.csv", says="nothing")
        wrong("infer", "mine", "mine", "--out", "p.csv", says="mine")
        uf.save(uf.sparsify(build("gcn", 12, 3, width=8)), "training")
        wrong("infer", "training", "mine", "--out", "p.csv", says=["training holds a model in training", "uf.compress"])
        tensors = Path("model/model.safetensors")
        tensors.write_bytes(tensors.read_bytes()[:-1])
        wrong("infer", "model", "mine", "--out", "p.csv", says=["model.safetensors", "truncated"])
        assert not Path("p.csv").exists()

    def test_features_of_another_width(self):
        save_dataset(Dataset("wide", DATA.graph, np.ones((300, 13), np.float32), DATA.y), "wide")
        says = ["wide has 13 features, but model was trained on 12"]
        wrong("infer", "model", "wide", "--out", "p.csv", says=says)

    @pytest.mark.parametrize(
        "nodes, says",
        [
            ("1,300", "--nodes names 300, but mine has nodes 0 to 299"),
            ("-1", "--nodes names -1, but mine has nodes 0 to 299"),
            ("1;2", "--nodes 1;2 is neither node numbers, as in 1,5,7, nor a file"),
            ("1,", "neither node numbers"),
            ("9" * 30, "larger than any node number"),
            ("words.txt", "nodes are integers"),
            ("two.txt", "has 2 columns"),
            ("short.npy", "has 3 flags, but mine has 300 nodes"),
        ],
    )
    def test_nodes(self, nodes, says):
        Path("words.txt").write_text("one\ntwo\n")
        Path("two.txt").write_text("1,2\n3,4\n")
        np.save("short.npy", np.ones(3, bool))
        wrong("infer", "model", "mine", "--nodes=" + nodes, "--out", "p.csv", says=says)

    def test_data(self):
        np.savetxt("edges.csv", DATA.graph.to_edge_index().T, fmt="%d", delimiter=",")
        wrong("infer", "model", "edges.csv", "--out", "p.csv", says="holds no features; give them with --features")
        wrong("infer", "model", "mine", "--undirected", "--out", "p.csv", says="--undirected is for graph files")
        wrong("infer", "model", "nowhere", "--out", "p.csv", says="no dataset named 'nowhere'")
        wrong("infer", "model", "mine", "--threads", 0, "--out", "p.csv", says="--threads must be an integer of at least 1")


class TestSaving:
    @pytest.mark.slow
    @pytest.mark.parametrize("model", [["--model", "gcn"], ["--hops", 3]])
    def test_a_trained_model_predicts_again(self, model):
        printed = fine("train", "mine", *model, *HEAD, *PRUNED, "--no-baseline", "--save", "saved")
        assert "wrote saved: the model of seed 4" in printed.out
        fast = uf.load("saved")
        seed = fast.record["seed"]
        best = max(Ledger("runs").records()[-1]["seeds"], key=lambda found: found["val"])
        assert seed["seed"] == best["seed"]
        fine("infer", "saved", "mine", "--out", "p.npy")
        test = DATA.split(seed["seed"]).test
        assert 100 * np.mean(np.load("p.npy")[test] == DATA.y[test]) == pytest.approx(seed["test"], abs=1.5)

    @pytest.mark.slow
    def test_a_run_of_the_ledger_is_trained_again_for_its_model(self):
        fine("train", "mine", "--model", "gcn", *HEAD, *PRUNED)
        again = fine("train", "mine", "--model", "gcn", *HEAD, *PRUNED, "--save", "saved", "--json")
        assert "which stores no models; training again for --save" in again.err
        assert json.loads(again.out)["model"]["path"] == "saved"
        assert len(Ledger("runs").records()) == 2  # unpruned and sparsified, each once
        assert torch.isfinite(uf.load("saved")(DATA.x, DATA.graph)).all()

    def test_mistakes_are_found_before_the_training(self):
        for arguments, says in [
            (["--save", "mine"], "mine already exists; choose another --save"),
            (["--save", "none/saved"], "there is no folder none"),
            (["--save", "saved", "--model", "gcn", "--task", "links"], "--save writes node classifiers"),
            (["--save", "saved", "--model", "sgc", "--method", "ndls"], "--save writes models pruned by unifews"),
        ]:
            wrong("train", "mine", *arguments, says=says)
        assert not Path("runs").exists()
