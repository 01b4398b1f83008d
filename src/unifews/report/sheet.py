"""A table in a page: sorted by a click on a column's name, and to be taken away as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from unifews.report.cells import NOTHING, Cell, Shown, shown
from unifews.report.plot import as_csv, download


def sheet_html(head: Sequence[str], rows: Sequence[Sequence[Cell]], name: str, data: str = "") -> str:
    """The first column names the rows. The CSV is `data`, or else what is shown."""
    cells = [[shown(cell) for cell in row] for row in rows]
    columns = list(zip(*cells, strict=True)) if cells else [() for _ in head]
    kinds = ["" if any(cell.value is not None for cell in column) else ' class="words"' for column in columns]
    titles = "".join(
        f'<th scope="col"{kind}><button type="button">{escape(title) or "&nbsp;"}</button></th>'
        for title, kind in zip(head, kinds, strict=True)
    )
    body = "\n".join(_line(row, kinds) for row in cells)
    return (
        f'<div class="wide"><table class="sortable">\n<thead><tr>{titles}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>\n"
        f'<div class="take">{download(f"{name}-table.csv", data or _csv(head, cells))}</div>'
    )


def _line(cells: Sequence[Shown], kinds: Sequence[str]) -> str:
    named = '<th scope="row"' + _value(cells[0]) + ">" + _words(cells[0]) + "</th>"
    rest = "".join(f"<td{kind}{_value(cell)}>{_words(cell)}</td>" for cell, kind in zip(cells[1:], kinds[1:], strict=True))
    return f"<tr>{named}{rest}</tr>"


def _value(cell: Shown) -> str:
    if cell.value is not None:
        return f' data-value="{cell.value!r}"'
    return ' data-value=""' if cell.text == NOTHING else ""


def _words(cell: Shown) -> str:
    return escape(cell.text) + (f"<small>{escape(cell.small)}</small>" if cell.small else "")


def _csv(head: Sequence[str], rows: Sequence[Sequence[Shown]]) -> str:
    return as_csv(head, [["" if cell.text == NOTHING else cell.text for cell in row] for row in rows])
