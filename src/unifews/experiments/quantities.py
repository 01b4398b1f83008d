"""Numbers read from the record of a run, and how tables and figures show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from unifews.errors import unknown_name
from unifews.experiments.definitions import Experiment, Published, find

Record = Mapping[str, Any]
Number = float | None


@dataclass(frozen=True)
class Quantity:
    """A number read from a record of `train`, and how it is shown."""

    title: str
    digits: int = 1
    of: Callable[[Record], Number] = lambda record: None
    spread: Callable[[Record], Number] = lambda record: None
    cost: bool = False
    """Whether it depends on the graph and the number of features only, not on feature values."""
    clock: bool = False
    """Whether it is a time: times of two machines are not subtracted."""
    operations: bool = False
    """Whether it counts operations or is a speed-up: on a logarithmic axis over more than a decade."""


def _printed_gmacs(record: Record) -> Number:
    """Multiply-adds by the paper's count: the fraction kept of hops × edges × features, with the edges of tab:dataset.

    Its m includes the self-loops of some files and not of others, and its code prunes them too; ours are neither pruned nor
    counted.
    """
    trace, spec = record["trace"], record["spec"]
    edges = printed_edges().get(record["dataset"]["name"].replace("arxiv-sub", "arxiv"))
    if edges is None or "hops" not in spec or not trace["dense_macs"]:
        return None
    unpruned = spec["hops"] * edges * record["dataset"]["features"]
    return float(unpruned * (1 - trace["edge_sparsity"]) / 1e9)


@cache
def printed_edges() -> dict[str, int]:
    """m of tab:dataset."""
    table = find("tab:dataset").published
    assert isinstance(table, Published)
    column = table.columns.index("edges")
    return {row[0]: row[column] for row in table.rows}


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


OF_TRAININGS = {
    "accuracy": Quantity("test score, %", 1, lambda r: r["scores"]["test"], lambda r: r["scores"]["test_std"]),
    "edge_removed": Quantity("edge products removed, %", 1, lambda r: 100 * r["trace"]["edge_sparsity"], cost=True),
    "weight_removed": Quantity("weights removed, %", 1, lambda r: 100 * r["trace"]["weight_sparsity"]),
    "estimated_error": Quantity("estimated error, %", 2, lambda r: _percent(r["trace"].get("estimated_error"))),
    "prop_gmacs": Quantity("propagation, GMACs", 3, lambda r: r["trace"]["macs"] / 1e9, cost=True, operations=True),
    "printed_gmacs": Quantity("propagation by the paper's count, GMACs", 2, _printed_gmacs, cost=True, operations=True),
    "axes_gmacs": Quantity("principal axes, GMACs", 2, lambda r: r["trace"]["basis_macs"] / 1e9, operations=True),
    "tran_gmacs": Quantity("transformation, GMACs", 2, lambda r: r["trace"]["transform_macs"] / 1e9, operations=True),
    "seconds": Quantity("propagation, s", 2, lambda r: r["seconds"]["propagate"], clock=True),
    "train_seconds": Quantity("training a seed, s", 1, lambda r: r["seconds"]["train"], clock=True),
    "seeds": Quantity("seeds", 0, lambda r: len(r["seeds"])),
}
"""Quantities of records of `train`."""


def quantity(experiment: Experiment, name: str) -> Quantity:
    """A quantity of trainings, or one that the experiment's file defines."""
    if name in experiment.named:
        return Quantity(**experiment.named[name])
    if name in OF_TRAININGS:
        return OF_TRAININGS[name]
    raise unknown_name(f"quantity of {experiment.id}", name, [*experiment.named, *OF_TRAININGS])


def value(record: Record, name: str) -> tuple[Number, Number]:
    """Value and spread, None where the record has none; of a measurement `name` and `name_spread`."""
    if "values" in record:
        return record["values"].get(name), record["values"].get(f"{name}_spread")
    found = OF_TRAININGS.get(name, Quantity(name))
    return found.of(record), found.spread(record) if len(record["seeds"]) > 1 else None
