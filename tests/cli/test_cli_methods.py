"""`unifews methods`, and `unifews train --method`."""

from __future__ import annotations

import json

import pytest
from commands import fine, wrong
from method_cases import learnable

import unifews as uf
from unifews.methods import registry

QUICK = ("--width", 16, "--epochs", 4, "--seeds", 2, "--hops", 4)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    uf.save_dataset(learnable(), tmp_path / "mine")
    return tmp_path


def test_all_are_listed_with_what_they_do():
    printed = fine("methods").out
    for card in registry.cards()[0]:
        assert card.name in printed
    assert "ndls:epsilon=0.03,own=0.15,normalise=true" in printed


def test_as_json():
    printed = json.loads(fine("methods", "--json").out)
    rows = {row["name"]: row for row in printed["methods"]}
    assert rows["agp"] == {
        "name": "agp",
        "prunes": ["edges"],
        "backbones": ["sgc", "appnp"],
        "paper": registry.find("agp").card.paper,
        "settings": {"rmax": 1e-7, "compat": False},
    }
    assert set(rows) == set(registry.names()) and printed["broken"] == {}


def test_a_model_trained_by_another_method_stands_beside_the_unpruned_one(folder):
    printed = fine("train", "mine", "--model", "sgc", "--method", "ndls:own=0.2", "--edge-sparsity", 0.5, *QUICK, "--json").out
    unpruned, pruned = json.loads(printed)["runs"]
    assert (unpruned["spec"]["method"], pruned["spec"]["method"]) == ("unifews", "ndls:own=0.2")
    assert (unpruned["spec"]["r"], pruned["spec"]["r"]) == (0.5, 0.0)
    assert pruned["trace"]["edge_sparsity"] == pytest.approx(0.5, abs=0.02) and unpruned["trace"]["edge_sparsity"] == 0
    assert json.loads(printed)["against_unpruned"]["macs"] > 1


def test_the_table_names_the_method_and_the_run_file_repeats_it(folder):
    printed = fine("train", "mine", "--model", "sgc", "--method", "nigcn:epsilon=0.1", *QUICK).out
    assert "nigcn:epsilon=0.1" in printed and "against" in printed and "paper's form" not in printed
    (run_file,) = (path for path in (folder / "runs").glob("*.toml") if "nigcn" in path.read_text())
    again = fine("train", "-f", run_file)
    assert "is in runs/ledger.jsonl" in again.err


@pytest.mark.parametrize(
    "options, says",
    [
        (["--method", "ndsl"], "Did you mean 'ndls'"),
        (["--method", "ndls", "--model", "gcn"], ["works on --model sgc", "for gcn take --method "]),
        (["--method", "ndls", "--model", "appnp"], "works on --model sgc, not on 'appnp'"),
        (["--method", "agp", "--weight-sparsity", "0.5"], "'agp' removes no weights"),
        (["--method", "agp", "--basis", "input"], "--basis belongs to --method unifews"),
        (["--method", "agp", "--paper-form"], "--paper-form is a setting of --method unifews"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_loaded(options, says):
    wrong("train", "nowhere", *options, says=says)
