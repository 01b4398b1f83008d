"""An experiment as a file: a table or figure, the runs it is made of, and what the paper prints for them.

    id = "res_dec"                       title, shows, notes: text
    keys = ["model", "case"]             what tells the rows of its table apart
    quantities = ["accuracy"]            what is measured; see `unifews.experiments.quantities`
    [settings]                           of every training
    [case."edge .5"]                     settings under a name; `form = "paper"` and `recipe = "paper"` stand for the paper's
    [[grid]]                             runs: every list is an axis, every other value a setting
    [scale.smoke]                        settings and shorter axes of trainings at that scale; [grid.smoke] of one grid only
    [published]                          printed values: columns, of which the first `keys` say what they belong to, and rows

Scales shrink seeds, epochs, sizes and axes. Every grid is there at every scale, so `smoke` runs the code that `paper` runs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

from unifews.errors import FileFormatError, unknown_name

Scale = Literal["smoke", "small", "paper"]
Kind = Literal["table", "lines", "bars", "heatmap", "scatter"]
SCALES: tuple[Scale, ...] = get_args(Scale)
KINDS: tuple[Kind, ...] = get_args(Kind)
GUIDES = ("", "diagonal")
"""Lines that a figure's points may be seen against, beside a level one."""
FOLDERS = ("paper", "own")
"""The paper's tables and figures, and experiments that it lacks."""
ORDER = (
    "tab:dataset", "tab:dec", "res_dec", "res_iter", "res_iter_full", "iter_joint", "flop", "spar", "thr", "proc",
    "res_iter_ds", "res_iter_md", "res_var", "hm", "lay", "gencat",
)  # fmt: skip
"""As the paper has them, but for the table of its datasets, which comes first; others follow by name."""
TRAIN = "train"
"""The work of a grid that names no measurement."""
_WORDS = ("panel", "work", "case", "as")  # of a grid or a case; the rest are settings


@dataclass(frozen=True)
class Figure:
    """How a panel is drawn."""

    kind: Kind = "table"
    x: tuple[str, ...] = ()
    """A label or quantity; of several labels, their words together."""
    y: tuple[str, ...] = ()
    """Quantities: a line, or a bar of a stack, each."""
    series: tuple[str, ...] = ()
    """Labels that tell one line from another; of a heat map, one row from another."""
    x_label: str = ""
    y_label: str = ""
    curves: tuple[str, ...] = ()
    """Instead of x and y: curves that a measurement gives whole, by name."""
    guide: str | float = ""
    """A line to see points against: "diagonal", where both axes say the same, or the height of a level one."""
    panel: str = ""
    """The runs that are drawn: those of the grids of this panel."""


@dataclass(frozen=True)
class Published:
    """What the paper prints."""

    source: str
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def find(self, labels: Mapping[str, Any]) -> dict[str, Any]:
        """Quantities printed for what has these labels ("" for one it lacks); a word such as "OOM" where there is no number."""
        wanted = tuple("" if labels.get(key) is None else labels[key] for key in self.keys)
        n = len(self.keys)
        return next((dict(zip(self.columns[n:], row[n:], strict=True)) for row in self.rows if row[:n] == wanted), {})


@dataclass(frozen=True)
class Planned:
    """One run of an experiment, before its dataset is looked for."""

    work: str
    settings: dict[str, Any]
    """Of `train`, or of a measurement."""
    labels: dict[str, Any]
    """What it is told apart by in tables: settings, panel, case."""


@dataclass(frozen=True)
class Experiment:
    """A table or figure: what it shows, the runs it is made of, what the paper prints for them."""

    id: str
    title: str
    shows: str
    keys: tuple[str, ...]
    quantities: tuple[str, ...]
    grids: tuple[dict[str, Any], ...]
    figures: dict[str, Figure]
    """By name, the panel's unless the file names them; a single one without a name is the whole experiment."""
    label: str = ""
    """The paper's; empty where it has no such experiment."""
    notes: tuple[str, ...] = ()
    published: Published | str = ""
    """Values, or a word on why there are none: "figure only"."""
    settings: dict[str, Any] = field(default_factory=dict)
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    scales: dict[str, dict[str, Any]] = field(default_factory=dict)
    named: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Quantities of its own measurements, by name: see `unifews.experiments.quantities.Quantity`."""

    @property
    def file(self) -> str:
        """Its id as part of a file name."""
        return self.id.replace(":", "_")

    def printed(self, labels: Mapping[str, Any]) -> dict[str, Any]:
        return self.published.find(labels) if isinstance(self.published, Published) else {}

    def runs(self, scale: Scale) -> list[Planned]:
        """Every run at a scale."""
        return [run for grid in self.grids for run in self._of_grid(grid, scale)]

    def _of_grid(self, grid: Mapping[str, Any], scale: Scale) -> Iterator[Planned]:
        work = grid.get("work", TRAIN)
        own = {name: value for name, value in grid.items() if name not in SCALES}
        # Epochs and the like of a scale are those of trainings; a measurement says for itself how it shrinks.
        smaller = {**(self.scales.get(scale, {}) if work == TRAIN else {}), **grid.get(scale, {})}
        axes = {name: _several(smaller.get(name, value)) for name, value in own.items() if isinstance(value, list)}
        fixed = {name: value for name, value in own.items() if name not in axes and name not in _WORDS}
        smaller = {name: value for name, value in smaller.items() if name not in axes and not isinstance(value, list)}
        for point in product(*axes.values()):
            values = dict(zip(axes, point, strict=True))
            case = values.pop("case", own.get("case", ""))
            bundle = self._case(case) if case else {}
            said = {name: value for name, value in bundle.items() if name not in _WORDS}
            settings = {**(self.settings if work == TRAIN else {}), **fixed, **said, **smaller, **values}
            labels = {**settings, "panel": own.get("panel", ""), "case": case, "as": bundle.get("as", case)}
            yield Planned(work, expanded(settings) if work == TRAIN else settings, labels)

    def _case(self, name: str) -> dict[str, Any]:
        if name not in self.cases:
            raise FileFormatError(f"experiment {self.id} has a grid over case {name!r}, which it does not describe.")
        return self.cases[name]


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def expanded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of `train`, with `form` and `recipe` spelt out; what is given beside them wins."""
    from unifews.nn import models
    from unifews.training.recipe import Recipe
    from unifews.training.spec import TrainSpec, long_ramp, paper_form

    rest = dict(settings)
    form, recipe = rest.pop("form", ""), rest.pop("recipe", "")
    for name, value in (("form", form), ("recipe", recipe)):
        if value not in ("", "paper"):
            raise unknown_name(name, value, ("paper",))
    model = rest.get("model", TrainSpec.model)
    layered = model in models.MODELS
    base: dict[str, Any] = {}
    if recipe:
        paper = asdict(Recipe.paper(layered=layered))
        base |= {name: paper[name] for name in ("lr", "dropout", "weight_decay", "patience")}
        base |= {} if layered else {"standardise": "column"}
        if layered and rest.get("method", TrainSpec.method) == TrainSpec.method:
            base["weight_ramp"] = long_ramp(rest.get("layers", Recipe.layers))  # 200 epochs leave time for it
    if form:
        base |= paper_form(model) | ({"skip": "identity"} if model == "sgc" else {})  # Algorithm 1 adds P[u] itself
    return {**base, **rest}


# --------------------------------------------------------------------------------------------------------------- reading


def ids() -> list[str]:
    """Of all experiments, the paper's first."""
    return list(_files())


def find(name: str) -> Experiment:
    """The experiment of this id; ``fig:`` and ``tab_`` may be written as in the paper or as in file names."""
    known = _files()
    for wanted in (name, name.removeprefix("fig:"), name.replace("tab_", "tab:", 1), f"tab:{name}"):
        if wanted in known:
            return read(known[wanted])
    raise unknown_name("experiment", name, known)


@cache
def _files() -> dict[str, Path]:
    here = Path(__file__).parent
    paths = [path for folder in FOLDERS for path in sorted((here / folder).glob("*.toml"))]
    found = {path.stem.replace("tab_", "tab:", 1): path for path in paths}
    return {name: found[name] for name in dict.fromkeys([*ORDER, *found])}


def read(path: Path) -> Experiment:
    """An experiment from its file; one that does not add up is an error."""
    try:
        with path.open("rb") as file:
            values = tomllib.load(file)
    except tomllib.TOMLDecodeError as error:
        raise FileFormatError(f"{path} is no experiment: {error}.") from error
    known = {item.name for item in fields(Experiment)} | {"grid", "case", "scale", "figure", "quantity"}
    known |= {item.name for item in fields(Figure)}
    for name in values:
        if name not in known:
            raise FileFormatError(f"{path}: {unknown_name('entry', name, known)}")
    try:
        return Experiment(
            id=values["id"], title=values["title"], shows=values["shows"], keys=tuple(values["keys"]),
            quantities=tuple(values["quantities"]), grids=tuple(values["grid"]), figures=_figures(values),
            label=values.get("label", ""), notes=tuple(values.get("notes", ())),
            published=_published(values.get("published", "")), settings=values.get("settings", {}),
            cases=values.get("case", {}), scales=values.get("scale", {}), named=values.get("quantity", {}),
        )  # fmt: skip
    except KeyError as error:
        raise FileFormatError(f"{path} is no experiment: it lacks {error}.") from error


def _figures(values: Mapping[str, Any]) -> dict[str, Figure]:
    """What the file says at its top, with each figure's own on top of that; a panel that no figure names is one."""
    names = {item.name for item in fields(Figure)}
    common = {name: value for name, value in values.items() if name in names}
    given = {name: {"panel": name, **own} for name, own in values.get("figure", {}).items()}
    shown = {own["panel"] for own in given.values()}
    panels = dict.fromkeys(grid.get("panel", "") for grid in values["grid"])
    given = {panel: {"panel": panel} for panel in panels if panel not in shown} | given
    made = {}
    for name, own in given.items():
        said: dict[str, Any] = {**common, **own}
        said["x"] = _several(said.get("x", []))
        plain: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in said.items()}
        made[name] = Figure(**plain)
        if made[name].kind not in KINDS:
            raise unknown_name("kind of figure", made[name].kind, KINDS)
        if isinstance(made[name].guide, str) and made[name].guide not in GUIDES:
            raise unknown_name("guide", str(made[name].guide), GUIDES)
        if made[name].panel not in panels:
            raise unknown_name("panel", made[name].panel, panels)
    return made


def _published(given: str | Mapping[str, Any]) -> Published | str:
    if isinstance(given, str):
        return given
    columns, rows = tuple(given["columns"]), tuple(tuple(row) for row in given["rows"])
    for row in rows:
        if len(row) != len(columns):
            raise FileFormatError(f"the published row {list(row)} has {len(row)} values for {len(columns)} columns.")
    return Published(given["source"], columns[: given["keys"]], columns, rows)
