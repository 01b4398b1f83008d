"""Run by every worker: many propagations, and many mistakes, in one go. The tests look at what is left."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from pathlib import Path

import numpy as np

from unifews import Appnp, Graph, HeatKernel, Sgc
from unifews.distributed import propagate
from unifews.distributed.communicator import workers
from unifews.errors import UnifewsError
from unifews.propagation import tolerance

os.fsync = lambda descriptor: None  # the disk may be busy with other things
tolerance.METHODS = ("lanczos",)  # errors are estimated on small graphs too
FIVE = dict(hops=5, threads=1)
CASES = {
    "columns target": ("plain", dict(FIVE, edge_sparsity=0.8)),
    "columns target in 5": ("plain", dict(FIVE, edge_sparsity=0.8, groups=5)),
    "columns threshold": ("plain", dict(FIVE, scheme="sgc", threshold=0.02)),
    "columns input": ("plain", dict(FIVE, edge_sparsity=0.6, basis="input", entries="feature", inherit=True)),
    "columns unpruned": ("plain", dict(FIVE)),
    "columns error": ("wide", dict(max_error=0.05, threads=1)),
    "columns error r": ("wide", dict(max_error=0.02, r=1.0, scheme="sgc", threads=1)),
    "columns error heat": ("wide", dict(max_error=0.05, scheme=HeatKernel(3.0), threads=1)),
    "columns error unpruned": ("wide", dict(max_error=1e-7, scheme="sgc", threads=1)),
    "columns error directed": ("weighted", dict(max_error=0.05, threads=1)),
    "nodes target": ("plain", dict(FIVE, edge_sparsity=0.8, partition="nodes")),
    "nodes high target": ("plain", dict(FIVE, edge_sparsity=0.97, partition="nodes")),
    "nodes sgc": ("plain", dict(FIVE, scheme=Sgc(skip="diagonal"), edge_sparsity=0.6, partition="nodes")),
    "nodes identity": ("plain", dict(FIVE, scheme="sgc", edge_sparsity=0.7, partition="nodes")),
    "nodes threshold": ("weighted", dict(FIVE, threshold=0.02, r=0.3, partition="nodes")),
    "nodes weighted": ("weighted", dict(FIVE, edge_sparsity=0.7, partition="nodes")),
    "nodes unpruned": ("weighted", dict(FIVE, partition="nodes")),
    "nodes feature": ("weighted", dict(FIVE, edge_sparsity=0.7, entries="feature", partition="nodes")),
    "nodes inherit": ("plain", dict(FIVE, edge_sparsity=0.7, inherit=True, partition="nodes")),
    "nodes input": ("plain", dict(FIVE, threshold=0.01, basis="input", partition="nodes")),
    "nodes anyhow": ("plain", dict(FIVE, edge_sparsity=0.8, partition="parts.npy")),
    "nodes wide": ("wide", dict(FIVE, edge_sparsity=0.8, partition="nodes")),
    "nodes error": ("wide", dict(max_error=0.05, threads=1, partition="nodes")),
    "nodes growing": ("plain", dict(scheme=Appnp(skip="identity+loop"), hops=60, threshold=0.5, threads=1, partition="nodes")),
    "nodes growing unpruned": ("plain", dict(scheme=Sgc(skip="identity+loop"), hops=60, threads=1, partition="nodes")),
}
MISTAKES = {
    "hops": lambda rank: dict(hops=5 + rank),
    "x": lambda rank: dict(x=np.load("x.npy") + rank),
    "file": lambda rank: dict(x=np.load(f"x{rank}.npy", mmap_mode="r")),
    "way": lambda rank: dict(partition="node"),
    "lonely": lambda rank: dict(hops=0) if rank else {},
    "narrow": lambda rank: dict(x=np.load("x.npy")[:, :16].copy()),
    "groups": lambda rank: dict(groups=1),
    "no part": lambda rank: dict(partition=np.zeros(700, dtype=int)),
    "other part": lambda rank: dict(partition=np.arange(700) % 3),
    "sparse": lambda rank: dict(entries="node"),
    "error in groups": lambda rank: dict(max_error=0.05, hops=20, groups=2),
    "error by nodes in groups": lambda rank: dict(max_error=0.05, hops=20, groups=2, partition="nodes"),
    "error of one tile": lambda rank: dict(max_error=0.05, hops=20),
    "error of a filter": lambda rank: dict(
        x=np.load("wide.npy"), hops=None, scheme=HeatKernel(4000.0), max_error=1e-6, threads=1
    ),
    "error of workers": lambda rank: dict(max_error=0.05 + 0.1 * rank, hops=20),
    "there": lambda rank: dict(out="there.npy"),
}


def main(folder):
    os.chdir(folder)
    told = {}
    with workers() as group:
        for name, (data, how) in CASES.items():
            x = np.load(f"{'x' if data != 'wide' else 'wide'}.npy", mmap_mode="r")
            graph = Graph.open("weighted" if data == "weighted" else "plain")
            done = propagate(graph, x, out=f"{name}.npy", **how)
            told[name] = {**done.trace.to_dict(), "exponent": done.exponent}
            if "max_error" in how:
                told[name]["accuracy"] = [done.error, done.column_errors.tolist(), str(done.plan)]
            if data == "weighted":
                assert np.array_equal(np.load(f"{name}.npy"), done.embedding)
        for name, given in MISTAKES.items():
            how = {"graph": Graph.open("plain"), "x": np.load("x.npy"), "out": f"{name}.npy", "hops": 5, **given(group.rank)}
            try:
                propagate(**how)
                told[name] = "nothing is wrong"
            except UnifewsError as error:
                told[name] = f"{type(error).__name__}: {error}"
    Path(f"told-{group.rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    faulthandler.dump_traceback_later(300, exit=True)  # who waits for whom, should they wait for each other
    main(sys.argv[1])
