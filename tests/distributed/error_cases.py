"""Run by every worker: `max_error` where each of them has some of the nodes. The tests compare with one process."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from pathlib import Path

import numpy as np

from unifews import Appnp, Graph, HeatKernel, PersonalizedPageRank, Sgc
from unifews.distributed import propagate
from unifews.distributed.communicator import workers
from unifews.propagation import tolerance

os.fsync = lambda descriptor: None  # the disk may be busy with other things
tolerance.METHODS = ("lanczos",)  # errors are estimated on small graphs too
CASES = {  # the graph, and the call
    "appnp": ("plain", dict(max_error=0.05)),
    "r 0": ("plain", dict(max_error=0.05, r=0.0)),
    "r 1": ("weighted", dict(max_error=0.02, r=1.0)),
    "weighted": ("weighted", dict(max_error=0.01)),
    "frobenius": ("weighted", dict(max_error=0.05, error_norm="frobenius")),
    "identity": ("weighted", dict(max_error=0.05, scheme=Sgc(skip="identity"))),
    "identity+loop": ("plain", dict(max_error=0.05, scheme=Appnp(skip="identity+loop"), r=0.0)),
    "none": ("plain", dict(max_error=0.05, scheme=Appnp(skip="none"))),
    "sgc": ("plain", dict(max_error=0.05, scheme=Sgc(skip="diagonal"))),
    "pagerank": ("weighted", dict(max_error=0.05, scheme=PersonalizedPageRank(0.1), partition="parts")),
    "heat": ("plain", dict(max_error=0.02, scheme=HeatKernel(5.0), r=1.0, partition="parts")),
    "bfloat16": ("plain", dict(max_error=0.05, precision="bfloat16")),
    "float32": ("weighted", dict(max_error=0.001, precision="float32", partition="parts")),
    "degree": ("plain", dict(max_error=0.05, degree=4)),
    "unpruned": ("plain", dict(max_error=1e-7, scheme=Sgc(skip="diagonal"), hops=4)),
    "few nodes": ("few", dict(max_error=0.05)),
    "an isolated node alone": ("few", dict(max_error=0.05, partition="few-parts")),
}


def main(folder):
    os.chdir(folder)
    told = {}
    with workers() as group:
        for name, (data, how) in CASES.items():
            how = {"partition": "nodes", **how}
            if how["partition"] != "nodes":
                how["partition"] += f"-{group.size}.npy"
            out = f"{name} of {group.size}.npy"
            done = propagate(Graph.open(data), np.load(f"{data}.npy", mmap_mode="r"), out=out, threads=1, **how)
            told[name] = {"error": done.error, "column_errors": done.column_errors.tolist(), "plan": str(done.plan)}
            told[name]["traffic"] = done.trace.traffic.to_dict()
    Path(f"told-{group.rank}-of-{group.size}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    faulthandler.dump_traceback_later(300, exit=True)  # who waits for whom, should they wait for each other
    main(sys.argv[1])
