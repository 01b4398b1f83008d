"""Pages in a real browser: nothing goes wrong, every plot is drawn, tables sort, pictures can be taken away."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from typing import get_args

import pytest
from test_compare import PRUNED, UNPRUNED
from test_report import LINES

from unifews.experiments.definitions import FigureKind
from unifews.experiments.results import Exhibit
from unifews.report.exhibits import Material, from_json
from unifews.report.page import page, report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine, and `make test` could not install one")

EXHIBITS = [
    {**LINES, "id": kind, "kind": kind, "title": kind}
    | ({"series": [{"name": str(i), "x": ["a", "b"], "y": [i, 2 * i]} for i in (1, 2, 3)]} if kind == "heatmap" else {})
    for kind in get_args(FigureKind)
]
# What the page is asked is put into a copy of it, not into the page that people get.
WATCH = """<script>
const wrong = [];
addEventListener("error", event => wrong.push(event.message));
addEventListener("unhandledrejection", event => wrong.push(String(event.reason)));
addEventListener("securitypolicyviolation", event => wrong.push(`${event.violatedDirective}: ${event.blockedURI}`));
for (const kind of ["error", "warn"]) console[kind] = (...told) => wrong.push(told.join(" "));
</script>"""
ASK = """<script>
addEventListener("load", () => setTimeout(async () => {
  const texts = (table, column) => [...table.tBodies[0].rows].map(row => row.cells[column].firstChild.textContent);
  const sorted = [...document.querySelectorAll("table.sortable")].map(table => {
    const head = table.tHead.rows[0].cells[1], seen = [];
    for (let click = 0; click < 2; click++) {
      head.querySelector("button").click();
      seen.push([head.getAttribute("aria-sort"), texts(table, 1)]);
    }
    return seen;
  });
  const plots = [...document.querySelectorAll(".plot")].map(box => ({
    id: box.id, marks: box.querySelectorAll(".point, .heatmaplayer image").length, height: box.clientHeight,
    ink: box.querySelector(".xtick text").style.fill, right: box.querySelector(".main-svg").getBoundingClientRect().right,
  }));
  const pictures = [];
  const real = Plotly.toImage;
  Plotly.downloadImage = (figure, options) => pictures.push(real(figure, options));
  document.querySelectorAll("button[data-png]").forEach(button => button.click());
  const png = (await Promise.all(pictures)).map(url => [url.slice(0, 22), url.length]);
  const told = { wrong, sorted, plots, png, wide: document.documentElement.scrollWidth, inner: innerWidth };
  const answer = document.body.appendChild(document.createElement("pre"));
  answer.id = "told";
  answer.textContent = JSON.stringify(told);
}, 1000));
</script>"""


def asked(html, folder, *options):
    """What a browser makes of a page."""
    path = folder / "page.html"
    path.write_text(html.replace("<style>", WATCH + "<style>", 1).replace("</body>", ASK + "</body>", 1), encoding="utf-8")
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder / 'profile'}",
        "--virtual-time-budget=30000",
        *options,
        "--dump-dom",
        path.as_uri(),
    ]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    found = re.search(r'<pre id="told">(.*?)</pre>', dom, flags=re.DOTALL)
    assert found, "the page did not answer"
    return json.loads(unescape(found[1]))


@pytest.fixture(scope="module")
def everything():
    return report(Material([UNPRUNED, PRUNED], [from_json(Exhibit, values) for values in EXHIBITS], []), "everything")


@pytest.fixture(scope="module")
def light(everything, tmp_path_factory):
    return asked(everything, tmp_path_factory.mktemp("light"), "--window-size=1200,900")


def test_nothing_goes_wrong_and_nothing_is_fetched(light):
    assert light["wrong"] == []


def test_every_plot_is_drawn(light):
    assert len(light["plots"]) == 5  # the runs, and every kind but the table
    for plot in light["plots"]:
        assert plot["marks"] >= 1 and plot["height"] > 300, plot


def test_tables_sort_up_and_down(light):
    assert len(light["sorted"]) == 6
    for (first, up), (second, down) in light["sorted"]:
        assert (first, second) == ("ascending", "descending") and sorted(up) == sorted(down)
    (_, up), (_, down) = light["sorted"][-1]  # the runs
    numbers = [[float(text.split()[0]) for text in texts] for texts in (up, down)]
    assert numbers[0] == sorted(numbers[0]) and numbers[1] == sorted(numbers[1], reverse=True)
    assert [texts[-1] for _, texts in light["sorted"][0]] == ["–", "–"]  # what has no value stays last


def test_pictures_can_be_taken_away(light):
    assert len(light["png"]) == 5
    assert all(head == "data:image/png;base64," and length > 10_000 for head, length in light["png"])


def test_dark_and_narrow(everything, light, tmp_path):
    dark = asked(everything, tmp_path, "--window-size=500,900", "--blink-settings=preferredColorScheme=0")
    assert dark["wrong"] == []
    assert dark["wide"] <= dark["inner"] and all(plot["right"] <= dark["inner"] for plot in dark["plots"])
    assert {plot["ink"] for plot in dark["plots"]}.isdisjoint({plot["ink"] for plot in light["plots"]})


def test_the_page_of_the_demo(tmp_path):
    told = asked(page([UNPRUNED, PRUNED], "two runs"), tmp_path)
    assert told["wrong"] == [] and [plot["id"] for plot in told["plots"]] == ["picture"] and told["plots"][0]["marks"] == 2
