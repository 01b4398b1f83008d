"""A table in a page: sorted by a click on a column's name, and to be taken away as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from unifews.experiments.quantities import as_csv
from unifews.report.cells import NOTHING, Cell, Shown, shown
from unifews.report.plot import download


def sheet_html(head: Sequence[str], rows: Sequence[Sequence[Cell]], name: str, data: str = "", held: int = 0) -> str:
    """The column `held` names the rows and stays in sight. The CSV is `data`, or else what is shown."""
    cells = [[shown(cell) for cell in row] for row in rows]
    columns = list(zip(*cells, strict=True)) if cells else [() for _ in head]
    kinds = ["" if any(cell.value is not None for cell in column) else ' class="words"' for column in columns]
    titles = "".join(
        f'<th scope="col"{_held(kind, place == held)}><button type="button">{escape(title) or "&nbsp;"}</button></th>'
        for place, (title, kind) in enumerate(zip(head, kinds, strict=True))
    )
    body = "\n".join(_line(row, kinds, held) for row in cells)
    return (
        f'<div class="wide"><table class="sortable">\n<thead><tr>{titles}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>\n"
        f'<div class="take">{download(f"{name}-table.csv", data or _csv(head, cells))}</div>'
    )


def _line(cells: Sequence[Shown], kinds: Sequence[str], held: int) -> str:
    told = []
    for place, (cell, kind) in enumerate(zip(cells, kinds, strict=True)):
        tag, how = ("th", ' scope="row"') if place == held else ("td", kind)
        told.append(f"<{tag}{how}{_value(cell)}>{_words(cell)}</{tag}>")
    return f"<tr>{''.join(told)}</tr>"


def _held(kind: str, held: bool) -> str:
    """The class of a column's name; the one that is held stays in sight with its cells."""
    return (' class="words held"' if kind else ' class="held"') if held else kind


def _value(cell: Shown) -> str:
    if cell.value is not None:
        return f' data-value="{cell.value!r}"'
    return ' data-value=""' if cell.text == NOTHING else ""


def _words(cell: Shown) -> str:
    return escape(cell.text) + (f"<small>{escape(cell.small)}</small>" if cell.small else "")


def _csv(head: Sequence[str], rows: Sequence[Sequence[Shown]]) -> str:
    return as_csv(head, [["" if cell.text == NOTHING else cell.text for cell in row] for row in rows])
