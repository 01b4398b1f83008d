"""`unifews compare`: methods side by side, what is kept and shown, how it goes on after a stop, and what it refuses."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import call, fine, work_in, wrong

import unifews as uf
from unifews.cli import console
from unifews.datasets.folder import save_dataset
from unifews.datasets.gencat import gencat
from unifews.errors import InputError
from unifews.experiments.compare import split_names, supported_methods
from unifews.report.comparison import BEST, NEAR, Standing, accuracy_plot, cost_plot, page
from unifews.training import api
from unifews.training.ledger import Ledger
from unifews.training.spec import paper_form

pytestmark = pytest.mark.slow

DATA = gencat(300, 900, features=12, classes=3, seed=7, name="mine")
SMALL = ["--width", 8, "--epochs", 10, "--seeds", 2]
TWO = ["--methods", "unifews,random", "--edge-sparsity", ".5,.8"]
SETTINGS = dict(width=8, epochs=10, seeds=2)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A place to work in with one dataset, and no other on the machine."""
    work_in(tmp_path, monkeypatch)
    save_dataset(DATA, "mine")


@pytest.fixture
def none_trained(monkeypatch):
    def refuse(*args):
        raise AssertionError("something was trained")

    return lambda: monkeypatch.setattr(api, "prepared", refuse)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Every method for GCN, at two shares."""
    return uf.compare(DATA, edge_sparsity=(0.5, 0.8), ledger=tmp_path_factory.mktemp("all"), **SETTINGS)


def run_json(*arguments):
    return json.loads(fine("compare", *arguments, "--json").out)


class TestTheLibrary:
    def test_every_method_runs_at_every_share(self, found):
        entries = [(entry.method, entry.edge_sparsity) for entry in found.entries]
        assert entries == [(name, share) for share in (0.5, 0.8) for name in supported_methods("gcn", weights=False)]
        for entry in found.entries:
            assert entry.record["spec"]["method"] == entry.method
            if entry.method != "unifews":  # whose units are 16 features of 300 nodes here
                assert entry.record["trace"]["edge_sparsity"] == pytest.approx(entry.edge_sparsity, abs=0.01)

    def test_the_runs_are_those_of_train(self, found):
        run = api.train(DATA, "gcn", "dspar", edge_sparsity=0.8, **SETTINGS)
        entry = next(e for e in found.entries if (e.method, e.edge_sparsity) == ("dspar", 0.8))
        assert entry.record["id"] == run.id and entry.record["scores"]["test"] == run.accuracy.test
        plain = api.train(DATA, "gcn", **SETTINGS)
        assert found.unpruned["id"] == plain.id and found.unpruned["scores"]["test"] == plain.accuracy.test

    def test_it_prints_in_lines(self, found):
        lines = str(found).split("\n")
        assert lines[0].startswith("gcn on mine, unpruned: ") and len(lines) == 1 + len(found.entries)

    def test_methods_may_have_settings(self):
        assert split_names("unifews,ndls:epsilon=0.05,own=0.2, agp") == ["unifews", "ndls:epsilon=0.05,own=0.2", "agp"]
        own = uf.compare(DATA, "sgc", "ndls:epsilon=0.05,own=0.2", edge_sparsity=0.5, hops=3, **SETTINGS)
        assert [entry.method for entry in own.entries] == ["ndls:epsilon=0.05,own=0.2"] * 2

    def test_baselines_that_propagate_once_are_shown_by_their_own_settings_too(self):
        own = uf.compare(DATA, "appnp", edge_sparsity=[0.5], hops=3, **SETTINGS)
        entries = [(entry.method, entry.edge_sparsity) for entry in own.entries]
        assert entries == [
            *[("unifews", 0.5), ("agp", 0.5), ("unifews-push", 0.5)],
            *[("unifews:max_error=0.05", None), ("agp", None), ("unifews-push", None)],
        ]

    @pytest.mark.usefixtures("estimates_on_any_size")
    def test_settings_of_unifews_are_those_of_train(self):
        names = "unifews:max_error=0.1,unifews:entries=node"
        both = uf.compare(DATA, "appnp", names, edge_sparsity=0.5, hops=20, **SETTINGS)
        assert [(entry.method, entry.edge_sparsity) for entry in both.entries] == [
            ("unifews:entries=node", 0.5),
            ("unifews:max_error=0.1", None),
        ]
        runs = [
            api.train(DATA, "appnp", hops=20, **own, **SETTINGS)
            for own in (dict(edge_sparsity=0.5, entries="node"), dict(max_error=0.1))
        ]
        assert [entry.record["id"] for entry in both.entries] == [run.id for run in runs]
        assert api.train(DATA, "appnp", "unifews:max_error=0.1", hops=20, **SETTINGS).id == runs[1].id
        assert f"estimated error {runs[1].trace.estimated_error:.2g}" in str(both).splitlines()[-1]
        with pytest.raises(InputError, match=r"max_error=0.2 and method='unifews:max_error=0.1' differ; give one"):
            api.train(DATA, "appnp", "unifews:max_error=0.1", max_error=0.2)

    def test_the_paper_s_form_is_one_option_away(self):
        both = uf.compare(DATA, methods="unifews", edge_sparsity=0.5, paper_form=True, **SETTINGS)
        assert [entry.method for entry in both.entries] == ["unifews", "unifews, paper's form"]
        assert [entry.record["spec"]["entries"] for entry in both.entries] == ["unit", "node"]
        run = api.train(DATA, "gcn", edge_sparsity=0.5, **paper_form("gcn"), **SETTINGS)
        assert both.entries[1].record["id"] == run.id

    def test_kinds_and_their_controls(self):
        """Rows for random and smallest entries of each kind, at the cost of the largest."""
        found = uf.compare(
            DATA, methods="unifews:entries=edge,unifews,random", edge_sparsity=0.5, controls=True, width=8, epochs=2, seeds=1
        )
        kinds = ["unifews:entries=edge", "unifews"]
        controls = ["unifews:entries=edge,choice=random", "unifews:entries=edge,choice=smallest"]
        controls += ["unifews:choice=random", "unifews:choice=smallest"]
        assert [entry.method for entry in found.entries] == [*kinds, "random", *controls]
        macs = {entry.method: entry.record["trace"]["edge_sparsity"] for entry in found.entries}
        assert macs["unifews"] == macs["unifews:choice=random"] == macs["unifews:choice=smallest"]
        run = api.train(DATA, "gcn", entries="edge", choice="random", edge_sparsity=0.5, width=8, epochs=2, seeds=1)
        assert found.entries[3].record["id"] == run.id
        assert len({entry.record["id"] for entry in found.entries}) == len(found.entries)

    def test_weights_go_by_methods_that_can(self):
        both = uf.compare(DATA, edge_sparsity=0, weight_sparsity=0.5, **SETTINGS)
        assert "dspar" not in {entry.method for entry in both.entries}
        for entry in both.entries:
            assert entry.record["trace"]["weight_sparsity"] == pytest.approx(0.5, abs=0.02)

    def test_a_method_that_fails_leaves_its_reason(self):
        some = uf.compare(DATA, methods="random,glt", edge_sparsity=0.5, width=8, seeds=1, epochs=4)
        assert [type(entry.outcome) for entry in some.entries] == [dict, InputError]
        assert "4 epochs are too few" in some.to_dict()["compared"][1]["error"]
        assert Standing(some).to_dict()["compared"][1]["against_unpruned"] is None
        assert "4 epochs are too few" in page(Standing(some))

    def test_if_all_fail_so_does_the_comparison(self):
        with pytest.raises(InputError, match="4 epochs are too few"):
            uf.compare(DATA, methods="glt", edge_sparsity=0.5, width=8, seeds=1, epochs=4)


class TestStanding:
    def test_the_best_of_each_share_and_what_is_near_it(self, found):
        standing = Standing(found)
        for share in (0.5, 0.8):
            lines = [line for line in standing.lines if line.entry.edge_sparsity == share]
            best = max(line.row.score for line in lines)
            assert [line.row.score for line in lines if line.rank == BEST] == [best]
            winner = next(line.entry.record for line in lines if line.rank == BEST)
            for line in lines:
                apart = [a["test"] - b["test"] for a, b in zip(winner["seeds"], line.entry.record["seeds"], strict=True)]
                mean = sum(apart) / len(apart)
                spread = (sum((value - mean) ** 2 for value in apart) / len(apart)) ** 0.5
                if line.rank != BEST:
                    assert (line.rank == NEAR) == (mean <= spread)

    def test_the_pictures_show_every_run(self, found):
        standing = Standing(found)
        curves = {curve.name: curve for curve in accuracy_plot(standing).marks}
        assert set(curves) == {"unpruned", *supported_methods("gcn", weights=False)}
        random = [e.record for e in found.entries if e.method == "random"]
        assert sorted(curves["random"].x) == sorted(record["trace"]["macs"] for record in random)
        assert list(curves["random"].x) == sorted(curves["random"].x)
        bars = cost_plot(standing).marks[0]
        assert bars.x[0] == "unpruned" and len(bars.x) == len(curves) and all(height > 0 for height in bars.y)

    def test_the_page_needs_no_network_and_has_both_pictures(self, found):
        html = page(Standing(found))
        assert html.count('<div id="picture"') == html.count('<div id="cost"') == 1
        assert not re.findall(r'(?:src|href)="(?!data:)', re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL))
        assert html.count("<tr>") == 2 + len(found.entries)


class TestTheCommand:
    def test_the_table_has_a_line_per_method_and_share(self):
        out = fine("compare", "mine", *TWO, *SMALL).out
        for pattern in [
            r"unpruned +- +\d",
            r"unifews +0\.5 +\d",
            r"random +0\.5 +\d",
            r"unifews +0\.8",
            r"random +0\.8.* 20\.0%",
        ]:
            assert re.search(pattern, out), pattern
        assert "GCN on mine, 2 seeds: 300 nodes" in out and "runs are stored in runs" in out and out.count("best") >= 2

    def test_nothing_is_trained_twice(self, none_trained):
        first = run_json("mine", *TWO, *SMALL)
        none_trained()
        assert run_json("mine", *TWO, *SMALL) == first
        assert len(Ledger("runs").records()) == 5

    def test_the_unpruned_run_is_that_of_unifews_train(self, none_trained):
        fine("train", "mine", "--model", "gcn", *SMALL)
        records = len(Ledger("runs").records())
        run_json("mine", *TWO, *SMALL)
        assert len(Ledger("runs").records()) == records + 4

    def test_json_has_records_and_differences(self):
        report = run_json("mine", *TWO, *SMALL, "--out", "page.html")
        assert [(e["method"], e["edge_sparsity"]) for e in report["compared"]] == [
            ("unifews", 0.5),
            ("random", 0.5),
            ("unifews", 0.8),
            ("random", 0.8),
        ]
        entry = report["compared"][1]
        points = entry["record"]["scores"]["test"] - report["unpruned"]["scores"]["test"]
        assert entry["against_unpruned"]["points"] == pytest.approx(points)
        assert report["page"] == "page.html" and "methods side by side" in Path("page.html").read_text(encoding="utf-8")

    def test_a_command_that_was_killed_goes_on(self):
        arguments = ["compare", "mine", *TWO, "--width", 8, "--epochs", 200, "--seeds", 3]
        process = subprocess.Popen(
            [sys.executable, "-m", "unifews", *map(str, arguments)],
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
        )
        ledger, end = Ledger("runs"), time.monotonic() + 300
        while not ledger.records() and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        kept = ledger.records()
        assert 1 <= len(kept) < 5
        report = run_json(*arguments[1:])
        everything = [report["unpruned"], *(entry["record"] for entry in report["compared"])]
        assert all(record in everything for record in kept)
        assert len({record["id"] for record in ledger.records()}) == len(ledger.records()) == 5
        assert not list(Path("runs").glob(".*.partial.json"))

    def test_a_failure_is_a_note_beside_the_others(self):
        result = fine("compare", "mine", "--methods", "random,glt", "--edge-sparsity", 0.5, "--width", 8, "--epochs", 4)
        assert re.search(r"random +0\.5", result.out) and "glt" not in result.out
        assert "note: glt, edges 0.5: method 'glt' searches" in result.err


class TestMistakes:
    @pytest.mark.parametrize(
        "arguments, says",
        [
            (["--methods", "unifews,dspr"], "no method named 'dspr'. Did you mean 'dspar'?"),
            (
                ["--model", "gccn"],
                ["no model named 'gccn'. Did you mean 'gcn'?", "Known: appnp, gat, gcn, gcnii, gin, sage, sgc."],
            ),
            (["--model", "sage", "--methods", "glt"], "method 'glt' works on"),
            (["--methods", "dspar", "--weight-sparsity", 0.5], "'dspar' removes no weights"),
            (["--model", "appnp", "--controls"], "controls need a model whose layers propagate"),
            (["--methods", "random", "--controls"], "which is not among the methods"),
            (["--methods", "unifews:entries=block", "--controls"], "has no effect with"),
            (["--methods", "unifews:entries=unitt"], "Did you mean 'unit'?"),
            (["--methods", "unifews:chioce=random"], "Did you mean 'choice'?"),
            (["--methods", "unifews:choice=rndom"], "Did you mean 'random'?"),
            (["--edge-sparsity", ".5,1.5"], "got 1.5"),
            (["--edge-sparsity", "half"], "'half'"),
            (["--edge-sparsity", ""], "--edge-sparsity"),
            (["--edge-sparsity", "0"], "removes nothing"),
            (["--methods", ","], "is empty"),
            (["--seeds", 0], "--seeds"),
            (["--jobs", 0], "--jobs"),
            (["--hops", 3], "--hops"),
            (["--model", "mlp"], "an MLP sees no edges"),
            (["--out", "page.txt"], "must end in .html"),
            (["--out", "no/page.html"], "there is no folder no"),
        ],
    )
    def test_are_told_before_any_training(self, none_trained, arguments, says):
        none_trained()
        wrong("compare", "mine", *SMALL, *arguments, says=says)
        assert not Path("runs/ledger.jsonl").exists()

    def test_an_unknown_dataset(self):
        wrong("compare", "mime", says="mime")

    def test_a_foreign_page_is_not_replaced(self, none_trained):
        none_trained()
        Path("page.html").write_text("mine")
        wrong("compare", "mine", "--out", "page.html", says="no page of unifews")


@pytest.mark.parametrize("seconds, words", [(None, ""), (0, ""), (3, "3 s"), (600, "10 min"), (9000, "2.5 h")])
def test_the_time_left_in_words(seconds, words):
    assert words in console.time_left(seconds) and bool(words) == bool(console.time_left(seconds))


def test_help_names_the_defaults():
    assert "[default: .3,.5,.8,.9]" in call("compare", "--help").out


def test_figures_and_latex_of_a_comparison(tmp_path):
    report = run_json("mine", *TWO, *SMALL, "--figures", "figures", "--latex", "table.tex")
    stems = ("accuracy", "training-seconds")
    assert report["files"] == [*(f"figures/{stem}.{suffix}" for stem in stems for suffix in ("svg", "pdf")), "table.tex"]
    table = Path("table.tex").read_text(encoding="utf-8")
    for sparsity in (0.5, 0.8):  # the best at each sparsity, and only that, is bold
        rows = [line for line in table.splitlines() if f"& {sparsity} &" in line]
        scores = [float(re.search(r"& (?:\\textbf\{)?(\d+\.\d)", line.partition(f"& {sparsity} ")[2])[1]) for line in rows]
        bold = [score for line, score in zip(rows, scores, strict=True) if "textbf" in line]
        assert len(rows) == 2 and bold == [max(scores)]
    wrong("compare", "mine", *TWO, *SMALL, "--latex", "table.txt", says="must end in .tex")
