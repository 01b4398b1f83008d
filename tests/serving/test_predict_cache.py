"""`predict` stores the hidden layers that the last one reads, and discards them when x changes."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.nn import GAT, GCN, GIN, GraphSAGE

import unifews as uf
from unifews.serving import runtime

N = 200


@pytest.fixture
def data():
    torch.manual_seed(0)
    return torch.randn(N, 10), torch.randint(0, N - 3, (2, 700))


def frozen(kind, data, layers=3, **how):
    torch.manual_seed(1)
    model = uf.sparsify(kind(10, 16, layers, 4, **how), edge_sparsity=0.5, weight_sparsity=0.5, ramp=1)
    model.train()(*data)
    return uf.compress(model.eval(), *data)


def ask(model, times=40):
    """The scores of some nodes, as often as it takes until layers are stored."""
    return [model.predict([5, 190, 7]) for _ in range(times)]


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        (GCN, {}),
        (GraphSAGE, {}),
        (GIN, {}),
        (GAT, {"v2": True, "heads": 4}),
        (GCN, {"norm": "batch_norm"}),
        (GraphSAGE, {"jk": "cat"}),
        (GCN, {"layers": 2}),
    ],
)
def test_stored_layers_give_the_scores_of_a_call(kind, how, data):
    model = frozen(kind, data, **how)
    expected = model(*data)
    for scores in ask(model.bind(*data)):
        torch.testing.assert_close(scores, expected[[5, 190, 7]], rtol=1e-4, atol=1e-5)
    assert model.hidden_bytes > 0
    torch.testing.assert_close(model.predict(), expected, rtol=1e-4, atol=1e-5)


def test_stored_layers_leave_one_neighbourhood(data, monkeypatch):
    model = frozen(GraphSAGE, data).bind(*data)
    ask(model)
    seen = []
    step = runtime.ProgramRun._step
    monkeypatch.setattr(
        runtime.ProgramRun,
        "_step",
        lambda self, number, *args: seen.append((number, number in self._bound.known)) or step(self, number, *args),
    )
    model.predict(3)
    computed = [number for number, stored in seen if not stored]
    sums = [number for number, each in enumerate(model.program.steps, start=1) if each.op == "diffuse"]
    assert [number for number in computed if number in sums] == sums[-1:]


def test_a_write_to_x_discards_them(data):
    x, edges = data[0].clone(), data[1]
    model = frozen(GCN, data).bind(x, edges)
    ask(model)
    assert model.hidden_bytes
    x[3:50] += 1
    fresh = model.predict([5, 190])
    torch.testing.assert_close(fresh, model(x, edges)[[5, 190]], rtol=1e-4, atol=1e-5)
    ask(model)
    torch.testing.assert_close(model.predict([5, 190]), model(x, edges)[[5, 190]], rtol=1e-4, atol=1e-5)


def test_another_graph_discards_them(data):
    model = frozen(GCN, data).bind(*data)
    ask(model)
    other = data[0].flip(0).contiguous(), data[1].flip(0).contiguous()
    model.bind(*other)
    assert model.hidden_bytes == 0
    torch.testing.assert_close(ask(model)[-1], model(*other)[[5, 190, 7]], rtol=1e-4, atol=1e-5)


def test_nothing_is_stored_where_it_is_not_wanted(data):
    x, edges = data
    model = frozen(GCN, data)
    ask(model.bind(x, edges, cache=False))
    assert model.hidden_bytes == 0


def test_a_single_layer_has_none(data):
    model = frozen(GCN, data, layers=1).bind(*data)
    torch.testing.assert_close(ask(model)[-1], model(*data)[[5, 190, 7]], rtol=1e-4, atol=1e-5)
    assert model.hidden_bytes == 0


def test_edges_that_magnitudes_keep_are_not_stored(data):
    torch.manual_seed(1)
    pruned = uf.sparsify(GCN(10, 16, 3, 4), edge_threshold=0.5, entries="node")
    pruned.train()(*data)
    model = uf.compress(pruned.eval(), *data).bind(*data)
    expected = pruned(*data).detach()
    torch.testing.assert_close(ask(model)[-1], expected[[5, 190, 7]], rtol=1e-4, atol=1e-5)
