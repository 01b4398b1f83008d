"""Everything that was gathered on one page: each table and figure that was reproduced, then runs by dataset."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from unifews.errors import InputError
from unifews.experiments.quantities import as_csv
from unifews.report.cells import Cell, with_spread
from unifews.report.compare import Record
from unifews.report.exhibit import Exhibit
from unifews.report.gather import Material
from unifews.report.page import document, put_page
from unifews.report.plot import drawn, figure_of
from unifews.report.runs import runs_html
from unifews.report.sheet import sheet_html
from unifews.training.metrics import NAMES
from unifews.training.result import versions

_NAMED = 5  # skipped lines that are named one by one


def write_book(material: Material, path: Path, title: str) -> None:
    """Write the page in one step; only a page of ours is ever replaced."""
    put_page(book(material, title), path)


def book(material: Material, title: str) -> str:
    """The page as text."""
    if not material.records and not material.exhibits:
        raise InputError("there is nothing to report: no finished run and no table or figure in what was given.")
    chapters = _of_exhibits(material.exhibits) + _of_runs(material.records)
    links = "".join(f'<li><a href="#{name}">{escape(heading)}</a></li>' for name, heading, _ in chapters)
    contents = f"<nav><ul>{links}</ul></nav>\n" if len(chapters) > 1 else ""
    body = "\n".join(f'<section id="{name}"><h2>{escape(heading)}</h2>\n{html}</section>' for name, heading, html in chapters)
    return document(title, [_about(material)], contents + body, material.records, _made(material.exhibits))


def _made(exhibits: Sequence[Exhibit]) -> dict[str, list[str]]:
    """The machines and versions of what was reproduced."""
    return {
        "machine": [each for one in exhibits for each in one.machines],
        "versions": [each for one in exhibits for each in one.versions],
    }


def _about(material: Material) -> str:
    found = ", ".join(f"{name} {number}" for name, number in versions().items() if name in ("unifews", "commit"))
    return f"{material}. Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by {found}.{_left_out(material)}"


def _left_out(material: Material) -> str:
    """Lines of ledgers that are not shown, for nobody to take the page as complete."""
    count = len(material.skipped)
    if not count:
        return ""
    named = "; ".join(f"{path} line {line} {why}" for path, (line, why) in material.skipped[:_NAMED])
    more = f"; and {count - _NAMED:,} more" if count > _NAMED else ""
    return f" {count:,} {'line of a ledger is' if count == 1 else 'lines of ledgers are'} skipped: {named}{more}."


def _of_runs(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Name, heading and HTML of every dataset: what is judged in the same way stands together."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        key = record["dataset"]["name"], record["spec"].get("task", "nodes"), record["metric"]
        groups.setdefault(key, []).append(record)
    chapters = []
    for number, ((dataset, task, metric), runs) in enumerate(groups.items(), 1):
        of = "" if task == "nodes" else f" of {task}"
        heading = f"{dataset}: {NAMES.get(metric, metric)}{of}, {len(runs)} {'run' if len(runs) == 1 else 'runs'}"
        chapters.append((f"runs-{number}", heading, runs_html(runs, f"runs-{number}-{_slug(dataset)}")))
    return chapters


def _of_exhibits(exhibits: Sequence[Exhibit]) -> list[tuple[str, str, str]]:
    """A chapter for each experiment: what it is and where it comes from, its figures with their tables, then notes."""
    groups: dict[str, list[tuple[int, Exhibit]]] = {}
    for number, one in enumerate(exhibits, 1):
        groups.setdefault(one.heading, []).append((number, one))
    return [(f"exhibit-{group[0][0]}", heading, _experiment(group)) for heading, group in groups.items()]


def _experiment(group: Sequence[tuple[int, Exhibit]]) -> str:
    parts = [f"<p>{escape(text)}</p>" for text in dict.fromkeys(one.caption for _, one in group if one.caption)]
    parts += [f'<p class="source">{text}</p>' for text in dict.fromkeys(_source(one) for _, one in group) if text]
    seen: list[tuple[Sequence[str], Sequence[Sequence[Cell]]]] = []
    for number, one in group:
        parts += [f"<h3>{escape(one.panel)}</h3>"] if one.panel else []
        parts.append(_exhibit(one, f"{number}-{_slug(one.id)}", table=(one.columns, one.rows) not in seen))
        seen.append((one.columns, one.rows))
    notes = dict.fromkeys(note for _, one in group for note in one.notes)
    if notes:
        parts.append(f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>")
    return "\n".join(parts) + "\n"


def _source(exhibit: Exhibit) -> str:
    """What it is in the paper, and the command that makes it."""
    paper = f"{escape(exhibit.label)} of the paper" if exhibit.label else "not in the paper" if exhibit.command else ""
    command = f"<code>{escape(exhibit.command)}</code>" if exhibit.command else ""
    return ": ".join(text for text in (paper, command) if text)


def _exhibit(exhibit: Exhibit, name: str, *, table: bool) -> str:
    parts = []
    if exhibit.is_drawn:
        parts.append(f'<figure aria-label="{escape(exhibit.title)}">\n{drawn(figure_of(exhibit), name)}\n</figure>')
    head, rows, held = _told(exhibit)
    if rows and table:
        parts.append(sheet_html(head, rows, name, as_csv(exhibit.columns, exhibit.rows), held))
    return "\n".join(parts)


def _told(exhibit: Exhibit) -> tuple[list[str], list[list[Cell]], int]:
    """Its table without rows and columns that say nothing, and which column tells the most rows apart."""
    said = [row for row in exhibit.rows if any(cell is not None for cell in row)]
    head, rows = with_spread(exhibit.columns, said, exhibit.digits)
    kept = [place for place in range(len(head)) if any(row[place] is not None for row in rows)]
    head, rows = [head[place] for place in kept], [[row[place] for place in kept] for row in rows]
    keys = range(max(1, sum(place < exhibit.keys for place in kept)))
    return head, rows, max(keys, key=lambda place: len({row[place] for row in rows})) if rows else 0


def _slug(text: str) -> str:
    """Text as part of a file name and of an anchor."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "unnamed"
