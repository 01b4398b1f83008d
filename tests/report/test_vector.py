"""Figures as SVG and PDF, tables as LaTeX: well-formed, complete, escaped, the best in bold."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from commands import fine, wrong
from test_compare import PRUNED, UNPRUNED
from test_page import EVIL
from test_report import LINES

from unifews.errors import InputError
from unifews.experiments.results import Exhibit, Series
from unifews.report.exhibits import Material, from_json
from unifews.report.figures import exhibit_plot, runs_plot
from unifews.report.latex import escape, exhibit_latex, latex_table, report_figures, report_latex
from unifews.report.tables import Shown
from unifews.report.vector import draw, linear_ticks, to_pdf, to_svg, write_figures
from unifews.training.ledger import Ledger

SVG = "{http://www.w3.org/2000/svg}"
TEXT = "δ_w 0.5 (ours) \\ & co"
KINDS = {
    "lines": [Series(TEXT, [0.1, 0.5], [88.1, 80.0], [0.9, None]), Series("b", [0.1], [87.5], published=True)],
    "scatter": [Series(TEXT, [0.2, 30.0], [1.0, 500.0]), Series("b", [1.0], [2.0])],
    "bars": [Series(TEXT, ["x", "y"], [1.0, -2.0], [0.1, 0.2]), Series("b", ["x"], [3.0], published=True)],
}
HEAT = [Series("r1", ["a", "b"], [1.0, 2.0]), Series("r2", ["b"], [3.0]), Series("r1, paper", ["a"], [1.5], published=True)]


def parsed(plot):
    root = ElementTree.fromstring(to_svg(draw(plot, "title")))
    return root, [element.text for element in root.iter(f"{SVG}text")]


class TestSvg:
    @pytest.mark.parametrize("kind", KINDS)
    def test_every_series_is_drawn_and_named(self, kind):
        root, texts = parsed(exhibit_plot(Exhibit("a", kind=kind, series=KINDS[kind], x_label="across", y_label="up")))
        assert {TEXT, "b (paper)" if kind != "scatter" else "b", "across", "up"} <= set(texts)
        marks = root.findall(f"{SVG}polygon")
        assert len(marks) == sum(len(series.x) for series in KINDS[kind]) + 2  # and one of each in the legend
        assert {mark.get("fill") == "#ffffff" for mark in marks} == ({True, False} if kind != "scatter" else {False})

    def test_a_heat_map_has_a_field_for_every_value(self):
        root, texts = parsed(exhibit_plot(Exhibit("a", kind="heatmap", series=HEAT)))
        assert len(root.findall(f"{SVG}polygon")) == 4 and {"1", "2", "3", "1.5", "ours", "paper", "r1", "a"} <= set(texts)

    def test_points_lie_where_their_values_are(self):
        plot = exhibit_plot(Exhibit("a", kind="lines", series=[Series("a", [0, 10, 20], [1.0, 3.0, 2.0])]))
        root, _ = parsed(plot)
        line = next(each for each in root.iter(f"{SVG}polyline") if each.get("stroke") == plot.marks[0].colour)
        points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        (x0, y0), (x1, y1), (x2, y2) = points
        assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and y0 - y2 == pytest.approx(y2 - y1, abs=0.2) and y0 > y2

    def test_everything_is_inside_the_page(self):
        drawing = draw(exhibit_plot(Exhibit("a", kind="scatter", series=KINDS["scatter"], guide="diagonal")))
        for shape in drawing.shapes:
            for x, y in getattr(shape, "points", [(getattr(shape, "x", 0), getattr(shape, "y", 0))]):
                assert 0 <= x <= drawing.width and 0 <= y <= drawing.height

    def test_runs_and_texts_from_files_are_escaped(self):
        _, texts = parsed(runs_plot([UNPRUNED, PRUNED]))
        assert {"unpruned", "edges .75, weights .5"} <= set(texts)
        _, texts = parsed(exhibit_plot(Exhibit("a", kind="lines", series=[Series(EVIL + "\x00", ["<a>"], [1.0])])))
        assert EVIL + " " in texts and "<a>" in texts

    def test_ticks(self):
        assert linear_ticks(-1, 1) == pytest.approx([-1, -0.5, 0, 0.5, 1])
        assert linear_ticks(87.3, 87.9) == pytest.approx([87.4, 87.6, 87.8])


class TestPdf:
    @pytest.mark.parametrize("kind", [*KINDS, "heatmap"])
    def test_its_objects_are_where_the_table_says(self, kind):
        pdf = to_pdf(draw(exhibit_plot(Exhibit("a", kind=kind, series=KINDS.get(kind, HEAT)))))
        assert pdf.startswith(b"%PDF-1.4\n") and pdf.endswith(b"%%EOF\n")
        start = int(re.search(rb"startxref\n(\d+)\n", pdf)[1])
        assert pdf[start:].startswith(b"xref\n0 5\n")
        for number, offset in enumerate(re.findall(rb"(\d{10}) 00000 n", pdf), 1):
            assert pdf[int(offset) :].startswith(b"%d 0 obj\n" % number)
        length, content = re.search(rb"/Length (\d+) >>\nstream\n(.*)\nendstream", pdf, re.DOTALL).groups()
        assert len(content) == int(length) and content.count(b"BT ") == content.count(b" ET")

    def test_texts_have_their_fonts_and_are_escaped(self):
        pdf = to_pdf(draw(exhibit_plot(Exhibit("a", kind="lines", series=KINDS["lines"]))))
        assert rb"/F2 9 Tf (d) Tj /F1 9 Tf (_w 0.5 \(ours\) \\ & co) Tj" in pdf


def check_latex(text):
    """Environments and braces are balanced, and every row has as many cells as the table has columns."""
    opened = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened
    plain = re.sub(r"\\[&%$#_{}]|\\\\", "", text)
    assert plain.count("{") == plain.count("}") and plain.count("$") % 2 == 0
    for columns, body in re.findall(r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end\{tabular\}", plain, flags=re.DOTALL):
        rows = [line for line in body.splitlines() if line.strip() and "rule" not in line]
        assert rows and {line.count("&") + 1 for line in rows} == {len(columns)}


class TestLatex:
    def test_special_characters(self):
        assert escape("a_b & 50 % {x} #1 $ ~ ^ \\") == (
            r"a\_b \& 50 \% \{x\} \#1 \$ \textasciitilde{} \textasciicircum{} \textbackslash{}"
        )
        assert escape("88.1 ± 0.9 ≥ δ") == r"88.1 $\pm$ 0.9 $\geq$ $\delta$"
        check_latex(latex_table([EVIL, "_"], [[EVIL, Shown("1_000", 1000.0)]], caption=EVIL, label=EVIL))

    def test_the_best_of_each_group_is_bold_with_its_spread(self):
        columns = ["dataset", "case", "test score, %", "test score, % ±", "seeds"]
        rows = [["a", "x", 80.0, 1.0, 3], ["a", "y", 81.0, 2.0, 3], ["b", "x", 70.0, 1.0, 3], ["b", "y", None, None, 3]]
        rows += [["c", "x", 60.0, 0.5, 3], ["c", "y", 59.0, 0.5, 3]]
        text = exhibit_latex(Exhibit("tab:t", "T", columns=columns, rows=rows, keys=2, digits=[None, None, 1, 1, 0]))
        check_latex(text)
        assert re.findall(r"\\textbf\{(.*?)\}", text) == [r"81.0 $\pm$ 2.0", r"60.0 $\pm$ 0.5"]
        assert text.count(r"\midrule") == 3 and r"\label{tab:t}" in text and r"\toprule" in text and r"\bottomrule" in text

    def test_tables_of_a_report(self):
        text = report_latex(Material([UNPRUNED, PRUNED], [from_json(Exhibit, LINES)]))
        check_latex(text)
        assert text.count(r"\begin{tabular}") == 2 and "gcn & 88.1 $\\pm$ 0.9 & 87.5" in text
        best = max(record["scores"]["test"] for record in (UNPRUNED, PRUNED))
        assert rf"\textbf{{{best:.1f}" in text


class TestFiles:
    def test_figures_of_a_report(self, tmp_path):
        plots = report_figures(Material([UNPRUNED, PRUNED], [from_json(Exhibit, LINES)]))
        assert list(plots) == ["fig_one", "runs-mine-nodes-accuracy"]
        files = write_figures(plots, tmp_path / "figures")
        assert write_figures(plots, tmp_path / "figures") == files  # ours are replaced
        assert sorted(path.name for path in files) == sorted(f"{name}.{suffix}" for name in plots for suffix in ("svg", "pdf"))
        files[0].write_text("mine")
        with pytest.raises(InputError, match="is no file of unifews"):
            write_figures(plots, tmp_path / "figures")
        assert files[0].read_text() == "mine"

    def test_by_command(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for record in (UNPRUNED, PRUNED):
            Ledger("runs/ledger.jsonl").append(record)
        out = fine("report", "runs", "--figures", "figures", "--latex", "tables.tex").out
        assert "figures: 2 files" in out and "tables.tex" in out
        check_latex(Path("tables.tex").read_text())
        ElementTree.parse("figures/runs-mine-nodes-accuracy.svg")
        report = json.loads(fine("report", "runs", "--figures", "figures", "--json").out)
        assert report["figures"] == [f"figures/runs-mine-nodes-accuracy.{suffix}" for suffix in ("svg", "pdf")]
        Path("mine.tex").write_text("mine")
        wrong("report", "runs", "--latex", "mine.tex", says="is no LaTeX file of unifews")
        wrong("report", "runs", "--latex", "tables.txt", says="must end in .tex")
        wrong("report", "runs", "--figures", "mine.tex", says="is a file")
