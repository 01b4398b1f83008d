"""Layers with kernels in all their variants: outputs, gradients and state are those of PyG, in copies and frozen too."""

from __future__ import annotations

import copy

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import unifews as uf
from unifews.errors import InputError
from unifews.nn.convs.base import PrunedConv

N, TARGETS, F, M = 90, 50, 24, 700
_draw = torch.Generator().manual_seed(5)


def _edges(senders, receivers, count):
    """Duplicates, self-loops, isolated nodes."""
    ends = [torch.randint(0, most - 4, (count,), generator=_draw) for most in (senders, receivers)]
    return torch.stack(ends)


EDGES, ACROSS = _edges(N, N, M), _edges(N, TARGETS, M)
X, OWN = torch.randn(N, F, generator=_draw), torch.randn(TARGETS, 16, generator=_draw)
W, ATTR = torch.rand(M, generator=_draw) + 0.1, torch.randn(M, 5, generator=_draw)
SIGNED = torch.where(torch.arange(M) % 9 == 0, -0.05, W)
SINGLE = EDGES.unique(dim=1)  # edges are known by their ends
PAIR, ALIKE = (X, OWN), (X, torch.randn(TARGETS, F, generator=_draw))
EQUAL = X, torch.randn(N, F, generator=_draw)
TURNED = ALIKE[1], X  # fewer senders than receivers
_BETWEEN = EDGES[0] != EDGES[1]  # given loops in a sparse matrix are kept, PyG adds one to each
MATRIX = torch.sparse_coo_tensor(EDGES.flip(0)[:, _BETWEEN], W[_BETWEEN], (N, N)).coalesce().to_sparse_csr()
SENT = ACROSS.flip(0)

VARIANTS = {
    "GCN": (lambda: pyg.GCNConv(F, 7), (X, EDGES, W)),
    "GCN-improved": (lambda: pyg.GCNConv(F, 40, improved=True), (X, EDGES, W)),
    "GCN-sum": (lambda: pyg.GCNConv(F, 7, normalize=False, bias=False), (X, EDGES)),
    "GCN-flow": (lambda: pyg.GCNConv(F, 7, flow="target_to_source"), (X, EDGES)),
    "GCN2": (lambda: pyg.GCN2Conv(F, 0.1, 0.5, 2, shared_weights=False), (X, X.flip(0), EDGES)),
    "GIN": (lambda: pyg.GINConv(nn.Linear(F, 7), train_eps=True), (X, EDGES)),
    "GIN-pair": (lambda: pyg.GINConv(nn.Linear(F, 7)), (ALIKE, ACROSS)),
    "SAGE": (lambda: pyg.SAGEConv(F, 7, normalize=True, project=True), (X, EDGES)),
    "SAGE-sum": (lambda: pyg.SAGEConv(F, 40, aggr="sum", root_weight=False), (X, EDGES)),
    "SAGE-pair": (lambda: pyg.SAGEConv((F, 16), 7), (PAIR, ACROSS)),
    "SAGE-pair-wide": (lambda: pyg.SAGEConv((F, 16), 40, aggr="sum"), (PAIR, ACROSS)),
    "SAGE-pair-turned": (lambda: pyg.SAGEConv((F, F), 7), (TURNED, SENT)),
    "Graph": (lambda: pyg.GraphConv(F, 40), (X, EDGES)),
    "Graph-weights": (lambda: pyg.GraphConv(F, 7), (X, EDGES, W)),
    "Graph-mean": (lambda: pyg.GraphConv(F, 7, aggr="mean", bias=False), (X, EDGES)),
    "Graph-weighted-mean": (lambda: pyg.GraphConv(F, 7, aggr="mean"), (X, EDGES, W)),
    "Graph-flow": (lambda: pyg.GraphConv(F, 7, flow="target_to_source"), (X, EDGES, W)),
    "Graph-matrix": (lambda: pyg.GraphConv(F, 7), (X, MATRIX)),
    "Graph-pair": (lambda: pyg.GraphConv((F, 16), 7), (PAIR, ACROSS, W)),
    "Graph-pair-turned": (lambda: pyg.GraphConv(F, 40), (TURNED, SENT, W)),
    "SG": (lambda: pyg.SGConv(F, 7, K=3), (X, EDGES)),
    "SG-wide": (lambda: pyg.SGConv(F, 40, K=3, add_self_loops=False, bias=False), (X, EDGES, W)),
    "SG-matrix": (lambda: pyg.SGConv(F, 7, K=2), (X, MATRIX)),
    "SSG": (lambda: pyg.SSGConv(F, 7, alpha=0.2, K=4), (X, EDGES, W)),
    "LG": (lambda: pyg.LGConv(), (X, EDGES)),
    "LG-sum": (lambda: pyg.LGConv(normalize=False), (X, EDGES, W)),
    "APPNP": (lambda: pyg.APPNP(10, 0.1), (X, EDGES)),
    "APPNP-weights": (lambda: pyg.APPNP(5, 0.2, add_self_loops=False), (X, EDGES, W)),
    "APPNP-sum": (lambda: pyg.APPNP(2, 0.3, normalize=False), (X, EDGES, W)),
    "APPNP-flow": (lambda: pyg.APPNP(4, 0.1, flow="target_to_source"), (X, EDGES)),
    "APPNP-none": (lambda: pyg.APPNP(0, 0.1), (X, EDGES)),
    "APPNP-static": (lambda: pyg.APPNP(3, 0.1), (X.view(2, N, F // 2), EDGES)),
    "TAG": (lambda: pyg.TAGConv(F, 40), (X, EDGES, W)),
    "TAG-narrow": (lambda: pyg.TAGConv(F, 7, K=4), (X, EDGES)),
    "TAG-sum": (lambda: pyg.TAGConv(F, 7, K=2, normalize=False, bias=False), (X, EDGES)),
    "Cheb": (lambda: pyg.ChebConv(F, 7, 4), (X, EDGES)),
    "Cheb-weights": (lambda: pyg.ChebConv(F, 7, 2, bias=False), (X, EDGES, W)),
    "Cheb-one": (lambda: pyg.ChebConv(F, 7, 1), (X, EDGES)),
    "Cheb-negative": (lambda: pyg.ChebConv(F, 7, 3), (X, EDGES, SIGNED)),
    "Cheb-lambda": (lambda: pyg.ChebConv(F, 7, 3), (X, EDGES, None, None, 1.5)),
    "GAT": (lambda: pyg.GATConv(F, 6, heads=3), (X, EDGES)),
    "GAT-mean": (lambda: pyg.GATConv(F, 6, heads=3, concat=False, residual=True), (X, EDGES)),
    "GAT-two": (lambda: pyg.GATConv((F, F), 6, heads=2), (X, EDGES)),
    "GAT-pair": (lambda: pyg.GATConv((F, 16), 6, heads=2, residual=True), (PAIR, ACROSS)),
    "GAT-pair-plain": (lambda: pyg.GATConv(F, 6, heads=2, add_self_loops=False), (ALIKE, ACROSS)),
    "GAT-pair-equal": (lambda: pyg.GATConv(F, 6), (EQUAL, EDGES)),
    "GAT-edges": (lambda: pyg.GATConv(F, 6, edge_dim=5), (X, EDGES, ATTR)),
    "GATv2": (lambda: pyg.GATv2Conv(F, 6, heads=3, add_self_loops=False), (X, EDGES)),
    "GATv2-pair": (lambda: pyg.GATv2Conv((F, 16), 6, heads=2), (PAIR, ACROSS)),
    "GATv2-pair-shared": (lambda: pyg.GATv2Conv(F, 6, share_weights=True, bias=False), (TURNED, SENT)),
    "Transformer": (lambda: pyg.TransformerConv(F, 6, heads=3), (X, EDGES)),
    "Transformer-beta": (lambda: pyg.TransformerConv(F, 6, heads=2, beta=True, concat=False), (X, EDGES)),
    "Transformer-plain": (lambda: pyg.TransformerConv(F, 6, root_weight=False, bias=False), (X, EDGES)),
    "Transformer-pair": (lambda: pyg.TransformerConv((F, 16), 6, heads=2), (PAIR, ACROSS)),
    "Transformer-edges": (lambda: pyg.TransformerConv(F, 6, edge_dim=5), (X, EDGES, ATTR)),
    "Transformer-many-heads": (lambda: pyg.TransformerConv(F, 2, heads=18), (X, EDGES)),
}
UNCHANGED = {
    "Graph-max": (lambda: pyg.GraphConv(F, 7, aggr="max"), "GraphConv with aggr='max'"),
    "SG-mean": (lambda: pyg.SGConv(F, 7, aggr="mean"), "SGConv with aggr='mean'"),
    "Cheb-rw": (lambda: pyg.ChebConv(F, 7, 3, normalization="rw"), "ChebConv with normalization='rw'"),
    "Cheb-flow": (lambda: pyg.ChebConv(F, 7, 3, flow="target_to_source"), "ChebConv with flow='target_to_source'"),
    "Transformer-max": (lambda: pyg.TransformerConv(F, 7, aggr="max"), "TransformerConv with aggr='max'"),
}
# Layers of which steps exist where they are called with one matrix and edge_index, so that frozen models are stored.
STORED = [
    name
    for name, (_, inputs) in VARIANTS.items()
    if name.partition("-")[0] in ("GCN", "SAGE", "Graph", "SG", "SSG", "LG", "APPNP", "TAG", "Cheb", "GAT", "GATv2")
    and len(inputs) == 2
    and all(isinstance(part, Tensor) and part.layout == torch.strided and part.ndim == 2 for part in inputs)
    and name not in ("GAT-two", "Cheb-negative", "Cheb-lambda")
]


def built(name):
    torch.manual_seed(3)
    return VARIANTS[name][0]()


def run(layer, inputs):
    """Output and the gradients of features and parameters."""

    def own(value):
        if isinstance(value, tuple):
            return tuple(map(own, value))
        needs = isinstance(value, Tensor) and value.is_floating_point() and value.layout == torch.strided
        return value.clone().requires_grad_() if needs else value

    given = [own(value) for value in inputs]
    layer = copy.deepcopy(layer)
    out = layer(*given)
    (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(4))).sum().backward()
    flat = [part for value in given for part in (value if isinstance(value, tuple) else (value,))]
    found = {f"input {i}": part.grad for i, part in enumerate(flat) if isinstance(part, Tensor) and part.grad is not None}
    return out.detach(), found | {key: value.grad for key, value in layer.named_parameters() if value.grad is not None}


def distance(ours, theirs):
    return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-20))


@pytest.mark.parametrize("name", VARIANTS)
def test_outputs_and_gradients_are_those_of_pyg(name):
    layer, inputs = built(name), VARIANTS[name][1]
    fast = uf.accelerate(layer)
    assert isinstance(fast, PrunedConv)
    (ours, slopes), (theirs, expected) = run(fast, inputs), run(layer, inputs)
    assert ours.shape == theirs.shape and distance(ours, theirs) < 3e-7
    assert slopes.keys() == expected.keys()
    largest = max((float(value.norm()) for value in expected.values()), default=0.0)
    for key, value in expected.items():  # of what a softmax makes zero, only rounding is left in both
        assert float((slopes[key] - value).norm()) < 1e-6 * float(value.norm()) + 1e-7 * largest, key
    with torch.no_grad():
        assert distance(fast.eval()(*inputs), layer.eval()(*inputs)) < 3e-7


@pytest.mark.parametrize("name", VARIANTS)
def test_state_copies_and_back(name):
    layer, inputs = built(name).eval(), VARIANTS[name][1]
    fast = uf.accelerate(layer)
    assert list(fast.state_dict()) == list(layer.state_dict())
    other = VARIANTS[name][0]().eval()
    other.load_state_dict(fast.state_dict())
    with torch.no_grad():
        out = fast(*inputs)
        assert distance(other(*inputs), out) < 3e-7
        assert torch.equal(copy.deepcopy(fast)(*inputs), out)
        plain = uf.desparsify(fast)
        assert type(plain) is type(layer) and torch.equal(plain(*inputs), layer(*inputs))
        assert vars(plain).keys() == vars(layer).keys()


@pytest.mark.parametrize("name", STORED)
def test_frozen_and_stored_it_computes_the_same(name, tmp_path):
    fast, inputs = uf.sparsify(built(name)).eval(), VARIANTS[name][1]
    frozen = uf.compress(fast, *inputs)
    uf.save(frozen, tmp_path / "frozen")
    with torch.no_grad():
        torch.testing.assert_close(uf.load(tmp_path / "frozen")(*inputs), fast(*inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", UNCHANGED)
def test_variants_without_a_kernel_stay_pygs_own(name):
    make, message = UNCHANGED[name]
    with pytest.raises(InputError, match=message):
        uf.accelerate(make())
    both = uf.accelerate(nn.ModuleList([pyg.GCNConv(4, 4), layer := make()]))
    assert type(both[1]) is type(layer) and message in both.unifews_report.unchanged[0].reason


@pytest.mark.parametrize("name", ["Graph", "SG", "APPNP", "TAG", "TAG-narrow", "Cheb", "Transformer"])
@pytest.mark.parametrize("entries", ["edge", "unit", "block", "node"])
def test_pruned_they_evaluate_what_they_train(name, entries):
    layer = uf.sparsify(built(name), edge_sparsity=0.5, entries=entries)
    for _ in range(2):
        out = layer(X, SINGLE)
    trained = uf.trace(layer)
    if entries == "block" and len(trained.hops) > 1:  # one threshold for all products, which the trace says
        assert any("computes several products" in note for note in trained.notes)
        return
    torch.testing.assert_close(layer.eval()(X, SINGLE), out)
    assert uf.trace(layer).edge_sparsity == pytest.approx(trained.edge_sparsity) == pytest.approx(0.5, abs=0.06)


def test_dropout_of_edges_is_pygs_own():
    torch.manual_seed(0)
    layer = pyg.APPNP(3, 0.1, dropout=0.5)
    torch.manual_seed(1)
    expected = layer(X, EDGES)
    torch.manual_seed(1)
    torch.testing.assert_close(uf.accelerate(layer)(X, EDGES), expected)


def test_features_are_propagated_once_by_a_layer_that_caches():
    layer = uf.accelerate(pyg.SGConv(F, 4, K=3, cached=True))
    first, x = layer(X, EDGES), X
    again = layer(x, EDGES)
    assert torch.equal(first, again) and len(uf.trace(layer).hops) == 3


def test_learnt_edge_weights_have_their_gradient():
    for make in (lambda: pyg.APPNP(4, 0.1), lambda: pyg.TAGConv(F, 4), lambda: pyg.GraphConv(F, 4)):
        torch.manual_seed(0)
        layer, slopes = make(), []
        for each in (layer, uf.accelerate(layer)):
            weight = W.clone().requires_grad_()
            each(X, EDGES, weight).square().sum().backward()
            slopes.append(weight.grad)
        assert distance(slopes[1], slopes[0]) < 1e-5


def test_in_other_precisions_they_are_right_too():
    for name in ("APPNP", "TAG", "Graph", "Transformer", "GAT-pair"):
        layer, inputs = built(name).double(), VARIANTS[name][1]
        given = [tuple(map(Tensor.double, part)) if isinstance(part, tuple) else part for part in inputs]
        given = [part.double() if isinstance(part, Tensor) and part.is_floating_point() else part for part in given]
        with torch.no_grad():
            assert distance(uf.accelerate(layer)(*given), layer(*given)) < 1e-13
