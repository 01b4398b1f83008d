"""`accelerate`: PyG's own model, on the kernels of this library."""

from __future__ import annotations

import copy

import frozen_models
import pytest
import torch
import torch_geometric.nn as pyg
from frozen_models import Deep, Two
from torch import nn

import unifews as uf
from unifews.errors import InputError
from unifews.nn.convs.base import PrunedConv


class Mixed(nn.Module):
    """Layers with a kernel and layers without."""

    def __init__(self):
        super().__init__()
        self.first = pyg.GCNConv(20, 32)
        self.second = pyg.SAGEConv(32, 32, aggr="max")
        self.norm = nn.BatchNorm1d(32)
        self.third = pyg.ResGatedGraphConv(32, 32)
        self.fourth = pyg.GATv2Conv(32, 16, heads=2)
        self.head = nn.Linear(32, 7)

    def forward(self, x, edge_index):
        h = self.norm(self.second(self.first(x, edge_index).relu(), edge_index)).relu()
        return self.head(self.fourth(self.third(h, edge_index).relu(), edge_index))


MODELS = {
    "gcn": lambda: pyg.GCN(20, 32, 3, 7, norm="batch"),
    "sage": lambda: pyg.GraphSAGE(20, 32, 2, 7),
    "gin": lambda: pyg.GIN(20, 32, 2, 7),
    "gat": lambda: pyg.GAT(20, 32, 2, 7, heads=4),
    "gatv2": lambda: pyg.GAT(20, 32, 2, 7, v2=True, heads=4),
    "gcnii": lambda: Deep(4, shared=False, classes=7),
    "mixed": Mixed,
    "one layer": lambda: pyg.GCNConv(20, 7),
}


@pytest.fixture
def graph():
    return frozen_models.graph(200, 1500, alone=3)


@pytest.fixture(params=MODELS)
def model(request):
    torch.manual_seed(0)
    return MODELS[request.param]()


def distance(ours, theirs):
    return float((ours - theirs).norm() / theirs.norm())


def step(model, x, edge_index):
    """Output and gradients of a training pass."""
    torch.manual_seed(1)
    model = copy.deepcopy(model).train()
    out = model(x, edge_index)
    out.square().sum().backward()
    return {"output": out.detach(), **{name: value.grad for name, value in model.named_parameters()}}


def test_outputs_are_those_of_pyg(model, graph):
    model.eval()
    with torch.no_grad():
        assert distance(uf.accelerate(model)(*graph), model(*graph)) < 3e-7


def test_so_is_a_training_step(model, graph):
    ours, theirs = step(uf.accelerate(model), *graph), step(model, *graph)
    largest = max(float(value.norm()) for value in theirs.values())
    for name, value in theirs.items():  # what a norm makes zero is rounding in both
        assert float((ours[name] - value).norm()) < 3e-6 * float(value.norm()) + 3e-7 * largest, name


def test_checkpoints_are_those_of_pyg(model, graph, tmp_path):
    fast = uf.accelerate(model)
    assert list(fast.state_dict()) == list(model.state_dict())
    assert [name for name, _ in fast.named_parameters()] == [name for name, _ in model.named_parameters()]
    with torch.no_grad():
        for value in fast.parameters():
            value.add_(0.1)
    torch.save(fast.state_dict(), tmp_path / "state.pt")
    model.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    again = uf.accelerate(model)
    again.load_state_dict(fast.state_dict())
    for each in (fast, model, again):
        each.eval()
    with torch.no_grad():
        assert distance(fast(*graph), model(*graph)) < 3e-7
        assert torch.equal(again(*graph), fast(*graph))


def test_the_model_given_is_left_alone_and_comes_back(model):
    kinds = [type(module) for module in model.modules()]
    fast = uf.accelerate(model)
    assert [type(module) for module in model.modules()] == kinds
    plain = uf.desparsify(fast)
    assert [type(module) for module in plain.modules()] == kinds
    assert not hasattr(plain, "unifews_report")
    assert uf.accelerate(plain, inplace=True) is plain


def test_the_report_lists_what_was_replaced_and_what_was_not():
    fast = uf.accelerate(Mixed())
    report = fast.unifews_report
    assert [(layer.path, layer.kind) for layer in report.replaced] == [("first", "GCNConv"), ("fourth", "GATv2Conv")]
    assert [layer.reason for layer in report.unchanged] == [
        "no kernel for SAGEConv with aggr='max'",
        "no kernel for ResGatedGraphConv",
    ]
    assert isinstance(fast.first, PrunedConv) and type(fast.second) is pyg.SAGEConv
    assert type(fast.head) is nn.Linear and type(fast.norm) is nn.BatchNorm1d
    assert str(report).splitlines()[0] == "2 of 4 message-passing layers run on unifews kernels"
    assert copy.deepcopy(fast).unifews_report == report


def test_buffers_of_a_layer_itself_are_saved():
    model = Two(lambda a, b: pyg.GINConv(nn.Linear(a, b), eps=0.5), 16, 7)
    assert float(uf.accelerate(model).state_dict()["first.eps"]) == 0.5


def test_it_counts_what_it_does(graph):
    model = uf.accelerate(pyg.GCN(20, 32, 2, 7))
    model(*graph)
    seen = uf.trace(model)
    assert seen.edge_sparsity == 0 and seen.weight_sparsity == 0 and len(seen.hops) == 2


def test_in_other_precisions_it_is_right_too(graph):
    x, edge_index = graph
    model = pyg.GCN(20, 32, 2, 7).double()
    with torch.no_grad():
        assert distance(uf.accelerate(model)(x.double(), edge_index), model(x.double(), edge_index)) < 1e-14


@pytest.mark.parametrize(
    "model, message",
    [
        (
            pyg.ResGatedGraphConv(4, 4),
            "nothing to accelerate: no kernel for ResGatedGraphConv. There are kernels for .*GCNConv",
        ),
        (pyg.SAGEConv(4, 4, aggr="max"), "no kernel for SAGEConv with aggr='max'"),
        (pyg.RGCNConv(4, 4, 2), "no kernel for RGCNConv"),
        (nn.Linear(4, 4), "has no PyG message-passing layer"),
        ("gcn", "`model` is a str"),
        (uf.sparsify(pyg.GCNConv(4, 4), edge_sparsity=0.5, entries="unit"), "already sparsified"),
    ],
)
def test_mistakes(model, message):
    with pytest.raises(InputError, match=message):
        uf.accelerate(model)


def test_folders_are_for_sparsified_models(tmp_path):
    with pytest.raises(InputError, match="accelerated and has no masks to save"):
        uf.save(uf.accelerate(pyg.GCN(20, 32, 2, 7)), tmp_path / "model")


def test_it_is_compressed_as_it_is(graph):
    model = uf.accelerate(pyg.GCN(20, 32, 2, 7)).eval()
    fast = uf.compress(model, *graph)
    with torch.no_grad():
        torch.testing.assert_close(fast(*graph), model(*graph), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["replace_functions", "inplace"])
@pytest.mark.parametrize("call", [uf.accelerate, uf.sparsify])
def test_a_switch_is_true_or_false(call, name):
    with pytest.raises(InputError, match=rf"`{name}` must be True or False; got 'no'\.$"):
        call(pyg.GCN(20, 32, 2, 7), **{name: "no"})
