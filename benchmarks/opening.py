"""What does it cost to examine a graph from outside, beside one unpruned hop?

python benchmarks/opening.py                                          # 170,000 nodes, 2.4 M edges
python benchmarks/opening.py --nodes 2400000 --edges 60000000
"""

from __future__ import annotations

import argparse

import numpy as np
from data import arguments
from rich.console import Console

import unifews as uf
from unifews.core import csr
from unifews.experiments.bench import interleave, ratio, summary

HOPS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=170_000)
    parser.add_argument("--edges", type=int, default=2_400_000)
    parser.add_argument("--trials", type=int, default=5)
    options = arguments(parser, nodes=300, edges=2_000, trials=1)
    graph = uf.powerlaw(options.nodes, options.edges, num_features=16).graph
    rng, console = np.random.default_rng(1), Console(width=110)
    weight = rng.uniform(0.5, 2, graph.num_edges).astype(np.float32)
    for features in (16, 64, 128):
        x = rng.standard_normal((options.nodes, features), dtype=np.float32)

        def hops(x: np.ndarray = x) -> object:
            return uf.propagate(graph, x, hops=HOPS)

        runs = {
            "examine": lambda: csr.examine(graph.indptr, graph.indices),
            "examine, weighted": lambda: csr.examine(graph.indptr, graph.indices, weight),
            "hops": hops,
        }
        interleave(runs, 1)  # warm
        times = interleave(runs, options.trials)
        one = [seconds / HOPS for seconds in times["hops"]]
        for name in ("examine", "examine, weighted"):
            each, share = summary(times[name]), ratio(times[name], one)
            console.print(
                f"{features:>4} features, {name:<18} {1e3 * each['median']:.1f} ms, {share['median']:.2f} of a hop "
                f"({share['low']:.2f} - {share['high']:.2f})"
            )


if __name__ == "__main__":
    main()
