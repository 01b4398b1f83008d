"""The result of an experiment: its table with the paper's values, and its figures, as plain values and as files.

<id>.md, <id>.csv        the whole table
<id>.json                its figure (`Exhibit`); of several, <id>.<figure>.json each
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any, Literal

from unifews.errors import FileFormatError
from unifews.experiments import definitions
from unifews.experiments.definitions import GUIDES, Experiment, Figure, FigureKind, Planned, Published, Scale
from unifews.experiments.quantities import Number, Quantity, Record, quantity, value
from unifews.storage.atomic import atomic_file
from unifews.training.result import machine_words, version_words

Cell = str | float | int | None
"""A cell of a table; None: empty."""
Comparable = Literal["all", "cost", "none"]
"""Which values of a run may be compared with printed ones: all, operation counts only, none."""
LABELS = {
    "inherit": "nested",
    "edge_threshold": "δ_a",
    "weight_threshold": "δ_w",
    "edge_sparsity": "edge sparsity",
    "weight_sparsity": "weight sparsity",
    "relative_threshold": "relative threshold",
    "max_error": "error allowed",
}
"""Settings as they are named in tables and figures."""
_SMOKE = "smoke scale: few epochs, one seed, small widths. It shows that everything runs; its numbers have no meaning."
_MAX_DIGITS = 20  # after the decimal point

# --------------------------------------------------------------------------------------------------------------- exhibits


@dataclass(frozen=True)
class Series:
    """A line, a group of bars, or a row of a heat map, whose values are `y`."""

    name: str
    x: Sequence[str | float]
    y: Sequence[float | None]
    error: Sequence[float | None] = ()
    published: bool = False
    """Printed in the paper, not measured here."""
    quantity: str = ""
    """What is drawn, where a figure shows several quantities; each has its own axis."""

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y) or (self.error and len(self.error) != len(self.y)):
            raise FileFormatError(
                f"series {self.name!r} has {len(self.x)} x, {len(self.y)} y and {len(self.error)} errors; give as many of each."
            )


@dataclass(frozen=True)
class Exhibit:
    """A table or figure: its series, the numbers behind them, and the text around both."""

    id: str
    title: str = ""
    caption: str = ""
    kind: FigureKind = "table"
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
    series: Sequence[Series] = ()
    x_label: str = ""
    y_label: str = ""
    operations: Sequence[str] = ()
    """The axes that count operations, of "x" and "y"."""
    guide: str | float = ""
    """A reference line: "diagonal", or the height of a horizontal one."""
    notes: Sequence[str] = ()
    experiment: str = ""
    """The heading under which its figures are grouped."""
    panel: str = ""
    place: Sequence[int] = ()
    """Its position: of the experiment, and of the figure in it."""
    keys: int = 1
    """Number of leading columns that identify a row."""
    digits: Sequence[int | None] = ()
    """Decimals of each column; None: as many as needed."""
    label: str = ""
    """The paper's."""
    scale: str = ""
    command: str = ""
    machines: Sequence[str] = ()
    versions: Sequence[str] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise FileFormatError(f"a row has {len(row)} cells for {len(self.columns)} columns; give one each.")
        if self.digits and len(self.digits) != len(self.columns):
            raise FileFormatError(f"`digits` has {len(self.digits)} numbers for {len(self.columns)} columns; give one each.")
        counts = {"keys": [self.keys], "place": self.place, "digits": [each for each in self.digits if each is not None]}
        for name, given in counts.items():
            if any(each < 0 or (name == "digits" and each > _MAX_DIGITS) for each in given):
                raise FileFormatError(f"`{name}` must not be negative or exceed {_MAX_DIGITS} decimals; got {list(given)}.")
        if isinstance(self.guide, str) and self.guide not in GUIDES:
            raise FileFormatError(f"`guide` is a height, or one of {', '.join(map(repr, GUIDES))}; got {self.guide!r}.")
        if self.guide == "diagonal" and any(isinstance(x, str) for series in self.series for x in series.x):
            raise FileFormatError("a diagonal `guide` compares x with y, and some x are texts; give numbers, or no guide.")

    @property
    def is_drawn(self) -> bool:
        return self.kind != "table" and bool(self.series)

    @property
    def heading(self) -> str:
        return self.experiment or self.title or self.id


# ---------------------------------------------------------------------------------------------------------------- results


@dataclass(frozen=True)
class CellResult:
    """A planned run with its record, or the reason why there is none."""

    planned: Planned
    record: Record | None
    why: str = ""
    dataset: str = ""
    """Its name in tables."""
    comparable: Comparable = "all"

    def label(self, key: str) -> Any:
        if key == "dataset":
            return self.dataset or self.planned.labels.get("dataset")
        return self.planned.labels.get(key)

    def texts(self, keys: Sequence[str]) -> list[str]:
        """Labels with their names where a value alone would be unclear: "nested", "block", "δ_w 0.5"."""
        texts = []
        for key in keys:
            label = self.label(key)
            if isinstance(label, bool):
                texts += [LABELS.get(key, key)] if label else []
            elif label not in (None, ""):
                texts.append(label if isinstance(label, str) else f"{LABELS.get(key, key)} {label:g}")
        return texts


@dataclass(frozen=True)
class ExperimentResult:
    """An experiment at a scale, with the result of each of its runs."""

    experiment: Experiment
    scale: Scale
    runs: Sequence[CellResult]
    remarks: Sequence[str] = ()
    """On substituted datasets and runs that failed."""
    datasets: Sequence[str] = ()
    """The requested ones, if not all."""

    @property
    def shows(self) -> str:
        """What the experiment shows; at smoke scale with the sizes of its runs instead of the paper's."""
        what, _, sizes = self.experiment.shows.rpartition(";")
        if self.scale != "smoke" or "epochs" not in sizes:
            return self.experiment.shows
        recipes = [run.record["spec"]["recipe"] for run in self.runs if run.record and "spec" in run.record]
        real = dict.fromkeys(f"{each['layers']} layers of width {each['width']}, {each['epochs']} epochs" for each in recipes)
        return f"{what}; {' or '.join(real) or 'nothing was run'}."

    @property
    def notes(self) -> list[str]:
        where = self.experiment.published
        source = f"Paper: {where.source}." if isinstance(where, Published) else f"Paper: {where}." if where else ""
        first = [*([_SMOKE] if self.scale == "smoke" else []), *([source] if source else [])]
        only = [f"Only the runs on {', '.join(self.datasets)}."] if self.datasets else []
        return [*first, *self.experiment.notes, *only, *self.remarks]

    @property
    def command(self) -> str:
        only = f" --datasets {','.join(self.datasets)}" if self.datasets else ""
        return f"unifews reproduce {self.experiment.id} --scale {self.scale}{only}"

    @property
    def machines(self) -> list[str]:
        """The machines of its runs, each once."""
        return self._distinct(machine_words)

    @property
    def versions(self) -> list[str]:
        return self._distinct(version_words)

    def _distinct(self, text: Callable[[Record], str]) -> list[str]:
        records = [run.record for run in self.runs if run.record is not None]
        return list(dict.fromkeys(text(record) for record in records if {"machine", "versions"} <= record.keys()))

    # ------------------------------------------------------------------------------------------------------------- table

    def columns(self) -> list[str]:
        found = self._key_titles()
        for name in self.experiment.quantities:
            title = self.quantity(name).title
            found += [title, *([f"{title} ±"] if name in self._with_spread else [])]
            found += [f"{title}, {word}" for word in self._beside(name)]
        return found

    def digits(self) -> list[int | None]:
        """Decimals of each column; None of key columns."""
        found: list[int | None] = [None] * len(self.experiment.keys)
        for name in self.experiment.quantities:
            found += [self.quantity(name).digits] * (1 + (name in self._with_spread) + len(self._beside(name)))
        return found

    def _key_titles(self) -> list[str]:
        return [LABELS.get(key, key) for key in self.experiment.keys]

    def row(self, run: CellResult) -> list[Any]:
        """Plain values, None where there is none."""
        cells: list[Any] = [run.label(key) for key in self.experiment.keys]
        for name in self.experiment.quantities:
            ours, spread, paper, difference = self._values(run, name)
            cells += [ours, *([spread] if name in self._with_spread else [])]
            cells += [paper, difference][: len(self._beside(name))]
        return cells

    def rows(self) -> list[list[Any]]:
        return [self.row(run) for run in self.tabled()]

    def tabled(self, panel: str | None = None) -> list[CellResult]:
        """The runs of a table, of one panel or of all: each once, without those that have curves only."""
        runs = [run for run in self.runs_of(panel) if run.record is None or self._has_numbers(run.record)]
        return list({str([*self.row(run), run.why]): run for run in runs}.values())

    def runs_of(self, panel: str | None) -> list[CellResult]:
        return [run for run in self.runs if panel is None or run.label("panel") == panel]

    def quantity(self, name: str) -> Quantity:
        return quantity(self.experiment, name)

    def _has_numbers(self, record: Record) -> bool:
        return any(value(record, name)[0] is not None for name in self.experiment.quantities)

    @cached_property
    def _with_spread(self) -> set[str]:
        """Quantities of which some run has several seeds."""
        records = [run.record for run in self.runs if run.record is not None]
        return {name for name in self.experiment.quantities if any(value(record, name)[1] is not None for record in records)}

    def _beside(self, name: str) -> tuple[str, ...]:
        """Columns after a quantity that the paper prints; times of two machines are not subtracted."""
        published = self.experiment.published
        if not isinstance(published, Published) or name not in published.columns:
            return ()
        return ("paper",) if self.quantity(name).clock else ("paper", "difference")

    def _values(self, run: CellResult, name: str) -> tuple[Number, Number, Any, Number]:
        """Our value, its spread, the paper's value, and the difference where the two can be compared."""
        ours, spread = value(run.record, name) if run.record is not None else (None, None)
        paper = self.experiment.printed(run.planned.labels).get(name)
        # Of a smoke run only what does not depend on training is comparable.
        only_cost = run.comparable == "cost" or self.scale == "smoke"
        comparable = run.comparable != "none" and (self.quantity(name).cost or not only_cost)
        known = ours is not None and isinstance(paper, int | float)
        return ours, spread, paper, ours - paper if known and comparable else None  # type: ignore[operator]

    # ----------------------------------------------------------------------------------------------------------- figures

    def exhibit(self, name: str) -> Exhibit:
        """The experiment's figure of this name, with the rows of its table."""
        experiment = self.experiment
        figure, single = experiment.figures[name], len(experiment.figures) == 1
        columns, digits, keys = self.columns(), self.digits(), len(experiment.keys)
        rows = [self.row(run) for run in self.tabled(figure.panel)]
        series = self._curves(figure) if figure.curves else self._series(figure)
        if figure.curves:
            columns, digits, keys = ["curve", figure.x_label, figure.y_label], [None, None, None], 1
            rows = [[curve.name, x, y] for curve in series for x, y in zip(curve.x, curve.y, strict=True)]
        ids = definitions.ids()
        return Exhibit(
            id=experiment.id if single else f"{experiment.id}.{_slug(name)}",
            title=experiment.title if single else f"{experiment.title}: {name}",
            caption=self.shows,
            kind=figure.kind,
            columns=columns,
            rows=rows,
            series=series,
            x_label=figure.x_label or ", ".join(map(self._title, figure.x)),
            y_label=figure.y_label or " / ".join(map(self._title, figure.y)),
            operations=[axis for axis, names in (("x", figure.x), ("y", figure.y)) if self._count_operations(names)],
            guide=figure.guide,
            notes=self.notes,
            experiment=experiment.title,
            panel="" if single else name,
            place=[ids.index(experiment.id) if experiment.id in ids else len(ids), list(experiment.figures).index(name)],
            keys=keys,
            digits=digits,
            label=experiment.label,
            scale=self.scale,
            command=self.command,
            machines=self.machines,
            versions=self.versions,
        )

    def _title(self, name: str) -> str:
        return self.quantity(name).title if name in self.experiment.quantities else name

    def _count_operations(self, names: Sequence[str]) -> bool:
        named = self.experiment.quantities
        return bool(names) and all(name in named and self.quantity(name).operations for name in names)

    def _curves(self, figure: Figure) -> list[Series]:
        made = []
        for run in self.runs_of(figure.panel):
            found = {} if run.record is None else run.record["curves"]
            for name in figure.curves:
                if name in found:
                    made.append(Series(" ".join([*run.texts(figure.series), name]), found[name]["x"], found[name]["y"]))
        return made

    def _series(self, figure: Figure) -> list[Series]:
        """A series for each line and quantity, ours and, where values are printed, the paper's.

        Quantities of lines have axes of their own; those of bars and points share one, and their names include the quantity.
        """
        several = len(figure.y) > 1
        own_axes = several and figure.kind == "lines"
        points: dict[tuple[bool, str, str], list[tuple[Any, Any, Number]]] = {}
        for run in self.runs_of(figure.panel):
            if run.record is None:
                continue
            for y in figure.y:
                title = self._title(y)
                name = " ".join([*run.texts(figure.series), *([title] if several and not own_axes else [])])
                axis, x = title if own_axes else "", self._x(run, run.record, figure.x)
                ours, spread, paper, _ = self._values(run, y)
                if ours is not None:
                    points.setdefault((False, name, axis), []).append((x, ours, spread))
                if isinstance(paper, int | float):
                    points.setdefault((True, f"{name}, paper", axis), []).append((x, paper, None))
        made = []
        for (published, name, axis), found in sorted(points.items(), key=lambda item: item[0][0]):
            if all(isinstance(x, int | float) for x, _, _ in found):
                found.sort(key=lambda point: point[0])
            xs, ys, spreads = map(list, zip(*found, strict=True))
            error = spreads if any(spread is not None for spread in spreads) else []
            made.append(Series(name, xs, ys, error, published, axis))
        return made

    def _x(self, run: CellResult, record: Record, names: Sequence[str]) -> Any:
        if len(names) != 1:
            return ", ".join(run.texts(names))
        return value(record, names[0])[0] if names[0] in self.experiment.quantities else run.label(names[0])

    # ------------------------------------------------------------------------------------------------------------- files

    def write(self, folder: Path) -> list[Path]:
        """Markdown, CSV and a JSON file for every figure, each replaced atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        texts = {f"{self.experiment.file}.md": self.markdown(), f"{self.experiment.file}.csv": self.csv()}
        for name in self.experiment.figures:
            exhibit = self.exhibit(name)
            text = json.dumps(asdict(exhibit), indent=1, ensure_ascii=False, allow_nan=False)
            texts[f"{exhibit.id.replace(':', '_')}.json"] = f"{text}\n"
        for name, text in texts.items():
            with atomic_file(folder / name, overwrite=True) as file:
                file.write(text.encode())
        return [folder / name for name in texts]

    def csv(self) -> str:
        return as_csv([*self.columns(), "note"], ([*self.row(run), run.why] for run in self.tabled()))

    def markdown(self) -> str:
        lines = [f"# {self.experiment.title}", "", self.shows, "", f"`{self.command}`", ""]
        titles = self._key_titles()
        for name in self.experiment.quantities:
            titles += [self.quantity(name).title, *self._beside(name)]
        lines += [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
        for run in self.tabled():
            cells = [_text(run.label(key)) for key in self.experiment.keys]
            for name in self.experiment.quantities:
                cells += self._markdown_cells(run, name)
            lines.append(f"| {' | '.join(cells)} |")
        made = [f"Run on {each}." for each in self.machines] + [f"With {each}." for each in self.versions]
        lines += ["", *(f"- {note}" for note in [*self.notes, *made])]
        return "\n".join(lines).rstrip() + "\n"

    def _markdown_cells(self, run: CellResult, name: str) -> list[str]:
        digits = self.quantity(name).digits
        ours, spread, paper, difference = self._values(run, name)
        first = "not run" if run.record is None else "" if ours is None else format_decimals(ours, digits)
        if spread is not None:
            first += f" ± {format_decimals(spread, digits)}"
        beside = [_text(paper), "" if difference is None else format_signed(difference, digits)]
        return [first, *beside[: len(self._beside(name))]]


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _slug(name: str) -> str:
    """A figure's name as part of a file name."""
    return "-".join("".join(c if c.isalnum() or c == "." else " " for c in name.lower()).split())


# ------------------------------------------------------------------------------------------------------------------- text


def format_decimals(value: float, digits: int) -> str:
    """So many decimals; two significant digits of numbers that would be rounded to zero."""
    return f"{value:.2g}" if 0 < abs(value) < 0.5 * 10**-digits else f"{value:,.{digits}f}"


def format_signed(value: float, digits: int) -> str:
    """With its sign, except zero."""
    rounded = round(value, digits)
    return f"{rounded:+,.{digits}f}" if rounded else f"{0:.{digits}f}"


_FORMULA = re.compile(r"[=+\-@\t\r\n]")  # spreadsheets take these as the start of a formula, or drop them before one
_FIGURE = r"[-+]?[\d.,]+(e[-+]?\d+)?"
_FIGURES = re.compile(rf"{_FIGURE}( ?± ?{_FIGURE})? ?%?|-")


def as_csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV in which no text is a formula: one that would begin with = + - @, a tab or a line break is prefixed by '."""
    out = StringIO()
    csv.writer(out, lineterminator="\n").writerows([_without_formula(cell) for cell in row] for row in (head, *rows))
    return out.getvalue()


def _without_formula(cell: Any) -> Any:
    """Numbers are unchanged, also as text: -0.5, "+0.4 ± 1.2"."""
    if not isinstance(cell, str):
        return cell
    cell = cell.replace("\r", "\n")  # which is quoted: a bare one would begin another row
    return f"'{cell}" if _FORMULA.match(cell) and not _FIGURES.fullmatch(cell) else cell
