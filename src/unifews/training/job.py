"""A training run that is ready to start: its settings and data are checked, split and identified once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from unifews.core.config import Values
from unifews.datasets.dataset import Dataset, Split
from unifews.errors import InputError
from unifews.training.fingerprint import fingerprint
from unifews.training.ledger import Ledger
from unifews.training.metrics import evaluate
from unifews.training.spec import TrainSpec

if TYPE_CHECKING:
    from unifews.resources import Progress
    from unifews.training.api import Watch
    from unifews.training.data_parallel import HeadTrainer
    from unifews.training.result import SeedResult, TrainResult


@dataclass(frozen=True)
class TrainingJob:
    """One run on one dataset; made by `prepare`.

    job = TrainingJob.prepare(data, TrainSpec.of({"dataset": data.name, "edge_sparsity": 0.9}))
    record = job.record(Ledger("runs"))
    """

    data: Dataset
    spec: TrainSpec
    splits: list[Split]
    """One for each seed; none for link prediction, which splits edges when a seed is trained."""
    data_id: str
    """The fingerprint of the data."""

    @classmethod
    def prepare(cls, data: Dataset, spec: TrainSpec, *, data_id: str | None = None) -> TrainingJob:
        """Check and split the data for every seed. `data_id`: its fingerprint, if it is known already."""
        rank = getattr(spec, "rank", None) or 0
        if rank > data.num_features:
            raise InputError(f"`rank` is {rank}, more than the {data.num_features:,} features of {data.name}.", setting="rank")
        return cls(data, spec, splits_of(data, spec), data_id or fingerprint(data))

    @cached_property
    def id(self) -> str:
        """Of its record in a ledger."""
        return self.spec.id_of(self.data_id)

    def with_spec(self, spec: TrainSpec) -> TrainingJob:
        """Another run on the same data; the splits are reused if it has the same."""
        same = all(getattr(spec, name) == getattr(self.spec, name) for name in ("seed", "seeds", "split", "predicts_links"))
        return replace(self, spec=spec, splits=self.splits if same else splits_of(self.data, spec))

    def record(
        self,
        ledger: Ledger | None,
        *,
        restart: bool = False,
        progress: Progress | None = None,
        watch: Watch | None = None,
        workers: HeadTrainer | None = None,
        waiting: Callable[[], None] = lambda: None,
        trained: Callable[[TrainResult], None] = lambda run: None,
    ) -> Values:
        """The record of this run: from the ledger, unless `restart`, or by training, after which `trained` gets the result.

        One process at a time trains a run of a ledger; another one calls `waiting` and waits for its record. `workers` train
        together, so none of them waits.
        """

        def make() -> Values:
            result = self.train(ledger, restart=restart, progress=progress, watch=watch, workers=workers)
            trained(result)
            return result.to_dict()

        if ledger is None:
            return make()
        if workers is not None:
            return (None if restart else ledger.find(self.id)) or make()
        return ledger.once(self.id, make, restart=restart, waiting=waiting)

    def train(
        self,
        ledger: Ledger | None = None,
        *,
        restart: bool = False,
        progress: Progress | None = None,
        watch: Watch | None = None,
        workers: HeadTrainer | None = None,
    ) -> TrainResult:
        """Train all seeds, except those that the ledger has from an interrupted or another run, unless `restart`."""
        from unifews.training.api import run_job
        from unifews.training.result import warm_up, warm_up_layers

        warm_up()
        if self.spec.is_layered:
            warm_up_layers()
        if ledger and restart:
            ledger.drop_partial(self.id)
        known = [] if ledger is None or restart else self.known_seeds(ledger)
        return run_job(self, ledger, progress=progress, watch=watch, trainer=workers, known=known)

    def known_seeds(self, ledger: Ledger) -> list[SeedResult]:
        """Seeds of this run in records of the ledger, of runs with other seeds but the same settings, data and version.

        Older records of models whose layers propagate lack the traces of their seeds, and are left out.
        """
        from unifews.training.result import SeedResult

        spec = self.spec
        one_draw = not spec.is_layered and spec.rule.random  # an embedding that depends on the first seed
        settings, wanted = spec.to_dict(), range(spec.seed, spec.seed + spec.seeds)
        found: dict[int, SeedResult] = {}
        for record in ledger.records():
            theirs = record.get("spec")
            if not isinstance(theirs, dict) or {**theirs, "seed": spec.seed, "seeds": spec.seeds} != settings:
                continue
            try:
                other = replace(spec, seed=theirs["seed"], seeds=theirs["seeds"])
                seeds = [SeedResult.of(values) for values in record["seeds"]]
            except (KeyError, TypeError, AttributeError, InputError):  # another format, or damaged
                continue
            if record["id"] != other.id_of(self.data_id) or (one_draw and other.seed != spec.seed):
                continue
            found |= {seed.seed: seed for seed in seeds if seed.seed in wanted and (seed.trace or not spec.is_layered)}
        return list(found.values())


def splits_of(data: Dataset, spec: TrainSpec) -> list[Split]:
    """The split of every seed, checked; links are split when their seed is trained."""
    if spec.predicts_links:
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
    if not data.is_multilabel:
        _check_classes(data, split)


def _check_classes(data: Dataset, split: Split) -> None:
    """There are two classes or more, and each class that is evaluated is trained."""
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
