"""Run by every worker: heads trained on an embedding in a file."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from pathlib import Path

import torch

from unifews.datasets.folder import open_dataset
from unifews.distributed import train
from unifews.distributed.communicator import workers
from unifews.errors import UnifewsError

QUICK = dict(width=16, batch=32, epochs=8, patience=0, lr=1e-2, dropout=0.3, seeds=2)
RUNS = {
    "classes": {},
    "labels": dict(layers=3),
    "pruned": dict(weight_sparsity=0.5, weight_ramp=3, standardise="column"),
    "one layer": dict(layers=1, batch=7),
}


def main(folder):
    os.chdir(folder)
    told = {}
    with workers() as group:
        for name, how in RUNS.items():
            data = open_dataset("labels" if name == "labels" else "classes")
            run = train(data, "p.npy", ledger="runs", **{**QUICK, **how})
            told[name] = [vars(seed) | {"trace": None} for seed in run.seeds]
            if group.rank == 0:
                torch.save(run.model.state_dict(), f"{name}.pt")
        mistakes = {"model": dict(model="gcn", batch=None), "seed": dict(seed=group.rank), "rows": dict(embedding="short.npy")}
        for name, how in mistakes.items():
            try:
                how = {"dataset": open_dataset("classes"), "embedding": "p.npy", **QUICK, **how}
                train(**{key: value for key, value in how.items() if value is not None})
            except UnifewsError as error:
                told[name] = f"{type(error).__name__}: {error}"
    Path(f"told-{group.rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    faulthandler.dump_traceback_later(300, exit=True)  # who waits for whom, should they wait for each other
    main(sys.argv[1])
