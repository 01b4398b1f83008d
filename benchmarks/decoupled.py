"""Does a sparsified decoupled model stay accurate? The accuracy table of the README, against the paper's printed values.

    python benchmarks/decoupled.py                                   # cora, citeseer, pubmed: about 15 minutes on two cores
    python benchmarks/decoupled.py --datasets photo,cs,physics       # the unpruned heads of cs and physics take an hour
    python benchmarks/decoupled.py --cases tenth,strict              # of the cases below only these

Everything goes through `unifews.train` with its defaults: 20 hops, width 512, 2 layers, stratified 50/25/25, seeds 42 to 46.
Finished runs are kept in --ledger and not repeated.
"""

from __future__ import annotations

import argparse
from typing import Any

from data import SMOKE, arguments, dataset

import unifews
from unifews.training.ledger import Ledger
from unifews.training.spec import TrainSpec

CASES: dict[str, dict[str, Any]] = {
    "unpruned": {},
    "half": {"edge_sparsity": 0.5},
    "tenth": {"edge_sparsity": 0.9, "weight_sparsity": 0.9},
    "strict": {"edge_sparsity": 0.9, "weight_sparsity": 0.9, "weight_reference": "head"},
}
"""Of edges half are removed, or nine tenths of edges and of the unpruned model's weights, or strictly of the head's own."""
PAPER = {  # [P] Table "dec"
    ("appnp", "cora-lcc"): {"unpruned": 86.2, "half": 86.5},
    ("appnp", "citeseer"): {"unpruned": 71.6, "half": 73.7},
    ("appnp", "pubmed"): {"unpruned": 87.6, "half": 88.0},
    ("sgc", "cora-lcc"): {"unpruned": 85.8, "half": 86.0},
    ("sgc", "citeseer"): {"unpruned": 67.7, "half": 73.0},
    ("sgc", "pubmed"): {"unpruned": 83.0, "half": 83.0},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default="cora-lcc,citeseer,pubmed")
    parser.add_argument("--models", default="appnp,sgc")
    parser.add_argument("--cases", default="unpruned,half,tenth", help=f"of {', '.join(CASES)}")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ledger", default="runs", help="where finished runs are kept")
    parser.add_argument("--epochs", type=int, help="at most; the recipe's own unless given")
    options = arguments(parser, datasets=SMOKE, models="appnp", seeds=1, epochs=2)
    ledger = Ledger(options.ledger)
    more = {} if options.epochs is None else {"epochs": options.epochs}
    for name in options.datasets.split(","):
        data = dataset(name)
        for model in options.models.split(","):
            for case in options.cases.split(","):
                settings = {"model": model, "seeds": options.seeds, **more, **CASES[case]}
                spec = TrainSpec.of({"dataset": data.name, **settings})
                record = ledger.find(spec.id(data))
                if record is None:
                    record = unifews.train(data, ledger=ledger, **settings).to_dict()
                show(name, model, case, record, PAPER.get((model, name), {}).get(case))


def show(name: str, model: str, case: str, record: dict[str, Any], printed: float | None) -> None:
    scores, trace, seconds = record["scores"], record["trace"], record["seconds"]
    print(
        f"{name:10} {model:6} {case:8} {scores['test']:6.2f} ± {scores['test_std']:4.2f}  val {scores['val']:6.2f}  "
        f"paper {printed or '-':>5}  removed {trace['edge_sparsity']:.3f} {trace['weight_sparsity']:.3f} "
        f"({record['head']['sparsity']:.3f} of its own)  "
        f"MACs {trace['macs']:.3e} + {trace['basis_macs']:.3e} + {trace['transform_macs']:.3e}  "
        f"{seconds['propagate']:.2f} s + {seconds['train']:.1f} s a seed",
        flush=True,
    )


if __name__ == "__main__":
    main()
