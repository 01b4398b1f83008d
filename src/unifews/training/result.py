"""What `train` returns: scores and their spread, the trace, the model, and the record for the ledger."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from unifews import __version__
from unifews.core.trace import Trace
from unifews.deprecation import renamed_names
from unifews.nn.trace import ModelTrace
from unifews.training.metrics import NAMES
from unifews.training.record import Record
from unifews.training.spec import TrainSpec

if TYPE_CHECKING:
    from torch.nn import Module

    from unifews.datasets.dataset import Dataset

FORMAT = 1


@dataclass(frozen=True)
class Fitted:
    """Scores in percent at the best epoch on validation, each set evaluated once, and the time that training took."""

    train: float
    val: float
    test: float
    epoch: int
    epochs: int
    seconds: float


@dataclass(frozen=True)
class SeedResult(Fitted):
    """The result of one seed."""

    seed: int
    kept: tuple[int, ...]
    """Weights kept in each layer."""
    trace: ModelTrace | None = None
    """Of the evaluated pass, where layers propagate: accuracy and cost belong together."""

    @classmethod
    def of(cls, values: Record) -> SeedResult:
        """From the values of `asdict`, as a file has them."""
        own = {item.name: values[item.name] for item in fields(cls) if item.name in values}
        trace = values.get("trace")
        return cls(**own | {"kept": tuple(values["kept"]), "trace": None if trace is None else ModelTrace.of(trace)})

    def to_dict(self) -> Record:
        """The seed's part of the record."""
        record = self.__dict__ | {"kept": list(self.kept)}
        trace = record.pop("trace")
        if trace is not None:
            record |= {"macs": trace.macs, "transform_macs": trace.transform_macs, "edge_sparsity": trace.edge_sparsity}
            record["trace"] = _lists(asdict(trace))  # for other runs with this seed
        return record


def _lists(value: Any) -> Any:
    """Tuples as lists, as JSON returns them."""
    if isinstance(value, dict):
        return {name: _lists(part) for name, part in value.items()}
    return [_lists(part) for part in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class Scores:
    """Percent, mean over seeds; `std` is the test score's standard deviation over them."""

    train: float
    val: float
    test: float
    std: float

    @classmethod
    def of(cls, seeds: list[SeedResult]) -> Scores:
        train, val, test = ([getattr(seed, name) for seed in seeds] for name in ("train", "val", "test"))
        return cls(fmean(train), fmean(val), fmean(test), pstdev(test))

    def __str__(self) -> str:
        return f"{self.test:.1f} ± {self.std:.1f}"


@dataclass(frozen=True)
class TrainResult:
    """A finished training."""

    spec: TrainSpec
    id: str
    metric: str
    seeds: list[SeedResult]
    trace: Trace
    """The edge products and weights kept of the unpruned model's, and the cost of classifying all nodes."""
    head: tuple[int, ...]
    """Weights of each layer of the head with none removed: fewer than the unpruned model's on fewer principal components."""
    dataset: dict[str, str | int]
    propagate_seconds: float
    """From features to the input of the head, once for all seeds."""
    model: Module | None = field(default=None, repr=False, compare=False)
    """The model of the best seed on validation, among those trained by this call: of seeds finished before an interruption
    only the scores are known."""
    finished: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def accuracy(self) -> Scores:
        """By the dataset's metric: accuracy, micro-F1 or ROC-AUC."""
        return Scores.of(self.seeds)

    @property
    def head_sparsity(self) -> float:
        """Fraction of the head's own weights removed; `trace.weight_sparsity` is that of the unpruned model's."""
        return 1 - fmean(sum(seed.kept) for seed in self.seeds) / sum(self.head)

    @property
    def train_seconds(self) -> float:
        """Training the head, mean over seeds."""
        return fmean(seed.seconds for seed in self.seeds)

    def to_dict(self) -> Record:
        """The record of the ledger."""
        scores = self.accuracy
        return {
            "format": FORMAT,
            "id": self.id,
            "finished": self.finished,
            "spec": self.spec.to_dict(),
            "dataset": self.dataset,
            "metric": self.metric,
            "scores": {"train": scores.train, "val": scores.val, "test": scores.test, "test_std": scores.std},
            "seeds": [seed.to_dict() for seed in self.seeds],
            "seconds": {"propagate": self.propagate_seconds, "train": self.train_seconds},
            "trace": self.trace.to_dict(),
            "head": {"weights": list(self.head), "sparsity": self.head_sparsity},
            "versions": versions(),
            "machine": machine(),
        }

    def __str__(self) -> str:
        what = f"{self.spec.model} on {self.spec.dataset}: {NAMES[self.metric]} {self.accuracy}"
        seeds = f" over {len(self.seeds)} seeds" if len(self.seeds) > 1 else ""
        error = self.trace.estimated_error
        return (
            f"{what}{seeds}; {'' if error is None else f'estimated error {error:.2g}; '}"
            f"{self.trace.edge_sparsity:.1%} of edge entries and {self.trace.weight_sparsity:.1%} of weights "
            f"removed; {self.trace.macs:,} + {self.trace.transform_macs:,} MACs"
        )


def describe(data: Dataset) -> dict[str, str | int]:
    """The dataset's part of the record."""
    return {
        "name": data.name,
        "source": data.about.source,
        "nodes": data.num_nodes,
        "edges": data.graph.num_edges,
        "features": data.num_features,
        "classes": data.num_classes,
    }


def versions() -> dict[str, str]:
    found = {"unifews": __version__, **({"commit": made} if (made := commit()) else {}), "python": platform.python_version()}
    for name in ("numpy", "scipy", "torch", "torch_geometric"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@cache
def commit() -> str | None:
    """The commit of the checkout that this package runs from, "-dirty" if something was changed since; None outside of one."""
    home = next((folder for folder in Path(__file__).resolve().parents if (folder / ".git").exists()), None)
    if home is None or not (home / "src" / "unifews").is_dir():
        return None
    try:
        command = ["git", "-C", str(home), "describe", "--always", "--dirty", "--exclude", "*"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def machine() -> dict[str, str | int]:
    from unifews.kernels import describe, threads_to_use
    from unifews.resources import cores

    kernel = describe(threads_to_use(None))
    return {"system": platform.system(), "processor": processor(), "cores": cores(), "kernel": kernel}


@cache
def processor() -> str:
    """Its architecture, and its model where the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{platform.machine()} ({model})" if model else platform.machine()


def machine_words(record: Mapping[str, Any]) -> str:
    """The machine that a record was made on, on one line."""
    machine = record["machine"]
    return f"{machine['system']} {machine['processor']}, {machine['cores']} cores, {machine['kernel']}"


def version_words(record: Mapping[str, Any]) -> str:
    """What it was made with: "unifews 0.1.0, torch 2.13.0"."""
    return ", ".join(f"{name} {number}" for name, number in record["versions"].items())


@cache
def warm_up() -> None:
    """Propagate and train something tiny, once per process, so that imports on first use are not part of a measured time."""
    import numpy as np
    import torch

    from unifews.core.graph import Graph
    from unifews.datasets.dataset import Split
    from unifews.nn.decoupled import Mlp
    from unifews.propagation import propagate
    from unifews.training.loop import fit
    from unifews.training.recipe import Recipe, WeightPruning

    nodes = np.arange(12)
    x = np.eye(12, 4, dtype=np.float32) + 1
    propagate(Graph.from_edge_index(np.stack([nodes, (nodes + 1) % 12])).undirected(), x, hops=2, edge_sparsity=0.5).embedding  # noqa: B018
    with torch.random.fork_rng(devices=[]):
        head = Mlp(4, 2, width=2)
        split = Split(nodes[:6], nodes[6:9], nodes[9:])
        fit(head, torch.from_numpy(x), nodes % 2, split, Recipe(width=2, epochs=2), pruning=WeightPruning(0.5))


@cache
def warm_up_layers() -> None:
    """The same for models whose layers propagate; imports PyG."""
    import torch

    from unifews.nn.models import build
    from unifews.nn.sparsify import sparsify

    with torch.random.fork_rng(devices=[]):
        model = sparsify(build("gcn", 4, 2, width=4), edge_sparsity=0.5, weight_sparsity=0.5, ramp=1)
        ends = torch.arange(12)
        for _ in range(2):
            model(torch.eye(12, 4) + 1, torch.stack([ends, (ends + 1) % 12])).sum().backward()


__getattr__ = renamed_names(__name__, {"Run": f"{__name__}.TrainResult"})
