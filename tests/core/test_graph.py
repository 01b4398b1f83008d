"""Graph: construction against an oracle of dictionaries, the folder on disk, and every way to get it wrong."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from unifews.core import csr
from unifews.core.graph import Graph
from unifews.errors import FileFormatError, GraphError, InputError, MissingFileError, ShapeError


@st.composite
def multigraphs(draw, weighted=None):
    """Nodes, edges [2, m] with self-loops and copies, and small whole weights (exact in float32) or None."""
    n = draw(st.integers(1, 9))
    m = draw(st.integers(0, 30))
    node = st.integers(0, n - 1)
    edges = np.array(
        [draw(st.lists(node, min_size=m, max_size=m)), draw(st.lists(node, min_size=m, max_size=m))], dtype=np.int64
    )
    if weighted is None:
        weighted = draw(st.booleans())
    weight = np.array(draw(st.lists(st.integers(0, 3), min_size=m, max_size=m)), dtype=np.float64) if weighted else None
    return n, edges, weight


def oracle(n, edges, weight):
    """Row u → {source: weight}, and how many self-loops and copies went."""
    rows, loops, merged = defaultdict(dict), 0, 0
    for e, (v, u) in enumerate(edges.T.tolist()):
        w = 1 if weight is None else weight[e]
        if w == 0:
            continue
        if u == v:
            loops += 1
        elif v in rows[u]:
            merged += 1
            rows[u][v] = 1 if weight is None else rows[u][v] + w
        else:
            rows[u][v] = w
    return [rows[u] for u in range(n)], loops, merged


def as_rows(graph):
    weight = np.ones(graph.num_edges) if graph.weight is None else graph.weight
    ends = graph.indptr.tolist()
    return [dict(zip(graph.indices[a:b].tolist(), weight[a:b].tolist(), strict=True)) for a, b in pairwise(ends)]


def same(a, b):
    assert np.array_equal(a.indptr, b.indptr) and np.array_equal(a.indices, b.indices)
    assert (a.weight is None) == (b.weight is None)
    assert a.weight is None or np.array_equal(a.weight, b.weight)


RING = np.array([[0, 1, 2, 1, 2, 0], [1, 2, 0, 0, 1, 2]])


class TestConstruction:
    @given(multigraphs())
    def test_an_edge_index_gives_each_distinct_edge_once(self, case):
        n, edges, weight = case
        rows, loops, merged = oracle(n, edges, weight)
        graph = Graph.from_edge_index(edges, n, weight)
        assert as_rows(graph) == rows
        assert (graph.dropped_self_loops, graph.merged_duplicates) == (loops, merged)
        assert graph.num_nodes == n and graph.num_edges == sum(map(len, rows))
        assert graph.degree.tolist() == [len(row) for row in rows]
        assert csr.examine(graph.indptr, graph.indices).is_canonical
        assert graph.is_weighted == any(w != 1 for row in rows for w in row.values())

    @given(multigraphs())
    def test_graphs_too_large_for_packed_keys_are_built_the_same(self, case):
        n, edges, weight = case
        expected = Graph.from_edge_index(edges, n, weight)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(csr, "PACKABLE", 0)
            same(Graph.from_edge_index(edges, n, weight), expected)

    @given(multigraphs())
    def test_chunks_and_threads_do_not_change_the_result(self, case):
        n, edges, weight = case
        expected = Graph.from_edge_index(edges, n, weight)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(csr, "CHUNK", 3)
            patch.setattr(csr, "PARALLEL", 1)
            graph = Graph.from_edge_index(edges, n, weight)
            same(graph, expected)
            assert csr.examine(graph.indptr, graph.indices).is_canonical

    @given(multigraphs())
    def test_unsorted_rows_are_repaired(self, case):
        n, edges, weight = case
        order = np.argsort(edges[1], kind="stable")
        indptr = np.searchsorted(edges[1][order], np.arange(n + 1))
        graph = Graph.from_csr(indptr, edges[0][order], None if weight is None else weight[order])
        same(graph, Graph.from_edge_index(edges, n, weight))

    @given(multigraphs(weighted=True))
    def test_a_scipy_matrix_holds_the_target_in_its_rows(self, case):
        n, edges, weight = case
        matrix = sp.coo_array((weight, (edges[1], edges[0])), shape=(n, n))
        same(Graph.from_scipy(matrix), Graph.from_edge_index(edges, n, weight))

    @given(multigraphs())
    def test_the_adjacency_matrix_survives_scipy(self, case):
        graph = Graph.from_edge_index(case[1], case[0], case[2])
        same(Graph.from_scipy(graph.to_scipy()), graph)

    @given(multigraphs(weighted=False))
    def test_the_edge_index_survives_a_round_trip(self, case):
        graph = Graph.from_edge_index(case[1], case[0])
        same(Graph.from_edge_index(graph.to_edge_index(), graph.num_nodes), graph)

    def test_clean_rows_are_taken_without_a_copy(self):
        indptr, indices = np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], dtype=np.int32)
        graph = Graph.from_csr(indptr, indices)
        assert np.shares_memory(graph.indices, indices) and np.shares_memory(graph.indptr, indptr)
        assert indices.flags.writeable and not graph.indices.flags.writeable

    def test_arrays_of_a_graph_cannot_be_written(self):
        graph = Graph.from_edge_index(RING, edge_weight=np.arange(1, 7))
        for array in (graph.indptr, graph.indices, graph.weight, graph.degree):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1

    def test_explicit_zeros_of_a_matrix_are_no_edges(self):
        matrix = sp.csr_array((np.array([0.0, 1.0]), np.array([0, 1]), np.array([0, 2, 2])), shape=(2, 2))
        graph = Graph.from_scipy(matrix)
        assert graph.num_edges == 1 and graph.weight is None and graph.dropped_self_loops == 0

    def test_a_single_node_without_edges_is_a_graph(self):
        graph = Graph.from_edge_index(np.empty((2, 0), dtype=np.int64), num_nodes=1)
        assert (graph.num_nodes, graph.num_edges, graph.is_symmetric) == (1, 0, True)

    def test_whole_floats_are_node_numbers(self):
        same(Graph.from_edge_index(RING.astype(float)), Graph.from_edge_index(RING))

    def test_every_integer_type_gives_the_same_graph(self):
        for dtype in (np.int8, np.uint8, np.int32, np.uint64):
            same(Graph.from_edge_index(RING.astype(dtype)), Graph.from_edge_index(RING))

    def test_a_directed_graph_is_not_symmetric(self):
        assert Graph.from_edge_index(RING).is_symmetric
        assert not Graph.from_edge_index(RING[:, :3]).is_symmetric  # a directed ring: degrees agree, edges do not
        assert not Graph.from_edge_index([[0, 1], [1, 0]], edge_weight=[1, 2]).is_symmetric

    def test_it_prints_what_it_is(self):
        assert repr(Graph.from_edge_index(RING)) == "Graph(3 nodes, 6 edges, undirected)"
        assert repr(Graph.from_edge_index([[0], [1]], 2_708, [2])) == "Graph(2,708 nodes, 1 edge, directed, weighted)"


class TestTorch:
    @pytest.mark.filterwarnings("ignore:Sparse:UserWarning")  # torch: its sparse tensors are young
    def test_tensors_and_pyg_data_give_the_graph_of_their_arrays(self):
        import torch
        import torch_geometric.data as data_module

        edges = torch.from_numpy(RING)
        expected = Graph.from_edge_index(RING, 4)
        same(Graph.from_edge_index(edges, 4), expected)
        same(Graph.from_pyg(data_module.Data(edge_index=edges, num_nodes=4)), expected)
        adj_t = torch.sparse_coo_tensor(edges.flip(0), torch.ones(6), (4, 4))
        same(Graph.from_pyg(data_module.Data(adj_t=adj_t.to_sparse_csr())), expected)
        weighted = data_module.Data(edge_index=edges, edge_weight=torch.full((6,), 2.0), num_nodes=4)
        assert Graph.from_pyg(weighted).weight.tolist() == [2.0] * 6

    def test_edge_attributes_are_not_taken_for_weights(self):
        import torch
        import torch_geometric.data as data_module

        data = data_module.Data(edge_index=torch.from_numpy(RING), edge_attr=torch.full((6,), 2.0), num_nodes=3)
        assert Graph.from_pyg(data).weight is None

    def test_data_without_edges_is_refused(self):
        import torch_geometric.data as data_module

        with pytest.raises(GraphError, match="neither edge_index nor adj_t"):
            Graph.from_pyg(data_module.HeteroData())


class TestRelabelling:
    @given(multigraphs(), st.randoms(use_true_random=False))
    def test_permuting_back_restores_the_graph(self, case, random):
        graph = Graph.from_edge_index(case[1], case[0], case[2])
        order = list(range(graph.num_nodes))
        random.shuffle(order)
        permuted = graph.permute(order)
        dense = graph.to_scipy().toarray()
        assert np.array_equal(permuted.to_scipy().toarray(), dense[np.ix_(order, order)])
        same(permuted.permute(np.argsort(order)), graph)

    @given(multigraphs())
    def test_the_transpose_reverses_every_edge(self, case):
        graph = Graph.from_edge_index(case[1], case[0], case[2])
        assert np.array_equal(graph.transpose().to_scipy().toarray(), graph.to_scipy().toarray().T)
        assert graph.is_symmetric == np.array_equal(graph.to_scipy().toarray(), graph.to_scipy().toarray().T)

    @given(multigraphs())
    def test_undirected_adds_reverses_and_counts_only_what_was_given(self, case):
        graph = Graph.from_edge_index(case[1], *case[::2])
        both = graph.undirected()
        matrix = graph.to_scipy().toarray()
        assert np.array_equal(both.to_scipy().toarray(), np.maximum(matrix, matrix.T))
        assert both.is_symmetric and both.undirected() is both
        assert (both.dropped_self_loops, both.merged_duplicates) == (graph.dropped_self_loops, graph.merged_duplicates)

    @pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [0, 1, 3]])
    def test_an_order_that_is_no_permutation_is_refused(self, order):
        with pytest.raises(InputError, match="each of the 3 nodes exactly once"):
            Graph.from_edge_index(RING).permute(order)


BAD_EDGES = {
    "no nodes": (dict(edge_index=np.empty((2, 0), int), num_nodes=0), GraphError, "at least one node; got num_nodes=0"),
    "nothing at all": (dict(edge_index=[[], []]), GraphError, "needs num_nodes"),
    "out of range": (
        dict(edge_index=[[0, 1], [1, 7]], num_nodes=3),
        GraphError,
        r"edge_index\[1, 1\] is 7, but .*0 … 2",
    ),
    "too few nodes": (dict(edge_index=RING, num_nodes=2), GraphError, "num_nodes must be at least 3"),
    "negative": (dict(edge_index=[[0, -4], [1, 0]]), GraphError, r"edge_index\[0, 1\] is -4, a negative"),
    "fractional": (dict(edge_index=[[0, 1], [1, 0.5]]), InputError, r"edge_index\[1, 1\] is 0.5; node numbers are int"),
    "nan": (dict(edge_index=[[0, np.nan], [1, 0]]), InputError, r"edge_index\[0, 1\] is nan"),
    "words": (dict(edge_index=[["a"], ["b"]]), InputError, "node numbers are integers"),
    "transposed": (dict(edge_index=RING.T), ShapeError, r"shape \[6, 2\].*pass edge_index.T"),
    "adjacency": (dict(edge_index=np.eye(4, dtype=int)), ShapeError, "use Graph.from_scipy"),
    "flat": (dict(edge_index=[0, 1, 2]), ShapeError, r"must be \[2, m\]"),
    "fractional nodes": (dict(edge_index=RING, num_nodes=3.5), InputError, "must be an integer; got 3.5"),
    "negative weight": (
        dict(edge_index=RING, edge_weight=[1, 1, -0.5, 1, -2, 1]),
        InputError,
        r"2 negative values, the first at edge 2 \(-0.5\)",
    ),
    "nan weight": (dict(edge_index=RING, edge_weight=[1, np.nan, 1, 1, 1, 1]), InputError, "1 NaN value, .* edge 1"),
    "inf weight": (
        dict(edge_index=RING, edge_weight=[1, 1, 1, 1, 1, np.inf]),
        InputError,
        "1 infinite value, .* edge 5",
    ),
    "huge weight": (dict(edge_index=RING, edge_weight=[1e300] * 6), InputError, "6 infinite values"),
    "complex weight": (dict(edge_index=RING, edge_weight=[1j] * 6), InputError, "weights are real"),
    "short weight": (dict(edge_index=RING, edge_weight=[1, 2]), ShapeError, r"shape \[2\]; it must be \[6\]"),
    "huge sum": (dict(edge_index=[[0, 0], [1, 1]], edge_weight=[3e38, 3e38]), GraphError, "more than float32"),
}

BAD_ROWS = {
    "no nodes": (([0], []), GraphError, "at least one node"),
    "offset at start": (([1, 1], []), ShapeError, "runs from 1 to 1"),
    "wrong length": (([0, 2], [0]), ShapeError, "run from 0 to the length of `indices`, 1"),
    "falling": (([0, 2, 1, 2], [1, 0]), GraphError, r"indptr\[2\] is less than indptr\[1\]"),
    "out of range": (([0, 1, 2], [1, 5]), GraphError, r"indices\[1\] is 5"),
    "negative": (([0, 1, 2], [1, -1]), GraphError, r"indices\[1\] is -1, a negative"),
    "matrix": (([[0, 1]], [0]), ShapeError, "are vectors"),
    "negative weight": (([0, 1, 1], [1], [-1.0]), InputError, "1 negative value, the first at entry 0"),
}


class TestBadInput:
    @pytest.mark.parametrize("arguments, error, message", BAD_EDGES.values(), ids=BAD_EDGES)
    def test_edges_that_cannot_be_are_explained(self, arguments, error, message):
        with pytest.raises(error, match=message):
            Graph.from_edge_index(**arguments)

    @pytest.mark.parametrize("arrays, error, message", BAD_ROWS.values(), ids=BAD_ROWS)
    def test_rows_that_cannot_be_are_explained(self, arrays, error, message):
        with pytest.raises(error, match=message):
            Graph.from_csr(*arrays)

    def test_a_matrix_must_be_sparse_and_square(self):
        with pytest.raises(InputError, match=r"scipy.sparse.csr_array\(adj\)"):
            Graph.from_scipy(np.eye(3))
        with pytest.raises(ShapeError, match=r"square.*\[2, 3\]"):
            Graph.from_scipy(sp.csr_array((2, 3)))


class TestFolder:
    @given(multigraphs())
    def test_what_is_saved_is_what_is_opened(self, tmp_path_factory, case):
        graph = Graph.from_edge_index(case[1], case[0], case[2])
        folder = tmp_path_factory.mktemp("graph") / "g"
        graph.save(folder)
        opened = Graph.open(folder, verify=True)
        same(opened, graph)
        assert (opened.dropped_self_loops, opened.merged_duplicates) == (
            graph.dropped_self_loops,
            graph.merged_duplicates,
        )

    @pytest.fixture
    def folder(self, tmp_path):
        Graph.from_edge_index(RING, edge_weight=np.arange(1, 7)).save(tmp_path / "g")
        return tmp_path / "g"

    def test_an_opened_graph_is_a_memory_map(self, folder):
        assert isinstance(Graph.open(folder).indices, np.memmap)

    def test_known_symmetry_is_remembered(self, tmp_path):
        graph = Graph.from_edge_index(RING)
        assert graph.is_symmetric
        graph.save(tmp_path / "g")
        assert json.loads((tmp_path / "g/meta.json").read_text())["symmetric"] is True

    def test_a_graph_is_replaced_only_on_request(self, folder):
        graph = Graph.from_edge_index(RING[:, :2])
        with pytest.raises(InputError, match=r"already exists. Pass overwrite=True"):
            graph.save(folder)
        assert Graph.open(folder).num_edges == 6
        graph.save(folder, overwrite=True)
        same(Graph.open(folder), graph)
        assert [path.name for path in folder.parent.iterdir()] == ["g"]

    def test_a_graph_can_be_saved_over_the_folder_it_is_mapped_from(self, folder):
        graph = Graph.open(folder)
        graph.save(folder, overwrite=True)
        same(Graph.open(folder), graph)

    def test_nothing_but_a_graph_is_ever_replaced(self, tmp_path):
        (tmp_path / "thesis").mkdir()
        (tmp_path / "thesis/chapter.tex").write_text("years of work")
        with pytest.raises(InputError, match="not a unifews graph, so it is not overwritten"):
            Graph.from_edge_index(RING).save(tmp_path / "thesis", overwrite=True)
        assert (tmp_path / "thesis/chapter.tex").exists()

    def test_a_failed_save_leaves_the_old_graph_and_no_rubbish(self, folder, monkeypatch):
        from unifews.core import graph_folder

        def full_disk(path, array):
            raise OSError("no space left on device")

        monkeypatch.setattr(graph_folder, "write_array", full_disk)
        with pytest.raises(OSError, match="no space"):
            Graph.from_edge_index(RING[:, :2]).save(folder, overwrite=True)
        assert Graph.open(folder).num_edges == 6
        assert [path.name for path in folder.parent.iterdir()] == ["g"]

    def test_a_missing_folder_is_named(self, tmp_path):
        with pytest.raises(MissingFileError, match=r"no graph folder .*nowhere"):
            Graph.open(tmp_path / "nowhere")
        with pytest.raises(MissingFileError, match="there is no folder"):
            Graph.from_edge_index(RING).save(tmp_path / "nowhere/g")

    def test_a_foreign_folder_is_refused(self, tmp_path):
        with pytest.raises(FileFormatError, match="not a unifews graph"):
            Graph.open(tmp_path)

    def test_a_truncated_file_says_how_much_is_missing(self, folder):
        path = folder / "indices.npy"
        path.write_bytes(path.read_bytes()[:-5])
        with pytest.raises(FileFormatError, match=r"indices.npy is truncated: 5 bytes are missing"):
            Graph.open(folder)

    def test_a_damaged_header_is_refused(self, folder):
        (folder / "indptr.npy").write_bytes(b"\x93NUMPY\x01\x00v")
        with pytest.raises(FileFormatError, match=r"indptr.npy is not a .npy file, or its header is damaged"):
            Graph.open(folder)

    def test_a_missing_file_is_named(self, folder):
        (folder / "weight.npy").unlink()
        with pytest.raises(FileFormatError, match=r"no weight.npy"):
            Graph.open(folder)

    @pytest.mark.parametrize(
        "change, message",
        [
            ({"version": 2}, "format version 2, and this release reads version 1"),
            ({"num_edges": 7}, r"indices.npy holds int32 \[6\], but meta.json requires int32 \[7\]"),
            ({"num_nodes": -1}, "meta.json is damaged"),
            ({"num_nodes": 2**63 - 1}, "num_nodes from 1 to 549,755,813,888"),
            ({"dropped_self_loops": -1}, "meta.json is damaged"),
            ({"arrays": []}, "meta.json is damaged"),
            ({"num_nodes": "3"}, "meta.json is damaged"),
            ({"weighted": None}, "meta.json is damaged"),
        ],
    )
    def test_a_meta_file_that_does_not_fit_is_refused(self, folder, change, message):
        meta = json.loads((folder / "meta.json").read_text())
        (folder / "meta.json").write_text(json.dumps({**meta, **change}))
        with pytest.raises(FileFormatError, match=message):
            Graph.open(folder)

    @pytest.mark.parametrize(
        "indptr, message",
        [([1, 2, 4, 6], "starts at 1"), ([0, 2, 4, 5], "ends at 5 instead of the 6"), ([0, 4, 2, 6], "decreases")],
    )
    def test_damaged_offsets_are_refused(self, folder, indptr, message):
        np.save(folder / "indptr.npy", np.array(indptr, dtype=np.int64))
        with pytest.raises(FileFormatError, match=message):
            Graph.open(folder)

    @pytest.mark.parametrize(
        "indices, message",
        [
            ([1, 2, 0, 9, 0, 1], "names node 9, and the graph has nodes 0 … 2"),
            ([1, 2, 0, -1, 0, 1], "names node -1"),
            ([1, 2, 0, 2**31 - 1, 0, 1], "names node 2,147,483,647"),
            ([2, 1, 0, 2, 0, 1], "not sorted"),
            ([1, 1, 0, 2, 0, 1], "not sorted and free of copies"),
            ([0, 2, 0, 2, 0, 1], "self-loops"),
        ],
    )
    @pytest.mark.parametrize("verify", [None, False, True])
    def test_damaged_indices_are_refused_at_every_open(self, folder, indices, message, verify):
        np.save(folder / "indices.npy", np.array(indices, dtype=np.int32))
        with pytest.raises(FileFormatError, match=message):
            Graph.open(folder, verify=verify)

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, -1.0])
    def test_weights_that_are_not_positive_and_finite_are_refused(self, folder, value):
        weight = np.load(folder / "weight.npy")
        weight[3] = value
        np.save(folder / "weight.npy", weight)
        with pytest.raises(FileFormatError, match=r"weight.npy holds .* at place 3, and weights are positive and finite"):
            Graph.open(folder, verify=False)

    def test_checksums_find_another_weight(self, folder):
        weight = np.load(folder / "weight.npy")
        weight[3] += 1
        np.save(folder / "weight.npy", weight)
        for verify in (None, True):  # by default of small folders
            with pytest.raises(FileFormatError, match=r"weight.npy has changed since it was written"):
                Graph.open(folder, verify=verify)
        assert Graph.open(folder, verify=False).weight[3] == weight[3]

    def test_a_change_of_meta_is_found_by_its_checksum(self, folder):
        meta = json.loads((folder / "meta.json").read_text())
        (folder / "meta.json").write_text(json.dumps({**meta, "merged_duplicates": 5}))
        for verify in (None, True):
            with pytest.raises(FileFormatError, match=r"meta.json has changed since it was written"):
                Graph.open(folder, verify=verify)
        assert Graph.open(folder, verify=False).merged_duplicates == 5

    def test_a_folder_of_an_earlier_release_has_no_checksums(self, folder):
        meta = json.loads((folder / "meta.json").read_text())
        for entry in meta["arrays"].values():
            del entry["bytes"], entry["sha256"]
        del meta["sha256"]
        (folder / "meta.json").write_text(json.dumps(meta))
        assert Graph.open(folder, verify=True).num_edges == 6

    @pytest.mark.parametrize("said", [True, False, None, [], "yes", 1e300])
    def test_symmetry_is_found_and_never_believed(self, tmp_path, said):
        for name, edges, found in (("one", [[0, 1], [1, 2]], False), ("both", [[0, 1, 1, 2], [1, 0, 2, 1]], True)):
            Graph.from_edge_index(np.array(edges)).save(tmp_path / name)
            meta = json.loads((tmp_path / name / "meta.json").read_text())
            (tmp_path / name / "meta.json").write_text(json.dumps({**meta, "symmetric": said}))
            graph = Graph.open(tmp_path / name, verify=False)
            assert graph.is_symmetric is found
            assert graph.undirected().num_edges == 4
