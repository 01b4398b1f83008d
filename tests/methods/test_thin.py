"""`unifews.thin`: every kind of graph in, the same kind out."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from method_cases import graph_of, words
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import GDC

import unifews as uf
from unifews.core import csr
from unifews.errors import GraphError, InputError
from unifews.methods.effective_resistance import resistances
from unifews.methods.selection import keep_best, undirected_edges
from unifews.methods.thin import thinning_methods

METHODS = ("unifews", "random", "dspar", "effective-resistance", "k-neighbor")
GRAPH = graph_of()
N = GRAPH.num_nodes


def directed(seed=5, n=40, edges=200, weighted=False):
    rng = np.random.default_rng(seed)
    weight = rng.random(edges).astype(np.float32) + 0.1 if weighted else None
    return uf.Graph.from_edge_index(rng.integers(0, n - 1, (2, edges)), n, weight)


def weighted(graph=GRAPH, seed=3):
    """The same edges, undirected, with weights."""
    adjacency = graph.to_scipy()
    adjacency.data[:] = np.random.default_rng(seed).random(len(adjacency.data)) + 0.1
    return uf.Graph.from_scipy(adjacency.maximum(adjacency.T))


def edges_of(graph):
    return set(map(tuple, graph.to_edge_index().T.tolist()))


def test_all_that_choose_edges_are_listed():
    assert set(thinning_methods()) == {*METHODS, "gdc-topk"}


# ------------------------------------------------------------------------------------------------------------- graphs


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.8])
def test_some_edges_of_an_undirected_graph(method, sparsity):
    thinned = uf.thin(GRAPH, method, sparsity=sparsity)
    assert thinned.num_nodes == N and thinned.is_symmetric
    assert edges_of(thinned) <= edges_of(GRAPH)
    assert abs(thinned.num_edges - (1 - sparsity) * GRAPH.num_edges) <= 2
    again = uf.thin(GRAPH, method, sparsity=sparsity)
    assert np.array_equal(thinned.indices, again.indices)


@pytest.mark.parametrize("method", ["unifews", "random", "k-neighbor", "effective-resistance"])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_some_edges_of_a_directed_graph(method, is_weighted):
    graph = directed(weighted=is_weighted)
    thinned = uf.thin(graph, method, keep=70)
    assert abs(thinned.num_edges - 70) <= (9 if method == "effective-resistance" else 0)  # it draws pairs of nodes
    assert edges_of(thinned) <= edges_of(graph)
    if is_weighted and method != "effective-resistance":
        assert ((graph.to_scipy() - thinned.to_scipy()).data >= 0).all()  # weights stay


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n, edges", [(1, 0), (5, 0), (2, 1)])
def test_tiny_graphs(method, n, edges):
    graph = uf.Graph.from_edge_index(np.array([[0], [1]])[:, :edges], n).undirected()
    assert uf.thin(graph, method, sparsity=0.0).num_edges == 2 * edges
    assert uf.thin(graph, method, sparsity=0.9).num_nodes == n


def test_the_graph_from_folders_is_not_changed(tmp_path):
    GRAPH.save(tmp_path / "g")
    opened = uf.Graph.open(tmp_path / "g")
    before = opened.indices.copy()
    uf.thin(opened, "unifews", sparsity=0.5).save(tmp_path / "half")
    assert np.array_equal(opened.indices, before)
    assert uf.Graph.open(tmp_path / "half").is_symmetric


def test_unifews_keeps_the_largest_messages():
    """Against the definition: |T[u,v]|, and the same times the norm of x."""
    graph, x = directed(), words(40)
    received = 1 + np.bincount(csr.targets(graph.indptr), minlength=40)
    sent = 1 + np.bincount(graph.indices, minlength=40)
    size = 1 / np.sqrt(received[csr.targets(graph.indptr)] * sent[graph.indices])
    for features, expected in ((None, size), (x, size * np.linalg.norm(x, axis=1)[graph.indices])):
        kept = edges_of(uf.thin(graph, "unifews", keep=20, x=features))
        is_kept = np.array([edge in kept for edge in map(tuple, graph.to_edge_index().T.tolist())])
        assert expected[is_kept].min() >= expected[~is_kept].max() - 1e-12


def test_enough_edges_are_compared_within_their_target():
    thinned = uf.thin(GRAPH, "unifews", sparsity=0.3)
    alone = (GRAPH.degree > 0) & (thinned.degree == 0)
    assert not alone.any()


def test_keep_best_by_target_against_loops():
    rng = np.random.default_rng(7)
    graph = directed(seed=11)
    score = rng.random(graph.num_edges)
    order = sorted(
        range(graph.num_edges),
        key=lambda e: (
            sum(score[f] > score[e] for f in range(*graph.indptr[csr.targets(graph.indptr)[e] :][:2])),
            -score[e],
        ),
    )
    kept = keep_best(graph, score, 0.6, rng, per_target=True)
    assert set(np.flatnonzero(kept)) == set(order[: int(kept.sum())])


def test_k_neighbor():
    graph = directed()
    thinned = uf.thin(graph, "k-neighbor:k=3")
    assert np.array_equal(thinned.degree, np.minimum(graph.degree, 3))
    both = uf.thin(GRAPH, "k-neighbor", k=2)
    assert both.is_symmetric and (both.degree >= np.minimum(GRAPH.degree, 2)).all()
    assert uf.thin(GRAPH, "k-neighbor", k=0).num_edges == 0


def test_k_neighbor_prefers_large_weights():
    rng = np.random.default_rng(2)
    sources = np.arange(1, 101)
    weight = np.where(sources <= 50, 9.0, 1.0).astype(np.float32)
    star = uf.Graph.from_edge_index(np.stack([sources, np.zeros(100, dtype=int)]), 101, weight)
    kept = [uf.thin(star, "k-neighbor", k=20, seed=int(seed)).indices for seed in rng.integers(0, 9999, 20)]
    assert np.mean([np.mean(nodes <= 50) for nodes in kept]) > 0.75


# ----------------------------------------------------------------------------------------------- effective resistances


def dense_resistances(graph, ends):
    adjacency = graph.to_scipy().toarray().astype(float)
    inverse = np.linalg.pinv(np.diag(adjacency.sum(1)) - adjacency)
    u, v = ends
    return inverse[u, u] + inverse[v, v] - 2 * inverse[u, v]


@pytest.mark.parametrize("make", [lambda: GRAPH, weighted])
def test_resistances_against_the_dense_inverse(make):
    graph = make()
    group, ends = undirected_edges(graph.indices, csr.targets(graph.indptr), N)
    weight = np.ones(ends.shape[1])
    if graph.weight is not None:
        weight[group] = graph.weight
    found = resistances(graph, ends, weight, 4000, np.random.default_rng(1))
    expected = dense_resistances(graph, ends)
    assert np.abs(found / expected - 1).max() < 0.15  # √(2/4000) = .022, times 4 and more for the largest of many


def test_bridges_are_kept():
    """Two cliques joined by one edge, whose resistance is 1."""
    clique = np.stack(np.triu_indices(12, 1))
    edges = np.concatenate([clique, clique + 12, [[3], [15]]], axis=1)
    graph = uf.Graph.from_edge_index(edges, 24).undirected()
    kept = [(3, 15) in edges_of(uf.thin(graph, "effective-resistance", sparsity=0.7, seed=seed)) for seed in range(20)]
    assert np.mean(kept) > 0.8
    by_chance = [(3, 15) in edges_of(uf.thin(graph, "random", sparsity=0.7, seed=seed)) for seed in range(20)]
    assert np.mean(by_chance) < 0.6


@pytest.mark.parametrize("method", ["dspar", "effective-resistance"])
def test_samples_are_unbiased(method):
    """The mean of many weighted samples is the graph."""
    total = sum(uf.thin(GRAPH, method, sparsity=0.3, seed=seed).to_scipy().toarray() for seed in range(300))
    ratio = (total / 300)[GRAPH.to_scipy().toarray() > 0]
    assert abs(ratio.mean() - 1) < 0.1
    assert uf.thin(GRAPH, method, sparsity=0.3, factors=False).weight is None


# ------------------------------------------------------------------------------------------------------------ gdc top-k


def test_gdc_topk_against_pyg():
    data = Data(edge_index=torch.from_numpy(GRAPH.to_edge_index()), num_nodes=N, x=torch.from_numpy(words()))
    how = dict(
        self_loop_weight=1,
        normalization_in="sym",
        normalization_out="col",
        diffusion_kwargs=dict(method="ppr", alpha=0.15),
        sparsification_kwargs=dict(method="topk", k=8, dim=0),
        exact=True,
    )
    expected = GDC(**how)(data.clone())
    found = uf.thin(data, "gdc-topk", k=8, max_error=1e-4, floor=0.0)
    dense = torch.zeros(2, N, N)
    dense[0][tuple(expected.edge_index)] = expected.edge_attr
    dense[1][tuple(found.edge_index)] = found.edge_weight
    assert torch.allclose(dense[0].sum(0)[GRAPH.degree > 0], torch.ones(1), atol=1e-5)
    assert torch.allclose(dense[1].sum(0), torch.ones(1), atol=1e-5)
    differs = ((dense[0] - dense[1]).abs() > 1e-3).sum(0)  # nodes of equal PageRank may be chosen differently
    assert (differs == 0).float().mean() > 0.8


def test_gdc_topk_of_a_graph_has_as_many_edges_as_asked():
    thinned = uf.thin(GRAPH, "gdc-topk", sparsity=0.5)
    assert thinned.is_weighted and thinned.num_nodes == N
    assert thinned.num_edges <= N * round(0.5 * GRAPH.num_edges / N)
    assert thinned.num_edges > 0.3 * GRAPH.num_edges


# ---------------------------------------------------------------------------------------------------------------- kinds


def test_edge_index_in_edge_index_out():
    edge_index = torch.from_numpy(GRAPH.to_edge_index())
    loops = torch.tensor([[0, 3], [0, 3]])
    shuffled = torch.cat([edge_index, loops, edge_index[:, :5]], dim=1)[:, torch.randperm(edge_index.shape[1] + 7)]
    thinned = uf.thin(shuffled, "unifews", sparsity=0.6)
    assert isinstance(thinned, torch.Tensor) and thinned.dtype == torch.int64
    assert (thinned[0] == thinned[1]).sum() == 2  # self-loops stay
    expected = edges_of(uf.thin(GRAPH, "unifews", sparsity=0.6))
    assert {edge for edge in map(tuple, thinned.T.tolist()) if edge[0] != edge[1]} == expected
    array = uf.thin(shuffled.numpy(), "unifews", sparsity=0.6)
    assert isinstance(array, np.ndarray) and np.array_equal(array, thinned.numpy())


def test_pairs_with_weights():
    edges, weight = GRAPH.to_edge_index(), torch.rand(GRAPH.num_edges)
    edge_index, kept = uf.thin((torch.from_numpy(edges), weight), "random", keep=60)
    assert edge_index.shape[1] == len(kept)
    by_edge = dict(zip(map(tuple, edges.T.tolist()), weight.tolist(), strict=True))
    assert [by_edge[edge] for edge in map(tuple, edge_index.T.tolist())] == kept.tolist()
    edge_index, new = uf.thin((torch.from_numpy(edges), None), "dspar", sparsity=0.5)
    assert new.shape == edge_index.shape[1:] and len(new.unique()) > 1
    edge_index, none = uf.thin((torch.from_numpy(edges), None), "random", sparsity=0.5)
    assert none is None
    with pytest.raises(InputError, match=r"pass \(edge_index, None\) to get a pair back, or factors=False"):
        uf.thin(torch.from_numpy(edges), "dspar", sparsity=0.5)


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_array, sp.coo_array, sp.csr_matrix])
def test_scipy(kind):
    matrix = kind(GRAPH.to_scipy().astype(np.float64) + sp.eye_array(N))
    thinned = uf.thin(matrix, "unifews", sparsity=0.5)
    assert type(thinned) is kind and thinned.dtype == np.float64 and thinned.shape == (N, N)
    assert (thinned.diagonal() == 1).all()
    off = thinned.toarray() - np.eye(N)
    assert np.array_equal(off, uf.thin(GRAPH, "unifews", sparsity=0.5).to_scipy().toarray())


def test_data_keeps_what_belongs_to_its_edges():
    edge_index = torch.from_numpy(GRAPH.to_edge_index())
    count = edge_index.shape[1]
    numbers = torch.arange(count)
    data = Data(
        x=torch.from_numpy(words()),
        y=torch.arange(N),
        train_mask=torch.ones(N, dtype=torch.bool),
        edge_index=edge_index,
        edge_attr=numbers[:, None].float(),
        edge_label=numbers,
    )
    thinned = uf.thin(data, "unifews", sparsity=0.5)
    assert thinned.num_nodes == N and torch.equal(thinned.x, data.x) and torch.equal(thinned.y, data.y)
    places = thinned.edge_label
    assert torch.equal(edge_index[:, places], thinned.edge_index) and torch.equal(thinned.edge_attr[:, 0].long(), places)
    assert data.num_edges == count  # unchanged
    assert "edge_weight" in uf.thin(data, "dspar", sparsity=0.5)


def test_data_with_a_sparse_matrix():
    data = Data(x=torch.from_numpy(words()), num_nodes=N)
    adjacency = GRAPH.to_scipy()
    data.adj_t = torch.sparse_csr_tensor(
        *map(torch.from_numpy, (adjacency.indptr, adjacency.indices, adjacency.data)), size=(N, N)
    )
    thinned = uf.thin(data, "unifews", sparsity=0.5)
    assert thinned.adj_t.layout == torch.sparse_csr
    expected = uf.thin(GRAPH, "unifews", sparsity=0.5).to_scipy().toarray()
    assert np.array_equal(thinned.adj_t.to_dense().numpy(), expected)


def hetero():
    rng = np.random.default_rng(4)
    data = HeteroData()
    data["author"].x, data["paper"].x = torch.rand(12, 3), torch.rand(20, 3)
    data["author", "writes", "paper"].edge_index = torch.from_numpy(
        np.stack([rng.integers(0, 12, 60), rng.integers(0, 20, 60)])
    )
    data["author", "writes", "paper"].edge_attr = torch.arange(60)
    data["paper", "cites", "paper"].edge_index = torch.from_numpy(rng.integers(0, 20, (2, 80)))
    data["paper", "reviews", "author"].edge_index = torch.zeros(2, 0, dtype=torch.long)
    return data


@pytest.mark.parametrize("method", ["unifews", "random", "k-neighbor"])
def test_hetero_data_relation_by_relation(method):
    data = hetero()
    thinned = uf.thin(data, method, sparsity=0.5)
    assert thinned.edge_types == data.edge_types
    writes = thinned["author", "writes", "paper"]
    whole = data["author", "writes", "paper"]
    assert torch.equal(whole.edge_index[:, writes.edge_attr], writes.edge_index)
    distinct = len(set(map(tuple, whole.edge_index.T.tolist())))
    assert abs(len(set(map(tuple, writes.edge_index.T.tolist()))) - distinct / 2) <= 1
    assert thinned["paper", "reviews", "author"].edge_index.shape == (2, 0)


# ------------------------------------------------------------------------------------------------------------- mistakes


def test_mistakes():
    cases = [
        (dict(method="dspr", sparsity=0.5), "Did you mean 'dspar'"),
        (dict(method="glt", sparsity=0.5), "does not choose edges before training; write method='dspar' or"),
        (dict(), "give one of `sparsity`"),
        (dict(sparsity=0.5, keep=3), "give one of `sparsity`"),
        (dict(sparsity=50), "sparsity"),
        (dict(keep=10**6), "`keep` is a number of edges from 0 to"),
        (dict(method="k-neighbor", kk=3), "no setting of method 'k-neighbor' named 'kk'"),
        (dict(method="k-neighbor", k=-1), "`k`"),
    ]
    for how, message in cases:
        with pytest.raises(InputError, match=message):
            uf.thin(GRAPH, **how)
    with pytest.raises(GraphError, match="thin takes a Graph"):
        uf.thin("edges.csv", sparsity=0.5)
    with pytest.raises(GraphError, match="needs an undirected graph"):
        uf.thin(directed(), "gdc-topk", k=3)
    with pytest.raises(InputError, match="of one relation"):
        uf.thin(hetero(), "random", keep=5)
    with pytest.raises(InputError, match="to_homogeneous"):
        uf.thin(hetero(), "gdc-topk", k=3)
