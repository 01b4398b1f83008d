"""Does a sparsified model stay accurate when its layers propagate? The accuracy table, beside each model's own unpruned run.

    python benchmarks/iterative.py                                              # all models on cora, citeseer, pubmed
    python benchmarks/iterative.py --models gcn --settings entries --seeds 3    # what one decision should be about
    python benchmarks/iterative.py --models gcnii --layers 32 --datasets cora-lcc --seeds 1

Everything goes through `unifews.train` with its defaults: full batch, width 512, stratified 50/25/25, seeds from 42. Trained
and evaluated on the same pruned entries, except the authors' form with its node lock, evaluated with more edges than it
counts in training. Finished runs are kept in --ledger and not repeated.
"""

from __future__ import annotations

import argparse
from typing import Any

from data import SMOKE, arguments, dataset

import unifews
from unifews.report.runs import Gain
from unifews.resources import keep_freed
from unifews.training.ledger import Ledger
from unifews.training.spec import TrainSpec, paper_form

AUTHORS = paper_form("gcn")
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "table": {
        "unpruned": {},
        "edge .5": {"edge_sparsity": 0.5},
        "weight .9": {"weight_sparsity": 0.9},
        "edge .5, weight .9": {"edge_sparsity": 0.5, "weight_sparsity": 0.9},
        "edge .8, weight .95": {"edge_sparsity": 0.8, "weight_sparsity": 0.95},
    },
    "entries": {
        "unpruned": {},
        **{
            f"{entries} {share:g}": {"entries": entries, "edge_sparsity": share}
            for share in (0.5, 0.8)
            for entries in ("unit", "feature", "block", "node")
        },
        **{f"authors {share:g}": {"edge_sparsity": share, **AUTHORS} for share in (0.5, 0.8)},
        **{f"authors, node lock {share:g}": {"edge_sparsity": share, "node_lock": True, **AUTHORS} for share in (0.5, 0.8)},
    },
}
ALLOWED = {  # points below the unpruned run that pruning may cost
    "gcn": {"edge .5": 0.5, "weight .9": 0.3, "edge .5, weight .9": 0.7, "edge .8, weight .95": 1.0},
    "": {"edge .5": 0.7, "weight .9": 0.5, "edge .5, weight .9": 1.0, "edge .8, weight .95": 1.5},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default="cora-lcc,citeseer,pubmed")
    parser.add_argument("--models", default="gcn,gat,sage,gcnii")
    parser.add_argument("--settings", default="table", choices=list(SETTINGS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--ledger", default="runs", help="where finished runs are kept")
    parser.add_argument("--epochs", type=int, help="at most; the recipe's own unless given")
    options = arguments(parser, datasets=SMOKE, models="gcn", seeds=1, epochs=2)
    keep_freed()  # as the commands that train do
    ledger = Ledger(options.ledger)
    given = {"layers": options.layers, "epochs": options.epochs}
    more = {name: value for name, value in given.items() if value is not None}
    for name in options.datasets.split(","):
        data = dataset(name)
        for model in options.models.split(","):
            unpruned = None
            for case, pruned in SETTINGS[options.settings].items():
                settings = {"model": model, "seeds": options.seeds, **more, **pruned}
                spec = TrainSpec.of({"dataset": data.name, **settings})
                record = ledger.find(spec.id(data))
                if record is None:
                    record = unifews.train(data, ledger=ledger, **settings).to_dict()
                unpruned = unpruned or record
                show(name, model, case, record, unpruned, ALLOWED.get(model, ALLOWED[""]).get(case))


def show(name: str, model: str, case: str, record: dict[str, Any], unpruned: dict[str, Any], allowed: float | None) -> None:
    scores, trace = record["scores"], record["trace"]
    gain = Gain.of(record, unpruned)
    verdict = "" if allowed is None else f"  {'holds' if gain.points >= -allowed else 'MISSES'} -{allowed}"
    print(
        f"{name:10} {model:6} {case:22} {scores['test']:6.2f} ± {scores['test_std']:4.2f}  val {scores['val']:6.2f}  "
        f"{gain.points:+5.2f} ± {gain.spread:4.2f}  removed {trace['edge_sparsity']:.3f} "
        f"(layers {trace['mean_edge_sparsity']:.3f}) {trace['weight_sparsity']:.3f}  "
        f"MACs {trace['macs']:.3e} + {trace['transform_macs']:.3e}  {record['seconds']['train']:.1f} s a seed{verdict}",
        flush=True,
    )


if __name__ == "__main__":
    main()
