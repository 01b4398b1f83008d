"""Figures as values (`Plot`), made of exhibits and runs, and drawn by plotly in a page; see `unifews.report.vector` for files.

What the paper prints is grey with open marks, so that it is not mistaken for a measurement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, Literal

from unifews.experiments.results import Exhibit, Series, as_csv
from unifews.report.runs import Record, Row, labels_of, prunes
from unifews.report.tables import download, short
from unifews.training.metrics import NAMES

# Okabe and Ito's colours, distinguishable for colour-blind readers on light and dark backgrounds.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
GREY = "#8a8f98"
"""Of printed values, reference lines and the unpruned model."""
_DASHES = ("solid", "dash", "dot", "dashdot")
_LOG_RATIO, _LOG_RATIO_OPERATIONS = 1e3, 10.0  # largest value over smallest from which an axis is logarithmic
_FINE_DECADES = 3  # an axis of at most this many decades has ticks at 2 and 5 too
_MARGIN = 0.2  # decades beside the outermost points
_LEGEND_RUNS = 12  # with more runs of several models the legend shows models only


@dataclass(frozen=True)
class Mark:
    """A series as it is drawn: points, a line, or bars."""

    name: str
    x: Sequence[Any]
    y: Sequence[float | None]
    error: Sequence[float | None] = ()
    colour: str | Sequence[str] = COLOURS[0]
    """Of several bars one each."""
    symbol: str = "circle"
    """As plotly names them; hollow with "-open"; "" for a line without points."""
    dash: str = ""
    """Of the line through the points; "" for none."""
    size: int = 8
    panel: int = 0
    in_legend: bool = True
    group: str = ""
    """Marks that one entry of the legend shows and hides."""
    hover: Sequence[str] = ()
    quantity: str = ""


@dataclass(frozen=True)
class Heat:
    """A heat map: a row per name, a column per x."""

    title: str
    x: Sequence[str]
    names: Sequence[str]
    values: Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class Axis:
    title: str = ""
    kind: Literal["linear", "log", "category"] = "linear"
    ticks: Sequence[tuple[float, str]] = ()
    """Of a logarithmic axis."""
    range: tuple[float, float] | None = None
    """Decades of a logarithmic axis."""


@dataclass(frozen=True)
class Plot:
    """A figure: marks in panels one below the other, or heat maps."""

    marks: Sequence[Mark] = ()
    x: Axis = field(default_factory=Axis)
    y: Sequence[Axis] = (Axis(),)
    """One per panel."""
    bars: bool = False
    heat: Sequence[Heat] = ()
    levels: Sequence[tuple[int, float, str]] = ()
    """Horizontal lines: panel, height, colour."""

    @property
    def legend(self) -> list[Mark]:
        return [mark for mark in self.marks if mark.in_legend]


# ------------------------------------------------------------------------------------------------------------------- axes


def log_axis(title: str, values: Sequence[float], text: Callable[[float], str] = lambda tick: f"{tick:,.10g}") -> Axis:
    """A logarithmic axis around positive values, each tick with its full number."""
    low, high = math.log10(min(values)) - _MARGIN, math.log10(max(values)) + _MARGIN
    return Axis(title, "log", [(tick, text(tick)) for tick in log_ticks(low, high)], (low, high))


def log_ticks(low: float, high: float) -> list[float]:
    """Ticks between two powers of ten: 1, 2, 5, 10, … over a few decades, else powers of ten only.

    >>> log_ticks(-0.5, 1)
    [0.5, 1.0, 2.0, 5.0, 10.0]
    """
    steps = (1, 2, 5) if high - low <= _FINE_DECADES else (1,)
    found = [step * 10.0**power for power in range(max(math.floor(low), -300), min(math.ceil(high), 300) + 1) for step in steps]
    return [tick for tick in found if low <= math.log10(tick) <= high]


def operations_axis(title: str, operations: Sequence[int]) -> Axis:
    """A logarithmic axis of multiply-adds: 2 M, 5 M, 10 M."""
    text = lambda tick: short(round(tick)).replace(".00 ", " ").replace(".0 ", " ")  # noqa: E731
    return log_axis(title, [max(1, count) for count in operations], text)


def _axis(title: str, values: Sequence[Any], ratio: float) -> Axis:
    """Logarithmic if all values are positive numbers and the largest is `ratio` times the smallest."""
    numbers = [x for x in values if isinstance(x, int | float) and x > 0]
    log = bool(numbers) and len(numbers) == len(values) and max(numbers) / min(numbers) >= ratio
    return log_axis(title, numbers) if log else Axis(title)


# --------------------------------------------------------------------------------------------------------------- exhibits


def exhibit_plot(exhibit: Exhibit) -> Plot:
    """The figure of an exhibit: lines by quantity in panels, points, bars, or heat maps."""
    if exhibit.kind == "heatmap":
        return _heat_maps(exhibit)
    quantities = list(dict.fromkeys(series.quantity for series in exhibit.series))
    numbers = {name: number for number, name in enumerate(dict.fromkeys(series.name for series in exhibit.series))}
    named: set[str] = set()
    marks, levels = [], []
    for series in exhibit.series:
        panel, number = quantities.index(series.quantity), numbers[series.name]
        marks.append(_mark(exhibit.kind, series, panel, number, series.name not in named))
        named.add(series.name)
        if exhibit.kind == "lines" and list(series.x) == [0] and not series.published:
            # A single point where nothing is removed is the level to compare the others with.
            levels.append((panel, series.y[0] or 0.0, COLOURS[number % len(COLOURS)]))
    if exhibit.guide == "diagonal":
        ends = [x for series in exhibit.series for x, y in zip(series.x, series.y, strict=True) if y is not None]
        ends = [min(ends), max(ends)] if ends else []
        marks.append(Mark("x = y", ends, ends, colour=GREY, symbol="", dash="dot"))  # type: ignore[arg-type]
    elif not isinstance(exhibit.guide, str):
        levels.append((0, float(exhibit.guide), GREY))
    x, y = _exhibit_axes(exhibit, quantities)
    return Plot(marks, x, y, bars=exhibit.kind == "bars", levels=levels)


def _mark(kind: str, series: Series, panel: int, number: int, in_legend: bool) -> Mark:
    turn = number // len(COLOURS)
    symbol = SYMBOLS[turn % len(SYMBOLS)]
    dash = "dash" if series.published else _DASHES[turn % len(_DASHES)]
    return Mark(
        name=f"{series.name} (paper)" if series.published and "paper" not in series.name else series.name,
        x=[str(x) for x in series.x] if kind == "bars" else series.x,
        y=series.y,
        error=series.error,
        colour=GREY if series.published else COLOURS[number % len(COLOURS)],
        symbol=f"{symbol}-open" if series.published else symbol,
        dash=dash if kind == "lines" else "",
        panel=panel,
        in_legend=in_legend,
        quantity=series.quantity,
    )


def _exhibit_axes(exhibit: Exhibit, quantities: Sequence[str]) -> tuple[Axis, list[Axis]]:
    scatter = exhibit.kind == "scatter"  # both axes are sizes
    ratio = _LOG_RATIO_OPERATIONS if scatter or "x" in exhibit.operations else _LOG_RATIO
    x = _axis(exhibit.x_label, [x for series in exhibit.series for x in series.x], ratio)
    axes = []
    for quantity in quantities:
        values = [y for series in exhibit.series if series.quantity == quantity for y in series.y if y is not None]
        log = scatter or "y" in exhibit.operations
        axes.append(_axis(quantity or exhibit.y_label, values, _LOG_RATIO_OPERATIONS if log else math.inf))
    return Axis(exhibit.x_label, "category") if exhibit.kind == "bars" else x, axes


def _heat_maps(exhibit: Exhibit) -> Plot:
    """Ours and, below it with the same colours, the paper's."""
    heat = []
    for title, published in (("ours", False), ("paper", True)):
        rows = [series for series in exhibit.series if series.published == published]
        columns = list(dict.fromkeys(x for series in rows for x in series.x))
        found = [dict(zip(series.x, series.y, strict=True)) for series in rows]
        values = [[line.get(x) for x in columns] for line in found]
        names = [series.name.removesuffix(", paper") for series in rows]
        heat += [Heat(title, [str(x) for x in columns], names, values)] if rows else []
    axis = Axis(exhibit.y_label, "category")
    return Plot(x=Axis(exhibit.x_label, "category"), y=[axis] * len(heat), heat=heat)


# ------------------------------------------------------------------------------------------------------------------- runs


def runs_plot(records: Sequence[Record]) -> Plot:
    """A point per run, hollow if unpruned: test score against all multiply-adds from features to classes."""
    groups = [(str(record["spec"]["dataset"]), str(record["spec"]["model"])) for record in records]
    distinct = list(dict.fromkeys(groups))
    rows = [Row.of(record, label) for record, label in zip(records, labels_of(records), strict=True)]
    many = len(rows) > _LEGEND_RUNS and len(distinct) > 1
    marks = []
    for i, (record, row, group) in enumerate(zip(records, rows, groups, strict=True)):
        number = distinct.index(group) if len(distinct) > 1 else i
        hover = (
            f"{row.label}\n{row.score:.1f} ± {row.std:.1f} %\npropagation {short(row.macs)}, "
            f"axes {short(row.basis_macs)}, transformation {short(row.transform_macs)} MACs"
        )
        marks.append(
            Mark(
                name=row.label,
                x=[row.operations],
                y=[row.score],
                error=[row.std] if row.seeds > 1 else (),
                colour=COLOURS[number % len(COLOURS)],
                symbol=SYMBOLS[i % len(SYMBOLS)] if prunes(record) else "circle-open",
                size=13,
                in_legend=not many,
                group=" ".join(group) if many else "",
                hover=[hover],
            )
        )
    several = len({dataset for dataset, _ in distinct}) > 1
    for i, group in enumerate(distinct if many else []):
        name = " ".join(group if several else group[1:])
        marks.append(Mark(name, [None], [None], colour=COLOURS[i % len(COLOURS)], size=11, group=" ".join(group)))
    metric = " or ".join(sorted({NAMES[record["metric"]] for record in records}))
    x = operations_axis("multiply-adds from features to classes", [row.operations for row in rows])
    return Plot(marks, x, [Axis(f"test {metric}, %")])


# ----------------------------------------------------------------------------------------------------------------- plotly


def plotly_figure(plot: Plot) -> Any:
    """The figure for plotly, which reads texts as HTML: all of them are escaped."""
    from plotly.subplots import make_subplots

    count = len(plot.heat) or len(plot.y)
    titles = [each.title for each in plot.heat] if len(plot.heat) > 1 else None
    gap = 0.1 if plot.heat else 0.06
    fig = make_subplots(rows=count, cols=1, shared_xaxes=count > 1, vertical_spacing=gap, subplot_titles=titles)
    for mark in plot.marks:
        _add_bars(fig, mark) if plot.bars else _add_points(fig, mark)
    for row, heat in enumerate(plot.heat, 1):
        fig.add_heatmap(
            x=heat.x,
            y=[escape(name) for name in heat.names],
            z=heat.values,
            coloraxis="coloraxis",
            texttemplate="%{z:.3g}",
            hovertemplate="%{y}, %{x}: %{z:.4g}<extra></extra>",
            name=heat.title if titles else None,
            row=row,
            col=1,
        )
    for panel, height, colour in plot.levels:
        fig.add_hline(y=height, line={"width": 1, "dash": "dot", "color": colour}, row=panel + 1, col=1)
    fig.update_xaxes(**_plotly_axis(replace(plot.x, title="")))
    fig.update_xaxes(title=escape(plot.x.title), row=count)
    for row, axis in enumerate(plot.y, 1):
        fig.update_yaxes(**_plotly_axis(axis), row=row)
    pixels = {"height": (320 if plot.heat else 260) * count} if count > 1 or plot.heat else {}
    fig.update_layout(
        template="none",
        margin={"l": 60, "r": 20, "t": 40 if titles else 20, "b": 50},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif"},
        showlegend=bool(plot.legend),
        hovermode="closest",
        coloraxis={"colorscale": "Viridis"} if plot.heat else None,
        **pixels,
    )
    return fig


def _plotly_axis(axis: Axis) -> dict[str, Any]:
    found: dict[str, Any] = {"title": escape(axis.title), "automargin": True}
    found |= {} if axis.kind == "linear" else {"type": axis.kind}
    found |= {"range": axis.range} if axis.range else {}
    return found | ({"tickvals": [v for v, _ in axis.ticks], "ticktext": [t for _, t in axis.ticks]} if axis.ticks else {})


def _common(mark: Mark) -> dict[str, Any]:
    hover = [escape(text).replace("\n", "<br>") for text in mark.hover]
    return {
        "x": [escape(x) if isinstance(x, str) else x for x in mark.x],
        "y": list(mark.y),
        "name": escape(mark.name),
        "error_y": {"type": "data", "array": list(mark.error), "thickness": 1, "width": 4} if mark.error else None,
        "customdata": hover or None,
        "hovertemplate": "%{customdata}<extra></extra>" if hover else "%{x}: %{y:.4g}<extra>%{fullData.name}</extra>",
        "showlegend": mark.in_legend,
        "row": mark.panel + 1,
        "col": 1,
    }


def _add_points(fig: Any, mark: Mark) -> None:
    parts = [part for part, used in (("lines", mark.dash), ("markers", mark.symbol)) if used]
    fig.add_scatter(
        **_common(mark),
        mode="+".join(parts),
        marker={"size": mark.size, "color": mark.colour, "symbol": mark.symbol or None},
        line={"width": 2 if mark.symbol else 1, "dash": mark.dash or None, "color": mark.colour},
        legendgroup=escape(mark.group or mark.name),
        meta=mark.quantity or None,
    )


def _add_bars(fig: Any, mark: Mark) -> None:
    pattern = "/" if mark.symbol.endswith("-open") else ""
    fig.add_bar(**_common(mark), marker={"color": mark.colour, "pattern": {"shape": pattern}})


# ------------------------------------------------------------------------------------------------------------ HTML and CSV


def plot_html(plot: Plot, name: str) -> str:
    """A <div> of this id with the figure for the page's script, and downloads: PNG, and its numbers as CSV."""
    json = plotly_figure(plot).to_json().replace("<", "\\u003c")  # so that no text can end the script
    return (
        f'<div id="{name}" class="plot" data-figure="{name}-figure"></div>\n'
        f'<script type="application/json" id="{name}-figure">{json}</script>\n'
        f'<div class="take"><button type="button" data-png="{name}">PNG</button>{download(f"{name}.csv", plot_csv(plot))}</div>'
    )


def plot_csv(plot: Plot) -> str:
    """All numbers of a figure as CSV: a line per point, or per field of a heat map."""
    rows: list[list[Any]] = []
    for mark in plot.marks:
        name = f"{mark.name}, {mark.quantity}" if mark.name and mark.quantity else mark.name or mark.quantity
        spread = mark.error or [None] * len(mark.x)
        rows += [[name, *point] for point in zip(mark.x, mark.y, spread, strict=True) if point[0] is not None]
    for heat in plot.heat:
        for name, line in zip(heat.names, heat.values, strict=True):
            series = f"{name}, {heat.title}" if len(plot.heat) > 1 else name
            rows += [[series, *field, None] for field in zip(heat.x, line, strict=True)]
    heights = " / ".join(dict.fromkeys(axis.title for axis in plot.y if axis.title))
    return as_csv(["series", plot.x.title or "x", heights or "y", "spread"], rows)
