"""What pruning does to one graph: cost, error and what a classifier makes of the result. Needs no download and no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unifews.datasets.generate import powerlaw
from unifews.datasets.splits import Split, split_stratified
from unifews.propagation import Propagated, propagate

if TYPE_CHECKING:
    from rich.table import Table

NODES, EDGES, FEATURES, CLASSES = 100_000, 2_000_000, 128, 16
SEED = 907
TRIALS = 2

PAPER: dict[str, Any] = {"entries": "node", "basis": "input", "inherit": True}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("unpruned", {}),
    ("edge_sparsity=0.5", {"edge_sparsity": 0.5}),
    ("edge_sparsity=0.9", {"edge_sparsity": 0.9}),
    ("edge_sparsity=0.95", {"edge_sparsity": 0.95}),
    ("paper's form, 0.5", {"edge_sparsity": 0.5, **PAPER}),
]

AFTER = (
    "Seconds: the fastest of two rounds, finding the axes and rotating back included. Larger graphs gain more.\n"
    "Try it on your own graph, edges as 'source,target' lines:\n"
    "  unifews propagate edges.csv --features x.npy --undirected --edge-sparsity 0.9 --out p.npy"
)


@dataclass(frozen=True)
class Row:
    """One way to propagate, measured."""

    name: str
    removed: float
    """Share of the products removed."""
    macs: int
    seconds: float
    """From features to embedding, the fastest round."""
    error: float
    """‖P̂ - P‖ / ‖P‖ against the unpruned embedding P."""
    accuracy: float
    """Of ridge regression on the embedding, test nodes."""


@dataclass(frozen=True)
class Result:
    num_nodes: int
    num_edges: int
    num_features: int
    kernel: str
    rows: list[Row]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def run(say: Callable[[str], None] = lambda text: None) -> Result:
    """Generate the graph and measure every case on it, always with the same seed."""
    say("generating a graph")
    data = powerlaw(NODES, EDGES, num_features=FEATURES, num_classes=CLASSES, seed=SEED)
    split = split_stratified(data.y, seed=SEED)
    seconds: dict[str, float] = {}
    outs: dict[str, Propagated] = {}
    for trial in range(TRIALS):  # in rounds, so that whatever else the machine does hits all cases alike
        for name, options in CASES:
            say(f"round {trial + 1} of {TRIALS}: {name}")
            began = perf_counter()
            outs[name] = propagate(data.graph, data.x, **options)
            outs[name].embedding  # noqa: B018 - rotated back on first access
            seconds[name] = min(seconds.get(name, np.inf), perf_counter() - began)
    say("training classifiers")
    exact = outs[CASES[0][0]].embedding
    rows = []
    for name, out in outs.items():
        embedding, trace = out.embedding, out.trace
        error = float(np.linalg.norm(embedding - exact) / np.linalg.norm(exact))
        accuracy = ridge_accuracy(embedding, data.y, split)
        rows.append(Row(name, trace.edge_sparsity, trace.macs, seconds[name], error, accuracy))
    return Result(data.graph.num_nodes, data.graph.num_edges, FEATURES, outs[name].trace.kernel, rows)


def ridge_accuracy(embedding: NDArray[np.float32], y: NDArray[np.int64], split: Split) -> float:
    """Test accuracy of ridge regression onto one-hot labels, in closed form, on columns standardised by training rows."""
    train, _, test = split
    mean, scale = embedding[train].mean(axis=0), embedding[train].std(axis=0) + 1e-12
    rows = ((embedding - mean) / scale).astype(np.float64)
    onehot = np.eye(int(y.max()) + 1)[y[train]]
    gram = rows[train].T @ rows[train] + 1e-3 * len(train) * np.eye(rows.shape[1])
    weight = np.linalg.solve(gram, rows[train].T @ (onehot - onehot.mean(axis=0)))
    guess = (rows[test] @ weight + onehot.mean(axis=0)).argmax(axis=1)
    return float((guess == y[test]).mean())


def before(result: Result) -> str:
    return (
        f"APPNP, 20 hops, on a generated graph of {result.num_nodes:,} nodes, {result.num_edges:,} edges and "
        f"{result.num_features} features ({result.kernel}).\n"
        "Pruned: entries too small to matter are skipped. Accuracy: ridge regression on the embedding, test nodes."
    )


def table(result: Result) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("propagate(...)", no_wrap=True)
    for name in ("removed", "MACs", "seconds", "speed-up", "error", "accuracy"):
        table.add_column(name, justify="right", no_wrap=True)
    full = result.rows[0].seconds
    for row in result.rows:
        table.add_row(
            row.name, f"{row.removed:.1%}", f"{row.macs / 1e6:,.0f} M", f"{row.seconds:.3f}", f"{full / row.seconds:.1f}x",
            f"{row.error:.3f}", f"{row.accuracy:.1%}",
        )  # fmt: skip
    return table

