"""The result of `compare`: a table sparsity by sparsity, and a page with accuracy against operations and training time."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from unifews.experiments.compare import Comparison, Entry
from unifews.report.figures import COLOURS, GREY, SYMBOLS, Axis, Mark, Plot, operations_axis, plot_html
from unifews.report.page import document
from unifews.report.runs import Gain, Row
from unifews.report.tables import Shown, html_table, put_file, short, with_std
from unifews.training.metrics import NAMES

if TYPE_CHECKING:
    from rich.table import Table

BEST, NEAR = "best", "≈ best"


class Line(NamedTuple):
    """The numbers of an entry."""

    entry: Entry
    row: Row
    gain: Gain
    """Over the unpruned model."""
    rank: str
    """Among the methods at its sparsity."""
    notes: list[str]

    @property
    def sparsity(self) -> str:
        return _sparsity(self.entry)


class Standing:
    """The numbers of a comparison."""

    def __init__(self, found: Comparison) -> None:
        self.found = found
        self.unpruned = Row.of(found.unpruned, "unpruned")
        self.lines = [
            Line(entry, Row.of(record), Gain.of(record, found.unpruned), _rank(entry, found.entries), record["trace"]["notes"])
            for entry in found.entries
            if (record := entry.record) is not None
        ]
        self.weights = any(line.row.weight_sparsity for line in self.lines)
        self.decoupled = "hops" in found.unpruned["spec"]
        """Whether the model propagates once, before training."""

    @property
    def metric(self) -> str:
        return NAMES[self.found.unpruned["metric"]]

    @property
    def title(self) -> str:
        spec = self.found.unpruned["spec"]
        return f"{spec['model'].upper()} on {spec['dataset']}: methods side by side"

    def table(self) -> tuple[list[str], list[list[Shown]]]:
        """Titles, and a row for the unpruned model and for each entry."""
        weights = ["weights kept"] if self.weights else []
        before = ["method", "edge sparsity", f"{self.metric}, %", "against unpruned", "at this sparsity", "edge entries kept"]
        titles = [*before, *weights, "propagation MACs", "MACs in all", "training seconds"]
        rows = [self._row(Shown("unpruned"), Shown("-"), self.unpruned, Shown("-"), "")]
        for line in self.lines:
            gain, value = line.gain, line.entry.edge_sparsity
            points = Shown(with_std(f"{gain.points:+.1f}", gain.spread, gain.seeds), gain.points)
            rows.append(self._row(Shown(line.entry.method), Shown(line.sparsity, value), line.row, points, line.rank))
        return titles, rows

    def _row(self, name: Shown, sparsity: Shown, row: Row, points: Shown, rank: str) -> list[Shown]:
        score = Shown(with_std(f"{row.score:.1f}", row.std, row.seeds), row.score)
        removed = [row.edge_sparsity, *([row.weight_sparsity] if self.weights else [])]
        kept = [Shown(f"{1 - each:.1%}", 1 - each) for each in removed]
        macs = [Shown(short(count), count) for count in (row.macs + row.basis_macs, row.operations)]
        return [name, sparsity, score, points, Shown(rank), *kept, *macs, Shown(f"{_seconds(row):.1f}", _seconds(row))]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        result, lines = self.found.to_dict(), {id(line.entry): line for line in self.lines}
        for values, entry in zip(result["compared"], self.found.entries, strict=True):
            line = lines.get(id(entry))
            values["against_unpruned"] = None if line is None else line.gain.to_dict()
            values["at_this_share"] = None if line is None or not line.rank else line.rank
        return result


def _seconds(row: Row) -> float:
    return row.propagate_seconds + row.train_seconds


def _sparsity(entry: Entry) -> str:
    return "its own" if entry.edge_sparsity is None else f"{entry.edge_sparsity:g}"


def _rank(entry: Entry, entries: Sequence[Entry]) -> str:
    """Whether it is the best at its sparsity, or within one standard deviation (over seeds) of the best."""
    records = [e.record for e in entries if e.edge_sparsity == entry.edge_sparsity and e.record is not None]
    if entry.record is None or entry.edge_sparsity is None or len(records) < 2:
        return ""
    best = max(records, key=lambda record: float(record["scores"]["test"]))
    gain = Gain.of(entry.record, best)
    return BEST if entry.record is best else NEAR if -gain.points <= gain.spread else ""


def terminal_table(standing: Standing) -> Table:
    """A line per method and sparsity, the unpruned model first."""
    from rich import box
    from rich.table import Table

    titles, (unpruned, *rows) = standing.table()
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for title in titles[1:]:
        justify = "left" if title == "at this sparsity" else "right"
        table.add_column(title.replace(" ", "\n", 1), justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_row(*(cell.text for cell in unpruned))
    sparsity: float | None = 0.0
    for line, row in zip(standing.lines, rows, strict=True):
        if line.entry.edge_sparsity != sparsity:
            table.add_section()
        sparsity = line.entry.edge_sparsity
        table.add_row(*(cell.text for cell in row))
    return table


def legend(standing: Standing) -> list[str]:
    """What the numbers mean."""
    sentences = []
    if standing.unpruned.seeds > 1:
        sentences.append(
            f"±: standard deviation over seeds; differences are computed per seed. {NEAR}: within one standard deviation of "
            f"that difference from the best."
        )
    axes = ", including principal axes," if any(line.row.basis_macs for line in standing.lines) else ""
    sentences.append(f"MACs: propagating{axes} and classifying all nodes once.")
    units = "hidden units (columns sent along no edge) by unifews, edges by the others"
    what = "blocks of features, edges or hops of a node" if standing.decoupled else units
    sentences.append(f"Edge sparsity is the fraction of the propagation's multiply-adds removed, whatever is removed: {what}.")
    own = "propagation, once for all seeds, included" if standing.decoupled else "searches and rounds of the method included"
    return [*sentences, f"Training: mean over seeds, {own}."]


def notes(standing: Standing) -> list[str]:
    """Notes of the runs."""
    return [f"{each.entry.method}, edges {each.sparsity}: {note}" for each in standing.lines for note in each.notes]


def failures(found: Comparison) -> list[str]:
    """The errors of runs that failed."""
    return [f"{e.method}, edges {_sparsity(e)}: {e.outcome}" for e in found.entries if e.record is None]


# ------------------------------------------------------------------------------------------------------------------- page


def write_page(standing: Standing, path: Path) -> None:
    """Write the page atomically; only a page of unifews is replaced."""
    put_file(path, page(standing).encode())


def page(standing: Standing) -> str:
    """The page as text."""
    seeds = standing.unpruned.seeds
    about = f"{seeds} {'seeds' if seeds > 1 else 'seed'}, the same for all; each method removes the given fraction of edges."
    remarks = "".join(f"\n<p>{escape(text)}</p>" for text in [*failures(standing.found), *notes(standing)])
    scores = [f"{line.entry.method}, edges {line.sparsity}: {line.row.score:.1f} %" for line in standing.lines]
    seconds = [f"{name}: {value:.1f} seconds" for name, value in _training_seconds(standing).items()]
    body = f"""<figure aria-label="{escape("; ".join([f"unpruned: {standing.unpruned.score:.1f} %", *scores]))}">
{plot_html(accuracy_plot(standing), "picture")}
<figcaption>Further left is cheaper, further up is better. Dotted: the unpruned model.</figcaption>
</figure>
<figure aria-label="{escape("; ".join(seconds))}">
{plot_html(cost_plot(standing), "cost")}
<figcaption>Seconds to train one seed, including all work of the method; mean over sparsities.</figcaption>
</figure>
<h2>Numbers</h2>
{html_table(*standing.table(), "methods")}
<p>{escape(" ".join(legend(standing)))}</p>{remarks}"""
    return document(standing.title, [about], body, standing.found.records)


def accuracy_plot(standing: Standing) -> Plot:
    """A line per method, a point per sparsity; methods with their own settings are open marks off the line.

    Operations are those that methods differ in: if layers propagate and no weights are pruned, transformation is the same for
    all methods, and most of the total.
    """
    base = standing.unpruned
    total = standing.decoupled or standing.weights
    title = "multiply-adds from features to classes" if total else "multiply-adds of propagation"

    def cost(row: Row) -> int:
        return row.operations if total else row.macs

    marks = []
    for i, (method, lines) in enumerate(_by_method(standing).items()):
        symbol, colour = SYMBOLS[i % len(SYMBOLS)], COLOURS[i % len(COLOURS)]
        for own in (False, True):
            chosen = sorted((line for line in lines if (line.entry.edge_sparsity is None) is own), key=lambda m: cost(m.row))
            if chosen:
                marks.append(
                    Mark(
                        name=method + (", its own settings" if own else ""),
                        x=[cost(line.row) for line in chosen],
                        y=[line.row.score for line in chosen],
                        error=[line.row.std for line in chosen],
                        colour=colour,
                        symbol=f"{symbol}-open" if own else symbol,
                        dash="" if own else "solid",
                        hover=[_hover(line) for line in chosen],
                    )
                )
    marks.append(Mark("unpruned", [cost(base)], [base.score], [base.std], GREY, "circle-open", size=12))
    axis = operations_axis(title, [cost(base), *(cost(line.row) for line in standing.lines)])
    return Plot(marks, axis, [Axis(f"test {standing.metric}, %")], levels=[(0, base.score, GREY)])


def cost_plot(standing: Standing) -> Plot:
    """Seconds of training, a bar per method."""
    seconds = _training_seconds(standing)
    colours = [GREY, *(COLOURS[i % len(COLOURS)] for i in range(len(seconds) - 1))]
    hover = [f"{name}: {value:.1f} s" for name, value in seconds.items()]
    bars = Mark("seconds", list(seconds), list(seconds.values()), colour=colours, in_legend=False, hover=hover)
    return Plot([bars], Axis("", "category"), [Axis("seconds of training")], bars=True)


def _by_method(standing: Standing) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in standing.lines:
        found.setdefault(line.entry.method, []).append(line)
    return found


def _training_seconds(standing: Standing) -> dict[str, float]:
    """Of one seed, by method, mean over sparsities."""
    by = {method: fmean(_seconds(line.row) for line in lines) for method, lines in _by_method(standing).items()}
    return {"unpruned": _seconds(standing.unpruned)} | by


def _hover(line: Line) -> str:
    row, entry = line.row, line.entry
    setting = "its own settings" if entry.edge_sparsity is None else f"{entry.edge_sparsity:g} requested"
    return (
        f"{entry.method}: {row.score:.1f} %\n{setting}, {row.edge_sparsity:.1%} of edge entries removed\n"
        f"{short(row.operations)} MACs in all\n{_seconds(row):.1f} s of training"
    )
