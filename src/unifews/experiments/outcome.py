"""What came of an experiment: its table, with the paper's values beside ours, and its figures, as files.

<id>.md, <id>.csv        the whole table
<id>.json                its figure; of several, <id>.<figure>.json each
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from unifews.core.atomic import atomic_file
from unifews.experiments.plan import Experiment, Figure, Planned, Published, Scale
from unifews.experiments.quantities import Quantity, quantity, value
from unifews.experiments.sources import Comparable

Record = Mapping[str, Any]
_SAID = {"inherit": "nested", "edge_threshold": "δ_a", "weight_threshold": "δ_w", "edge_sparsity": "edge"}
_HEADS = _SAID | {
    "edge_sparsity": "edge sparsity", "weight_sparsity": "weight sparsity", "relative_threshold": "relative threshold",
    "max_error": "error allowed",
}  # fmt: skip
"""Labels as heads of columns, where they read better than the settings they are."""
_SMOKE = "smoke scale: few epochs, one seed, small widths. It shows that everything runs; its numbers say nothing."


@dataclass(frozen=True)
class Done:
    """A run and its record, or why there is none."""

    planned: Planned
    record: Record | None
    why: str = ""
    dataset: str = ""
    """As it is called in tables."""
    comparable: Comparable = "all"

    def label(self, key: str) -> Any:
        if key == "dataset":
            return self.dataset or self.planned.labels.get("dataset")
        return self.planned.labels.get(key)


@dataclass(frozen=True)
class Outcome:
    """An experiment at a scale, with what came of each of its runs."""

    experiment: Experiment
    scale: Scale
    runs: Sequence[Done]
    remarks: Sequence[str] = ()
    """On datasets that others stand in for, and runs that could not be."""

    @property
    def notes(self) -> list[str]:
        where = self.experiment.published
        source = f"Paper: {where.source}." if isinstance(where, Published) else f"Paper: {where}." if where else ""
        first = [*([_SMOKE] if self.scale == "smoke" else []), *([source] if source else [])]
        return [*first, *self.experiment.notes, *self.remarks]

    # ------------------------------------------------------------------------------------------------------------- table

    def columns(self) -> list[str]:
        found = self._heads()
        for name in self.experiment.quantities:
            what = self._quantity(name)
            found.append(what.title)
            if self._has_spread(name):
                found.append(f"{what.title} ±")
            if self._is_printed(name):
                found += [f"{what.title}, {word}" for word in self._beside(name)]
        return found

    def _heads(self) -> list[str]:
        return [_HEADS.get(key, key) for key in self.experiment.keys]

    def row(self, run: Done) -> list[Any]:
        """Plain values, None where there is nothing to say."""
        cells: list[Any] = [run.label(key) for key in self.experiment.keys]
        printed = self.experiment.printed(run.planned.labels)
        for name in self.experiment.quantities:
            ours, spread = value(run.record, name) if run.record is not None else (None, None)
            cells.append(ours)
            if self._has_spread(name):
                cells.append(spread)
            if self._is_printed(name):
                paper = printed.get(name)
                cells += [paper, self._difference(run, name, ours, paper)][: len(self._beside(name))]
        return cells

    def rows(self) -> list[list[Any]]:
        return [self.row(run) for run in self.tabled()]

    def tabled(self, panel: str | None = None) -> list[Done]:
        """Runs that have something to say in a table, of one panel or of all: each once, and none that gives only curves."""
        runs = [run for run in self._runs(panel) if run.record is None or self._has_numbers(run.record)]
        return list({str([*self.row(run), run.why]): run for run in runs}.values())

    def _has_numbers(self, record: Record) -> bool:
        return any(value(record, name)[0] is not None for name in self.experiment.quantities)

    def _beside(self, name: str) -> tuple[str, ...]:
        """What stands beside a value that is printed; times of two machines are not subtracted."""
        return ("paper",) if self._quantity(name).clock else ("paper", "difference")

    def _difference(self, run: Done, name: str, ours: float | None, paper: Any) -> float | None:
        if ours is None or not isinstance(paper, int | float) or run.comparable == "none":
            return None
        # Of a smoke run only what does not depend on training means anything.
        only_cost = run.comparable == "cost" or self.scale == "smoke"
        return None if only_cost and not self._quantity(name).cost else ours - paper

    def _runs(self, panel: str | None) -> list[Done]:
        return [run for run in self.runs if panel is None or run.label("panel") == panel]

    def _quantity(self, name: str) -> Quantity:
        return quantity(self.experiment, name)

    def _has_spread(self, name: str) -> bool:
        return name in self._spread

    @cached_property
    def _spread(self) -> set[str]:
        """Quantities of which some run has several seeds."""
        records = [run.record for run in self.runs if run.record is not None]
        return {name for name in self.experiment.quantities if any(value(record, name)[1] is not None for record in records)}

    def _is_printed(self, name: str) -> bool:
        published = self.experiment.published
        return isinstance(published, Published) and name in published.columns

    # ------------------------------------------------------------------------------------------------------------- files

    def write(self, folder: Path) -> list[Path]:
        """Markdown, CSV and a JSON for every figure, each replaced as a whole."""
        folder.mkdir(parents=True, exist_ok=True)
        file = self.experiment.file
        texts = {f"{file}.md": self.markdown(), f"{file}.csv": self.csv()}
        for name, figure in self.experiment.figures.items():
            single = len(self.experiment.figures) == 1
            stem = file if single else f"{file}.{_slug(name)}"
            texts[f"{stem}.json"] = json.dumps(self.drawing(name, figure), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        written = []
        for name, text in texts.items():
            with atomic_file(folder / name, overwrite=True) as target:
                target.write(text.encode())
            written.append(folder / name)
        return written

    def csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*self.columns(), "note"])
        writer.writerows([*self.row(run), run.why] for run in self.tabled())
        return text.getvalue()

    def markdown(self) -> str:
        experiment = self.experiment
        lines = [f"# {experiment.title}", "", experiment.shows, ""]
        lines += [f"`unifews reproduce {experiment.id} --scale {self.scale}`", ""]
        heads = self._heads()
        for name in experiment.quantities:
            heads += [self._quantity(name).title, *(self._beside(name) if self._is_printed(name) else ())]
        lines += [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
        for run in self.tabled():
            cells = [_text(run.label(key)) for key in experiment.keys]
            printed = experiment.printed(run.planned.labels)
            for name in experiment.quantities:
                cells += self._cells(run, name, printed.get(name))
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines).rstrip() + "\n"

    def _cells(self, run: Done, name: str, paper: Any) -> list[str]:
        what = self._quantity(name)
        ours, spread = value(run.record, name) if run.record is not None else (None, None)
        first = "not run" if run.record is None else "" if ours is None else _number(ours, what.digits)
        if spread is not None:
            first += f" ± {_number(spread, what.digits)}"
        if not self._is_printed(name):
            return [first]
        gap = self._difference(run, name, ours, paper)
        beside = [_text(paper), "" if gap is None else _signed(gap, what.digits)]
        return [first, *beside[: len(self._beside(name))]]

    # ----------------------------------------------------------------------------------------------------------- figures

    def drawing(self, name: str, figure: Figure) -> dict[str, Any]:
        """What a report needs to draw it, and the rows that it is drawn from."""
        experiment = self.experiment
        runs = self._runs(figure.panel)
        single = len(experiment.figures) == 1
        series = self._curves(runs, figure) if figure.curves else self._lines(runs, figure)
        columns, rows = self.columns(), [self.row(run) for run in self.tabled(figure.panel)]
        if figure.curves:
            columns = ["curve", figure.x_label, figure.y_label]
            rows = [[curve["name"], x, y] for curve in series for x, y in zip(curve["x"], curve["y"], strict=True)]
        return {
            "id": experiment.id if single else f"{experiment.id}.{_slug(name)}",
            "title": experiment.title if single else f"{experiment.title}: {name}",
            "caption": experiment.shows,
            "kind": figure.kind,
            "columns": columns,
            "rows": rows,
            "series": series,
            "x_label": figure.x_label or ", ".join(self._title(name) for name in figure.x),
            "y_label": figure.y_label or " / ".join(self._title(name) for name in figure.y),
            "operations": [axis for axis, names in (("x", figure.x), ("y", figure.y)) if self._count_operations(names)],
            "notes": self.notes,
            "label": experiment.label,
            "scale": self.scale,
        }

    def _title(self, name: str) -> str:
        return self._quantity(name).title if name in self.experiment.quantities else name

    def _count_operations(self, names: Sequence[str]) -> bool:
        return bool(names) and all(name in self.experiment.quantities and self._quantity(name).operations for name in names)

    def _curves(self, runs: Sequence[Done], figure: Figure) -> list[dict[str, Any]]:
        made = []
        for run in runs:
            found = {} if run.record is None else run.record["curves"]
            for name in figure.curves:
                if name in found:
                    called = " ".join([*self._called(run, figure), name])
                    made.append({"name": called, **found[name], "error": [], "published": False})
        return made

    def _lines(self, runs: Sequence[Done], figure: Figure) -> list[dict[str, Any]]:
        """A series for every line and quantity, ours and, where values are printed, the paper's."""
        ours: dict[str, list[tuple[Any, Any, Any]]] = {}
        paper: dict[str, list[tuple[Any, Any, Any]]] = {}
        for run in runs:
            if run.record is None:
                continue
            printed = self.experiment.printed(run.planned.labels)
            for name in figure.y:
                called = " ".join([*self._called(run, figure), *([self._title(name)] if len(figure.y) > 1 else [])])
                here, (height, spread) = self._x(run, figure.x), value(run.record, name)
                if height is not None:
                    ours.setdefault(called, []).append((here, height, spread))
                if isinstance(printed.get(name), int | float):
                    paper.setdefault(f"{called}, paper", []).append((here, printed[name], None))
        return [_series(called, points, False) for called, points in ours.items()] + [
            _series(called, points, True) for called, points in paper.items()
        ]

    def _called(self, run: Done, figure: Figure) -> list[str]:
        return _words(run, figure.series)

    def _x(self, run: Done, names: Sequence[str]) -> Any:
        assert run.record is not None
        if len(names) != 1:
            return ", ".join(_words(run, names))
        return value(run.record, names[0])[0] if names[0] in self.experiment.quantities else run.label(names[0])


def _words(run: Done, keys: Sequence[str]) -> list[str]:
    """Labels as one would say them: "nested", "block", "δ_w 0.5"."""
    words = []
    for key in keys:
        said = run.label(key)
        if isinstance(said, bool):
            words += [_SAID.get(key, key)] if said else []
        elif said not in (None, ""):
            words.append(said if isinstance(said, str) else f"{_SAID.get(key, key)} {said:g}")
    return words


def _series(called: str, points: list[tuple[Any, Any, Any]], published: bool) -> dict[str, Any]:
    if all(isinstance(point[0], int | float) for point in points):
        points = sorted(points, key=lambda point: point[0])
    spread = [point[2] for point in points]
    return {
        "name": called,
        "x": [point[0] for point in points],
        "y": [point[1] for point in points],
        "error": spread if any(value is not None for value in spread) else [],
        "published": published,
    }


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _number(value: float, digits: int) -> str:
    """So many digits after the point; of what these would make nothing of, two that count."""
    return f"{value:.2g}" if 0 < abs(value) < 0.5 * 10**-digits else f"{value:,.{digits}f}"


def _signed(value: float, digits: int) -> str:
    """With its sign, but for nothing, which has none."""
    rounded = round(value, digits)
    return f"{rounded:+,.{digits}f}" if rounded else f"{0:.{digits}f}"


def _slug(name: str) -> str:
    """A figure's name as part of a file name."""
    return "-".join("".join(c if c.isalnum() or c == "." else " " for c in name.lower()).split())
