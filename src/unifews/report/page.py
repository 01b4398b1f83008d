"""One self-contained HTML page about runs: pictures, the same numbers as tables, the machine. It needs no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from unifews.errors import InputError
from unifews.report.compare import Record
from unifews.report.runs import runs_html
from unifews.storage.atomic import atomic_file
from unifews.training.result import machine_words, version_words

GENERATOR = '<meta name="generator" content="unifews">'
# Whatever a ledger holds, the page can fetch nothing, and nobody can be sent anything from it.
_ALONE = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


_FEW = 12  # runs that are named one by one; tables have the names of all


def write_page(records: Sequence[Record], path: Path, title: str, about: Sequence[str] = ()) -> None:
    """Write the page in one step; only a page of ours is ever replaced. `about`: paragraphs under the title."""
    put_page(page(records, title, about), path)


def put_page(text: str, path: Path) -> None:
    """The same of a page that is there already, as text."""
    check_page(path)
    with atomic_file(path, overwrite=True) as file:
        file.write(text.encode())


def check_page(path: Path) -> None:
    """That `write_page` may write here; for whoever wants to know before the work is done."""
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder.")
    if path.exists():
        with path.open("rb") as file:
            if GENERATOR.encode() not in file.read(1024):
                raise InputError(f"{path} already exists and is no page of unifews, so it is not replaced; give another name.")


def page(records: Sequence[Record], title: str, about: Sequence[str] = ()) -> str:
    """The page as text; every word that comes from outside is escaped."""
    if not records:
        raise InputError("a page needs at least one run; there is none to show.")
    return document(title, about, runs_html(records, "picture"), records)


def document(
    title: str, about: Sequence[str], body: str, records: Sequence[Record], made: Mapping[str, Sequence[str]] | None = None
) -> str:
    """The frame of a page: its title, paragraphs under it, what it is about as HTML, and what was run on what.

    `made`: facts beside those of the records.
    """
    from plotly.offline import get_plotlyjs

    paragraphs = "\n".join(f"<p>{escape(text)}</p>" for text in about)
    plotly = f"<script>{get_plotlyjs()}</script>\n" if 'class="plot"' in body else ""
    found = _facts(records, made or {})
    facts = f"<h2>Data, machine and versions</h2>\n{found}\n" if found else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{GENERATOR}
<meta http-equiv="Content-Security-Policy" content="{_ALONE}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_beside("page.css")}</style>
</head>
<body>
<h1>{escape(title)}</h1>
{paragraphs}
{body}
{facts}{plotly}<script>{_beside("page.js")}</script>
</body>
</html>
"""


def _beside(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _facts(records: Sequence[Record], made: Mapping[str, Sequence[str]]) -> str:
    """What was run on what, each fact once."""
    facts: dict[str, list[str]] = {}
    for record in records:
        data, spec = record["dataset"], record["spec"]
        told = {
            "dataset": f"{data['name']}: {data['nodes']:,} nodes, {data['edges']:,} edges, {data['features']:,} features, "
            f"{data['classes']} classes ({data['source']})",
            "seeds": f"{len(record['seeds'])}, from {spec['seed']}",
            "machine": machine_words(record),
            "versions": version_words(record),
            "runs": f"{record['id']} of {record['finished']}",
        }
        for name, value in told.items():
            if value not in facts.setdefault(name, []):
                facts[name].append(value)
    for name, values in made.items():
        if fresh := [value for value in dict.fromkeys(values) if value not in facts.get(name, [])]:
            facts.setdefault(name, []).extend(fresh)
    if len(records) > _FEW:
        days = sorted(str(record["finished"]) for record in records)
        facts["runs"] = [f"{len(records):,}, finished from {days[0]} to {days[-1]}"]
    items = "\n".join(f"<dt>{name}</dt><dd>{'<br>'.join(map(escape, values))}</dd>" for name, values in facts.items())
    return f"<dl>\n{items}\n</dl>" if facts else ""
