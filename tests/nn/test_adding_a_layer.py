"""A layer is one file: a throw-away module with a PyG layer and its pruned class is sparsified, trained, frozen and stored."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from torch import nn

import unifews as uf
from unifews.errors import InputError
from unifews.nn.convs import KINDS

LAYER = '''
from torch_geometric.nn import Linear, MessagePassing
from unifews.nn.convs.base import PrunedConv, prunes
from unifews.nn.edges import LayerEdges

class OwnConv(MessagePassing):
    """x Wᵀ summed over neighbours, plus half of the node's own."""

    def __init__(self, columns, out):
        super().__init__(aggr="add")
        self.lin = Linear(columns, out)

    def forward(self, x, edge_index):
        y = self.lin(x)
        return self.propagate(edge_index, x=y) + 0.5 * y

@prunes(OwnConv)
class PrunedOwnConv(PrunedConv, OwnConv):
    def forward(self, x, edge_index):
        y = self.lin(x)
        edges = LayerEdges.of(edge_index, None, len(x), "sum", flow=self.flow, dtype=x.dtype)
        return self.diffuse(y, edges, x) + 0.5 * y
'''
FREEZE = """
    def freeze(self, to, given):
        y = to.linear(given["x"], self.lin.effective, self.lin.bias)
        return to.sum([to.diffuse(self, given, y), y], [1.0, 0.5])
"""
N, F, CLASSES = 40, 6, 3
_draw = torch.Generator().manual_seed(3)
X = torch.randn(N, F, generator=_draw)
Y = torch.randint(0, CLASSES, (N,), generator=_draw)
_PAIRS = torch.randperm(N * N, generator=_draw)[:160]
EDGES = torch.stack([_PAIRS // N, _PAIRS % N])


@pytest.fixture
def add(tmp_path, monkeypatch):
    """Imports a temporary module with this code; returns a model of two of its layers."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = dict(KINDS)

    def load(code):
        (tmp_path / "throw_away_layer.py").write_text(code, encoding="utf-8")
        importlib.invalidate_caches()
        kind = importlib.import_module("throw_away_layer").OwnConv

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = kind(F, 32), kind(32, CLASSES)

            def forward(self, x, edge_index):
                return self.second(self.first(x, edge_index).relu(), edge_index)

        torch.manual_seed(0)
        return Model()

    yield load
    sys.modules.pop("throw_away_layer", None)
    KINDS.clear()
    KINDS.update(before)


def trained(model, **options):
    model = uf.sparsify(model, edge_sparsity=0.5, weight_sparsity=0.4, ramp=2, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X, EDGES), Y).backward()
        optimizer.step()
    return model.eval()


def test_unpruned_it_computes_what_the_layer_computes(add):
    model = add(LAYER)
    with torch.no_grad():
        torch.testing.assert_close(uf.sparsify(model)(X, EDGES), model(X, EDGES), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(uf.accelerate(model)(X, EDGES), model(X, EDGES), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("entries", ["unit", "block", "feature", "node"])
def test_it_prunes_every_kind_of_entry_and_is_traced(add, entries):
    model = trained(add(LAYER), entries=entries)
    with torch.no_grad():
        model(X, EDGES)
    trace = uf.trace(model)
    assert [hop.kind for hop in trace.hops] == ["OwnConv", "OwnConv"]
    assert trace.edge_sparsity == pytest.approx(0.5, abs=0.1) and trace.weight_sparsity == pytest.approx(0.4, abs=0.02)
    assert not any("generic path" in note for hop in trace.hops for note in hop.notes)


def test_its_decisions_are_part_of_a_checkpoint(add, tmp_path):
    model = trained(plain := add(LAYER), entries="node")
    uf.save(model, tmp_path / "training")
    again = uf.load(tmp_path / "training", into=plain).eval()
    with torch.no_grad():
        assert torch.equal(again(X, EDGES), model(X, EDGES))


def test_without_steps_a_frozen_model_runs_its_code_and_is_not_written(add, tmp_path):
    model = trained(add(LAYER))
    frozen = uf.compress(model, X, EDGES)
    with torch.no_grad():
        torch.testing.assert_close(frozen(X, EDGES), model(X, EDGES), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="OwnConv"):
        uf.save(frozen, tmp_path / "frozen")


@pytest.mark.parametrize("entries", ["unit", "block", "feature", "node"])
def test_with_steps_it_is_frozen_and_stored(add, tmp_path, entries):
    model = trained(add(LAYER + FREEZE), entries=entries)
    frozen = uf.compress(model, X, EDGES)
    uf.save(frozen, tmp_path / "frozen")
    sys.modules.pop("throw_away_layer")  # the file holds steps, not code
    again = uf.load(tmp_path / "frozen")
    with torch.no_grad():
        torch.testing.assert_close(again(X, EDGES), model(X, EDGES), rtol=1e-4, atol=1e-5)
    assert "diffuse" in [step.op for step in again.program.steps]
