"""Numbers of training records: one row per run, the gain of a run over another, labels, and the paper's score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, pstdev
from typing import Any

from unifews.experiments.definitions import find
from unifews.propagation.config import BY_ERROR
from unifews.training.spec import PAPER

Record = Mapping[str, Any]
"""A record of `train`, as the ledger stores it."""
_PRINTED_SIZE = {"hops": 20, "layers": 2, "width": 512}  # of the models in tab:dec
_PRINTED_EPOCHS = 200
_PRINTED_NAMES = {"unifews-push": "unifews"}  # methods as tab:dec names them


@dataclass(frozen=True)
class Row:
    """The numbers of one run."""

    label: str
    id: str
    score: float
    """Percent by the dataset's metric on test nodes, mean over seeds."""
    std: float
    seeds: int
    macs: int
    """Multiply-adds of the propagation, once for all nodes."""
    basis_macs: int
    """Multiply-adds of computing the PCA basis and rotating into it: not propagation, reported separately."""
    transform_macs: int
    """Multiply-adds of classifying all nodes."""
    edge_sparsity: float
    weight_sparsity: float
    estimated_error: float
    """Of the embedding, relative; 0: unpruned, or not estimated."""
    propagate_seconds: float
    train_seconds: float
    """Of one seed, mean over seeds."""

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
            estimated_error=trace.get("estimated_error", 0.0),
            propagate_seconds=seconds["propagate"],
            train_seconds=seconds["train"],
        )

    @property
    def operations(self) -> int:
        """All multiply-adds from features to classes, including the PCA basis."""
        return self.macs + self.basis_macs + self.transform_macs


@dataclass(frozen=True)
class Gain:
    """One run relative to another on the same seeds; ratios are None where a count is zero."""

    points: float
    """Difference of the scores, mean over common seeds."""
    spread: float
    """Standard deviation of that difference over seeds."""
    seeds: int
    """Number of common seeds; 0: the difference is that of the means."""
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
            macs=_ratio(two.macs, one.macs),
            transform_macs=_ratio(two.transform_macs, one.transform_macs),
            operations=_ratio(two.operations, one.operations),
            propagate_seconds=_ratio(two.propagate_seconds, one.propagate_seconds),
            train_seconds=_ratio(two.train_seconds, one.train_seconds),
        )

    def to_dict(self) -> dict[str, float | None]:
        return asdict(self)


def _ratio(more: float, less: float) -> float | None:
    return more / less if more and less else None


def label_of(record: Record) -> str:
    """What a run prunes: "unpruned", "edges .9, weights .9", "paper's form, edges .5", "max error .05"."""
    spec = record["spec"]
    max_error = spec.get("max_error")
    parts = [f"max error {f'{max_error:g}'.removeprefix('0')}"] if max_error else []
    for what in ("edge", "weight"):
        sparsity, delta = spec[f"{what}_sparsity"], spec[f"{what}_threshold"]
        if sparsity:
            parts.append(f"{what}s {f'{sparsity:g}'.removeprefix('0')}")
        elif delta:
            parts.append(f"{what}s ≥ {delta:g}")
    if spec["method"] != "unifews":
        parts.insert(0, spec["method"])
    elif (
        parts and not max_error and all(spec.get(name, PAPER[name]) == PAPER[name] for name in ("entries", "basis", "inherit"))
    ):
        parts.insert(0, "paper's form")
    if spec.get("choice", "largest") != "largest":
        parts.append(f"{spec['choice']} {spec['entries']} entries")
    if spec.get("node_lock"):
        parts.append("node lock")
    return ", ".join(parts) or "unpruned"


def labels_of(records: Sequence[Record]) -> list[str]:
    """A label per run, with dataset and model where they differ among the runs."""
    specs = [record["spec"] for record in records]
    varying = [name for name in ("dataset", "model") if len({spec[name] for spec in specs}) > 1]
    return [" ".join([*(str(r["spec"][name]) for name in varying), label_of(r)]) for r in records]


def baseline_of(record: Record, records: Sequence[Record]) -> Record | None:
    """The unpruned run among `records` with otherwise the same settings, if there is one."""
    if not prunes(record):
        return None
    # Baseline methods have their own skip connection and r.
    ignored = {*_OF_PRUNING, *(("r", "skip") if record["spec"]["method"] != "unifews" else ())}

    def others(spec: Mapping[str, Any]) -> Record:
        pruning = ("edge_", "weight_")
        return {name: value for name, value in spec.items() if name not in ignored and not name.startswith(pruning)}

    rest = others(record["spec"])
    return next((other for other in records if not prunes(other) and others(other["spec"]) == rest), None)


_OF_PRUNING = {
    *("method", "entries", "choice", "scope", "renormalize", "basis", "rank", "inherit", "head", "budget", "absolute"),
    *("node_lock", "settle"),
    *BY_ERROR,
}


def prunes(record: Record) -> bool:
    return label_of(record) != "unpruned"


def published_score(record: Record) -> float | None:
    """The score that tab:dec prints for such a run: decoupled models of its size, unpruned or at edge sparsity .5."""
    spec = record["spec"]
    recipe = spec.get("recipe", {})
    size = {"hops": spec.get("hops"), "layers": recipe.get("layers"), "width": recipe.get("width")}
    if spec.get("weight_sparsity") or spec.get("weight_threshold") or record["metric"] != "accuracy":
        return None
    if (prunes(record) and spec.get("edge_sparsity") != 0.5) or size != _PRINTED_SIZE:
        return None
    if recipe.get("epochs", 0) < _PRINTED_EPOCHS:
        return None
    method = str(spec["method"]).partition(":")[0]
    name = _PRINTED_NAMES.get(method, method) if prunes(record) else "unpruned"
    printed = find("tab:dec").printed({"model": spec["model"], "dataset": record["dataset"]["name"], "as": name})
    score = printed.get("accuracy")
    return float(score) if isinstance(score, int | float) else None
