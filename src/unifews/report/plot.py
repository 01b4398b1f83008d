"""Pictures in a page: plotly figures as JSON that the page's own script draws, in light or dark, with what to take away."""

from __future__ import annotations

import csv
from base64 import b64encode
from collections.abc import Sequence
from html import escape, unescape
from io import StringIO
from typing import Any

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


def as_csv(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    out = StringIO()
    csv.writer(out, lineterminator="\n").writerows([head, *rows])
    return out.getvalue()


def data_of(fig: Any) -> str:
    """Everything that a figure draws, as CSV: a line per point, of a heat map per field."""
    values = fig.to_plotly_json()
    rows: list[list[Any]] = []
    for trace in values["data"]:
        name, x, y = unescape(trace.get("name") or ""), list(trace["x"]), list(trace["y"])
        if trace["type"] == "heatmap":
            rows += [[row, *field, ""] for row, line in zip(y, trace["z"], strict=True) for field in zip(x, line, strict=True)]
            continue
        spread = (trace.get("error_y") or {}).get("array") or [""] * len(x)
        rows += [[name, *point] for point in zip(x, y, spread, strict=True) if point[0] is not None]
    titles = [values["layout"].get(axis, {}).get("title", {}).get("text") for axis in ("xaxis", "yaxis")]
    return as_csv(["series", titles[0] or "x", titles[1] or "y", "spread"], rows)


def figure_of(exhibit: Exhibit) -> Any:
    """The picture of an exhibit. What the paper prints is grey and open, so that nobody takes it for a measurement."""
    import plotly.graph_objects as go

    fig = go.Figure()
    if exhibit.kind == "heatmap":
        _heat(fig, exhibit)
    else:
        for number, series in enumerate(exhibit.series):
            _BY_KIND[exhibit.kind](fig, series, number)
    if exhibit.kind in ("heatmap", "bars"):
        fig.update_xaxes(type="category")  # numbers that name a column are not places on a scale
    elif _spans([x for series in exhibit.series for x in series.x], _DECADE if "x" in exhibit.operations else _FAR):
        fig.update_xaxes(type="log")
    heights = [y for series in exhibit.series for y in series.y if y is not None]
    if exhibit.kind != "heatmap" and "y" in exhibit.operations and _spans(heights, _DECADE):
        fig.update_yaxes(type="log")
    frame(fig, exhibit.x_label, exhibit.y_label, legend=exhibit.kind != "heatmap")
    return fig


def frame(fig: Any, x_label: str, y_label: str, *, legend: bool) -> None:
    """What all exhibits have in common: names of the axes, and a legend where there is something to tell apart."""
    fig.update_xaxes(title=escape(x_label), automargin=True)
    fig.update_yaxes(title=escape(y_label), automargin=True)
    fig.update_layout(**PLAIN, showlegend=legend, hovermode="closest")


def _line(fig: Any, series: Series, number: int) -> None:
    _points(fig, series, number, "lines+markers")


def _scatter(fig: Any, series: Series, number: int) -> None:
    _points(fig, series, number, "markers")


def _points(fig: Any, series: Series, number: int, mode: str) -> None:
    symbol = SYMBOLS[number // len(COLOURS) % len(SYMBOLS)]
    fig.add_scatter(
        x=list(series.x), y=list(series.y), name=_name(series), mode=mode, error_y=_error(series),
        marker={"size": 8, "color": _colour(series, number), "symbol": f"{symbol}-open" if series.published else symbol},
        line={"width": 2, "dash": "dash" if series.published else _DASHES[number // len(COLOURS) % len(_DASHES)]},
        hovertemplate="%{x}: %{y:.4g}<extra>%{fullData.name}</extra>",
    )  # fmt: skip


def _bar(fig: Any, series: Series, number: int) -> None:
    fig.add_bar(
        x=[str(x) for x in series.x], y=list(series.y), name=_name(series), error_y=_error(series),
        marker={"color": _colour(series, number), "pattern": {"shape": "/" if series.published else ""}},
        hovertemplate="%{x}: %{y:.4g}<extra>%{fullData.name}</extra>",
    )  # fmt: skip


def _heat(fig: Any, exhibit: Exhibit) -> None:
    places = list(dict.fromkeys(x for series in exhibit.series for x in series.x))
    values = [dict(zip(series.x, series.y, strict=True)) for series in exhibit.series]
    fig.add_heatmap(
        x=[str(x) for x in places], y=[_name(series) for series in exhibit.series],
        z=[[row.get(x) for x in places] for row in values], colorscale="Viridis", texttemplate="%{z:.3g}",
        hovertemplate="%{y}, %{x}: %{z:.4g}<extra></extra>",
    )  # fmt: skip
    fig.update_yaxes(type="category")


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
