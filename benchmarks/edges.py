"""What does a user's plain training loop lose when edges are removed, and what is the rule that chooses them worth?

    python benchmarks/edges.py                                           # GCN, GATv2 and SAGE on photo and cs
    python benchmarks/edges.py --graphs cora-lcc,pubmed --models gcn --seeds 5
    python benchmarks/edges.py --cases "unpruned;edge .5;random .5;node .5"

A PyG model of two layers passed to `uf.sparsify`: Adam .01, weight decay 5e-4, dropout .5, 200 epochs; 50/25/25 split by seed.
Printed per case: test accuracy at the epoch of the best validation accuracy, mean ± standard deviation over seeds; validation
accuracy at epochs 50 and 100; CPU seconds of all epochs. `--components` replaces wide features by their leading principal
components, to save time.
"""

from __future__ import annotations

import argparse
from statistics import mean, pstdev
from time import process_time
from typing import Any

import numpy as np
import torch
from data import SMOKE, arguments, load
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GAT, GCN, GraphSAGE

import unifews as uf

MODELS = {
    "gcn": lambda features, classes, width: GCN(features, width, 2, classes, dropout=0.5),
    "gatv2": lambda features, classes, width: GAT(features, width, 2, classes, dropout=0.5, heads=4, v2=True),
    "sage": lambda features, classes, width: GraphSAGE(features, width, 2, classes, dropout=0.5),
}
EDGES = {"entries": "edge"}
CASES: dict[str, dict[str, Any]] = {
    "unpruned": {},
    "unit .5": {"edge_sparsity": 0.5, "entries": "unit"},
    "unit .8": {"edge_sparsity": 0.8, "entries": "unit"},
    "unit .5, not renormalised": {"edge_sparsity": 0.5, "entries": "unit", "renormalize": False},
    "edge .5": {"edge_sparsity": 0.5, **EDGES},
    "edge .8": {"edge_sparsity": 0.8, **EDGES},
    "random .5": {"edge_sparsity": 0.5, "choice": "random", **EDGES},
    "random .8": {"edge_sparsity": 0.8, "choice": "random", **EDGES},
    "smallest .5": {"edge_sparsity": 0.5, "choice": "smallest", **EDGES},
    "smallest .8": {"edge_sparsity": 0.8, "choice": "smallest", **EDGES},
    "node .5": {"edge_sparsity": 0.5, "entries": "node"},
    "node .8": {"edge_sparsity": 0.8, "entries": "node"},
    "weight .9": {"weight_sparsity": 0.9},
    "unit .5, weight .9": {"edge_sparsity": 0.5, "weight_sparsity": 0.9, "entries": "unit"},
    "unit .8, weight .95": {"edge_sparsity": 0.8, "weight_sparsity": 0.95, "entries": "unit"},
    "edge .5, weight .9": {"edge_sparsity": 0.5, "weight_sparsity": 0.9, **EDGES},
    "edge .8, weight .95": {"edge_sparsity": 0.8, "weight_sparsity": 0.95, **EDGES},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", default="photo,cs")
    parser.add_argument("--models", default="gcn,gatv2,sage")
    parser.add_argument("--cases", default=";".join(CASES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--components", type=int, default=0, help="principal components of the features; 0: the features")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = arguments(parser, graphs=SMOKE, models="gcn", seeds=1, epochs=2, width=8)
    torch.set_num_threads(options.threads)
    for name in options.graphs.split(","):
        real = load(name)
        x = torch.from_numpy(np.asarray(real.x.todense() if hasattr(real.x, "todense") else real.x, dtype=np.float32))
        if 0 < options.components < x.shape[1]:
            torch.manual_seed(0)
            left, size, _ = torch.svd_lowrank(x, options.components, niter=3)
            x = left * size
        edge_index, y = torch.from_numpy(real.graph.to_edge_index()), torch.from_numpy(real.y).long()
        for kind in options.models.split(","):
            for case in options.cases.split(";"):
                runs = [_train(kind, CASES[case], x, edge_index, y, seed, options) for seed in range(options.seeds)]
                test, best, early, middle, seconds = zip(*runs, strict=True)
                print(
                    f"{name:10} {kind:6} {case:26} test {mean(test):.1f} ± {pstdev(test):.1f}, validation {mean(best):.1f}, "
                    f"at 50 {mean(early):.1f}, at 100 {mean(middle):.1f}; {mean(seconds):.1f} s",
                    flush=True,
                )


def _train(
    kind: str, how: dict[str, Any], x: Tensor, edge_index: Tensor, y: Tensor, seed: int, options: argparse.Namespace
) -> tuple[float, ...]:
    """Test and best validation accuracy, validation accuracy at epochs 50 and 100, CPU seconds."""
    torch.manual_seed(seed)
    known = torch.from_numpy(np.random.default_rng(seed).permutation((y >= 0).nonzero().flatten().numpy()))
    train, validation, test = known.tensor_split([len(known) // 2, 3 * len(known) // 4])
    model: nn.Module = MODELS[kind](x.shape[1], int(y.max()) + 1, options.width)
    seeded = {"choice_seed": seed} if "choice" in how else {}
    model = uf.sparsify(model, **how, **seeded) if how else uf.accelerate(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    best, at, seconds = (-1.0, -1.0), {50: float("nan"), 100: float("nan")}, 0.0
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
        at |= {epoch: score} if epoch in at else {}
        ramped = epoch > options.epochs // 2 or not how.get("weight_sparsity")  # a model whose weights are not removed yet
        if ramped and score >= best[0]:
            best = score, 100 * float(right[test].mean())
    return best[1], best[0], at[50], at[100], seconds


if __name__ == "__main__":
    main()
