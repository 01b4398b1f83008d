"""The demo: APPNP on Cora, unpruned, in the paper's form and with the default settings; then seconds on a larger graph.

Cora is too small for its hops to take measurable time, so the speed-up is measured on a generated graph.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from unifews.datasets.dataset import Dataset
from unifews.datasets.gencat import cora_like
from unifews.datasets.load import load_dataset
from unifews.datasets.powerlaw import powerlaw
from unifews.errors import MissingFileError
from unifews.experiments.bench import interleave
from unifews.propagation import propagate
from unifews.resources import Progress
from unifews.training.api import Watch, train
from unifews.training.result import warm_up
from unifews.training.spec import PAPER, TrainSpec

SEEDS = 3
Settings = dict[str, Any]
SETTINGS: dict[str, Settings] = {
    "unpruned": {},
    "paper's form": {"edge_sparsity": 0.5, **PAPER},
    "sparsified": {"edge_sparsity": 0.9, "weight_sparsity": 0.9},
}
NODES, EDGES, FEATURES = 100_000, 2_000_000, 128
SPARSITY = 0.9
_ROUNDS = 2

NEXT = """Next:
  unifews train citeseer --edge-sparsity 0.9 --weight-sparsity 0.9      another dataset; see unifews data list
  unifews data convert --edges edges.csv --features x.npy --labels y.csv --out mine      your own data, then unifews train mine
  unifews bench propagation --size arxiv      speed on a larger graph, compared with torch"""

Report = Callable[[str], None]
Stage = Callable[[], AbstractContextManager[Report]]
Live = Callable[[str, int, int], AbstractContextManager[tuple[Progress | None, Watch | None]]]
"""Given the case, the first seed and the number of seeds: `progress` and `watch` of `train`."""


@dataclass(frozen=True)
class Speed:
    """Seconds from features to embedding on a generated graph, the faster of two rounds."""

    nodes: int
    edges: int
    features: int
    sparsity: float
    unpruned: float
    pruned: float

    def __str__(self) -> str:
        return (
            f"Larger graphs gain more time: 20 hops on a generated graph of {self.nodes:,} nodes and {self.edges:,} edges "
            f"took {self.unpruned:.2f} s unpruned and {self.pruned:.2f} s with {self.sparsity:.0%} of the entries removed."
        )


@dataclass(frozen=True)
class Result:
    data: str
    """Description of the dataset."""
    real: bool
    """Whether it is Cora, not a generated substitute."""
    records: list[Settings]
    speed: Speed

    def to_dict(self) -> Settings:
        return {"data": self.data, "real": self.real, "runs": self.records, "speed": asdict(self.speed)}


def run(
    stage: Stage = lambda: nullcontext(lambda text: None),
    live: Live = lambda what, seed, seeds: nullcontext((None, None)),
    *,
    dataset: Dataset | None = None,
    seeds: int = SEEDS,
    size: tuple[int, int, int] = (NODES, EDGES, FEATURES),
    **settings: Any,
) -> Result:
    """Train every case and time a larger graph. `dataset`, `size` and settings of `train` can make it smaller."""
    data, real, about = dataset, False, f"{dataset!r}."
    if data is None:
        with stage() as report:
            data, real, about = cora(report)
    warm_up()
    first = settings.get("seed", TrainSpec.seed)
    records = []
    for name, own in SETTINGS.items():
        with live(name, first, seeds) as (progress, watch):
            records.append(train(data, "appnp", seeds=seeds, progress=progress, watch=watch, **settings, **own).to_dict())
    with stage() as report:
        return Result(about, real, records, speed(report, *size))


def cora(report: Report) -> tuple[Dataset, bool, str]:
    """Cora or a generated substitute; whether it is Cora; a description."""
    report("looking for Cora")
    try:
        data = load_dataset("cora-lcc")
    except MissingFileError as error:
        report("generating a substitute for Cora")
        about = (
            f"Cora is not available, so this is a generated graph with its statistics, which is easier than Cora: "
            f"accuracies are not Cora's. {error}"
        )
        return cora_like(), False, about
    return data, True, f"Cora, its largest component as in the paper (from: {data.about.source})."


def speed(report: Report, nodes: int, edges: int, features: int) -> Speed:
    """Unpruned and pruned propagation on a generated graph, interleaved, so that other load affects both alike."""
    report(f"generating a graph of {nodes:,} nodes")
    made = powerlaw(nodes, edges, num_features=features)
    cases = {
        "unpruned": lambda: propagate(made.graph, made.x).embedding,
        f"{SPARSITY:.0%} removed": lambda: propagate(made.graph, made.x, edge_sparsity=SPARSITY).embedding,
    }
    unpruned, pruned = map(min, interleave(cases, _ROUNDS, report).values())
    return Speed(made.graph.num_nodes, made.graph.num_edges, features, SPARSITY, unpruned, pruned)
