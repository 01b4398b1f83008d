"""The page: complete, self-contained, escaped, and never in place of somebody else's file."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from html.parser import HTMLParser

import pytest
from test_compare import PRUNED, UNPRUNED

from unifews.errors import InputError, MissingFileError
from unifews.report.figures import log_ticks, plotly_figure, runs_plot
from unifews.report.page import page, write_page
from unifews.report.tables import short

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


class Reader(HTMLParser):
    """Tags as they open and close, and the text outside scripts and styles."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "br", "img", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.text += data


@pytest.fixture(scope="module")
def html():
    return page([UNPRUNED, PRUNED], "two runs", ("of which one is pruned",))


def test_it_is_well_formed_and_says_everything(html):
    read = Reader(html)
    assert read.open == [] and html.startswith("<!doctype html>")
    trace = PRUNED["trace"]
    for part in [
        "two runs",
        "of which one is pruned",
        "unpruned",
        "edges .75, weights .5",
        "against unpruned",
        f"{trace['edge_sparsity']:.1%}",
        short(trace["macs"]),
        short(trace["basis_macs"]),
        f"{PRUNED['scores']['test']:.1f}",
        PRUNED["id"],
        UNPRUNED["id"],
        "200 nodes",
        PRUNED["versions"]["torch"],
        PRUNED["machine"]["kernel"],
    ]:
        assert part in read.text


def test_it_needs_no_network(html):
    read = Reader(html)
    links = [value for name, value in read.attributes if name in ("src", "href", "action", "srcset")]
    assert links and all(link.startswith("data:text/csv;") for link in links)  # files that can be taken away
    assert "Content-Security-Policy" in html and "default-src 'none'" in html
    assert "Plotly.newPlot" in html and len(html) > 1_000_000  # plotly itself is inside
    assert "@import" not in html.split("</style>")[0] and "url(" not in html.split("</style>")[0]


def test_light_dark_and_small(html):
    assert "prefers-color-scheme: dark" in html and 'name="viewport"' in html and "overflow-x: auto" in html


def test_everything_is_escaped():
    evil = deepcopy(PRUNED)
    evil["spec"]["dataset"] = evil["dataset"]["name"] = evil["dataset"]["source"] = evil["id"] = EVIL
    evil["versions"] = {"torch": EVIL}
    evil["machine"]["kernel"] = EVIL
    text = page([UNPRUNED, evil], EVIL, (EVIL,))
    read = Reader(text)
    assert (
        read.open == []
        and "img" not in read.tags
        and read.tags.count("script") == Reader(page([UNPRUNED], "")).tags.count("script")
    )
    assert EVIL not in text and EVIL in read.text
    names = [trace.name for trace in plotly_figure(runs_plot([UNPRUNED, evil])).data]
    assert "<" not in names[1] and "&lt;" in names[1]  # plotly would take tags for markup


def test_the_picture_has_the_numbers_of_the_table():
    unpruned, pruned = plotly_figure(runs_plot([UNPRUNED, PRUNED])).data
    assert unpruned.marker.symbol == "circle-open" and pruned.marker.symbol != "circle-open"
    trace = PRUNED["trace"]
    assert pruned.x == (trace["macs"] + trace["basis_macs"] + trace["transform_macs"],)
    assert pruned.y == (PRUNED["scores"]["test"],) and pruned.error_y.array == (PRUNED["scores"]["test_std"],)


def test_ticks_are_round_and_inside():
    assert log_ticks(8.2, 9.5) == [200_000_000, 500_000_000, 1_000_000_000, 2_000_000_000]
    assert log_ticks(3.1, 8.9) == [10**power for power in range(4, 9)]


def test_only_a_page_of_ours_is_replaced(tmp_path):
    path = tmp_path / "page.html"
    write_page([UNPRUNED], path, "first")
    write_page([UNPRUNED], path, "second")
    assert "<h1>second</h1>" in path.read_text() and list(tmp_path.iterdir()) == [path]
    path.write_text("<html>my thesis</html>")
    with pytest.raises(InputError, match=r"is no page of unifews"):
        write_page([UNPRUNED], path, "third")
    assert path.read_text() == "<html>my thesis</html>"
    with pytest.raises(InputError, match="is a folder"):
        write_page([UNPRUNED], tmp_path, "third")
    with pytest.raises(MissingFileError, match="there is no folder"):
        write_page([UNPRUNED], tmp_path / "no" / "page.html", "third")


def test_no_runs_no_page():
    with pytest.raises(InputError, match="at least one run"):
        page([], "nothing")


def test_records_from_a_ledger_will_do(html):
    records = [json.loads(json.dumps(record)) for record in (UNPRUNED, PRUNED)]
    assert re.sub(r"\s", "", page(records, "two runs", ("of which one is pruned",))) == re.sub(r"\s", "", html)
