"""Every layer of torch_geometric.nn.conv, sparsified: what is pruned of it, and what the trace says is not."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.nn import conv as convs

import unifews as uf
from unifews.errors import InputError

N, F, M = 20, 8, 66
_draw = torch.Generator().manual_seed(1)
X, POS = torch.randn(N, F, generator=_draw), torch.randn(N, 3, generator=_draw)
_PAIRS = torch.randperm(N * N, generator=_draw)[:M]
EDGES = torch.stack([_PAIRS // N, _PAIRS % N])  # none twice: edges are known by their ends
ATTR, WEIGHT, TYPE = torch.randn(M, 3, generator=_draw), torch.rand(M, generator=_draw), torch.arange(M) % 3
AROUND = torch.arange(N)[:, None] + torch.tensor([1, 2, 5, 7])
MESH = torch.stack([AROUND.flatten() % N, torch.arange(N).repeat_interleave(4)])
DICT = ["a", "b"], [("a", "r", "b"), ("b", "s", "a")]
DICTS = {"a": X, "b": X.clone()}, {("a", "r", "b"): EDGES, ("b", "s", "a"): EDGES}

# Layer, what it is called with, matrices with a mask, products of one call, and matrices without a mask.
CASES = {
    "SimpleConv": (lambda: pyg.SimpleConv(), (X, EDGES), 0, 1, ["SimpleConv has no weight matrix"]),
    "GCNConv": (lambda: pyg.GCNConv(F, 6), (X, EDGES), 1, 1, []),
    "ChebConv": (lambda: pyg.ChebConv(F, 6, 3), (X, EDGES), 3, 2, []),
    "SAGEConv": (lambda: pyg.SAGEConv(F, 6), (X, EDGES), 2, 1, []),
    "SAGEConv-max": (lambda: pyg.SAGEConv(F, 6, aggr="max"), (X, EDGES), 2, 1, []),
    "GraphConv": (lambda: pyg.GraphConv(F, 6), (X, EDGES, WEIGHT), 2, 1, []),
    "GatedGraphConv": (lambda: pyg.GatedGraphConv(F, 2), (X, EDGES), 0, 2, ["weight of GatedGraphConv", "rnn.weight_ih"]),
    "ResGatedGraphConv": (lambda: pyg.ResGatedGraphConv(F, 6), (X, EDGES), 4, 1, []),
    "GATConv": (lambda: pyg.GATConv(F, 6, heads=2), (X, EDGES), 1, 1, []),
    "GATv2Conv": (lambda: pyg.GATv2Conv(F, 6, heads=2), (X, EDGES), 2, 1, []),
    "TransformerConv": (lambda: pyg.TransformerConv(F, 6, heads=2), (X, EDGES), 4, 1, []),
    "AGNNConv": (lambda: pyg.AGNNConv(), (X, EDGES), 0, 1, ["AGNNConv has no weight matrix"]),
    "TAGConv": (lambda: pyg.TAGConv(F, 6), (X, EDGES), 4, 3, []),
    "GINConv": (lambda: pyg.GINConv(nn.Linear(F, 6)), (X, EDGES), 1, 1, []),
    "GINEConv": (lambda: pyg.GINEConv(nn.Linear(F, 6), edge_dim=3), (X, EDGES, ATTR), 2, 1, []),
    "ARMAConv": (lambda: pyg.ARMAConv(F, 6, num_stacks=2, num_layers=2), (X, EDGES), 0, 2, ["init_weight of ARMAConv"]),
    "SGConv": (lambda: pyg.SGConv(F, 6, K=2), (X, EDGES), 1, 2, []),
    "SSGConv": (lambda: pyg.SSGConv(F, 6, alpha=0.1, K=2), (X, EDGES), 1, 2, []),
    "APPNP": (lambda: pyg.APPNP(3, 0.1), (X, EDGES), 0, 3, ["APPNP has no weight matrix"]),
    "MFConv": (lambda: pyg.MFConv(F, 6), (X, EDGES), 22, 1, ["of 22 matrices have had no input"]),
    "RGCNConv": (lambda: pyg.RGCNConv(F, 6, 3), (X, EDGES, TYPE), 2, 3, []),
    "RGCNConv-bases": (lambda: pyg.RGCNConv(F, 6, 3, num_bases=2), (X, EDGES, TYPE), 2, 3, ["comp of RGCNConv (3 x 2)"]),
    "RGCNConv-blocks": (lambda: pyg.RGCNConv(F, 6, 3, num_blocks=2), (X, EDGES, TYPE), 2, 3, []),
    "FastRGCNConv": (lambda: pyg.FastRGCNConv(F, 6, 3), (X, EDGES, TYPE), 2, 1, []),
    "RGATConv": (lambda: pyg.RGATConv(F, 6, 3), (X, EDGES, TYPE), 0, 1, ["weight of RGATConv (3 x 8 x 6)"]),
    "SignedConv": (lambda: pyg.SignedConv(F, 6, True), (X, EDGES, EDGES), 4, 2, []),
    "DNAConv": (lambda: pyg.DNAConv(F), (X[:, None].repeat(1, 2, 1), EDGES), 0, 1, ["lin_q.weight"]),
    "PointNetConv": (lambda: pyg.PointNetConv(nn.Linear(F + 3, 6)), (X, POS, EDGES), 1, 1, []),
    "GMMConv": (lambda: pyg.GMMConv(F, 6, 3, 2), (X, EDGES, ATTR), 1, 1, ["g of GMMConv (8 x 12)"]),
    "NNConv": (lambda: pyg.NNConv(F, 6, nn.Linear(3, F * 6)), (X, EDGES, ATTR), 2, 1, []),
    "CGConv": (lambda: pyg.CGConv(F, 3), (X, EDGES, ATTR), 2, 1, []),
    "EdgeConv": (lambda: pyg.EdgeConv(nn.Linear(2 * F, 6)), (X, EDGES), 1, 1, []),
    "PPFConv": (lambda: pyg.PPFConv(nn.Linear(F + 4, 6)), (X, POS, nn.functional.normalize(POS), EDGES), 1, 1, []),
    "FeaStConv": (lambda: pyg.FeaStConv(F, 6), (X, EDGES), 2, 1, []),
    "PointTransformerConv": (lambda: pyg.PointTransformerConv(F, 6), (X, POS, EDGES), 4, 1, []),
    "HypergraphConv": (lambda: pyg.HypergraphConv(F, 6), (X, EDGES), 1, 2, []),
    "LEConv": (lambda: pyg.LEConv(F, 6), (X, EDGES, WEIGHT), 3, 1, []),
    "PNAConv": (lambda: pyg.PNAConv(F, 6, ["mean", "max"], ["identity"], torch.tensor([0, 5, 9])), (X, EDGES), 3, 1, []),
    "ClusterGCNConv": (lambda: pyg.ClusterGCNConv(F, 6), (X, EDGES), 2, 1, []),
    "GENConv": (lambda: pyg.GENConv(F, 6), (X, EDGES), 4, 1, []),
    "GCN2Conv": (lambda: pyg.GCN2Conv(F, 0.1), (X, X, EDGES), 1, 1, []),
    "WLConvContinuous": (lambda: pyg.WLConvContinuous(), (X, EDGES), 0, 1, ["no weight matrix"]),
    "FiLMConv": (lambda: pyg.FiLMConv(F, 6, num_relations=3), (X, EDGES, TYPE), 8, 3, []),
    "SuperGATConv": (lambda: pyg.SuperGATConv(F, 6, heads=2), (X, EDGES), 1, 1, []),
    "FAConv": (lambda: pyg.FAConv(F), (X, X, EDGES), 2, 1, []),
    "EGConv": (lambda: pyg.EGConv(F, 8, num_heads=4), (X, EDGES), 2, 1, []),
    "PDNConv": (lambda: pyg.PDNConv(F, 6, 3, 4), (X, EDGES, ATTR), 3, 1, []),
    "GeneralConv": (lambda: pyg.GeneralConv(F, 6, 3), (X, EDGES, ATTR), 3, 1, []),
    "HGTConv": (lambda: pyg.HGTConv(F, 6, DICT), DICTS, 4, 1, ["k_rel.weight"]),
    "HEATConv": (lambda: pyg.HEATConv(F, 6, 2, 3, 4, 3, 4), (X, EDGES, torch.arange(N) % 2, TYPE, ATTR), 3, 1, ["hetero_lin"]),
    "HeteroConv": (lambda: pyg.HeteroConv({e: pyg.SAGEConv((F, F), 6) for e in DICT[1]}), DICTS, 4, 2, []),
    "HANConv": (lambda: pyg.HANConv(F, 6, DICT, heads=2), DICTS, 3, 2, ["lin_src.a__r__b"]),
    "LGConv": (lambda: pyg.LGConv(), (X, EDGES), 0, 1, ["no weight matrix"]),
    "PointGNNConv": (
        lambda: pyg.PointGNNConv(nn.Linear(F, 3), nn.Linear(F + 3, 6), nn.Linear(6, F)),
        (X, POS, EDGES),
        3,
        1,
        [],
    ),
    "GPSConv": (lambda: pyg.GPSConv(F, pyg.GCNConv(F, F), heads=2), (X, EDGES), 3, 1, ["attn.in_proj_weight"]),
    "AntiSymmetricConv": (lambda: pyg.AntiSymmetricConv(F), (X, EDGES), 1, 1, ["W of AntiSymmetricConv"]),
    "DirGNNConv": (lambda: pyg.DirGNNConv(pyg.GCNConv(F, 6)), (X, EDGES), 3, 2, []),
    "MixHopConv": (lambda: pyg.MixHopConv(F, 6), (X, EDGES), 3, 2, []),
    "MeshCNNConv": (lambda: pyg.MeshCNNConv(F, 6), (X, MESH), 5, 1, []),
}
ELSEWHERE = {
    "WLConv": "no message-passing layer: refused, see below",
    **dict.fromkeys(["CuGraphSAGEConv", "CuGraphGATConv", "CuGraphRGCNConv"], "needs a GPU and cugraph"),
    **dict.fromkeys(["GravNetConv", "SplineConv", "DynamicEdgeConv", "XConv"], "needs pyg-lib"),
    "FusedGATConv": "needs dgNN",
    "PANConv": "needs torch-sparse",
}


def total(out) -> Tensor:
    """Of whatever a layer gives."""
    if isinstance(out, Tensor):
        return out.square().sum()
    return sum((total(part) for part in (out.values() if isinstance(out, dict) else out) if part is not None), torch.zeros(()))


def test_every_layer_of_pyg_is_here():
    known = {name.partition("-")[0] for name in CASES} | set(ELSEWHERE)
    assert known >= set(convs.__all__) - {"MessagePassing"}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("entries", ["edge", "unit", "node"])
@pytest.mark.parametrize("name", list(CASES))
def test_a_layer_is_pruned_or_says_what_is_not(name, entries):
    make, inputs, matrices, products, unpruned = CASES[name]
    torch.manual_seed(2)
    model = uf.sparsify(make(), edge_sparsity=0.5, weight_sparsity=0.5, entries=entries, ramp=1)
    for _ in range(2):
        out = total(model(*inputs))
        if out.requires_grad:
            out.backward()
    trained = uf.trace(model)
    with torch.no_grad():
        model.eval()(*inputs)
    evaluated = uf.trace(model)
    assert len(trained.layers) == matrices and len(trained.hops) == products
    for found in (trained, evaluated):  # what is evaluated is what was trained
        assert found.edge_sparsity == pytest.approx(0.5, abs=0.04)
    waiting = any("had no input" in note for note in trained.notes)
    assert trained.weight_sparsity == pytest.approx(0.5 if matrices else 0.0, abs=0.5 if waiting else 0.03)
    said = " ".join(note for note in trained.notes if "generic path" not in note)
    assert all(part in said for part in unpruned) and bool(said) == bool(unpruned)
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("name", list(CASES))
def test_unpruned_it_is_the_layer_itself(name):
    make, inputs, *_ = CASES[name]
    torch.manual_seed(2)
    plain = make().eval()
    with torch.no_grad():
        torch.manual_seed(3)
        expected = total(plain(*inputs))
        torch.manual_seed(3)
        found = total(uf.sparsify(plain).eval()(*inputs))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", list(CASES))
def test_weights_that_are_not_pruned_are_warned_of_once(name):
    make, _, _, _, unpruned = CASES[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = make()
        caught.clear()
        uf.sparsify(model, edge_sparsity=0.5, entries="unit")
        assert not caught
        uf.sparsify(model, weight_sparsity=0.5)
    said = [str(one.message) for one in caught]
    assert len(said) == bool([part for part in unpruned if "had no input" not in part])


def test_a_layer_that_sends_no_messages_is_refused():
    with pytest.raises(InputError, match="WLConv has no PyG message-passing layer"):
        uf.sparsify(pyg.WLConv(), edge_sparsity=0.5, entries="unit")


# ------------------------------------------------------------------------------------------------------------------- RGCN


class Relations(nn.Module):
    def __init__(self, kind, **how):
        super().__init__()
        self.a, self.b = kind(F, 16, 3, **how), kind(16, 4, 3, **how)

    def forward(self, x, edge_index, edge_type):
        return self.b(self.a(x, edge_index, edge_type).relu(), edge_index, edge_type)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("how", [{}, {"num_bases": 2}, {"num_blocks": 2}], ids=["plain", "bases", "blocks"])
@pytest.mark.parametrize("kind", [pyg.RGCNConv, pyg.FastRGCNConv])
def test_weights_of_relations_are_pruned(kind, how, tmp_path):
    torch.manual_seed(2)
    model = uf.sparsify(Relations(kind, **how), weight_sparsity=0.9, ramp=3, feedback=False)
    for _ in range(4):
        model.zero_grad()
        model(X, EDGES, TYPE).square().sum().backward()
    assert uf.trace(model).weight_sparsity == pytest.approx(0.9, abs=0.01)
    mask = model.a.weight_mask.keep.view(model.a.weight.shape)
    assert not bool(model.a.weight.grad[~mask].any())  # removed weights take no part
    out = model.eval()(X, EDGES, TYPE)
    plain = uf.desparsify(model)
    assert type(plain.a) is kind and set(plain.state_dict()) == set(Relations(kind, **how).state_dict())
    assert int((plain.a.weight == 0).sum()) == int((~mask).sum())
    torch.testing.assert_close(plain(X, EDGES, TYPE), out)
    uf.save(model, tmp_path / "model")
    again = uf.load(tmp_path / "model", into=Relations(kind, **how))
    assert torch.equal(again.eval()(X, EDGES, TYPE), out)


def test_the_weights_of_a_relation_go_by_the_input_of_the_layer():
    """|W[r, j, i]| · ‖x[:, j]‖, and the relative threshold is a multiple of ‖x‖_F / inputs."""
    torch.manual_seed(2)
    layer = uf.sparsify(pyg.RGCNConv(F, 6, 3, root_weight=False), weight_threshold=0.7)
    layer(X, EDGES, TYPE)
    size = layer.weight.abs() * X.norm(dim=0)[:, None]
    assert torch.equal(layer.weight_mask.keep.view_as(size), size >= 0.7 * X.norm() / F)


@pytest.mark.parametrize("x", [None, torch.arange(N).flip(0)], ids=["all", "numbers"])
def test_numbers_of_nodes_for_features(x):
    layer = uf.sparsify(pyg.RGCNConv(N, 4, 3), weight_sparsity=0.5, ramp=1)
    layer(x, EDGES, TYPE).sum().backward()
    assert uf.trace(layer).weight_sparsity == pytest.approx(0.5, abs=0.01)


def test_files_of_models_whose_relations_were_not_pruned_yet(tmp_path):
    """As written by releases without those masks."""
    model = uf.sparsify(Relations(pyg.RGCNConv), edge_sparsity=0.5, entries="unit")
    model(X, EDGES, TYPE)
    older = {name: value for name, value in model.state_dict().items() if "_mask." not in name}
    model.state_dict = lambda *args, **kwargs: older
    uf.save(model, tmp_path / "model")
    again = uf.load(tmp_path / "model", into=Relations(pyg.RGCNConv))
    assert torch.equal(again.eval()(X, EDGES, TYPE), model.eval()(X, EDGES, TYPE))


@pytest.mark.parametrize("entries", ["unit", "node"])
def test_every_product_of_a_layer_has_its_own_decision(entries):
    """Before, evaluation used what was decided for the last relation or hop."""
    torch.manual_seed(2)
    for layer, inputs in ((pyg.RGCNConv(F, 16, 3), (X, EDGES, TYPE)), (pyg.TAGConv(F, 16, K=3), (X, EDGES))):
        for inherit in (True, False):
            model = uf.sparsify(layer, edge_sparsity=0.5, entries=entries, inherit=inherit)
            with torch.enable_grad():
                trained = model(*inputs)
            torch.testing.assert_close(model.eval()(*inputs), trained)
            uf.set_schedule(model.train(), "monotone")
            before = model.removed.clone()
            model(*(part * 2 if part.is_floating_point() else part for part in inputs))
            assert set(before.tolist()) <= set(model.removed.tolist())


@pytest.mark.parametrize("entries", ["block", "feature"])
def test_one_threshold_for_several_products_is_noted(entries):
    model = uf.sparsify(pyg.TAGConv(F, 16), edge_sparsity=0.5, entries=entries)
    model(X, EDGES)
    assert any("computes several products" in note for note in uf.trace(model).notes)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["RGCNConv", "TAGConv", "GraphConv"])
def test_calls_in_several_threads_do_not_see_each_other(name):
    make, inputs, *_ = CASES[name]
    torch.manual_seed(2)
    model = uf.sparsify(make(), edge_sparsity=0.5, entries="unit", weight_sparsity=0.5, ramp=1)
    model(*inputs)
    model.eval()

    def call(_):
        with torch.no_grad():
            return model(*inputs)

    expected = call(0)
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(found, expected) for found in pool.map(call, range(60)))
