"""Self-contained HTML pages that need no network: figures, the same numbers as tables, data, machine and versions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from unifews.errors import InputError
from unifews.experiments.results import Cell, Exhibit, as_csv
from unifews.report.exhibits import Material
from unifews.report.figures import exhibit_plot, plot_html, runs_plot
from unifews.report.runs import Gain, Record, Row, baseline_of, labels_of, prunes, published_score
from unifews.report.tables import Shown, html_table, legend, put_file, run_table, short, with_spread, with_std
from unifews.training.metrics import NAMES
from unifews.training.result import machine_words, version_words, versions

GENERATOR = '<meta name="generator" content="unifews">'
# Whatever a ledger contains, the page can load nothing and send nothing.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_LISTED_RUNS = 12  # with more runs, only their number and dates are listed
_LISTED_LINES = 5  # skipped lines that are listed
_LISTED_SETTINGS = 4  # settings listed where labels do not identify runs, or as many as needed


def write_page(records: Sequence[Record], path: Path, title: str, about: Sequence[str] = ()) -> None:
    """Write a page about runs atomically; only a page of unifews is replaced. `about`: paragraphs below the title."""
    put_file(path, page(records, title, about).encode())


def write_report(material: Material, path: Path, title: str) -> None:
    """Write a page of everything that was gathered."""
    put_file(path, report(material, title).encode())


def page(records: Sequence[Record], title: str, about: Sequence[str] = ()) -> str:
    """A page about runs, as text."""
    if not records:
        raise InputError("a page needs at least one run.")
    return document(title, about, _runs(records, "picture"), records)


def report(material: Material, title: str) -> str:
    """A page of everything that was gathered: each reproduced table and figure, then runs by dataset."""
    if not material.records and not material.exhibits:
        raise InputError("there is nothing to report: the sources have no finished run and no table or figure.")
    chapters = [*_exhibit_chapters(material.exhibits), *_run_chapters(material.records)]
    links = "".join(f'<li><a href="#{name}">{escape(heading)}</a></li>' for name, heading, _ in chapters)
    contents = f"<nav><ul>{links}</ul></nav>\n" if len(chapters) > 1 else ""
    body = "\n".join(f'<section id="{name}"><h2>{escape(heading)}</h2>\n{html}</section>' for name, heading, html in chapters)
    made = {
        "machine": [each for one in material.exhibits for each in one.machines],
        "versions": [each for one in material.exhibits for each in one.versions],
    }
    software = ", ".join(f"{name} {number}" for name, number in versions().items() if name in ("unifews", "commit"))
    about = f"{material}. Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by {software}.{_skipped(material)}"
    return document(title, [about], contents + body, material.records, made)


def document(
    title: str, about: Sequence[str], body: str, records: Sequence[Record], made: Mapping[str, Sequence[str]] | None = None
) -> str:
    """A page with its title, paragraphs below it, a body of HTML, and facts about the records; `made`: further facts."""
    from plotly.offline import get_plotlyjs

    paragraphs = "\n".join(f"<p>{escape(text)}</p>" for text in about)
    plotly = f"<script>{get_plotlyjs()}</script>\n" if 'class="plot"' in body else ""
    found = _facts(records, made or {})
    items = "\n".join(f"<dt>{name}</dt><dd>{'<br>'.join(map(escape, values))}</dd>" for name, values in found.items())
    facts = f"<h2>Data, machine and versions</h2>\n<dl>\n{items}\n</dl>\n" if found else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{GENERATOR}
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_asset("page.css")}</style>
</head>
<body>
<h1>{escape(title)}</h1>
{paragraphs}
{body}
{facts}{plotly}<script>{_asset("page.js")}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _facts(records: Sequence[Record], made: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Datasets, seeds, machines, versions and runs, each once."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        data, spec = record["dataset"], record["spec"]
        facts = {
            "dataset": f"{data['name']}: {data['nodes']:,} nodes, {data['edges']:,} edges, {data['features']:,} features, "
            f"{data['classes']} classes ({data['source']})",
            "seeds": f"{len(record['seeds'])}, from {spec['seed']}",
            "machine": machine_words(record),
            "versions": version_words(record),
            "runs": f"{record['id']} of {record['finished']}",
        }
        for name, value in facts.items():
            found.setdefault(name, {})[value] = None
    for name, values in made.items():
        if values:
            found.setdefault(name, {}).update(dict.fromkeys(values))
    if len(records) > _LISTED_RUNS:
        days = sorted(str(record["finished"]) for record in records)
        found["runs"] = {f"{len(records):,}, finished from {days[0]} to {days[-1]}": None}
    return {name: list(values) for name, values in found.items()}


def _skipped(material: Material) -> str:
    """Lines of ledgers that are not shown, so that the page is not taken as complete."""
    count = len(material.skipped)
    if not count:
        return ""
    listed = "; ".join(f"{path} line {line} {why}" for path, (line, why) in material.skipped[:_LISTED_LINES])
    more = f"; and {count - _LISTED_LINES:,} more" if count > _LISTED_LINES else ""
    return f" {count:,} {'line of a ledger is' if count == 1 else 'lines of ledgers are'} skipped: {listed}{more}."


# --------------------------------------------------------------------------------------------------------------- exhibits


def _exhibit_chapters(exhibits: Sequence[Exhibit]) -> Iterator[tuple[str, str, str]]:
    """Anchor, heading and HTML of each experiment: caption and source, its figures with their tables, then notes."""
    groups: dict[str, list[tuple[int, Exhibit]]] = {}
    for number, one in enumerate(exhibits, 1):
        groups.setdefault(one.heading, []).append((number, one))
    for heading, group in groups.items():
        parts = [f"<p>{escape(text)}</p>" for text in dict.fromkeys(one.caption for _, one in group if one.caption)]
        parts += [f'<p class="source">{text}</p>' for text in dict.fromkeys(_source(one) for _, one in group) if text]
        tables: list[tuple[Sequence[str], Sequence[Sequence[Cell]]]] = []
        for number, one in group:
            parts += [f"<h3>{escape(one.panel)}</h3>"] if one.panel else []
            parts.append(_exhibit(one, f"{number}-{slug(one.id)}", with_table=(one.columns, one.rows) not in tables))
            tables.append((one.columns, one.rows))
        notes = dict.fromkeys(note for _, one in group for note in one.notes)
        if notes:
            parts.append(f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>")
        yield f"exhibit-{group[0][0]}", heading, "\n".join(parts) + "\n"


def _source(exhibit: Exhibit) -> str:
    """Its label in the paper, and the command that reproduces it."""
    paper = f"{escape(exhibit.label)} of the paper" if exhibit.label else "not in the paper" if exhibit.command else ""
    command = f"<code>{escape(exhibit.command)}</code>" if exhibit.command else ""
    return ": ".join(text for text in (paper, command) if text)


def _exhibit(exhibit: Exhibit, name: str, *, with_table: bool) -> str:
    parts = []
    if exhibit.is_drawn:
        parts.append(f'<figure aria-label="{escape(exhibit.title)}">\n{plot_html(exhibit_plot(exhibit), name)}\n</figure>')
    head, rows = exhibit_table(exhibit)
    if rows and with_table:
        keys = range(max(1, min(exhibit.keys, len(head))))
        sticky = max(keys, key=lambda place: len({row[place] for row in rows}))  # the key with the most values
        parts.append(html_table(head, rows, name, as_csv(exhibit.columns, exhibit.rows), sticky))
    return "\n".join(parts)


def exhibit_table(exhibit: Exhibit) -> tuple[list[str], list[list[Shown | Cell]]]:
    """Its table without empty rows and columns."""
    filled = [row for row in exhibit.rows if any(cell is not None for cell in row)]
    head, rows = with_spread(exhibit.columns, filled, exhibit.digits)
    used = [place for place in range(len(head)) if any(row[place] is not None for row in rows)]
    return [head[place] for place in used], [[row[place] for place in used] for row in rows]


def slug(text: str) -> str:
    """Text as part of a file name and of an anchor."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "unnamed"


# ------------------------------------------------------------------------------------------------------------------- runs


def _run_chapters(records: Sequence[Record]) -> Iterator[tuple[str, str, str]]:
    """Anchor, heading and HTML of the runs of each dataset, task and metric."""
    for number, ((dataset, task, metric), runs) in enumerate(runs_by_dataset(records).items(), 1):
        of = "" if task == "nodes" else f" of {task}"
        heading = f"{dataset}: {NAMES.get(metric, metric)}{of}, {len(runs)} {'run' if len(runs) == 1 else 'runs'}"
        yield f"runs-{number}", heading, _runs(runs, f"runs-{number}-{slug(dataset)}")


def runs_by_dataset(records: Sequence[Record]) -> dict[tuple[str, str, str], list[Record]]:
    """Runs that can be compared, by dataset, task and metric."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        key = record["dataset"]["name"], record["spec"].get("task", "nodes"), record["metric"]
        groups.setdefault(key, []).append(record)
    return groups


def _runs(records: Sequence[Record], name: str) -> str:
    """A figure and a table of runs; `name` is the figure's id."""
    rows = [Row.of(record, label) for record, label in zip(records, labels_of(records), strict=True)]
    caption = "; ".join(f"{row.label}: {row.score:.1f} % at {short(row.operations)} MACs" for row in rows)
    return f"""<figure aria-label="{escape(caption)}">
{plot_html(runs_plot(records), name)}
<figcaption>Further left is cheaper, further up is better. Operations are all multiply-adds from features to classes, once for
all nodes, including the principal axes. Open mark: unpruned; bars: standard deviation over seeds.</figcaption>
</figure>
{html_table(*_with_paper(records), name, data=_runs_csv(records))}
<p>{escape(" ".join(_legend(records)))}</p>"""


def _with_paper(records: Sequence[Record]) -> tuple[list[str], list[list[Shown]]]:
    """The table of runs with their details, and the paper's scores where it prints some."""
    head, rows = run_table(records)
    rows = [
        [label._replace(small=_details(record, records)), *rest] for record, (label, *rest) in zip(records, rows, strict=True)
    ]
    papers = [published_score(record) for record in records]
    if any(papers):
        head[2:2] = ["in the paper", "against the paper"]
        for record, paper, cells in zip(records, papers, rows, strict=True):
            cells[2:2] = [Shown("–"), Shown("–")] if paper is None else _against(Row.of(record), paper)
    return head, rows


def _against(row: Row, paper: float) -> list[Shown]:
    gap = row.score - paper
    return [Shown(f"{paper:.1f}", paper), Shown(with_std(f"{gap:+.1f}", row.std, row.seeds), gap)]


def _details(record: Record, records: Sequence[Record]) -> str:
    """Seeds, id, and the settings in which a run differs from others of its label."""
    labels = labels_of(records)
    mine = labels[next(place for place, other in enumerate(records) if other is record)]
    alike = [other for other, label in zip(records, labels, strict=True) if label == mine and other is not record]
    seeds = len(record["seeds"])
    settings = _differences(record, alike)
    return ", ".join([f"{seeds} {'seed' if seeds == 1 else 'seeds'}", str(record["id"])[:12], *settings])


def _differences(record: Record, alike: Sequence[Record]) -> list[str]:
    """Settings that distinguish a run from each of the others, then a few more."""
    mine, others = _flat(record["spec"]), [_flat(other["spec"]) for other in alike]
    # Part of the label, or without effect where nothing is pruned.
    known = ("seed", "edge_", "weight_sparsity", "weight_threshold") if prunes(record) else ("seed", "edge_", "weight_")
    varying = [name for name in mine if not name.startswith(known) and any(other.get(name) != mine[name] for other in others)]
    needed: list[str] = []
    while varying and others:
        best = max(varying, key=lambda name: sum(other.get(name) != mine[name] for other in others))
        rest = [other for other in others if other.get(best) == mine[best]]
        if len(rest) == len(others):
            break
        needed, others = [*needed, best], rest
    listed = {*needed, *[name for name in varying if name not in needed][: max(0, _LISTED_SETTINGS - len(needed))]}
    return [f"{name} {mine[name]}" for name in varying if name in listed]


def _flat(spec: Mapping[str, Any]) -> Record:
    """Settings by name, those of the recipe first: they differ most often."""
    return {**spec.get("recipe", {}), **{name: value for name, value in spec.items() if name != "recipe"}}


def _runs_csv(records: Sequence[Record]) -> str:
    """The runs as CSV, with all digits."""
    rows = []
    for record, label in zip(records, labels_of(records), strict=True):
        baseline, row = baseline_of(record, records), Row.of(record, label)
        gain = None if baseline is None else Gain.of(record, baseline)
        over = ["", ""] if gain is None else [gain.points, gain.spread]
        spec = [record["spec"][name] for name in ("dataset", "model", "method")]
        rows.append([*spec, *asdict(row).values(), row.operations, *over, published_score(record)])
    head = [*(field.name for field in fields(Row)), "operations", "against_unpruned", "against_unpruned_std", "in_the_paper"]
    return as_csv(["dataset", "model", "method", *head], rows)


def _legend(records: Sequence[Record]) -> list[str]:
    sentences = legend(records)
    if any(baseline_of(record, records) for record in records):
        sentences.append("Below a number: against unpruned, the run of the same settings and seeds with nothing removed.")
    if any(published_score(record) is not None for record in records):
        sentences.append("In the paper: its tab:dec, by its own recipe; ±: ours.")
    return sentences
