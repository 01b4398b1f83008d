"""How fast is pruned propagation? The figures of the README, as ratios from one interleaved run.

python benchmarks/propagation.py                       # generated arxiv size, the real arxiv graph, wide features
python benchmarks/propagation.py --sizes products      # 2.4 M nodes, 124 M edges: about 20 minutes on two cores
"""

from __future__ import annotations

import argparse
import json

from data import arguments, folder, load
from rich.console import Console

from unifews import propagate
from unifews.experiments.bench import interleave, measure, ratio, render, run


def wide(name: str, trials: int, console: Console) -> dict[str, object]:
    """Thousands of sparse features: the default at .9 against our own unpruned hops on the input axes."""
    real = load(name)
    times = interleave(
        {
            "unpruned": lambda: propagate(real.graph, real.x).embedding,
            "coordinates": lambda: propagate(real.graph, real.x, edge_sparsity=0.9).coordinates,
            "embedding": lambda: propagate(real.graph, real.x, edge_sparsity=0.9).embedding,
        },
        trials,
    )
    ratios = {key: ratio(times["unpruned"], times[key]) for key in ("coordinates", "embedding")}
    console.print(f"[bold]{name}[/]: {real.x.shape[1]:,} features, default at .9 against our own unpruned on the input axes")
    for key, value in ratios.items():
        console.print(f"  up to the {key}: {value['median']:.1f}x ({value['low']:.1f} - {value['high']:.1f})")
    return {"name": name, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="arxiv,real,wide", help="of tiny, small, arxiv, products, real, wide")
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--json", default=None, help="also write the figures to this file")
    options = arguments(parser, sizes="tiny", trials=1)
    console = Console(width=100)
    results = []
    for size in options.sizes.split(","):
        if size in ("real", "wide") and folder() is None:
            console.print(f"{size}: skipped, no real graphs found (set UNIFEWS_DATA)")
        elif size == "real":
            real = load("arxiv-sub")
            results.append(measure("real arxiv graph", real.graph, real.x, options.trials, verify=options.verify))
            render(results[-1], console)
        elif size == "wide":
            results += [wide(name, options.trials, console) for name in ("cs", "physics")]
        else:
            results.append(run(size, options.trials, options.verify))
            render(results[-1], console)
    if options.json:
        with open(options.json, "w") as file:  # noqa: PTH123
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
