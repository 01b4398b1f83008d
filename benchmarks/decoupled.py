"""Does a sparsified decoupled model stay accurate? The accuracy table of the README, against the paper's printed values.

    python benchmarks/decoupled.py                                   # cora, citeseer, pubmed: about 15 minutes on two cores
    python benchmarks/decoupled.py --datasets photo,cs,physics       # the unpruned heads of cs and physics take an hour

Everything goes through `unifews.train` with its defaults: 20 hops, width 512, 2 layers, stratified 50/25/25, seeds 42 to 46.
Finished runs are kept in --runs and not repeated.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from data import folder

import unifews
from unifews.training.ledger import Ledger
from unifews.training.spec import TrainSpec

CASES: dict[str, dict[str, float]] = {
    "unpruned": {},
    "edge .5": {"edge_sparsity": 0.5},
    "edge .9, weight .9": {"edge_sparsity": 0.9, "weight_sparsity": 0.9},
}
PAPER = {  # [P] Table "dec": unpruned, at 50 %
    ("appnp", "cora-lcc"): (86.2, 86.5), ("appnp", "citeseer"): (71.6, 73.7), ("appnp", "pubmed"): (87.6, 88.0),
    ("sgc", "cora-lcc"): (85.8, 86.0), ("sgc", "citeseer"): (67.7, 73.0), ("sgc", "pubmed"): (83.0, 83.0),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default="cora-lcc,citeseer,pubmed")
    parser.add_argument("--models", default="appnp,sgc")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", default="runs")
    options = parser.parse_args()
    if "UNIFEWS_DATA" not in os.environ and folder() is not None:
        os.environ["UNIFEWS_DATA"] = str(folder())
    ledger = Ledger(options.runs)
    for name in options.datasets.split(","):
        data = unifews.load_dataset(name)
        for model in options.models.split(","):
            for number, (case, pruned) in enumerate(CASES.items()):
                settings = {"model": model, "seeds": options.seeds, **pruned}
                spec = TrainSpec.of({"dataset": data.name, **settings})
                record = ledger.find(spec.id(data))
                if record is None:
                    record = unifews.train(data, ledger=ledger, **settings).to_dict()
                printed = PAPER.get((model, name), ())[number : number + 1]
                show(name, model, case, record, printed[0] if printed else None)


def show(name: str, model: str, case: str, record: dict[str, Any], printed: float | None) -> None:
    scores, trace, seconds = record["scores"], record["trace"], record["seconds"]
    print(
        f"{name:10} {model:6} {case:20} {scores['test']:6.2f} ± {scores['test_std']:4.2f}  val {scores['val']:6.2f}  "
        f"paper {printed or '-':>5}  removed {trace['edge_sparsity']:.3f} {trace['weight_sparsity']:.3f} "
        f"({record['head']['sparsity']:.3f} of its own)  "
        f"MACs {trace['macs']:.3e} + {trace['transform_macs']:.3e}  "
        f"{seconds['propagate']:.2f} s + {seconds['train']:.1f} s a seed",
        flush=True,
    )


if __name__ == "__main__":
    main()
