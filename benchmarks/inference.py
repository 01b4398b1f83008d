"""How much faster is inference with few weights and edges? Weight products, whole models, single nodes and files.

    python benchmarks/inference.py                                   # all rows; models are trained first, once
    python benchmarks/inference.py --rows gcn,node --trials 9
    python benchmarks/inference.py --rows products --shapes 512x512 --sparsities .7,.9,.95 --threads 1

products   a layer's weight product, beside torch dense; masks are random
gcn        GCN of 2 layers, width 512, on arxiv-sub, edge .8 and weight .9, beside the unpruned one in PyG, eval mode, its
           normalisation cached: with a torch.sparse CSR matrix (MKL), and with edge_index
head       the classifier of APPNP on arxiv-sub, 2 layers, width 512, weight .95, beside its dense weights in torch
node       one node of arxiv-sub at a time with that GCN, beside its own full forward and PyG's
sage       the same with an unpruned GraphSAGE, 3 x 256, of random weights: with and without stored hidden layers
size       the file of that GCN, beside a dense safetensors file of the same model

Contestants take turns. In `products` each gets new memory for its result at every call, as `torch.nn.functional.linear` does;
"kept" is both with the memory of their last result. Models are trained by `uf.train` for --epochs and kept in --models.
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from data import SMOKE, arguments, dataset
from numpy.typing import NDArray
from rich.console import Console

import unifews as uf
from unifews.datasets.dataset import Dataset
from unifews.experiments.bench import interleave, ratio, summary
from unifews.kernels import aligned, describe, native, threads_to_use
from unifews.kernels.packed_weight import PackedWeight, worth
from unifews.nn.decoupled import DecoupledModel
from unifews.nn.models import build
from unifews.serving.portable import PortableProgram

SHAPES = "512x512,128x256,256x40,1433x512,500x512"
SPARSITIES = "0.5,0.7,0.9,0.95"
TARGETS = {  # times as fast, or a share of the size
    "512x512 .7": 1.2,
    "512x512 .9": 3.5,
    "512x512 .95": 6.0,
    "gcn, CSR": 4.0,
    "gcn, edge_index": 8.0,
    "head": 3.0,
    "node, ms": 5.0,
    "node": 20.0,
    "sage, ms": 5.0,
    "size": 0.16,
}


@dataclass
class Bench:
    """What the rows share."""

    console: Console
    options: argparse.Namespace
    threads: int

    @cached_property
    def data(self) -> Dataset:
        return dataset(self.options.dataset)

    @cached_property
    def gcn(self) -> uf.FrozenModel:
        """Bound to the graph."""
        fast = self._kept("gcn", lambda: self._train("gcn", 0.9, edge_sparsity=0.8).model, self.data.x, self.data.graph)
        fast.threads = self.threads
        return fast.bind(self.x, self.edge_index)

    @cached_property
    def x(self) -> torch.Tensor:
        return torch.from_numpy(np.array(self.data.x, dtype=np.float32))

    @cached_property
    def edge_index(self) -> torch.Tensor:
        return torch.from_numpy(self.data.graph.to_edge_index())

    @cached_property
    def matrix(self) -> torch.Tensor:
        """The edges as a sparse matrix [receivers, senders]."""
        ones, n = torch.ones(self.edge_index.shape[1]), self.data.num_nodes
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls its sparse tensors beta
            return torch.sparse_coo_tensor(self.edge_index.flip(0), ones, (n, n)).coalesce().to_sparse_csr()

    def pyg(self) -> torch.nn.Module:
        """A new unpruned model of the same shape; how fast it is does not depend on its weights."""
        model = build("gcn", self.data.num_features, self.data.num_classes, width=512, layers=2).eval()
        for conv in model.convs:  # type: ignore[union-attr]
            conv.cached = True
        return model

    def rows(self) -> torch.Tensor:
        """Propagated features, as the head was trained on."""
        return torch.from_numpy(np.asarray(uf.propagate(self.data.graph, self.data.x, hops=20).embedding))

    def head(self, rows: torch.Tensor) -> uf.FrozenModel:
        """The classifier alone."""

        def make() -> DecoupledModel:
            return DecoupledModel(self._train("appnp", 0.95, head="embedding", hops=20, batch=8192).model.head, None, None)

        fast = self._kept("head", make, rows, self.data.graph)
        fast.threads = self.threads
        return fast

    def _train(self, model: str, weight_sparsity: float, **how: Any) -> Any:
        self.console.print(f"training {model} on {self.data.name}, {self.options.epochs} epochs")
        settings = {"weight_sparsity": weight_sparsity, "epochs": self.options.epochs, "patience": 0, "width": 512, "layers": 2}
        return uf.train(self.data, model=model, **settings, **how)

    def _kept(self, name: str, make: Callable[[], Any], x: Any, graph: Any) -> uf.FrozenModel:
        """The model in the folder, or a new one, kept there."""
        place = self.options.models / f"{self.data.name}-{name}"
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            uf.compress(make(), x, graph).save(place)
        return uf.load(place)

    def race(self, candidates: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
        with torch.no_grad():
            interleave(candidates, 1)  # warm
            return interleave(candidates, self.options.trials)

    def say(self, what: str, value: dict[str, float], target: str, ours: list[float], theirs: list[float]) -> None:
        a, b = (summary(times)["median"] * 1e3 for times in (theirs, ours))
        self.console.print(f"  {what:38} {a:8.1f} ms to {b:7.1f} ms  {_times(value)}{_verdict(target, value['median'])}")


def _times(value: dict[str, float]) -> str:
    return f"{value['median']:6.2f}x ({value['low']:.2f} - {value['high']:.2f})"


def _verdict(target: str, value: float, *, below: bool = False) -> str:
    wanted = TARGETS.get(target)
    if wanted is None:
        return ""
    holds = value <= wanted if below else value >= wanted
    return f"   {'holds' if holds else 'MISSES'} {'≤' if below else '≥'} {wanted:g}"


# ------------------------------------------------------------------------------------------------------------- products


def products(n: int, inputs: int, outputs: int, sparsity: float, threads: int) -> tuple[float, dict[str, Callable[[], Any]]]:
    """The density, and the same product by every candidate."""
    made = torch.Generator().manual_seed(86_243)
    x, bias = torch.randn(n, inputs, generator=made), torch.randn(outputs, generator=made)
    kept = torch.rand(outputs, inputs, generator=made) >= sparsity
    weight = torch.randn(outputs, inputs, generator=made) * kept
    packed, rows, plain = PackedWeight.pack(weight.numpy()), x.numpy(), bias.numpy()
    theirs, ours = torch.empty(n, outputs), aligned(n, outputs)

    def sparse_linear(out: NDArray[np.float32]) -> NDArray[np.float32]:
        native.sparse_linear(rows, packed.indptr, packed.indices, packed.values, plain, out, False, threads)
        return out

    candidates: dict[str, Callable[[], Any]] = {
        "torch": lambda: torch.nn.functional.linear(x, weight, bias),
        "packed": lambda: sparse_linear(aligned(n, outputs)),
        "torch, kept": lambda: torch.addmm(bias, x, weight.t(), out=theirs),
        "packed, kept": lambda: sparse_linear(ours),
    }
    np.testing.assert_allclose(candidates["packed"](), candidates["torch"]().numpy(), rtol=1e-3, atol=1e-3)
    return packed.density, candidates


def weight_products(bench: Bench) -> list[dict[str, Any]]:
    results, n = [], bench.options.n
    bench.console.print(f"[bold]products[/], {n:,} rows: times faster than torch dense (lowest - highest)")
    for shape in bench.options.shapes.split(","):
        inputs, outputs = map(int, shape.split("x"))
        for sparsity in map(float, bench.options.sparsities.split(",")):
            density, candidates = products(n, inputs, outputs, sparsity, bench.threads)
            times = bench.race(candidates)
            new, kept = ratio(times["torch"], times["packed"]), ratio(times["torch, kept"], times["packed, kept"])
            dense, few = (summary(times[name])["median"] * 1e3 for name in ("torch", "packed"))
            verdict = _verdict(f"{shape} {sparsity:g}".replace(" 0.", " ."), new["median"])
            bench.console.print(
                f"  {inputs:>5} → {outputs:<4} {sparsity:4.2f} removed  {dense:7.1f} ms to {few:6.1f} ms  {_times(new)}"
                f"   kept memory {_times(kept)}{'' if worth(n, inputs, outputs, density) else '   left dense'}{verdict}"
            )
            results.append({"inputs": inputs, "outputs": outputs, "rows": n, "density": density, "seconds": times})
    return results


# --------------------------------------------------------------------------------------------------------------- models


def whole_model(bench: Bench) -> dict[str, Any]:
    fast, x, edges, matrix = bench.gcn, bench.x, bench.edge_index, bench.matrix
    by_matrix, by_index = bench.pyg(), bench.pyg()  # each keeps the normalisation of its own form of the edges
    times = bench.race(
        {
            "compressed": lambda: fast(x, edges),
            "PyG, CSR": lambda: by_matrix(x, matrix),
            "PyG, edge_index": lambda: by_index(x, edges),
        }
    )
    kept, whole = fast.weights
    bench.console.print(f"[bold]gcn[/], {bench.data!r}, {fast.requested}; {kept:,} of {whole:,} weights")
    for baseline, target in (("PyG, CSR", "gcn, CSR"), ("PyG, edge_index", "gcn, edge_index")):
        value = ratio(times[baseline], times["compressed"])
        bench.say(f"against {baseline}", value, target, times["compressed"], times[baseline])
    return {"seconds": times}


def head(bench: Bench) -> dict[str, Any]:
    rows = bench.rows()
    fast = bench.head(rows)
    dense, none = PortableProgram(fast.program).eval(), torch.zeros(2, 0, dtype=torch.int64)
    with torch.no_grad():
        torch.testing.assert_close(fast(rows, none), dense(rows), rtol=1e-3, atol=1e-3)
    times = bench.race({"compressed": lambda: fast(rows, none), "torch": lambda: dense(rows)})
    kept, whole = fast.weights
    bench.console.print(f"[bold]head[/], {len(rows):,} rows, {kept:,} of {whole:,} weights")
    bench.say("against torch, dense", ratio(times["torch"], times["compressed"]), "head", times["compressed"], times["torch"])
    return {"seconds": times}


def single_nodes(bench: Bench) -> dict[str, Any]:
    fast, x, edges, matrix, model = bench.gcn, bench.x, bench.edge_index, bench.matrix, bench.pyg()
    nodes = np.random.default_rng(524_287).integers(0, bench.data.num_nodes, bench.options.nodes)
    with torch.no_grad():  # warm
        fast.predict(int(nodes[0])), fast(x, edges), model(x, matrix)
    whole: dict[str, list[float]] = {"compressed": [], "PyG, CSR": []}
    each: list[float] = []
    for part in np.array_split(nodes, bench.options.trials):  # a few nodes, then a forward of all, in turn
        for node in part:
            began = perf_counter()
            fast.predict(int(node))
            each.append(perf_counter() - began)
        with torch.no_grad():
            for name, run in (("compressed", lambda: fast(x, edges)), ("PyG, CSR", lambda: model(x, matrix))):
                began = perf_counter()
                run()
                whole[name].append(perf_counter() - began)
    median, p95 = statistics.median(each) * 1e3, float(np.percentile(each, 95)) * 1e3
    bench.console.print(f"[bold]node[/], {len(nodes):,} nodes of {bench.data!r}, one at a time")
    bench.console.print(f"  median {median:.2f} ms, 95th percentile {p95:.2f} ms{_verdict('node, ms', median, below=True)}")
    for name, times in whole.items():
        full = statistics.median(times) * 1e3
        bench.console.print(
            f"  full forward, {name:20} {full:8.1f} ms: {full / median:6.1f} times that{_verdict('node', full / median)}"
        )
    return {"seconds": each, "full": whole}


def stored_layers(bench: Bench) -> dict[str, Any]:
    from torch_geometric.nn import GraphSAGE

    x, edges, nodes = bench.x, bench.edge_index, np.random.default_rng(7).integers(0, bench.data.num_nodes, bench.options.nodes)
    torch.manual_seed(0)
    model = uf.compress(uf.accelerate(GraphSAGE(x.shape[1], 256, 3, bench.data.num_classes)).eval(), x, edges)
    seconds: dict[str, list[float]] = {}
    bench.console.print(f"[bold]sage[/], {len(nodes):,} nodes of {bench.data!r}, one at a time")
    for name, cache in (("neighbourhoods", False), ("stored layers", True)):
        model.bind(x, edges, cache=cache)
        model.predict(int(nodes[0]))
        while cache and not model.hidden_bytes:  # until earlier calls have cost as much as all nodes
            model.predict(nodes)
        found = seconds[name] = []
        for node in nodes if cache else nodes[:20]:
            began = perf_counter()
            model.predict(int(node))
            found.append(perf_counter() - began)
        median = statistics.median(found) * 1e3
        verdict = _verdict("sage, ms", median, below=True) if cache else ""
        bench.console.print(f"  {name:20} median {median:8.2f} ms, {model.hidden_bytes / 2**20:,.0f} MiB{verdict}")
    return {"seconds": seconds}


def size(bench: Bench) -> dict[str, Any]:
    from safetensors.torch import save

    bench.gcn  # noqa: B018 - trained and written
    place = bench.options.models / f"{bench.data.name}-gcn"
    dense = len(save({name: value.contiguous() for name, value in bench.pyg().state_dict().items()}))
    ours = sum(file.stat().st_size for file in place.iterdir())
    bench.console.print(
        f"[bold]size[/], {ours:,} bytes of {place.name} in all, {dense:,} dense: {ours / dense:.3f}x"
        f"{_verdict('size', ours / dense, below=True)}"
    )
    return {"bytes": ours, "dense": dense}


ROWS: dict[str, Callable[[Bench], Any]] = {
    "products": weight_products,
    "gcn": whole_model,
    "head": head,
    "node": single_nodes,
    "sage": stored_layers,
    "size": size,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS), help="which of the above")
    parser.add_argument("--trials", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, default=None, help="also write the figures to this file")
    parser.add_argument("--dataset", default="arxiv-sub")
    parser.add_argument("--models", type=Path, default=Path("runs/inference"), help="where trained models are kept")
    parser.add_argument("--epochs", type=int, default=20, help="of training")
    parser.add_argument("--nodes", type=int, default=200, help="that are predicted one at a time")
    parser.add_argument("--shapes", default=SHAPES, help="products: inputs x outputs of layers")
    parser.add_argument("--sparsities", default=SPARSITIES, help="products: share of the weights removed")
    parser.add_argument("-n", type=int, default=64_000, help="products: rows of what is multiplied")
    smoke = dict(dataset=SMOKE, trials=1, epochs=2, nodes=3, shapes="24x16", sparsities="0.9", n=100)
    options = arguments(parser, **smoke)
    unknown = set(options.rows.split(",")) - set(ROWS)
    if unknown:
        parser.error(f"no rows called {', '.join(sorted(unknown))}; known: {', '.join(ROWS)}.")
    threads = threads_to_use(options.threads)
    torch.set_num_threads(threads)
    bench = Bench(Console(width=160, highlight=False), options, threads)
    bench.console.print(describe(threads))
    results = {name: ROWS[name](bench) for name in options.rows.split(",")}
    if options.json:
        options.json.write_text(json.dumps({"threads": threads, **results}))


if __name__ == "__main__":
    main()
