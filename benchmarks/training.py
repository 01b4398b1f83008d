"""How fast does a sparsified model train? Epoch time and peak memory beside PyG's own layers, from one interleaved run.

python benchmarks/training.py                          # GCN on the arxiv graph, 2 layers, hidden 256, full batch
python benchmarks/training.py --models gat --trials 3  # GATv2, 8 heads: PyG's own needs about 15 GB
python benchmarks/training.py --models plain-gcn,plain-sage              # PyG's ready models, 3 x 256, BatchNorm, dropout .5
python benchmarks/training.py --models plain-gcn --cases "accelerated;edge .8, weight .95"   # some cases only
python benchmarks/training.py --models plain-gcn --old OTHER/bin/python  # accelerated, beside another installed version

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
from torch_geometric.nn import GAT, GCN, GATv2Conv, GCNConv, GraphSAGE
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from unifews import accelerate, sparsify, trace
from unifews.experiments.bench import interleave, peak_bytes, ratio, summary

DROPOUT = 0.0  # as PyG's ready models; drawing 43 M random numbers would cost every candidate the same quarter second
PLAIN_DROPOUT = 0.5
CASES: dict[str, dict[str, tuple[str, dict[str, Any] | None]]] = {
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
PLAIN: dict[str, tuple[str, dict[str, Any] | None]] = {
    "PyG, edge_index": ("index", None),
    "PyG, torch.sparse CSR": ("csr", None),
    "PyG, bf16 autocast": ("bf16", None),
    "PyG, torch.compile": ("compile", None),
    "accelerated": ("accelerate", {}),
    "accelerated, torch's functions": ("accelerate", {"replace_functions": False}),
    "edge .5, weight .9": ("index", {"edge_sparsity": 0.5, "weight_sparsity": 0.9}),
    "edge .8, weight .95": ("index", {"edge_sparsity": 0.8, "weight_sparsity": 0.95}),
}
CASES |= {
    "plain-gcn": PLAIN,
    "plain-sage": PLAIN,
    "plain-gat": {name: how for name, how in PLAIN.items() if "CSR" not in name and "compile" not in name},
}
BASELINES = ("PyG, edge_index", "PyG, torch.sparse CSR", "unpruned", "accelerated")
CYCLE = 5  # epochs of one measurement of a model with pruned weights, one of which trains the removed ones (ADR-0012)


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


def plain(kind: Callable[..., nn.Module], **fixed: Any) -> Callable[..., nn.Module]:
    """A ready model of PyG, 3 layers, as its users build it."""
    return lambda inputs, classes, **how: kind(
        inputs, HIDDEN, 3, classes, norm="BatchNorm", dropout=PLAIN_DROPOUT, **fixed, **how
    )


MODELS: dict[str, Callable[..., nn.Module]] = {
    "gcn": Gcn,
    "gcnii": Gcnii,
    "gat": Gat,
    "plain-gcn": plain(GCN),
    "plain-sage": plain(GraphSAGE),
    "plain-gat": plain(GAT, v2=True, heads=HEADS),
}


def candidate(model: str, form: str, how: dict[str, Any] | None, x: Tensor, y: Tensor, edges: Tensor) -> Callable[[], Any]:
    """One epoch of this case as a function."""
    torch.manual_seed(0)
    classes = int(y.max()) + 1
    known = (y >= 0).nonzero().flatten()
    given = edges
    options: dict[str, Any] = {}
    if form == "csr" and model == "plain-sage":
        given = torch.sparse_coo_tensor(edges.flip(0), torch.ones(edges.shape[1]), (len(x), len(x))).to_sparse_csr()
    elif model not in ("gat", "plain-gat", "plain-sage"):
        options = {"cached": True} if how is None else {}
        if form == "csr":
            index, weight = gcn_norm(edges, None, len(x))
            given = torch.sparse_coo_tensor(index.flip(0), weight, (len(x), len(x))).to_sparse_csr()
            options = {"normalize": False}
    net = MODELS[model](x.shape[1], classes, **options)
    if form == "accelerate":
        assert how is not None
        net = accelerate(net, **how)
    elif how is not None:
        net = sparsify(net, **how, ramp=1)
    call = torch.compile(net) if form == "compile" else net
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    net.train()

    def epoch() -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=form == "bf16"):
            out = call(x, given)
        loss = nn.functional.cross_entropy(out.float()[known], y[known])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return float(loss.detach())

    def cycle() -> float:
        return [epoch() for _ in range(CYCLE)][-1]

    regrows = how is not None and "weight_sparsity" in how
    run = cycle if regrows else epoch
    run.net, run.epochs = net, CYCLE if regrows else 1  # type: ignore[attr-defined]
    return run


def memory(scale: str, model: str, case: str) -> int:
    """Peak bytes of the third epoch beyond graph, features and model: a fresh process each, so that none hides another."""
    _, x, y, edges = arxiv(scale)
    epoch = candidate(model, *CASES[model][case], x, y, edges)
    epoch()
    return peak_bytes(epoch) or 0


def beside(options: argparse.Namespace, console: Console) -> None:
    """Epochs of the accelerated models here and with another interpreter, in turn, a fresh process each."""
    for model in options.models.split(","):
        times: dict[str, list[float]] = {options.old: [], sys.executable: []}
        for _ in range(options.trials):
            for python, found in times.items():
                command = [python, __file__, "--scale", options.scale, "--seconds-of", model, "accelerated"]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                found.append(float(done.stdout.splitlines()[-1]))
        gain = ratio(times[options.old], times[sys.executable])
        console.print(f"[bold]{model}[/], accelerated: {summary(times[options.old])['median']:.3f} s with --old, ", end="")
        console.print(f"{summary(times[sys.executable])['median']:.3f} s here, ", end="")
        console.print(f"{gain['median']:.2f}x ({gain['low']:.2f} - {gain['high']:.2f})")


def seconds(scale: str, model: str, case: str) -> float:
    """Median seconds of five epochs after two."""
    _, x, y, edges = arxiv(scale)
    run = {case: candidate(model, *CASES[model][case], x, y, edges)}
    interleave(run, 2)
    return float(summary(interleave(run, 5)[case])["median"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="gcn", help=f"of {', '.join(CASES)}")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--skip", default="", help="cases to leave out, separated by ; (for a machine with little memory)")
    parser.add_argument("--cases", default="", help="cases to run, separated by ;; default: all but torch.compile")
    parser.add_argument("--memory", action="store_true", help="also the peak memory of each case, in a process of its own")
    parser.add_argument("--json", default=None, help="also write the figures to this file")
    parser.add_argument("--memory-of", nargs=2, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--seconds-of", nargs=2, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--old", default=None, help="interpreter of another version, to compare the plain models with")
    options = arguments(parser, trials=1)
    if options.seconds_of:
        print(seconds(options.scale, *options.seconds_of))
        return
    if options.memory_of:
        print(memory(options.scale, *options.memory_of))
        return
    for model in options.models.split(","):
        if model not in CASES:
            parser.error(f"there is no model {model!r} here; --models takes {', '.join(CASES)}.")
    console, results = Console(width=110), []
    if options.old:
        beside(options, console)
        return
    for model in options.models.split(","):
        skipped = options.skip.split(";") + ([] if options.cases else ["PyG, torch.compile"])
        chosen = options.cases.split(";") if options.cases else CASES[model]
        cases = {name: how for name, how in CASES[model].items() if name in chosen and name not in skipped}
        if not cases:
            parser.error(f"{model} has no case {options.cases!r}; it has {'; '.join(CASES[model])}.")
        peaks: dict[str, int] = {}
        for name in cases if options.memory else ():
            command = [sys.executable, __file__, "--scale", options.scale, "--memory-of", model, name]
            peaks[name] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        label, x, y, edges = arxiv(options.scale)
        runs = {name: candidate(model, *how, x, y, edges) for name, how in cases.items()}
        interleave(runs, 2)  # warm
        times = interleave(runs, options.trials)
        for name, run in runs.items():
            times[name] = [value / run.epochs for value in times[name]]  # type: ignore[attr-defined]
        console.print(f"[bold]{model}[/] on {label}: one epoch, full batch, hidden {HIDDEN}")
        for name, run in runs.items():
            against = [
                f"{value['median']:.2f}x ({value['low']:.2f} - {value['high']:.2f}) {baseline}"
                for baseline in BASELINES
                if baseline in times and baseline != name
                for value in [ratio(times[baseline], times[name])]
            ]
            seen = trace(run.net) if cases[name][0] == "index" and cases[name][1] else None  # type: ignore[attr-defined]
            kept = f", {seen.edge_sparsity:.1%} of edge and {seen.weight_sparsity:.1%} of weights removed" if seen else ""
            memory_of = f"  {peaks[name] / 2**20:7,.0f} MiB" if name in peaks else ""
            console.print(f"  {name:<30} {summary(times[name])['median']:7.3f} s{memory_of}{kept}")
            for line in against if not name.startswith("PyG") else []:
                console.print(f"      {line}")
            results.append({"model": model, "case": name, "seconds": times[name], "peak": peaks.get(name)})
    if options.json:
        with open(options.json, "w") as file:  # noqa: PTH123
            json.dump(results, file)


if __name__ == "__main__":
    main()
