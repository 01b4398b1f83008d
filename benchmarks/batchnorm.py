"""How far is evaluation mode from batch statistics? A GCN with BatchNorm in a plain loop, pruned and unpruned.

python benchmarks/batchnorm.py                                   # photo, 200 epochs, seeds 0 to 2
python benchmarks/batchnorm.py --epochs 100 --models "pruned;unpruned"

The gap of an epoch is the test accuracy in evaluation mode minus the test accuracy of the same weights with the statistics of
the graph itself (BatchNorm in training mode, everything else in evaluation mode), in points. Before the step of the optimizer
the weights are those that the last running statistics were taken with; after it, those that are evaluated, they are newer.
"""

from __future__ import annotations

import argparse
import copy
from itertools import product

import numpy as np
import torch
from data import SMOKE, Real, arguments, load
from rich.console import Console
from torch import Tensor, nn
from torch_geometric.nn import GCN

import unifews as uf
from unifews.datasets.dataset import split_stratified

PRUNED = {"edge_sparsity": 0.8, "weight_sparsity": 0.9}
MODELS: dict[str, tuple[dict[str, object] | None, float]] = {  # what `sparsify` is given, and the momentum of BatchNorm
    "pruned": (PRUNED, 0.1),
    "pruned, momentum only": ({**PRUNED, "hysteresis": 1.0}, 0.1),
    "pruned, hysteresis only": ({**PRUNED, "norm_momentum": None}, 0.1),
    "unpruned, momentum .9": (None, 0.9),
    "unpruned": (None, 0.1),
    "pruned, earlier form": ({**PRUNED, "hysteresis": 1.0, "norm_momentum": None}, 0.1),
}


def scores(model: nn.Module, x: Tensor, edges: Tensor, *, batch_statistics: bool) -> Tensor:
    """In evaluation mode; with the statistics of this graph in place of the running ones, which are left as they are."""
    model.eval()
    if batch_statistics:
        model = copy.deepcopy(model)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.train()
    with torch.no_grad():
        return model(x, edges)


def gap(model: nn.Module, x: Tensor, edges: Tensor, y: Tensor, test: np.ndarray) -> tuple[float, float]:
    """Test accuracy in evaluation mode, in percent, and how much more that is than with batch statistics."""
    both = [scores(model, x, edges, batch_statistics=own).argmax(1) == y for own in (False, True)]
    ours, exact = (100 * float(right[test].float().mean()) for right in both)
    return ours, ours - exact


def run(real: Real, name: str, dropout: float, seed: int, epochs: int, last: int) -> tuple[float, list[float], list[float]]:
    """Test accuracy in evaluation mode at the end, and gaps of the last epochs, after and before each step of the optimizer."""
    how, momentum = MODELS[name]
    dense = real.x.toarray() if hasattr(real.x, "toarray") else real.x
    x, y = torch.from_numpy(np.asarray(dense, np.float32)), torch.from_numpy(real.y).long()
    edges = torch.from_numpy(real.graph.to_edge_index())
    train, _, test = split_stratified(real.y, seed=seed)
    torch.manual_seed(seed)
    options = {"dropout": dropout, "norm": "BatchNorm", "norm_kwargs": {"momentum": momentum}}
    model: nn.Module = GCN(x.shape[1], 128, 2, int(y.max()) + 1, **options)
    if how is not None:
        model = uf.sparsify(model, **how)  # type: ignore[arg-type]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    accuracy, after, before = 0.0, [], []
    for epoch in range(epochs):
        model.train()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x, edges)[train], y[train]).backward()
        if epoch >= epochs - last:
            before.append(gap(model, x, edges, y, test)[1])
        optimizer.step()
        if epoch >= epochs - last:
            accuracy, found = gap(model, x, edges, y, test)
            after.append(found)
    return accuracy, after, before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="photo")
    parser.add_argument("--models", default=";".join(MODELS), help="separated by semicolons; default: all")
    parser.add_argument("--dropout", default="0.5,0", help="separated by commas")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--last", type=int, default=50, help="epochs at the end whose gaps are measured")
    parser.add_argument("--seeds", type=int, default=3)
    options = arguments(parser, dataset=SMOKE, epochs=4, last=2, seeds=1)
    real = load(options.dataset)
    console = Console(width=120)
    console.print(f"{real.name}, {options.epochs} epochs; gaps in points, over the last {options.last} epochs")
    console.print(f"{'model':<23} dropout seed  accuracy  at the end   mean  worst  below -.5  before the step: mean  worst")
    for name, dropout, seed in product(options.models.split(";"), map(float, options.dropout.split(",")), range(options.seeds)):
        accuracy, after, before = run(real, name, dropout, seed, options.epochs, options.last)
        below = sum(gap < -0.5 for gap in after) / len(after)
        console.print(
            f"{name:<23} {dropout:>7g} {seed:>4} {accuracy:>9.1f} {after[-1]:>11.2f} {np.mean(after):>6.2f} {min(after):>6.2f} "
            f"{below:>10.0%} {np.mean(before):>22.2f} {min(before):>6.2f}"
        )


if __name__ == "__main__":
    main()
