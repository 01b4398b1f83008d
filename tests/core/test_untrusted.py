"""No array from outside makes a kernel, or scipy, leave its memory: each is an error of ours, in a process that lives on."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import unifews as uf
from unifews.core.csr import MAX_NODES
from unifews.errors import GraphError, InputError, ShapeError, UnifewsError
from unifews.propagation.features import FeatureMatrix

RNG = np.random.default_rng(20_261)
GRAPH = uf.Graph.from_edge_index(RNG.integers(0, 60, (2, 200)), 60).undirected()
FORMATS = ["csr", "csc", "bsr", "coo"]


def damaged(form, kind):
    """A sparse 60 × 60 matrix of which one number is wrong."""
    matrix = sp.random_array((60, 60), density=0.1, rng=np.random.default_rng(5), format="csr", dtype=np.float32)
    matrix = matrix.tobsr(blocksize=(2, 2)) if form == "bsr" else matrix.asformat(form)
    if form == "coo":
        line = matrix.row if kind != "indptr" else matrix.col
        line[3] = {"far": 2**30, "next": 60, "negative": -1, "indptr": 2**31 - 1}[kind]
    elif kind == "indptr":
        matrix.indptr[7] = 2**30
    else:
        matrix.indices[3] = {"far": 2**30, "next": 60, "negative": -1}[kind]
    return matrix


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", ["far", "next", "negative", "indptr"])
def test_a_damaged_scipy_matrix_is_refused(form, kind):
    matrix = damaged(form, kind)
    with pytest.raises(InputError, match=r"`x` is (a )?damaged"):
        uf.propagate(GRAPH, matrix, hops=2)
    with pytest.raises(InputError, match=r"`adj` is (a )?damaged"):
        uf.Graph.from_scipy(matrix)


@pytest.mark.parametrize("change", ["start", "short", "end", "falls", "data", "float"])
def test_damaged_row_pointers_are_refused(change):
    matrix = sp.random_array((60, 60), density=0.1, rng=np.random.default_rng(6), format="csr", dtype=np.float32)
    if change == "start":
        matrix.indptr[0] = 1
    elif change == "short":
        matrix.indptr = matrix.indptr[:-1]
    elif change == "end":
        matrix.indptr[-1] += 1
    elif change == "falls":
        matrix.indptr[10], matrix.indptr[11] = matrix.indptr[11], matrix.indptr[10] - 1
    elif change == "data":
        matrix.data = matrix.data[:-1]
    else:
        matrix.indices = matrix.indices.astype(np.float32)
    with pytest.raises(InputError, match="`x` is a damaged csr matrix"):
        uf.propagate(GRAPH, matrix, hops=2)


@pytest.mark.parametrize("form", [*FORMATS, "lil", "dok", "dia"])
def test_sound_matrices_of_every_format_give_the_same(form):
    matrix = sp.random_array((60, 20), density=0.2, rng=np.random.default_rng(8), format="csr", dtype=np.float32)
    expected = uf.propagate(GRAPH, matrix.toarray(), hops=3).embedding
    given = matrix.asformat(form)
    np.testing.assert_allclose(uf.propagate(GRAPH, given, hops=3).embedding, expected, atol=1e-5)
    np.testing.assert_array_equal(given.toarray(), matrix.toarray())


def test_unsorted_and_repeated_entries_are_made_canonical_in_a_copy():
    indices = np.array([2, 0, 1, 1], dtype=np.int32)
    matrix = sp.csr_array((np.ones(4, np.float32), indices, np.array([0, 2, 4] + [4] * 58)), shape=(60, 3))
    matrix.has_canonical_format = True  # scipy believes what it was told once
    found = FeatureMatrix(matrix, 60)
    np.testing.assert_array_equal(found.rows(0, 2), [[1, 0, 1], [0, 2, 0]])
    np.testing.assert_array_equal(matrix.indices, [2, 0, 1, 1])


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_a_damaged_sparse_tensor_is_refused(layout):
    n, places = 60, torch.tensor([0, 5, 99])
    values, offsets = torch.ones(3), torch.cat([torch.zeros(1, dtype=torch.long), torch.full((n,), 3)])
    with torch.sparse.check_sparse_tensor_invariants(False):
        if layout == "coo":
            x = torch.sparse_coo_tensor(torch.tensor([[0, 1, 2], [0, 1, 2]]), values, (n, n), check_invariants=False)
            x._indices()[0, 1] = 2**40
        elif layout == "csr":
            x = torch.sparse_csr_tensor(offsets, places, values, (n, n))
        else:
            x = torch.sparse_csc_tensor(offsets, places, values, (n, n))
    with pytest.raises(InputError, match="`x` is a damaged"):
        uf.propagate(GRAPH, x, hops=2)


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_sparse_tensors_of_every_layout_give_the_same(layout):
    dense = (torch.rand(60, 12, generator=torch.Generator().manual_seed(3)) > 0.7).float()
    x = {"coo": dense.to_sparse, "csr": dense.to_sparse_csr, "csc": dense.to_sparse_csc}[layout]()
    torch.testing.assert_close(
        uf.propagate(GRAPH, x, hops=3).embedding, uf.propagate(GRAPH, dense, hops=3).embedding, atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize(
    "indptr, indices, error",
    [
        ([0, 1, 2], [1, 5], GraphError),
        ([0, 1, 2], [1, -1], GraphError),
        ([0, 2, 1, 2], [1, 2], GraphError),
        ([0, 1, 3], [1, 0], ShapeError),
        ([0, 1, 2], [0, 0], GraphError),
        ([0, 2, 2, 2], [2, 1], GraphError),
    ],
)
def test_the_constructor_and_unchecked_rows_are_checked_too(indptr, indices, error):
    with pytest.raises(error):
        uf.Graph(np.array(indptr, dtype=np.int64), np.array(indices, dtype=np.int32))
    with pytest.raises(error):
        uf.Graph.from_csr(indptr, indices, check=False)


def test_the_constructor_refuses_arrays_of_other_types():
    with pytest.raises(InputError, match=r"`indptr` is a list; .* Graph.from_csr converts"):
        uf.Graph([0, 1, 2], [1, 0])
    with pytest.raises(InputError, match=r"`indices` is int64 \[2\]; .* contiguous int32 vector"):
        uf.Graph(np.array([0, 1, 2]), np.array([1, 0]))
    with pytest.raises(ShapeError, match="`weight` has 1 numbers"):
        uf.Graph(np.array([0, 1, 2]), np.array([1, 0], dtype=np.int32), np.ones(1, dtype=np.float32))


@pytest.mark.parametrize("number", [2**63 - 1, 2**63 - 2, 2**62, 2**40, MAX_NODES])
def test_node_numbers_beyond_the_limit_are_refused(number):
    with pytest.raises(GraphError, match=r"the largest node number is .* at most 549,755,813,888 nodes"):
        uf.Graph.from_edge_index(np.array([[0, 1], [1, number]]))


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
def test_unsigned_numbers_beyond_int64_are_not_called_negative(number):
    with pytest.raises(GraphError, match=rf"edge_index\[1, 1\] is {number}, and a graph has at most"):
        uf.Graph.from_edge_index(np.array([[0, 1], [1, number]], dtype=np.uint64))
    with pytest.raises(GraphError, match="a graph has at most"):
        uf.Graph.from_edge_index(np.array([[0, 1], [1, float(number)]]))


@pytest.mark.parametrize("given", [float("nan"), float("inf"), 2.5, True, "5", None])
def test_a_number_of_nodes_is_a_whole_number(given):
    if given is None:
        given = [5]
    with pytest.raises(InputError, match="num_nodes must be an integer"):
        uf.Graph.from_edge_index(np.array([[0, 1], [1, 0]]), num_nodes=given)


@pytest.mark.parametrize("given", [2**63, 10**30, MAX_NODES + 1])
def test_too_many_nodes_are_refused(given):
    with pytest.raises(GraphError, match=r"num_nodes is .* at most"):
        uf.Graph.from_edge_index(np.array([[0, 1], [1, 0]]), num_nodes=given)


def test_masked_values_are_not_taken_for_real_ones():
    x = np.ma.masked_array(np.ones((60, 3), np.float32), mask=np.eye(60, 3, dtype=bool))
    with pytest.raises(InputError, match="masked array"):
        uf.propagate(GRAPH, x)
    assert uf.propagate(GRAPH, np.ma.masked_array(np.ones((60, 3), np.float32)), hops=1).embedding.shape == (60, 3)


@pytest.mark.parametrize("scale", [1e-40, 1e-39, 1e-38, 1e38])
@pytest.mark.parametrize("sparse", [False, True])
def test_features_at_the_ends_of_float32(scale, sparse):
    x = np.random.default_rng(9).uniform(-1, 1, (60, 8)).astype(np.float32)
    expected = uf.propagate(GRAPH, x, hops=4).embedding
    small = x * np.float32(scale)
    for how in ({}, {"threshold": 0.0}, {"edge_sparsity": 0.5}):
        out = uf.propagate(GRAPH, sp.csr_array(small) if sparse else small, hops=4, **how)
        values = out.embedding.astype(np.float64) * 2.0**out.exponent / scale
        assert np.isfinite(values).all()
        if "edge_sparsity" not in how:
            np.testing.assert_allclose(values, expected, atol=2e-5)


@pytest.mark.parametrize("options", [{"r": "a"}, {"r": None}, {"r": float("nan")}])
def test_options_that_are_no_numbers_in_range(options):
    with pytest.raises(UnifewsError, match=next(iter(options))):
        uf.propagate(GRAPH, np.ones((60, 2), np.float32), edge_sparsity=0.5, **options)


def test_node_numbers_out_of_proportion_to_the_edges_are_asked_about():
    with pytest.raises(GraphError, match=r"2 edges, but node numbers up to 3,000,000,000: .* num_nodes=3000000001 if they"):
        uf.Graph.from_edge_index(np.array([[0, 1], [1, 3_000_000_000]]))
    assert uf.Graph.from_edge_index(np.array([[0, 1], [1, 900_000]])).num_nodes == 900_001


def test_a_graph_that_memory_cannot_hold_is_refused():
    with pytest.raises(GraphError, match=r"a graph of 274,877,906,944 nodes takes at least 2.2 TB of memory"):
        uf.Graph.from_edge_index(np.array([[0, 1], [1, 0]]), num_nodes=2**38)


def sparse_tensor(layout, place):
    """A 60 × 60 sparse tensor with one entry per row, one of them in column `place`."""
    columns, rows = torch.arange(60), torch.arange(60)
    columns[7] = place
    with warnings.catch_warnings(), torch.sparse.check_sparse_tensor_invariants(False):
        warnings.simplefilter("ignore")
        if layout == "coo":
            x = torch.sparse_coo_tensor(torch.stack([rows, torch.arange(60)]), torch.ones(60), (60, 60))
            x._indices()[1] = columns
            return x
        return torch.sparse_csr_tensor(torch.arange(61), columns, torch.ones(60), (60, 60))


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("place", [60, 2**40, -1])
def test_layers_and_frozen_models_refuse_damaged_sparse_tensors(layout, place):
    from torch_geometric.nn import GCN

    torch.manual_seed(3)
    edge_index, x = torch.from_numpy(GRAPH.to_edge_index()), torch.rand(60, 60)
    model = uf.sparsify(GCN(60, 8, 2, 3), edge_sparsity=0.5, entries="node")
    model(x, edge_index)
    frozen = uf.compress(model.eval(), x, edge_index)
    bad = sparse_tensor(layout, place)
    for call in (model, frozen):
        with pytest.raises(InputError, match="`edge_index` is a damaged"):
            call(x, bad)
    with pytest.raises(InputError, match="`x` is a damaged"):
        frozen(bad, edge_index)
    if layout == "csr":
        with pytest.raises(InputError, match="`x` is a damaged"):
            model(bad, edge_index)
