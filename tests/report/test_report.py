"""The report: what it is made of, what it shows, and what it says about files that are no use to it."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from base64 import b64decode
from copy import deepcopy
from io import StringIO
from pathlib import Path

import pytest
from commands import fine, wrong
from test_compare import PRUNED, UNPRUNED
from test_page import EVIL, Reader

from unifews.errors import FileFormatError, InputError, MissingFileError
from unifews.experiments.results import Exhibit, Series, as_csv
from unifews.report.exhibits import Material, from_json, gather, read_exhibit
from unifews.report.figures import exhibit_plot, plot_csv, plotly_figure, runs_plot
from unifews.report.page import report
from unifews.report.runs import published_score
from unifews.report.tables import Shown, shown, with_spread
from unifews.training.ledger import Ledger
from unifews.training.result import commit, versions

ROOT = Path(__file__).parents[2]
LINES = {
    "id": "fig:one",
    "title": "One figure",
    "caption": "what it shows",
    "kind": "lines",
    "columns": ["model", "score", "score ±", "score, paper", "score, difference"],
    "rows": [["gcn", 88.12, 0.9, 87.5, 0.62], ["gat", None, None, "OOM", None]],
    "series": [
        {"name": "gcn", "x": [0.1, 0.5], "y": [88.1, None], "error": [0.9, None], "published": False},
        {"name": "gcn", "x": [0.1, 0.5], "y": [87.5, 80.0], "error": [], "published": True},
    ],
    "x_label": "removed",
    "y_label": "test score, %",
    "notes": ["a note"],
}


def figure_of(exhibit):
    return plotly_figure(exhibit_plot(exhibit))


def data_of(exhibit):
    return plot_csv(exhibit_plot(exhibit))


def files_of(html):
    """Name and rows of everything that can be taken away as CSV."""
    links = re.findall(r'download="([^"]+)" href="data:text/csv;charset=utf-8;base64,([^"]*)"', html)
    return {name: list(csv.reader(StringIO(b64decode(text).decode()))) for name, text in links}


def written(tmp_path, **changes):
    path = tmp_path / "one.json"
    path.write_text(json.dumps({**LINES, **changes}))
    return path


class TestExhibits:
    def test_a_file_as_reproduce_writes_it(self, tmp_path):
        one = read_exhibit(written(tmp_path))
        assert one.title == "One figure" and one.is_drawn and one.series[1].published
        assert one.series[0].y == [88.1, None]

    @pytest.mark.parametrize(
        "changes, says",
        [
            ({"kind": "pie"}, "no `kind` named 'pie'"),
            ({"guide": "vertical"}, "`guide` is a height, or one of '', 'diagonal'; got 'vertical'"),
            ({"digits": [1]}, "`digits` has 1 numbers for"),
            ({"keys": -1}, "`keys` must not be negative"),
            ({"rows": [["gcn"]]}, "a row has 1 cells for 5 columns"),
            ({"series": [{"name": "a", "x": [1], "y": [1, 2]}]}, "1 x, 2 y and 0 errors"),
            ({"series": [{"x": [1], "y": [1]}]}, "series without `name`"),
            ({"series": [{"name": "a", "x": [1], "y": ["many"]}]}, "`y` must be number or null; got 'many'"),
            ({"rows": {"a": 1}}, "`rows` must be a list; got a dict"),
            ({"title": ["a"]}, "`title` must be text; got"),
        ],
    )
    def test_what_does_not_add_up_is_told_with_its_file(self, tmp_path, changes, says):
        with pytest.raises(FileFormatError, match=re.escape(says)) as error:
            read_exhibit(written(tmp_path, **changes))
        assert "one.json" in str(error.value)

    def test_no_json_and_no_exhibit(self, tmp_path):
        path = tmp_path / "one.json"
        path.write_text("{")
        with pytest.raises(FileFormatError, match="is not JSON"):
            read_exhibit(path)
        path.write_text("[]")
        with pytest.raises(FileFormatError, match="is not a figure or table"):
            read_exhibit(path)


class TestFigures:
    def test_the_paper_s_values_look_different_from_ours(self, tmp_path):
        ours, paper = figure_of(read_exhibit(written(tmp_path))).data
        assert list(ours.y) == [88.1, None] and ours.line.dash == "solid" and not ours.marker.symbol.endswith("-open")
        assert paper.line.dash == "dash" and paper.marker.symbol.endswith("-open") and paper.name == "gcn (paper)"
        assert paper.marker.color != ours.marker.color

    @pytest.mark.parametrize("kind, drawn", [("lines", "scatter"), ("scatter", "scatter"), ("bars", "bar")])
    def test_every_kind(self, tmp_path, kind, drawn):
        assert {trace.type for trace in figure_of(read_exhibit(written(tmp_path, kind=kind))).data} == {drawn}

    def test_a_heat_map_has_a_row_per_series(self):
        rows = [Series("0.1", ["a", "b"], [1.0, 2.0]), Series("0.2", ["b"], [3.0])]
        (heat,) = figure_of(Exhibit("hm", "heat", kind="heatmap", series=rows)).data
        assert [list(line) for line in heat.z] == [[1.0, 2.0], [None, 3.0]] and list(heat.y) == ["0.1", "0.2"]
        assert "0.2,b,3.0," in data_of(Exhibit("hm", "heat", kind="heatmap", series=rows))

    def test_places_over_many_decades_are_drawn_by_their_logarithms(self):
        for places, axis in (([1e-3, 10.0], "log"), ([1.0, 10.0], None), ([0.0, 1e6], None)):
            assert figure_of(Exhibit("a", "a", kind="lines", series=[Series("a", places, [1, 2])])).layout.xaxis.type == axis

    def test_lines_are_seen_against_what_removes_nothing(self):
        series = [
            Series("unpruned", [0.0], [88.0]),
            Series("a", [0, 50], [87, 80]),
            Series("b, paper", [0], [86], published=True),
        ]
        (line,) = figure_of(Exhibit("a", "a", kind="lines", series=series)).layout.shapes
        assert (line.y0, line.y1) == (88.0, 88.0)

    def test_quantities_have_panels_one_below_the_other_and_lines_one_colour(self):
        series = [Series(name, [1, 2], [80, 81], quantity=what) for what in ("score", "removed") for name in ("a", "b")]
        exhibit = Exhibit("a", "a", kind="lines", series=series, x_label="hops")
        fig = figure_of(exhibit)
        assert (fig.layout.yaxis.title.text, fig.layout.yaxis2.title.text) == ("score", "removed")
        assert fig.layout.xaxis2.title.text == "hops" and not fig.layout.xaxis.title.text
        assert [trace.showlegend for trace in fig.data] == [True, True, False, False]
        assert fig.data[0].marker.color == fig.data[2].marker.color != fig.data[1].marker.color
        assert data_of(exhibit).splitlines()[1] == '"a, score",1,80,'

    def test_the_papers_heat_map_stands_below_ours_by_the_same_colours(self):
        series = [Series("δ 1", [1, 2], [80, 81]), Series("δ 1, paper", [1, 2], [82, 83], published=True)]
        exhibit = Exhibit("a", "a", kind="heatmap", series=series)
        fig = figure_of(exhibit)
        assert [(trace.name, list(trace.y)) for trace in fig.data] == [("ours", ["δ 1"]), ("paper", ["δ 1"])]
        assert {trace.coloraxis for trace in fig.data} == {"coloraxis"}
        assert data_of(exhibit).splitlines()[1:] == [
            '"δ 1, ours",1,80,',
            '"δ 1, ours",2,81,',
            '"δ 1, paper",1,82,',
            '"δ 1, paper",2,83,',
        ]

    def test_sizes_against_sizes_are_drawn_by_logarithms_with_a_guide(self):
        one = Series("a", [0.2, 30.0], [1.0, 500.0])
        fig = figure_of(Exhibit("a", "a", kind="scatter", series=[one], guide="diagonal"))
        assert fig.layout.xaxis.type == fig.layout.yaxis.type == "log" and list(fig.data[-1].x) == list(fig.data[-1].y) == [
            0.2,
            30,
        ]
        assert "0.2" in fig.layout.xaxis.ticktext and "100" in fig.layout.yaxis.ticktext
        (line,) = figure_of(Exhibit("a", "a", kind="scatter", series=[one], guide=1)).layout.shapes
        assert line.y0 == 1

    @pytest.mark.parametrize("kind", ["lines", "scatter", "bars"])
    @pytest.mark.parametrize("axis", ["x", "y"])
    def test_operations_over_more_than_a_decade_are_drawn_by_their_logarithms(self, kind, axis):
        for counts, drawn in (([0.2, 30.0], "log"), ([2.0, 10.0], None), ([0.0, 30.0], None), ([0.2, None], None)):
            other = [2.0, 3.0] if kind == "scatter" else [0.2, 30.0]  # not operations, so left as it is
            one = Series("a", *([counts, other] if axis == "x" else [other, counts]))
            layout = figure_of(Exhibit("a", "a", kind=kind, series=[one], operations=[axis])).layout
            if (kind, axis) == ("bars", "x"):
                drawn = "category"
            assert layout[f"{axis}axis"].type == drawn and layout[f"{'y' if axis == 'x' else 'x'}axis"].type != "log"

    def test_the_data_of_a_figure(self, tmp_path):
        rows = list(csv.reader(StringIO(data_of(read_exhibit(written(tmp_path))))))
        assert rows[0] == ["series", "removed", "test score, %", "spread"]
        assert rows[1] == ["gcn", "0.1", "88.1", "0.9"] and rows[3] == ["gcn (paper)", "0.1", "87.5", ""]


class TestCells:
    @pytest.mark.parametrize(
        "cell, text, value",
        [
            (None, "–", None),
            (12345, "12,345", 12345.0),
            (0.123456, "0.1235", 0.123456),
            (123456.7, "123,457", 123456.7),
            (Shown("1.83 G", 1.83e9), "1.83 G", 1.83e9),
            ("gcn", "gcn", None),
            (float("nan"), "–", None),
            (True, "yes", None),
        ],
    )
    def test_what_is_read_and_what_it_is_sorted_by(self, cell, text, value):
        assert shown(cell)[:2] == (text, value)

    def test_spread_and_difference_in_one_cell(self):
        head, rows = with_spread(LINES["columns"], LINES["rows"])
        assert head == ["model", "score", "score, paper", "score, difference"]
        assert rows[0] == ["gcn", Shown("88.1 ± 0.9", 88.12), 87.5, Shown("+0.6 ± 0.9", 0.62)]
        assert rows[1] == ["gat", None, "OOM", None]


PRINTED = {"layers": 2, "width": 512, "epochs": 200}  # of the models in the paper's table


class TestThePage:
    def test_runs_and_exhibits_on_one_page(self):
        html = report(Material([UNPRUNED, PRUNED], [from_json(Exhibit, LINES)], []), "all of it")
        read = Reader(html)
        assert read.open == [] and html.count('class="plot"') == 2
        for part in [
            "all of it",
            "2 runs and 1 table or figure",
            "mine: accuracy, 2 runs",
            "One figure",
            "what it shows",
            "a note",
            "OOM",
            "88.1 ± 0.9",
            "+0.6 ± 0.9",
            PRUNED["id"],
            PRUNED["versions"]["torch"],
            f"{PRUNED['scores']['test']:.1f}",
            "against unpruned",
        ]:
            assert part in read.text, part
        targets = {value for name, value in read.attributes if name == "id"}
        links = [value for name, value in read.attributes if name == "href" and not value.startswith("data:")]
        assert links and all(link.startswith("#") and link[1:] in targets for link in links)

    def test_everything_can_be_taken_away(self):
        files = files_of(report(Material([UNPRUNED, PRUNED], [from_json(Exhibit, LINES)], []), "all of it"))
        assert {name.endswith("-table.csv") for name in files} == {True, False} and len(files) == 4
        runs = next(rows for name, rows in files.items() if name.startswith("runs-1") and name.endswith("-table.csv"))
        told = dict(zip(runs[0], runs[2], strict=True))
        assert float(told["score"]) == PRUNED["scores"]["test"] and int(told["macs"]) == PRUNED["trace"]["macs"]
        table = next(rows for name, rows in files.items() if "fig-one-table" in name)
        assert table == [LINES["columns"], ["gcn", "88.12", "0.9", "87.5", "0.62"], ["gat", "", "", "OOM", ""]]

    def test_rows_and_columns_that_say_nothing_are_left_out(self):
        empty = {**LINES, "columns": ["model", "score", "seconds"], "rows": [["gcn", 88.1, None], [None, None, None]]}
        html = report(Material([], [from_json(Exhibit, empty)], []), "one")
        assert html.count("<tr>") == 2 and "seconds" not in Reader(html).text
        assert next(rows for name, rows in files_of(html).items() if name.endswith("-table.csv"))[0] == empty["columns"]

    def test_runs_of_one_label_are_told_apart_by_their_settings(self):
        other = deepcopy(UNPRUNED)
        other["id"], other["spec"]["hops"], other["spec"]["recipe"]["lr"] = "other", 7, 0.25
        text = Reader(report(Material([UNPRUNED, other, PRUNED], [], []), "three")).text
        assert "other, lr 0.25, hops 7" in text
        assert f"{UNPRUNED['id'][:12]}, lr {UNPRUNED['spec']['recipe']['lr']}, hops {UNPRUNED['spec']['hops']}" in text
        assert f"{PRUNED['id'][:12]}, lr" not in text

    def test_what_tells_two_runs_apart_is_named_however_much_else_differs(self):
        runs = []
        for number, hops in enumerate((3, 7)):  # both unlike the third in five settings, and unlike each other in one
            run = deepcopy(UNPRUNED)
            run["id"], run["spec"]["hops"] = f"run{number}", hops
            run["spec"]["recipe"] |= {"lr": 0.25, "dropout": 0.1, "epochs": 3, "layers": 5, "width": 9}
            runs.append(run)
        text = Reader(report(Material([UNPRUNED, *runs], [], []), "three")).text
        assert "hops 3" in text and "hops 7" in text

    def test_many_runs_are_counted_and_the_legend_tells_models_apart(self):
        records = [
            {**record, "id": f"{number}", "finished": f"2026-01-{number + 1:02}"}
            for number, record in enumerate([UNPRUNED, PRUNED] * 8)
        ]
        for number, record in enumerate(records):
            record["spec"] = {**record["spec"], "model": ("appnp", "sgc")[number % 2]}
        text = Reader(report(Material(records, [], []), "many")).text
        assert "16, finished from 2026-01-01 to 2026-01-16" in text
        traces = plotly_figure(runs_plot(records)).data
        assert [trace.name for trace in traces if trace.showlegend is not False] == ["appnp", "sgc"]
        assert len(traces) == 18 and traces[0].name == "appnp unpruned"

    def test_what_is_evaluated_differently_is_separate(self):
        other = deepcopy(UNPRUNED)
        other["dataset"]["name"] = other["spec"]["dataset"] = "other"
        html = report(Material([UNPRUNED, other, PRUNED], [], []), "two")
        assert "mine: accuracy, 2 runs" in html and "other: accuracy, 1 run" in html

    def test_nothing_from_a_file_becomes_markup(self):
        evil = deepcopy(LINES)
        evil |= {name: EVIL for name in ("id", "title", "caption", "x_label")} | {"notes": [EVIL], "columns": [EVIL]}
        evil["rows"], evil["series"] = [[EVIL]], [{"name": EVIL, "x": [EVIL], "y": [1]}]
        html = report(Material([], [from_json(Exhibit, evil)], []), EVIL)
        plain = report(Material([], [from_json(Exhibit, LINES)], []), "plain")
        assert EVIL not in html and "img" not in Reader(html).tags
        assert Reader(html).tags.count("script") == Reader(plain).tags.count("script")

    def test_nothing_is_no_report(self):
        with pytest.raises(InputError, match="there is nothing to report"):
            report(Material([], [], []), "empty")

    def test_the_paper_s_score_beside_ours(self):
        half = deepcopy(PRUNED)
        half["dataset"]["name"], half["spec"]["model"] = "cora-lcc", "appnp"
        half["spec"] |= {"edge_sparsity": 0.5, "weight_sparsity": None, "hops": 20}
        half["spec"]["recipe"] |= PRINTED
        assert published_score(half) == 86.5
        assert published_score(PRUNED) is None  # another dataset
        half["spec"]["edge_sparsity"] = 0.9
        assert published_score(half) is None
        unpruned = deepcopy(UNPRUNED)
        unpruned["dataset"]["name"], unpruned["spec"]["hops"] = "cora-lcc", 20
        unpruned["spec"]["recipe"] |= PRINTED
        assert published_score(unpruned) == 86.2
        for other in ({"hops": 5}, {"recipe": {**unpruned["spec"]["recipe"], "epochs": 6}}):
            assert published_score({**unpruned, "spec": {**unpruned["spec"], **other}}) is None
        text = Reader(report(Material([unpruned], [], []), "one")).text
        assert "in the paper" in text and f"{unpruned['scores']['test'] - 86.2:+.1f}" in text
        both = Reader(report(Material([unpruned, half], [], []), "two")).text  # the paper prints a score for only one of them
        assert "in the paper" in both and f"{unpruned['scores']['test'] - 86.2:+.1f}" in both


@pytest.mark.skipif(not (ROOT / ".git").exists() or not shutil.which("git"), reason="needs a checkout, and git")
def test_records_tell_the_commit_of_the_checkout_that_they_come_from():
    commit.cache_clear()
    head = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    assert head.startswith(versions()["commit"].removesuffix("-dirty"))


@pytest.mark.parametrize("text", ['=cmd|"/c calc"!A1', "+1+cmd", "-1+cmd", "@SUM(A1)", "\t=1", "\r=1", "-x", "--1", "\n@a"])
def test_no_text_of_a_csv_is_a_formula(text):
    rows = list(csv.reader(StringIO(as_csv([text, "b"], [["a", text]]), newline="")))
    told = "'" + text.replace("\r", "\n")
    assert rows == [[told, "b"], ["a", told]]


@pytest.mark.parametrize("cell", [-0.5, "-0.5", "+0.4 ± 1.2", "-1,234.5", "-1e-05", "-3 %", "-", "", None, 0, "a=b", "±"])
def test_numbers_of_a_csv_stay_numbers(cell):
    assert list(csv.reader(StringIO(as_csv(["a"], [[cell, 1]]))))[1] == ["" if cell is None else str(cell), "1"]


def test_a_dataset_with_the_name_of_a_formula_is_a_text_in_every_csv_of_a_page():
    evil = '=cmd|"/c calc"!A1'
    record = deepcopy(UNPRUNED)
    record["dataset"]["name"] = record["spec"]["dataset"] = evil
    page = report(Material([record, PRUNED], []), "title")
    files = [b64decode(text).decode() for text in re.findall(r"charset=utf-8;base64,([^\"]+)", page)]
    assert len(files) > 1 and any(evil.split("|")[0] in text for text in files)
    for cell in (cell for text in files for row in csv.reader(StringIO(text)) for cell in row):
        assert not cell.startswith("=")


class TestGather:
    def test_of_every_run_the_latest(self, tmp_path):
        ledger = Ledger(tmp_path / "ledger.jsonl")
        later = {**UNPRUNED, "finished": "later"}
        for record in (UNPRUNED, PRUNED, later, {"id": "measured", "kind": "something else"}):
            ledger.append(record)
        found = gather([tmp_path])
        assert [record["id"] for record in found.records] == [UNPRUNED["id"], PRUNED["id"]]
        assert found.records[0]["finished"] == "later" and found.exhibits == []

    def test_a_folder_of_both_and_of_other_files(self, tmp_path):
        written(tmp_path)
        Ledger(tmp_path / "ledger.jsonl").append(PRUNED)
        (tmp_path / "settings.json").write_text("{}")
        found = gather([tmp_path])
        assert len(found.records) == len(found.exhibits) == 1 and [path.name for path in found.ignored] == ["settings.json"]

    def test_a_record_that_lacks_something_is_named(self, tmp_path):
        broken = deepcopy(PRUNED)
        del broken["trace"]["macs"]
        for record in (UNPRUNED, broken):
            Ledger(tmp_path / "ledger.jsonl").append(record)
        found = gather([tmp_path])
        assert found.records == [UNPRUNED] and found.skipped == [(tmp_path / "ledger.jsonl", (2, "lacks `trace.macs`"))]
        assert f"1 line of a ledger is skipped: {tmp_path}/ledger.jsonl line 2 lacks `trace.macs`." in report(found, "title")

    def test_nothing_there(self, tmp_path):
        with pytest.raises(MissingFileError, match="has no ledger"):
            gather([tmp_path])
        with pytest.raises(MissingFileError, match="there is no"):
            gather([tmp_path / "no"])


class TestTheCommand:
    @pytest.fixture
    def runs(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        Ledger("runs/ledger.jsonl").append(PRUNED)
        return tmp_path / "runs"

    def test_a_page_of_a_ledger(self, runs):
        assert fine("report", runs).out == "wrote report.html: 1 run\n"
        assert "mine: accuracy, 1 run" in (runs.parent / "report.html").read_text(encoding="utf-8")
        told = json.loads(fine("report", runs / "ledger.jsonl", "--out", "other.html", "--json").out)
        assert told == {"page": "other.html", "runs": 1, "exhibits": [], "skipped": [], "figures": [], "latex": None}

    def test_a_line_that_was_cut_off_is_told(self, runs):
        book = Ledger(runs)
        with book.path.open("ab") as file:
            file.write(b'{"id": "half')
        assert fine("report", str(book.path), "--out", "page.html").err.count("is cut off") == 1

    def test_mistakes(self, runs):
        (runs.parent / "mine.html").write_text("mine")
        wrong("report", runs, "--out", "mine.html", says="is no page of unifews")
        wrong("report", runs, "--out", "page.pdf", says="must end in .html")
        wrong("report", runs, "--out", "no/page.html", says="there is no folder no")
        wrong("report", "nowhere", says="there is no nowhere")
        (runs.parent / "text.jsonl").write_text("hello\n")
        wrong("report", runs.parent / "text.jsonl", says="is no ledger")
