"""The picture: accuracy against operations, a point per run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from unifews.report.compare import Record, Row, label_of, prunes
from unifews.report.table import short
from unifews.training.metrics import NAMES

# Okabe and Ito's colours, which stay apart for colour-blind eyes, light or dark behind them.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def figure_html(records: Sequence[Record]) -> str:
    """A <div> and its scripts, plotly itself among them: it needs no network."""
    import plotly.io as pio

    return str(
        pio.to_html(
            figure(records), include_plotlyjs=True, full_html=False, div_id="picture", default_height="26rem",
            config={"responsive": True, "displaylogo": False, "displayModeBar": False},
        )
    )  # fmt: skip


def figure(records: Sequence[Record]) -> Any:
    """One curve per dataset and model, from the fewest operations to the most, unpruned runs as open marks.

    x: multiply-adds of propagating and classifying all nodes; y: percent, with the standard deviation over seeds.
    """
    import plotly.graph_objects as go

    curves: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        curves.setdefault((record["spec"]["dataset"], record["spec"]["model"]), []).append(record)
    fig = go.Figure()
    for i, ((dataset, model), members) in enumerate(curves.items()):
        members = sorted(members, key=lambda record: Row.of(record).operations)
        rows = [Row.of(record) for record in members]
        fig.add_scatter(
            x=[row.operations for row in rows],
            y=[row.score for row in rows],
            error_y={"type": "data", "array": [row.std for row in rows], "thickness": 1, "width": 4},
            name=escape(f"{model.upper()} on {dataset}"),
            # plotly reads its texts as HTML: what comes from a file is escaped.
            text=[escape(row.label) for row in rows],
            textposition="top center",
            mode="lines+markers+text",
            line={"dash": "dot", "width": 1, "color": COLOURS[i % len(COLOURS)]},
            marker={"size": 11, "symbol": ["circle" if prunes(record) else "circle-open" for record in members]},
            customdata=[[short(row.macs), short(row.transform_macs), f"{row.std:.1f}"] for row in rows],
            hovertemplate="%{text}<br>%{y:.1f} ± %{customdata[2]} %<br>propagation %{customdata[0]} MACs<br>"
            "transformation %{customdata[1]} MACs<extra>%{fullData.name}</extra>",
            cliponaxis=False,
        )
    metric = " or ".join(sorted({NAMES[record["metric"]] for record in records}))
    fig.update_xaxes(title="multiply-adds, propagation and transformation (log scale)", type="log", exponentformat="SI")
    fig.update_yaxes(title=f"test {metric}, %")
    fig.update_layout(
        margin={"l": 60, "r": 30, "t": 30, "b": 60}, paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
        showlegend=len(curves) > 1, legend={"orientation": "h", "y": -0.25}, font={"family": "system-ui, sans-serif"},
        hovermode="closest",
    )  # fmt: skip
    return fig


def caption(records: Sequence[Record]) -> str:
    """The picture in a sentence, for whoever does not see it."""
    parts = [
        f"{label_of(record)}: {Row.of(record).score:.1f} % at {short(Row.of(record).operations)} MACs" for record in records
    ]
    return "; ".join(parts)
