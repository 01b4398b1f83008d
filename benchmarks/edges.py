"""What does a user's plain training loop lose when a model is pruned, and what are the kind and the rule of the choice worth?

    python benchmarks/edges.py --ledger edges.json                        # GCN, GATv2 and SAGE on photo and cs
    python benchmarks/edges.py --ledger edges.json --graphs cora-lcc --seeds 0-4 --cases "unpruned; unit .5; edge .5"
    python benchmarks/edges.py --ledger edges.json --report               # the table of what the ledger holds

A PyG model of two layers passed to `uf.sparsify`: Adam .01, weight decay 5e-4, dropout .5, 200 epochs; 50/25/25 split by seed.
A case is `unpruned`, or an entry kind and an edge sparsity, `weight` and a weight sparsity, or both (`unit .5 + weight .9`),
followed by a choice (`random`, `smallest`), `as-is` (without renormalisation) or `hysteresis 1` (columns chosen anew in every
pass). `narrow .5 .9` is an unpruned model that is so much narrower that it needs as many multiply-adds.

Per case: validation accuracy at the best evaluated epoch (every fifth), test accuracy there, mean ± standard deviation over
seeds; validation accuracy at the best epoch up to 50 and up to 100, and at epochs 50 and 100 themselves; CPU seconds of all
epochs. With weights, the best epoch is one of the second half. Runs in the ledger, with whole curves, are not repeated,
so they can be interrupted, split and continued; `--minutes` stops before the next one.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, pstdev
from time import monotonic, process_time
from typing import Any, NamedTuple

import numpy as np
import torch
from data import SMOKE, arguments, load
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GAT, GCN, GIN, GraphSAGE

import unifews as uf

HEADS = 4
MODELS = {
    "gcn": lambda features, classes, width: GCN(features, width, 2, classes, dropout=0.5),
    "gatv2": lambda features, classes, width: GAT(features, width, 2, classes, dropout=0.5, heads=HEADS, v2=True),
    "sage": lambda features, classes, width: GraphSAGE(features, width, 2, classes, dropout=0.5),
    "gin": lambda features, classes, width: GIN(features, width, 2, classes, dropout=0.5),
}
CASES = (
    "unpruned; unit .5; unit .8; unit .5 random; unit .8 random; unit .5 smallest; unit .5 as-is; edge .5; edge .8; "
    "edge .5 random; edge .8 random; weight .9; unit .5 + weight .9; unit .8 + weight .95; edge .5 + weight .9; "
    "edge .8 + weight .95; edge .5 + weight .9 random; edge .8 + weight .95 random; narrow .5 .9; narrow .8 .95"
)
Record = dict[str, Any]


class Data(NamedTuple):
    x: Tensor
    edge_index: Tensor
    y: Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", default="photo,cs")
    parser.add_argument("--models", default="gcn,gatv2,sage")
    parser.add_argument("--cases", default=CASES, help="separated by semicolons")
    parser.add_argument("--seeds", default="0-2", help="such as 0-2")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--components", type=int, default=0, help="principal components of the features; 0: the features")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--ledger", type=Path, help="JSON file of finished runs")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no run after this time")
    parser.add_argument("--report", action="store_true", help="only print the runs of the ledger")
    options = arguments(parser, graphs=SMOKE, models="gcn", seeds="0", epochs=2, width=8)
    torch.set_num_threads(options.threads)
    ledger: dict[str, Record] = json.loads(options.ledger.read_text()) if options.ledger and options.ledger.exists() else {}
    if not options.report:
        _run(options, ledger)
    _report(ledger)


def _run(options: argparse.Namespace, ledger: dict[str, Record]) -> None:
    began, known = monotonic(), dict[str, Data]()
    cases = [" ".join(case.split()) for case in options.cases.split(";")]
    first, _, last = options.seeds.partition("-")
    for seed in range(int(first), int(last or first) + 1):
        for name in options.graphs.split(","):
            for kind in options.models.split(","):
                for case in cases:
                    of = f"pca {options.components}" if options.components else "features"
                    key = "|".join([name, kind, f"{options.width}", of, f"{options.epochs}", case, f"{seed}"])
                    if key in ledger:
                        continue
                    if monotonic() - began > 60 * options.minutes:
                        return
                    data = known[name] = known.get(name) or _data(name, options.components)
                    ledger[key] = found = _train(kind, case, data, seed, options)
                    print(key, json.dumps(found), flush=True)
                    if options.ledger:
                        part = options.ledger.with_suffix(".part")
                        part.write_text(json.dumps(ledger, indent=0))
                        part.replace(options.ledger)


def _data(name: str, components: int) -> Data:
    real = load(name)
    x = torch.from_numpy(np.asarray(real.x.todense() if hasattr(real.x, "todense") else real.x, dtype=np.float32))
    if 0 < components < x.shape[1]:
        torch.manual_seed(0)
        left, size, _ = torch.svd_lowrank(x, components, niter=3)
        x = left * size
    return Data(x, torch.from_numpy(real.graph.to_edge_index()), torch.from_numpy(real.y).long())


def _settings(case: str, seed: int) -> dict[str, Any]:
    """Arguments of `uf.sparsify`."""
    how: dict[str, Any] = {}
    words = case.replace("+", " ").split()
    for word, value in zip(words, [*words[1:], ""], strict=True):
        if word == "weight":
            how["weight_sparsity"] = float(value)
        elif word in ("random", "smallest"):
            how |= {"choice": word, "choice_seed": seed}
        elif word == "hysteresis":
            how["hysteresis"] = float(value)
        elif word == "as-is":
            how["renormalize"] = False
        elif word.isalpha() and word != "unpruned":
            how |= {"entries": word, "edge_sparsity": float(value)}
    return how


def _width(kind: str, case: str, data: Data, width: int) -> int:
    """That of the model: `width`, or of a narrower one with as many multiply-adds."""
    if not case.startswith("narrow"):
        return width
    edges, weights = map(float, case.split()[1:])
    classes, (n, f) = int(data.y.max()) + 1, data.x.shape

    def macs(width: int) -> tuple[int, int]:
        each = 1 if kind == "gcn" else 2  # matrices of a layer
        narrow = min(f, width) if kind in ("gcn", "sage") else width
        return data.edge_index.shape[1] * (narrow + min(width, classes)), each * n * width * (f + classes)

    allowed = (1 - edges) * macs(width)[0] + (1 - weights) * macs(width)[1]
    found = max((w for w in range(1, width) if sum(macs(w)) <= allowed), default=1)
    return max(HEADS, found // HEADS * HEADS) if kind == "gatv2" else found


def _train(kind: str, case: str, data: Data, seed: int, options: argparse.Namespace) -> Record:
    x, edge_index, y = data
    torch.manual_seed(seed)
    known = torch.from_numpy(np.random.default_rng(seed).permutation((y >= 0).nonzero().flatten().numpy()))
    train, validation, test = known.tensor_split([len(known) // 2, 3 * len(known) // 4])
    model: nn.Module = MODELS[kind](x.shape[1], int(y.max()) + 1, _width(kind, case, data, options.width))
    how = {} if case.startswith("narrow") else _settings(case, seed)
    model = uf.sparsify(model, **how) if how else uf.accelerate(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    best, curve, seconds = (-1.0, -1.0), list[float](), 0.0
    for epoch in range(1, options.epochs + 1):
        began = process_time()
        model.train()
        optimizer.zero_grad()
        cross_entropy(model(x, edge_index)[train], y[train]).backward()
        optimizer.step()
        seconds += process_time() - began
        if epoch % 5 and epoch != options.epochs:
            continue
        model.eval()
        with torch.no_grad():
            right = (model(x, edge_index).argmax(dim=1) == y).float()
        score = 100 * float(right[validation].mean())
        curve.append(round(score, 3))
        ramped = epoch > options.epochs // 2 or not how.get("weight_sparsity")  # a model whose weights are not removed yet
        if ramped and score >= best[0]:
            best = score, 100 * float(right[test].mean())
    return {"test": best[1], "validation": best[0], "seconds": seconds, "every fifth epoch": curve}


def _at(run: Record, epoch: int, reduce: Any = lambda values: values[-1]) -> float:
    """Of the validation accuracies up to this epoch."""
    curve = run["every fifth epoch"][: epoch // 5]
    return float(reduce(curve)) if len(curve) == epoch // 5 else float("nan")


def _report(ledger: dict[str, Record]) -> None:
    groups: dict[str, list[Record]] = {}
    for key, record in ledger.items():
        groups.setdefault(key.rpartition("|")[0], []).append(record)
    title = ""
    for group, runs in sorted(groups.items(), key=lambda item: item[0].rpartition("|")[0]):
        head, _, case = group.rpartition("|")
        if head != title:
            title = head
            names = ("by 50", "by 100", "at 50", "at 100", "seconds")
            print(f"\n{head}\n{'':34}{'validation':>14}{'test':>14}" + "".join(f"{name:>9}" for name in names) + "  seeds")
        found = {name: [run[name] for run in runs] for name in ("validation", "test", "seconds")}
        columns = [f"{mean(found[name]):.1f} ± {pstdev(found[name]):.1f}" for name in ("validation", "test")]
        early = [mean(_at(run, epoch, how) for run in runs) for how in (max, lambda values: values[-1]) for epoch in (50, 100)]
        text = "".join(f"{value:>9.1f}" for value in (*early, mean(found["seconds"])))
        print(f"{case:34}{columns[0]:>14}{columns[1]:>14}{text}  {len(runs)}")


if __name__ == "__main__":
    main()
