"""Cells of a table: what is read, and what it is worth when the table is sorted."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from unifews.experiments.quantities import pointed, signed

NOTHING = "–"
"""What stands in a cell where there is nothing to say."""

_NUMBER = re.compile(r"\s*([-+−]?\d[\d,]*(?:\.\d+)?|[-+−]?\.\d+)(?:e([-+]?\d+))?\s*([kMGTx]\b|%)?")
_GAP = ", difference"
_UNITS = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


class Shown(NamedTuple):
    """A cell of a table: what is read, what it is sorted by, and a word below it."""

    text: str
    value: float | None = None
    small: str = ""


Cell = Shown | str | float | int | None


def shown(cell: Cell) -> Shown:
    """A cell as it is read and sorted: numbers in four digits, text as it is, by the number it begins with."""
    if isinstance(cell, Shown):
        return cell
    if cell is None or cell in ("", "-", NOTHING):
        return Shown(NOTHING)
    if isinstance(cell, bool):
        return Shown("yes" if cell else "no")
    if isinstance(cell, int):
        return Shown(f"{cell:,}", float(cell))
    if isinstance(cell, float):
        return Shown(_rounded(cell), cell if math.isfinite(cell) else None)
    return Shown(cell, leading_number(cell))


def _rounded(value: float) -> str:
    if not math.isfinite(value):
        return NOTHING if math.isnan(value) else str(value)
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def leading_number(text: str) -> float | None:
    """What a text is worth that begins with a number, its unit counted in; None for words.

    >>> [leading_number(text) for text in ("1.83 G", "+0.4 ± 1.2", "2.1x fewer", "gcn", "2-layer GCN")]
    [1830000000.0, 0.4, 2.1, None, None]
    """
    match = _NUMBER.match(text)
    if match is None:
        return None
    digits, power, unit = match.groups()
    rest = text[match.end() :]
    if not unit and (rest.lstrip()[:1].isalpha() or rest[:1] == "-"):
        return None
    value = float(digits.replace(",", "").replace("−", "-")) * 10.0 ** int(power or 0)
    return value * _UNITS.get(unit or "", 1.0)


def with_spread(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], digits: Sequence[int | None] = ()
) -> tuple[list[str], list[list[Cell]]]:
    """The same table with spreads where they belong: "a" and "a ±" become one column, and "a, difference" has the ± of a.

    `digits`: how many each column has after the point; without them, one, or three of what is below one.
    """
    places = {column: place for place, column in enumerate(columns)}
    kept = [column for column in columns if not (column.endswith(" ±") and column[:-2] in places)]

    def cell(row: Sequence[Cell], column: str) -> Cell:
        base = column.removesuffix(_GAP)
        value, of, spread = (_number(row[places[name]]) if name in places else None for name in (column, base, f"{base} ±"))
        known = digits[places[column]] if digits else None
        if value is None or (column == base and spread is None and known is None) or (known is None and digits):
            return row[places[column]]
        after = (1 if max(abs(value), abs(of or 0)) >= 1 else 3) if known is None else known
        more = "" if spread is None else f" ± {pointed(spread, after)}"
        return Shown(f"{pointed(value, after) if column == base else signed(value, after)}{more}", value)

    return kept, [[cell(row, column) for column in kept] for row in rows]


def _number(cell: Cell) -> float | None:
    return float(cell) if isinstance(cell, int | float) and not isinstance(cell, bool) and math.isfinite(cell) else None
