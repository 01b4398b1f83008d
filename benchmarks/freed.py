"""What does keeping freed memory gain, and cost? Seconds of an epoch and peak memory, each run a process of its own, in turn.

python benchmarks/freed.py                                # GCN on cora-lcc and physics, one thread
python benchmarks/freed.py --datasets arxiv-sub --epochs 10 --trials 2
python benchmarks/freed.py --datasets pubmed --models gat,gcnii
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from itertools import product
from time import perf_counter

from data import SMOKE, arguments, dataset
from rich.console import Console


def one(name: str, model: str, epochs: int, is_kept: bool) -> dict[str, float]:
    """In this process; the first epochs, which warm up, are trained apart."""
    from unifews.resources import keep_freed

    if is_kept and not keep_freed():
        raise SystemExit("this system's allocator cannot be configured to keep memory")
    import unifews

    data = dataset(name)
    how = {"model": model, "seeds": 1, "edge_sparsity": 0.5, "weight_sparsity": 0.9, "patience": 0}
    unifews.train(data, **how, epochs=3)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, perf_counter()
    unifews.train(data, **how, epochs=epochs)
    seconds, after = perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    return {"seconds": seconds / epochs, "faults": (after.ru_minflt - before) / epochs, "peak": after.ru_maxrss * 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default="cora-lcc,physics")
    parser.add_argument("--models", default="gcn")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--one", choices=["kept", "given back"], default=None, help=argparse.SUPPRESS)
    options = arguments(parser, datasets=SMOKE, models="appnp", epochs=2, trials=1)
    if options.one:
        print(json.dumps(one(options.datasets, options.models, options.epochs, options.one == "kept")))
        return
    console, alone = Console(width=120), {**os.environ, "OMP_NUM_THREADS": "1"}
    for name, model in product(options.datasets.split(","), options.models.split(",")):
        runs: dict[str, list[dict[str, float]]] = {"given back": [], "kept": []}
        for _ in range(options.trials):
            for how, found in runs.items():
                what = ["--datasets", name, "--models", model, "--epochs", str(options.epochs)]
                command = [sys.executable, __file__, *what, "--one", how]
                done = subprocess.run(command, check=True, capture_output=True, text=True, env=alone)
                found.append(json.loads(done.stdout.splitlines()[-1]))
        for how, found in runs.items():
            seconds, faults, peak = ([run[key] for run in found] for key in ("seconds", "faults", "peak"))
            console.print(
                f"{name:<10} {model:<6} {how:<11} {statistics.median(seconds):.4f} s an epoch "
                f"({min(seconds):.4f} - {max(seconds):.4f}), "
                f"{statistics.median(faults):,.0f} page faults, peak {max(peak) / 1e9:.2f} GB"
            )


if __name__ == "__main__":
    main()
