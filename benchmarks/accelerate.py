"""How much faster does a PyG model run on our kernels, with nothing pruned? `uf.accelerate(model)` beside PyG, interleaved.

python benchmarks/accelerate.py                        # GCN, GraphSAGE, GAT, GCNII on the arxiv graph, 2 layers, hidden 256
python benchmarks/accelerate.py --models gat --trials 3

Evaluation is one forward pass without gradients, a training step a forward and backward pass and a step of Adam, both on the
whole graph. While features stay the same tensor, the product of the first layer with them is made once, if that layer
propagates before its weights; "new features" hands the accelerated model a copy of them each time, so that nothing is kept.
PyG is given `edge_index`, as most code has it, and a torch.sparse CSR matrix, normalised beforehand, where its layers take one.
Without the real graph (UNIFEWS_DATA) a generated one of the same size is used.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from typing import Any

import torch
from data import arguments, arxiv
from models import HEADS, HIDDEN, Gcnii
from rich.console import Console
from torch import Tensor, nn
from torch_geometric.nn import GAT, GCN, GraphSAGE
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from unifews import accelerate
from unifews.experiments.bench import interleave, ratio, summary

PYG, CSR, OURS, FRESH = "PyG, edge_index", "PyG, torch.sparse CSR", "accelerated", "accelerated, new features"


Make = Callable[..., nn.Module]
MODELS: dict[str, Make] = {
    "gcn": lambda inputs, classes, **how: GCN(inputs, HIDDEN, 2, classes, **how),
    "sage": lambda inputs, classes, **how: GraphSAGE(inputs, HIDDEN, 2, classes, **how),
    "gat": lambda inputs, classes, **how: GAT(inputs, HIDDEN, 2, classes, heads=HEADS, **how),
    "gcnii": Gcnii,
}


def candidates(model: str, x: Tensor, y: Tensor, edges: Tensor, *, trains: bool) -> dict[str, Callable[[], Tensor]]:
    """One evaluation or training step of each form of a model, all with the same weights."""
    classes = int(y.max()) + 1
    forms: dict[str, tuple[nn.Module, Tensor]] = {}

    def build(**how: Any) -> nn.Module:
        torch.manual_seed(0)
        return MODELS[model](x.shape[1], classes, **how)

    forms[PYG] = build(), edges
    if model == "sage":
        matrix = torch.sparse_coo_tensor(edges.flip(0), torch.ones(edges.shape[1]), (len(x), len(x)))
        forms[CSR] = build(), matrix.to_sparse_csr()
    elif model != "gat":
        index, weight = gcn_norm(edges, None, len(x))
        forms[CSR] = build(normalize=False), torch.sparse_coo_tensor(index.flip(0), weight, (len(x), len(x))).to_sparse_csr()
    forms[OURS] = accelerate(build()), edges
    forms[FRESH] = accelerate(build()), edges
    return {name: (_step if trains else _evaluation)(net, x, y, given, name == FRESH) for name, (net, given) in forms.items()}


def _evaluation(net: nn.Module, x: Tensor, y: Tensor, edges: Tensor, fresh: bool) -> Callable[[], Tensor]:
    net.eval()

    @torch.no_grad()
    def run() -> Tensor:
        out: Tensor = net(x.clone() if fresh else x, edges)
        return out

    return run


def _step(net: nn.Module, x: Tensor, y: Tensor, edges: Tensor, fresh: bool) -> Callable[[], Tensor]:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    known = (y >= 0).nonzero().flatten()
    net.train()

    def run() -> Tensor:
        optimizer.zero_grad()
        out: Tensor = net(x.clone() if fresh else x, edges)
        nn.functional.cross_entropy(out[known], y[known]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return out.detach()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="gcn,sage,gat,gcnii", help="of gcn, sage, gat, gcnii")
    parser.add_argument("--trials", type=int, default=7)
    parser.add_argument("--json", default=None, help="also write the figures to this file")
    options = arguments(parser, trials=1)
    for model in options.models.split(","):
        if model not in MODELS:
            parser.error(f"there is no model {model!r} here; --models takes {', '.join(MODELS)}.")
    label, x, y, edges = arxiv(options.scale)
    console, results = Console(width=110), []
    console.print(f"{label}: {len(x):,} nodes, {edges.shape[1]:,} edges, {x.shape[1]} features, hidden {HIDDEN}; ", end="")
    console.print(f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}")
    for model in options.models.split(","):
        for trains in (False, True):
            runs = candidates(model, x, y, edges, trains=trains)
            first = {name: run() for name, run in runs.items()}  # warm; all have the same weights still
            interleave(runs, 1)
            times = interleave(runs, options.trials)
            error = float((first[OURS] - first[PYG]).norm() / first[PYG].norm())
            what = "training step" if trains else "evaluation"
            console.print(f"[bold]{model}[/], {what}: relative difference from PyG {error:.1e}")
            for name in runs:
                against = [
                    f"{value['median']:.1f}x ({value['low']:.1f} - {value['high']:.1f}) {baseline.removeprefix('PyG, ')}"
                    for baseline in (PYG, CSR)
                    if baseline in times and name in (OURS, FRESH)
                    for value in [ratio(times[baseline], times[name])]
                ]
                console.print(f"  {name:<26} {summary(times[name])['median']:7.3f} s   {'; '.join(against)}")
                results.append({"model": model, "what": what, "case": name, "seconds": times[name], "error": error})
    console.print(f"load {os.getloadavg()[0]:.1f} at the end")
    if options.json:
        with open(options.json, "w") as file:  # noqa: PTH123
            json.dump(results, file)


if __name__ == "__main__":
    main()
