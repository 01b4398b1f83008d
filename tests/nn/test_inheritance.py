"""Which edges a layer finds removed by others: along a chain of successive layers, never across parallel ones."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn
from torch_geometric.nn import GATv2Conv, GCNConv, GraphConv, HeteroConv, SAGEConv, to_hetero

import unifews as uf
from unifews.errors import InputError
from unifews.nn.config import nested_share
from unifews.nn.convs import PrunedConv
from unifews.nn.edges import Adjacency

N = 50


def edges(seed, m=300):
    torch.manual_seed(seed)
    ends = torch.randint(N, (2, m))
    return ends[:, ends[0] != ends[1]].unique(dim=1)


X, ONE, TWO = torch.randn(N, 12, generator=torch.Generator().manual_seed(0)), edges(1), edges(2)
NODE = dict(entries="node", edge_sparsity=0.5, budget="layers")
CONVS = {
    "gcn": lambda width: GCNConv(width, 12),
    "sage": lambda width: SAGEConv(width, 12),
    "gat": lambda width: GATv2Conv(width, 12),
    "generic": lambda width: GraphConv(width, 12),
}


def removed(model):
    """Keys of the edges that each layer does without, by its path."""
    return {layer.path: set(layer.removed.tolist()) for layer in model.modules() if isinstance(layer, PrunedConv)}


def keys_of(ends):
    return set(Adjacency.build(ends, N).keys.tolist())


class Hetero(nn.Module):
    """Two layers of two relations between the same nodes."""

    def __init__(self, make):
        super().__init__()
        self.layers = nn.ModuleList(
            HeteroConv({("n", "one", "n"): make(12), ("n", "two", "n"): make(12)}, aggr="sum") for _ in range(2)
        )

    def forward(self, x, one, two):
        x_dict = {"n": x}
        for layer in self.layers:
            x_dict = {k: v.relu() for k, v in layer(x_dict, {("n", "one", "n"): one, ("n", "two", "n"): two}).items()}
        return x_dict["n"]


class Dict(nn.Module):
    """The same by hand."""

    def __init__(self, make):
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"one": make(12), "two": make(12)}) for _ in range(2))

    def forward(self, x, one, two):
        for layer in self.layers:
            x = (layer["one"](x.clone(), one) + layer["two"](x.clone(), two)).relu()
        return x


class Plain(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.a, self.b = make(12), make(12)

    def forward(self, x, edge_index):
        return self.b(self.a(x, edge_index).relu(), edge_index)


def to_hetero_model(make):
    kinds = ["n"], [("n", "one", "n"), ("n", "two", "n")]

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = to_hetero(Plain(lambda width: make((width, width))), kinds)

        def forward(self, x, one, two):
            return self.inner({"n": x}, {("n", "one", "n"): one, ("n", "two", "n"): two})["n"]

    return Wrapped()


@pytest.mark.parametrize("build", [Hetero, Dict, to_hetero_model], ids=["HeteroConv", "ModuleDict", "to_hetero"])
@pytest.mark.parametrize("two", [TWO, ONE, ONE.clone()], ids=["other-edges", "same-tensor", "same-edges"])
@pytest.mark.parametrize("kind", ["sage", "generic"])
def test_parallel_relations_do_not_inherit_from_each_other(build, two, kind):
    torch.manual_seed(0)
    model = uf.sparsify(build(CONVS[kind]), **NODE)
    model(X, ONE, two).sum().backward()
    gone = removed(model)
    paths = list(gone)
    first, second = ([path for path in paths if relation in path] for relation in ("one", "two"))
    assert len(first) == len(second) == 2
    stays = nested_share([0, 0, 1, 1], 0.5)
    for chain, ends in ((first, ONE), (second, two)):
        assert gone[chain[0]] < gone[chain[1]]  # nested along a relation
        m = ends.shape[1]
        assert [len(gone[path]) for path in chain] == [pytest.approx(m * (1 - stay), abs=1) for stay in stays[::2]]
    if two is not TWO and kind == "sage":  # messages of GraphConv are those of any other on the same features
        assert not gone[first[0]] <= gone[second[0]]
    assert uf.trace(model).mean_edge_sparsity == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("kind", ["gcn", "gat", "generic"])
@pytest.mark.parametrize("entries", ["node", "block", "feature"])
def test_a_relation_is_pruned_as_if_it_were_alone(kind, entries):
    """An edge of both relations that the first removes is there for the second."""
    torch.manual_seed(0)
    pair = nn.ModuleDict({"one": CONVS[kind](12), "two": CONVS[kind](12)})
    alone = copy.deepcopy(pair["two"])

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = pair

        def forward(self, x, one, two):
            return self.convs["one"](x, one), self.convs["two"](x, two)

    how = dict(entries=entries, edge_threshold=1.0 if kind != "gat" else 0.05)
    out = uf.sparsify(Both(), **how)(X, ONE, ONE)[1]
    assert torch.equal(out, uf.sparsify(alone, **how)(X, ONE))


class Branches(nn.Module):
    """Two branches on one graph, not in a dict, then a layer on both."""

    def __init__(self, make):
        super().__init__()
        self.a, self.b, self.last = make(12), make(12), make(12)

    def forward(self, x, edge_index):
        a, b = self.a(x, edge_index), self.b(x, edge_index)
        return self.last((a + b).relu(), edge_index)


@pytest.mark.parametrize("kind", list(CONVS))
def test_branches_called_with_the_same_features_are_parallel(kind):
    torch.manual_seed(0)
    model = uf.sparsify(Branches(CONVS[kind]), **NODE)
    for _ in range(2):  # the shares follow what the first pass shows
        model(X, ONE)
    gone = removed(model)
    both = gone["a"] & gone["b"]
    assert len(gone["a"]) == pytest.approx(len(gone["b"]), abs=1) and both
    if kind == "gat":  # decides among the edges that reach it only
        assert not gone["last"] & both
        gone["last"] |= both
    assert gone["last"] > both  # what both removed is gone
    assert uf.trace(model).mean_edge_sparsity == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("kind", list(CONVS))
def test_successive_layers_inherit_on_the_same_edges_only(kind):
    torch.manual_seed(0)

    class Two(Plain):
        def forward(self, x, one, two):
            return self.b(self.a(x, one).relu(), two)

    order = torch.randperm(ONE.shape[1])
    for two, nested in ((ONE, True), (ONE.clone(), True), (ONE[:, order], True), (TWO, False)):
        model = uf.sparsify(Two(CONVS[kind]), **NODE)
        model(X, ONE, two)
        gone = removed(model)
        if nested and kind == "gat":  # decides among the edges that reach it only
            assert gone["a"] and not gone["a"] & gone["b"]
        elif nested:
            assert gone["a"] < gone["b"]
        else:  # an edge of both graphs that the first layer removed may still be there
            shared = keys_of(ONE) & keys_of(TWO)
            assert (gone["a"] & shared) - gone["b"]


def test_layers_before_and_in_a_dict():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = GCNConv(12, 12)
            self.heads = nn.ModuleDict({"x": GCNConv(12, 3), "y": GCNConv(12, 3)})

        def forward(self, x, edge_index):
            x = self.first(x, edge_index).relu()
            return sum(head(x, edge_index) for head in self.heads.values())

    torch.manual_seed(0)
    model = uf.sparsify(Net(), **NODE)
    model(X, ONE)
    gone = removed(model)
    assert gone["first"] < gone["heads.x"] and gone["first"] < gone["heads.y"]
    assert not gone["heads.x"] <= gone["heads.y"]


def test_a_layer_called_twice_and_features_that_were_written_to():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = GCNConv(12, 12), GCNConv(12, 12)

        def forward(self, x, edge_index):
            x = x.clone()
            x += self.a(x.clone(), edge_index)
            out = self.a(x, edge_index).detach()
            x.detach().add_(out)
            return self.b(x, edge_index)

    model = uf.sparsify(Net(), **NODE)
    model(X, ONE)
    gone = removed(model)
    assert gone["a"] < gone["b"]


def test_a_model_is_copied_and_pickled_in_mid_life():
    model = uf.sparsify(Plain(CONVS["gcn"]), **NODE)
    expected = model(X, ONE)
    assert torch.equal(copy.deepcopy(model).eval()(X, ONE), model.eval()(X, ONE))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False).eval()(X, ONE), expected)


@pytest.mark.parametrize("kind", ["gcn", "gat", "generic"])
def test_locked_edges_are_in_place_in_the_first_layer_only(kind):
    """Later layers inherit the decision: their softmax runs over the edges that are left of training."""
    torch.manual_seed(0)
    model = uf.sparsify(Plain(CONVS[kind]), **NODE)
    model(X, ONE)
    model.eval()(X, ONE)
    honest = uf.trace(model).hops
    lock = torch.arange(0, N, 2)
    uf.set_node_lock(model, lock)
    seen = {}
    model.b.register_forward_pre_hook(lambda layer, args: seen.update(x=args[0]))
    out = model(X, ONE)
    locked = uf.trace(model).hops
    into = Adjacency.build(ONE, N)
    first = set(into.keys[~torch.isin(into.receivers, lock)].tolist()) & removed(model)["a"]
    assert locked[0].edges_kept == ONE.shape[1] - len(first) > honest[0].edges_kept
    assert locked[1].edges_kept == honest[1].edges_kept and locked[1].score_macs == honest[1].score_macs
    if kind == "gat":  # by hand: the second layer on the edges that training left after the first
        left = ONE[:, [key not in removed(model)["a"] for key in (ONE[1] * N + ONE[0]).tolist()]]
        alone = uf.sparsify(copy.deepcopy(uf.desparsify(model)).b, entries="node", edge_sparsity=0.5)
        alone.load_state_dict({name: value for name, value in model.b.state_dict().items()})
        torch.testing.assert_close(alone.eval()(seen["x"], left), out)


@pytest.mark.parametrize("entries", ["node", "block"])
def test_compress_refuses_branches_that_inherit(entries):
    how = dict(entries=entries, edge_sparsity=0.5)
    model = uf.sparsify(Branches(CONVS["gcn"]), **how)
    model(X, ONE)
    with pytest.raises(InputError, match="a is one of several parallel layers"):
        uf.compress(model.eval(), X, ONE)
    model = uf.sparsify(Branches(CONVS["gcn"]), **how, inherit=False)
    model(X, ONE)
    torch.testing.assert_close(uf.compress(model.eval(), X, ONE)(X, ONE), model(X, ONE), atol=1e-4, rtol=1e-4)
