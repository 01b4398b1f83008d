"""What came of an experiment: its table, with the paper's values beside ours, and its figures, as files.

<id>.md, <id>.csv        the whole table
<id>.json                its figure; of several, <id>.<figure>.json each
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from unifews.experiments.definitions import Experiment, Planned, Published, Scale
from unifews.experiments.drawing import drawing
from unifews.experiments.quantities import Quantity, as_csv, pointed, quantity, signed, value
from unifews.experiments.sources import Comparable
from unifews.storage.atomic import atomic_file
from unifews.training.result import machine_words, version_words

Record = Mapping[str, Any]
_HEADS = {
    "inherit": "nested", "edge_threshold": "δ_a", "weight_threshold": "δ_w", "edge_sparsity": "edge sparsity",
    "weight_sparsity": "weight sparsity", "relative_threshold": "relative threshold", "max_error": "error allowed",
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
    datasets: Sequence[str] = ()
    """The only ones that were asked for, if some were left out."""

    @property
    def shows(self) -> str:
        """What the experiment shows; at smoke scale with the sizes of its runs in place of the paper's."""
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
        """What its runs were carried out on, each machine once."""
        return self._each(machine_words)

    @property
    def versions(self) -> list[str]:
        return self._each(version_words)

    def _each(self, words: Callable[[Record], str]) -> list[str]:
        records = [run.record for run in self.runs if run.record is not None]
        return list(dict.fromkeys(words(record) for record in records if {"machine", "versions"} <= record.keys()))

    # ------------------------------------------------------------------------------------------------------------- table

    def columns(self) -> list[str]:
        found = self._heads()
        for name in self.experiment.quantities:
            what = self.quantity(name)
            found.append(what.title)
            if self._has_spread(name):
                found.append(f"{what.title} ±")
            if self._is_printed(name):
                found += [f"{what.title}, {word}" for word in self._beside(name)]
        return found

    def digits(self) -> list[int | None]:
        """After the point, of each column; None of those that tell rows apart."""
        found: list[int | None] = [None] * len(self.experiment.keys)
        for name in self.experiment.quantities:
            beside = self._beside(name) if self._is_printed(name) else ()
            found += [self.quantity(name).digits] * (1 + self._has_spread(name) + len(beside))
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
        runs = [run for run in self.runs_of(panel) if run.record is None or self._has_numbers(run.record)]
        return list({str([*self.row(run), run.why]): run for run in runs}.values())

    def _has_numbers(self, record: Record) -> bool:
        return any(value(record, name)[0] is not None for name in self.experiment.quantities)

    def _beside(self, name: str) -> tuple[str, ...]:
        """What stands beside a value that is printed; times of two machines are not subtracted."""
        return ("paper",) if self.quantity(name).clock else ("paper", "difference")

    def _difference(self, run: Done, name: str, ours: float | None, paper: Any) -> float | None:
        if ours is None or not isinstance(paper, int | float) or run.comparable == "none":
            return None
        # Of a smoke run only what does not depend on training means anything.
        only_cost = run.comparable == "cost" or self.scale == "smoke"
        return None if only_cost and not self.quantity(name).cost else ours - paper

    def runs_of(self, panel: str | None) -> list[Done]:
        return [run for run in self.runs if panel is None or run.label("panel") == panel]

    def quantity(self, name: str) -> Quantity:
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
        for name in self.experiment.figures:
            drawn = drawing(self, name)
            stem = drawn["id"].replace(":", "_")
            texts[f"{stem}.json"] = json.dumps(drawn, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        written = []
        for name, text in texts.items():
            with atomic_file(folder / name, overwrite=True) as target:
                target.write(text.encode())
            written.append(folder / name)
        return written

    def csv(self) -> str:
        return as_csv([*self.columns(), "note"], ([*self.row(run), run.why] for run in self.tabled()))

    def markdown(self) -> str:
        experiment = self.experiment
        lines = [f"# {experiment.title}", "", self.shows, ""]
        lines += [f"`{self.command}`", ""]
        heads = self._heads()
        for name in experiment.quantities:
            heads += [self.quantity(name).title, *(self._beside(name) if self._is_printed(name) else ())]
        lines += [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
        for run in self.tabled():
            cells = [_text(run.label(key)) for key in experiment.keys]
            printed = experiment.printed(run.planned.labels)
            for name in experiment.quantities:
                cells += self._cells(run, name, printed.get(name))
            lines.append(f"| {' | '.join(cells)} |")
        made = [f"Run on {each}." for each in self.machines] + [f"With {each}." for each in self.versions]
        lines += ["", *(f"- {note}" for note in [*self.notes, *made])]
        return "\n".join(lines).rstrip() + "\n"

    def _cells(self, run: Done, name: str, paper: Any) -> list[str]:
        what = self.quantity(name)
        ours, spread = value(run.record, name) if run.record is not None else (None, None)
        first = "not run" if run.record is None else "" if ours is None else pointed(ours, what.digits)
        if spread is not None:
            first += f" ± {pointed(spread, what.digits)}"
        if not self._is_printed(name):
            return [first]
        gap = self._difference(run, name, ours, paper)
        beside = [_text(paper), "" if gap is None else signed(gap, what.digits)]
        return [first, *beside[: len(self._beside(name))]]


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
