"""Sparsified models in mini-batches, by PyG's own loaders: every batch is another graph, with other numbers of nodes and edges.

`NeighborLoader` is `NodeLoader` with a compiled sampler, which no package index has for every platform; here the sampler is
written in torch, and all the rest is PyG's.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader, NodeLoader, RandomNodeLoader
from torch_geometric.nn import GATv2Conv, GCNConv, GraphConv, GraphSAGE, SAGEConv
from torch_geometric.sampler import BaseSampler, SamplerOutput

import unifews as uf

CLASSES = 4
N = 300


class Neighbours(BaseSampler):
    """Up to so many random neighbours per hop; input nodes come first, as with NeighborSampler."""

    def __init__(self, edge_index, num_nodes, sizes):
        self.row, self.col = edge_index
        self.num_nodes, self.sizes = num_nodes, sizes

    def sample_from_nodes(self, index, **kwargs):
        known, frontier = index.node, index.node
        edges, nodes_of_hop, edges_of_hop = [], [len(known)], []
        for size in self.sizes:
            into = torch.isin(self.col, frontier).nonzero().flatten()
            into = into[torch.randperm(len(into))]
            order = torch.argsort(self.col[into], stable=True)
            into = into[order]
            first = torch.searchsorted(self.col[into].contiguous(), self.col[into].contiguous())
            into = into[torch.arange(len(into)) - first < size]
            edges.append(into)
            fresh = torch.unique(self.row[into])
            frontier = fresh[~torch.isin(fresh, known)]
            known = torch.cat([known, frontier])
            nodes_of_hop.append(len(frontier))
            edges_of_hop.append(len(into))
        edge = torch.cat(edges)
        place = torch.empty(self.num_nodes, dtype=torch.long)
        place[known] = torch.arange(len(known))
        return SamplerOutput(
            node=known,
            row=place[self.row[edge]],
            col=place[self.col[edge]],
            edge=edge,
            batch=None,
            num_sampled_nodes=nodes_of_hop,
            num_sampled_edges=edges_of_hop,
            metadata=(index.input_id, index.time),
        )

    def sample_from_edges(self, index, neg_sampling=None):
        raise NotImplementedError

    @property
    def edge_permutation(self):
        return None


def data(n=N, seed=3):
    """Classes that neighbours share, and features that say little of them."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % CLASSES
    row = torch.randint(0, n, (12 * n,), generator=draw)
    col = (row + CLASSES * torch.randint(0, n // CLASSES, row.shape, generator=draw)) % n  # most edges stay in the class
    x = torch.randn(n, 20, generator=draw) + 0.6 * nn.functional.one_hot(y, 20)
    return Data(x=x, y=y, edge_index=torch.stack([row, col]))


def loader(graph, batch_size=32):
    sampler = Neighbours(graph.edge_index, graph.num_nodes, [8, 4])
    return NodeLoader(graph, sampler, input_nodes=torch.arange(graph.num_nodes), batch_size=batch_size, shuffle=True)


class Net(nn.Module):
    def __init__(self, conv, width=32):
        super().__init__()
        self.first, self.second = conv(20, width), conv(width, CLASSES)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


def train(model, batches, epochs=4):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    means = []
    for _ in range(epochs):
        losses = []
        for batch in batches:
            count = getattr(batch, "batch_size", None) or batch.num_nodes
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[:count]
            loss = nn.functional.cross_entropy(out, batch.y[:count])
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        means.append(sum(losses) / len(losses))
    return means


def accuracy(model, graph, count=None):
    """Of the first so many nodes; all unless given."""
    with torch.no_grad():
        return float((model.eval()(graph.x, graph.edge_index).argmax(1) == graph.y)[:count].float().mean())


CONVS = {
    "gcn": GCNConv,
    "sage": SAGEConv,
    "gat": lambda a, b: GATv2Conv(a, b, heads=4, concat=False),
    "graph": GraphConv,
}


@pytest.mark.parametrize("entries", ["unit", "block"])
@pytest.mark.parametrize("kind", CONVS)
def test_a_loader_of_neighbours(kind, entries):
    torch.manual_seed(0)
    graph = data()
    batches = loader(graph)
    first = next(iter(batches))
    assert first.batch_size == 32 and len(first.n_id) == first.num_nodes and torch.equal(first.n_id[:32], first.input_id)
    model = uf.sparsify(Net(CONVS[kind]), edge_sparsity=0.5, weight_sparsity=0.5, entries=entries, ramp=10)
    losses = train(model, batches)
    seen = uf.trace(model)
    assert seen.hops[0].edges < graph.num_edges / 2  # of the last batch, not the graph
    # By blocks, edges that the first layer drops whole are gone for the second too, beyond its own share.
    assert seen.edge_sparsity == pytest.approx(0.5, abs=0.03 if entries == "unit" else 0.08)
    assert seen.weight_sparsity == pytest.approx(0.5, abs=0.01)
    assert losses[-1] < (0.7 if entries == "unit" else 0.85) * losses[0]
    if entries == "unit":  # all nodes at once, by what was decided in batches
        assert accuracy(model, graph) > 0.8
        assert uf.trace(model).hops[0].edges == int((graph.edge_index[0] != graph.edge_index[1]).sum())
    else:  # a threshold is a size, and messages of a whole graph, with its larger degrees, have others
        right = sum(accuracy(model, batch, batch.batch_size) * batch.batch_size for batch in batches)
        assert right > 0.35 * N  # a quarter by chance


def test_what_is_trained_in_batches_is_frozen_for_the_whole_graph(tmp_path):
    torch.manual_seed(0)
    graph = data()
    model = uf.sparsify(Net(SAGEConv), edge_sparsity=0.5, entries="unit", weight_sparsity=0.5, ramp=10)
    train(model, loader(graph), epochs=2)
    fast = uf.compress(model, graph.x, graph.edge_index)
    expected = model.eval()(graph.x, graph.edge_index).detach()
    torch.testing.assert_close(fast.predict(), expected, rtol=1e-4, atol=1e-5)
    uf.save(model, tmp_path / "m")
    again = uf.load(tmp_path / "m", into=Net(SAGEConv))
    assert torch.equal(again(graph.x, graph.edge_index), expected)


def test_layers_that_are_given_only_what_the_next_ones_need():
    """PyG's models cut away what later hops do not need: each layer sees fewer nodes and edges than the one before."""
    torch.manual_seed(0)
    graph = data()
    plain = GraphSAGE(20, 16, 2, CLASSES)
    same, pruned = uf.sparsify(plain), uf.sparsify(plain, edge_sparsity=0.5, entries="unit")
    for batch in loader(graph, 64):
        sizes = {
            "num_sampled_nodes_per_hop": batch.num_sampled_nodes,
            "num_sampled_edges_per_hop": batch.num_sampled_edges,
        }
        expected = plain(batch.x, batch.edge_index, **sizes)
        torch.testing.assert_close(same(batch.x, batch.edge_index, **sizes), expected, rtol=1e-4, atol=1e-5)
        pruned(batch.x, batch.edge_index, **sizes)[: batch.batch_size].sum().backward()
    edges = [hop.edges for hop in uf.trace(pruned).hops]
    assert edges[1] < edges[0]


@pytest.mark.parametrize("kind", CONVS)
def test_a_loader_of_random_parts(kind):
    torch.manual_seed(0)
    graph = data()
    model = uf.sparsify(Net(CONVS[kind]), edge_sparsity=0.5, entries="unit", weight_sparsity=0.5, ramp=10)
    losses = train(model, RandomNodeLoader(graph, num_parts=4, shuffle=True), epochs=6)
    assert losses[-1] < 0.8 * losses[0]
    assert uf.trace(model).edge_sparsity == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("kind", CONVS)
def test_a_loader_of_many_graphs(kind):
    torch.manual_seed(0)
    graphs = [data(n=60 + 4 * i, seed=i) for i in range(12)]
    model = uf.sparsify(Net(CONVS[kind]), edge_sparsity=0.5, entries="unit", weight_sparsity=0.5, ramp=10)
    losses = train(model, DataLoader(graphs, batch_size=4, shuffle=True), epochs=6)
    assert losses[-1] < 0.8 * losses[0]
    alone = graphs[3]
    together = next(iter(DataLoader(graphs[3:5], batch_size=2)))
    model.eval()
    joint = model(together.x, together.edge_index)[: alone.num_nodes]
    torch.testing.assert_close(model(alone.x, alone.edge_index), joint, rtol=1e-4, atol=1e-5)
