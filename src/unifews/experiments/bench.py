"""Speed of pruned propagation, compared with torch's sparse product (MKL) and with our own unpruned hops; interleaved timing.

Times are from feature matrix to embedding in the input basis: computing the PCA basis, rotating, calibrating, all hops and
rotating back. Cases are run in turns, so that other load affects all alike.
"""

from __future__ import annotations

import gc
import platform
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.diffusion import Diffusion
from unifews.core.graph import Graph
from unifews.core.schemes import Appnp, Sgc
from unifews.datasets.powerlaw import powerlaw
from unifews.errors import InputError, unknown_name
from unifews.kernels import describe, threads_to_use
from unifews.kernels.buffers import release_memory
from unifews.propagation import propagate

if TYPE_CHECKING:
    from rich.console import Console

Measured = dict[str, Any]
"""Measured values by name, for JSON."""
Case = Callable[[], Any]
Spread = dict[str, float]
"""``{"median": …, "low": …, "high": …}``."""

HOPS = 20
MAX_ERROR = 0.05
PAPER: Measured = {"entries": "node", "basis": "input", "inherit": True}  # Algorithm 1


@dataclass(frozen=True)
class Size:
    nodes: int
    edges: int
    features: int
    classes: int
    torch_hops: int
    """MKL hops per trial; their time is scaled to 20."""


SIZES = {
    "tiny": Size(2_000, 20_000, 64, 8, HOPS),
    "small": Size(30_000, 600_000, 128, 16, HOPS),
    "arxiv": Size(169_343, 2_500_000, 128, 40, HOPS),
    "products": Size(2_400_000, 124_000_000, 100, 47, 1),
}


def run(size: str, trials: int = 5, verify: bool = False, progress: Callable[[str], None] | None = None) -> Measured:
    """Benchmark on a generated graph of a named size."""
    if size not in SIZES:
        raise unknown_name("size", size, SIZES)
    chosen = SIZES[size]
    if progress:
        progress(f"generating {chosen.nodes:,} nodes, {chosen.edges:,} edges, {chosen.features} features")
    made = powerlaw(chosen.nodes, chosen.edges, num_features=chosen.features, num_classes=chosen.classes)
    return measure(f"{size}-size (generated)", made.graph, made.x, trials, chosen.torch_hops, verify, progress)


def measure(
    name: str,
    graph: Graph,
    x: NDArray[np.float32],
    trials: int = 5,
    torch_hops: int = HOPS,
    verify: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Measured:
    """Benchmark on a given graph with dense features [n, f]."""
    if trials < 1:
        raise InputError(f"`trials` is the number of runs of each case, at least 1; got {trials}.")
    import torch

    report = progress or (lambda text: None)
    threads = threads_to_use(None)
    torch.set_num_threads(threads)
    hop_seconds: list[float] = []
    cases = _cases(graph, x, torch_hops, hop_seconds)
    report("warming up")
    cases["torch"](), cases["0.9"]()
    times = interleave(cases, trials, progress)
    torch_hop = [seconds / torch_hops for seconds in times["torch"]]
    report("memory and error")
    memory = peak_bytes(cases["0.9"])
    result: Measured = {
        "name": name,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "features": int(x.shape[1]),
        "trials": trials,
        "machine": f"{platform.machine()}, {describe(threads)}, torch {torch.__version__}",
        "seconds": {key: summary(value) for key, value in times.items()},
        "torch_hop_seconds": summary(torch_hop),
        "hop_seconds": summary(hop_seconds),
        "ratios": _ratios(times, torch_hop, hop_seconds),
        "quality": _quality(graph, x),
        "peak_embeddings": None if memory is None else memory / (x.shape[0] * x.shape[1] * 4),
    }
    if torch_hops < HOPS:
        result["note"] = f"torch.sparse ran {torch_hops} hop(s) per trial; {HOPS} hops are {HOPS} times that."
    if verify:
        result["verified_error"] = _verify(graph, x)
    return result


def _cases(graph: Graph, x: NDArray[np.float32], torch_hops: int, hop_seconds: list[float]) -> dict[str, Case]:
    """What is timed, by name; unpruned hops of our own also append the median time of a hop to `hop_seconds`."""
    import torch

    matrix, dense = _torch_csr(graph), torch.from_numpy(np.ascontiguousarray(x))

    def torch_sparse() -> object:
        y = dense
        for _ in range(torch_hops):
            y = matrix @ y
        return y

    def unpruned_hops() -> object:
        out = propagate(graph, x, Sgc(skip="diagonal"), hops=max(torch_hops, 2))
        hop_seconds.append(float(np.median([hop.seconds for hop in out.trace.hops])))
        return out

    def ours(**options: Any) -> Case:
        return lambda: propagate(graph, x, hops=HOPS, **options).embedding

    return {
        "torch": torch_sparse,
        "plain": unpruned_hops,
        "unpruned": ours(scheme=Appnp()),
        "max_error": ours(max_error=MAX_ERROR),
        "0.9": ours(edge_sparsity=0.9),
        "0.95": ours(edge_sparsity=0.95),
        "node": ours(edge_sparsity=0.5, **PAPER),
        "unpruned sgc": ours(scheme=Sgc()),
        "node sgc": ours(scheme=Sgc(), edge_sparsity=0.5, **PAPER),
    }


def _ratios(times: dict[str, list[float]], torch_hop: list[float], hop_seconds: list[float]) -> dict[str, Spread]:
    torch_all = [seconds * HOPS for seconds in torch_hop]
    return {
        "unpruned hop vs torch.sparse": ratio(torch_hop, hop_seconds),
        f"max_error={MAX_ERROR:g} vs {HOPS} torch.sparse hops": ratio(torch_all, times["max_error"]),
        f"max_error={MAX_ERROR:g} vs our own unpruned": ratio(times["unpruned"], times["max_error"]),
        f"{HOPS} hops at 0.9 vs {HOPS} torch.sparse hops": ratio(torch_all, times["0.9"]),
        f"{HOPS} hops at 0.95 vs {HOPS} torch.sparse hops": ratio(torch_all, times["0.95"]),
        "0.9 vs our own unpruned": ratio(times["unpruned"], times["0.9"]),
        "0.95 vs our own unpruned": ratio(times["unpruned"], times["0.95"]),
        "node entries, nested, 0.5, vs our own unpruned (APPNP)": ratio(times["unpruned"], times["node"]),
        "node entries, nested, 0.5, vs our own unpruned (SGC)": ratio(times["unpruned sgc"], times["node sgc"]),
    }


def _quality(graph: Graph, x: NDArray[np.float32]) -> Measured:
    """Relative error, sparsity and operations to an allowed error and by edge sparsity."""
    exact = propagate(graph, x, hops=HOPS).embedding
    norm = float(np.linalg.norm(exact))
    quality = {}
    cases: dict[str, Any] = {
        f"max_error={MAX_ERROR:g}": {"max_error": MAX_ERROR},
        **{f"{sparsity}": {"edge_sparsity": sparsity} for sparsity in (0.9, 0.95)},
    }
    for name, how in cases.items():
        out = propagate(graph, x, hops=HOPS, **how)
        error = _distance(out.embedding, exact) / norm
        trace = out.trace
        quality[name] = {"error": error, "sparsity": trace.edge_sparsity, "macs": trace.macs, "rank": trace.rank}
        if trace.estimated_error is not None:
            quality[name]["estimated_error"] = trace.estimated_error
    return quality


def _torch_csr(graph: Graph) -> Any:
    """T = D^-(1-r) (A + I) D^-r as torch CSR with int32 indices, the fastest layout for MKL, without a float64 copy."""
    import torch
    from scipy.sparse import eye_array

    diffusion, n = Diffusion(graph), graph.num_nodes
    rows = graph.to_scipy() + eye_array(n, dtype=np.float32, format="csr")
    rows.data *= diffusion.source[rows.indices] * np.repeat(diffusion.target, np.diff(rows.indptr))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        indptr, indices = (torch.from_numpy(array.astype(np.int32, copy=False)) for array in (rows.indptr, rows.indices))
        return torch.sparse_csr_tensor(indptr, indices, torch.from_numpy(rows.data), (n, n), check_invariants=False)


def _verify(graph: Graph, x: NDArray[np.float32]) -> float:
    """Relative error of three unpruned hops against scipy in float64, on a few columns."""
    few = x[:, : min(4, x.shape[1])]
    matrix = Diffusion(graph).to_scipy()
    want = matrix @ (matrix @ (matrix @ few.astype(np.float64)))
    got = propagate(graph, few, Sgc(skip="diagonal"), hops=3).embedding
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def _distance(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """‖a - b‖_F without a temporary of that size."""
    total = 0.0
    for at in range(0, len(a), 65_536):
        part = (a[at : at + 65_536] - b[at : at + 65_536]).ravel()
        total += float(np.dot(part, part))
    return float(np.sqrt(total))


def render(result: Measured, console: Console) -> None:
    """Print the measurements as a table."""
    from rich.table import Table

    title = f"{result['name']}: {result['nodes']:,} nodes, {result['edges']:,} edges, {result['features']} features"
    table = Table(title=title, title_justify="left", caption=f"{result['machine']}; median of {result['trials']}, interleaved")
    table.add_column("comparison")
    table.add_column("times faster", justify="right")
    table.add_column("lowest - highest", justify="right")
    for what, value in result["ratios"].items():
        table.add_row(what, f"{value['median']:.2f}x", f"{value['low']:.2f} - {value['high']:.2f}")
    console.print(table)
    for sparsity, value in result["quality"].items():
        estimate = f", {value['estimated_error']:.3f} estimated per column" if "estimated_error" in value else ""
        console.print(
            f"at {sparsity}: {value['sparsity']:.3f} removed, {value['macs']:,} MACs, "
            f"relative error of the embedding {value['error']:.3f}{estimate}"
        )
    one, ours = result["torch_hop_seconds"]["median"], result["hop_seconds"]["median"]
    console.print(f"one hop: torch.sparse {one * 1e3:.1f} ms, ours {ours * 1e3:.1f} ms")
    if result["peak_embeddings"] is not None:
        console.print(f"peak memory beyond graph and features: {result['peak_embeddings']:.2f} embeddings")
    for extra in ("note", "verified_error"):
        if extra in result:
            console.print(f"{extra.replace('_', ' ')}: {result[extra]}")


# --------------------------------------------------------------------------------------------------------------------- timing


def interleave(cases: dict[str, Case], trials: int, progress: Callable[[str], None] | None = None) -> dict[str, list[float]]:
    """Seconds of each case, `trials` times in turns, so that other load affects all alike."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for trial in range(trials):
        for name, run in cases.items():
            if progress:
                progress(f"trial {trial + 1} of {trials}: {name}")
            gc.collect()
            began = perf_counter()
            result = run()
            took = perf_counter() - began
            del result
            times[name].append(took)
    return times


def summary(seconds: list[float]) -> Spread:
    return {"median": statistics.median(seconds), "low": min(seconds), "high": max(seconds)}


def ratio(baseline: list[float], ours: list[float]) -> Spread:
    """How many times faster `ours` is: ratio of medians, with the lowest and highest ratio of any one trial."""
    each = [a / b for a, b in zip(baseline, ours, strict=True)]
    return {"median": statistics.median(baseline) / statistics.median(ours), "low": min(each), "high": max(each)}


def peak_bytes(run: Case) -> int | None:
    """Peak memory of a call beyond what was allocated before it; None where the system does not report it."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not (status.exists() and reset.exists()):
        return None
    gc.collect()
    release_memory()  # memory kept for this call counts as its own
    reset.write_text("5")  # reset the high-water mark
    before = _kilobytes(status, "VmRSS")
    result = run()
    peak = _kilobytes(status, "VmHWM") - before
    del result
    return peak * 1024


def _kilobytes(status: Path, name: str) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])
