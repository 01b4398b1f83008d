"""What is read off a record for tables and figures: a value, its spread over seeds, and what it is called."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from io import StringIO
from typing import Any

from unifews.errors import unknown_name
from unifews.experiments.definitions import Experiment, Published, find

_FORMULA = re.compile(r"[=+\-@\t\r\n]")  # what a spreadsheet takes for the beginning of a formula, or drops before one
_FIGURE = r"[-+]?[\d.,]+(e[-+]?\d+)?"
_FIGURES = re.compile(rf"{_FIGURE}( ?± ?{_FIGURE})? ?%?|-")

Record = Mapping[str, Any]
Number = float | None


@dataclass(frozen=True)
class Quantity:
    """How a number is read off a record of `train`, and how it is told."""

    title: str
    digits: int = 1
    of: Callable[[Record], Number] = lambda record: None
    spread: Callable[[Record], Number] = lambda record: None
    cost: bool = False
    """Whether it depends on the graph and the number of features only, not on what the features are."""
    clock: bool = False
    """Whether it is a time: those of two machines are not subtracted."""
    operations: bool = False
    """Whether it counts operations, or how many times fewer or faster: drawn by logarithms over more than a decade."""


def _printed_macs(record: Record) -> Number:
    """The share of the products that is left, of hops × edges × features as the paper counts edges (tab:dataset).

    Its m has the self-loops of some files and not of others, and its code prunes them too; ours are neither pruned nor counted.
    """
    trace, spec = record["trace"], record["spec"]
    edges = printed_edges().get(record["dataset"]["name"].replace("arxiv-sub", "arxiv"))
    if edges is None or "hops" not in spec or not trace["dense_macs"]:
        return None
    whole = spec["hops"] * edges * record["dataset"]["features"]
    return float(whole * (1 - trace["edge_sparsity"]) / 1e9)


@cache
def printed_edges() -> dict[str, int]:
    """m of tab:dataset."""
    table = find("tab:dataset").published
    assert isinstance(table, Published)
    at = table.columns.index("edges")
    return {row[0]: row[at] for row in table.rows}


OF_TRAININGS = {
    "accuracy": Quantity("test score, %", 1, lambda r: r["scores"]["test"], lambda r: r["scores"]["test_std"]),
    "edge_removed": Quantity("edge products removed, %", 1, lambda r: 100 * r["trace"]["edge_sparsity"], cost=True),
    "weight_removed": Quantity("weights removed, %", 1, lambda r: 100 * r["trace"]["weight_sparsity"]),
    "prop_gmacs": Quantity("propagation, GMACs", 3, lambda r: r["trace"]["macs"] / 1e9, cost=True, operations=True),
    "printed_gmacs": Quantity("propagation by the paper's count, GMACs", 2, _printed_macs, cost=True, operations=True),
    "axes_gmacs": Quantity("principal axes, GMACs", 2, lambda r: r["trace"]["basis_macs"] / 1e9, operations=True),
    "tran_gmacs": Quantity("transformation, GMACs", 2, lambda r: r["trace"]["transform_macs"] / 1e9, operations=True),
    "seconds": Quantity("propagation, s", 2, lambda r: r["seconds"]["propagate"], clock=True),
    "train_seconds": Quantity("training a seed, s", 1, lambda r: r["seconds"]["train"], clock=True),
    "seeds": Quantity("seeds", 0, lambda r: len(r["seeds"])),
}
"""Of records of `train`."""


def quantity(experiment: Experiment, name: str) -> Quantity:
    """One of a training, or one that the experiment's file names."""
    if name in experiment.named:
        own = experiment.named[name]
        return Quantity(**own)
    if name in OF_TRAININGS:
        return OF_TRAININGS[name]
    raise unknown_name(f"quantity of {experiment.id}", name, [*experiment.named, *OF_TRAININGS])


def value(record: Record, name: str) -> tuple[Number, Number]:
    """Value and spread, None where the record has none: of a measurement `name` and `name_spread`."""
    if "values" in record:
        return record["values"].get(name), record["values"].get(f"{name}_spread")
    found = OF_TRAININGS.get(name, Quantity(name))
    return found.of(record), found.spread(record) if len(record["seeds"]) > 1 else None


def pointed(value: float, digits: int) -> str:
    """So many digits after the point; of what these would make nothing of, two that count."""
    return f"{value:.2g}" if 0 < abs(value) < 0.5 * 10**-digits else f"{value:,.{digits}f}"


def signed(value: float, digits: int) -> str:
    """With its sign, but for nothing, which has none."""
    rounded = round(value, digits)
    return f"{rounded:+,.{digits}f}" if rounded else f"{0:.{digits}f}"


def as_csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV in which no text is a formula: one that would begin with = + - @, a tab or a line break has a ' before it."""
    out = StringIO()
    csv.writer(out, lineterminator="\n").writerows([_harmless(cell) for cell in row] for row in (head, *rows))
    return out.getvalue()


def _harmless(cell: Any) -> Any:
    """Numbers stay as they are, also as text: -0.5, "+0.4 ± 1.2"."""
    if not isinstance(cell, str):
        return cell
    cell = cell.replace("\r", "\n")  # which is quoted: a bare one would begin another row
    return f"'{cell}" if _FORMULA.match(cell) and not _FIGURES.fullmatch(cell) else cell
