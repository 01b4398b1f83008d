"""Pictures in a page: plotly figures as JSON that the page's own script draws, in light or dark, with what to take away."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Sequence
from html import escape, unescape
from typing import Any, NamedTuple

from unifews.experiments.quantities import as_csv
from unifews.report.exhibit import Exhibit, Series

# Okabe and Ito's colours, which stay apart for colour-blind eyes, light or dark behind them.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
PLAIN: dict[str, Any] = {
    "template": "none", "margin": {"l": 60, "r": 20, "t": 20, "b": 50}, "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)", "font": {"family": "system-ui, sans-serif"},
}  # fmt: skip
_PRINTED = "#8a8f98"  # the paper's values, between light and dark
_FAR, _DECADE = 1e3, 10.0  # largest place over smallest from which an axis is one of logarithms; of one of operations
_ROOM = 3  # decades of an axis that has room for more marks than the powers of ten
_DASHES = ("solid", "dash", "dot", "dashdot")


def drawn(fig: Any, name: str) -> str:
    """A <div> of this id with the figure for it, and two ways to take it away: as PNG, and its numbers as CSV."""
    json = fig.to_json().replace("<", "\\u003c")  # no text of it can end the script
    return (
        f'<div id="{name}" class="plot" data-figure="{name}-figure"></div>\n'
        f'<script type="application/json" id="{name}-figure">{json}</script>\n'
        f'<div class="take"><button type="button" data-png="{name}">PNG</button>{download(f"{name}.csv", data_of(fig))}</div>'
    )


def download(name: str, text: str) -> str:
    """A link that holds the file it leads to."""
    content = b64encode(text.encode()).decode()
    return f'<a download="{escape(name)}" href="data:text/csv;charset=utf-8;base64,{content}">CSV</a>'


def data_of(fig: Any) -> str:
    """Everything that a figure draws, as CSV: a line per point, of a heat map per field."""
    values = fig.to_plotly_json()
    rows: list[list[Any]] = []
    for trace in values["data"]:
        name, x, y = unescape(trace.get("name") or ""), list(trace["x"]), list(trace["y"])
        if trace["type"] == "heatmap":
            told = [f"{row}, {name}" if name else row for row in y]
            rows += [
                [row, *field, ""] for row, line in zip(told, trace["z"], strict=True) for field in zip(x, line, strict=True)
            ]
            continue
        if trace.get("meta"):
            name = f"{name}, {trace['meta']}" if name else trace["meta"]
        spread = (trace.get("error_y") or {}).get("array") or [""] * len(x)
        rows += [[name, *point] for point in zip(x, y, spread, strict=True) if point[0] is not None]
    titles = [_axis_title(values["layout"], axis) for axis in ("x", "y")]
    return as_csv(["series", titles[0] or "x", titles[1] or "y", "spread"], rows)


def _axis_title(layout: dict[str, Any], axis: str) -> str:
    """What an axis is called; where a figure has several of them, all their names."""
    found = [str(own.get("title", {}).get("text") or "") for name, own in layout.items() if name.startswith(f"{axis}axis")]
    return " / ".join(dict.fromkeys(name for name in found if name))


def figure_of(exhibit: Exhibit) -> Any:
    """The picture of an exhibit. What the paper prints is grey and open, so that nobody takes it for a measurement."""
    if exhibit.kind == "heatmap":
        return _heat_maps(exhibit)
    quantities = list(dict.fromkeys(series.quantity for series in exhibit.series))
    fig = _rows_of(len(quantities))
    numbers = {name: number for number, name in enumerate(dict.fromkeys(series.name for series in exhibit.series))}
    shown: set[str] = set()
    for series in exhibit.series:
        place = _Place(quantities.index(series.quantity) + 1, numbers[series.name], series.name not in shown)
        shown.add(series.name)
        _BY_KIND[exhibit.kind](fig, series, place)
        if exhibit.kind == "lines" and list(series.x) == [0] and not series.published:
            _level(fig, series, place)
    _scales(fig, exhibit, quantities)
    frame(fig, "" if len(quantities) > 1 else exhibit.x_label, exhibit.y_label, legend=True)
    if len(quantities) > 1:
        fig.update_layout(height=260 * len(quantities))
        fig.update_xaxes(title=escape(exhibit.x_label), row=len(quantities))
        for row, quantity in enumerate(quantities, 1):
            fig.update_yaxes(title=escape(quantity), row=row)
    return fig


def _rows_of(count: int) -> Any:
    """A figure with so many panels one below the other."""
    from plotly.subplots import make_subplots

    return make_subplots(rows=count, cols=1, shared_xaxes=count > 1, vertical_spacing=0.06)


def _scales(fig: Any, exhibit: Exhibit, quantities: Sequence[str]) -> None:
    """Logarithms where places lie far apart, and the line that points are seen against."""
    scatter = exhibit.kind == "scatter"  # sizes set against sizes
    across = [x for series in exhibit.series for x in series.x]
    if exhibit.kind == "bars":
        fig.update_xaxes(type="category")  # numbers that name a column are not places on a scale
    elif _spans(across, _DECADE if scatter or "x" in exhibit.operations else _FAR):
        fig.update_xaxes(type="log", **_ticks(across))
    for row, quantity in enumerate(quantities, 1):
        up = [y for series in exhibit.series if series.quantity == quantity for y in series.y if y is not None]
        if (scatter or "y" in exhibit.operations) and _spans(up, _DECADE):
            fig.update_yaxes(type="log", **_ticks(up), row=row)
    if exhibit.guide == "diagonal":
        both = [x for series in exhibit.series for x, y in zip(series.x, series.y, strict=True) if y is not None]
        places = [min(both), max(both)] if both else []
        fig.add_scatter(
            x=places, y=places, mode="lines", name="both the same", line={"width": 1, "dash": "dot", "color": _PRINTED},
            hoverinfo="skip",
        )  # fmt: skip
    elif isinstance(exhibit.guide, int | float):
        fig.add_hline(y=exhibit.guide, line={"width": 1, "dash": "dot", "color": _PRINTED})


def _ticks(places: Sequence[float]) -> dict[str, Any]:
    """Marks of an axis of logarithms, each with its whole number: plotly's own leave out what power of ten a 2 or 5 is of."""
    marks = round_numbers(math.floor(math.log10(min(places))), math.ceil(math.log10(max(places))))
    return {"tickvals": marks, "ticktext": [f"{mark:,.10g}" for mark in marks]}


def round_numbers(first: float, last: float) -> list[float]:
    """Those between two powers of ten: 1, 2, 5, 10, … where there is room for them, else the powers alone.

    >>> round_numbers(-0.5, 1)
    [0.5, 1.0, 2.0, 5.0, 10.0]
    """
    steps = (1, 2, 5) if last - first <= _ROOM else (1,)
    found = [step * 10.0**power for power in range(math.floor(first), math.ceil(last) + 1) for step in steps]
    return [tick for tick in found if first <= math.log10(tick) <= last]


def frame(fig: Any, x_label: str, y_label: str, *, legend: bool) -> None:
    """What all exhibits have in common: names of the axes, and a legend where there is something to tell apart."""
    fig.update_xaxes(title=escape(x_label), automargin=True)
    fig.update_yaxes(title=escape(y_label), automargin=True)
    fig.update_layout(**PLAIN, showlegend=legend, hovermode="closest")


class _Place(NamedTuple):
    """Where a series is drawn: its panel, the number of its colour, and whether the legend names it there."""

    row: int
    number: int
    named: bool


def _line(fig: Any, series: Series, place: _Place) -> None:
    _points(fig, series, place, "lines+markers")


def _scatter(fig: Any, series: Series, place: _Place) -> None:
    _points(fig, series, place, "markers")


def _points(fig: Any, series: Series, place: _Place, mode: str) -> None:
    turn = place.number // len(COLOURS)
    symbol = SYMBOLS[turn % len(SYMBOLS)]
    fig.add_scatter(
        x=list(series.x), y=list(series.y), name=_name(series), mode=mode, error_y=_error(series),
        marker={"size": 8, "color": _colour(series, place.number), "symbol": f"{symbol}-open" if series.published else symbol},
        line={"width": 2, "dash": "dash" if series.published else _DASHES[turn % len(_DASHES)]},
        hovertemplate="%{x}: %{y:.4g}<extra>%{fullData.name}</extra>", legendgroup=_name(series), showlegend=place.named,
        meta=series.quantity or None, row=place.row, col=1,
    )  # fmt: skip


def _level(fig: Any, series: Series, place: _Place) -> None:
    """What has one point, where nothing is removed, is what the others are to be seen against."""
    line = {"width": 1, "dash": "dot", "color": _colour(series, place.number)}
    fig.add_hline(y=series.y[0], line=line, row=place.row, col=1)


def _bar(fig: Any, series: Series, place: _Place) -> None:
    fig.add_bar(
        x=[str(x) for x in series.x], y=list(series.y), name=_name(series), error_y=_error(series),
        marker={"color": _colour(series, place.number), "pattern": {"shape": "/" if series.published else ""}},
        hovertemplate="%{x}: %{y:.4g}<extra>%{fullData.name}</extra>", row=place.row, col=1,
    )  # fmt: skip


def _heat_maps(exhibit: Exhibit) -> Any:
    """Ours and, below it by the same colours, the paper's."""
    from plotly.subplots import make_subplots

    kinds = [(word, rows) for word, of in (("ours", False), ("paper", True)) if (rows := _published(exhibit, of))]
    several = len(kinds) > 1
    titles = [word for word, _ in kinds] if several else None
    fig = make_subplots(rows=len(kinds), cols=1, shared_xaxes=several, vertical_spacing=0.1, subplot_titles=titles)
    for row, (word, rows) in enumerate(kinds, 1):
        places = list(dict.fromkeys(x for series in rows for x in series.x))
        values = [dict(zip(series.x, series.y, strict=True)) for series in rows]
        fig.add_heatmap(
            x=[str(x) for x in places], y=[escape(series.name.removesuffix(", paper")) for series in rows],
            z=[[found.get(x) for x in places] for found in values], coloraxis="coloraxis", texttemplate="%{z:.3g}",
            hovertemplate="%{y}, %{x}: %{z:.4g}<extra></extra>", name=word if several else None, row=row, col=1,
        )  # fmt: skip
    fig.update_xaxes(type="category")  # numbers that name a column are not places on a scale
    fig.update_yaxes(type="category")
    frame(fig, exhibit.x_label, exhibit.y_label, legend=False)
    margin = {**PLAIN["margin"], "t": 40} if several else PLAIN["margin"]
    fig.update_layout(coloraxis={"colorscale": "Viridis"}, margin=margin, height=320 * len(kinds))
    return fig


def _published(exhibit: Exhibit, which: bool) -> list[Series]:
    return [series for series in exhibit.series if series.published == which]


def _spans(places: Sequence[Any], times: float) -> bool:
    """Whether places lie so far apart that only their logarithms can be told apart; zero has none."""
    numbers = [x for x in places if isinstance(x, int | float) and x > 0]
    return bool(numbers) and len(numbers) == len(places) and max(numbers) / min(numbers) >= times


_BY_KIND = {"lines": _line, "scatter": _scatter, "bars": _bar}


def _name(series: Series) -> str:
    # plotly reads its texts as HTML: what comes from a file is escaped
    return escape(f"{series.name} (paper)" if series.published and "paper" not in series.name else series.name)


def _colour(series: Series, number: int) -> str:
    return _PRINTED if series.published else COLOURS[number % len(COLOURS)]


def _error(series: Series) -> dict[str, Any] | None:
    return {"type": "data", "array": list(series.error), "thickness": 1, "width": 4} if series.error else None
