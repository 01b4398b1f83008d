"""One thing that a report shows: a picture, the numbers behind it, and words on both.

`unifews reproduce` writes one JSON file for each; the runs of a ledger are shown as some, too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unifews.errors import FileFormatError, unknown_name
from unifews.experiments.definitions import GUIDES, KINDS, Kind
from unifews.report.cells import Cell
from unifews.training.record import unreadable

_TEXTS = ("notes", "operations", "machines", "versions")
_WORDS = ("id", "title", "caption", "x_label", "y_label", "experiment", "panel", "label", "scale", "command")


_DIGITS = 20  # after the point


@dataclass(frozen=True)
class Series:
    """A line, a row of bars, or a row of a heat map, whose values are `y`."""

    name: str
    x: Sequence[Any]
    y: Sequence[float | None]
    error: Sequence[float | None] = ()
    published: bool = False
    """Printed in the paper, not measured here."""
    quantity: str = ""
    """What is drawn, where series of a figure are of several things; each has an axis of its own."""


@dataclass(frozen=True)
class Exhibit:
    id: str
    title: str
    caption: str = ""
    kind: Kind = "table"
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
    series: Sequence[Series] = ()
    x_label: str = ""
    y_label: str = ""
    operations: Sequence[str] = ()
    """The axes that count operations, of "x" and "y"."""
    guide: str | float = ""
    """A line to see points against: "diagonal", or the height of a level one."""
    notes: Sequence[str] = ()
    experiment: str = ""
    """The heading under which its figures stand together."""
    panel: str = ""
    place: Sequence[int] = ()
    """Where it stands among others: of the experiment, and of the figure in it."""
    keys: int = 1
    """How many columns tell rows apart."""
    digits: Sequence[int | None] = ()
    """After the point, of each column; None or nothing where numbers are told as they come."""
    label: str = ""
    """The paper's."""
    scale: str = ""
    command: str = ""
    machines: Sequence[str] = ()
    versions: Sequence[str] = ()

    @property
    def is_drawn(self) -> bool:
        return self.kind != "table" and bool(self.series)

    @property
    def heading(self) -> str:
        return self.experiment or self.title or self.id


def is_exhibit(values: Any) -> bool:
    """Whether something read from JSON is meant to be one."""
    return isinstance(values, Mapping) and {"id", "kind"} <= values.keys()


def read(path: Path) -> Exhibit:
    """An exhibit from its file; everything in it is checked."""
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is no JSON: {error}.") from error
    if found := unreadable(values):
        raise FileFormatError(f"{path} {found}; write it again with unifews reproduce.")
    if not is_exhibit(values):
        raise FileFormatError(f"{path} describes no figure or table of unifews reproduce: it has no id and kind.")
    try:
        return of(values)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from error


def of(values: Mapping[str, Any]) -> Exhibit:
    """An exhibit from plain values, as `unifews reproduce` writes them."""
    if values["kind"] not in KINDS:
        raise FileFormatError(str(unknown_name("kind of exhibit", str(values["kind"]), KINDS)))
    words: dict[str, Any] = {name: _text(name, values.get(name, "")) for name in _WORDS}
    words |= {
        name: [_text(name, each) for each in _list(name, values)] for name in ("notes", "operations", "machines", "versions")
    }
    columns = [_text("columns", column) for column in _list("columns", values)]
    rows = [[_cell(cell) for cell in _sequence("rows", row)] for row in _list("rows", values)]
    for row in rows:
        if len(row) != len(columns):
            raise FileFormatError(f"a row has {len(row)} cells for {len(columns)} columns; give one each.")
    series = [_series(item) for item in _list("series", values)]
    digits = [_whole("digits", each) for each in _list("digits", values)]
    if any(each is not None and each > _DIGITS for each in digits):
        raise FileFormatError(f"`digits` are at most {_DIGITS} after the point.")
    if digits and len(digits) != len(columns):
        raise FileFormatError(f"`digits` has {len(digits)} numbers for {len(columns)} columns; give one each.")
    guide = values.get("guide", "")
    if not isinstance(guide, int | float) and guide not in GUIDES:
        raise FileFormatError(f"`guide` is a height, or one of {', '.join(map(repr, GUIDES))}; got {guide!r}.")
    if guide == "diagonal" and any(isinstance(place, str) for each in series for place in each.x):
        raise FileFormatError("a diagonal `guide` compares x with y, and some x are texts; give numbers, or no guide.")
    return Exhibit(
        kind=values["kind"], columns=columns, rows=rows, series=series, digits=digits,
        keys=_whole("keys", values.get("keys", 1)) or 1, place=[_whole("place", each) or 0 for each in _list("place", values)],
        guide=guide, **words,
    )  # fmt: skip


def _series(values: Any) -> Series:
    if not isinstance(values, Mapping) or not {"name", "x", "y"} <= values.keys():
        raise FileFormatError("a series needs a name, x and y.")
    name = _text("name", values["name"])
    x, y = (_sequence(axis, values[axis]) for axis in ("x", "y"))
    error = _sequence("error", values.get("error") or [])
    if len(x) != len(y) or (error and len(error) != len(y)):
        raise FileFormatError(f"series {name!r} has {len(x)} x, {len(y)} y and {len(error)} errors; give as many of each.")
    told = bool(values.get("published")), _text("quantity", values.get("quantity", ""))
    return Series(name, [_place(value) for value in x], _numbers(name, y), _numbers(name, error), *told)


def _list(name: str, values: Mapping[str, Any]) -> list[Any]:
    return _sequence(name, values.get(name) or [])


def _sequence(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise FileFormatError(f"`{name}` is a list; got a {type(value).__name__}.")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str | int | float):
        raise FileFormatError(f"`{name}` is text; got a {type(value).__name__}.")
    return str(value)


def _whole(name: str, value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or value < 0):
        raise FileFormatError(f"`{name}` counts something; got {value!r}.")
    return value


def _cell(value: Any) -> Cell:
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value)


def _place(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else str(value)


def _numbers(name: str, values: list[Any]) -> list[float | None]:
    """Numbers, None where there is none: JSON has no infinity, and some writers spell it out."""
    found: list[float | None] = []
    for value in values:
        if not isinstance(value, int | float | str | None):
            raise FileFormatError(f"series {name!r} holds a {type(value).__name__} where a number belongs.")
        try:
            number = None if value is None else float(value)
        except ValueError as error:
            raise FileFormatError(f"series {name!r} holds {value!r} where a number belongs.") from error
        found.append(number if number is not None and math.isfinite(number) else None)
    return found
