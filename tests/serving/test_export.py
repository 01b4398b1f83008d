"""`export`: the same scores in programs that do not have this library, and what it says they cannot do."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.nn import GAT, GCN, GIN, GCN2Conv, GraphSAGE

import unifews as uf
from unifews.datasets.gencat import gencat
from unifews.errors import InputError, MissingFileError, UnknownNameError
from unifews.serving import export as module
from unifews.serving.portable import PortableProgram
from unifews.serving.program import ACTIVATIONS, Program, Step

pytestmark = pytest.mark.slow

FEATURES, NODES = 12, 60


class Gcnii(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 32), nn.Linear(32, 5)
        self.convs = nn.ModuleList([GCN2Conv(32, 0.1, 0.5, i + 1, shared_weights=i == 0) for i in range(2)])

    def forward(self, x, edge_index):
        x = start = self.first(x).relu()
        for conv in self.convs:
            x = conv(x, start, edge_index).relu()
        return self.last(x)


MODELS = {
    "gcn": lambda: GCN(FEATURES, 32, 2, 5, norm="batch_norm"),
    "sage": lambda: GraphSAGE(FEATURES, 32, 2, 5, jk="cat"),
    "gin": lambda: GIN(FEATURES, 32, 2, 5),
    "gcnii": Gcnii,
    "gatv2": lambda: GAT(FEATURES, 32, 2, 5, v2=True, heads=4),
    "gat": lambda: GAT(FEATURES, 32, 2, 5, v2=False, heads=4),
}


def graph(nodes, edges, seed):
    """Features and edges, self-loops and repeated edges among them."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(nodes, FEATURES, generator=draw), torch.randint(0, nodes, (2, edges), generator=draw)


def trained(name, **pruning):
    torch.manual_seed(3)
    x, edges = graph(NODES, 300, seed=11)
    model = uf.sparsify(MODELS[name](), **{"edge_sparsity": 0.5, "weight_sparsity": 0.7, "entries": "unit", **pruning})
    optimizer, y = torch.optim.Adam(model.parameters(), lr=0.01), torch.arange(NODES) % 5
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x, edges), y).backward()
        optimizer.step()
    return model


@cache
def frozen(name, **pruning):
    return uf.compress(trained(name, **pruning), *graph(NODES, 300, seed=11))


def session(path, threads=1):
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    loaded = runtime.InferenceSession(path, options)

    def run(*given):
        names = [value.name for value in loaded.get_inputs()]
        return torch.from_numpy(loaded.run(None, {n: g.numpy() for n, g in zip(names, given, strict=True)})[0])

    return run


def same(found, expected, limit=1e-4):
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= limit * float(expected.abs().max())


@pytest.mark.parametrize("entries", ["unit", "block", "feature", "node"])
@pytest.mark.parametrize("name", MODELS)
def test_index_tensors_give_what_kernels_give(name, entries):
    fast = frozen(name, entries=entries)
    given = graph(41, 250, seed=13)
    same(PortableProgram(fast.program)(*given), fast(*given))


def test_edge_weights_are_used_as_layers_use_them():
    for improved in (False, True):
        torch.manual_seed(3)
        x, edges = graph(NODES, 300, seed=11)
        model = uf.sparsify(GCN(FEATURES, 32, 2, 5, improved=improved), edge_sparsity=0.5, entries="unit")
        model(x, edges, edge_weight=torch.rand(300))
        fast = uf.compress(model, x, edges, torch.rand(300))
        x, edges = graph(41, 250, seed=13)
        edges = edges.unique(dim=1)  # of two loops at one node either may count
        weight = torch.rand(edges.shape[1])
        same(PortableProgram(fast.program)(x, edges, weight), fast(x, edges, weight))
        same(PortableProgram(fast.program)(x, edges), fast(x, edges))


@pytest.mark.parametrize("loops", [False, True])
def test_edges_that_an_earlier_layer_removed_stay_removed(loops):
    for name in ("gcn", "gatv2"):
        fast = frozen(name, entries="node", inherit=True, edge_sparsity=0.7)
        x, edges = graph(41, 250, seed=13)
        edges = edges if loops else edges[:, edges[0] != edges[1]]
        same(PortableProgram(fast.program)(x, edges), fast(x, edges))


@pytest.mark.parametrize("name, entries", [("sage", "block"), ("gatv2", "unit")])
def test_torch_takes_graphs_of_any_size(tmp_path, name, entries):
    fast = frozen(name, entries=entries)
    uf.export(fast, tmp_path / "m.pt2")
    loaded = torch.export.load(tmp_path / "m.pt2").module()
    for nodes, edges in [(41, 250), (300, 2000), (5, 1), (1, 0)]:
        given = graph(nodes, edges, seed=17)
        same(loaded(*given), fast(*given))


@pytest.mark.parametrize("name, entries", [("gin", "node"), ("gatv2", "feature")])
def test_onnx_takes_graphs_of_any_size(tmp_path, name, entries):
    pytest.importorskip("onnxruntime")
    fast = frozen(name, entries=entries)
    uf.export(fast, tmp_path / "m.onnx", format="onnx")
    run = session(tmp_path / "m.onnx")
    for nodes, edges in [(41, 250), (300, 2000), (5, 1), (1, 0)]:
        given = graph(nodes, edges, seed=17)
        same(run(*given), fast(*given))


def test_onnx_adds_every_message_on_several_threads_and_says_what_it_is(tmp_path):
    """ScatterND, which index_add becomes, loses messages here."""
    onnx = pytest.importorskip("onnx")
    fast = frozen("gcn", entries="unit")
    made = uf.export(fast, tmp_path / "m.onnx", format="onnx")
    run, given = session(made.path, threads=4), graph(20_000, 400_000, seed=19)
    expected = fast(*given)
    for _ in range(3):
        same(run(*given), expected)

    model = onnx.load(made.path)
    assert json.loads({p.key: p.value for p in model.metadata_props}["unifews"])["limits"] == list(made.limits)
    assert [use.version for use in model.opset_import if use.domain == ""] == [module.OPSET]
    assert [value.name for value in model.graph.output] == ["scores"]


def test_onnx_with_edge_weights_from_a_model_that_is_not_frozen(tmp_path):
    pytest.importorskip("onnxruntime")
    x, edges = graph(NODES, 300, seed=11)
    made = uf.export(trained("gcn"), tmp_path / "m.onnx", "onnx", x=x, edge_index=edges, weighted=True)
    assert made.inputs == ("x", "edge_index", "edge_weight")
    weight = torch.rand(300) + 0.5
    same(session(made.path)(x, edges, weight), frozen("gcn")(x, edges, weight))


@pytest.mark.parametrize("format, suffix", [("torch", "pt2"), ("onnx", "onnx")])
def test_a_decoupled_model_is_given_an_embedding(tmp_path, format, suffix):
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    data = gencat(300, 900, features=FEATURES, classes=3, seed=7, name="mine")
    model = uf.train(data, hops=3, width=8, epochs=3, edge_sparsity=0.8, weight_sparsity=0.5).model
    made = uf.export(model, tmp_path / f"m.{suffix}", format, x=data.x, edge_index=data.graph)
    assert made.inputs == ("embedding",)
    assert any("does not propagate" in limit for limit in made.limits)
    how = {**made.propagation, "scheme": uf.Appnp(**{k: v for k, v in made.propagation["scheme"].items() if k != "name"})}
    rows = torch.from_numpy(np.asarray(uf.propagate(data.graph, data.x, **how).embedding))
    run = session(made.path) if format == "onnx" else torch.export.load(made.path).module()
    same(run(rows), model(data.x, data.graph))


def test_every_activation_and_every_step_that_sees_one_row(tmp_path):
    pytest.importorskip("onnxruntime")
    steps, last = [], 0
    for kind in ACTIVATIONS:
        steps.append(Step("activate", (last,), {"kind": kind, "slope": 0.7}))
        last = len(steps)
    steps += [
        Step("product", (last, 0)),
        Step("max", (last, 0, last + 1)),
        Step("cat", (last + 2, 0)),
        Step("mean_heads", (last + 3,), {"heads": 4}),
        Step("normalize", (last + 4,), {"eps": 1e-12}),
        Step("layer_norm", (last + 5,), {"eps": 1e-5}, {"scale": torch.rand(6), "shift": torch.rand(6)}),
        Step("affine", (last + 6,), {"relu": True}, {"mean": torch.rand(6), "scale": torch.rand(6), "shift": torch.rand(6)}),
        Step("sum", (last + 7, last + 6), {"factors": [2.0, -1.0], "relu": False}),
        Step("softmax", (last + 8,), {"log": False}),
        Step("softmax", (last + 9,), {"log": True}),
    ]
    fast = uf.FrozenModel(Program(FEATURES, tuple(steps)))
    made = uf.export(fast, tmp_path / "m.onnx", "onnx")
    assert made.inputs == ("x",)
    x, edges = graph(41, 250, seed=13)
    same(session(made.path)(x), fast(x, edges))


def test_limits_are_given_and_in_the_file(tmp_path):
    made = uf.export(frozen("gcn", entries="node"), tmp_path / "m.pt2")
    for part in ("dense, zeros included", "no predict(nodes)", "no edge weights", "list of removed edges is not in it"):
        assert any(part in limit for limit in made.limits)
        assert part in str(made)
    more = {"unifews.json": ""}
    torch.export.load(tmp_path / "m.pt2", extra_files=more)
    assert json.loads(more["unifews.json"])["limits"] == list(made.limits)


def test_several_threads_export_at_once(tmp_path):
    """Torch's exporters fail where two run at the same time."""
    names = ["gcn", "sage", "gin"]
    models = {name: frozen(name) for name in names}
    with ThreadPoolExecutor(len(names)) as threads:
        done = [threads.submit(uf.export, models[name], tmp_path / f"{name}.pt2") for name in names]
    assert [one.result().path.stem for one in done] == names
    given = graph(41, 250, seed=13)
    same(torch.export.load(tmp_path / "gcn.pt2").module()(*given), models["gcn"](*given))


class TestMistakes:
    def test_format_and_name(self, tmp_path):
        with pytest.raises(UnknownNameError, match=r"no format named 'onx'. Did you mean 'onnx'\?"):
            uf.export(frozen("gcn"), tmp_path / "m.onnx", "onx")
        with pytest.raises(InputError, match=r"must end in \.pt2, as files of format='torch' do"):
            uf.export(frozen("gcn"), tmp_path / "m.onnx")

    def test_packages_that_are_missing(self, tmp_path, monkeypatch):
        monkeypatch.setattr(module, "find_spec", lambda name: None if name == "onnxscript" else name)
        with pytest.raises(InputError, match=r'needs onnxscript; install it with: pip install "unifews\[export\]"'):
            uf.export(frozen("gcn"), tmp_path / "m.onnx", "onnx")

    def test_a_model_without_a_graph_to_freeze_it_on(self, tmp_path):
        with pytest.raises(InputError, match=r"GCN is not frozen yet; give the graph to freeze it on"):
            uf.export(trained("gcn"), tmp_path / "m.pt2")
        with pytest.raises(InputError, match="exported without a graph"):
            uf.export(frozen("gcn"), tmp_path / "m.pt2", x=torch.zeros(1, FEATURES))

    def test_no_model_at_all(self, tmp_path):
        with pytest.raises(InputError, match="`model` is a str"):
            uf.export("model", tmp_path / "m.pt2")

    def test_weights_that_it_has_no_place_for(self, tmp_path):
        with pytest.raises(InputError, match="does not use edge weights"):
            uf.export(frozen("gatv2"), tmp_path / "m.pt2", weighted=True)

    def test_a_file_that_is_there_stays(self, tmp_path):
        (tmp_path / "m.pt2").write_text("mine")
        with pytest.raises(InputError, match="already exists"):
            uf.export(frozen("gcn"), tmp_path / "m.pt2")
        with pytest.raises(MissingFileError, match="there is no folder"):
            uf.export(frozen("gcn"), tmp_path / "none" / "m.pt2")
        assert (tmp_path / "m.pt2").read_text() == "mine"

    def test_what_differs_is_not_written(self, tmp_path, monkeypatch):
        monkeypatch.setattr(module, "_torch", lambda program, about: (b"", lambda given: torch.ones(len(given[0]), 5)))
        with pytest.raises(InputError, match=r"differ by .* so it is not written"):
            uf.export(frozen("gcn"), tmp_path / "m.pt2")
        assert not list(tmp_path.iterdir())
