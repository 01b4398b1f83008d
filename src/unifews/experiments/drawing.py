"""A figure of an experiment as plain values: what a report needs to draw it, and the rows that it is drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from unifews.experiments import definitions
from unifews.experiments.definitions import Figure
from unifews.experiments.quantities import value

if TYPE_CHECKING:
    from unifews.experiments.outcome import Done, Outcome

_SAID = {"inherit": "nested", "edge_threshold": "δ_a", "weight_threshold": "δ_w", "edge_sparsity": "edge"}
"""Labels as one would say them before their value."""


class _Point(NamedTuple):
    x: Any
    y: float
    spread: float | None


def drawing(outcome: Outcome, name: str) -> dict[str, Any]:
    """The experiment's figure of this name, for JSON."""
    experiment = outcome.experiment
    figure, single = experiment.figures[name], len(experiment.figures) == 1
    drawer = _Drawer(outcome, figure)
    columns, digits = outcome.columns(), outcome.digits()
    rows, keys = [outcome.row(run) for run in outcome.tabled(figure.panel)], len(experiment.keys)
    series = drawer.curves() if figure.curves else drawer.lines()
    if figure.curves:
        columns, digits, keys = ["curve", figure.x_label, figure.y_label], [None, None, None], 1
        rows = [[curve["name"], x, y] for curve in series for x, y in zip(curve["x"], curve["y"], strict=True)]
    return {
        "id": experiment.id if single else f"{experiment.id}.{_slug(name)}",
        "title": experiment.title if single else f"{experiment.title}: {name}",
        "experiment": experiment.title,
        "panel": "" if single else name,
        "place": _place(experiment.id, list(experiment.figures).index(name)),
        "caption": outcome.shows,
        "kind": figure.kind,
        "columns": columns,
        "keys": keys,
        "digits": digits,
        "rows": rows,
        "series": series,
        "x_label": figure.x_label or ", ".join(drawer.title(name) for name in figure.x),
        "y_label": figure.y_label or " / ".join(drawer.title(name) for name in figure.y),
        "operations": [axis for axis, names in (("x", figure.x), ("y", figure.y)) if drawer.count_operations(names)],
        "guide": figure.guide,
        "notes": outcome.notes,
        "label": experiment.label,
        "scale": outcome.scale,
        "command": outcome.command,
        "machines": outcome.machines,
        "versions": outcome.versions,
    }


def _place(experiment: str, figure: int) -> list[int]:
    """Where it stands among all: experiments in their order, those that are not among them last."""
    ids = definitions.ids()
    return [ids.index(experiment) if experiment in ids else len(ids), figure]


class _Drawer:
    def __init__(self, outcome: Outcome, figure: Figure) -> None:
        self.outcome, self.figure = outcome, figure
        self.named = outcome.experiment.quantities
        self.runs = outcome.runs_of(figure.panel)

    def title(self, name: str) -> str:
        return self.outcome.quantity(name).title if name in self.named else name

    def count_operations(self, names: Sequence[str]) -> bool:
        return bool(names) and all(name in self.named and self.outcome.quantity(name).operations for name in names)

    def curves(self) -> list[dict[str, Any]]:
        made = []
        for run in self.runs:
            found = {} if run.record is None else run.record["curves"]
            for name in self.figure.curves:
                if name in found:
                    called = " ".join([*_words(run, self.figure.series), name])
                    made.append({"name": called, **found[name], "error": [], "published": False, "quantity": ""})
        return made

    def lines(self) -> list[dict[str, Any]]:
        """A series for every line and quantity, ours and, where values are printed, the paper's.

        Quantities of lines have axes of their own, and those of bars and points share one: there, names tell them apart.
        """
        figure, several = self.figure, len(self.figure.y) > 1
        apart = several and figure.kind == "lines"
        ours: dict[tuple[str, str], list[_Point]] = {}
        paper: dict[tuple[str, str], list[_Point]] = {}
        for run in self.runs:
            if run.record is None:
                continue
            printed = self.outcome.experiment.printed(run.planned.labels)
            for name in figure.y:
                called = " ".join([*_words(run, figure.series), *([self.title(name)] if several and not apart else [])])
                which = called, self.title(name) if apart else ""
                here, (height, spread) = self._x(run), value(run.record, name)
                if height is not None:
                    ours.setdefault(which, []).append(_Point(here, height, spread))
                if isinstance(printed.get(name), int | float):
                    paper.setdefault((f"{called}, paper", which[1]), []).append(_Point(here, printed[name], None))
        return [_series(*which, points, False) for which, points in ours.items()] + [
            _series(*which, points, True) for which, points in paper.items()
        ]

    def _x(self, run: Done) -> Any:
        assert run.record is not None
        names = self.figure.x
        if len(names) != 1:
            return ", ".join(_words(run, names))
        return value(run.record, names[0])[0] if names[0] in self.named else run.label(names[0])


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


def _series(called: str, quantity: str, points: list[_Point], published: bool) -> dict[str, Any]:
    if all(isinstance(point.x, int | float) for point in points):
        points = sorted(points, key=lambda point: point.x)
    spread = [point.spread for point in points]
    return {
        "name": called,
        "quantity": quantity,
        "x": [point.x for point in points],
        "y": [point.y for point in points],
        "error": spread if any(value is not None for value in spread) else [],
        "published": published,
    }


def _slug(name: str) -> str:
    """A figure's name as part of a file name."""
    return "-".join("".join(c if c.isalnum() or c == "." else " " for c in name.lower()).split())
