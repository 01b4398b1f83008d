"""Ledgers that something has damaged: every line that is whole is shown, every other one is named, and nothing breaks."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path

import pytest
from commands import fine, wrong
from test_compare import PRUNED, UNPRUNED

from unifews.errors import UnifewsError
from unifews.report.exhibits import gather
from unifews.report.page import report
from unifews.training import record

MEASURED = {
    "format": 1,
    "id": "cafe",
    "finished": "2026-11-18T00:00:00+00:00",
    "measurement": "clock",
    "settings": {"dataset": "mine"},
    "values": {"seconds": 0.5, "bound": None},
    "curves": {"degrees": {"x": [1, 2], "y": [0.5, 0.25]}},
    "seconds": {"measure": 1.0},
    "versions": UNPRUNED["versions"],
    "machine": UNPRUNED["machine"],
}
RECORDS = [UNPRUNED, PRUNED, MEASURED]
OTHERS = (
    None,
    True,
    False,
    0,
    -1,
    1,
    10**40,
    2**63,
    -0.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "=1+1",
    "\ud800",
    "\x00",
    [],
    {},
    [[]],
    [1, "a"],
    {"a": {}},
    "9" * 50,
    "<script>",
)


def places(value, at=()):
    """Where there is something in a record."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*at, key)
        yield from places(inner, (*at, key))


def changed(found, rng):
    """One value of a record replaced, gone, moved or doubled."""
    found = json.loads(json.dumps(found))
    place = rng.choice(list(places(found)))
    holder = found
    for key in place[:-1]:
        holder = holder[key]
    way, key = rng.randrange(4), place[-1]
    if way == 0:
        del holder[key]
    elif way == 1 and isinstance(holder, dict):
        holder[f"{key}?"] = holder.pop(key)
    elif way == 2:
        holder[key] = [holder[key]]
    else:
        holder[key] = rng.choice(OTHERS)
    return json.dumps(found).encode()


def spoiled(line, rng):
    """Bytes of a line changed, lost, added."""
    line, at = bytearray(line), rng.randrange(len(line))
    way = rng.randrange(5)
    if way == 0:
        line[at] ^= 1 << rng.randrange(8)
    elif way == 1:
        del line[at:]
    elif way == 2:
        del line[at : at + rng.randrange(1, 40)]
    elif way == 3:
        line[at:at] = rng.randbytes(rng.randrange(1, 9))
    else:
        line[at:at] = rng.choice([b"[" * 50_000, b'{"a":' * 50_000, b"\n", b"\0" * 9, b"}{"])
    return bytes(line)


def damaged(seed):
    """A ledger of whole lines with one or two damaged ones among them."""
    rng = random.Random(seed)
    lines = [json.dumps(found).encode() for found in RECORDS]
    for _ in range(rng.choice((1, 1, 2))):
        one = rng.choice(RECORDS)
        line = changed(one, rng) if rng.random() < 0.7 else spoiled(json.dumps(one).encode(), rng)
        lines.insert(rng.randrange(len(lines) + 1), line)
    return b"\n".join(lines) + b"\n"


def test_whole_records_are_records():
    assert [record.problem(found) for found in RECORDS] == [None] * 3


@pytest.fixture
def light(monkeypatch):
    """Pages without plotly's own script, which takes most of the time to write."""
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: "")


@pytest.mark.slow
def test_hundreds_of_damaged_ledgers_give_a_page_each(tmp_path, light):
    """Drawn by fixed seeds."""
    path, skipped = tmp_path / "ledger.jsonl", 0
    for seed in range(300):
        path.write_bytes(damaged(seed))
        material = gather([tmp_path])
        assert {UNPRUNED["id"], PRUNED["id"]} <= {one["id"] for one in material.records}
        if any(one not in RECORDS for one in material.records):
            report(material, "title").encode()
        skipped += bool(material.skipped)
    assert skipped > 150


@pytest.mark.slow
def test_whatever_a_record_lacks_or_has_instead(tmp_path, light):
    """Every value in turn, gone or another: such lines are shown or skipped, and the page of the others is made."""
    kinds = {tuple(key for key in place if isinstance(key, str)): place for place in places(PRUNED)}
    for place in kinds.values():
        lines = [json.dumps(UNPRUNED)]
        for number, other in enumerate((KeyError, None, True, -1, 1e308, "x", [], [1, "a"], {"a": {}})):
            found = json.loads(json.dumps(PRUNED | {"id": f"{number}"}))
            holder = found
            for key in place[:-1]:
                holder = holder[key]
            if other is KeyError:
                del holder[place[-1]]
            else:
                holder[place[-1]] = other
            lines.append(json.dumps(found))
        (tmp_path / "ledger.jsonl").write_text("\n".join(lines))
        report(gather([tmp_path]), "title").encode()


def test_a_hundred_damaged_exhibits_are_shown_or_refused(tmp_path, light):
    series = {"name": "s", "x": [1, 10, 100_000], "y": [1.0, 2.0, None], "error": [0.1, 0.2, 0.3], "quantity": "q"}
    whole = {
        "id": "a",
        "title": "T",
        "columns": ["a", "b ±", "b"],
        "rows": [["x", 1.0, 2], ["y", None, 3]],
        "digits": [None, 1, 1],
        "place": [0, 1],
        "series": [series, series | {"published": True}],
        "operations": ["x"],
        "guide": "diagonal",
    }
    path, shown = tmp_path / "a.json", 0
    for seed in range(120):
        rng = random.Random(seed)
        one = whole | {"kind": rng.choice(["lines", "bars", "scatter", "heatmap", "table"])}
        path.write_bytes(changed(one, rng) if seed % 5 else spoiled(json.dumps(one).encode(), rng))
        with suppress(UnifewsError):
            report(gather([path]), "title").encode()
            shown += 1
    assert 10 < shown < 110


@pytest.mark.parametrize(
    "change, says",
    [
        ({"digits": [99]}, "`digits` must not be negative or exceed 20"),
        ({"guide": "diagonal", "series": [{"name": "s", "x": ["a", 1], "y": [1, 2]}]}, "some x are texts"),
        ({"title": "\ud800"}, "half of a surrogate pair"),
    ],
)
def test_exhibits_that_could_not_be_drawn_are_refused(tmp_path, change, says):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"id": "a", "kind": "scatter", "columns": ["a"], "rows": [["x"]]} | change))
    with pytest.raises(UnifewsError, match=says):
        gather([path])


class TestCommand:
    @pytest.fixture(autouse=True)
    def runs(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        Path("runs").mkdir()
        self.path = Path("runs/ledger.jsonl")

    def test_the_report_names_what_it_skips(self):
        lacking = {name: value for name, value in PRUNED.items() if name != "metric"}
        self.path.write_text(f"{json.dumps(UNPRUNED)}\n{json.dumps(lacking)}\n{'[' * 60_000}\n{json.dumps(PRUNED)}\n")
        result = fine("report", "runs", "--json")
        assert "note: line 2 of runs/ledger.jsonl lacks `metric`" in result.err
        assert "note: line 3 of runs/ledger.jsonl has values nested too deeply" in result.err
        told = json.loads(result.out)
        assert told["runs"] == 2 and [one["line"] for one in told["skipped"]] == [2, 3]
        assert "2 lines of ledgers are skipped: runs/ledger.jsonl line 2 lacks `metric`" in Path("report.html").read_text()

    def test_many_bad_lines_are_counted(self):
        self.path.write_text(json.dumps(UNPRUNED) + "\n" + "{\n" * 300)
        result = fine("report", "runs")
        assert result.err.count("\n") == 9 and "292 more lines of runs/ledger.jsonl are skipped" in result.err
        assert "300 lines of ledgers are skipped" in Path("report.html").read_text()

    def test_nothing_but_bad_lines(self):
        self.path.write_text('{"id": "a", "metric": 3}\n{"id"\n')
        with pytest.raises(UnifewsError, match="nothing to report"):
            report(gather([Path("runs")]), "title")

    def test_a_foreign_file_in_a_folder_is_left_out(self):
        self.path.write_text(json.dumps(UNPRUNED) + "\n")
        Path("runs/other.jsonl").write_text("[1]\n")
        assert "runs/other.jsonl is neither a ledger nor an exhibit" in fine("report", "runs").err
        wrong("report", "runs/other.jsonl", says="is no ledger: line 1 is not the record of a run")
