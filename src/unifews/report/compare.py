"""Runs side by side: the numbers of each, and what one gains over another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, pstdev
from typing import Any

from unifews.training.spec import PAPER

Record = Mapping[str, Any]
"""What `Run.to_dict` gives and the ledger keeps."""


@dataclass(frozen=True)
class Row:
    """The numbers of one run that are worth comparing."""

    label: str
    id: str
    score: float
    """Percent by the dataset's metric on test nodes, mean over seeds."""
    std: float
    seeds: int
    macs: int
    """Multiply-adds of propagating, once for all nodes."""
    basis_macs: int
    """Multiply-adds of finding principal axes and rotating into them, which are not propagation and listed apart."""
    transform_macs: int
    """Multiply-adds of classifying all nodes."""
    edge_sparsity: float
    weight_sparsity: float
    propagate_seconds: float
    train_seconds: float
    """Of one seed, the mean."""

    @classmethod
    def of(cls, record: Record, label: str | None = None) -> Row:
        trace, scores, seconds = record["trace"], record["scores"], record["seconds"]
        return cls(
            label=label_of(record) if label is None else label,
            id=record["id"],
            score=scores["test"],
            std=scores["test_std"],
            seeds=len(record["seeds"]),
            macs=trace["macs"],
            basis_macs=trace["basis_macs"],
            transform_macs=trace["transform_macs"],
            edge_sparsity=trace["edge_sparsity"],
            weight_sparsity=trace["weight_sparsity"],
            propagate_seconds=seconds["propagate"],
            train_seconds=seconds["train"],
        )

    @property
    def operations(self) -> int:
        """All multiply-adds from features to classes, principal axes included."""
        return self.macs + self.basis_macs + self.transform_macs


@dataclass(frozen=True)
class Gain:
    """One run against another on the same seeds: times fewer or faster, None where there is nothing to divide."""

    points: float
    """Difference of the scores, mean over the seeds both have."""
    spread: float
    """Standard deviation of that difference over seeds."""
    seeds: int
    """Of both runs; 0 where they share none, and the difference is that of the means."""
    macs: float | None
    transform_macs: float | None
    operations: float | None
    propagate_seconds: float | None
    train_seconds: float | None

    @classmethod
    def of(cls, record: Record, against: Record) -> Gain:
        # A seed draws the same split for both, so the difference varies less than either score.
        other = {seed["seed"]: seed["test"] for seed in against["seeds"]}
        pairs = [seed["test"] - other[seed["seed"]] for seed in record["seeds"] if seed["seed"] in other]
        one, two = Row.of(record), Row.of(against)
        points = pairs or [one.score - two.score]
        return cls(
            points=fmean(points),
            spread=pstdev(points),
            seeds=len(pairs),
            macs=_times(two.macs, one.macs),
            transform_macs=_times(two.transform_macs, one.transform_macs),
            operations=_times(two.operations, one.operations),
            propagate_seconds=_times(two.propagate_seconds, one.propagate_seconds),
            train_seconds=_times(two.train_seconds, one.train_seconds),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _times(more: float, less: float) -> float | None:
    return more / less if more and less else None


def label_of(record: Record) -> str:
    """What a run prunes, in a few words: "unpruned", "edges .9, weights .9", "paper's form, edges .5"."""
    spec = record["spec"]
    parts = []
    for what in ("edge", "weight"):
        share, delta = spec[f"{what}_sparsity"], spec[f"{what}_threshold"]
        if share:
            parts.append(f"{what}s {f'{share:g}'.removeprefix('0')}")
        elif delta:
            parts.append(f"{what}s ≥ {delta:g}")
    if spec["method"] != "unifews":
        parts.insert(0, spec["method"])
    elif parts and all(spec.get(name, PAPER[name]) == PAPER[name] for name in ("entries", "basis", "inherit")):
        parts.insert(0, "paper's form")
    if spec.get("node_lock"):
        parts.append("node lock")
    return ", ".join(parts) or "unpruned"


def labels_of(records: Sequence[Record]) -> list[str]:
    """A label per run, with model and dataset where they differ among the runs."""
    specs = [record["spec"] for record in records]
    varying = [name for name in ("dataset", "model") if len({spec[name] for spec in specs}) > 1]
    return [" ".join([*(str(r["spec"][name]) for name in varying), label_of(r)]) for r in records]


def baseline_of(record: Record, records: Sequence[Record]) -> Record | None:
    """The unpruned run among `records` that is the same in everything else, if there is one."""
    if not prunes(record):
        return None
    # Other methods than ours have a skip connection and an r of their own.
    how = ("r", "skip") if record["spec"]["method"] != "unifews" else ()
    rest = _beside_pruning(record["spec"], how)
    return next((other for other in records if not prunes(other) and _beside_pruning(other["spec"], how) == rest), None)


def _beside_pruning(spec: Mapping[str, Any], besides: tuple[str, ...]) -> dict[str, Any]:
    """The settings that an unpruned run has too, but for `besides`."""
    how = ("method", "entries", "basis", "rank", "inherit", "head", "budget", "absolute", "node_lock", "settle", *besides)
    return {name: value for name, value in spec.items() if name not in how and not name.startswith(("edge_", "weight_"))}


def prunes(record: Record) -> bool:
    return label_of(record) != "unpruned"
