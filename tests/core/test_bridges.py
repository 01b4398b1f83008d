"""Graphs of other libraries, in and out."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import networkx
import numpy as np
import pytest
import torch
from torch_geometric import EdgeIndex

from unifews import Graph
from unifews.errors import GraphError, InputError


def graph_of(seed, directed, weighted, n=12, m=30):
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, n - 1, (2, m))  # the last node is isolated
    graph = Graph.from_edge_index(ends, n, rng.random(m).astype(np.float32) + 0.5 if weighted else None)
    return graph if directed else graph.undirected()


def same(one, other):
    assert one.num_nodes == other.num_nodes
    assert (one.to_scipy() != other.to_scipy()).nnz == 0
    assert one.is_weighted == other.is_weighted


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_there_and_back(directed, weighted):
    graph = graph_of(3, directed, weighted)
    same(Graph.from_networkx(graph.to_networkx(), "weight" if weighted else None), graph)
    assert graph.to_networkx().is_directed() == directed
    x, y = np.ones((12, 2), np.float32), np.arange(12)
    data = graph.to_pyg(x, y)
    same(Graph.from_pyg(data), graph)
    assert data.x.shape == (12, 2) and data.y.tolist() == list(range(12))


@pytest.mark.parametrize("n", [1, 5])
def test_without_edges(n):
    graph = Graph.from_edge_index(np.zeros((2, 0), dtype=int), n)
    same(Graph.from_networkx(graph.to_networkx()), graph)
    assert graph.to_pyg().num_nodes == n


def test_networkx_nodes_by_name_and_self_loops():
    named = networkx.Graph([("a", "b"), ("b", "c"), ("a", "a")])
    assert Graph.from_networkx(named).to_scipy().toarray().tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    with pytest.raises(GraphError, match="3 edges have no attribute 'cost'"):
        Graph.from_networkx(named, "cost")
    with pytest.raises(InputError, match="takes a networkx graph, not list"):
        Graph.from_networkx([(0, 1)])


def test_an_edge_index_of_pyg_has_a_size():
    edges = EdgeIndex(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), sparse_size=(5, 5))
    assert Graph.from_edge_index(edges).num_nodes == 5
    assert Graph.from_edge_index(EdgeIndex(torch.tensor([[0, 1], [1, 0]]))).num_nodes == 2


class DglGraph:
    """What `dgl.graph` returns, as far as it is used: DGL has no builds for current versions of Python."""

    def __init__(self, ends, num_nodes=None):
        self.ends, self._nodes, self.edata, self.is_homogeneous = ends, num_nodes, {}, True

    def edges(self):
        return self.ends

    def num_nodes(self):
        return self._nodes


@pytest.mark.parametrize("weighted", [False, True])
def test_dgl(weighted, monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", SimpleNamespace(graph=DglGraph))
    graph = graph_of(5, True, weighted)
    other = graph.to_dgl()
    same(Graph.from_dgl(other, "weight" if weighted else None), graph)
    with pytest.raises(GraphError, match="no edge data 'cost'"):
        Graph.from_dgl(other, "cost")
    other.is_homogeneous = False
    with pytest.raises(GraphError, match="to_homogeneous"):
        Graph.from_dgl(other)
    with pytest.raises(InputError, match="takes a DGL graph"):
        Graph.from_dgl("graph")
