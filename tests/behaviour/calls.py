"""Calls that cover every command, scheme, skip, entry kind, method, layer and file format.

Each returns numbers by name. `tools/behaviour.py` compares their bytes on one machine, before and after a change that should
change nothing; the test suite compares them with recorded ones up to rounding, on any machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_geometric.nn as pyg

import unifews as uf
from unifews.datasets.gencat import gencat

N, WIDTH = 90, 24
Values = dict[str, np.ndarray]
CALLS: dict[str, Callable[[Path], Values]] = {}
EXTRAS = {"exported_to_onnx": ("onnx", "onnxscript", "onnxruntime")}
"""Packages that a call needs and that may not be installed."""

DATA = gencat(N, 400, features=WIDTH, classes=3, seed=7, name="mine")


def directed() -> uf.Graph:
    """A weighted, directed graph with isolated nodes."""
    rng = np.random.default_rng(3)
    return uf.Graph.from_edge_index(rng.integers(0, N - 6, (2, 300)), N, rng.uniform(0.5, 2, 300))


def call(function: Callable[[Path], Values]) -> Callable[[Path], Values]:
    CALLS[function.__name__] = function
    return function


def flat(value: Any, name: str = "") -> Values:
    """The numbers in nested dicts and lists, apart from what was measured by a clock or names a machine or a place."""
    if isinstance(value, dict):
        named = [(f"{name}.{key}", part) for key, part in sorted(value.items()) if not _passing(key)]
        return {path: array for key, part in named for path, array in flat(part, key).items()}
    if isinstance(value, list | tuple):
        return {path: array for i, part in enumerate(value) for path, array in flat(part, f"{name}.{i}").items()}
    if isinstance(value, bool | int | float | np.number):
        return {name.lstrip("."): np.array(value, dtype=np.float64)}
    return {}


def packed(values: Values) -> Values:
    """The same with single numbers in one vector, beside their names."""
    single = sorted(name for name, array in values.items() if not array.ndim)
    numbers = {"names": np.array(single, dtype=np.str_), "numbers": np.array([float(values[name]) for name in single])}
    return {name: array for name, array in values.items() if array.ndim} | numbers


def _passing(key: str) -> bool:
    return "seconds" in key or key in ("symmetric", "versions", "machine", "kernel", "finished", "gains", "speedup")


def propagated(out: Any) -> Values:
    trace = out.trace
    counts = {"kept": [hop.kept for hop in trace.hops], "macs": trace.macs, "sparsity": trace.edge_sparsity}
    return {"embedding": np.asarray(out.embedding), **flat(counts)}


def files(folder: Path) -> Values:
    """Every array in a folder, and the counts of its JSON files."""
    found: Values = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".npy":
            found[name] = np.load(path)
        elif path.suffix == ".json":
            found |= flat(json.loads(path.read_text()), name)
    return found


# ---------------------------------------------------------------------------------------------------------- propagation


def _propagation(name: str, graph: Callable[[], uf.Graph] | None = None, **options: Any) -> None:
    def run(place: Path) -> Values:
        return propagated(uf.propagate(DATA.graph if graph is None else graph(), DATA.x, threads=1, **{"hops": 6, **options}))

    CALLS[name] = run


_propagation("appnp_unpruned")
_propagation("sgc_unpruned", scheme="sgc")
_propagation("heat_kernel", scheme=uf.Polynomial.heat(3.0), hops=None)
_propagation("blocks_on_principal_components", edge_sparsity=0.6)
_propagation("identity_skip", scheme=uf.Sgc(skip="identity"), edge_sparsity=0.5)
_propagation("identity_and_loop", scheme=uf.Sgc(skip="identity+loop"), threshold=0.05)
_propagation("paper_form", threshold=0.02, entries="node", basis="input", inherit=True)
_propagation("single_features", relative_threshold=0.4, entries="feature", basis="input")
_propagation("weighted_directed_mean", directed, r=0.0, edge_sparsity=0.5)
_propagation("certified_error", max_error=0.3, certify=True)


@call
def sparse_features_few_components(place: Path) -> Values:
    from scipy.sparse import csr_array

    x = csr_array(np.where(np.abs(DATA.x) > 0.8, DATA.x, 0).astype(np.float32))
    return propagated(uf.propagate(DATA.graph, x, hops=6, edge_sparsity=0.5, rank=8, threads=1))


@call
def every_hop(place: Path) -> Values:
    out = uf.propagate(DATA.graph, DATA.x, hops=3, edge_sparsity=0.5, every_hop=True, threads=1)
    return {f"hop {i}": np.asarray(hop) for i, hop in enumerate(out.hop_embeddings)}


@call
def out_of_core(place: Path) -> Values:
    DATA.graph.save(place / "g")
    uf.propagate(uf.Graph.open(place / "g"), DATA.x, hops=4, edge_sparsity=0.7, out=place / "p.npy", memory="8GB", threads=1)
    return {"embedding": np.load(place / "p.npy")}


@call
def out_of_core_resumed(place: Path) -> Values:
    """Interrupted after the third of four hops, and resumed from its working folder."""
    DATA.graph.save(place / "g")
    graph, steps = uf.Graph.open(place / "g"), []

    def stop(done: int, total: int) -> None:
        steps.append(done)
        if len(steps) == 4:  # the first step is the layout of the features
            raise KeyboardInterrupt

    how = dict(hops=4, edge_sparsity=0.7, out=place / "p.npy", memory="8GB", checkpoint_every_hop=True, threads=1)
    try:
        uf.propagate(graph, DATA.x, progress=stop, **how)
    except KeyboardInterrupt:
        assert (place / "p.npy.work").is_dir()
    out = uf.propagate(graph, DATA.x, progress=stop, **how)
    return {"embedding": np.load(place / "p.npy"), "steps": np.array(steps), **propagated(out)}


# --------------------------------------------------------------------------------------------------------------- layers


def _layers(name: str, build: Callable[[], torch.nn.Module], **options: Any) -> None:
    def run(place: Path) -> Values:
        model, found = trained(build, **options)
        fast = uf.compress(model, torch.from_numpy(DATA.x), edges())
        uf.save(fast, place / "frozen")
        again = uf.load(place / "frozen")
        return found | {"frozen": again(torch.from_numpy(DATA.x), edges()).numpy()}

    CALLS[name] = run


def edges() -> torch.Tensor:
    return torch.from_numpy(DATA.graph.to_edge_index())


def trained(build: Callable[[], torch.nn.Module], **options: Any) -> tuple[torch.nn.Module, Values]:
    torch.manual_seed(5)
    model = uf.sparsify(
        build(), **{"edge_sparsity": 0.5, "weight_sparsity": 0.5, "entries": "unit", "renormalize": False, "ramp": 2, **options}
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, y = torch.from_numpy(DATA.x), torch.from_numpy(DATA.y)
    for _ in range(4):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x, edges()), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        scores = model(x, edges())
    trace = uf.trace(model)
    return model, {"scores": scores.numpy()} | flat({"macs": trace.macs, "edges": trace.edge_sparsity})


_layers("gcn_columns", lambda: pyg.GCN(WIDTH, 16, 2, 3))
_layers("gcn_whole_edges_inherited", lambda: pyg.GCN(WIDTH, 16, 2, 3), entries="node", inherit=True, weight_sparsity=None)
_layers("gcn_blocks", lambda: pyg.GCN(WIDTH, 32, 2, 3), entries="block")
_layers("gatv2_columns", lambda: pyg.GAT(WIDTH, 16, 2, 3, v2=True, heads=2))
_layers("sage_features", lambda: pyg.GraphSAGE(WIDTH, 16, 2, 3), entries="feature")
_layers("gin_columns", lambda: pyg.GIN(WIDTH, 16, 2, 3))


class Hops(torch.nn.Module):
    """Layers that no kernel of their own serves."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = pyg.TAGConv(WIDTH, 16, K=2), pyg.SGConv(16, 3, K=2)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


_layers("several_hops_in_a_layer", Hops)


@call
def a_checkpoint(place: Path) -> Values:
    model, found = trained(lambda: pyg.GCN(WIDTH, 16, 2, 3))
    uf.save(model, place / "training")
    again = uf.load(place / "training", into=pyg.GCN(WIDTH, 16, 2, 3))
    with torch.no_grad():
        return found | {"again": again.eval()(torch.from_numpy(DATA.x), edges()).numpy()}


# ------------------------------------------------------------------------------------------------------------- training


def _training(name: str, **settings: Any) -> None:
    def run(place: Path) -> Values:
        return flat(uf.train(DATA, **{"epochs": 3, "width": 8, "seeds": 2, "seed": 42, **settings}).to_dict())

    CALLS[name] = run


_training("train_appnp", model="appnp", hops=4, edge_sparsity=0.5, weight_sparsity=0.5)
_training("train_gcnii", model="gcnii", edge_sparsity=0.5, weight_sparsity=0.5)
_training("train_gat_by_random_edges", model="gat", method="random", edge_sparsity=0.5)
_training("train_gcn_by_dspar", model="gcn", method="dspar", edge_sparsity=0.5)
_training("train_gcn_by_glt", model="gcn", method="glt:rounds=1", edge_sparsity=0.3, weight_sparsity=0.3)
_training("train_gcn_by_gebt", model="gcn", method="gebt", edge_sparsity=0.3, weight_sparsity=0.3)
_training("train_gcn_by_cgp", model="gcn", method="cgp", edge_sparsity=0.3, weight_sparsity=0.3)
_training("train_links", model="gcn", task="links", edge_sparsity=0.5)
_training("train_sgc_by_nigcn", model="sgc", method="nigcn", hops=4)
_training("train_sgc_by_ndls", model="sgc", method="ndls", hops=4)
_training("train_appnp_by_agp", model="appnp", method="agp", hops=4, edge_threshold=0.01)
_training("train_sgc_by_unifews_push", model="sgc", method="unifews-push", hops=4, edge_threshold=0.01)


# ---------------------------------------------------------------------------------------------------- files and commands


@call
def a_dataset_folder(place: Path) -> Values:
    uf.save_dataset(DATA, place / "d")
    return files(place / "d")


@call
def exported_to_onnx(place: Path) -> Values:
    """Scores of onnxruntime, on the graph of the training and on one with more nodes."""
    import onnxruntime

    model, _ = trained(lambda: pyg.GCN(WIDTH, 16, 2, 3))
    made = uf.export(uf.compress(model, torch.from_numpy(DATA.x), edges()), place / "m.onnx", format="onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(made.path), options, providers=["CPUExecutionProvider"])
    inputs = {
        "same": (DATA.x, DATA.graph.to_edge_index()),
        "more": (np.concatenate([DATA.x, DATA.x[:2]]), np.concatenate([DATA.graph.to_edge_index(), [[0, 90], [90, 91]]], 1)),
    }
    return {name: session.run(None, {"x": x, "edge_index": edge_index})[0] for name, (x, edge_index) in inputs.items()}


def run(*arguments: object) -> dict[str, Any]:
    """What a command prints with --json."""
    from typer.testing import CliRunner

    from unifews import cli

    result = CliRunner().invoke(cli.app, [str(argument) for argument in (*arguments, "--json")], prog_name="unifews")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@call
def commands(place: Path) -> Values:
    """Convert, propagate and train by the command line."""
    np.savetxt(place / "e.csv", directed().to_edge_index().T, fmt="%d", delimiter=",", header="source,target", comments="")
    np.save(place / "x.npy", DATA.x)
    uf.save_dataset(DATA, place / "d")
    features = ("-x", place / "x.npy", "-o", place / "p.npy", "--hops", 3, "--edge-sparsity", 0.5)
    layers = ("--model", "gcn", "--epochs", 2, "--width", 8, "--seeds", 1, "--edge-sparsity", 0.5)
    said = {
        "convert": run("data", "convert", "-e", place / "e.csv", "-o", place / "g", "--nodes", N),
        "propagate": run("propagate", place / "g", *features),
        "train": run("train", place / "d", *layers, "--ledger", place / "runs"),
    }
    return flat(said) | {"p": np.load(place / "p.npy")} | files(place / "g")


@call
def command_compare(place: Path) -> Values:
    """Two methods and the unpruned model."""
    uf.save_dataset(DATA, place / "d")
    short = ("--epochs", 2, "--width", 8, "--seeds", 1, "--ledger", place / "runs")
    return flat(run("compare", place / "d", "--methods", "random,dspar", "--edge-sparsity", ".5", *short))


@call
def command_infer(place: Path) -> Values:
    """A model that was trained on one graph predicts nodes of a larger one."""
    uf.save_dataset(gencat(N + 30, 500, features=WIDTH, classes=3, seed=8, name="larger"), place / "larger")
    model, _ = trained(lambda: pyg.GCN(WIDTH, 16, 2, 3))
    uf.save(uf.compress(model, torch.from_numpy(DATA.x), edges()), place / "model")
    said = run("infer", place / "model", place / "larger", "--nodes", f"5,{N + 20},7", "--scores", "-o", place / "some.npy")
    run("infer", place / "model", place / "larger", "--scores", "-o", place / "all.npy")
    return {"some": np.load(place / "some.npy"), "all": np.load(place / "all.npy"), **flat(said["model"] | said["graph"])}


@call
def experiment_of_the_paper(place: Path) -> Values:
    """Rows of fig:gencat, whose graphs are generated."""
    from unifews.experiments.reproduce import reproduce
    from unifews.training.ledger import Ledger

    [found] = reproduce(["gencat"], ledger=Ledger(place / "runs"), out=place / "out", datasets=["gencat:2.1,0.1"])
    return flat({"rows": found.rows()}) | files(place / "out")
