"""Experiments as TOML files: a table or figure, the runs it consists of, and the values that the paper prints.

    id = "res_dec"                       title, shows, notes: text
    keys = ["model", "case"]             labels that identify the rows of its table
    quantities = ["accuracy"]            what is measured; see `unifews.experiments.results.Quantity`
    [settings]                           of every training
    [case."edge .5"]                     settings under a name; `form = "paper"` and `recipe = "paper"` mean the paper's
    [[grid]]                             runs: every list is an axis, every other value a setting
    [scale.smoke]                        settings and shorter axes of trainings at that scale; [grid.smoke] of one grid only
    [published]                          printed values: columns, of which the first `keys` are labels, and rows

Scales reduce seeds, epochs, sizes and axes. Every grid exists at every scale, so `smoke` runs the code that `paper` runs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

from unifews.core.config import from_dict, validate
from unifews.errors import FileFormatError, UnifewsError, unknown_name

Scale = Literal["smoke", "small", "paper"]
FigureKind = Literal["table", "lines", "bars", "heatmap", "scatter"]
SCALES: tuple[Scale, ...] = get_args(Scale)
GUIDES = ("", "diagonal")
"""Reference lines of a figure, besides a horizontal one."""
FOLDERS = ("paper", "own")
"""The paper's tables and figures, and experiments of our own."""
ORDER = (
    *("tab:dataset", "tab:dec", "res_dec", "res_iter", "res_iter_full", "iter_joint", "flop", "spar", "thr", "proc"),
    *("res_iter_ds", "res_iter_md", "res_var", "hm", "lay", "gencat"),
)
"""The paper's order, except that the table of datasets comes first; our own follow by name."""
TRAIN = "train"
"""The work of a grid that names no measurement."""
Settings = dict[str, Any]
"""Values of a TOML table by name."""
_GRID_KEYS = ("panel", "work", "case", "as")  # of a grid or a case; the others are settings


@dataclass(frozen=True)
class Figure:
    """How a panel is drawn."""

    kind: FigureKind = "table"
    x: tuple[str, ...] = ()
    """A label or quantity; several labels are joined."""
    y: tuple[str, ...] = ()
    """Quantities: a line or a bar each."""
    series: tuple[str, ...] = ()
    """Labels that identify a line; of a heat map, a row."""
    x_label: str = ""
    y_label: str = ""
    curves: tuple[str, ...] = ()
    """Instead of x and y: names of curves that a measurement returns."""
    guide: str | float = ""
    """A reference line: "diagonal", where x equals y, or the height of a horizontal one."""
    panel: str = ""
    """The runs that are drawn: those of the grids of this panel."""

    def __post_init__(self) -> None:
        validate(self)
        if isinstance(self.guide, str) and self.guide not in GUIDES:
            raise unknown_name("guide", self.guide, GUIDES)


@dataclass(frozen=True)
class Published:
    """Values that the paper prints."""

    source: str
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def find(self, labels: Mapping[str, Any]) -> Settings:
        """Quantities printed for these labels (a missing label is ""); text such as "OOM" where no number is printed."""
        wanted = tuple("" if labels.get(key) is None else labels[key] for key in self.keys)
        n = len(self.keys)
        return next((dict(zip(self.columns[n:], row[n:], strict=True)) for row in self.rows if row[:n] == wanted), {})


@dataclass(frozen=True)
class Planned:
    """One run of an experiment, before its dataset is located."""

    work: str
    """`TRAIN`, or the name of a measurement."""
    settings: Settings
    """Of `train`, or of a measurement."""
    labels: Settings
    """What identifies it in tables: settings, panel, case."""


@dataclass(frozen=True)
class Experiment:
    """A table or figure: what it shows, its runs, and the values that the paper prints."""

    id: str
    title: str
    shows: str
    keys: tuple[str, ...]
    quantities: tuple[str, ...]
    grids: tuple[Settings, ...]
    figures: dict[str, Figure]
    """By name (default: the panel's); a single one without a name shows the whole experiment."""
    label: str = ""
    """The paper's; empty for an experiment of our own."""
    notes: tuple[str, ...] = ()
    published: Published | str = ""
    """Values, or the reason why there are none: "figure only"."""
    settings: Settings = field(default_factory=dict)
    cases: dict[str, Settings] = field(default_factory=dict)
    scales: dict[str, Settings] = field(default_factory=dict)
    named: dict[str, Settings] = field(default_factory=dict)
    """Quantities of its own measurements, by name: see `unifews.experiments.results.Quantity`."""

    @property
    def file(self) -> str:
        """Its id as part of a file name."""
        return self.id.replace(":", "_")

    def printed(self, labels: Mapping[str, Any]) -> Settings:
        return self.published.find(labels) if isinstance(self.published, Published) else {}

    def runs(self, scale: Scale) -> list[Planned]:
        """Every run at a scale."""
        return [run for grid in self.grids for run in self._of_grid(grid, scale)]

    def _of_grid(self, grid: Mapping[str, Any], scale: Scale) -> Iterator[Planned]:
        work = grid.get("work", TRAIN)
        own = {name: value for name, value in grid.items() if name not in SCALES}
        # Settings of a scale, such as epochs, are those of trainings; grids of measurements have their own.
        smaller = {**(self.scales.get(scale, {}) if work == TRAIN else {}), **grid.get(scale, {})}
        axes = {name: _as_list(smaller.get(name, value)) for name, value in own.items() if isinstance(value, list)}
        fixed = {name: value for name, value in own.items() if name not in axes and name not in _GRID_KEYS}
        smaller = {name: value for name, value in smaller.items() if name not in axes and not isinstance(value, list)}
        for point in product(*axes.values()):
            values = dict(zip(axes, point, strict=True))
            case = values.pop("case", own.get("case", ""))
            bundle = self._case(case) if case else {}
            of_case = {name: value for name, value in bundle.items() if name not in _GRID_KEYS}
            settings = {**(self.settings if work == TRAIN else {}), **fixed, **of_case, **smaller, **values}
            labels = {**settings, "panel": own.get("panel", ""), "case": case, "as": bundle.get("as", case)}
            yield Planned(work, expanded(settings) if work == TRAIN else settings, labels)

    def _case(self, name: str) -> Settings:
        if name not in self.cases:
            raise FileFormatError(f"experiment {self.id} has a grid over case {name!r}, which it does not define.")
        return self.cases[name]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def expanded(settings: Mapping[str, Any]) -> Settings:
    """Settings of `train`, with `form` and `recipe` expanded; explicit settings take precedence."""
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
    own = layered and rest.get("method", TrainSpec.method) == TrainSpec.method
    # The default when these experiments were recorded (docs/adr/0014).
    base: Settings = {"entries": "unit", "renormalize": False} if own else {}
    if recipe:
        paper = asdict(Recipe.paper(layered=layered))
        base |= {name: paper[name] for name in ("lr", "dropout", "weight_decay", "patience")}
        base |= {} if layered else {"standardise": "column"}
        if own:
            base["weight_ramp"] = long_ramp(rest.get("layers", Recipe.layers))  # 200 epochs are enough for it
    if form:
        base |= paper_form(model) | ({"skip": "identity"} if model == "sgc" else {})  # Algorithm 1 adds P[u] itself
    return {**base, **rest}


# --------------------------------------------------------------------------------------------------------------- reading


def ids() -> list[str]:
    """Ids of all experiments, the paper's first."""
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
    """An experiment from its file."""
    try:
        with path.open("rb") as file:
            values = tomllib.load(file)
        return _experiment(values)
    except tomllib.TOMLDecodeError as error:
        raise FileFormatError(f"{path} is not an experiment: {error}.") from error
    except KeyError as error:
        raise FileFormatError(f"{path} is not an experiment: {error} is missing.") from error
    except UnifewsError as error:
        raise FileFormatError(f"{path}: {error}") from error


def _experiment(values: Settings) -> Experiment:
    own = {item.name for item in fields(Experiment)}
    tables = {"grid": "grids", "case": "cases", "scale": "scales", "quantity": "named"}
    known = own | tables.keys() | {item.name for item in fields(Figure)} | {"figure"}
    for name in values:
        if name not in known:
            raise unknown_name("entry", name, known)
    given = {tables.get(name, name): value for name, value in values.items() if name in tables or name in own}
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    published = _published(values.get("published", ""))
    return from_dict(Experiment, {**given, "figures": _figures(values, given.get("grids", ())), "published": published})


def _figures(values: Mapping[str, Any], grids: tuple[Settings, ...]) -> dict[str, Figure]:
    """The file's own entries apply to all figures; a panel that no figure names is a figure."""
    names = {item.name for item in fields(Figure)}
    common = {name: value for name, value in values.items() if name in names}
    given = {name: {"panel": name, **own} for name, own in values.get("figure", {}).items()}
    shown = {own["panel"] for own in given.values()}
    panels = dict.fromkeys(grid.get("panel", "") for grid in grids)
    given = {panel: {"panel": panel} for panel in panels if panel not in shown} | given
    for own in given.values():
        if own["panel"] not in panels:
            raise unknown_name("panel", own["panel"], panels)
    made = {}
    for name, own in given.items():
        entries: Settings = {**common, **own}
        entries["x"] = _as_list(entries.get("x", []))
        lists = {key: tuple(value) for key, value in entries.items() if isinstance(value, list)}
        made[name] = from_dict(Figure, {**entries, **lists})
    return made


def _published(given: str | Mapping[str, Any]) -> Published | str:
    if isinstance(given, str):
        return given
    columns, rows = tuple(given["columns"]), tuple(tuple(row) for row in given["rows"])
    for row in rows:
        if len(row) != len(columns):
            raise FileFormatError(f"the published row {list(row)} has {len(row)} values for {len(columns)} columns.")
    return Published(given["source"], columns[: given["keys"]], columns, rows)
