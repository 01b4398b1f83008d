"""Methods side by side: a table, share by share, and a page with accuracy against operations and what training costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from unifews.experiments.compare import Comparison, Entry
from unifews.report.compare import Gain, Row
from unifews.report.figure import lay_out
from unifews.report.page import document, put_page
from unifews.report.plot import COLOURS, PLAIN, SYMBOLS, drawn
from unifews.report.sheet import sheet_html
from unifews.report.table import short, spread
from unifews.training.metrics import NAMES

if TYPE_CHECKING:
    from rich.table import Table

BEST, NEAR = "best", "≈ best"
_GREY = "#888888"  # readable on light and dark


class Line(NamedTuple):
    """An entry in numbers."""

    entry: Entry
    row: Row
    gain: Gain
    """Against unpruned."""
    place: str
    """At its share."""

    notes: list[str]

    @property
    def asked(self) -> str:
        return _asked(self.entry)


class Standing:
    """A comparison in numbers."""

    def __init__(self, found: Comparison) -> None:
        self.found = found
        self.unpruned = Row.of(found.unpruned, "unpruned")
        self.lines = [
            Line(entry, Row.of(record), Gain.of(record, found.unpruned), _place(entry, found.entries), record["trace"]["notes"])
            for entry in found.entries if (record := entry.record) is not None
        ]  # fmt: skip
        self.weights = any(line.row.weight_sparsity for line in self.lines)
        self.once = "hops" in found.unpruned["spec"]
        """Whether the model propagates once, before training."""

    @property
    def metric(self) -> str:
        return NAMES[self.found.unpruned["metric"]]

    def titles(self) -> list[str]:
        """Of the columns after the method."""
        weights = ["weights kept"] if self.weights else []
        return [
            "edges asked to go", f"{self.metric}, %", "against unpruned", "at this share", "edge entries kept", *weights,
            "propagation MACs", "MACs in all", "training seconds",
        ]  # fmt: skip

    def cells(self, line: Line) -> list[str]:
        gain = line.gain
        points = f"{gain.points:+.1f}{spread(gain.spread, gain.seeds)}"
        return [line.asked, _score(line.row), points, line.place, *self._costs(line.row)]

    def baseline(self) -> list[str]:
        """The unpruned model's."""
        return ["-", _score(self.unpruned), "-", "", *self._costs(self.unpruned)]

    def _costs(self, row: Row) -> list[str]:
        weights = [f"{1 - row.weight_sparsity:.1%}"] if self.weights else []
        kept = f"{1 - row.edge_sparsity:.1%}"
        return [kept, *weights, short(row.macs + row.basis_macs), short(row.operations), f"{_seconds(row):.1f}"]

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON takes it."""
        whole, lines = self.found.to_dict(), {id(line.entry): line for line in self.lines}
        for told, entry in zip(whole["compared"], self.found.entries, strict=True):
            line = lines.get(id(entry))
            told["against_unpruned"] = None if line is None else line.gain.to_dict()
            told["at_this_share"] = None if line is None or not line.place else line.place
        return whole


def _score(row: Row) -> str:
    return f"{row.score:.1f}{spread(row.std, row.seeds)}"


def _seconds(row: Row) -> float:
    return row.propagate_seconds + row.train_seconds


def _asked(entry: Entry) -> str:
    return "its own" if entry.edge_sparsity is None else f"{entry.edge_sparsity:g}"


def _place(entry: Entry, entries: Sequence[Entry]) -> str:
    """Whether it is the best at its share, or no further from it than that distance varies over seeds."""
    at_share = [e.record for e in entries if e.edge_sparsity == entry.edge_sparsity and e.record is not None]
    if entry.record is None or entry.edge_sparsity is None or len(at_share) < 2:
        return ""
    best = max(at_share, key=lambda record: float(record["scores"]["test"]))
    gain = Gain.of(entry.record, best)
    return BEST if entry.record is best else NEAR if -gain.points <= gain.spread else ""


def table_of(standing: Standing) -> Table:
    """A line per method and share, the unpruned model on top."""
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD)
    shown.add_column("", no_wrap=True)
    for title in standing.titles():
        shown.add_column(title.replace(" ", "\n", 1), justify="left" if title == "at this share" else "right", no_wrap=True)
    shown.add_row("unpruned", *standing.baseline())
    share: float | None = 0.0
    for line in standing.lines:
        if line.entry.edge_sparsity != share:
            shown.add_section()
        share = line.entry.edge_sparsity
        shown.add_row(line.entry.method, *standing.cells(line))
    return shown


def legend(standing: Standing) -> list[str]:
    """What the numbers mean, in a few sentences."""
    sentences = []
    if standing.unpruned.seeds > 1:
        sentences.append(
            f"±: standard deviation over seeds; differences are taken seed by seed. {NEAR}: no further from the best than that "
            f"difference varies over seeds."
        )
    axes = ", principal axes included," if any(line.row.basis_macs for line in standing.lines) else ""
    sentences.append(f"MACs: propagating{axes} and classifying all nodes once.")
    units = "by unifews units, which are columns sent along no edge, by the others edges"
    what = "blocks of features, edges or hops of a node" if standing.once else units
    sentences.append(f"A share is one of the propagation's multiply-adds, whatever is left out: {what}.")
    own = "propagating once for all seeds included" if standing.once else "searches and rounds of the method included"
    return [*sentences, f"Training: one seed, the mean, {own}."]


def notes(standing: Standing) -> list[str]:
    """What runs have to say besides their numbers."""
    return [f"{each.entry.method}, edges {each.asked}: {note}" for each in standing.lines for note in each.notes]


def failures(found: Comparison) -> list[str]:
    """Why there is no number where there is none."""
    return [f"{e.method}, edges {_asked(e)}: {e.outcome}" for e in found.entries if e.record is None]


# ----------------------------------------------------------------------------------------------------------------- page


def write_page(standing: Standing, path: Path) -> None:
    """Write the page in one step; only a page of ours is ever replaced."""
    put_page(page(standing), path)


def page(standing: Standing) -> str:
    """The page as text."""
    spec, seeds = standing.found.unpruned["spec"], standing.unpruned.seeds
    title = f"{spec['model'].upper()} on {spec['dataset']}: methods side by side"
    about = f"{seeds} {'seeds' if seeds > 1 else 'seed'}, the same for all; each method removes the share of edges asked for."
    lines = [["unpruned", *standing.baseline()], *([each.entry.method, *standing.cells(each)] for each in standing.lines)]
    said = "".join(f"\n<p>{escape(sentence)}</p>" for sentence in [*failures(standing.found), *notes(standing)])
    body = f"""<figure aria-label="{escape(_caption(standing))}">
{drawn(accuracy_figure(standing), "picture")}
<figcaption>Further left is cheaper, further up is better. Dotted: the unpruned model.</figcaption>
</figure>
<figure aria-label="{escape(_cost_caption(standing))}">
{drawn(cost_figure(standing), "cost")}
<figcaption>Seconds to train one seed, all that a method does for it included; the mean over shares.</figcaption>
</figure>
<h2>Numbers</h2>
{sheet_html(["method", *standing.titles()], lines, "methods")}
<p>{escape(" ".join(legend(standing)))}</p>{said}"""
    return document(title, [about], body, standing.found.records)


def accuracy_figure(standing: Standing) -> Any:
    """A line per method, a mark per share; methods by their own settings are open marks off the line."""
    import plotly.graph_objects as go

    fig, base = go.Figure(), standing.unpruned
    cost, axis = _operations(standing)
    for i, (method, lines) in enumerate(_by_method(standing).items()):
        for alone in (False, True):
            marks = sorted((each for each in lines if (each.entry.edge_sparsity is None) is alone), key=lambda m: cost(m.row))
            if not marks:
                continue
            symbol, colour = SYMBOLS[i % len(SYMBOLS)], COLOURS[i % len(COLOURS)]
            fig.add_scatter(
                x=[cost(mark.row) for mark in marks],
                y=[mark.row.score for mark in marks],
                error_y=_bars([mark.row for mark in marks]),
                name=escape(method) + (", its own settings" if alone else ""),
                mode="markers" if alone else "lines+markers",
                line={"color": colour, "width": 2},
                marker={"size": 9, "symbol": f"{symbol}-open" if alone else symbol, "color": colour},
                customdata=[_hover(mark) for mark in marks],
                hovertemplate="%{y:.1f} %<br>%{customdata}",
            )
    fig.add_scatter(
        x=[cost(base)], y=[base.score], name="unpruned", mode="markers", error_y=_bars([base]),
        marker={"size": 12, "symbol": "circle-open", "color": _GREY, "line": {"width": 2}},
        hovertemplate="%{y:.1f} %<extra>unpruned</extra>",
    )  # fmt: skip
    fig.add_hline(y=base.score, line={"dash": "dot", "width": 1, "color": _GREY})
    lay_out(fig, [cost(base), *(cost(each.row) for each in standing.lines)], axis, f"test {standing.metric}, %")
    return fig


def cost_figure(standing: Standing) -> Any:
    """A bar per method."""
    import plotly.graph_objects as go

    seconds, fig = _training(standing), go.Figure()
    fig.add_bar(
        x=[escape(name) for name in seconds], y=list(seconds.values()), text=[f"{value:.1f} s" for value in seconds.values()],
        marker={"color": [_GREY, *(COLOURS[i % len(COLOURS)] for i in range(len(seconds) - 1))]}, hoverinfo="skip",
    )  # fmt: skip
    fig.update_yaxes(title="seconds of training")
    fig.update_layout(**PLAIN)
    return fig


def _by_method(standing: Standing) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for each in standing.lines:
        found.setdefault(each.entry.method, []).append(each)
    return found


def _training(standing: Standing) -> dict[str, float]:
    """Seconds of one seed, by method, the mean over shares."""
    by = {method: fmean(_seconds(each.row) for each in lines) for method, lines in _by_method(standing).items()}
    return {"unpruned": _seconds(standing.unpruned)} | by


def _operations(standing: Standing) -> tuple[Callable[[Row], int], str]:
    """What methods differ in: where layers propagate and no weights go, transformation is the same for all, and most of it."""
    if standing.once or standing.weights:
        return (lambda row: row.operations), "multiply-adds from features to classes"
    return (lambda row: row.macs), "multiply-adds of propagation"


def _bars(rows: Sequence[Row]) -> dict[str, Any]:
    return {"type": "data", "array": [row.std for row in rows], "thickness": 0.6, "width": 3}


def _hover(line: Line) -> str:
    row, entry = line.row, line.entry
    asked = "its own settings" if entry.edge_sparsity is None else f"{entry.edge_sparsity:g} asked for"
    return (
        f"{asked}, {row.edge_sparsity:.1%} of edge entries removed<br>{short(row.operations)} MACs in all<br>"
        f"{_seconds(row):.1f} s of training"
    )


def _caption(standing: Standing) -> str:
    """The picture in a sentence, for whoever does not see it."""
    each = [f"{line.entry.method}, edges {line.asked}: {line.row.score:.1f} %" for line in standing.lines]
    return "; ".join([f"unpruned: {standing.unpruned.score:.1f} %", *each])


def _cost_caption(standing: Standing) -> str:
    return "; ".join(f"{name}: {value:.1f} seconds" for name, value in _training(standing).items())
