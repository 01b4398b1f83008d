"""A training as a cell: settings that were checked, and the dataset they are about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from unifews.datasets.dataset import Dataset
from unifews.datasets.load import load_dataset
from unifews.errors import InputError
from unifews.training.job import TrainingJob
from unifews.training.ledger import Ledger
from unifews.training.spec import TrainSpec

if TYPE_CHECKING:
    from unifews.training.loop import Epoch


_OVERHEAD = 1e7  # of an epoch, however small


@dataclass(frozen=True)
class Training:
    """One call of `train`."""

    spec: TrainSpec
    source: str | Dataset
    """The dataset, or what it is loaded by."""
    data_id: str
    cost: float

    @property
    def id(self) -> str:
        return self.spec.id_of(self.data_id)

    @property
    def what(self) -> str:
        spec = self.spec
        shares = [f"{side} {share:g}" for side in ("edge", "weight") if (share := getattr(spec, f"{side}_sparsity"))]
        return " ".join([spec.dataset, spec.model, spec.method if spec.prunes else "unpruned", *shares])

    def run(self, ledger: Ledger, tell: Callable[[float, str], None]) -> dict[str, Any]:
        """See `Cell`; what was finished of it before is not trained again."""

        def watch(number: int, epoch: Epoch) -> None:
            part = (number + epoch.number / epoch.of) / self.spec.seeds
            tell(part, f"seed {self.spec.seed + number}, epoch {epoch.number + 1}")

        job = TrainingJob.prepare(dataset_of(self.source), self.spec, data_id=self.data_id)
        return job.train(ledger, watch=watch).to_dict()


def trainings(cells: Sequence[Mapping[str, Any]]) -> list[Training]:
    """Cells of settings, all of them checked: first by themselves, then with the datasets that they name."""
    _loaded.cache_clear()  # files may have changed since the last call
    specs = []
    for cell in cells:
        if "dataset" not in cell:
            raise InputError(f"a training needs a dataset; {dict(cell)} names none.")
        specs.append(TrainSpec.of({**cell, "dataset": ""}))
    made: list[Training] = []
    job: TrainingJob | None = None
    for cell, spec in zip(cells, specs, strict=True):
        source = cell["dataset"]
        source = fspath(source) if isinstance(source, PathLike) else source
        data = dataset_of(source)
        named = replace(spec, dataset=data.name)
        # Cells on one dataset follow each other, mostly with the same seeds: it is identified and split once for all of them.
        job = job.with_spec(named) if job is not None and job.data is data else TrainingJob.prepare(data, named)
        cost = named.seeds * named.recipe.epochs * epoch_cost(data, named)
        made.append(Training(named, source, job.data_id, cost))
    return made


def epoch_cost(data: Dataset, spec: TrainSpec) -> float:
    """About how long an epoch takes, in multiply-adds: a rough measure by which time that is left is told."""
    recipe, nodes, features = spec.recipe, data.num_nodes, data.num_features
    entries = getattr(data.x, "nnz", nodes * features) if spec.is_layered else nodes * features
    weights = entries * recipe.width + nodes * recipe.width * (recipe.width * max(recipe.layers - 2, 0) + data.num_classes)
    messages = data.graph.num_edges * recipe.width * recipe.layers if spec.is_layered else 0
    return float(_OVERHEAD + 3 * (weights + messages))  # forward, and two products backward


def dataset_of(source: str | Dataset) -> Dataset:
    """The dataset itself; the last one loaded is at hand."""
    return source if isinstance(source, Dataset) else _loaded(source)


@lru_cache(maxsize=1)
def _loaded(source: str) -> Dataset:
    return load_dataset(source)
