"""GATv2Conv and GATConv with a fused path against PyG's own, and what is pruned of their messages."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch_geometric.nn import GATConv, GATv2Conv

import unifews as uf
from unifews.errors import InputError

KINDS = [GATv2Conv, GATConv]


def graph(n=40, m=260, seed=3):
    """Edges with loops, copies and isolated nodes among them, and features."""
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(0, n - n // 5, (2, m), generator=generator)
    edge_index = torch.cat([edge_index, edge_index[:, :20], torch.tensor([[1, 2, 2], [1, 2, 2]])], dim=1)
    return edge_index, torch.randn(n, 12, generator=generator)


class Net(nn.Module):
    def __init__(self, kind, *, hidden=6, heads=4, layers=2, **options):
        super().__init__()
        widths = [12, *[hidden * heads] * (layers - 1)]
        self.convs = nn.ModuleList(
            kind(width, hidden, heads=heads, **options) if i + 1 < layers else kind(width, 3, heads=1, concat=False, **options)
            for i, width in enumerate(widths)
        )

    def forward(self, x, edge_index, *more):
        for i, conv in enumerate(self.convs):
            x = conv(x, edge_index, *more)
            x = x.relu() if i + 1 < len(self.convs) else x
        return x


def gradients(model, x, *args):
    x = x.clone().requires_grad_()
    out = model(x, *args)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(11)).to(out.dtype)
    names, values = zip(*[(k, v) for k, v in model.named_parameters()], strict=True)
    grads = torch.autograd.grad((out * direction).sum(), [x, *values], allow_unused=True)
    return out, dict(zip(["x", *names], grads, strict=True))


def assert_same(ours, theirs, tol=2e-5):
    torch.testing.assert_close(ours[0], theirs[0], rtol=tol, atol=tol)
    assert ours[1].keys() == theirs[1].keys()
    for name, grad in theirs[1].items():
        scale = float(grad.abs().max()) + 0.05  # some are zero in theory: a shift of all scores changes nothing
        torch.testing.assert_close(ours[1][name] / scale, grad / scale, rtol=tol, atol=tol, msg=lambda m, n=name: f"{n}: {m}")


OPTIONS = [
    dict(),
    dict(heads=1),
    dict(heads=8, hidden=16),
    dict(heads=3, hidden=5),
    dict(heads=20, hidden=2),
    dict(concat=False, layers=1, heads=1),
    dict(bias=False),
    dict(residual=True),
    dict(add_self_loops=False),
    dict(negative_slope=0.0),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_unpruned_it_is_the_layer_itself(kind, options):
    torch.manual_seed(5)
    edge_index, x = graph()
    if options.get("concat") is False:
        options = {k: v for k, v in options.items() if k != "concat"}
    model = Net(kind, **options)
    assert_same(gradients(uf.sparsify(model), x, edge_index), gradients(model, x, edge_index))


@pytest.mark.parametrize("kind", KINDS)
def test_mean_of_heads_and_a_sparse_matrix(kind):
    torch.manual_seed(5)
    edge_index, x = graph()
    edge_index = edge_index[:, edge_index[0] != edge_index[1]].unique(dim=1)
    values = torch.rand(edge_index.shape[1]) + 0.5  # attention does not look at them
    adjacency = torch.sparse_coo_tensor(edge_index.flip(0), values, (len(x), len(x)), check_invariants=True).coalesce()
    layer = kind(12, 7, heads=4, concat=False)
    ours = uf.sparsify(layer)
    torch.testing.assert_close(ours(x, edge_index), layer(x, edge_index), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours(x, adjacency), layer(x, edge_index), rtol=1e-5, atol=1e-5)


def test_shared_weights():
    torch.manual_seed(5)
    edge_index, x = graph()
    model = Net(GATv2Conv, share_weights=True)
    assert_same(gradients(uf.sparsify(model), x, edge_index), gradients(model, x, edge_index))


@pytest.mark.parametrize("kind", KINDS)
def test_no_edges_at_all(kind):
    _, x = graph()
    layer = kind(12, 4, heads=2)
    none = torch.zeros(2, 0, dtype=torch.int64)
    torch.testing.assert_close(uf.sparsify(layer)(x, none), layer(x, none), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_double_precision_takes_the_portable_path_to_the_same_values(kind):
    torch.manual_seed(5)
    edge_index, x = graph()
    model = Net(kind)
    other = gradients(model.double(), x.double(), edge_index)
    assert_same(gradients(uf.sparsify(model), x.double(), edge_index), other, tol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("entries", ["unit", "node", "block", "feature"])
def test_both_paths_prune_alike(kind, entries):
    torch.manual_seed(5)
    edge_index, x = graph()
    model = uf.sparsify(Net(kind, hidden=16, heads=4, layers=3), edge_sparsity=0.6, entries=entries)
    fast = gradients(model, x, edge_index)
    removed = uf.trace(model).edge_sparsity
    exact = copy.deepcopy(model).double()
    slow = gradients(exact, x.double(), edge_index)
    assert uf.trace(exact).edge_sparsity == pytest.approx(removed)
    assert_same((fast[0].double(), {k: v.double() for k, v in fast[1].items()}), slow, tol=1e-4)


def messages(layer, x, edge_index, zero=None):
    """out of a one-layer GATv2 from PyG's own attention; `zero` [edges, heads·channels]: products set to 0 after softmax."""
    _, (ends, alpha) = layer(x, edge_index, return_attention_weights=True)
    sent = (alpha[:, :, None] * layer.lin_l(x).view(len(x), layer.heads, -1)[ends[0]]).flatten(1)
    if zero is not None:
        sent = torch.where(zero(ends, alpha, sent), 0.0, sent)
    return torch.zeros(len(x), sent.shape[1]).index_add(0, ends[1], sent) + layer.bias, ends, alpha


def test_units_that_stay_are_those_of_the_largest_messages_and_loops_keep_all():
    torch.manual_seed(5)
    edge_index, x = graph()
    layer = GATv2Conv(12, 8, heads=4)
    pruned = uf.sparsify(layer, edge_sparsity=0.75, entries="unit", renormalize=False)
    out = pruned(x, edge_index)

    def smaller(ends, alpha, sent):
        between = ends[0] != ends[1]
        size = sent[between].norm(dim=0)
        return between[:, None] & (size < size.sort().values[-8])

    expected, ends, _ = messages(layer, x, edge_index, smaller)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    m = int((ends[0] != ends[1]).sum())
    (hop,) = uf.trace(pruned).hops
    assert (hop.macs, hop.dense_macs, hop.score_macs, hop.edges) == (8 * m, 32 * m, 32 * m, m)


@pytest.mark.parametrize("how", [dict(edge_sparsity=0.5), dict(edge_threshold=0.05), dict(edge_threshold=0.2, absolute=True)])
def test_edges_go_by_the_authors_score_and_alpha_is_not_made_up_for(how):
    torch.manual_seed(5)
    edge_index, x = graph()
    layer = GATv2Conv(12, 8, heads=4)
    pruned = uf.sparsify(layer, entries="node", **how)
    out = pruned(x, edge_index)

    def goes(ends, alpha, sent):
        norm = layer.lin_l(x).norm(dim=1)[ends[0]]
        size, between = alpha.norm(dim=1) / 4 * norm, ends[0] != ends[1]
        cut = size[between].sort().values[between.sum() // 2] if "edge_sparsity" in how else how["edge_threshold"]
        return (between & (size < cut * (1.0 if "edge_sparsity" in how or "absolute" in how else norm.mean())))[:, None]

    torch.testing.assert_close(out, messages(layer, x, edge_index, goes)[0], rtol=1e-4, atol=1e-5)
    assert 0.1 < uf.trace(pruned).edge_sparsity < 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_layer_attends_to_the_edges_that_are_left(kind):
    torch.manual_seed(5)
    edge_index, x = graph()
    edge_index = edge_index[:, edge_index[0] != edge_index[1]].unique(dim=1)
    model = uf.sparsify(Net(kind, layers=3), edge_sparsity=0.5, entries="node")
    model(x, edge_index)
    first, second, _ = model.convs
    hops = uf.trace(model).hops
    assert hops[0].score_macs > hops[1].score_macs
    key = edge_index[1] * len(x) + edge_index[0]
    left = edge_index[:, ~torch.isin(key, first.removed)]
    plain = uf.desparsify(model)
    seen = torch.randn(len(x), 24)
    model.eval()
    session = second.session
    session.begin(model)
    first(x, edge_index)  # says which edges are left
    with torch.no_grad():
        ours = second(seen, edge_index)
        alone = uf.sparsify(plain.convs[1], edge_sparsity=0.5, entries="node").eval()
        alone.removed, alone.nodes = second.removed, second.nodes
        alone.decided.fill_(True)
        torch.testing.assert_close(ours, alone(seen, left), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("entries", ["unit", "node", "block"])
def test_what_was_decided_in_training_is_used_when_judging(kind, entries):
    torch.manual_seed(5)
    edge_index, x = graph()
    model = uf.sparsify(Net(kind, dropout=0.5), edge_sparsity=0.5, weight_sparsity=0.5, entries=entries, ramp=1)
    model.train()
    model(x, edge_index).sum().backward()
    model.eval()
    once, again = model(x, edge_index), model(x, edge_index)
    assert torch.equal(once, again)
    restored = uf.sparsify(Net(kind, dropout=0.5), edge_sparsity=0.5, weight_sparsity=0.5, entries=entries, ramp=1).eval()
    restored.load_state_dict(model.state_dict(), strict=True)
    torch.testing.assert_close(restored(x, edge_index), once)
    assert uf.trace(restored).edge_sparsity == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_dropout_leaves_the_mean_and_stops_when_judging(kind):
    torch.manual_seed(5)
    edge_index, x = graph()
    layer = kind(12, 8, heads=4, dropout=0.5)
    ours = uf.sparsify(layer)
    with torch.no_grad():
        mean = sum(ours(x, edge_index) for _ in range(2000)) / 2000
        assert not torch.allclose(ours(x, edge_index), ours(x, edge_index))
        ours.eval()
        torch.testing.assert_close(mean, ours(x, edge_index), rtol=0.1, atol=0.1)
        torch.testing.assert_close(ours(x, edge_index), layer.eval()(x, edge_index), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_other_inputs_go_by_messages_are_pruned_and_say_so(kind):
    torch.manual_seed(5)
    edge_index, x = graph()
    attr = torch.randn(edge_index.shape[1], 3)
    layer = kind(12, 8, heads=4, edge_dim=3)
    torch.testing.assert_close(uf.sparsify(layer)(x, edge_index, attr), layer(x, edge_index, attr), rtol=1e-5, atol=1e-5)
    pruned = uf.sparsify(layer, edge_sparsity=0.5, entries="unit")
    pruned(x, edge_index, attr)
    found = uf.trace(pruned)
    assert found.edge_sparsity == 0.5 and any("edge features" in note for note in found.notes)
    pruned(x, edge_index)
    assert not uf.trace(pruned).notes
    out, (ends, alpha) = uf.sparsify(layer)(x, edge_index, return_attention_weights=True)
    expected, (_, theirs) = layer(x, edge_index, return_attention_weights=True)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(alpha, theirs)
    pair = kind((12, 5), 8, heads=4, add_self_loops=False)
    both = (x, torch.randn(30, 5))
    ends = torch.stack([torch.randint(0, 40, (90,)), torch.randint(0, 30, (90,))])
    torch.testing.assert_close(uf.sparsify(pair)(both, ends), pair(both, ends), rtol=1e-5, atol=1e-5)


def test_half_precision_is_told():
    edge_index, x = graph()
    with pytest.raises(InputError, match=r"x\.float"):
        uf.sparsify(GATv2Conv(12, 8))(x.half(), edge_index)


@pytest.mark.parametrize("kind", KINDS)
def test_back_to_an_ordinary_layer(kind):
    torch.manual_seed(5)
    edge_index, x = graph()
    model = Net(kind)
    back = uf.desparsify(uf.sparsify(model, edge_sparsity=0.5, entries="unit"))
    assert type(back.convs[0]) is kind
    torch.testing.assert_close(back(x, edge_index), model(x, edge_index))
