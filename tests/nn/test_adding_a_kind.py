"""A kind of entry is one file: a throw-away module with a kind is used by every layer, trained, frozen and stored."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import unifews as uf
from unifews.errors import InputError
from unifews.nn.config import ENTRY_NAMES
from unifews.nn.entries import ENTRY_KINDS

KIND = '''
import torch
from unifews.nn.entries import entry_kind
from unifews.nn.entries.edge import EdgeEntries, store_edges

@entry_kind
class FirstEdges(EdgeEntries):
    """The first edges of the list, whatever their magnitude."""

    name = "first"

    def decide(self, product, conv):
        share = conv.session.share(conv) / conv.width
        keep = torch.arange(product.edges.count) < round(share * product.edges.count)
        store_edges(conv, product.edges, keep, 0.0)
        return keep
'''
N, F, CLASSES = 40, 6, 3
_draw = torch.Generator().manual_seed(3)
X = torch.randn(N, F, generator=_draw)
Y = torch.randint(0, CLASSES, (N,), generator=_draw)
_PAIRS = torch.randperm(N * N, generator=_draw)[:160]
EDGES = torch.stack([_PAIRS // N, _PAIRS % N])
MODELS = [
    lambda: pyg.GCN(F, 32, 2, CLASSES),
    lambda: pyg.GAT(F, 32, 2, CLASSES, v2=True, heads=2),
    lambda: pyg.GraphSAGE(F, 32, 2, CLASSES),
    lambda: pyg.PNA(F, 32, 2, CLASSES, aggregators=["max"], scalers=["identity"], deg=torch.ones(9, dtype=torch.long)),
]


@pytest.fixture
def added(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "throw_away_kind.py").write_text(KIND, encoding="utf-8")
    importlib.invalidate_caches()
    importlib.import_module("throw_away_kind")
    yield
    sys.modules.pop("throw_away_kind", None)
    ENTRY_NAMES.remove("first")
    del ENTRY_KINDS["first"]


def trained(model):
    model = uf.sparsify(model, edge_sparsity=0.5, entries="first", inherit=False, budget="layers")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X, EDGES), Y).backward()
        optimizer.step()
    return model.eval()


@pytest.mark.parametrize("make", MODELS, ids=["GCN", "GATv2", "GraphSAGE", "PNA"])
def test_every_layer_uses_it(added, make):
    model = trained(make())
    with torch.no_grad():
        expected = model(X, EDGES)
    trace = uf.trace(model)
    assert all(hop.edges_kept == round(0.5 * hop.edges) for hop in trace.hops)
    torch.testing.assert_close(uf.compress(model, X, EDGES)(X, EDGES), expected, rtol=1e-4, atol=1e-5)


def test_it_is_stored_and_restored(added, tmp_path):
    model = trained(plain := MODELS[0]())
    uf.save(model, tmp_path / "training")
    again = uf.load(tmp_path / "training", into=plain).eval()
    with torch.no_grad():
        assert torch.equal(again(X, EDGES), model(X, EDGES))


def test_without_the_file_the_name_is_unknown():
    with pytest.raises(InputError, match="first"):
        uf.sparsify(MODELS[0](), edge_sparsity=0.5, entries="first")
