"""How fast is `propagate(max_error=...)`? From features to embedding, against our own unpruned hops and other libraries.

python benchmarks/tolerance.py                          # the graph of ogbn-arxiv and five small ones
python benchmarks/tolerance.py --graphs products        # 2.4 M nodes, 120 M edges, 96 features
python benchmarks/tolerance.py --old ~/old/bin/python   # and unpruned hops of another installed version
pip install ".[bench]"                                  # adds sparse-dot-mkl as a peer; dgl is one where it is installed

All cases of a graph run in turns; a ratio is that of medians, with the lowest and highest of any one trial. Everything is
included: checks of the input, the plan, hops, the sum. Errors are measured, not estimated (‖P̂ - P‖_F / ‖P‖_F in brackets).
Memory of one call is used again by the next (`unifews.kernels.buffers`), so these are figures of a process that has propagated
before. "First call" is the median of the first calls of new processes, where memory is new and threads are started.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from data import SMOKE, arguments, load
from rich.console import Console
from rich.table import Table

import unifews as uf
from unifews.core.diffusion import Diffusion
from unifews.experiments.bench import interleave, peak_bytes, ratio, summary

HOPS = 20
SMALL = "cora-lcc,citeseer,pubmed,photo,cs"
PRODUCTS = {"num_nodes": 2_400_000, "num_edges": 120_000_000, "num_features": 96, "seed": 907}


def graph_of(name: str) -> tuple[uf.Graph, Any]:
    if name == SMOKE:
        made = uf.powerlaw(2_000, 20_000, num_features=40)
        return made.graph, made.x
    if name.startswith("products"):
        _, _, homophily = name.partition("-")
        made = uf.powerlaw(**PRODUCTS, **({"homophily": float(homophily)} if homophily else {}))
        return made.graph, made.x
    real = load(name)
    return real.graph, real.x


def fresh(graph: uf.Graph) -> uf.Graph:
    """The same arrays in a new object, so that nothing is known of it yet."""
    return uf.Graph(graph.indptr, graph.indices, graph.weight)


def cases(graph: uf.Graph, x: Any) -> dict[str, Callable[[], Any]]:
    def ours(scheme: Any = "appnp", **how: Any) -> Callable[[], Any]:
        return lambda: uf.propagate(fresh(graph), x, scheme, **how).embedding

    power = uf.Sgc(skip="diagonal")
    return {
        "unpruned": ours(),
        "max_error .05": ours(max_error=0.05),
        "max_error .01": ours(max_error=0.01),
        "PageRank, infinitely many hops, .05": ours(uf.PersonalizedPageRank(0.1), max_error=0.05),
        "T^20, unpruned": ours(power),
        "T^20, max_error .05": ours(power, max_error=0.05),
        "identity skip, unpruned": ours("sgc"),
        "identity skip, max_error .05": ours("sgc", max_error=0.05),
    }


def other_libraries(graph: uf.Graph, x: Any) -> dict[str, Callable[[], Any]]:
    """APPNP by torch's CSR product and, if it is installed, by MKL through sparse-dot-mkl; T is made beforehand."""
    import torch

    t = Diffusion(graph).to_scipy().astype(np.float32)
    dense = np.ascontiguousarray(x.toarray() if hasattr(x, "tocsr") else x, dtype=np.float32)

    def hops(times: Callable[[Any], Any], start: Any) -> Any:
        z = start
        for _ in range(HOPS):
            z = 0.9 * times(z) + 0.1 * start
        return z

    rows, columns, values = (torch.from_numpy(np.asarray(part)) for part in (t.indptr, t.indices, t.data))
    csr, features = torch.sparse_csr_tensor(rows, columns, values, t.shape), torch.from_numpy(dense)
    found: dict[str, Callable[[], Any]] = {"torch CSR": lambda: hops(lambda z: csr @ z, features)}
    library = next(Path(sys.prefix, "lib").glob("libmkl_rt.so*"), None)
    if library:  # where pip puts it, and sparse-dot-mkl does not look
        os.environ.setdefault("MKL_RT", str(library))
    try:
        from scipy.sparse import csr_matrix
        from sparse_dot_mkl import dot_product_mkl
    except ImportError:
        return found
    matrix = csr_matrix((t.data, t.indices, t.indptr), t.shape)
    return {**found, "sparse-dot-mkl": lambda: hops(lambda z: dot_product_mkl(matrix, z), dense)}


def more_libraries(graph: uf.Graph, x: Any) -> dict[str, Callable[[], Any]]:
    """dgl's product, features scaled beforehand, and scipy's function of a matrix on 2 columns, if they import."""
    found: dict[str, Callable[[], Any]] = {}
    dense = np.ascontiguousarray(x.toarray() if hasattr(x, "tocsr") else x, dtype=np.float32)
    try:
        import dgl
        import torch

        rows = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
        made = dgl.graph((torch.from_numpy(np.asarray(graph.indices, dtype=np.int64)), torch.from_numpy(rows)))
        made = dgl.add_self_loop(made) if made.num_nodes() == graph.num_nodes else made
        start = torch.from_numpy(dense)
        scale = (made.in_degrees().float() ** -0.5)[:, None]

        def product() -> Any:
            z = start
            for _ in range(HOPS):
                z = 0.9 * scale * dgl.ops.copy_u_sum(made, scale * z) + 0.1 * start
            return z

        found["dgl"] = product
    except Exception as error:
        print(f"dgl: not measured ({type(error).__name__})")
    try:
        from scipy.sparse.linalg import funm_multiply_krylov

        t = Diffusion(graph).to_scipy().astype(np.float64)
        solve = lambda m: 0.1 * np.linalg.inv(np.eye(len(m)) - 0.9 * m)  # noqa: E731
        found["scipy funm_multiply_krylov, 2 columns"] = lambda: [
            funm_multiply_krylov(solve, t, dense[:, k].astype(np.float64), assume_a="hermitian", rtol=0.05) for k in range(2)
        ]
    except ImportError:
        print("scipy has no funm_multiply_krylov")
    return found


def first_calls(name: str, case: str, python: str = sys.executable, count: int = 3) -> list[float]:
    """Seconds of the first call in each of several new processes."""
    command = [python, __file__, "--first", case, "--graphs", name]
    return [float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(count)]


def hop_seconds(graph: uf.Graph, x: Any, trials: int) -> dict[str, float]:
    """Of the second hop of a recurrence, in each row format; the least of several."""
    found = {}
    for format in ("float32", "bfloat16", "int8", "int4"):
        runs = [uf.propagate(graph, x, max_error=0.2, degree=3, precision=format) for _ in range(trials)]
        found[format] = min(run.trace.hops[1].seconds for run in runs)
    return found


BASELINES = {"T^20, max_error .05": "T^20, unpruned", "identity skip, max_error .05": "identity skip, unpruned"}


def measure(name: str, trials: int, peers: bool, console: Console, old: str | None = None) -> dict[str, Any]:
    graph, x = graph_of(name)
    runs = cases(graph, x)
    for run in runs.values():
        run()
    times = interleave(runs, trials)
    if peers:  # in turns with one of ours only: their threads wait busily for a while after each call
        others = {"max_error .05": runs["max_error .05"], **other_libraries(graph, x), **more_libraries(graph, x)}
        both = interleave(others, trials)
        ours = both.pop("max_error .05")
        for peer, seconds in both.items():
            speed = ratio(seconds, ours)
            console.print(f"{peer}: {_milliseconds(seconds)} ms; max_error .05 is {_times(speed)} as fast")
    table = Table(title=f"{name}: {graph!r}, {x.shape[1]:,} features", title_justify="left")
    for title in ("case", "ms", "against unpruned", "error", "hops and format", "peak memory, embeddings"):
        table.add_column(title)
    result: dict[str, Any] = {"graph": name, "cases": {}}
    for case, seconds in times.items():
        base = BASELINES.get(case, "unpruned")
        speed = ratio(times[base], seconds)
        row: dict[str, Any] = {"seconds": summary(seconds), "ratio": speed, **_quality(graph, x, case)}
        row["peak"] = (peak_bytes(runs[case]) or 0) / (4 * graph.num_nodes * x.shape[1])
        result["cases"][case] = row
        table.add_row(
            case,
            _milliseconds(seconds),
            _times(speed),
            row.get("error", ""),
            row.get("plan", ""),
            f"{row['peak']:.1f}",
        )
    console.print(table)
    if name != SMOKE:
        for case in ("unpruned", "max_error .05"):
            result["cases"][case]["first"] = first_calls(name, case)
        slow, fast = (result["cases"][case]["first"] for case in ("unpruned", "max_error .05"))
        first = f"first call of a process: unpruned {_milliseconds(slow)} ms, max_error .05 {_milliseconds(fast)} ms"
        console.print(f"{first}, {_times(ratio(slow, fast))}")
    if old:
        before, now = (first_calls(name, "unpruned, later", python, trials) for python in (old, sys.executable))
        console.print(f"unpruned, {old}: {_milliseconds(before)} ms, now {_milliseconds(now)} ms, {_times(ratio(before, now))}")
    result["hop"] = hop_seconds(graph, x, trials)
    console.print("second hop: " + ", ".join(f"{1e3 * seconds:.2f} ms in {each}" for each, seconds in result["hop"].items()))
    return result


def print_first(name: str, case: str) -> None:
    """Seconds of the first call of this process, or of a later one."""
    graph, x = graph_of(name)
    run = cases(graph, x)[case.removesuffix(", later")]
    for _ in range(3 if case.endswith(", later") else 0):
        run()
    began = time.perf_counter()
    run()
    print(time.perf_counter() - began)


def _milliseconds(seconds: list[float]) -> str:
    return f"{1e3 * summary(seconds)['median']:.1f}"


def _times(speed: dict[str, float]) -> str:
    return f"{speed['median']:.2f}x ({speed['low']:.2f} - {speed['high']:.2f})"


def _quality(graph: uf.Graph, x: Any, case: str) -> dict[str, str]:
    """True error and plan of a case with max_error."""
    if "max_error" not in case:
        return {}
    scheme: Any = uf.Sgc(skip="diagonal") if "T^20" in case else "sgc" if "identity" in case else "appnp"
    out = uf.propagate(graph, x, scheme, max_error=float(case.rsplit(" ", 1)[-1]))
    whole = uf.propagate(graph, x, scheme).embedding
    error = float(np.linalg.norm(out.embedding - whole) / np.linalg.norm(whole))
    return {"error": f"estimated {out.error:.3f} ({error:.3f})", "plan": str(out.plan or "unpruned").split(";")[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", default=f"arxiv-sub,{SMALL}", help="also products, products-0.2, products-0.9 (homophily)")
    parser.add_argument("--trials", type=int, default=7)
    parser.add_argument("--no-peers", action="store_true", help="only our own cases")
    parser.add_argument("--json", default=None, help="also write the figures to this file")
    parser.add_argument("--old", default=None, help="the Python of another installed version, for its unpruned hops")
    parser.add_argument("--first", default=None, help=argparse.SUPPRESS)
    options = arguments(parser, graphs=SMOKE, trials=1)
    if options.first:
        print_first(options.graphs, options.first)
        return
    console = Console(width=150)
    graphs = options.graphs.split(",")
    results = [measure(name, options.trials, not options.no_peers, console, options.old) for name in graphs]
    if options.json:
        with open(options.json, "w") as file:  # noqa: PTH123
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
