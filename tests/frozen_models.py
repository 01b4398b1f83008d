"""Graphs with everything that goes wrong on graphs, and models of every kind, a few passes old."""

from __future__ import annotations

import torch
import torch_geometric.nn as pyg
from torch import nn

import unifews as uf
from unifews.nn.models import build

FEATURES, CLASSES = 20, 5


def graph(n=400, m=600, seed=0, *, alone=20):
    """Sparse enough that few nodes reach all others; loops, duplicates and isolated nodes among its directed edges."""
    made = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(0, n - alone, (2, m), generator=made)
    edge_index[:, :5] = edge_index[:1, :5]
    edge_index[:, 7] = edge_index[:, 8]
    return torch.randn(n, FEATURES, generator=made), edge_index


def mlp(a, b):
    return nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(), nn.Linear(b, b))


class Two(nn.Module):
    """Two layers of one kind."""

    def __init__(self, conv, width=24, classes=CLASSES):
        super().__init__()
        self.first, self.second = conv(FEATURES, width), conv(width, classes)

    def forward(self, x, edge_index, *rest):
        return self.second(self.first(x, edge_index, *rest).relu(), edge_index, *rest)


class Own(nn.Module):
    """What people write: branches, residuals, parameters of their own, functions of all kinds."""

    def __init__(self, width=24):
        super().__init__()
        self.into, self.out = nn.Linear(FEATURES, width), nn.Linear(2 * width, CLASSES)
        self.convs = nn.ModuleList([pyg.GCNConv(width, width), pyg.SAGEConv(width, width)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(width), nn.LayerNorm(width)])
        self.gate = nn.Parameter(torch.tensor(0.3))
        self.tilt = nn.Parameter(torch.linspace(-1, 1, width))

    def forward(self, x, edge_index):
        x = start = nn.functional.elu(self.into(x), alpha=0.7)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + torch.sigmoid(self.gate) * nn.functional.dropout(norm(conv(x, edge_index)).tanh(), training=self.training)
        x = torch.cat([x * self.tilt - 0.5, torch.maximum(x, 2 * start) / 3], dim=-1)
        return nn.functional.log_softmax(self.out(nn.functional.normalize(x)), dim=1)


class Far(nn.Module):
    """Linear, then a layer without weights that propagates over several hops."""

    def __init__(self, conv, width=24):
        super().__init__()
        self.into, self.conv, self.out = nn.Linear(FEATURES, width), conv, pyg.GCNConv(width, CLASSES)

    def forward(self, x, edge_index, *rest):
        return self.out(self.conv(self.into(x).relu(), edge_index, *rest), edge_index, *rest)


class Deep(nn.Module):
    """GCNII."""

    def __init__(self, layers=3, shared=True, width=24, classes=CLASSES):
        super().__init__()
        self.into, self.out = nn.Linear(FEATURES, width), nn.Linear(width, classes)
        self.convs = nn.ModuleList(pyg.GCN2Conv(width, 0.1, 0.5, i + 1, shared_weights=shared) for i in range(layers))

    def forward(self, x, edge_index):
        x = start = self.into(x).relu()
        for conv in self.convs:
            x = conv(x, start, edge_index).relu_()
        return self.out(x)


def _of(kind, **more):
    return lambda: build(kind, FEATURES, CLASSES, width=24, layers=2, **more)


HOPS = {
    "graph": lambda: Two(pyg.GraphConv),
    "sg": lambda: Two(lambda a, b: pyg.SGConv(a, b, K=2)),
    "tag": lambda: Two(lambda a, b: pyg.TAGConv(a, b, K=2)),
    "appnp": lambda: Far(pyg.APPNP(K=3, alpha=0.2, dropout=0.3)),
    "cheb": lambda: Two(lambda a, b: pyg.ChebConv(a, b, K=3)),
    "mixhop": lambda: Two(lambda a, b: pyg.MixHopConv(a, b, powers=[0, 2]) if b > 5 else pyg.GCNConv(2 * a, b)),
}
"""Layers without a fused path that become steps."""
CODE = {
    "transformer": lambda: Two(lambda a, b: pyg.TransformerConv(a, b, heads=2, concat=False) if b > 5 else pyg.GCNConv(a, b))
}
"""A layer that keeps its own code."""
MODELS = {
    "gcn": _of("gcn"),
    "gat": _of("gat", heads=4),
    "sage": _of("sage"),
    "gcnii": _of("gcnii"),
    "gin": _of("gin"),
    "own": Own,
    "deep, two weights": lambda: Deep(shared=False),
    "gcn improved": lambda: Two(lambda a, b: pyg.GCNConv(a, b, improved=True)),
    "gcn as it is": lambda: Two(lambda a, b: pyg.GCNConv(a, b, normalize=False, bias=False)),
    "gcn backwards": lambda: Two(lambda a, b: pyg.GCNConv(a, b, flow="target_to_source")),
    "sage sum": lambda: Two(lambda a, b: pyg.SAGEConv(a, b, aggr="add", root_weight=False, normalize=True)),
    "gin that learns": lambda: Two(lambda a, b: pyg.GINConv(mlp(a, b), train_eps=True)),
    "gat one": lambda: Two(lambda a, b: pyg.GATConv(a, b, heads=3, concat=False)),
    "gat shared": lambda: Two(lambda a, b: pyg.GATv2Conv(a, b, heads=2, concat=False, share_weights=True, residual=True)),
    "gat no loops": lambda: Two(lambda a, b: pyg.GATv2Conv(a, b, heads=2, concat=False, add_self_loops=False)),
    "GCN": lambda: pyg.GCN(FEATURES, 16, 3, CLASSES, norm="batch", dropout=0.5, act="leaky_relu"),
    "GAT, jumping": lambda: pyg.GAT(FEATURES, 16, 2, CLASSES, jk="max", v2=True, heads=2),
    "GraphSAGE, jumping": lambda: pyg.GraphSAGE(FEATURES, 16, 2, CLASSES, jk="cat", project=True),
    "GIN": lambda: pyg.GIN(FEATURES, 16, 2, CLASSES),
    **{name: make for kinds in (HOPS, CODE) for name, make in kinds.items()},
}
FORMS = {
    "edge": dict(edge_sparsity=0.5, weight_sparsity=0.8),
    "unit": dict(edge_sparsity=0.5, weight_sparsity=0.8, entries="unit"),
    "node": dict(edge_sparsity=0.5, weight_sparsity=0.8, entries="node"),
    "node, each for itself": dict(edge_threshold=1.0, entries="node", inherit=False),
    "block": dict(edge_sparsity=0.5, weight_sparsity=0.8, entries="block"),
    "feature": dict(edge_sparsity=0.5, weight_sparsity=0.8, entries="feature"),
    "unpruned": {},
}


def trained(name="gcn", form="unit", x=None, edge_index=None, *rest):
    """A sparsified model after a few training passes, on this graph or the usual one."""
    torch.manual_seed(0)
    if x is None:
        x, edge_index = graph()
    model = uf.sparsify(MODELS[name](), ramp=2, **FORMS[form])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(x, edge_index, *rest).square().mean().backward()
        optimizer.step()
    return model


@torch.no_grad()
def evaluated(model, *given):
    """Scores of the model in evaluation mode."""
    was = model.training
    out = model.eval()(*given)
    model.train(was)
    return out


def assert_close(found, expected, tolerance=1e-4):
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= tolerance * float(expected.abs().max())
