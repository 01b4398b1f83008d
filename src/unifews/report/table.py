"""Runs side by side in a terminal: a line per quantity, a column per run, and beside it what it gains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unifews.report.compare import Gain, Record, Row, baseline_of, labels_of
from unifews.training.metrics import NAMES

if TYPE_CHECKING:
    from rich.table import Table

NONE = {"-", "0", "0.0%", "0.00"}
"""Cells that say nothing: a line of nothing else is left out."""


def table_of(records: Sequence[Record]) -> Table:
    """A pruned run is followed by a column that sets it against the unpruned run of the same seeds, if that is there."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    columns = [quantities(records)]
    for record, label in zip(records, labels_of(records), strict=True):
        table.add_column(Text(label.replace(", edges", ",\nedges")), justify="right", no_wrap=True)
        columns.append(numbers(Row.of(record, label)))
        baseline = baseline_of(record, records)
        if baseline is not None:
            table.add_column("against\nunpruned", justify="right", no_wrap=True, style="dim")
            columns.append(gains(Gain.of(record, baseline)))
    for cells in zip(*columns, strict=True):
        if not NONE.issuperset(cells[1:]):  # an MLP has no edges, an unpruned model nothing that was removed
            table.add_row(*cells)
    return table


def quantities(records: Sequence[Record]) -> list[str]:
    """What is compared, in the order of `numbers` and `gains`."""
    metrics = " or ".join(sorted({NAMES[record["metric"]] for record in records}))
    asked = " or ".join(sorted({record["spec"].get("task", "nodes") for record in records}))
    return [
        f"{metrics}, % on test {asked}", "propagation MACs", "principal axes MACs", "transformation MACs", "MACs in all",
        "edge entries removed", "weights removed", "propagation seconds", "training seconds",
    ]  # fmt: skip


def numbers(row: Row) -> list[str]:
    return [
        f"{row.score:.1f}{spread(row.std, row.seeds)}",
        *(short(count) for count in (row.macs, row.basis_macs, row.transform_macs, row.operations)),
        *(f"{share:.1%}" for share in (row.edge_sparsity, row.weight_sparsity)),
        *(f"{seconds:.2f}" for seconds in (row.propagate_seconds, row.train_seconds)),
    ]


def values(row: Row) -> list[float]:
    """What `numbers` shows, to sort by."""
    shares = row.edge_sparsity, row.weight_sparsity
    counts = row.macs, row.basis_macs, row.transform_macs, row.operations
    return [row.score, *counts, *shares, row.propagate_seconds, row.train_seconds]


def gains(gain: Gain) -> list[str]:
    macs, transform, all_in_all = (
        _times(ratio, "fewer", "more") for ratio in (gain.macs, gain.transform_macs, gain.operations)
    )
    propagate, train = (_times(ratio, "faster", "slower") for ratio in (gain.propagate_seconds, gain.train_seconds))
    points = f"{gain.points:+.1f}{spread(gain.spread, gain.seeds)}"
    return [points, macs, "-", transform, all_in_all, "-", "-", propagate, train]


def spread(std: float, seeds: int) -> str:
    """Of several seeds; one has none."""
    return f" ± {std:.1f}" if seeds > 1 else ""


def legend(records: Sequence[Record]) -> list[str]:
    """What the numbers mean, in a few sentences."""
    sentences = []
    if max(len(record["seeds"]) for record in records) > 1:
        paired = any(baseline_of(record, records) for record in records)
        sentences.append(f"±: standard deviation over seeds{'; differences are taken seed by seed' if paired else ''}.")
    links = any(record["spec"].get("task") == "links" for record in records)
    done = "encoding all nodes once, without the decoder of pairs" if links else "propagating and classifying all nodes once"
    sentences.append(f"MACs: {done}. Training: one seed, the mean.")
    if any(record["trace"]["basis_macs"] for record in records):
        sentences.append("Principal axes are found and rotated to once per graph; propagation seconds include it.")
    return sentences


def short(count: int) -> str:
    """A count in three digits: 1.83 G."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            value = count / size
            return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"
    return str(count)


def _times(ratio: float | None, better: str, worse: str) -> str:
    if ratio is None:
        return "-"
    if 0.95 <= ratio < 1.05:
        return "the same"
    return f"{ratio:.1f}x {better}" if ratio > 1 else f"{1 / ratio:.1f}x {worse}"
