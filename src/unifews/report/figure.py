"""The picture: accuracy against operations, a point per run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log10
from typing import Any

from unifews.report.compare import Record, Row, labels_of, prunes
from unifews.report.plot import COLOURS, PLAIN, SYMBOLS, round_numbers
from unifews.report.table import short
from unifews.training.metrics import NAMES

_RIM: dict[bool, dict[str, Any]] = {True: {}, False: {"line": {"width": 2}}}
_LEGEND = 12  # runs that a legend can tell apart
_MARGIN = 0.2  # decades beside the outermost points


def figure(records: Sequence[Record]) -> Any:
    """A mark per run, open for unpruned ones; colours tell runs apart, or datasets and models where there are several.

    x: all multiply-adds from features to classes; y: percent, with the standard deviation over seeds. Of many runs the legend
    has colours only; what each is shows where one points at it.
    """
    import plotly.graph_objects as go

    curves = list(dict.fromkeys(_curve(record) for record in records))
    rows = [Row.of(record, label) for record, label in zip(records, labels_of(records), strict=True)]
    many = len(rows) > _LEGEND and len(curves) > 1
    fig = go.Figure()
    for i, (record, row) in enumerate(zip(records, rows, strict=True)):
        colour = COLOURS[(curves.index(_curve(record)) if len(curves) > 1 else i) % len(COLOURS)]
        symbol = SYMBOLS[i % len(SYMBOLS)] if prunes(record) else "circle-open"
        fig.add_scatter(
            x=[row.operations],
            y=[row.score],
            error_y={"type": "data", "array": [row.std], "thickness": 1, "width": 5} if row.seeds > 1 else None,
            name=escape(row.label),  # plotly reads its texts as HTML: what comes from a file is escaped
            mode="markers",
            marker={"size": 13, "symbol": symbol, "color": colour} | _RIM[prunes(record)],
            legendgroup=escape(" ".join(_curve(record))) if many else None,
            showlegend=not many,
            hovertemplate=f"<b>{escape(row.label)}</b><br>%{{y:.1f}} ± {row.std:.1f} %<br>propagation {short(row.macs)}, "
            f"axes {short(row.basis_macs)}, transformation {short(row.transform_macs)} MACs<extra></extra>",
        )
    several = len({dataset for dataset, _ in curves}) > 1
    for i, curve in enumerate(curves if many else []):
        fig.add_scatter(
            x=[None], y=[None], name=escape(" ".join(curve if several else curve[1:])), legendgroup=escape(" ".join(curve)),
            mode="markers", marker={"size": 11, "color": COLOURS[i % len(COLOURS)]}, hoverinfo="skip",
        )  # fmt: skip
    metric = " or ".join(sorted({NAMES[record["metric"]] for record in records}))
    lay_out(fig, [row.operations for row in rows], "multiply-adds from features to classes", f"test {metric}, %")
    return fig


def _curve(record: Record) -> tuple[str, str]:
    return str(record["spec"]["dataset"]), str(record["spec"]["model"])


def lay_out(fig: Any, operations: Sequence[int], x: str, y: str) -> None:
    """Axes and legend of a picture over operations, on a scale of logarithms."""
    places = [log10(max(1, count)) for count in operations]
    ends = min(places) - _MARGIN, max(places) + _MARGIN
    ticks = [round(tick) for tick in round_numbers(*ends)]
    fig.update_xaxes(
        title=x, type="log", range=ends, tickvals=ticks,
        ticktext=[short(tick).replace(".00 ", " ").replace(".0 ", " ") for tick in ticks],
    )  # fmt: skip
    fig.update_yaxes(title=y)
    fig.update_layout(**PLAIN, showlegend=True, hovermode="closest")


def caption(records: Sequence[Record]) -> str:
    """The picture in a sentence, for whoever does not see it."""
    rows = [Row.of(record, label) for record, label in zip(records, labels_of(records), strict=True)]
    return "; ".join(f"{row.label}: {row.score:.1f} % at {short(row.operations)} MACs" for row in rows)
