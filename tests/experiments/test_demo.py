"""The demo: which data it runs on, what it trains, and what it leaves behind."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from commands import fine, wrong

from unifews.datasets.dataset import Dataset
from unifews.datasets.folder import save_dataset
from unifews.datasets.gencat import cora_like, gencat
from unifews.datasets.powerlaw import powerlaw
from unifews.datasets.registry import RECORDS
from unifews.errors import FileFormatError, MissingFileError
from unifews.experiments import demo
from unifews.propagation import propagate

QUICK = dict(seeds=1, size=(500, 3000, 8), hops=2, width=4, epochs=2)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNIFEWS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("UNIFEWS_DATA", raising=False)


@pytest.fixture(scope="module")
def small():
    """What the demo finds on something small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unifews.propagation.tolerance.METHODS", ("lanczos",))  # as estimates_on_any_size
        return demo.run(dataset=gencat(200, 600, features=40, classes=2, seed=7, name="mine"), **QUICK)


@pytest.fixture
def quick(small, monkeypatch, estimates_on_any_size):
    monkeypatch.setattr(demo, "run", lambda stage, live, seeds: small)
    return small


def test_three_models_on_the_same_data(quick):
    unpruned, paper, ours = quick.records
    assert unpruned["trace"]["edge_sparsity"] == unpruned["trace"]["weight_sparsity"] == 0
    assert paper["trace"]["edge_sparsity"] == pytest.approx(0.5, abs=0.05) and paper["spec"]["entries"] == "node"
    assert ours["trace"]["edge_sparsity"] == pytest.approx(0.9, abs=0.02)
    assert ours["trace"]["weight_sparsity"] == pytest.approx(0.9, abs=0.02)
    assert quick.speed.nodes == 500 and min(quick.speed.unpruned, quick.speed.pruned, quick.speed.by_error) > 0


def test_seconds_to_an_allowed_error_and_what_it_was(quick):
    speed = quick.speed
    made = powerlaw(500, 3000, num_features=8)
    exact, out = propagate(made.graph, made.x), propagate(made.graph, made.x, max_error=0.05)
    assert (speed.max_error, speed.hops, speed.estimated_error) == (0.05, max(out.plan.hops), out.error)
    error = np.linalg.norm(out.embedding - exact.embedding) / np.linalg.norm(exact.embedding)
    assert speed.error == pytest.approx(error) and 0 < error <= 0.05 < speed.pruned_error


def test_what_a_person_sees(quick):
    out = fine("demo").out
    for part in ["paper's form,", "edges .9, weights .9", "against", "wrote unifews-demo.html", "max_error=0.05 "]:
        assert part in out
    line = next(line for line in out.splitlines() if "max_error=0.05 " in line)
    speed = quick.speed
    assert f"{speed.by_error:.2f} " in line and f"{speed.unpruned / speed.by_error:.1f}x" in line
    assert f"{speed.error:.3f} (estimate per column: {speed.estimated_error:.3f})" in line
    assert out.count("\n  unifews ") == 4  # the next commands to try
    page = Path("unifews-demo.html").read_text()
    assert "Plotly" in page and f"{speed.by_error:.2f} s with max_error=0.05" in page
    fine("demo")  # a page of its own may be replaced


def test_json_and_another_page(quick):
    report = json.loads(fine("demo", "--json", "--out", "other.html").out)
    assert len(report["runs"]) == 3 and report["page"] == "other.html" and not report["real"]
    assert report["speed"]["sparsity"] == 0.9 and Path("other.html").exists()


def test_mistakes_come_before_the_work(monkeypatch):
    monkeypatch.setattr(demo, "run", lambda *args, **settings: 1 / 0)
    Path("mine.html").write_text("mine")
    wrong("demo", "--out", "mine.html", says="is no page of unifews")
    wrong("demo", "--out", "page.pdf", says="must end in .html")
    wrong("demo", "--out", "no/page.html", says="there is no folder no")
    wrong("demo", "--seeds", 0, says="--seeds must be at least 1")


class TestCora:
    def test_the_real_one_where_there_is_a_source(self):
        cora = RECORDS["cora-lcc"]
        stand_in = cora_like()
        Path("cache").mkdir()
        save_dataset(Dataset("cora-lcc", stand_in.graph, stand_in.x, stand_in.y), "cache/cora-lcc")
        data, real, sentence = demo.cora(lambda text: None)
        assert real and data.num_nodes == cora.nodes and "Cora, its largest component" in sentence

    def test_else_the_stand_in_says_what_it_is(self, monkeypatch):
        def nowhere(name):
            raise MissingFileError(f"{name} is not on this machine")

        monkeypatch.setattr(demo, "load_dataset", nowhere)
        data, real, sentence = demo.cora(lambda text: None)
        assert not real and data.name == "cora-like" and data.num_nodes == 2485
        assert "generated graph" in sentence and "easier" in sentence and "cora-lcc is not on this machine" in sentence

    def test_a_damaged_file_is_not_passed_over(self, monkeypatch):
        Path("data").mkdir()
        np.savez("data/cora-lcc.npz", indptr=np.zeros(3, dtype=np.int64))
        monkeypatch.setenv("UNIFEWS_DATA", "data")
        with pytest.raises(FileFormatError):
            demo.cora(lambda text: None)


def test_its_picture_is_drawn(quick):
    """As docs/pictures/demo.svg is, from what --json prints."""
    script = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "pictures" / "demo.py"))
    picture = ElementTree.fromstring(script["drawn"](json.loads(json.dumps(quick.to_dict()))))
    words = " ".join(text for text in picture.itertext())
    for record in quick.records:
        assert f"{record['scores']['test']:.1f} ±" in words
