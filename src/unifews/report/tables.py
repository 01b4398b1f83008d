"""Tables of runs and exhibits: cells with text and value, rendered for a terminal and as sortable HTML."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from unifews.errors import InputError
from unifews.experiments.results import Cell, as_csv, format_decimals, format_signed
from unifews.report.runs import Gain, Record, Row, baseline_of, labels_of
from unifews.storage.atomic import atomic_file
from unifews.training.metrics import NAMES

if TYPE_CHECKING:
    from rich.table import Table

EMPTY = "–"
"""Text of a cell without a value."""


class Shown(NamedTuple):
    """A cell: its text, the value it is sorted by, and a second line in small print."""

    text: str
    value: float | None = None
    small: str = ""


Cells = Sequence[Shown | Cell]


def shown(cell: Shown | Cell) -> Shown:
    """A plain value as a cell: numbers in four significant digits, text unchanged."""
    if isinstance(cell, Shown):
        return cell
    if cell is None or cell in ("", "-", EMPTY):
        return Shown(EMPTY)
    if isinstance(cell, bool):
        return Shown("yes" if cell else "no")
    if isinstance(cell, int):
        return Shown(f"{cell:,}", float(cell))
    if isinstance(cell, str):
        return Shown(cell)
    if not math.isfinite(cell):
        return Shown(EMPTY if math.isnan(cell) else str(cell))
    return Shown(f"{cell:,.0f}" if abs(cell) >= 10_000 else f"{cell:.4g}", cell)


def short(count: float) -> str:
    """A count in three significant digits: 1.83 G."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            value = count / size
            return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"
    return str(count)


def with_std(value: str, std: float, seeds: int) -> str:
    """A score or difference with its standard deviation, if there are several seeds."""
    return f"{value} ± {std:.1f}" if seeds > 1 else value


# ------------------------------------------------------------------------------------------------------------------- runs


class _Column(NamedTuple):
    """A quantity of `Row`."""

    title: str
    name: str
    text: Callable[[Any], str]
    better: str = ""
    """A larger gain: "fewer" operations, "faster"."""
    shown_with: str = ""
    """Another quantity that must not be zero for the column to be shown."""

    def applies(self, row: Row) -> bool:
        return bool(getattr(row, self.name) and getattr(row, self.shown_with or self.name))


_COLUMNS = (
    _Column("propagation MACs", "macs", short, "fewer"),
    _Column("principal axes MACs", "basis_macs", short),
    _Column("transformation MACs", "transform_macs", short, "fewer"),
    _Column("MACs in all", "operations", short, "fewer"),
    _Column("edge entries removed", "edge_sparsity", "{:.1%}".format),
    _Column("weights removed", "weight_sparsity", "{:.1%}".format),
    _Column("estimated error", "estimated_error", "{:.2g}".format),
    _Column("propagation seconds", "propagate_seconds", "{:.2f}".format, "faster", "macs"),
    _Column("training seconds", "train_seconds", "{:.2f}".format, "faster"),
)
_WORSE = {"fewer": "more", "faster": "slower"}


def run_table(records: Sequence[Record]) -> tuple[list[str], list[list[Shown]]]:
    """Titles, and a row per run: its label, then its numbers, each with the gain over the unpruned run of the same settings.

    Columns that are zero for all runs are left out: an MLP has no edges, an unpruned model no sparsity.
    """
    metrics = " or ".join(sorted({NAMES[record["metric"]] for record in records}))
    tasks = " or ".join(sorted({record["spec"].get("task", "nodes") for record in records}))
    rows = [[Shown(label), *_numbers(record, records)] for record, label in zip(records, labels_of(records), strict=True)]
    shown = [Row.of(record) for record in records]
    used = [0, 1, *(place for place, column in enumerate(_COLUMNS, 2) if any(map(column.applies, shown)))]
    titles = ["run", f"{metrics}, % on test {tasks}", *(column.title for column in _COLUMNS)]
    return [titles[place] for place in used], [[row[place] for place in used] for row in rows]


def _numbers(record: Record, records: Sequence[Record]) -> list[Shown]:
    row, baseline = Row.of(record), baseline_of(record, records)
    gain = None if baseline is None else Gain.of(record, baseline)
    points = "" if gain is None else with_std(f"{gain.points:+.1f}", gain.spread, gain.seeds)
    cells = [Shown(with_std(f"{row.score:.1f}", row.std, row.seeds), row.score, points)]
    for _, name, text, better, _ in _COLUMNS:
        ratio = getattr(gain, name) if gain is not None and better else None
        cells.append(Shown(text(getattr(row, name)), getattr(row, name), "" if ratio is None else _times(ratio, better)))
    return cells


def _times(ratio: float, better: str) -> str:
    if 0.95 <= ratio < 1.05:
        return "the same"
    return f"{ratio:.1f}x {better}" if ratio > 1 else f"{1 / ratio:.1f}x {_WORSE[better]}"


def terminal_table(records: Sequence[Record]) -> Table:
    """A line per quantity and a column per run; after a pruned run a column of its gains over the unpruned one, if present."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    titles, rows = run_table(records)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    columns = [titles[1:]]
    for label, *cells in rows:
        table.add_column(Text(label.text.replace(", edges", ",\nedges")), justify="right", no_wrap=True)
        columns.append([cell.text for cell in cells])
        if cells[0].small:
            table.add_column("against\nunpruned", justify="right", no_wrap=True, style="dim")
            columns.append([cell.small or "-" for cell in cells])
    for line in zip(*columns, strict=True):
        table.add_row(*line)
    return table


def legend(records: Sequence[Record]) -> list[str]:
    """What the numbers mean."""
    sentences = []
    if max(len(record["seeds"]) for record in records) > 1:
        paired = any(baseline_of(record, records) for record in records)
        sentences.append(f"±: standard deviation over seeds{'; differences are computed per seed' if paired else ''}.")
    links = any(record["spec"].get("task") == "links" for record in records)
    work = "encoding all nodes once, without the decoder of pairs" if links else "propagating and classifying all nodes once"
    sentences.append(f"MACs: {work}. Training: mean over seeds.")
    if any(record["trace"]["basis_macs"] for record in records):
        sentences.append("Principal axes are computed once per graph; propagation seconds include them.")
    return sentences


# --------------------------------------------------------------------------------------------------------------- exhibits


def with_spread(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], digits: Sequence[int | None] = ()
) -> tuple[list[str], list[list[Shown | Cell]]]:
    """The table with columns "a" and "a ±" joined; "a, difference" gets the ± of a.

    `digits`: decimals of each column; without them one, or three for numbers below one.
    """
    places = {column: place for place, column in enumerate(columns)}
    kept = [column for column in columns if not (column.endswith(" ±") and column[:-2] in places)]

    def number(row: Sequence[Cell], column: str) -> float | None:
        cell = row[places[column]] if column in places else None
        return float(cell) if isinstance(cell, int | float) and not isinstance(cell, bool) and math.isfinite(cell) else None

    def cell(row: Sequence[Cell], column: str) -> Shown | Cell:
        base = column.removesuffix(", difference")
        value, of, spread = number(row, column), number(row, base), number(row, f"{base} ±")
        known = digits[places[column]] if digits else None
        if value is None or (known is None and (digits or (column == base and spread is None))):
            return row[places[column]]
        decimals = (1 if max(abs(value), abs(of or 0)) >= 1 else 3) if known is None else known
        text = format_decimals(value, decimals) if column == base else format_signed(value, decimals)
        return Shown(text + ("" if spread is None else f" ± {format_decimals(spread, decimals)}"), value)

    return kept, [[cell(row, column) for column in kept] for row in rows]


# ------------------------------------------------------------------------------------------------------------------- HTML


def html_table(head: Sequence[str], rows: Sequence[Cells], name: str, data: str = "", sticky: int = 0) -> str:
    """A table that is sorted by a click on a title, with a CSV download: `data`, or the text of the cells.

    The column `sticky` identifies the rows and remains visible when scrolling.
    """
    cells = [[shown(cell) for cell in row] for row in rows]
    columns = list(zip(*cells, strict=True)) if cells else [() for _ in head]
    kinds = ["" if any(cell.value is not None for cell in column) else "words" for column in columns]
    titles = ""
    for place, (title, kind) in enumerate(zip(head, kinds, strict=True)):
        classes = f"{kind} held" if place == sticky else kind
        titles += f'<th scope="col" class="{classes}"><button type="button">{escape(title) or "&nbsp;"}</button></th>'
    lines = []
    for row in cells:
        line = ""
        for place, (cell, kind) in enumerate(zip(row, kinds, strict=True)):
            tag, how = ("th", ' scope="row"') if place == sticky else ("td", kind and ' class="words"')
            value = f' data-value="{cell.value!r}"' if cell.value is not None else ' data-value=""' * (cell.text == EMPTY)
            line += f"<{tag}{how}{value}>{escape(cell.text)}{cell.small and f'<small>{escape(cell.small)}</small>'}</{tag}>"
        lines.append(f"<tr>{line}</tr>")
    csv = data or as_csv(head, [["" if cell.text == EMPTY else cell.text for cell in row] for row in cells])
    body = "\n".join(lines)
    return (
        f'<div class="wide"><table class="sortable">\n<thead><tr>{titles}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>\n"
        f'<div class="take">{download(f"{name}-table.csv", csv)}</div>'
    )


def download(name: str, text: str) -> str:
    """A link that contains the file it downloads."""
    content = b64encode(text.encode()).decode()
    return f'<a download="{escape(name)}" href="data:text/csv;charset=utf-8;base64,{content}">CSV</a>'


# ------------------------------------------------------------------------------------------------------------------ files


_MARKS = (b'content="unifews"', b"<!-- unifews -->", b"% unifews\n", b"% Written by unifews.")  # in HTML, SVG, PDF and LaTeX


def put_file(path: Path, content: bytes) -> None:
    """Write a file atomically; an existing one is replaced only if unifews wrote it, which a mark in it states."""
    check_file(path)
    with atomic_file(path, overwrite=True) as file:
        file.write(content)


def check_file(path: Path) -> None:
    """Fail early if `put_file` may not write here."""
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder.")
    if path.exists():
        with path.open("rb") as file:
            start = file.read(1024)
            if not any(mark in start for mark in _MARKS):
                what = {".html": "page", ".tex": "LaTeX file"}.get(path.suffix, "file")
                raise InputError(f"{path} exists and is no {what} of unifews, so it is not replaced; give another name.")
