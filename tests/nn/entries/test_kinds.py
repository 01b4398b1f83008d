"""One contract for every layer and every kind: training, state, evaluation, compression, export."""

from __future__ import annotations

import copy

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import unifews as uf
from unifews.errors import InputError
from unifews.nn.entries import ENTRY_KINDS
from unifews.serving.portable import PortableProgram

N, F, WIDTH, CLASSES = 40, 20, 24, 3
_draw = torch.Generator().manual_seed(3)
X = torch.randn(N, F, generator=_draw)
Y = torch.randint(0, CLASSES, (N,), generator=_draw)
EDGES = torch.randint(0, N - 3, (2, 200), generator=_draw)  # with duplicates and self-loops; three isolated nodes


class GCNII(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(F, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.convs = nn.ModuleList(pyg.GCN2Conv(WIDTH, 0.1, theta=0.5, layer=k + 1) for k in range(2))

    def forward(self, x, edge_index):
        x = first = self.first(x).relu()
        for conv in self.convs:
            x = conv(x, first, edge_index).relu()
        return self.last(x)


class Model(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.first, self.second = make(F, WIDTH), make(WIDTH, CLASSES)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


LAYERS = {
    "GCN": lambda: Model(pyg.GCNConv),
    "GraphSAGE": lambda: Model(pyg.SAGEConv),
    "SAGE by maximum": lambda: Model(lambda i, o: pyg.SAGEConv(i, o, aggr="max")),
    "GIN": lambda: Model(lambda i, o: pyg.GINConv(nn.Linear(i, o))),
    "GCNII": GCNII,
    "GAT": lambda: Model(lambda i, o: pyg.GATConv(i, o, heads=2, concat=False)),
    "GATv2": lambda: Model(lambda i, o: pyg.GATv2Conv(i, o, heads=2, concat=False)),
    "GATv2 of 18 heads": lambda: Model(lambda i, o: pyg.GATv2Conv(i, o, heads=18, concat=False)),
    "GraphConv": lambda: Model(pyg.GraphConv),
    "TAG": lambda: Model(lambda i, o: pyg.TAGConv(i, o, K=2)),
    "Chebyshev": lambda: Model(lambda i, o: pyg.ChebConv(i, o, K=2)),
    "Transformer": lambda: Model(pyg.TransformerConv),
}
KINDS = ["unit", "block", "feature", "node"]
ALONE = {"SAGE by maximum", "Transformer"}
"""Layers without steps: they run with their own code in a frozen model."""


def trained(make, **options):
    torch.manual_seed(0)
    model = uf.sparsify(make(), edge_sparsity=0.5, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X, EDGES), Y).backward()
        optimizer.step()
    return model


def test_these_are_all_kinds():
    assert set(ENTRY_KINDS) == set(KINDS)


@pytest.mark.parametrize("entries", KINDS)
@pytest.mark.parametrize("layer", LAYERS)
class TestEveryLayerAndKind:
    def test_trains_and_removes_half(self, layer, entries):
        model = trained(LAYERS[layer], entries=entries)
        # A maximum is taken before the weights, of features that are mostly zero after a ReLU; zeros count as kept (δ = 0).
        least = 0.1 if (layer, entries) == ("SAGE by maximum", "feature") else 0.38
        assert least < uf.trace(model).edge_sparsity < 0.62
        for name, parameter in model.named_parameters():
            assert parameter.grad is None or bool(parameter.grad.isfinite().all()), name
        assert any(parameter.grad is not None and bool(parameter.grad.any()) for parameter in model.parameters())

    def test_evaluation_uses_the_decisions_of_a_loaded_state(self, layer, entries):
        model = trained(LAYERS[layer], entries=entries).eval()
        state = copy.deepcopy(model.state_dict())
        names = {name.rsplit(".", 1)[-1] for name in state}
        assert {"decided", "delta", "columns", "nodes", "passes", "removed"} <= names
        torch.manual_seed(1)
        other = uf.sparsify(LAYERS[layer](), edge_sparsity=0.5, entries=entries)
        other.load_state_dict(state)
        with torch.no_grad():
            expected = model(X, EDGES)
            assert torch.equal(other.eval()(X, EDGES), expected)
        assert uf.trace(other).macs == uf.trace(model).macs
        assert all(torch.equal(value, state[name]) for name, value in other.state_dict().items())

    def test_compressed_and_portable_forms_compute_the_same(self, layer, entries):
        model = trained(LAYERS[layer], entries=entries, inherit=layer not in ALONE).eval()
        with torch.no_grad():
            expected = model(X, EDGES)
        frozen = uf.compress(model, X, EDGES)
        torch.testing.assert_close(frozen(X, EDGES), expected, rtol=1e-4, atol=1e-5)
        frozen.bind(X, EDGES)
        some = torch.as_tensor(frozen.predict([0, 7, N - 1]))
        torch.testing.assert_close(some, expected[[0, 7, N - 1]], rtol=1e-4, atol=1e-5)
        if layer not in ALONE and entries != "node":  # whose removed edges are those of one graph
            with torch.no_grad():
                portable = PortableProgram(frozen.program)(X, EDGES)
            torch.testing.assert_close(portable, expected, rtol=1e-3, atol=1e-4)


def test_a_kind_that_does_not_exist_is_refused_with_the_names():
    with pytest.raises(InputError, match="block"):
        uf.sparsify(Model(pyg.GCNConv), edge_sparsity=0.5, entries="blocks")
