"""`sparsify` on PyG's layers: the same model when nothing is removed, and exactly what was asked for when something is."""

from __future__ import annotations

import copy
import io
import re
from itertools import pairwise

import frozen_models
import pytest
import torch
from frozen_models import Deep, Two
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import (
    GAT,
    GCN,
    GIN,
    ChebConv,
    GATConv,
    GATv2Conv,
    GCN2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    GraphSAGE,
    ResGatedGraphConv,
    RGCNConv,
    SAGEConv,
    TransformerConv,
)

import unifews as uf
from unifews.errors import GraphError, InputError, ShapeError
from unifews.nn.config import nested_share, water_level, weight_shares, whole_columns
from unifews.nn.convs.base import PrunedConv
from unifews.nn.linear import PrunedLinear


def graph(n=60, m=300):
    return frozen_models.graph(n, m, alone=3)


def mlp(a, b):
    return nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b))


KINDS = {
    "gcn": GCNConv,
    "gcn improved": lambda a, b: GCNConv(a, b, improved=True),
    "gcn without loops": lambda a, b: GCNConv(a, b, add_self_loops=False),
    "gcn as it is": lambda a, b: GCNConv(a, b, normalize=False, bias=False),
    "gcn backwards": lambda a, b: GCNConv(a, b, flow="target_to_source"),
    "sage": SAGEConv,
    "sage sum": lambda a, b: SAGEConv(a, b, aggr="add", root_weight=False, normalize=True),
    "sage project": lambda a, b: SAGEConv(a, b, project=True),
    "sage max": lambda a, b: SAGEConv(a, b, aggr="max"),
    "gin": lambda a, b: GINConv(mlp(a, b), train_eps=True),
    "gat": lambda a, b: GATConv(a, b, heads=2, concat=False),
    "gatv2": lambda a, b: GATv2Conv(a, b, heads=2, concat=False),
    "graph": GraphConv,
    "cheb": lambda a, b: ChebConv(a, b, K=3),
    "transformer": TransformerConv,
}
FUSED = {"gcn", "sage", "gin"}


def net(conv, width=48, classes=7):
    torch.manual_seed(0)
    return Two(conv, width, classes)


def deep(layers=3, shared=True):
    torch.manual_seed(0)
    return Deep(layers, shared, classes=7)


def gradients(model, x, *rest):
    x = x.clone().requires_grad_()
    out = model(x, *rest)
    out.square().sum().backward()
    return out.detach(), x.grad, [p.grad for p in model.parameters()]


def assert_same(a, b):
    for ours, theirs in zip(a, b, strict=True):
        if isinstance(ours, list):
            assert_same(ours, theirs)
        elif ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


# ------------------------------------------------------------------------------------------------------ nothing removed


@pytest.mark.parametrize("kind", KINDS)
def test_with_nothing_removed_it_is_the_same_model(kind):
    x, edge_index = graph()
    model = net(KINDS[kind])
    assert_same(gradients(uf.sparsify(model), x, edge_index), gradients(model, x, edge_index))


@pytest.mark.parametrize("shared", [True, False])
def test_gcnii_is_the_same_model(shared):
    x, edge_index = graph()
    model = deep(shared=shared)
    assert_same(gradients(uf.sparsify(model), x, edge_index), gradients(model, x, edge_index))


@pytest.mark.parametrize("kind", ["gcn", "gcn improved", "gcn as it is", "graph"])
def test_edge_weights(kind):
    x, edge_index = graph()
    weight = torch.rand(edge_index.shape[1])
    model = net(KINDS[kind])
    assert_same(gradients(uf.sparsify(model), x, edge_index, weight), gradients(model, x, edge_index, weight))


def test_edge_weights_that_learn_get_their_gradient():
    x, edge_index = graph()
    model = net(GCNConv)
    ours, theirs = (torch.rand(edge_index.shape[1], generator=torch.Generator().manual_seed(1)) for _ in range(2))
    uf.sparsify(model)(x, edge_index, ours.requires_grad_()).square().sum().backward()
    model(x, edge_index, theirs.requires_grad_()).square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "graph"])
@pytest.mark.parametrize("layout", ["to_sparse_csr", "to_sparse_coo", "to_sparse_csc"])
def test_a_sparse_matrix_for_edge_index(kind, layout):
    x, edge_index = graph()
    pairs = torch.unique(edge_index[:, edge_index[0] != edge_index[1]], dim=1)
    dense = torch.zeros(len(x), len(x))
    dense[pairs[1], pairs[0]] = 1
    model = uf.sparsify(net(KINDS[kind]))
    matrix = getattr(dense, layout)()
    torch.testing.assert_close(model(x, matrix), model(x, pairs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "model",
    [
        lambda: GCN(20, 32, 3, 7, jk="cat"),
        lambda: GraphSAGE(20, 32, 2, 7),
        lambda: GIN(20, 32, 2, 7),
        lambda: GAT(20, 32, 2, 7, v2=True, heads=4),
        lambda: GCN(20, 32, 3, 7, jk="lstm", norm="batch"),
    ],
)
def test_pygs_ready_models(model):
    x, edge_index = graph()
    made = model().eval()
    pruned = uf.sparsify(made, edge_sparsity=0.5, entries="unit", weight_sparsity=0.5, ramp=1)
    torch.testing.assert_close(uf.sparsify(made)(x, edge_index), made(x, edge_index), rtol=1e-4, atol=1e-4)
    pruned.train()
    for _ in range(2):
        pruned(x, edge_index).sum().backward()
    assert uf.trace(pruned).edge_sparsity == pytest.approx(0.5, abs=0.02)
    assert uf.trace(pruned).weight_sparsity == pytest.approx(0.5, abs=0.01)


def test_in_any_precision_and_place_the_numbers_are_those_of_the_kernels():
    """float64 takes the portable path, which is also what a GPU takes."""
    x, edge_index = graph()
    for entries in ("unit", "block", "feature", "node"):
        model = uf.sparsify(net(GCNConv), edge_sparsity=0.5, entries=entries)
        double = copy.deepcopy(model).double()
        ours, theirs = model(x, edge_index), double(x.double(), edge_index)
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)
        assert uf.trace(model).macs == uf.trace(double).macs


# -------------------------------------------------------------------------------------------------------- what is removed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("entries", ["unit", "node", "feature", "block"])
def test_the_share_asked_for_is_removed(kind, entries):
    x, edge_index = graph(80, 900)
    model = uf.sparsify(
        net(KINDS[kind], width=64, classes=32),
        edge_sparsity=0.6,
        weight_sparsity=0.7,
        entries=entries,
        ramp=1,
        inherit=entries == "node",
    )
    for _ in range(2):  # a generic layer tells how wide its messages are only when it runs
        model(x, edge_index).sum().backward()
    seen = uf.trace(model)
    assert seen.edge_sparsity == pytest.approx(0.6, abs=0.02)
    assert seen.weight_sparsity == pytest.approx(0.7, abs=0.001)
    if kind in FUSED:
        assert not seen.notes
    if kind == "sage max":
        assert "generic" in seen.notes[0]


def test_counts_are_those_of_a_hand():
    x, edge_index = graph()
    model = uf.sparsify(net(GCNConv), edge_sparsity=0.5, entries="unit", weight_sparsity=0.5, ramp=1)
    model(x, edge_index).sum().backward()
    seen = uf.trace(model)
    between = int((edge_index[0] != edge_index[1]).sum())
    # 20 columns into the first layer are fewer than the 48 out of it: the unpruned product has 20 + 7, half of that is 14.
    assert [hop.width for hop in seen.hops] == [20, 7]
    assert [int(conv.columns.sum()) for conv in (model.first, model.second)] == [7, 7]
    assert seen.macs == between * 14
    assert seen.dense_macs == between * 27
    assert seen.transform_macs == 60 * (20 * 48 // 2 + 48 * 7 // 2)
    assert seen.hops[0].edges == between
    assert seen.to_dict()["mean_edge_sparsity"] == pytest.approx(1 - (7 / 20 + 1) / 2)
    assert "propagation" in str(seen)


def test_units_are_the_columns_that_send_most():
    x, edge_index = graph()
    model = net(GCNConv)
    with torch.no_grad():
        model.first.lin.weight[5:] *= 1e-3
    pruned = uf.sparsify(model, edge_sparsity=1 - 10 / 27, entries="unit")  # five columns for each layer
    pruned(x, edge_index)
    assert pruned.first.columns.nonzero().flatten().tolist() == [0, 1, 2, 3, 4]
    plain = model.first(x, edge_index)
    ours = pruned.first(x, edge_index)
    torch.testing.assert_close(ours[:, :5], plain[:, :5], rtol=1e-4, atol=1e-4)


def by_hand(model, x, edge_index, threshold):
    """The authors' layer, message by message: removed below threshold · mean, loops in the mean and locked."""
    n = len(x)
    loops = torch.arange(n).expand(2, n)
    edges = torch.cat([edge_index[:, edge_index[0] != edge_index[1]], loops], dim=1)
    degree = torch.bincount(edges[1], minlength=n).float()
    weight = degree[edges[0]].rsqrt() * degree[edges[1]].rsqrt()
    counts = []
    for conv in (model.first, model.second):
        y = x @ conv.lin.weight.T
        message = weight[:, None] * y[edges[0]]
        size = message.norm(dim=1)
        keep = (size >= threshold * size.mean()) | (edges[0] == edges[1])
        out = torch.zeros_like(y).index_add(0, edges[1][keep], message[keep]) + conv.bias
        x, edges, weight = out.relu() if conv is model.first else out, edges[:, keep], weight[keep]
        counts.append(int((edges[0] != edges[1]).sum()))
    return x, counts


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.8, 1.2])
def test_the_authors_form(threshold):
    x, edge_index = graph()
    edge_index = torch.unique(edge_index[:, edge_index[0] != edge_index[1]], dim=1)
    model = net(GCNConv)
    pruned = uf.sparsify(model, edge_threshold=threshold, entries="node")
    ours = pruned(x, edge_index)
    theirs, counts = by_hand(model, x, edge_index, threshold)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert [hop.edges_kept for hop in uf.trace(pruned).hops] == counts


def test_an_edge_that_is_gone_is_not_seen_by_later_layers():
    x, edge_index = graph()
    for entries in ("node", "block"):
        model = uf.sparsify(GCN(20, 32, 3, 16), edge_sparsity=0.8, entries=entries)
        model.train()(x, edge_index)
        kept = [hop.edges_kept for hop in uf.trace(model).hops]
        assert kept[0] >= kept[1] >= kept[2] > 0
    loose = uf.sparsify(GCN(20, 32, 3, 16), edge_threshold=1.2, entries="node", inherit=False)
    loose.train()(x, edge_index)
    known = [set(conv.removed.tolist()) for conv in loose.convs]
    assert not known[0] <= known[1]


def test_absolute_thresholds():
    x, edge_index = graph()
    for entries in ("unit", "node", "block", "feature"):
        everything = uf.sparsify(net(GCNConv), edge_threshold=1e9, absolute=True, entries=entries)
        out = everything(x, edge_index)
        assert uf.trace(everything).macs == 0
        assert bool(out.isfinite().all())
        nothing = uf.sparsify(net(GCNConv), edge_threshold=1e-30, absolute=True, entries=entries)
        torch.testing.assert_close(nothing(x, edge_index), net(GCNConv)(x, edge_index), rtol=1e-4, atol=1e-4)


def test_budgets():
    assert water_level([512, 7], 0.8) == pytest.approx([96.8, 7.0])
    assert water_level([10, 10, 10], 0.5) == pytest.approx([5, 5, 5])
    assert whole_columns([96.8, 7.0]) == [97, 7]
    assert whole_columns([0.2, 0.2]) == [1, 1]
    shares = nested_share(range(3), 0.6)
    assert sum(1 - share for share in shares) / 3 == pytest.approx(0.6)
    assert shares[0] > shares[1] > shares[2]


@given(
    st.lists(st.tuples(st.integers(0, 600), st.integers(0, 600)), min_size=1, max_size=6),
    st.floats(0, 0.999, allow_subnormal=False),
)
def test_weights_are_shared_so_that_the_whole_meets_the_target(shapes, sparsity):
    shares = weight_shares(shapes, sparsity)
    sizes = [p * q for p, q in shapes]
    gone = sum(share * size for share, size in zip(shares, sizes, strict=True))
    assert gone == pytest.approx(sparsity * sum(sizes), rel=1e-6, abs=1e-6)
    assert all(0 <= share < 1 for share in shares)
    # The smaller a matrix is for its ends, the less of it goes.
    by_claim = sorted((1 / p + 1 / q, share) for (p, q), share in zip(shapes, shares, strict=True) if p * q)
    assert all(a >= b - 1e-9 for (_, a), (_, b) in pairwise(by_claim))


def test_weights_before_the_classes_go_last():
    x, edge_index = graph()
    how = dict(weight_sparsity=0.8, ramp=1)
    for budget, gone in (("macs", [0.81, 0.68]), ("layers", [0.8, 0.8])):
        model = uf.sparsify(net(GCNConv, width=64, classes=2), budget=budget, **how)
        train(model, x, edge_index, 1)
        layers = uf.trace(model).layers
        assert [1 - layer.kept / layer.weights for layer in layers] == pytest.approx(gone, abs=0.02)
        assert uf.trace(model).weight_sparsity == pytest.approx(0.8, abs=0.005)


def test_node_budget_by_layers_is_the_mean_over_layers():
    x, edge_index = graph()
    model = uf.sparsify(GCN(20, 32, 3, 7), edge_sparsity=0.6, entries="node", budget="layers")
    model.train()(x, edge_index)
    assert uf.trace(model).mean_edge_sparsity == pytest.approx(0.6, abs=0.01)


# ------------------------------------------------------------------------------------------------------------- training


def train(model, x, edge_index, passes=3, lr=0.01):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    model.train()
    for _ in range(passes):
        optimizer.zero_grad()
        model(x, edge_index).square().mean().backward()
        optimizer.step()


def test_only_training_passes_decide():
    x, edge_index = graph()
    for entries in ("unit", "node", "block", "feature"):
        model = uf.sparsify(net(GCNConv), edge_sparsity=0.5, weight_sparsity=0.5, entries=entries, ramp=2)
        train(model, x, edge_index)
        before = copy.deepcopy(model.state_dict())
        model.eval()(x * 2, edge_index)
        with torch.no_grad():
            model.train()(x + 1, edge_index)
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), name


def test_weights_ramp_up_and_the_trace_tells():
    x, edge_index = graph()
    model = uf.sparsify(net(GCNConv), weight_sparsity=0.9, ramp=5)
    seen = []
    for _ in range(6):
        train(model, x, edge_index, 1)
        seen.append(uf.trace(model).weight_sparsity)
    assert seen == sorted(seen)
    assert seen[0] < 0.6
    assert seen[4] == seen[5] == pytest.approx(0.9, abs=0.001)
    assert not uf.trace(model).notes
    early = uf.sparsify(net(GCNConv), weight_sparsity=0.9, ramp=5)
    train(early, x, edge_index, 1)
    assert "1 of the 5" in uf.trace(early).notes[0]


def test_schedules():
    x, edge_index = graph()
    for entries in ("unit", "node"):
        model = uf.sparsify(net(GCNConv), edge_sparsity=0.5, weight_sparsity=0.6, entries=entries, ramp=1, feedback=False)
        train(model, x, edge_index)
        uf.set_schedule(model, "monotone")
        keep, columns, removed = model.first.lin.keep.clone(), model.first.columns.clone(), model.first.removed.clone()
        train(model, x + torch.randn_like(x), edge_index, 3, lr=0.5)
        assert not bool((model.first.lin.keep & ~keep).any())
        assert not bool((model.first.columns & ~columns).any())
        assert set(removed.tolist()) <= set(model.first.removed.tolist())
        uf.set_schedule(model, "frozen")
        before = copy.deepcopy(dict(model.named_buffers()))
        train(model, x + torch.randn_like(x), edge_index, 2, lr=0.5)
        for name, value in model.named_buffers():
            assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("entries", ["unit", "node", "block"])
def test_a_schedule_for_weights_alone(entries):
    """As the authors in the second half of the epochs: removed weights stay removed, edges are decided from scratch."""
    x, edge_index = graph()
    how = dict(edge_sparsity=0.5, weight_sparsity=0.6, ramp=1, feedback=False, hysteresis=1.0)
    model = uf.sparsify(net(GCNConv), entries=entries, **how)
    train(model, x, edge_index)
    uf.set_schedule(model, "monotone-weights")
    first = model.first
    keep, columns, removed, delta = (value.clone() for value in (first.lin.keep, first.columns, first.removed, first.delta))
    train(model, 0.1 * torch.randn_like(x), edge_index, 3, lr=0.5)
    assert not bool((first.lin.keep & ~keep).any())
    back = {
        "unit": bool((first.columns & ~columns).any()),
        "node": bool(set(removed.tolist()) - set(first.removed.tolist())),
        "block": bool(first.delta < delta),
    }
    assert back[entries]


def test_removed_weights_learn_by_feedback_only():
    x, edge_index = graph()
    for feedback in (True, False):
        model = uf.sparsify(net(GCNConv), weight_sparsity=0.5, ramp=1, feedback=feedback)
        model(x, edge_index).square().sum().backward()
        gone = model.first.lin.weight.grad[~model.first.lin.keep]
        assert bool((gone != 0).any()) == feedback


@pytest.mark.parametrize("entries", ["unit", "node", "block", "feature"])
def test_masks_go_with_the_model(entries):
    """state_dict, deepcopy and a saved file bring masks along; the authors' code loses them."""
    x, edge_index = graph()
    for build in (lambda: net(GCNConv), lambda: net(GraphConv), deep):
        how = dict(edge_sparsity=0.5, weight_sparsity=0.5, entries=entries, ramp=1)
        model = uf.sparsify(build(), **how)
        train(model, x, edge_index)
        model.eval()
        expected = model(x, edge_index)
        torch.testing.assert_close(copy.deepcopy(model)(x, edge_index), expected)
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        other = uf.sparsify(build(), **how).eval()
        assert not other.load_state_dict(torch.load(file, weights_only=True), strict=True).missing_keys
        torch.testing.assert_close(other(x, edge_index), expected)
        best = copy.deepcopy(model.state_dict())
        train(model, torch.randn_like(x), edge_index, 5, lr=0.3)
        model.load_state_dict(best)
        torch.testing.assert_close(model.eval()(x, edge_index), expected)


def test_desparsified_models_are_ordinary_again():
    x, edge_index = graph()
    for build in (lambda: net(GCNConv), lambda: net(GraphConv), deep, lambda: GIN(20, 32, 2, 7)):
        plain = build()
        model = uf.sparsify(plain, weight_sparsity=0.5, ramp=1)
        train(model, x, edge_index)
        back = uf.desparsify(model)
        assert [type(module) for module in back.modules()] == [type(module) for module in plain.modules()]
        assert list(back.state_dict()) == list(plain.state_dict())
        torch.testing.assert_close(back.eval()(x, edge_index), model.eval()(x, edge_index), rtol=1e-4, atol=1e-4)
        assert any(bool((value == 0).any()) for value in back.parameters())
        uf.sparsify(back, edge_sparsity=0.5, entries="unit")  # and may be sparsified again


def test_the_given_model_stays_as_it_was_unless_in_place():
    model = net(GCNConv)
    assert uf.sparsify(model) is not model
    assert type(model.first) is GCNConv
    assert uf.sparsify(model, inplace=True) is model
    assert isinstance(model.first, GCNConv)
    assert isinstance(model.first, PrunedConv)


def test_mini_batches_of_a_neighbour_loader():
    """Sampled by hand: PyG's loader needs a compiled extra. Every batch is another graph with other numbers of nodes."""
    x, edge_index = graph(200, 1500)
    model = uf.sparsify(net(SAGEConv), edge_sparsity=0.5, entries="unit", weight_sparsity=0.5, ramp=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for batch in range(4):
        chosen = torch.randperm(200, generator=torch.Generator().manual_seed(batch))[: 100 + batch]
        part = Data(x=x, edge_index=edge_index).subgraph(chosen)
        optimizer.zero_grad()
        model(part.x, part.edge_index).square().mean().backward()
        optimizer.step()
    assert uf.trace(model).edge_sparsity == pytest.approx(0.5, abs=0.02)
    model.eval()(x, edge_index)
    assert uf.trace(model).hops[0].edges > 1000


def test_two_sets_of_nodes():
    x, edge_index = graph()
    to_ten = edge_index[:, edge_index[1] < 10]
    conv = SAGEConv((20, 20), 8)
    model = uf.sparsify(nn.ModuleList([conv])[0], edge_sparsity=0.5, entries="unit")
    model.eval()
    out = model((x, x[:10]), to_ten)
    assert out.shape == (10, 8)
    plain = uf.sparsify(conv)
    torch.testing.assert_close(plain((x, x[:10]), to_ten), conv((x, x[:10]), to_ten), rtol=1e-4, atol=1e-4)


PAIRED = {
    "sage-mean": lambda: SAGEConv((20, 24), 16),
    "sage-sum": lambda: SAGEConv((20, 24), 48, aggr="sum", normalize=True),
    "sage-project": lambda: SAGEConv((20, 24), 16, project=True),
    "sage-no-root": lambda: SAGEConv((20, 24), 16, root_weight=False, bias=False),
    "gin": lambda: GINConv(mlp(20, 16), train_eps=True),
}


def pair(kind, receivers, senders=60):
    torch.manual_seed(3)
    x = torch.randn(senders, 20), torch.randn(receivers, 20 if kind == "gin" else 24)
    return x, torch.stack([torch.randint(senders, (300,)), torch.randint(receivers, (300,))])


@pytest.mark.parametrize("receivers", [10, 60, 90])
@pytest.mark.parametrize("kind", list(PAIRED))
def test_pairs_of_features_take_the_fused_path(kind, receivers):
    torch.manual_seed(4)
    (sent, own), edge_index = pair(kind, receivers)
    conv = PAIRED[kind]()
    model = uf.sparsify(conv)

    def found(layer, edges):
        a, b = sent.clone().requires_grad_(), own.clone().requires_grad_()
        out = layer((a, b), edges)
        out.square().sum().backward()
        grads = [p.grad for p in layer.parameters()]
        layer.zero_grad()
        return [out, a.grad, b.grad if b.grad is not None else torch.zeros(1), *grads]

    matrix = torch.sparse_coo_tensor(edge_index.flip(0), torch.ones(300), (receivers, 60)).coalesce()
    matrix = torch.sparse_coo_tensor(matrix.indices(), torch.ones(matrix.values().shape), matrix.shape).coalesce()
    for ours, theirs in ((edge_index, edge_index), (matrix, matrix.indices().flip(0))):
        for a, b in zip(found(model, ours), found(conv, theirs), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert not uf.trace(model).notes
    with pytest.raises(InputError):
        model((sent, own), edge_index + torch.tensor([[0], [receivers]]))


@pytest.mark.parametrize("entries", ["unit", "node", "block", "feature"])
@pytest.mark.parametrize("receivers", [10, 90])
def test_pairs_are_pruned_as_one_graph_of_both_sets(entries, receivers):
    (sent, _), edge_index = pair("gin", receivers)
    own = torch.randn(receivers, 20)
    torch.manual_seed(4)
    conv = SAGEConv(20, 32)
    how = dict(entries=entries, edge_sparsity=0.5)
    both, one = uf.sparsify(conv, **how), uf.sparsify(conv, **how)
    for training in (True, False):
        out = both.train(training)((sent, own), edge_index)
        expected = one.train(training)(torch.cat([own, sent]), edge_index + torch.tensor([[receivers], [0]]))[:receivers]
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    assert uf.trace(both).hops[0].macs == uf.trace(one).hops[0].macs and not uf.trace(both).notes


@pytest.mark.parametrize("kind", ["sage-mean", "gin"])
def test_pairs_that_need_messages_are_reported(kind):
    (sent, own), edge_index = pair("gin", 10)
    model = uf.sparsify(SAGEConv((20, 20), 16) if kind == "sage-mean" else PAIRED[kind](), edge_sparsity=0.5, entries="unit")
    assert model((sent, None), edge_index, size=(60, 10)).shape == (10, 16)
    assert "called with features of one side only: all its messages are computed" in uf.trace(model).notes[0]
    model((sent, own), edge_index)
    assert not uf.trace(model).notes


# ------------------------------------------------------------------------------------------- the reference code's mistakes


def test_gcnii_prunes_weights_by_the_input_axis():
    x, edge_index = graph()
    model = uf.sparsify(deep(1), weight_sparsity=0.5, budget="layers", ramp=1)
    with torch.no_grad():
        model.into.weight[:12] = 0
        model.into.bias[:12] = 0  # twelve input columns of the first layer are nothing but their neighbours' nothing
    model(x, edge_index).sum().backward()
    keep = model.convs[0].weight1_mask.keep
    assert not bool(keep[:12].any())
    assert bool(keep[12:].all())


def test_gcnii_is_judged_with_the_weights_that_were_just_trained():
    x, edge_index = graph()
    model = uf.sparsify(deep(2), weight_sparsity=0.5, ramp=1)
    train(model, x, edge_index, 1)
    conv = model.convs[0]
    torch.testing.assert_close(conv.weight1_mask.effective, conv.weight1 * conv.weight1_mask.keep)


def test_a_node_lock_counts_the_edges_it_locks():
    x, edge_index = graph()
    model = uf.sparsify(net(GCNConv), edge_sparsity=0.9, entries="node")
    train(model, x, edge_index, 1)
    model.eval()(x, edge_index)
    honest = uf.trace(model)
    uf.set_node_lock(model, torch.arange(30))
    model(x, edge_index)
    locked = uf.trace(model)
    into = (edge_index[1] < 30) & (edge_index[0] != edge_index[1])
    assert locked.hops[0].edges_kept >= int(into.sum()) > honest.hops[0].edges_kept
    uf.set_node_lock(model, None)
    model(x, edge_index)
    assert uf.trace(model).macs == honest.macs


def test_self_loops_are_never_pruned_nor_counted():
    x, edge_index = graph()
    loops = edge_index[:, edge_index[0] == edge_index[1]]
    for entries in ("unit", "node", "block", "feature"):
        model = uf.sparsify(net(GCNConv), edge_sparsity=0.9, entries=entries)
        model(x, loops)
        assert uf.trace(model).dense_macs == 0
        torch.testing.assert_close(model(x, loops), net(GCNConv)(x, loops), rtol=1e-4, atol=1e-4)


def test_masks_are_known_by_the_ends_of_edges():
    x, edge_index = graph()
    edge_index = torch.unique(edge_index, dim=1)
    model = uf.sparsify(net(GCNConv), edge_sparsity=0.5, entries="node")
    train(model, x, edge_index, 1)
    model.eval()
    shuffled = edge_index[:, torch.randperm(edge_index.shape[1], generator=torch.Generator().manual_seed(3))]
    torch.testing.assert_close(model(x, shuffled), model(x, edge_index), rtol=1e-4, atol=1e-4)


def test_counts_do_not_wrap():
    from unifews.nn.trace import ConvTrace, ModelTrace

    hop = ConvTrace(0, 1, 1, 0, 2**62, 2**63 + 2**62, 0, None, 0.0)
    assert ModelTrace((hop, hop)).macs == 2**63


# --------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: uf.sparsify(nn.Linear(3, 3)), "no PyG message-passing"),
        (
            lambda: uf.sparsify(nn.Linear(3, 3), edge_sparsity=0.5, entries="unit"),
            "message-passing layer .*; there are no edges to prune",
        ),
        (lambda: uf.sparsify(nn.Linear(3, 3), weight_sparsity=0.5), r"layer such .*; for a plain head use uf\.train"),
        (lambda: uf.sparsify(nn.Linear(3, 3), weight_threshold=0.5), "`decide` of its layers"),
        (lambda: uf.sparsify("gcn"), "is a str"),
        (lambda: uf.sparsify(net(GCNConv), edge_sparsity=50, entries="unit"), "edge_sparsity"),
        (lambda: uf.sparsify(net(GCNConv), edge_sparsity=0.5, edge_threshold=0.5, entries="unit"), "exclude each other"),
        (lambda: uf.sparsify(net(GCNConv), entries="blok"), "Did you mean 'block'"),
        (lambda: uf.sparsify(net(GCNConv, classes=1, width=2), weight_sparsity=0.9), "all 2 weights of second"),
        (lambda: uf.sparsify(uf.sparsify(net(GCNConv))), "already"),
        (lambda: uf.sparsify(net(lambda a, b: SAGEConv(-1, b))), "lazy"),
        (lambda: uf.trace(net(GCNConv)), "not sparsified"),
        (lambda: uf.trace(uf.sparsify(net(GCNConv))), "not been called"),
        (lambda: uf.desparsify(net(GCNConv)), "not sparsified"),
        (lambda: uf.set_schedule(uf.sparsify(net(GCNConv)), "grow"), "regrow"),
        (lambda: uf.sparsify(net(GCNConv))(graph()[0].half(), graph()[1]), "x.float"),
        (lambda: uf.sparsify(net(GCNConv))(graph()[0], graph()[1].float()), "are integers"),
        (lambda: uf.sparsify(net(GCNConv))(graph()[0], graph()[1].T), r"\[2, edges\]"),
        (lambda: uf.sparsify(net(GCNConv))(graph()[0], [1, 2]), "list"),
        (lambda: uf.sparsify(net(GCNConv))(graph()[0], graph()[1] + 50), "names node"),
        (lambda: uf.sparsify(net(GCNConv))(graph()[0], graph()[1], torch.ones(3)), "one per edge"),
        (lambda: uf.sparsify(net(GCNConv))(graph()[0], torch.eye(3).to_sparse_csr()), "60 rows"),
        (lambda: uf.sparsify(net(KINDS["gin"]))(graph()[0].to_sparse_csr(), graph()[1]), r"x\.to_dense\(\)"),
    ],
)
def test_mistakes_are_told_in_a_sentence(act, message):
    with pytest.raises(InputError, match=message):
        act()


FEATURES = {
    "wide": (lambda x: torch.cat([x, x[:, :1]], 1), r"features of 21 columns and its weights take 20; give x \[nodes, 20\]"),
    "are integers": (lambda x: x.long(), r"int64 features.*x\.float\(\)"),
    "flags": (lambda x: x > 0, r"bool features.*x\.float\(\)"),
    "numpy": (lambda x: x.numpy(), r"a ndarray as features.*from_numpy"),
    "list": (lambda x: x.tolist(), "a list as features"),
    "two numbers": (lambda x: [1, 2], "a list as features"),
    "a column": (lambda x: x[:, 0], r"features of shape \[60\]; give a matrix x \[nodes, 20\]"),
    "a batch": (lambda x: x[None], r"features of shape \[1, 60, 20\]"),
    "nothing": (lambda x: None, "no features"),
    "double": (
        lambda x: x.double(),
        r"float64 features and its weights are torch\.float32; use x\.to\(torch\.float32\)",
    ),
    "half": (lambda x: x.bfloat16(), r"bfloat16 features on the CPU.*x\.float\(\)"),
}


@pytest.mark.parametrize("wrong", FEATURES)
@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gat", "gatv2"])
@pytest.mark.parametrize("how", [{"edge_sparsity": 0.5}, {"weight_sparsity": 0.5}])
def test_features_of_the_wrong_kind(kind, how, wrong):
    x, edge_index = graph()
    make, message = FEATURES[wrong]
    with pytest.raises(InputError, match=rf"^first \S+ .*{message}") as caught:
        uf.sparsify(net(KINDS[kind]), **how)(make(x), edge_index)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", ["numpy", "list", "a column"])
def test_features_that_no_generic_layer_takes(wrong):
    x, edge_index = graph()
    make, message = FEATURES[wrong]
    model = uf.sparsify(net(ResGatedGraphConv), edge_sparsity=0.5, entries="unit")
    with pytest.raises(InputError, match=rf"^first \S+ .*{message}".replace("20", "columns")):
        model(make(x), edge_index)
    with pytest.raises(InputError, match=r"ResGatedGraphConv\)? is called with"):
        uf.sparsify(ResGatedGraphConv((20, 20), 4), edge_sparsity=0.5, entries="unit")((x, make(x)), edge_index)


def test_a_layer_may_take_the_number_of_a_node_for_its_features():
    _, edge_index = graph()
    layer = uf.sparsify(RGCNConv(60, 4, num_relations=2), edge_sparsity=0.5, entries="unit")
    kinds = torch.arange(edge_index.shape[1]) % 2
    assert layer(torch.arange(60), edge_index, kinds).shape == (60, 4)
    assert layer(None, edge_index, kinds).shape == (60, 4)


def test_features_that_a_residual_layer_cannot_take():
    layer = uf.sparsify(GCN2Conv(8, 0.1))
    with pytest.raises(ShapeError, match="GCN2Conv is called with features of 9 columns and its weights take 8"):
        layer(torch.ones(60, 9), torch.ones(60, 9), graph()[1])


@pytest.mark.parametrize("rows", [torch.ones(5, 3), torch.ones(5, 4, dtype=torch.long), torch.ones(())])
def test_rows_that_a_linear_layer_cannot_take(rows):
    with pytest.raises(ShapeError, match=r"a linear layer of 4 inputs is called with torch\.\w+ rows of shape .*\[rows, 4\]"):
        PrunedLinear(4, 2)(rows)


def test_weights_in_half_precision_are_not_features_that_are():
    x, edge_index = graph()
    with pytest.raises(InputError, match=r"bfloat16 weights on the CPU.*use model\.float\(\)"):
        uf.sparsify(net(GCNConv)).bfloat16()(x, edge_index)


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gat", "gatv2"])
def test_features_of_a_lazy_layer_and_of_a_double_model(kind):
    x, edge_index = graph()
    if kind != "gin":
        model = net(lambda a, b: KINDS[kind](-1, b))
        model(x, edge_index)
        with pytest.raises(ShapeError, match="first is called with features of 5 columns and its weights take 20"):
            uf.sparsify(model)(x[:, :5], edge_index)
        uf.sparsify(model)(x, edge_index)
    double = uf.sparsify(net(KINDS[kind]), edge_sparsity=0.5, entries="unit").double()
    assert double(x.double(), edge_index).dtype == torch.float64
    with pytest.raises(InputError, match=r"use x\.to\(torch\.float64\)"):
        double(x, edge_index)


def test_what_a_gin_is_made_of_may_take_any_features():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = nn.Linear(4, 3), nn.Linear(20, 4)

        def forward(self, x):
            return self.last(self.first(x))

    x, edge_index = graph()
    assert uf.sparsify(GINConv(Wide()))(x, edge_index).shape == (60, 3)
    with pytest.raises(ShapeError, match=r"GINConv is called with features of shape \[60\]; give a matrix"):
        uf.sparsify(GINConv(Wide()))(x[:, 0], edge_index)
    ready = uf.sparsify(GIN(20, 8, 2, 3))
    with pytest.raises(ShapeError, match=r"convs\.0 is called with features of 5 columns and its weights take 20"):
        ready(x[:, :5], edge_index)


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gat", "gatv2"])
def test_autocast_is_told_to_be_disabled(kind):
    x, edge_index = graph()
    model = uf.sparsify(net(KINDS[kind]), edge_sparsity=0.5, entries="unit")
    with torch.autocast("cpu"):
        with pytest.raises(InputError, match=r"first is called under torch\.autocast.*bfloat16.*enabled=False"):
            model(x, edge_index)
        with torch.autocast("cpu", enabled=False):
            assert model(x, edge_index).dtype == torch.float32


def test_masks_of_another_graph():
    x, edge_index = graph()
    model = uf.sparsify(net(GCNConv), edge_sparsity=0.5, entries="node")
    train(model, x, edge_index, 1)
    with pytest.raises(GraphError, match="selected on a graph of 60 nodes and this one has 40"):
        model.eval()(*graph(40, 100))


UNSEEN = r"first: about (\d+)% of these edges were not in the training graph, and such edges are all kept"


def notes_on(model, x, edge_index):
    with torch.no_grad():
        model.eval()(x, edge_index)
    return "; ".join(uf.trace(model).notes)


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gat", "gatv2", "graph"])
def test_edges_never_seen_in_training_are_told(kind):
    x, edge_index = graph()
    model = uf.sparsify(net(KINDS[kind]), edge_sparsity=0.5, entries="node")
    train(model.train(), x, edge_index, 1)
    assert "not in the training graph" not in notes_on(model, x, edge_index)
    assert "not in the training graph" not in notes_on(model, x, edge_index[:, :100])  # some of them: all were seen
    other = torch.randperm(len(x))[edge_index]
    found = re.search(UNSEEN, notes_on(model, x, other))
    assert found and int(found[1]) > 70
    more = torch.cat([edge_index, other, other.flip(0)], 1)
    found = re.search(UNSEEN, notes_on(model, x, more))
    assert found and 50 < int(found[1]) < 75
    train(model.train(), x, other, 1)
    assert "not in the training graph" not in notes_on(model, x, other)


def test_edges_never_seen_are_told_after_loading_too(tmp_path):
    x, edge_index = graph()
    model = uf.sparsify(net(GCNConv), edge_sparsity=0.5, entries="node")
    train(model, x, edge_index, 1)
    uf.save(model, tmp_path / "m")
    again = uf.load(tmp_path / "m", into=net(GCNConv))
    assert "not in the training graph" not in notes_on(again, x, edge_index)
    assert re.search(UNSEEN, notes_on(again, x, torch.randperm(len(x))[edge_index]))


@pytest.mark.parametrize("entries", ["unit", "block", "feature"])
def test_forms_that_know_no_edges_do_not_tell_of_them(entries):
    x, edge_index = graph()
    model = uf.sparsify(net(GCNConv), edge_sparsity=0.5, entries=entries)
    train(model, x, edge_index, 1)
    assert "not in the training graph" not in notes_on(model, x, torch.randperm(len(x))[edge_index])
