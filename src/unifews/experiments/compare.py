"""`compare`: methods side by side on one dataset and model, at the same shares of removed edges, beside the unpruned model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from tempfile import TemporaryDirectory
from typing import Any

from unifews.core.checks import check_sparsity
from unifews.datasets.dataset import Dataset
from unifews.errors import InputError, UnifewsError, unknown_name
from unifews.experiments.grid import Outcome, Progress, Record, run_cells
from unifews.methods import registry
from unifews.training.ledger import Ledger
from unifews.training.spec import MODELS, TrainSpec
from unifews.training.spec import paper_form as settings_of_paper

SHARES = (0.3, 0.5, 0.8, 0.9)
SEEDS = 3
PAPER_FORM = "unifews, paper's form"


@dataclass(frozen=True)
class Entry:
    """A method at a share of removed edges, and what came of it."""

    method: str
    edge_sparsity: float | None
    """As asked for; None: the method's own settings decide."""
    outcome: Outcome

    @property
    def record(self) -> Record | None:
        return None if isinstance(self.outcome, UnifewsError) else self.outcome

    def to_dict(self) -> dict[str, Any]:
        error = str(self.outcome) if isinstance(self.outcome, UnifewsError) else None
        return {"method": self.method, "edge_sparsity": self.edge_sparsity, "record": self.record, "error": error}


@dataclass(frozen=True)
class Comparison:
    """What `compare` found."""

    unpruned: Record
    entries: tuple[Entry, ...]
    """Share by share, in each the methods in the order asked for."""

    @property
    def records(self) -> list[Record]:
        """Those of all runs, the unpruned one first."""
        return [self.unpruned, *(entry.record for entry in self.entries if entry.record is not None)]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON takes it."""
        return {"unpruned": self.unpruned, "compared": [entry.to_dict() for entry in self.entries]}

    def __str__(self) -> str:
        spec, scores = self.unpruned["spec"], self.unpruned["scores"]
        lines = [f"{spec['model']} on {spec['dataset']}, unpruned: {scores['test']:.1f} ± {scores['test_std']:.1f}"]
        for entry in self.entries:
            asked = "own settings" if entry.edge_sparsity is None else f"edges {entry.edge_sparsity:g}"
            told = str(entry.outcome)
            if entry.record is not None:
                scores, trace = entry.record["scores"], entry.record["trace"]
                told = f"{scores['test']:.1f} ± {scores['test_std']:.1f}, {trace['edge_sparsity']:.1%} of edge entries removed"
            lines.append(f"{entry.method}, {asked}: {told}")
        return "\n".join(lines)


def compare(
    dataset: Dataset | str | PathLike[str],
    model: str = "gcn",
    methods: str | Sequence[Any] = "all",
    *,
    edge_sparsity: float | Sequence[float] = SHARES,
    weight_sparsity: float | None = None,
    paper_form: bool = False,
    seeds: int = SEEDS,
    ledger: Ledger | str | PathLike[str] | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
    **settings: Any,
) -> Comparison:
    """Train a model by several methods, each at several shares of removed edges, and unpruned: the same seeds for all.

    Args:
        dataset: a `Dataset`, or what `load_dataset` takes.
        model: as in `train`.
        methods: names, with settings if need be (``"ndls:epsilon=0.05"``), or methods themselves; ``"all"`` that can do this.
        edge_sparsity: the shares.
        weight_sparsity: a share of the weights to remove besides; of methods that can.
        paper_form: show our own method in the paper's form too: whole edges, nested.
        seeds: how many.
        ledger: file (or folder) of records: what it holds is not trained again, and a call that was stopped goes on.
        jobs: how many run at a time.
        progress: called with the `Status` as it changes.
        **settings: of `train`, the same for all.

    Rivals on decoupled models, which also run without being told a share, are shown by their own settings too.
    Everything that can be checked is, before the first training; where a method fails later, its error stands in its place.
    """
    if model not in MODELS:
        raise unknown_name("model", model, set(MODELS) - {"mlp"})  # which has no edges to compare by
    base = {"model": model, "seeds": seeds, **settings}
    spec = TrainSpec.of({"dataset": "", **base}).unpruned()
    shares = _shares(edge_sparsity, weight_sparsity)
    names = _names(model, methods, bool(weight_sparsity))
    lines = [(name, {"method": name}) for name in names]
    if paper_form:
        lines.append((PAPER_FORM, {"method": TrainSpec.method, **settings_of_paper(model)}))
    asked: list[tuple[str, float | None, dict[str, Any]]] = [(name, share, how) for share in shares for name, how in lines]
    if not spec.is_layered:
        asked += [(name, None, how) for name, how in lines if how["method"] != TrainSpec.method]
    cells = [{**base, **how, "edge_sparsity": share, "weight_sparsity": weight_sparsity} for _, share, how in asked]
    with ExitStack() as stack:
        kept = stack.enter_context(TemporaryDirectory()) if ledger is None else ledger
        book = kept if isinstance(kept, Ledger) else Ledger(kept)
        everything = [{**cell, "dataset": dataset} for cell in (spec.to_dict(), *cells)]
        unpruned, *outcomes = run_cells(everything, book, jobs=jobs, progress=progress)
    if isinstance(unpruned, UnifewsError):
        raise unpruned
    found = tuple(Entry(name, share, outcome) for (name, share, _), outcome in zip(asked, outcomes, strict=True))
    failed = [entry.outcome for entry in found if isinstance(entry.outcome, UnifewsError)]
    if len(failed) == len(found):
        raise failed[0]
    return Comparison(unpruned, found)


def able(model: str, *, weights: bool) -> list[str]:
    """The methods that prune this model, and its weights if wanted; our own first."""
    cards = [card for card in registry.cards()[0] if model in card.backbones and not (weights and "weights" not in card.prunes)]
    return sorted((card.name for card in cards), key=lambda name: (name != TrainSpec.method, name))


def _names(model: str, methods: str | Sequence[Any], weights: bool) -> list[str]:
    """Each once, written in the one way; those that cannot do it are refused."""
    if isinstance(methods, str):
        methods = able(model, weights=weights) if methods == "all" else split_names(methods)
    found = list(dict.fromkeys(registry.text_of(method) for method in methods))
    if not found:
        raise InputError("`methods` names none; write 'all', or names such as 'unifews,random'.")
    for name in found:
        registry.resolve(name).card.check(model, weights=weights)
    return found


def split_names(text: str) -> list[str]:
    """Names in a text, where settings have commas too.

    >>> split_names("unifews,ndls:epsilon=0.05,own=0.2,agp")
    ['unifews', 'ndls:epsilon=0.05,own=0.2', 'agp']
    """
    names: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if names and "=" in part and ":" not in part:
            names[-1] += f",{part}"
        elif part:
            names.append(part)
    return names


def _shares(edge_sparsity: float | Sequence[float], weight_sparsity: float | None) -> list[float]:
    given = [edge_sparsity] if isinstance(edge_sparsity, float | int) else list(edge_sparsity)
    shares = list(dict.fromkeys(check_sparsity("edge_sparsity", share) for share in given))
    if not shares:
        raise InputError("`edge_sparsity` names no share; give one or several, such as (0.5, 0.9).")
    if 0 in shares and not weight_sparsity:
        raise InputError("edge_sparsity=0 removes nothing, and the unpruned model is there anyway; leave it out.")
    return shares
