"""The picture: accuracy against operations, a point per run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10
from typing import Any

from unifews.report.compare import Record, Row, labels_of, prunes
from unifews.report.table import short
from unifews.training.metrics import NAMES

# Okabe and Ito's colours, which stay apart for colour-blind eyes, light or dark behind them.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
PLAIN: dict[str, Any] = {
    "margin": {"l": 60, "r": 20, "t": 20, "b": 50}, "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"family": "system-ui, sans-serif"},
}  # fmt: skip
_RIM: dict[bool, dict[str, Any]] = {True: {}, False: {"line": {"width": 2}}}
_MARGIN = 0.2  # decades beside the outermost points


def figure_html(records: Sequence[Record]) -> str:
    """The picture of the runs as HTML; see `drawn`."""
    return drawn(figure(records), "picture")


def drawn(fig: Any, name: str, *, first: bool = True) -> str:
    """A <div> of this id and its scripts, with the first of a page plotly itself among them: it needs no network."""
    import plotly.io as pio

    return str(
        pio.to_html(
            fig, include_plotlyjs=first, full_html=False, div_id=name, default_height="26rem",
            config={"responsive": True, "displaylogo": False, "displayModeBar": False},
        )
    )  # fmt: skip


def figure(records: Sequence[Record]) -> Any:
    """A mark per run, open for unpruned ones; colours tell runs apart, or datasets and models where there are several.

    x: all multiply-adds from features to classes; y: percent, with the standard deviation over seeds.
    """
    import plotly.graph_objects as go

    curves = list(dict.fromkeys((record["spec"]["dataset"], record["spec"]["model"]) for record in records))
    rows = [Row.of(record, label) for record, label in zip(records, labels_of(records), strict=True)]
    fig = go.Figure()
    for i, (record, row) in enumerate(zip(records, rows, strict=True)):
        colour = curves.index((record["spec"]["dataset"], record["spec"]["model"])) if len(curves) > 1 else i
        symbol = SYMBOLS[i % len(SYMBOLS)] if prunes(record) else "circle-open"
        fig.add_scatter(
            x=[row.operations],
            y=[row.score],
            error_y={"type": "data", "array": [row.std], "thickness": 1, "width": 5},
            name=escape(row.label),  # plotly reads its texts as HTML: what comes from a file is escaped
            mode="markers",
            marker={"size": 13, "symbol": symbol, "color": COLOURS[colour % len(COLOURS)]} | _RIM[prunes(record)],
            hovertemplate=f"%{{y:.1f}} ± {row.std:.1f} %<br>propagation {short(row.macs)}, axes {short(row.basis_macs)}, "
            f"transformation {short(row.transform_macs)} MACs<extra></extra>",
        )
    metric = " or ".join(sorted({NAMES[record["metric"]] for record in records}))
    lay_out(fig, [row.operations for row in rows], "multiply-adds from features to classes", f"test {metric}, %")
    return fig


def lay_out(fig: Any, operations: Sequence[int], x: str, y: str) -> None:
    """Axes and legend of a picture over operations, on a scale of logarithms."""
    places = [log10(max(1, count)) for count in operations]
    ends = min(places) - _MARGIN, max(places) + _MARGIN
    ticks = _ticks(*ends)
    fig.update_xaxes(
        title=x, type="log", range=ends, tickvals=ticks,
        ticktext=[short(tick).replace(".00 ", " ").replace(".0 ", " ") for tick in ticks],
    )  # fmt: skip
    fig.update_yaxes(title=y)
    fig.update_layout(**PLAIN, showlegend=True, legend={"orientation": "h", "y": -0.2}, hovermode="closest")


def _ticks(first: float, last: float) -> list[int]:
    """Round numbers between two powers of ten: 1, 2, 5, 10, … where there is room for them, else the powers alone."""
    steps = (1, 2, 5) if last - first < 2.5 else (1,)
    found = [step * 10**power for power in range(floor(first), ceil(last) + 1) for step in steps]
    return [tick for tick in found if first <= log10(tick) <= last]


def caption(records: Sequence[Record]) -> str:
    """The picture in a sentence, for whoever does not see it."""
    rows = [Row.of(record, label) for record, label in zip(records, labels_of(records), strict=True)]
    return "; ".join(f"{row.label}: {row.score:.1f} % at {short(row.operations)} MACs" for row in rows)
