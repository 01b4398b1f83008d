"""Every script of benchmarks/ runs from beginning to end at --scale smoke, without real graphs."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
RUNS = {
    "accelerate": [""],
    "accuracy": ["default", "forms"],
    "batchnorm": [""],
    "certified": ["", "--max-error 0.1"],
    "decoupled": ["--ledger {here}"],
    "dropout": [""],
    "edges": [""],
    "freed": [""],
    "honesty": [""],
    "inference": ["--models {here}"],
    "iterative": ["--ledger {here} --models gcn,gcnii"],
    "opening": [""],
    "propagation": [""],
    "scale": ["grow --folder {here}", "memory --folder {here}", "kill --folder {here}", "workers --folder {here}"],
    "tolerance": [""],
    "training": ["--skip {skipped}"],
}
SHARED = {"data", "held_out", "models"}  # imported by the scripts
SKIPPED = (
    "unpruned;edge .8;PyG, edge_index;PyG, torch.sparse CSR"  # each case of `training` imports PyG in a process of its own
)


def test_every_script_has_a_run_here():
    assert {file.stem for file in FOLDER.glob("*.py")} - SHARED == set(RUNS)


@pytest.mark.parametrize("script, options", [(script, options) for script, each in RUNS.items() for options in each])
def test_it_runs(script, options, tmp_path, monkeypatch, capsys):
    import torch

    words = [word.format(here=tmp_path, skipped=SKIPPED) for word in options.split()]
    monkeypatch.setattr(sys, "argv", [str(FOLDER / f"{script}.py"), *words, "--scale", "smoke"])
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    monkeypatch.setenv("UNIFEWS_DATA", str(tmp_path / "nothing"))
    threads = torch.get_num_threads()
    try:
        runpy.run_path(str(FOLDER / f"{script}.py"), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
        for name in SHARED:
            sys.modules.pop(name, None)
    assert capsys.readouterr().out.strip()


def test_a_generated_graph_of_arxiv_s_size_stands_in_where_there_is_no_real_one(tmp_path, monkeypatch):
    """At a hundredth of its size."""
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    monkeypatch.setenv("UNIFEWS_DATA", str(tmp_path / "nothing"))
    try:
        script = runpy.run_path(str(FOLDER / "data.py"), run_name="data")
    finally:
        sys.modules.pop("data", None)
    arxiv = script["arxiv"]
    monkeypatch.setitem(arxiv.__globals__, "GENERATED", (1_693, 23_154))
    name, x, y, edges = arxiv("full")
    assert name.startswith("a generated graph") and x.shape == (1_693, 128) and edges.shape[0] == 2 and int(y.max()) < 40
