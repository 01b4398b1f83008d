"""Heads trained by two workers: the steps, and the scores, of one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import spawn, wrong
from torchrun import torchrun
from trains import QUICK, RUNS

import unifews as uf
from unifews.datasets.folder import open_dataset, save_dataset
from unifews.training.distributed import on_embedding

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("heads")
    made = uf.powerlaw(120, 900, num_features=12, num_classes=3, seed=251)
    data = uf.Dataset("made", made.graph, made.x, made.y)
    save_dataset(data, place / "classes")
    several = np.stack([data.y == 0, data.y == 1, data.y > 0], axis=1).astype(np.uint8)
    save_dataset(replace(data, y=several, about=uf.About(metric="f1")), place / "labels")
    np.save(place / "p.npy", uf.propagate(data.graph, data.x, hops=3, edge_sparsity=0.5).embedding)
    np.save(place / "short.npy", np.zeros((7, 2), dtype=np.float32))
    done = torchrun(2, HERE / "trains.py", place)
    assert done.code == 0, done.err[-3000:]
    return place


@pytest.fixture(scope="module")
def told(folder):
    return [json.loads((folder / f"told-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("name", RUNS)
def test_two_workers_take_the_steps_of_one(folder, told, name):
    data = on_embedding(open_dataset(folder / ("labels" if name == "labels" else "classes")), folder / "p.npy")
    alone = uf.train(data, "mlp", **{**QUICK, **RUNS[name]})
    for one, many in zip(alone.seeds, told[0][name], strict=True):
        for score in ("train", "val", "test"):
            assert many[score] == pytest.approx(getattr(one, score), abs=1e-3)
        assert (many["epoch"], many["kept"]) == (one.epoch, list(one.kept))
    saved = torch.load(folder / f"{name}.pt", weights_only=True)
    for key, value in alone.model.state_dict().items():
        torch.testing.assert_close(saved[key], value, atol=2e-4, rtol=1e-3)
    without = [[{**seed, "seconds": 0} for seed in each[name]] for each in told]
    assert without[0] == without[1]


def test_one_worker_keeps_the_record(folder):
    lines = (folder / "runs" / "ledger.jsonl").read_text().splitlines()
    assert len(lines) == len(RUNS) and "p.npy" in json.loads(lines[0])["dataset"]["source"]


def test_the_command(folder):
    """The unpruned head and the pruned one, alone and by two workers."""
    options = [f"--{name}={value}" for name, value in QUICK.items()]
    line = ("train", "classes", "--embedding", "p.npy", *options, "--weight-sparsity", 0.5, "--json")
    done = torchrun(2, "-m", "unifews", *line, "--ledger", "many", cwd=folder)
    assert done.code == 0, done.err[-3000:]
    many = json.loads(done.out)["runs"]
    alone = spawn(*line, "--ledger", "one", cwd=folder, OMP_NUM_THREADS="1")
    assert alone.returncode == 0, alone.stderr
    one = json.loads(alone.stdout)["runs"]
    assert len(one) == len(many) == 2
    for a, b in zip(one, many, strict=True):
        assert a["id"] == b["id"] and "p.npy" in b["dataset"]["source"]
        for one_seed, many_seeds in zip(a["seeds"], b["seeds"], strict=True):
            for name in ("train", "val", "test"):
                assert many_seeds[name] == pytest.approx(one_seed[name], abs=1e-3)
    assert len((folder / "many" / "ledger.jsonl").read_text().splitlines()) == 2 and not list((folder / "many").glob("*.toml"))


@pytest.mark.parametrize(
    "options, words",
    [
        (("--model", "sgc"), "--embedding is propagated already; leave out --model sgc"),
        (("--edge-sparsity", ".5"), "--embedding is propagated already"),
        (("--hops", 3), "--hops"),
        (("--save", "model"), "--save writes models that propagate"),
    ],
)
def test_what_an_embedding_leaves_no_room_for(folder, monkeypatch, options, words):
    monkeypatch.chdir(folder)
    wrong("train", "classes", "--embedding", "p.npy", "--no-ledger", *options, says=words)


@pytest.mark.parametrize(
    "name, words", [("model", "gcn"), ("seed", "disagree on seed"), ("rows", "shape [120, width]; got float32 of shape [7, 2]")]
)
def test_mistakes(told, name, words):
    assert words in told[0][name] and told[1][name].startswith("ReportedElsewhere")
