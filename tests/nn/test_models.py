"""The models by name: shapes, the layers they are made of, and that pruning knows every one of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.nn import GATv2Conv, GCN2Conv, GCNConv, GINConv, MessagePassing, SAGEConv

import unifews as uf
from unifews.errors import InputError, UnknownNameError
from unifews.nn.models import MODELS, build, own_settings

X = torch.randn(20, 6, generator=torch.Generator().manual_seed(311))
EDGES = torch.randint(0, 20, (2, 60), generator=torch.Generator().manual_seed(313))
KINDS = dict(gcn=GCNConv, gat=GATv2Conv, sage=SAGEConv, gcnii=GCN2Conv, gin=GINConv)


def convs(model):
    return [module for module in model.modules() if isinstance(module, MessagePassing)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_every_model_gives_a_row_of_scores_per_node(name, layers):
    model = build(name, 6, 4, width=16, layers=layers)
    assert model(X, EDGES).shape == (20, 4)
    assert [type(conv) for conv in convs(model)] == [KINDS[name]] * layers


@pytest.mark.parametrize("name", MODELS)
def test_every_model_can_be_pruned_and_learns_from_it(name):
    model = uf.sparsify(build(name, 6, 4, width=16, layers=2), edge_sparsity=0.5, entries="unit", weight_sparsity=0.5, ramp=1)
    model(X, EDGES).square().sum().backward()
    found = uf.trace(model)
    assert 0 < found.macs < found.dense_macs and found.weight_sparsity == pytest.approx(0.5, abs=0.02)
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())
    assert model.eval()(X, EDGES).shape == (20, 4)


def test_hidden_heads_share_the_width_and_the_last_layer_has_one():
    first, middle, last = convs(build("gat", 6, 4, width=32, layers=3))
    assert (first.heads, first.out_channels) == (middle.heads, middle.out_channels) == (8, 4)
    assert middle.in_channels == 32 and (last.heads, last.out_channels, last.concat) == (1, 4, False)


def test_gcnii_is_between_two_linear_layers_and_deep_ones_transform_less():
    model = build("gcnii", 6, 4, width=16, layers=32)
    betas = [conv.beta for conv in convs(model)]
    assert betas == sorted(betas, reverse=True) and betas[0] == pytest.approx(0.405465, abs=1e-6)  # ln(0.5 / 1 + 1)
    assert {conv.alpha for conv in convs(model)} == {0.1}
    assert sum(isinstance(module, nn.Linear) for module in model.modules()) == 2
    assert bool(model.eval()(X, EDGES).isfinite().all())


def test_norms_and_dropout_stand_between_layers_only():
    model = build("gcn", 6, 4, width=16, layers=3, dropout=0.9)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm1d)]
    assert [(norm.num_features, norm.momentum) for norm in norms] == [(16, 0.9)] * 2
    one = build("gcn", 6, 4, layers=1, dropout=0.9).train()
    assert torch.equal(one(X, EDGES), one(X, EDGES))  # nothing random before the first layer or after the last
    assert not torch.equal(model.train()(X, EDGES), model(X, EDGES))


@pytest.mark.parametrize("name", ["gcn", "gcnii"])
def test_edge_weights_where_there_is_a_place_for_them(name):
    model = build(name, 6, 4, width=16).eval()
    weight = torch.linspace(0.1, 2, 60)
    assert not torch.allclose(model(X, EDGES, weight), model(X, EDGES))


def test_sparse_features_give_what_dense_ones_give():
    x = X * (X > 0.5)
    for name in ("gcn", "sage", "gcnii"):
        model = uf.sparsify(build(name, 6, 4, width=16), edge_sparsity=0.5, entries="unit", weight_sparsity=0.5, ramp=1)
        twin = uf.sparsify(build(name, 6, 4, width=16), edge_sparsity=0.5, entries="unit", weight_sparsity=0.5, ramp=1)
        twin.load_state_dict(model.state_dict())
        grads = []
        for net, features in ((model, x), (twin, x.to_sparse_csr())):
            torch.manual_seed(317)
            net(features, EDGES)[:, 0].sum().backward()
            grads.append([p.grad for p in net.parameters()])
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*grads, strict=True) if a is not None)
        assert torch.allclose(model.eval()(x, EDGES), twin.eval()(x.to_sparse_csr(), EDGES), atol=1e-5)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (dict(name="gcnn"), "no model named 'gcnn'. Did you mean 'gcn'?"),
        (dict(name="gcn", layers=0), "`layers` of a model is an integer of at least 1; got 0"),
        (dict(name="gcn", dropout=1.0), "`dropout` is a number from 0 to below 1"),
        (dict(name="gcn", heads=4), "`heads` is not a setting of gcn; it has none of its own"),
        (dict(name="gcnii", heads=4), "`heads` is not a setting of gcnii; its own settings are alpha, theta"),
        (dict(name="gat", width=20), "8 heads do not divide a width of 20"),
    ],
)
def test_what_cannot_be_built(arguments, sentence):
    with pytest.raises(InputError) as error:
        build(inputs=6, outputs=4, **arguments)
    assert sentence in str(error.value)


def test_an_unknown_model_is_an_unknown_name():
    with pytest.raises(UnknownNameError):
        build("gxn", 6, 4)


@pytest.mark.parametrize("name", ["gat", "sage", "gin"])
def test_weights_that_have_no_place(name):
    with pytest.raises(InputError, match="takes no edge weights; leave `edge_weight` out"):
        build(name, 6, 4, width=16)(X, EDGES, torch.ones(60))


def test_what_each_model_has_of_its_own():
    assert own_settings("gat") == {"heads": 8} and own_settings("gcnii") == {"alpha": 0.1, "theta": 0.5}
    assert own_settings("gcn") == own_settings("sage") == own_settings("gin") == {}
