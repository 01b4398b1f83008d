"""How fast does a sparsified model train? Epoch time and peak memory beside PyG's own layers, from one interleaved run.

python benchmarks/training.py                          # GCN on the arxiv graph, 2 layers, hidden 256, full batch
python benchmarks/training.py --models gat --trials 3  # GATv2, 8 heads: PyG's own needs about 15 GB

PyG gets its best form: normalisation cached (edge_index), or done beforehand (torch.sparse CSR). Without the real graph
(UNIFEWS_DATA) a generated one of the same size is used.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from data import arguments, arxiv
from models import HEADS, HIDDEN, Gcnii
from rich.console import Console
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv, GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from unifews import sparsify, trace
from unifews.experiments.bench import interleave, peak_bytes, ratio, summary

DROPOUT = 0.0  # as PyG's ready models; drawing 43 M random numbers would cost every candidate the same quarter second
CASES = {
    "gcn": {
        "PyG, edge_index": ("index", None),
        "PyG, torch.sparse CSR": ("csr", None),
        "unpruned": ("index", {}),
        "edge .8": ("index", {"edge_sparsity": 0.8}),
        "edge .8, weight .9": ("index", {"edge_sparsity": 0.8, "weight_sparsity": 0.9}),
    },
    "gcnii": {
        "PyG, edge_index": ("index", None),
        "PyG, torch.sparse CSR": ("csr", None),
        "unpruned": ("index", {}),
        "weight .9": ("index", {"weight_sparsity": 0.9}),
        "edge .8, weight .9": ("index", {"edge_sparsity": 0.8, "weight_sparsity": 0.9}),
    },
    "gat": {
        "PyG, edge_index": ("index", None),
        "unpruned": ("index", {}),
        "edge .8": ("index", {"edge_sparsity": 0.8}),
    },
}
BASELINES = ("PyG, edge_index", "PyG, torch.sparse CSR")


class Gcn(nn.Module):
    def __init__(self, inputs: int, classes: int, **how: Any) -> None:
        super().__init__()
        self.first, self.second = GCNConv(inputs, HIDDEN, **how), GCNConv(HIDDEN, classes, **how)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = nn.functional.dropout(self.first(x, edges).relu(), DROPOUT, self.training)
        out: Tensor = self.second(h, edges)
        return out


class Gat(nn.Module):
    def __init__(self, inputs: int, classes: int, **how: Any) -> None:
        super().__init__()
        self.first, self.second = GATv2Conv(inputs, HIDDEN // HEADS, HEADS), GATv2Conv(HIDDEN, classes, 1)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = nn.functional.dropout(self.first(x, edges).relu(), DROPOUT, self.training)
        out: Tensor = self.second(h, edges)
        return out


MODELS: dict[str, type[nn.Module]] = {"gcn": Gcn, "gcnii": Gcnii, "gat": Gat}


def candidate(model: str, form: str, how: dict[str, Any] | None, x: Tensor, y: Tensor, edges: Tensor) -> Callable[[], Any]:
    """One epoch of this case as a function."""
    torch.manual_seed(0)
    classes = int(y.max()) + 1
    known = (y >= 0).nonzero().flatten()
    given = edges
    options: dict[str, Any] = {}
    if model != "gat":
        options = {"cached": True} if how is None else {}
        if form == "csr":
            index, weight = gcn_norm(edges, None, len(x))
            given = torch.sparse_coo_tensor(index.flip(0), weight, (len(x), len(x))).to_sparse_csr()
            options = {"normalize": False}
    net = MODELS[model](x.shape[1], classes, **options)
    if how is not None:
        net = sparsify(net, **how, ramp=1)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    net.train()

    def epoch() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x, given)[known], y[known])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return float(loss.detach())

    epoch.net = net  # type: ignore[attr-defined]
    return epoch


def memory(scale: str, model: str, case: str) -> int:
    """Peak bytes of the third epoch beyond graph, features and model: a fresh process each, so that none hides another."""
    _, x, y, edges = arxiv(scale)
    epoch = candidate(model, *CASES[model][case], x, y, edges)  # type: ignore[misc]
    epoch()
    return peak_bytes(epoch) or 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="gcn", help="of gcn, gcnii, gat")
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--skip", default="", help="cases to leave out, for a machine with little memory")
    parser.add_argument("--json", default=None, help="also write the figures to this file")
    parser.add_argument("--memory-of", nargs=2, default=None, help=argparse.SUPPRESS)
    options = arguments(parser, trials=1)
    if options.memory_of:
        print(memory(options.scale, *options.memory_of))
        return
    for model in options.models.split(","):
        if model not in CASES:
            parser.error(f"there is no model {model!r} here; --models takes {', '.join(CASES)}.")
    console, results = Console(width=110), []
    for model in options.models.split(","):
        cases = {name: how for name, how in CASES[model].items() if name not in options.skip.split(";")}
        peaks = {}
        for name in cases:
            command = [sys.executable, __file__, "--scale", options.scale, "--memory-of", model, name]
            peaks[name] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        label, x, y, edges = arxiv(options.scale)
        runs = {name: candidate(model, *how, x, y, edges) for name, how in cases.items()}  # type: ignore[misc]
        interleave(runs, 2)  # warm
        times = interleave(runs, options.trials)
        console.print(f"[bold]{model}[/] on {label}: one epoch, full batch, hidden {HIDDEN}")
        for name, run in runs.items():
            against = [
                f"{value['median']:.2f}x ({value['low']:.2f} - {value['high']:.2f}) {baseline}"
                for baseline in BASELINES
                if baseline in times and baseline != name
                for value in [ratio(times[baseline], times[name])]
            ]
            seen = trace(run.net) if cases[name][1] else None  # type: ignore[attr-defined]
            kept = f", {seen.edge_sparsity:.1%} of edge and {seen.weight_sparsity:.1%} of weights removed" if seen else ""
            console.print(f"  {name:<24} {summary(times[name])['median']:7.3f} s  {peaks[name] / 2**20:7,.0f} MiB{kept}")
            for line in against if name not in BASELINES else []:
                console.print(f"      {line}")
            results.append({"model": model, "case": name, "seconds": times[name], "peak": peaks[name]})
    if options.json:
        with open(options.json, "w") as file:  # noqa: PTH123
            json.dump(results, file)


if __name__ == "__main__":
    main()
