"""`train`: from a dataset to an accuracy, with the cost of getting it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from os import PathLike
from time import perf_counter
from typing import TYPE_CHECKING, Any

from torch import nn

from unifews.datasets.dataset import Dataset, Split
from unifews.datasets.load import load_dataset
from unifews.deprecation import renamed_arguments
from unifews.errors import FileFormatError
from unifews.resources import Progress
from unifews.training.data_parallel import HeadTrainer
from unifews.training.decoupled import DecoupledTraining
from unifews.training.job import TrainingJob
from unifews.training.ledger import Ledger
from unifews.training.loop import Epoch
from unifews.training.result import SeedResult, TrainResult, describe
from unifews.training.spec import DecoupledSpec, LayeredSpec, TrainSpec

if TYPE_CHECKING:
    from unifews.training.layered import LayeredTraining

Watch = Callable[[int, Epoch], None]
"""Called after every epoch with the number of the seed (0, 1, …) and the epoch."""


@renamed_arguments(hands="trainer")
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
        known: seeds trained before with these settings and this data (`TrainingJob.known_seeds`); they are not repeated.
        **settings: of `TrainSpec` and `Recipe`, which explain each; among them
            edge_sparsity | edge_threshold: fraction of edge products to remove, or δ; neither = unpruned;
            max_error: decoupled models instead propagate until the estimated relative error is at most this;
            weight_sparsity | weight_threshold: the same for weights;
            seeds, seed: how many and the first; a seed decides split, initial weights, batches and dropout;
            split: ``"stratified"`` 50/25/25 by seed, or ``"stored"``; default: the dataset's own;
            recipe, or its hyperparameters one by one: width, layers, dropout, batch, epochs, patience, lr, ….

    The epoch is chosen by validation; the test set is evaluated once per seed. Same settings, same numbers.
    """
    data = dataset if isinstance(dataset, Dataset) else load_dataset(dataset)
    spec = TrainSpec.of({"dataset": data.name, "model": model, "method": method, **settings})
    book = Ledger(ledger) if ledger is not None and not isinstance(ledger, Ledger) else ledger
    return run_job(TrainingJob.prepare(data, spec), book, progress=progress, watch=watch, trainer=trainer, known=known)


def run_job(
    job: TrainingJob,
    book: Ledger | None,
    *,
    progress: Progress | None = None,
    watch: Watch | None = None,
    trainer: HeadTrainer | None = None,
    known: Sequence[SeedResult] = (),
) -> TrainResult:
    """Train every seed of a job, and append its record to the ledger."""
    data, spec, trainer = job.data, job.spec, trainer or HeadTrainer()
    finished = {result.seed: result for result in known}
    if book:
        book.check()
        finished |= {result.seed: result for result in _finished(book, job.id)}
    began = perf_counter()
    training = prepared(data, spec, job.splits, progress, trainer)
    seconds = 0.0 if spec.is_layered else perf_counter() - began
    best: tuple[float, nn.Module] | None = None
    done: list[SeedResult] = []
    for i in range(spec.seeds):
        if spec.seed + i in finished:
            done.append(finished[spec.seed + i])
            continue
        seed, model = training.one_seed(i, spec.seed + i, None if watch is None else partial(watch, i))
        if best is None or seed.val > best[0]:
            best = seed.val, model
        done.append(seed)
        if book and trainer.is_first and len(done) < spec.seeds:
            book.save_partial(job.id, [asdict(each) for each in done])
    trace, sizes = training.trace(done), training.sizes(done)
    best_model = best[1] if best else None
    result = TrainResult(spec, job.id, training.metric, done, trace, sizes, describe(data), seconds, best_model)
    if book and trainer.is_first:
        book.append(result.to_dict())
        book.drop_partial(job.id)
    return result


def _finished(book: Ledger, run_id: str) -> list[SeedResult]:
    """The finished seeds of an interrupted run."""
    try:
        return [SeedResult.of(seed) for seed in book.partial(run_id)]
    except (KeyError, TypeError) as error:
        raise FileFormatError(f"{book.partial_file(run_id)} is damaged; delete it to restart this run.") from error


def prepared(
    data: Dataset, spec: TrainSpec, splits: list[Split], progress: Progress | None, trainer: HeadTrainer
) -> DecoupledTraining | LayeredTraining:
    """The dataset prepared for the kind of model, to be trained once per seed; decoupled models are propagated here."""
    if isinstance(spec, DecoupledSpec):
        return DecoupledTraining(data, spec, splits, progress, trainer)
    from unifews.training.layered import LayeredTraining  # imports PyG, which decoupled models do not need
    from unifews.training.links import LinkTraining

    assert isinstance(spec, LayeredSpec)
    return (LinkTraining if spec.predicts_links else LayeredTraining)(data, spec, splits)
