"""`train`: from a dataset to an accuracy, with the cost of getting it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from os import PathLike
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from unifews.core.schemes import Sgc
from unifews.core.trace import LayerTrace, Trace
from unifews.datasets.dataset import Dataset, Split
from unifews.datasets.load import load_dataset
from unifews.errors import FileFormatError
from unifews.nn.decoupled import DecoupledModel, Mlp, Propagator, dense_rows
from unifews.propagation import propagate
from unifews.propagation.basis import GRAM_LIMIT, MANY_AXES, VERY_WIDE
from unifews.resources import Progress
from unifews.training.checks import check_finite
from unifews.training.hands import Hands
from unifews.training.job import TrainingJob
from unifews.training.ledger import Ledger
from unifews.training.loop import Epoch, fit, seeded
from unifews.training.recipe import WeightPruning
from unifews.training.result import Run, SeedResult
from unifews.training.spec import DecoupledSpec, LayeredSpec, TrainSpec

_FEWEST = 48  # axes of SGC: fewer tell too little about many classes
_MOST = 0.5  # share of its messages that SGC can do without on the input axes


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
    hands: Hands | None = None,
    known: Sequence[SeedResult] = (),
    **settings: Any,
) -> Run:
    """Train and judge a model over one or several seeds: on an embedding propagated once, or on the whole graph.

    Args:
        dataset: a `Dataset`, or what `load_dataset` takes.
        model: ``"appnp"``, ``"sgc"`` or ``"mlp"`` (no edges: what the graph is worth), propagated once and then trained; or
            ``"gcn"``, ``"gat"`` (GATv2), ``"sage"``, ``"gcnii"``, ``"gin"``, whose layers propagate themselves.
        method: who decides what goes: a name of `unifews methods`, with settings if need be (``"ndls:epsilon=0.05"``), or a
            method itself, ``Ndls(epsilon=0.05)``.
        ledger: file (or folder) the record is appended to; finished seeds of an interrupted run are taken from there.
        progress: called with (steps done, steps in all) while propagating.
        watch: called after every epoch.
        known: seeds that were trained before with these settings and this data (`known_seeds`); they are not trained again.
        hands: who trains, this process alone unless given; `unifews.distributed.train` has several share the rows.
        **settings: of `TrainSpec` and `Recipe`:
            edge_sparsity | edge_threshold: share of edge products to remove, or δ; neither = unpruned.
            weight_sparsity | weight_threshold: share of weights to remove, or δ_w relative to the layer's input. In layers that
            propagate, small matrices give less of it than large ones (`budget`).
            weight_reference: what that is a share of: the ``"unpruned"`` model's weights, those that a head on fewer axes does
            not have counting as removed (as with edges, docs/adr/0013), or strictly those of the ``"head"`` that is trained.
            weight_ramp, weight_feedback: epochs until the share is reached, unless given 15 a layer, in layers 3 and
            at least 12 (docs/adr/0022); whether removed weights go on learning.
            seeds, seed: how many and the first; a seed decides split, initial weights, batches and dropout.
            split: ``"stratified"`` 50/25/25 by seed, or ``"stored"``; the dataset's own convention unless given.
            hops, alpha, r, skip, entries, rank, inherit: of `propagate`.
            basis: of `propagate`; ``"auto"`` takes principal axes, but the input's own where the target leaves work for more
            axes of wide features than are worth finding (docs/adr/0011).
            head: what the classifier is fed: ``"embedding"`` on the input axes, ``"coordinates"`` on the principal ones;
            ``"auto"`` takes the coordinates where there are any, which spares rotating back and makes the head narrower.
            standardise: by the training rows, all columns by one ``"common"`` scale or each ``"column"`` by its own.
            recipe (or its settings one by one): width, layers, dropout, batch, epochs, patience, lr, weight_decay, plateau.
            Of models whose layers propagate only (see `sparsify`; `hops` and the like are of the others only):
            entries, budget, absolute, inherit: of `sparsify`.
            task: ``"nodes"`` are classified, or ``"links"`` predicted (5 % of edges to choose by, 10 % to judge by, ROC-AUC).
            settle: share of the epochs after which removed weights stay removed (edges never do); 1 = never, .5 as the authors.
            heads: of gat. alpha, theta: of gcnii.
            node_lock: judge with all edges into the judged nodes in place, as the authors do: it flatters.

    The epoch is chosen by validation; the test set is judged once per seed. Same settings, same numbers.
    """
    data = dataset if isinstance(dataset, Dataset) else load_dataset(dataset)
    spec = TrainSpec.of({"dataset": data.name, "model": model, "method": method, **settings})
    book = Ledger(ledger) if ledger is not None and not isinstance(ledger, Ledger) else ledger
    job = TrainingJob.prepare(data, spec)
    return run_job(job, book, progress=progress, watch=watch, hands=hands, known=known)


def run_job(
    job: TrainingJob,
    book: Ledger | None,
    *,
    progress: Progress | None = None,
    watch: Watch | None = None,
    hands: Hands | None = None,
    known: Sequence[SeedResult] = (),
) -> Run:
    """Train every seed of a job, and append its record to the ledger."""
    data, spec, splits, run_id = job.data, job.spec, job.splits, job.id
    before = {result.seed: result for result in known}
    if book:
        book.check()
        before |= {result.seed: result for result in _finished(book, run_id)}
    began = perf_counter()
    hands = hands or Hands()
    work = _work(data, spec, splits, progress, hands)
    propagate_seconds = 0.0 if spec.is_layered else perf_counter() - began

    best: tuple[float, torch.nn.Module] | None = None
    done: list[SeedResult] = []
    for i in range(spec.seeds):
        if spec.seed + i in before:
            done.append(before[spec.seed + i])
            continue
        result, trained = work.one_seed(i, spec.seed + i, None if watch is None else partial(watch, i))
        if best is None or result.val > best[0]:
            best = result.val, trained
        done.append(result)
        if book and hands.is_first and len(done) < spec.seeds:
            book.save_partial(run_id, [asdict(seed) for seed in done])
    run = Run(
        spec, run_id, work.metric, done, work.trace(done), work.sizes(done), _describe(data), propagate_seconds,
        best[1] if best else None,
    )  # fmt: skip
    if book and hands.is_first:
        book.append(run.to_dict())
        book.drop_partial(run_id)
    return run


def _finished(book: Ledger, run_id: str) -> list[SeedResult]:
    """The seeds that an interrupted run has left."""
    try:
        return [SeedResult.of(seed) for seed in book.partial(run_id)]
    except (KeyError, TypeError) as error:
        raise FileFormatError(f"{book.partial_file(run_id)} is damaged; delete it to restart this run.") from error


class _Work(Protocol):
    """A dataset made ready for a kind of model, to be trained once per seed."""

    @property
    def metric(self) -> str: ...

    def one_seed(self, number: int, seed: int, watch: Callable[[Epoch], None] | None) -> tuple[SeedResult, torch.nn.Module]: ...

    def trace(self, seeds: Sequence[SeedResult]) -> Trace: ...

    def sizes(self, seeds: Sequence[SeedResult]) -> tuple[int, ...]: ...


def _work(data: Dataset, spec: TrainSpec, splits: list[Split], progress: Progress | None, hands: Hands) -> _Work:
    if isinstance(spec, DecoupledSpec):
        return _OnEmbedding(data, spec, splits, _feed(data, spec, progress), hands)
    from unifews.training.layered import OnGraph  # PyG: decoupled models do without
    from unifews.training.links import OnLinks

    assert isinstance(spec, LayeredSpec)
    return (OnLinks if spec.predicts_links else OnGraph)(data, spec, splits)


class _OnEmbedding:
    """What was propagated once, for a head that is trained on it."""

    def __init__(self, data: Dataset, spec: DecoupledSpec, splits: list[Split], fed: _Feed, hands: Hands) -> None:
        self.data, self.spec, self.splits, self.fed, self.hands = data, spec, splits, fed, hands
        self.inputs = fed.rows.shape[1]

    @property
    def metric(self) -> str:
        return self.data.about.metric

    def one_seed(self, number: int, seed: int, watch: Callable[[Epoch], None] | None) -> tuple[SeedResult, DecoupledModel]:
        data, spec, fed = self.data, self.spec, self.fed
        result, head = _one_seed(data, spec, fed.rows, self.splits[number], seed, watch, self.hands)
        how = _propagation(spec, data.num_features)
        return result, DecoupledModel(head, fed.axes, how, fed.exponent, by=_propagator(spec)).eval()

    def trace(self, seeds: Sequence[SeedResult]) -> Trace:
        return _with_layers(self.fed.trace, self.data, self.spec, self.inputs, seeds)

    def sizes(self, seeds: Sequence[SeedResult]) -> tuple[int, ...]:
        return _sizes(self.data, self.spec, self.inputs)


class _Feed(NamedTuple):
    """What the head is fed."""

    rows: Tensor
    """[n, width]."""
    axes: Tensor | None
    """[f, width] that they stand on; None: the input's."""
    exponent: int
    trace: Trace
    """What getting there cost."""


def _feed(data: Dataset, spec: DecoupledSpec, progress: Progress | None) -> _Feed:
    how = _propagation(spec, data.num_features)
    if how is None:
        rows = dense_rows(data.x)
        check_finite(data.name, rows.numpy())
        return _Feed(rows, None, 0, Trace(()))
    out = _propagator(spec)(data.graph, data.x, **how, progress=progress)
    if spec.head == "embedding" or out.basis is None:
        rows, axes = dense_rows(out.embedding), None
    else:
        rows, axes = dense_rows(out.coordinates), dense_rows(out.basis)
    return _Feed(rows, axes, out.exponent, out.trace)  # the trace last: rotating back has added to it


def _propagator(spec: DecoupledSpec) -> Propagator:
    propagator: Propagator = propagate if spec.is_own else spec.rule.propagate
    return propagator


def _propagation(spec: DecoupledSpec, features: int) -> dict[str, Any] | None:
    if spec.model == "mlp":
        return None
    how = {
        "scheme": spec.scheme, "hops": spec.hops, "r": spec.r, "edge_sparsity": spec.edge_sparsity,
        "threshold": spec.edge_threshold,
    }  # fmt: skip
    if not spec.is_own:
        return how | {"seed": spec.seed}
    basis, rank = _axes(spec, features)
    return how | {
        "entries": spec.entries, "basis": basis, "rank": rank, "inherit": spec.inherit and spec.prunes_edges,
    }  # fmt: skip


def _axes(spec: DecoupledSpec, features: int) -> tuple[str, int | None]:
    """The axes that are pruned, and how many there are; None leaves that to `propagate`, which keeps all of up to 1,024.

    SGC keeps nothing of a node's own features, and what lies outside the leading axes of T X dies out over the hops. So it
    meets a target by leaving axes out, and sends every message on those that stay. Where a target leaves work for more axes
    of wide features than are searched for, the others would be any that fit: a head learns better from the input's own, and
    nothing has to be found or rotated. SGC can do that only as long as most messages stay (docs/adr/0011).
    """
    if spec.basis == "input" or spec.rank is not None or not spec.edge_sparsity:
        return "input" if spec.basis == "input" else "principal", spec.rank
    paid, fades = math.ceil(round((1 - spec.edge_sparsity) * features, 6)), spec.scheme == Sgc(skip="diagonal")
    if GRAM_LIMIT < features <= VERY_WIDE:
        own = spec.basis == "auto" and spec.head != "coordinates" and paid > MANY_AXES
        return "input" if own and (spec.edge_sparsity <= _MOST or not fades) else "principal", None
    return "principal", min(features, max(_FEWEST, paid)) if fades and features <= GRAM_LIMIT else None


def _one_seed(
    data: Dataset,
    spec: DecoupledSpec,
    rows: Tensor,
    split: Split,
    seed: int,
    watch: Callable[[Epoch], None] | None,
    hands: Hands,
) -> tuple[SeedResult, Mlp]:
    recipe = spec.recipe
    with seeded(seed):
        head = hands.head(rows.shape[1], data.num_classes, width=recipe.width, layers=recipe.layers, dropout=recipe.dropout)
    hands.standardise(head, rows, torch.tensor(split.train), per_column=spec.standardise == "column")
    fitted = fit(
        head, rows, data.y, split, recipe, metric=data.about.metric, pruning=_pruning(data, spec, rows.shape[1]), seed=seed,
        watch=watch, hands=hands,
    )  # fmt: skip
    kept = tuple(layer.kept for layer in head.linears())
    return SeedResult(seed=seed, **asdict(fitted), kept=kept), hands.plain(head).eval()


def _pruning(data: Dataset, spec: DecoupledSpec, inputs: int) -> WeightPruning:
    """What is asked for, as a share of the head's own weights."""
    if spec.weight_reference == "head":
        return spec.pruning
    return spec.pruning.within(sum(_sizes(data, spec, inputs)), sum(_sizes(data, spec, data.num_features)))


def _sizes(data: Dataset, spec: DecoupledSpec, inputs: int) -> tuple[int, ...]:
    """Weights of each layer of a head that is fed so many columns."""
    widths = [inputs, *[spec.recipe.width] * (spec.recipe.layers - 1), data.num_classes]
    return tuple(a * b for a, b in pairwise(widths))


def _with_layers(trace: Trace, data: Dataset, spec: DecoupledSpec, inputs: int, seeds: Sequence[SeedResult]) -> Trace:
    """Weights and multiply-adds of classifying all nodes, beside those of the unpruned head, which is fed all features.

    What a threshold keeps varies with the seed: the mean, rounded.
    """
    layers, n = [], data.num_nodes
    for i, weights in enumerate(_sizes(data, spec, data.num_features)):
        kept = round(sum(seed.kept[i] for seed in seeds) / len(seeds))
        layers.append(LayerTrace(i, weights, kept, n * kept, n * weights))
    trace = replace(trace, layers=tuple(layers))
    if inputs == data.num_features:
        return trace
    own = 1 - sum(layer.kept for layer in layers) / sum(_sizes(data, spec, inputs))
    note = (
        f"the head is fed {inputs:,} axes of {data.num_features:,} features: {trace.weight_sparsity:.1%} of the unpruned "
        f"model's weights are gone, {own:.1%} of the head's own"
    )
    return replace(trace, notes=(*trace.notes, note))


def _describe(data: Dataset) -> dict[str, Any]:
    return {
        "name": data.name,
        "source": data.about.source,
        "nodes": data.num_nodes,
        "edges": data.graph.num_edges,
        "features": data.num_features,
        "classes": data.num_classes,
    }
