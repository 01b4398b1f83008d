"""Edges chosen once per graph: the rule against a plain oracle, and every layer on the kept edges."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch_geometric.nn import GAT, GCN, GCN2Conv, GCNConv, GINEConv, GraphConv, GraphSAGE, HeteroConv, MessagePassing, SAGEConv

import unifews as uf
from unifews.errors import InputError, UnifewsError
from unifews.nn.config import PruningConfig
from unifews.nn.thinning import EdgeRule, GraphThinner, edge_noise, edge_sizes, num_kept


@st.composite
def graphs(draw):
    """Edges [2, m] of up to 12 nodes: isolated nodes, self-loops, duplicates, one node, no edges, directed."""
    n, m = draw(st.integers(1, 12)), draw(st.integers(0, 60))
    ends = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), min_size=m, max_size=m))
    return torch.tensor(ends, dtype=torch.int64).reshape(-1, 2).t().contiguous()


def oracle(ends, sparsity, choice, scope):
    """The kept edges by a loop in plain Python; ties by the noise of the edge."""
    sender, target = ends.tolist() if ends.numel() else ([], [])
    between = [e for e in range(len(sender)) if sender[e] != target[e]]
    noise = edge_noise(ends, 0).tolist()
    sent, received = ({v: sum(nodes[e] == v for e in between) for v in nodes} for nodes in (sender, target))
    size = {e: 1 / np.sqrt((sent[sender[e]] + 1) * (received[target[e]] + 1)) * (1 + 1e-9 * noise[e]) for e in between}
    size = {e: noise[e] for e in between} if choice == "random" else size
    order = sorted(between, key=lambda e: size[e] if choice == "smallest" else -size[e])
    count = len(between) - round(sparsity * len(between))
    if scope == "auto":
        scope = "target" if count >= 2 * len({target[e] for e in between}) else "graph"
    if scope == "target":
        seen, rank = {}, {}
        for e in order:
            rank[e] = seen[target[e]] = seen.get(target[e], -1) + 1
        order = sorted(order, key=lambda e: rank[e])
    kept = set(order[:count])
    return [e in kept or sender[e] == target[e] for e in range(len(sender))]


@settings(max_examples=150, deadline=None)
@given(
    graphs(),
    st.sampled_from([0.0, 0.3, 0.5, 0.8, 0.99]),
    st.sampled_from(["largest", "random", "smallest"]),
    st.sampled_from(["auto", "graph", "target"]),
)
def test_the_rule_equals_its_oracle(ends, sparsity, choice, scope):
    assert EdgeRule(sparsity, choice=choice, scope=scope).kept(ends).tolist() == oracle(ends, sparsity, choice, scope)


@settings(max_examples=60, deadline=None)
@given(graphs(), st.integers(0, 2**31))
def test_the_choice_does_not_depend_on_the_order_of_the_edges(ends, seed):
    ends = torch.unique(ends, dim=1)
    order = torch.randperm(ends.shape[1], generator=torch.Generator().manual_seed(seed))
    for choice in ("largest", "random", "smallest"):
        rule = EdgeRule(0.5, choice=choice, seed=3)
        assert torch.equal(rule.kept(ends[:, order]), rule.kept(ends)[order])


def test_sizes_are_those_of_gcn():
    """On an undirected graph without self-loops, T of PyG's `gcn_norm`."""
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    ends = torch.randint(0, 30, (2, 100), generator=torch.Generator().manual_seed(0))
    ends = torch.unique(torch.cat([ends, ends.flip(0)], 1)[:, torch.cat([ends[0] != ends[1]] * 2)], dim=1)
    index, weight = gcn_norm(ends, None, 30, dtype=torch.float64)
    assert torch.equal(index[:, : ends.shape[1]], ends)
    torch.testing.assert_close(edge_sizes(ends), weight[: ends.shape[1]])


def test_targets_share_the_edges_and_hubs_lose_most():
    """A star with a clique: by target the hub keeps as many as any other node."""
    hub = torch.stack([torch.arange(1, 41), torch.zeros(40, dtype=torch.int64)])
    clique = torch.combinations(torch.arange(1, 9)).t()
    ends = torch.cat([hub, clique, clique.flip(0)], 1)
    kept = ends[:, EdgeRule(0.5, scope="target").kept(ends)]
    degree = torch.bincount(kept[1], minlength=9)
    assert degree.sum() == num_kept(96, 0.5) and degree.max() - degree[degree > 0].min() <= 1


def test_a_threshold_keeps_the_edges_above_it_and_its_controls_as_many():
    ends = torch.randint(0, 50, (2, 400), generator=torch.Generator().manual_seed(0))
    between = ends[:, ends[0] != ends[1]]
    expected = edge_sizes(between) >= 1.2 * edge_sizes(between).mean()
    assert torch.equal(EdgeRule(threshold=1.2).kept(between), expected)
    for choice in ("random", "smallest"):
        assert EdgeRule(threshold=1.2, choice=choice).kept(between).sum() == expected.sum()


def test_noise_is_uniform_and_of_the_seed():
    ends = torch.stack(torch.meshgrid(torch.arange(200), torch.arange(200), indexing="ij")).flatten(1)
    noise = edge_noise(ends, 1)
    assert noise.min() >= 0 and noise.max() < 1 and len(noise.unique()) == len(noise)
    assert abs(noise.mean() - 0.5) < 0.01 and abs(torch.corrcoef(torch.stack([noise, edge_noise(ends, 2)]))[0, 1]) < 0.02


# ----------------------------------------------------------------------------------------------------------------- layers


def graph(n=60, m=400, seed=0):
    draw = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, n, (2, m), generator=draw)
    return torch.randn(n, 8, generator=draw), torch.cat([ends, ends.flip(0)], 1)


class Edged(nn.Module):
    """Layers without kernels, with edge features and weights."""

    def __init__(self):
        super().__init__()
        self.first, self.second = GINEConv(nn.Linear(8, 8), edge_dim=3), GraphConv(8, 4, aggr="max")

    def forward(self, x, edge_index, edge_attr, edge_weight):
        return self.second(self.first(x, edge_index, edge_attr).relu(), edge_index, edge_weight)


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(GCN2Conv(8, 0.1, 0.5, layer + 1) for layer in range(3))

    def forward(self, x, edge_index):
        first = x
        for conv in self.convs:
            x = conv(x, first, edge_index).relu()
        return x


MODELS = [
    lambda: GCN(8, 16, 2, 4),
    lambda: GraphSAGE(8, 16, 2, 4),
    lambda: GAT(8, 16, 2, 4, heads=2, v2=True),
    Deep,
]


@pytest.mark.parametrize("make", MODELS)
def test_a_model_computes_what_pyg_computes_on_the_kept_edges(make):
    torch.manual_seed(0)
    plain = make()
    x, ends = graph()
    model = uf.sparsify(plain, edge_sparsity=0.5, entries="edge")
    kept = ends[:, EdgeRule(0.5).kept(ends)]
    for mode in (True, False):
        plain.train(mode), model.train(mode)
        torch.testing.assert_close(model(x, ends), plain(x, kept), atol=1e-5, rtol=1e-5)
    model(x, ends).square().sum().backward()
    plain(x, kept).square().sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-4, rtol=1e-4)
    trace = uf.trace(model)
    between = int((ends[0] != ends[1]).sum())
    assert {(hop.edges, hop.edges_kept) for hop in trace.hops} == {(between, num_kept(between, 0.5))}
    assert abs(trace.edge_sparsity - 0.5) < 0.01


def test_edge_features_and_weights_are_those_of_the_kept_edges():
    torch.manual_seed(0)
    plain, (x, ends) = Edged(), graph()
    attr, weight = torch.randn(ends.shape[1], 3), torch.rand(ends.shape[1], requires_grad=True)
    keep = EdgeRule(0.8).kept(ends)
    model = uf.sparsify(plain, edge_sparsity=0.8, entries="edge")
    out = model(x, ends, attr, weight)
    torch.testing.assert_close(out, plain(x, ends[:, keep], attr[keep], weight[keep]))
    out.sum().backward()
    assert not weight.grad[~keep].any() and weight.grad[keep].any()
    assert not any("generic" in note for note in uf.trace(model).notes), "it computes only the messages of the kept edges"


def test_a_sparse_matrix_loses_the_same_edges():
    torch.manual_seed(0)
    x, ends = graph()
    ends = torch.unique(ends[:, ends[0] != ends[1]], dim=1)  # PyG's GCN adds self-loops of a matrix to given ones
    matrix = torch.sparse_coo_tensor(ends.flip(0), torch.ones(ends.shape[1]), (60, 60)).coalesce()
    model = uf.sparsify(GCN(8, 16, 2, 4), edge_sparsity=0.5, entries="edge").eval()
    for adjacency in (matrix, matrix.to_sparse_csr()):
        torch.testing.assert_close(model(x, adjacency), model(x, ends))


def test_the_thinned_graph_is_made_once_and_again_after_a_write():
    x, ends = graph()
    model = uf.sparsify(GCN(8, 16, 2, 4), edge_sparsity=0.5, entries="edge")
    thinner = model.convs[0].session.thinner
    model(x, ends)
    first = thinner.of(ends)
    model(x, ends)
    assert thinner.of(ends) is first
    ends[0, 0] = 7
    assert thinner.of(ends) is not first
    weight = torch.rand(ends.shape[1])
    graph_now = thinner.of(ends)
    assert graph_now.only(weight) is graph_now.only(weight)
    before = graph_now.only(weight)
    weight.mul_(2)
    assert torch.equal(graph_now.only(weight), 2 * before)


def test_copies_saved_and_frozen_models_use_the_same_edges(tmp_path):
    torch.manual_seed(0)
    x, ends = graph()
    model = uf.sparsify(
        GCN(8, 16, 2, 4), edge_sparsity=0.8, entries="edge", weight_sparsity=0.5, choice="random", choice_seed=5
    )
    model(x, ends).sum().backward()
    expected = model.eval()(x, ends).detach()
    torch.testing.assert_close(copy.deepcopy(model)(x, ends).detach(), expected)
    uf.save(model, tmp_path / "training")
    torch.testing.assert_close(uf.load(tmp_path / "training").eval()(x, ends).detach(), expected)
    fast = uf.compress(model, x, ends)
    fast.save(tmp_path / "frozen")
    loaded = uf.FrozenModel.load(tmp_path / "frozen")
    torch.testing.assert_close(loaded(x, ends), expected)
    torch.testing.assert_close(loaded.bind(x, ends).predict([3, 9]), expected[[3, 9]])
    other = graph(n=80, seed=1)
    torch.testing.assert_close(loaded(*other), model(*other).detach())


def test_an_exported_model_takes_the_kept_edges(tmp_path):
    torch.manual_seed(0)
    x, ends = graph()
    model = uf.sparsify(GCN(8, 16, 2, 4), edge_sparsity=0.5, entries="edge").eval()
    fast = uf.compress(model, x, ends)
    about = uf.export(fast, tmp_path / "model.pt2")
    assert any("FrozenModel.thin" in limit for limit in about.limits)
    exported = torch.export.load(tmp_path / "model.pt2").module()
    torch.testing.assert_close(exported(x, fast.thin(ends)[0]), model(x, ends).detach(), atol=1e-5, rtol=1e-4)


def test_each_relation_loses_its_own_share():
    torch.manual_seed(0)
    x = {"a": torch.randn(20, 8), "b": torch.randn(30, 8)}
    draw = torch.Generator().manual_seed(0)
    ends = {
        ("a", "to", "b"): torch.stack(
            [torch.randint(0, 20, (200,), generator=draw), torch.randint(0, 30, (200,), generator=draw)]
        ),
        ("b", "to", "a"): torch.stack(
            [torch.randint(0, 30, (100,), generator=draw), torch.randint(0, 20, (100,), generator=draw)]
        ),
    }
    model = uf.sparsify(HeteroConv({relation: SAGEConv(8, 4) for relation in ends}), edge_sparsity=0.5, entries="edge")
    model(x, ends)
    assert sorted((hop.edges, hop.edges_kept) for hop in uf.trace(model).hops) == [(100, 50), (200, 100)]


@pytest.mark.parametrize(
    "wrong, named",
    [
        ({"choice": "bigest"}, "largest"),
        ({"scope": "node"}, "target"),
        ({"entries": "block", "choice": "random"}, "'edge', 'unit', 'node'"),
        ({"edge_sparsity": None, "edge_threshold": 1.0, "scope": "target"}, "edge_sparsity"),
    ],
)
def test_wrong_options_are_named(wrong, named):
    with pytest.raises(InputError, match=named):
        uf.sparsify(GCN(8, 16, 2, 4), **{"edge_sparsity": 0.5, "entries": "edge"} | wrong)


class Own(MessagePassing):
    """A layer that finds its edges itself."""

    def forward(self, x):
        return self.propagate(torch.arange(len(x)).repeat(2, 1), x=x)


def test_a_layer_without_edge_index_is_refused_before_training():
    with pytest.raises(InputError, match=r"Own.*entries='unit'"):
        uf.sparsify(nn.Sequential(Own()), edge_sparsity=0.5, entries="edge")


@pytest.mark.parametrize("ends", [torch.tensor([[0, 1], [1, 99]]), torch.tensor([[0, -1], [1, 0]])])
def test_an_unknown_node_is_named_even_on_a_removed_edge(ends):
    model = uf.sparsify(GCN(8, 16, 2, 4), edge_sparsity=0.5, entries="edge")
    with pytest.raises(UnifewsError, match=r"99|-1"):
        model(torch.randn(5, 8), ends)


def test_one_layer_is_a_model_too():
    x, ends = graph()
    layer = uf.sparsify(GCNConv(8, 4), edge_sparsity=0.5, entries="edge")
    layer(x, ends)
    assert abs(uf.trace(layer).edge_sparsity - 0.5) < 0.01


def test_what_is_left_to_the_layers():
    config = PruningConfig(edge_sparsity=0.5, weight_sparsity=0.9, entries="edge")
    assert config.thins and not config.in_layers.prunes_edges and config.in_layers.prunes_weights
    assert PruningConfig(edge_sparsity=0.5, entries="node").in_layers.prunes_edges
    assert str(PruningConfig(edge_sparsity=0.5, entries="edge", choice="random")).endswith("(edge, random)")
    assert copy.deepcopy(GraphThinner(EdgeRule(0.5))).rule == EdgeRule(0.5)
