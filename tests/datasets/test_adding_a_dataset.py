"""A dataset is one table of registry.toml: it is listed, loaded, checked, suggested and trained on by its name."""

from __future__ import annotations

import json
import tomllib

import numpy as np
import pytest
from commands import fine, work_in, wrong

import unifews as uf
from unifews.datasets import registry
from unifews.datasets.gencat import gencat

DATA = gencat(60, 150, features=8, classes=3, seed=1, name="throw-away")
TABLE = f"""
[throw-away]
title = "generated, for this test"
nodes = {DATA.num_nodes}
edges = {DATA.graph.num_edges}
features = {DATA.num_features}
classes = 3
split = "stratified"
convention = "stratified 50/25/25 by seed; none is stored"
aliases = ["thrown"]
sparse = false
notes = ["a note of the record"]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """UNIFEWS_DATA, while the registry has one more table."""
    work_in(tmp_path, monkeypatch)
    monkeypatch.setenv("UNIFEWS_DATA", str(tmp_path))
    [(name, values)] = tomllib.loads(TABLE).items()
    monkeypatch.setitem(registry.RECORDS, name, registry._record(name, values))
    return tmp_path


def test_it_is_listed_before_its_files_are_there(folder):
    assert "throw-away" in fine("data", "list").out
    listed = {row["name"]: row for row in json.loads(fine("data", "list", "--json").out)["datasets"]}
    assert listed["throw-away"]["nodes"] == 60 and not listed["throw-away"]["here"]
    wrong("train", "throw-away", says="no throw-away.npz or throw-away/")
    wrong("train", "throw-awya", says="Did you mean 'throw-away'")


@pytest.mark.parametrize("name", ["throw-away", "Throw_Away", "thrown"])
def test_its_files_are_loaded_by_name(folder, name):
    uf.save_dataset(DATA, folder / "throw-away")
    found = uf.load_dataset(name)
    assert found.name == "throw-away" and np.array_equal(found.x, DATA.x) and "a note of the record" in found.about.notes
    listed = {row["name"]: row for row in json.loads(fine("data", "list", "--json").out)["datasets"]}
    assert listed["throw-away"]["here"]


def test_it_is_trained_on_by_name(folder):
    uf.save_dataset(DATA, folder / "throw-away")
    run = uf.train("throw-away", "gcn", epochs=2, width=4, edge_sparsity=0.5)
    assert run.to_dict()["dataset"]["name"] == "throw-away"
    found = json.loads(fine("train", "thrown", "--epochs", 2, "--width", 4, "--seeds", 1, "--json").out)
    assert found["runs"][-1]["dataset"]["nodes"] == 60
    assert "60" in fine("data", "info", "throw-away").out


def test_files_that_the_record_does_not_describe_are_refused(folder):
    uf.save_dataset(gencat(50, 120, features=8, classes=3, seed=1), folder / "throw-away")
    wrong("data", "info", "throw-away", says=["50", "60"])
