"""How long ways to propagate take on this machine: a cost model of a few measured numbers.

    hop of a tile = blocks · (edges · edge + nodes · row) + call

in each row format, with `edge` and `row` between those of a graph whose rows are in the cache and of one that is larger.
Built-in numbers serve where the scheme's own hops are expected to take less than a second; else numbers are measured once per
machine and user (`calibrated`) and kept in the user's cache folder. ``python -m unifews.propagation.cost`` shows them, with
``--measure`` anew.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from unifews.core.diffusion import Diffusion
from unifews.core.graph import Graph
from unifews.core.schemes import Appnp
from unifews.kernels import LANES, aligned, describe
from unifews.kernels.formats import AUTOMATIC, row_format
from unifews.propagation.features import FeatureMatrix
from unifews.propagation.lanczos import column_sums, series_of
from unifews.propagation.operator import HopOperator
from unifews.propagation.recurrence import Recurrence
from unifews.propagation.symmetric import SymmetricOperator
from unifews.propagation.tiles import cut, full_hop
from unifews.storage.atomic import atomic_file

VERSION = 1
CALIBRATED_FROM = 1.0  # seconds of the scheme's own hops from which calibration is worth its time
_SIZES = 6_000, 250_000  # nodes of the graphs that are measured: rows in the cache, and not
_DEGREES = 2, 10  # edges per node, two of them, to tell edges from rows
_BLOCKS, _TRIALS = 8, 3
_KINDS = tuple(format.name for format in AUTOMATIC)
Pair = tuple[float, float]


@dataclass(frozen=True)
class Costs:
    """Seconds, on so many threads. Pairs: in a small graph, in a large one (`_SIZES`)."""

    edge: dict[str, Pair]
    """A block of 16 columns of an edge: of an unpruned hop, and in each row format of a recurrence."""
    row: dict[str, Pair]
    """The same of a node: what it reads and writes itself."""
    call: float
    """An unpruned hop of a tile, whatever its size."""
    hop: float
    """A hop of a recurrence beside its kernel: sums become a_k and b_k."""
    estimate: float
    """An estimate of a tile's error."""
    source: str = "built in"

    def kernel(self, kind: str, n: int, m: int, blocks: int) -> float:
        """Seconds of a hop over so many blocks of 16 columns."""
        small, large = (math.log(each) for each in _SIZES)
        t = min(max((math.log(max(n, 2)) - small) / (large - small), 0.0), 1.0)
        edge, row = (pair[0] ** (1 - t) * pair[1] ** t for pair in (self.edge[kind], self.row[kind]))
        return float(blocks * (m * edge + n * row))


_ONE = Costs(  # one thread of a server
    {"unpruned": (0.7e-9, 2.2e-9), "int8": (0.4e-9, 0.9e-9), "bfloat16": (0.5e-9, 1.3e-9), "float32": (0.7e-9, 2.2e-9)},
    {"unpruned": (4e-9, 7e-9), "int8": (9e-9, 11e-9), "bfloat16": (9e-9, 13e-9), "float32": (10e-9, 20e-9)},
    call=25e-6,
    hop=0.35e-3,
    estimate=0.9e-3,
)


def built_in(threads: int) -> Costs:
    """For machines and graphs that were not measured."""
    share = threads**-0.9
    edge, row = ({kind: (a * share, b * share) for kind, (a, b) in each.items()} for each in (_ONE.edge, _ONE.row))
    return replace(_ONE, edge=edge, row=row)


def folder() -> Path:
    """XDG_CACHE_HOME/unifews, which is ~/.cache/unifews as a rule."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unifews"


def key(threads: int) -> dict[str, Any]:
    """What measured numbers are for."""
    return {"version": VERSION, "processor": processor(), "kernels": describe(threads), "threads": threads}


def path(threads: int) -> Path:
    return folder() / f"costs-{threads}.json"


@cache
def calibrated(threads: int) -> Costs:
    """From the cache folder, or measured now and, if that is possible, written there."""
    return read(threads) or measure(threads)


def read(threads: int) -> Costs | None:
    """What was measured on this machine with so many threads; None: nothing, something else, or a damaged file."""
    try:
        kept = json.loads(path(threads).read_text("utf-8"))
        if kept["key"] != key(threads):
            return None
        pairs = [{kind: (float(a), float(b)) for kind, (a, b) in kept["costs"][name].items()} for name in ("edge", "row")]
        call, hop, estimate = (float(kept["costs"][name]) for name in ("call", "hop", "estimate"))
        costs = Costs(pairs[0], pairs[1], call, hop, estimate, str(path(threads)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    numbers = [*(each for kinds in pairs for pair in kinds.values() for each in pair), costs.call, costs.hop, costs.estimate]
    is_whole = all(set(kinds) == {"unpruned", *_KINDS} for kinds in pairs)
    return costs if is_whole and all(math.isfinite(each) and each > 0 for each in numbers) else None


def measure(threads: int) -> Costs:
    """Measure this machine, which takes a second or two, and keep the numbers; a folder that cannot be written is no error."""
    costs = _measured(threads)
    target = path(threads)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(target, overwrite=True) as file:
            file.write(json.dumps({"key": key(threads), "costs": asdict(costs)}, indent=1).encode())
    except Exception:
        return replace(costs, source="measured now")
    return replace(costs, source=str(target))


@cache
def processor() -> str:
    """The model of the processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _measured(threads: int) -> Costs:
    edge: dict[str, list[float]] = {}
    row: dict[str, list[float]] = {}
    call, hop, estimate = _overhead(threads)
    for n in _SIZES:
        few, many = (_hops(n, degree, threads) for degree in _DEGREES)
        for kind, slow in many.items():
            fast, overhead = few[kind], call if kind == "unpruned" else hop
            per_edge = max(slow - fast, 0.05 * slow) / (n * (_DEGREES[1] - _DEGREES[0]) * _BLOCKS)
            rest = max(fast - overhead, 0.1 * fast) / (n * _BLOCKS) - _DEGREES[0] * per_edge
            edge.setdefault(kind, []).append(per_edge)
            row.setdefault(kind, []).append(max(rest, 0.5 * per_edge))
    pairs = [{kind: (values[0], values[1]) for kind, values in each.items()} for each in (edge, row)]
    return Costs(pairs[0], pairs[1], call, hop, estimate)


def _hops(n: int, degree: int, threads: int) -> dict[str, float]:
    """Seconds of the third hop of a tile, by kind; the least of some."""
    op, features = _problem(n, degree, _BLOCKS * LANES, threads)
    q, after, out = (aligned(n, _BLOCKS * LANES) for _ in range(3))
    for array in (q, after, out):
        array.fill(1)
    best = {"unpruned": math.inf, **dict.fromkeys(_KINDS, math.inf)}
    symmetric = SymmetricOperator.of(op, series_of(op))
    sums, (shape,) = column_sums(symmetric, features), cut(features.f)
    for _ in range(_TRIALS):
        began = perf_counter()
        full_hop(op.edges, q, after, threads, keep=op.keep, gain=op.gain, coefficient=0.1, out=out)
        best["unpruned"] = min(best["unpruned"], perf_counter() - began)
    for name in _KINDS:
        recurrence = Recurrence(symmetric, features, shape, sums)
        recurrence.start(row_format(name))
        for _ in range(2 + _TRIALS):
            shift = recurrence.next_shift() if recurrence.state and recurrence.state.a else 0.4
            began = perf_counter()
            recurrence.hop(shift)
            taken = perf_counter() - began
            best[name] = min(best[name], taken) if recurrence.state and len(recurrence.state.a) > 2 else best[name]
        recurrence.release()
    return best


def _overhead(threads: int) -> tuple[float, float, float]:
    """Seconds of a call of an unpruned hop, of a hop of a recurrence and of an estimate, on a graph that takes none."""
    op, features = _problem(64, 2, _BLOCKS * LANES, threads)
    q, after = (aligned(64, _BLOCKS * LANES, zero=True) for _ in range(2))
    symmetric = SymmetricOperator.of(op, series_of(op))
    sums, (shape,) = column_sums(symmetric, features), cut(features.f)
    best = [math.inf] * 3
    for _ in range(2 * _TRIALS):
        began = perf_counter()
        full_hop(op.edges, q, after, threads, keep=op.keep, gain=op.gain)
        times, recurrence = [perf_counter() - began, math.inf, math.inf], Recurrence(symmetric, features, shape, sums)
        recurrence.start(row_format("int8"))
        shift: Any = 0.4
        for k in range(5):
            began = perf_counter()
            recurrence.hop(shift)
            shift = recurrence.next_shift()
            times[1] = perf_counter() - began if k == 4 else math.inf
        began = perf_counter()
        recurrence.estimate(0.05)
        times[2] = perf_counter() - began
        recurrence.release()
        best = [min(pair) for pair in zip(best, times, strict=True)]
    return best[0], best[1], best[2]


def _problem(n: int, degree: int, width: int, threads: int) -> tuple[HopOperator, FeatureMatrix]:
    rng = np.random.default_rng(0)
    source = np.repeat(np.arange(n, dtype=np.int64), degree // 2)
    edges = np.stack([source, rng.integers(0, n, len(source))])
    graph = Graph.from_edge_index(np.concatenate([edges, edges[::-1]], axis=1), n)
    x = np.tile(rng.standard_normal((min(n, 4096), width)).astype(np.float32), (-(-n // 4096), 1))[:n]
    return HopOperator(Diffusion(graph), Appnp(), 20, threads), FeatureMatrix(np.ascontiguousarray(x), n)


def show(costs: Costs, threads: int) -> str:
    """The numbers, as text."""
    lines = [f"{processor()}, {describe(threads)}: {costs.source}", "nanoseconds of an edge and of a row, 16 columns each:"]
    for kind in costs.edge:
        text = (f"{1e9 * a:.2f} and {1e9 * b:.1f}" for a, b in zip(costs.edge[kind], costs.row[kind], strict=True))
        lines.append(f"  {kind:9s} {', '.join(f'{size:,} nodes: {each}' for size, each in zip(_SIZES, text, strict=True))}")
    fixed = ", ".join(f"{name} {1e6 * getattr(costs, name):.0f}" for name in ("call", "hop", "estimate"))
    return "\n".join([*lines, f"microseconds of a tile, whatever its size: {fixed}"])


def main(arguments: list[str] | None = None) -> None:
    from unifews.kernels import threads_to_use

    parser = argparse.ArgumentParser(description="Show the cost model of propagation to an allowed error.")
    parser.add_argument("--measure", action="store_true", help="measure this machine now")
    options, threads = parser.parse_args(arguments), threads_to_use(None)
    costs = measure(threads) if options.measure else read(threads) or built_in(threads)
    sys.stdout.write(show(costs, threads) + "\n")


if __name__ == "__main__":
    main()
