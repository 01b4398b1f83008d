"""How fast is `propagate(max_error=...)`? From features to embedding, against our own unpruned hops and other libraries.

python benchmarks/tolerance.py                          # the graph of ogbn-arxiv and five small ones
python benchmarks/tolerance.py --graphs products        # 2.4 M nodes, 120 M edges, 96 features
pip install ".[bench]"                                  # adds sparse-dot-mkl as a peer

All cases of a graph run in turns; a ratio is that of medians, with the lowest and highest of any one trial. Everything is
included: checks of the input, the plan, hops, the sum. Errors are measured, not estimated (‖P̂ - P‖_F / ‖P‖_F in brackets).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
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


BASELINES = {"T^20, max_error .05": "T^20, unpruned", "identity skip, max_error .05": "identity skip, unpruned"}


def measure(name: str, trials: int, peers: bool, console: Console) -> dict[str, Any]:
    graph, x = graph_of(name)
    runs = cases(graph, x)
    for run in runs.values():
        run()
    times = interleave(runs, trials)
    if peers:  # in turns with one of ours only: their threads wait busily for a while after each call
        others = {"max_error .05": runs["max_error .05"], **other_libraries(graph, x)}
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
    return result


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
    options = arguments(parser, graphs=SMOKE, trials=1)
    console = Console(width=150)
    results = [measure(name, options.trials, not options.no_peers, console) for name in options.graphs.split(",")]
    if options.json:
        with open(options.json, "w") as file:  # noqa: PTH123
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
