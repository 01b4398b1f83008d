"""Models on another device: every tensor that a layer makes is made where its inputs are, and no CPU kernel is called.

The device is a pretended one (`elsewhere`), which every machine has.
"""

from __future__ import annotations

import copy

import pytest
import torch
from elsewhere import DEVICE, Elsewhere, Place, back, move
from torch import nn
from torch_geometric.nn import GATConv, GATv2Conv, GCN2Conv, GCNConv, GINConv, GraphConv, RGCNConv, SAGEConv

import unifews as uf
from unifews.nn.masked import MaskedModel
from unifews.serving.portable import PortableProgram

N, WIDTH = 30, 20


@pytest.fixture(autouse=True)
def checkpoints(monkeypatch):
    """`torch.utils.checkpoint` asks for the module of a device."""
    monkeypatch.setattr(torch, DEVICE.type, torch.cpu, raising=False)


def graph():
    torch.manual_seed(5)
    return torch.randn(N, WIDTH), torch.randint(N, (2, 200))


def gin():
    return GINConv(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)))


class Net(nn.Module):
    """Two layers, so that the second inherits edges."""

    def __init__(self, make):
        super().__init__()
        self.a, self.b = make(), make()

    def forward(self, x, edge_index, *more):
        return self.b(self.a(x, edge_index, *more).relu(), edge_index, *more)


class Residual(Net):
    def __init__(self):
        super().__init__(lambda: GCN2Conv(WIDTH, 0.1, 0.5, 1, shared_weights=False))

    def forward(self, x, edge_index):
        return self.b(self.a(x, x, edge_index).relu(), x, edge_index)


class Pairs(Net):
    """Between two sets of nodes."""

    def forward(self, x, edge_index):
        few, edge_index = x[:20], torch.stack([edge_index[0], edge_index[1] % 20])
        return self.a((x, few), edge_index)


KINDS = {
    "gcn": lambda: Net(lambda: GCNConv(WIDTH, WIDTH)),
    "gcn-sum": lambda: Net(lambda: GCNConv(WIDTH, WIDTH, normalize=False)),
    "sage-mean": lambda: Net(lambda: SAGEConv(WIDTH, WIDTH)),
    "sage-sum": lambda: Net(lambda: SAGEConv(WIDTH, WIDTH, aggr="sum")),
    "sage-max": lambda: Net(lambda: SAGEConv(WIDTH, WIDTH, aggr="max")),
    "gin": lambda: Net(gin),
    "gcnii": Residual,
    "gat": lambda: Net(lambda: GATConv(WIDTH, 5, heads=4)),
    "gatv2": lambda: Net(lambda: GATv2Conv(WIDTH, 5, heads=4)),
    "generic": lambda: Net(lambda: GraphConv(WIDTH, WIDTH)),
    "sage-pairs": lambda: Pairs(lambda: SAGEConv(WIDTH, WIDTH)),
    "gat-pairs": lambda: Pairs(lambda: GATv2Conv(WIDTH, 5, heads=4)),
    "gin-pairs": lambda: Pairs(gin),
    "generic-pairs": lambda: Pairs(lambda: GraphConv(WIDTH, WIDTH)),
}


def passes(model, *inputs):
    """What two training passes and an evaluation give, and the gradients."""
    outs = []
    for _ in range(2):
        outs.append(model(*inputs))
        outs[-1].square().sum().backward()
    with torch.no_grad():
        outs.append(model.eval()(*inputs))
    return [*outs, *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("entries", [None, "unit", "node", "block", "feature"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_layers_work_where_their_inputs_are(kind, entries):
    x, edge_index = graph()
    torch.manual_seed(6)
    how = dict(weight_sparsity=0.5, ramp=2) | ({} if entries is None else dict(edge_sparsity=0.5, entries=entries))
    here = uf.sparsify(KINDS[kind](), **how)
    there = move(copy.deepcopy(here))
    if entries == "node":
        for model in (here, there):
            uf.set_node_lock(model, torch.arange(10))
    expected = passes(here, x, edge_index)
    with Place():
        found = passes(there, move(x), move(edge_index))
    assert all(isinstance(value, Elsewhere) and value.device == DEVICE for value in found)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(back(a), b, atol=1e-4, rtol=1e-4)
    counts = [[(hop.edges_kept, hop.macs) for hop in uf.trace(model).hops] for model in (there, here)]
    assert counts[0] == counts[1]
    for name, value in there.named_buffers():
        assert isinstance(value, Elsewhere), name


def test_edge_types_and_edge_weights():
    x, edge_index = graph()
    kinds, weight = torch.arange(edge_index.shape[1]) % 3, torch.rand(edge_index.shape[1])
    for make, more in ((lambda: RGCNConv(WIDTH, WIDTH, 3), kinds), (lambda: GCNConv(WIDTH, WIDTH), weight)):
        for entries in ("unit", "node"):
            torch.manual_seed(7)
            here = uf.sparsify(Net(make), edge_sparsity=0.5, weight_sparsity=0.5, entries=entries)
            there = move(copy.deepcopy(here))
            with Place():
                found = passes(there, move(x), move(edge_index), move(more))
            for a, b in zip(found, passes(here, x, edge_index, more), strict=True):
                torch.testing.assert_close(back(a), b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("probing", [False, True])
def test_a_model_on_some_of_its_edges(probing):
    x, edge_index = graph()
    torch.manual_seed(8)
    here = MaskedModel(KINDS["gcn"](), edge_index, N, "a method")
    here.keep[::2] = False
    here.probing = probing
    there = move(copy.deepcopy(here))
    with Place():
        found = passes(there, move(x), move(edge_index))
    for a, b in zip(found, passes(here, x, edge_index), strict=True):
        torch.testing.assert_close(back(a), b, atol=1e-4, rtol=1e-4)


def test_the_pretended_device_refuses_to_mix():
    x = move(torch.ones(3))
    for mixed in (lambda: x + torch.ones(3), lambda: x[torch.arange(2)], lambda: torch.cat([x, torch.ones(3)])):
        with pytest.raises(RuntimeError, match="mixes tensors of two devices"):
            mixed()
    assert float((x + torch.tensor(1.0)).sum()) == 6  # a scalar may come from anywhere


@pytest.mark.parametrize("entries", ["unit", "node", "block", "feature"])
@pytest.mark.parametrize("kind", ["gcn", "gat", "gatv2"])
def test_what_is_exported(kind, entries):
    x, edge_index = graph()
    torch.manual_seed(9)
    model = uf.sparsify(KINDS[kind](), edge_sparsity=0.5, entries=entries)
    model(x, edge_index)
    frozen = uf.compress(model.eval(), x, edge_index)
    expected = PortableProgram(frozen.program)(x, edge_index)
    with Place():
        found = move(PortableProgram(frozen.program))(move(x), move(edge_index))
    assert isinstance(found, Elsewhere)
    torch.testing.assert_close(back(found), expected)
