"""How fast is pruned propagation, against torch's sparse product (MKL) and against our own unpruned hops?

Everything is timed from feature matrix to embedding on the input axes: finding the basis, rotating, calibrating, all hops
and rotating back. Contestants take turns within one run.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.diffusion import Diffusion
from unifews.core.graph import Graph
from unifews.core.schemes import Appnp, Sgc
from unifews.datasets.powerlaw import powerlaw
from unifews.errors import InputError, unknown_name
from unifews.experiments.timing import interleave, peak_bytes, ratio, summary
from unifews.kernels import describe, threads_to_use
from unifews.propagation import propagate

if TYPE_CHECKING:
    from rich.console import Console

HOPS = 20
PAPER: dict[str, Any] = {"entries": "node", "basis": "input", "inherit": True}  # Algorithm 1's own form


@dataclass(frozen=True)
class Size:
    nodes: int
    edges: int
    features: int
    classes: int
    rival_hops: int
    """MKL hops actually run per trial; their time is scaled to 20."""


SIZES = {
    "tiny": Size(2_000, 20_000, 64, 8, HOPS),
    "small": Size(30_000, 600_000, 128, 16, HOPS),
    "arxiv": Size(169_343, 2_500_000, 128, 40, HOPS),
    "products": Size(2_400_000, 124_000_000, 100, 47, 1),
}


def run(size: str, trials: int = 5, verify: bool = False, progress: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Benchmark on a generated graph of a named size."""
    if size not in SIZES:
        raise unknown_name("size", size, SIZES)
    chosen = SIZES[size]
    if progress:
        progress(f"generating {chosen.nodes:,} nodes, {chosen.edges:,} edges, {chosen.features} features")
    made = powerlaw(chosen.nodes, chosen.edges, num_features=chosen.features, num_classes=chosen.classes)
    return measure(f"{size}-size (generated)", made.graph, made.x, trials, chosen.rival_hops, verify, progress)


def measure(
    name: str,
    graph: Graph,
    x: NDArray[np.float32],
    trials: int = 5,
    rival_hops: int = HOPS,
    verify: bool = False,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Benchmark on a given graph with dense features [n, f]."""
    if trials < 1:
        raise InputError(f"`trials` is how often each contestant runs, at least 1; got {trials}.")
    import torch

    threads = threads_to_use(None)
    torch.set_num_threads(threads)
    rival, dense = _torch_csr(graph), torch.from_numpy(np.ascontiguousarray(x))

    def rival_run() -> object:
        y = dense
        for _ in range(rival_hops):
            y = rival @ y
        return y

    def ours(**options: Any) -> Callable[[], object]:
        def call() -> object:
            return propagate(graph, x, hops=HOPS, **options).embedding

        return call

    hop_seconds: list[float] = []

    def plain_hops() -> object:
        out = propagate(graph, x, Sgc(skip="diagonal"), hops=max(rival_hops, 2))
        hop_seconds.append(float(np.median([hop.seconds for hop in out.trace.hops])))
        return out

    contestants: dict[str, Callable[[], object]] = {
        "torch": rival_run,
        "plain": plain_hops,
        "unpruned": ours(scheme=Appnp()),
        "0.9": ours(edge_sparsity=0.9),
        "0.95": ours(edge_sparsity=0.95),
        "node": ours(edge_sparsity=0.5, **PAPER),
        "unpruned sgc": ours(scheme=Sgc()),
        "node sgc": ours(scheme=Sgc(), edge_sparsity=0.5, **PAPER),
    }
    if progress:
        progress("warming up")
    rival_run(), contestants["0.9"]()
    times = interleave(contestants, trials, progress)
    rival_hop = [seconds / rival_hops for seconds in times["torch"]]
    rival_all = [seconds * HOPS for seconds in rival_hop]
    embedding = x.shape[0] * x.shape[1] * 4
    if progress:
        progress("memory and error")
    memory = peak_bytes(contestants["0.9"])
    exact = propagate(graph, x, hops=HOPS).embedding
    scale = float(np.linalg.norm(exact))
    quality = {}
    for sparsity in (0.9, 0.95):
        out = propagate(graph, x, hops=HOPS, edge_sparsity=sparsity)
        error = _distance(out.embedding, exact) / scale
        quality[f"{sparsity}"] = {
            "error": error,
            "sparsity": out.trace.edge_sparsity,
            "macs": out.trace.macs,
            "rank": out.trace.rank,
        }
    result: dict[str, Any] = {
        "name": name,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "features": int(x.shape[1]),
        "trials": trials,
        "machine": f"{platform.machine()}, {describe(threads)}, torch {torch.__version__}",
        "seconds": {key: summary(value) for key, value in times.items()},
        "rival_hop_seconds": summary(rival_hop),
        "hop_seconds": summary(hop_seconds),
        "ratios": {
            "unpruned hop vs torch.sparse": ratio(rival_hop, hop_seconds),
            f"{HOPS} hops at 0.9 vs {HOPS} torch.sparse hops": ratio(rival_all, times["0.9"]),
            f"{HOPS} hops at 0.95 vs {HOPS} torch.sparse hops": ratio(rival_all, times["0.95"]),
            "0.9 vs our own unpruned": ratio(times["unpruned"], times["0.9"]),
            "0.95 vs our own unpruned": ratio(times["unpruned"], times["0.95"]),
            "node entries, nested, 0.5, vs our own unpruned (APPNP)": ratio(times["unpruned"], times["node"]),
            "node entries, nested, 0.5, vs our own unpruned (SGC)": ratio(times["unpruned sgc"], times["node sgc"]),
        },
        "quality": quality,
        "peak_embeddings": None if memory is None else memory / embedding,
    }
    if rival_hops < HOPS:
        result["note"] = f"torch.sparse ran {rival_hops} hop(s) per trial; {HOPS} hops are {HOPS} times that."
    if verify:
        result["verified_error"] = _verify(graph, x)
    return result


def _torch_csr(graph: Graph) -> Any:
    """T with its diagonal as torch CSR with int32 indices, the layout MKL is quickest on."""
    import torch

    matrix = _with_loops(graph)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix[0].astype(np.int32)), torch.from_numpy(matrix[1]), torch.from_numpy(matrix[2]),
            (graph.num_nodes, graph.num_nodes), check_invariants=False,
        )  # fmt: skip


def _with_loops(graph: Graph) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
    """CSR arrays of T including the diagonal, float32, without passing through float64 (this is a large graph)."""
    diffusion = Diffusion(graph)
    n = graph.num_nodes
    indptr = graph.indptr + np.arange(n + 1)
    indices = np.empty(graph.num_edges + n, dtype=np.int32)
    values = np.empty(graph.num_edges + n, dtype=np.float32)
    own = indptr[1:] - 1  # the diagonal goes last in its row; CSR need not be sorted
    rest = np.ones(len(indices), dtype=bool)
    rest[own] = False
    weight = diffusion.source[graph.indices] * np.repeat(diffusion.target, graph.degree)
    values[rest] = weight if graph.weight is None else weight * graph.weight
    indices[rest] = graph.indices
    indices[own], values[own] = np.arange(n), diffusion.diagonal
    return indptr, indices, values


def _verify(graph: Graph, x: NDArray[np.float32]) -> float:
    """Relative error of three unpruned hops against scipy in float64, on a few columns."""
    few = x[:, : min(4, x.shape[1])]
    matrix = Diffusion(graph).to_scipy()
    want = matrix @ (matrix @ (matrix @ few.astype(np.float64)))
    got = propagate(graph, few, Sgc(skip="diagonal"), hops=3).embedding
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def _distance(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """‖a - b‖_F without a third matrix of that size."""
    total = 0.0
    for at in range(0, len(a), 65_536):
        part = (a[at : at + 65_536] - b[at : at + 65_536]).ravel()
        total += float(np.dot(part, part))
    return float(np.sqrt(total))


def render(result: dict[str, Any], console: Console) -> None:
    """The figures as a table."""
    from rich.table import Table

    title = f"{result['name']}: {result['nodes']:,} nodes, {result['edges']:,} edges, {result['features']} features"
    table = Table(title=title, title_justify="left", caption=f"{result['machine']}; median of {result['trials']}, interleaved")
    table.add_column("what")
    table.add_column("times faster", justify="right")
    table.add_column("lowest - highest", justify="right")
    for what, value in result["ratios"].items():
        table.add_row(what, f"{value['median']:.2f}x", f"{value['low']:.2f} - {value['high']:.2f}")
    console.print(table)
    for sparsity, value in result["quality"].items():
        console.print(
            f"at {sparsity}: {value['sparsity']:.3f} removed, {value['macs']:,} MACs, "
            f"relative error of the embedding {value['error']:.3f}"
        )
    one, ours = result["rival_hop_seconds"]["median"], result["hop_seconds"]["median"]
    console.print(f"one hop: torch.sparse {one * 1e3:.1f} ms, ours {ours * 1e3:.1f} ms")
    if result["peak_embeddings"] is not None:
        console.print(f"peak memory beyond graph and features: {result['peak_embeddings']:.2f} embeddings")
    for extra in ("note", "verified_error"):
        if extra in result:
            console.print(f"{extra.replace('_', ' ')}: {result[extra]}")
