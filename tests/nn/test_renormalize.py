"""Columns that are not sent are normalised by their self-loops, which are all that is left of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.nn import APPNP, GAT, GCN, GATConv, GATv2Conv, GCN2Conv, GCNConv, GraphSAGE, SGConv, TAGConv

import unifews as uf
from unifews.errors import InputError
from unifews.serving.portable import PortableProgram

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
    makes = lambda: GCNConv(8, 6, normalize=False), lambda: GraphSAGE(8, 6, 2), lambda: TAGConv(8, 6, K=2)
    for make in makes:
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


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("heads", [1, 3, 18])  # 18: without kernels
@pytest.mark.parametrize("make", [GATConv, GATv2Conv])
def test_attention(make, heads, dropout):
    """Sent columns are PyG's, the others the operand; attention dropout does not remove the only term."""
    torch.manual_seed(0)
    edge_index, _ = graph()
    conv = make(10, 4, heads=heads, dropout=dropout)
    model = uf.sparsify(conv, edge_sparsity=0.5)
    x = torch.randn(N, 10, requires_grad=True)
    model(x, edge_index)
    sent, linear = model.columns, conv.lin if make is GATConv else conv.lin_l
    y = linear(x) + conv.bias
    assert 0 < int(sent.sum()) < 4 * heads
    assert torch.allclose(model(x, edge_index)[:, ~sent], y[:, ~sent], atol=1e-5)
    out, whole = model.eval()(x, edge_index), conv.eval()(x, edge_index)
    expected = torch.where(sent, whole, y)
    assert torch.allclose(out, expected, atol=1e-5)
    towards = torch.randn_like(out)
    parameters = [x, *model.parameters()]
    got = torch.autograd.grad(out, parameters, towards)
    want = torch.autograd.grad(expected, [x, *conv.parameters()], towards)
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(got, want, strict=True))


def test_attention_with_edge_features():
    """PyG's own messages."""
    torch.manual_seed(0)
    edge_index, _ = graph()
    features = torch.randn(edge_index.shape[1], 5)
    conv = GATv2Conv(10, 4, heads=3, edge_dim=5)
    model = uf.sparsify(conv, edge_sparsity=0.5)
    x = torch.randn(N, 10)
    out, y = model(x, edge_index, features), conv.lin_l(x) + conv.bias
    assert torch.allclose(out, torch.where(model.columns, conv(x, edge_index, features), y), atol=1e-5)


def test_layers_of_many_hops():
    torch.manual_seed(0)
    edge_index, _ = graph()
    x = torch.randn(N, 12)
    hops = uf.sparsify(APPNP(3, 0.1), edge_sparsity=0.5)
    out, t, expected = hops(x, edge_index), dense(edge_index, None), x
    for hop in range(3):
        assert int(hops.columns_of(hop).sum()) == 6
        expected = 0.9 * torch.where(hops.columns_of(hop), t @ expected, expected) + 0.1 * x
    assert torch.allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("norm", ["gcn", "gat"])
def test_nodes_without_a_self_loop_get_nothing(norm):
    """Where a layer adds none, only some nodes have one."""
    torch.manual_seed(0)
    edge_index, _ = graph()
    x, kinds = torch.randn(N, 10), dict(gcn=GCNConv, gat=GATv2Conv)
    model = uf.sparsify(kinds[norm](10, 8, add_self_loops=False, bias=False), edge_sparsity=0.5)
    out = model(x, edge_index)
    there = torch.zeros(N).index_fill(0, edge_index[0, edge_index[0] == edge_index[1]], 1.0)
    y = model.lin(x) if norm == "gcn" else model.lin_l(x)
    assert 0 < int(there.sum()) < N
    assert torch.allclose(out[:, ~model.columns], (there[:, None] * y)[:, ~model.columns], atol=1e-5)
    frozen = uf.compress(model.eval(), x, edge_index)
    assert torch.allclose(frozen(x, edge_index), out, atol=1e-5)
    assert torch.allclose(PortableProgram(frozen.program)(x, edge_index), out, atol=1e-5)


class SGC(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = SGConv(10, 4, K=3)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


MODELS = {
    "gcn": lambda: GCN(10, 16, 3, 4, norm="BatchNorm"),
    "gat": lambda: GAT(10, 16, 3, 4, heads=2, norm="BatchNorm"),
    "gatv2": lambda: GAT(10, 16, 3, 4, heads=4, v2=True),
    "sgc": SGC,
}


@pytest.mark.parametrize("kind", MODELS)
def test_frozen_saved_and_loaded_models_do_the_same(tmp_path, kind):
    torch.manual_seed(0)
    edge_index, _ = graph()
    x = torch.randn(N, 10)
    make = MODELS[kind]
    model = uf.sparsify(make(), edge_sparsity=0.6, weight_sparsity=0.5, ramp=1)
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
    assert torch.allclose(PortableProgram(frozen.program)(x, edge_index), expected, atol=1e-4)
    again = uf.load(tmp_path / "model", into=make())
    assert torch.allclose(again.eval()(x, edge_index), expected, atol=1e-5)


def test_a_wrong_value_is_one_sentence():
    with pytest.raises(InputError, match="renormalize"):
        uf.sparsify(GCNConv(4, 4), edge_sparsity=0.5, renormalize="yes")
