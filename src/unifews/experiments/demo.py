"""The demo: APPNP on Cora, unpruned, in the paper's form and with the default settings; then seconds on a larger graph.

Cora is too small for its hops to take measurable time, so the speed-up is measured on a generated graph.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from unifews.datasets.dataset import Dataset
from unifews.datasets.gencat import cora_like
from unifews.datasets.load import load_dataset
from unifews.datasets.powerlaw import powerlaw
from unifews.errors import MissingFileError
from unifews.experiments.bench import HOPS, MAX_ERROR, interleave
from unifews.propagation import propagate
from unifews.propagation.result import Propagated
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
_ROUNDS = 3

NEXT = """Next:
  unifews train citeseer --edge-sparsity 0.9 --weight-sparsity 0.9      another dataset; see unifews data list
  unifews train pubmed --max-error 0.05      as few hops as an error of 5 % needs
  unifews data convert --edges edges.csv --features x.npy --labels y.csv --out mine      your own data, then unifews train mine
  unifews bench propagation --size arxiv      speed on a larger graph, compared with torch"""

Report = Callable[[str], None]
Stage = Callable[[], AbstractContextManager[Report]]
Live = Callable[[str, int, int], AbstractContextManager[tuple[Progress | None, Watch | None]]]
"""Given the case, the first seed and the number of seeds: `progress` and `watch` of `train`."""


@dataclass(frozen=True)
class Speed:
    """Seconds from features to embedding on a generated graph, the fastest of several rounds."""

    nodes: int
    edges: int
    features: int
    sparsity: float
    unpruned: float
    pruned: float
    max_error: float
    by_error: float
    """Seconds of the propagation to an allowed error."""
    hops: int
    """Of that propagation."""
    estimated_error: float
    error: float
    """Measured, ‖P̂ - P‖_F / ‖P‖_F."""
    pruned_error: float
    """The same where entries are removed."""

    @property
    def heading(self) -> str:
        return f"APPNP on a generated graph of {self.nodes:,} nodes, {self.edges:,} edges and {self.features} features:"

    @property
    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """By line: what ran, its hops, seconds, how many times faster than unpruned, and its error."""
        return [
            ("unpruned", f"{HOPS}", f"{self.unpruned:.2f}", "", "0"),
            (
                f"max_error={self.max_error:g}",
                f"{self.hops}",
                f"{self.by_error:.2f}",
                f"{self.unpruned / self.by_error:.1f}x",
                f"{self.error:.3f} (estimate per column: {self.estimated_error:.3f})",
            ),
            (
                f"edge_sparsity={self.sparsity:g}",
                f"{HOPS}",
                f"{self.pruned:.2f}",
                f"{self.unpruned / self.pruned:.1f}x",
                f"{self.pruned_error:.3f}",
            ),
        ]

    def __str__(self) -> str:
        return (
            f"Larger graphs gain time: {HOPS} hops on a generated graph of {self.nodes:,} nodes and {self.edges:,} edges took "
            f"{self.unpruned:.2f} s unpruned and {self.by_error:.2f} s with max_error={self.max_error:g} "
            f"({self.unpruned / self.by_error:.1f}x: {self.hops} hops are enough for an error of {self.error:.3f}; "
            f"{self.estimated_error:.3f} was estimated per column). With {self.sparsity:.0%} of the entries removed they took "
            f"{self.pruned:.2f} s."
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
    """Unpruned, to an allowed error and pruned, on a generated graph, in turns, so that other load affects all alike."""
    report(f"generating a graph of {nodes:,} nodes")
    made = powerlaw(nodes, edges, num_features=features)
    found: dict[str, Propagated] = {}

    def case(name: str, **how: Any) -> Callable[[], Any]:
        def run() -> Any:
            found[name] = propagate(made.graph, made.x, hops=HOPS, **how)
            return found[name].embedding

        return run

    cases = {
        "unpruned": case("unpruned"),
        "allowed error": case("allowed error", max_error=MAX_ERROR),
        "removed": case("removed", edge_sparsity=SPARSITY),
    }
    unpruned, by_error, pruned = map(min, interleave(cases, _ROUNDS, report).values())
    out, exact = found["allowed error"], found["unpruned"].embedding
    error, pruned_error = (
        float(np.linalg.norm(each.embedding - exact) / np.linalg.norm(exact)) for each in (out, found["removed"])
    )
    hops = HOPS if out.plan is None else max(out.plan.hops)
    graph = made.graph
    return Speed(
        *(graph.num_nodes, graph.num_edges, features, SPARSITY, unpruned, pruned),
        *(MAX_ERROR, by_error, hops, out.error, error, pruned_error),
    )
