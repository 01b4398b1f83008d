"""Columns that are not sent are normalised by their self-loops, which are all that is left of them."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.nn import GAT, GCN, GCN2Conv, GCNConv, GraphSAGE

import unifews as uf
from unifews.errors import InputError

N = 40


def graph(seed=0, weighted=False):
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(0, N - 2, (2, 300), generator=generator)  # two isolated nodes, loops and copies
    return edge_index, torch.rand(300, generator=generator) + 0.1 if weighted else None


def dense(edge_index, weight):
    """T with self-loops, as PyG's gcn_norm makes it."""
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    index, values = gcn_norm(edge_index, weight, N)
    return torch.zeros(N, N).index_put_((index[1], index[0]), values, accumulate=True)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("inputs", [3, 24])  # the weights widen or narrow the features
def test_a_column_that_is_not_sent_is_the_operand_itself(inputs, weighted):
    torch.manual_seed(0)
    edge_index, weight = graph(weighted=weighted)
    conv = GCNConv(inputs, 12)
    model = uf.sparsify(conv, edge_sparsity=0.5)
    x = torch.randn(N, inputs, requires_grad=True)
    out = model(x, edge_index, weight)
    y, sent = x @ conv.lin.weight.T, model.columns
    assert 0 < int(sent.sum()) < 12
    expected = torch.where(sent, dense(edge_index, weight) @ y, y) + conv.bias
    assert torch.allclose(out, expected, atol=1e-5)
    towards = torch.randn_like(out)
    (got,) = torch.autograd.grad(out, x, towards, retain_graph=True)
    (want,) = torch.autograd.grad(expected, x, towards)
    assert torch.allclose(got, want, atol=1e-4)


def test_it_can_be_left_out():
    torch.manual_seed(0)
    edge_index, _ = graph()
    conv = GCNConv(24, 12)
    model = uf.sparsify(conv, edge_sparsity=0.5, renormalize=False)
    x = torch.randn(N, 24)
    out, t, y = model(x, edge_index), dense(edge_index, None), x @ conv.lin.weight.T
    assert torch.allclose(out, torch.where(model.columns, t @ y, t.diagonal()[:, None] * y) + conv.bias, atol=1e-5)


def test_layers_of_no_normalisation_are_unchanged():
    edge_index, _ = graph()
    x = torch.randn(N, 8)
    for make in (lambda: GCNConv(8, 6, normalize=False), lambda: GraphSAGE(8, 6, 2), lambda: GAT(8, 6, 2)):
        results = []
        for renormalize in (True, False):
            torch.manual_seed(1)
            results.append(uf.sparsify(make(), edge_sparsity=0.5, entries="unit", renormalize=renormalize)(x, edge_index))
        assert torch.equal(*results)


def test_gcnii():
    torch.manual_seed(0)
    edge_index, _ = graph()
    conv = GCN2Conv(12, alpha=0.1)
    model = uf.sparsify(conv, edge_sparsity=0.5)
    x = torch.randn(N, 12)
    out = model(x, x, edge_index)
    h = 0.9 * torch.where(model.columns, dense(edge_index, None) @ x, x) + 0.1 * x
    assert torch.allclose(out, h @ conv.weight1, atol=1e-5)


def test_frozen_saved_and_loaded_models_do_the_same(tmp_path):
    torch.manual_seed(0)
    edge_index, _ = graph()
    x = torch.randn(N, 10)
    model = uf.sparsify(GCN(10, 16, 3, 4, norm="BatchNorm"), edge_sparsity=0.6, weight_sparsity=0.5, ramp=1)
    for _ in range(3):
        model(x, edge_index).sum().backward()
    model.eval()
    expected = model(x, edge_index).detach()
    frozen = uf.compress(model, x, edge_index)
    frozen.save(tmp_path / "frozen")
    uf.save(model, tmp_path / "model")
    for other in (frozen, uf.load(tmp_path / "frozen")):
        assert torch.allclose(other(x, edge_index), expected, atol=1e-4)
        assert torch.allclose(other.bind(x, edge_index).predict([3, 7, 39]), expected[[3, 7, 39]], atol=1e-4)
    again = uf.load(tmp_path / "model", into=GCN(10, 16, 3, 4, norm="BatchNorm"))
    assert torch.allclose(again.eval()(x, edge_index), expected, atol=1e-5)


def test_a_wrong_value_is_one_sentence():
    with pytest.raises(InputError, match="renormalize"):
        uf.sparsify(GCNConv(4, 4), edge_sparsity=0.5, renormalize="yes")
