"""`train`: from a dataset to an accuracy, with the cost of getting it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from os import PathLike
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from torch import nn

from unifews.core.trace import Trace
from unifews.datasets.dataset import Dataset
from unifews.datasets.load import load_dataset
from unifews.datasets.splits import Split
from unifews.errors import FileFormatError, InputError
from unifews.resources import Progress
from unifews.training.data_parallel import HeadTrainer
from unifews.training.decoupled import DecoupledTraining
from unifews.training.ledger import Ledger
from unifews.training.loop import Epoch
from unifews.training.metrics import evaluate
from unifews.training.result import SeedResult, TrainResult, describe
from unifews.training.spec import TrainSpec

Watch = Callable[[int, Epoch], None]
"""Called after every epoch with the number of the seed (0, 1, …) and the epoch."""


def train(
    dataset: Dataset | str | PathLike[str],
    model: str | None = None,
    method: Any = "unifews",
    *,
    ledger: Ledger | str | PathLike[str] | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
    trainer: HeadTrainer | None = None,
    known: Sequence[SeedResult] = (),
    **settings: Any,
) -> TrainResult:
    """Train and evaluate a model over one or several seeds: on an embedding propagated once, or on the whole graph.

    Args:
        dataset: a `Dataset`, or what `load_dataset` takes.
        model: ``"appnp"``, ``"sgc"`` or ``"mlp"`` (no edges), propagated once and then trained; or ``"gcn"``, ``"gat"``
            (GATv2), ``"sage"``, ``"gcnii"``, ``"gin"``, whose layers propagate. Default: ``"appnp"``, or the first model that
            the method works on.
        method: decides what is removed: a name of `unifews methods`, with settings (``"ndls:epsilon=0.05"``), or an object,
            ``Ndls(epsilon=0.05)``.
        ledger: file (or folder) the record is appended to; finished seeds of an interrupted run are read from there.
        progress: called with (steps done, steps in all) while propagating.
        watch: called after every epoch.
        trainer: how a head is trained. Default: by this process alone; `unifews.distributed.train` distributes the rows.
        known: seeds that were trained before with these settings and this data (`known_seeds`); they are not repeated.
        **settings: of `TrainSpec` and `Recipe`, which explain each; among them
            edge_sparsity | edge_threshold: fraction of edge products to remove, or δ; neither = unpruned;
            weight_sparsity | weight_threshold: the same for weights;
            seeds, seed: how many and the first; a seed decides split, initial weights, batches and dropout;
            split: ``"stratified"`` 50/25/25 by seed, or ``"stored"``; default: the dataset's own;
            recipe, or its hyperparameters one by one: width, layers, dropout, batch, epochs, patience, lr, ….

    The epoch is chosen by validation; the test set is evaluated once per seed. Same settings, same numbers.
    """
    data = dataset if isinstance(dataset, Dataset) else load_dataset(dataset)
    spec = TrainSpec.of({"dataset": data.name, "model": model, "method": method, **settings})
    book = Ledger(ledger) if ledger is not None and not isinstance(ledger, Ledger) else ledger
    splits, run_id, trainer = splits_of(data, spec), spec.id(data), trainer or HeadTrainer()
    finished = {result.seed: result for result in known}
    if book:
        book.check()
        finished |= {result.seed: result for result in _finished(book, run_id)}
    began = perf_counter()
    training = prepared(data, spec, splits, progress, trainer)
    seconds = 0.0 if spec.is_layered else perf_counter() - began
    partial_book = book if book and trainer.is_first else None
    seeds, best = _all_seeds(training, spec, run_id, finished, watch, partial_book)
    result = TrainResult(
        spec, run_id, training.metric, seeds, training.trace(seeds), training.sizes(seeds), describe(data), seconds, best
    )
    if partial_book:
        partial_book.append(result.to_dict())
        partial_book.drop_partial(run_id)
    return result


def _all_seeds(
    training: _Training,
    spec: TrainSpec,
    run_id: str,
    finished: dict[int, SeedResult],
    watch: Watch | None,
    book: Ledger | None,
) -> tuple[list[SeedResult], nn.Module | None]:
    """The result of every seed, those finished before included, and the model of the best one trained here."""
    best: tuple[float, nn.Module] | None = None
    done: list[SeedResult] = []
    for i in range(spec.seeds):
        if spec.seed + i in finished:
            done.append(finished[spec.seed + i])
            continue
        result, model = training.one_seed(i, spec.seed + i, None if watch is None else partial(watch, i))
        if best is None or result.val > best[0]:
            best = result.val, model
        done.append(result)
        if book and len(done) < spec.seeds:
            book.save_partial(run_id, [asdict(seed) for seed in done])
    return done, best[1] if best else None


def known_seeds(book: Ledger, spec: TrainSpec, data: Dataset) -> list[SeedResult]:
    """Seeds of this run in records of the ledger, of runs with other seeds but the same settings, data and version.

    Older records of models whose layers propagate lack the traces of their seeds, and are left out.
    """
    one_draw = not spec.is_layered and spec.rule.random  # an embedding that the first seed decides
    settings, wanted = spec.to_dict(), range(spec.seed, spec.seed + spec.seeds)
    found: dict[int, SeedResult] = {}
    for record in book.records():
        theirs = record.get("spec")
        if not isinstance(theirs, dict) or {**theirs, "seed": spec.seed, "seeds": spec.seeds} != settings:
            continue
        try:
            other = replace(spec, seed=theirs["seed"], seeds=theirs["seeds"])
            seeds = [SeedResult.of(values) for values in record["seeds"]]
        except (KeyError, TypeError, AttributeError, InputError):  # another format, or damaged
            continue
        if record["id"] != other.id(data) or (one_draw and other.seed != spec.seed):
            continue
        found |= {seed.seed: seed for seed in seeds if seed.seed in wanted and (seed.trace or not spec.is_layered)}
    return list(found.values())


def _finished(book: Ledger, run_id: str) -> list[SeedResult]:
    """The finished seeds of an interrupted run."""
    try:
        return [SeedResult.of(seed) for seed in book.partial(run_id)]
    except (KeyError, TypeError) as error:
        raise FileFormatError(f"{book.partial_file(run_id)} is damaged; delete it to restart this run.") from error


class _Training(Protocol):
    """A dataset prepared for a kind of model, to be trained once per seed."""

    @property
    def metric(self) -> str: ...

    def one_seed(self, number: int, seed: int, watch: Callable[[Epoch], None] | None) -> tuple[SeedResult, nn.Module]: ...

    def trace(self, seeds: Sequence[SeedResult]) -> Trace: ...

    def sizes(self, seeds: Sequence[SeedResult]) -> tuple[int, ...]: ...


def prepared(data: Dataset, spec: TrainSpec, splits: list[Split], progress: Progress | None, trainer: HeadTrainer) -> _Training:
    """The dataset prepared for the kind of model; decoupled models are propagated here."""
    if not spec.is_layered:
        return DecoupledTraining(data, spec, splits, progress, trainer)
    from unifews.training.layered import LayeredTraining  # imports PyG, which decoupled models do not need
    from unifews.training.links import LinkTraining

    return (LinkTraining if spec.task == "links" else LayeredTraining)(data, spec, splits)


def splits_of(data: Dataset, spec: TrainSpec) -> list[Split]:
    """The split of every seed, checked; links are split when their seed is trained."""
    if spec.task == "links":
        from unifews.training.links import check_links

        check_links(data.name, data.graph)
        return []
    splits = [data.split(spec.seed + i, spec.split) for i in range(spec.seeds)]
    for split in splits:
        check_split(data, split)
    return splits


def check_split(data: Dataset, split: Split) -> None:
    """A classifier can be trained and evaluated on this split."""
    for name, part in zip(split._fields, split, strict=True):
        if not len(part):
            raise InputError(
                f"the {name} set of {data.name} is empty: {data.num_nodes:,} nodes are too few for this split, or too few have "
                f"labels."
            )
    Split.of(*split, num_nodes=data.num_nodes)
    if len(split.train) < 2:
        raise InputError(f"{data.name} has a single training node; training needs at least 2.")
    for name, part in zip(split._fields, split, strict=True):
        try:
            evaluate(data.about.metric, np.broadcast_to(np.float32(0), (len(part), data.num_classes)), data.y[part])
        except InputError as error:
            raise InputError(f"the {name} set of {data.name} cannot be evaluated: {error}") from error
    if data.is_multilabel:
        return
    classes = np.unique(data.y[data.y >= 0])
    if len(classes) < 2:
        raise InputError(
            f"every labelled node of {data.name} is of class {classes[0]}, so there is nothing to learn; give it labels of two "
            f"classes or more."
        )
    trained = np.bincount(data.y[split.train], minlength=data.num_classes) > 0
    evaluated = np.unique(data.y[np.concatenate([split.val, split.test])])
    missing = evaluated[~trained[evaluated]]
    if len(missing):  # a stored split: one drawn by class gives the first node of each to training
        seeds = f", another `seed`, which picks one of its {len(data.splits)} stored splits" if len(data.splits) > 1 else ""
        raise InputError(
            f"class {missing[0]} of {data.name} has no training node ({len(missing)} of {data.num_classes} classes lack one), "
            f"so it could never be predicted; take split='stratified'{seeds}, or merge rare classes."
        )
