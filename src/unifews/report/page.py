"""One self-contained HTML page about runs: the picture, the same numbers as a table, the machine. It needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from unifews.core.atomic import atomic_file
from unifews.errors import InputError
from unifews.report.compare import Gain, Record, Row, baseline_of, labels_of
from unifews.report.figure import caption, figure_html
from unifews.report.table import gains, legend, numbers, quantities

GENERATOR = '<meta name="generator" content="unifews">'

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #5b6672; --line: #d7dce1; --paper: #ffffff; --soft: #f4f6f8 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --dim: #9aa5b1; --line: #3a424b; --paper: #14181c; --soft: #1d2329 }
}
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem 1rem 3rem; background: var(--paper); color: var(--ink);
       font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .5rem } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
p, figcaption { color: var(--dim); margin: .5rem 0 } figure { margin: 1rem 0 } figcaption { font-size: .875rem }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-size: .85rem }
th, td { padding: .4rem .5rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
thead th { white-space: normal; vertical-align: bottom } tbody th, thead th:first-child { text-align: left; font-weight: 500 }
tbody th { position: sticky; left: 0; background: var(--paper) }
tr.gain td, tr.gain th { color: var(--dim); background: var(--soft) } tr.gain th { padding-left: 1.6rem; font-weight: 400 }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; font-size: .9rem; margin: 0 }
dt { color: var(--dim) } dd { margin: 0; overflow-wrap: anywhere }
figure .xtick text, figure .ytick text, figure .xtitle, figure .ytitle, figure .legendtext { fill: var(--ink) !important }
figure .gridlayer path { stroke: var(--line) !important }
"""


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
    body = f"""<figure aria-label="{escape(caption(records))}">
{figure_html(records)}
<figcaption>Further left is cheaper, further up is better. Operations are all multiply-adds from features to classes, once for
all nodes, finding principal axes included. Open mark: unpruned; bars: standard deviation over seeds.</figcaption>
</figure>
<h2>Numbers</h2>
{_table(records)}
<p>{escape(" ".join(legend(records)))}</p>"""
    return document(title, about, body, records)


def document(title: str, about: Sequence[str], body: str, records: Sequence[Record]) -> str:
    """The frame of a page: its title, paragraphs under it, what it is about as HTML, and what was run on what."""
    paragraphs = "\n".join(f"<p>{escape(text)}</p>" for text in about)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{GENERATOR}
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
{paragraphs}
{body}
<h2>Data, machine and versions</h2>
{_facts(records)}
</body>
</html>
"""


def _table(records: Sequence[Record]) -> str:
    lines = []
    for record, label in zip(records, labels_of(records), strict=True):
        lines.append(line(label, numbers(Row.of(record, label))))
        baseline = baseline_of(record, records)
        if baseline is not None:
            lines.append(line("against unpruned", gains(Gain.of(record, baseline)), ' class="gain"'))
    return table(["run", *quantities(records)], lines)


def table(names: Sequence[str], lines: Sequence[str]) -> str:
    """A table of these columns; a `line` each."""
    head, body = "".join(f'<th scope="col">{escape(name)}</th>' for name in names), "\n".join(lines)
    return f'<div class="wide">\n<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>'


def line(name: str, cells: Sequence[str], kind: str = "") -> str:
    """A row of a table."""
    return f'<tr{kind}><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'


def _facts(records: Sequence[Record]) -> str:
    """What was run on what, each fact once."""
    facts: dict[str, list[str]] = {}
    for record in records:
        data, spec, machine = record["dataset"], record["spec"], record["machine"]
        told = {
            "dataset": f"{data['name']}: {data['nodes']:,} nodes, {data['edges']:,} edges, {data['features']:,} features, "
            f"{data['classes']} classes ({data['source']})",
            "seeds": f"{len(record['seeds'])}, from {spec['seed']}",
            "machine": f"{machine['system']} {machine['processor']}, {machine['cores']} cores, {machine['kernel']}",
            "versions": ", ".join(f"{name} {number}" for name, number in record["versions"].items()),
            "runs": f"{record['id']} of {record['finished']}",
        }
        for name, value in told.items():
            if value not in facts.setdefault(name, []):
                facts[name].append(value)
    items = "\n".join(f"<dt>{name}</dt><dd>{escape('; '.join(values))}</dd>" for name, values in facts.items())
    return f"<dl>\n{items}\n</dl>"
