"""What pruning does, on real data where it can be had: train APPNP on Cora unpruned, as in the paper, and by default.

Cora is small: its hops take no time to speak of. What pruning is worth in seconds is shown on a larger graph, made up.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from unifews.datasets.dataset import Dataset
from unifews.datasets.gencat import cora_like
from unifews.datasets.load import load_dataset
from unifews.datasets.powerlaw import powerlaw
from unifews.errors import MissingFileError
from unifews.propagation import propagate
from unifews.resources import Progress
from unifews.training.api import Watch, train
from unifews.training.result import warm_up
from unifews.training.spec import PAPER, TrainSpec

SEEDS = 3
SETTINGS: dict[str, dict[str, Any]] = {
    "unpruned": {},
    "paper's form": {"edge_sparsity": 0.5, **PAPER},
    "sparsified": {"edge_sparsity": 0.9, "weight_sparsity": 0.9},
}
NODES, EDGES, FEATURES = 100_000, 2_000_000, 128
SPARSITY = 0.9
_ROUNDS = 2

NEXT = """Next:
  unifews train citeseer --edge-sparsity 0.9 --weight-sparsity 0.9      another dataset; unifews data list shows them all
  unifews data convert --edges edges.csv --features x.npy --labels y.csv --out mine      your own, then unifews train mine
  unifews bench propagation --size arxiv      what larger graphs gain, beside torch"""

Say = Callable[[str], None]
Stage = Callable[[], AbstractContextManager[Say]]
Live = Callable[[str, int, int], AbstractContextManager[tuple[Progress | None, Watch | None]]]
"""Given what is trained, the first seed and how many: `progress` and `watch` of `train`."""


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
            f"In seconds larger graphs gain more: 20 hops on a generated one of {self.nodes:,} nodes and {self.edges:,} edges "
            f"took {self.unpruned:.2f} s unpruned and {self.pruned:.2f} s with {self.sparsity:.0%} of the entries removed."
        )


@dataclass(frozen=True)
class Result:
    data: str
    """What it was run on, in a sentence."""
    real: bool
    """Cora itself, not the stand-in."""
    records: list[dict[str, Any]]
    speed: Speed

    def to_dict(self) -> dict[str, Any]:
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
    """Train every case and time a larger graph. `dataset`, `size` and further settings of `train` make it smaller."""
    data, real, sentence = dataset, False, f"{dataset!r}."
    if data is None:
        with stage() as say:
            data, real, sentence = cora(say)
    warm_up()
    first = settings.get("seed", TrainSpec.seed)
    records = []
    for name, own in SETTINGS.items():
        with live(name, first, seeds) as (progress, watch):
            records.append(train(data, "appnp", seeds=seeds, progress=progress, watch=watch, **settings, **own).to_dict())
    with stage() as say:
        return Result(sentence, real, records, speed(say, *size))


def cora(say: Say) -> tuple[Dataset, bool, str]:
    """Cora from any source, else its stand-in; whether it is real; a sentence on which."""
    say("looking for Cora")
    try:
        data = load_dataset("cora-lcc")
    except MissingFileError as error:
        say("generating a stand-in for Cora")
        sentence = (
            f"Cora could not be had, so this is a generated stand-in with its statistics, which is easier than Cora: "
            f"accuracies are not Cora's. {error}"
        )
        return cora_like(), False, sentence
    return data, True, f"Cora itself, its largest component as in the paper (from: {data.about.source})."


def speed(say: Say, nodes: int, edges: int, features: int) -> Speed:
    """Unpruned against pruned on a generated graph, in turns, so that whatever else the machine does hits both alike."""
    say(f"generating a graph of {nodes:,} nodes")
    made = powerlaw(nodes, edges, num_features=features)
    seconds: dict[float, float] = {}
    for trial in range(_ROUNDS):
        for sparsity in (0.0, SPARSITY):
            say(f"propagating, round {trial + 1} of {_ROUNDS}: {f'{sparsity:.0%} removed' if sparsity else 'unpruned'}")
            began = perf_counter()
            propagate(made.graph, made.x, edge_sparsity=sparsity or None).embedding  # noqa: B018 - rotated back on access
            seconds[sparsity] = min(seconds.get(sparsity, float("inf")), perf_counter() - began)
    return Speed(made.graph.num_nodes, made.graph.num_edges, features, SPARSITY, seconds[0.0], seconds[SPARSITY])
