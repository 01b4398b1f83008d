"""How tight is the certified error, and what does it cost? True and certified relative error beside each other; and by random
directions (`certify="sampled"`), the bound over the true error.

python benchmarks/certified.py                                        # the small real graphs, APPNP, half removed
python benchmarks/certified.py --datasets arxiv-sub --sparsity 0.9 --schemes appnp,sgc --trials 9
python benchmarks/certified.py --max-error 0.1                        # as much as a tenth allows, instead
"""

from __future__ import annotations

import argparse
import json
import math
import statistics

import numpy as np
from data import SMOKE, arguments, load
from rich.console import Console
from rich.table import Table

from unifews import propagate
from unifews.experiments.bench import interleave

SMALL = "cora-lcc,citeseer,pubmed,photo,actor,chameleon-filtered,squirrel-filtered,cornell,texas,wisconsin,minesweeper"


def measure(name: str, scheme: str, how: dict[str, float], trials: int) -> dict[str, object]:
    """One row; extra times are those of either way to `certify` alone, as the median over trials taken in turn."""
    real = load(name)
    exact = propagate(real.graph, real.x, scheme).embedding
    out = propagate(real.graph, real.x, scheme, certify=True, **how)
    error, norm = float(np.linalg.norm(out.embedding - exact)), float(np.linalg.norm(exact))
    seen, extra, extra_sampled = None, None, None
    if "max_error" not in how:
        seen = propagate(real.graph, real.x, scheme, certify="sampled", **how)
    if "max_error" not in how and trials:
        times = interleave(
            {
                "plain": lambda: propagate(real.graph, real.x, scheme, **how).coordinates,
                "certified": lambda: propagate(real.graph, real.x, scheme, certify=True, **how).coordinates,
                "sampled": lambda: propagate(real.graph, real.x, scheme, certify="sampled", **how).coordinates,
            },
            trials,
        )
        extra, extra_sampled = (
            statistics.median(b / a - 1 for a, b in zip(times["plain"], times[name], strict=True))
            for name in ("certified", "sampled")
        )
    return {
        "name": name,
        "scheme": scheme,
        **how,
        "sparsity": out.trace.edge_sparsity,
        "error": error / norm,
        "bound": out.relative_error_bound,
        "factor": out.error_bound / error if error else math.nan,
        "extra": extra,
        "sampled": None if seen is None else seen.error_bound / error if error else math.nan,
        "extra_sampled": extra_sampled,
        "notes": list(out.trace.notes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default=SMALL)
    parser.add_argument("--schemes", default="appnp")
    parser.add_argument("--sparsity", type=float, default=0.5)
    parser.add_argument("--max-error", type=float, default=None)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--json", default=None, help="also write the figures to this file")
    options = arguments(parser, datasets=SMOKE, trials=1)
    how = {"edge_sparsity": options.sparsity} if options.max_error is None else {"max_error": options.max_error}
    names = ("graph", "scheme", "removed", "true error", "certified", "factor", "extra time", "sampled: factor", "extra time")
    table, results = Table(*names), []
    for name in options.datasets.split(","):
        for scheme in options.schemes.split(","):
            row = measure(name, scheme, how, options.trials)
            results.append(row)
            extra, more = ("" if row[key] is None else f"{row[key]:+.1%}" for key in ("extra", "extra_sampled"))
            sampled = "" if row["sampled"] is None else f"{row['sampled']:.1f}"
            errors = f"{row['error']:.4f}", f"{row['bound']:.4f}", f"{row['factor']:.1f}"
            table.add_row(name, scheme, f"{row['sparsity']:.1%}", *errors, extra, sampled, more)
    console = Console(width=130)
    console.print(table)
    console.print(f"loosest factor {max(float(str(row['factor'])) for row in results):.1f}")
    if options.json:
        with open(options.json, "w") as file:  # noqa: PTH123
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
