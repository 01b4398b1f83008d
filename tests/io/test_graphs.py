"""Readers and writers: every format gives the same graph, every damaged file one clear sentence."""

from __future__ import annotations

import gzip
import pickle

import numpy as np
import pytest
import scipy.sparse as sp

from unifews.core.graph import Graph
from unifews.errors import FileFormatError, GraphError, InputError, MissingFileError, ShapeError
from unifews.io.graphs import read_graph, read_matrix, write_array

EDGES = np.array([[0, 1, 2, 3], [1, 0, 1, 0]])
WEIGHT = np.array([1.0, 2.0, 0.5, 4.0])
PLAIN = Graph.from_edge_index(EDGES)
WEIGHTED = Graph.from_edge_index(EDGES, edge_weight=WEIGHT)
LINES = [f"{v} {u}" for v, u in EDGES.T]
WEIGHTED_LINES = [f"{v} {u} {w}" for (v, u), w in zip(EDGES.T, WEIGHT, strict=True)]


def same(a, b):
    assert np.array_equal(a.to_scipy().toarray(), b.to_scipy().toarray())


class TestGraphs:
    @pytest.mark.parametrize("name", ["e.txt", "e.csv", "e.tsv", "e.csv.gz"])
    @pytest.mark.parametrize("header", [[], ["source target weight"], ["# a comment", "", "# another"]])
    @pytest.mark.parametrize("lines, graph", [(LINES, PLAIN), (WEIGHTED_LINES, WEIGHTED)])
    def test_an_edge_list_is_one_edge_per_line(self, tmp_path, name, header, lines, graph):
        columns = len(lines[0].split())
        header = [" ".join(line.split()[:columns]) if not line.startswith("#") else line for line in header]
        text = "\n".join([*header, *lines]) + "\n"
        if "csv" in name:
            text = "\n".join(line if line.startswith("#") else line.replace(" ", ",") for line in text.split("\n"))
        if "tsv" in name:
            text = "\n".join(line if line.startswith("#") else line.replace(" ", "\t") for line in text.split("\n"))
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
        same(read_graph(path), graph)

    def test_columns_are_found_by_name(self, tmp_path):
        path = tmp_path / "e.csv"
        path.write_text(
            "time,weight,dst,src\n" + "".join(f"9,{w},{u},{v}\n" for (v, u), w in zip(EDGES.T, WEIGHT, strict=True))
        )
        same(read_graph(path), WEIGHTED)

    def test_a_column_without_the_name_of_a_weight_is_no_weight(self, tmp_path):
        path = tmp_path / "e.csv"
        path.write_text("u,v,time\n" + "".join(f"{v},{u},77\n" for v, u in EDGES.T))
        same(read_graph(path), PLAIN)

    def test_isolated_nodes_need_their_number(self, tmp_path):
        path = tmp_path / "e.txt"
        path.write_text("\n".join(LINES))
        assert read_graph(path, num_nodes=10).num_nodes == 10

    def test_numbers_out_of_proportion_are_questioned(self, tmp_path):
        path = tmp_path / "e.csv"
        path.write_text("source,target\n0,3000000000\n")
        with pytest.raises(GraphError, match=r"e.csv has 1 edge, but node numbers up to 3,000,000,000.*num_nodes=3000000001"):
            read_graph(path)
        path.write_text("0,1100000\n")
        assert read_graph(path, num_nodes=1_100_001).num_nodes == 1_100_001

    def test_archives_in_every_dialect(self, tmp_path):
        path = tmp_path / "g.npz"
        for arrays in (
            dict(indptr=WEIGHTED.indptr, indices=WEIGHTED.indices, weight=WEIGHTED.weight),
            dict(indptr=WEIGHTED.indptr, indices=WEIGHTED.indices, data=WEIGHTED.weight),
            dict(edge_index=EDGES, edge_weight=WEIGHT),
            dict(row=EDGES[0], col=EDGES[1], weight=WEIGHT),
        ):
            np.savez(path, **arrays)
            same(read_graph(path), WEIGHTED)
        for matrix in (WEIGHTED.to_scipy(), WEIGHTED.to_scipy().tocoo(), sp.csr_matrix(WEIGHTED.to_scipy())):
            sp.save_npz(path, matrix)
            same(read_graph(path), WEIGHTED)

    def test_folders_and_arrays(self, tmp_path):
        WEIGHTED.save(tmp_path / "folder")
        same(read_graph(tmp_path / "folder"), WEIGHTED)
        np.save(tmp_path / "e.npy", EDGES)
        same(read_graph(tmp_path / "e.npy"), PLAIN)

    @pytest.mark.parametrize("names", [("source", "target", "weight"), ("src", "dst", "w"), ("a", "b", "weight")])
    def test_parquet_tables(self, tmp_path, names):
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.table(dict(zip(names, [*EDGES, WEIGHT], strict=True))), tmp_path / "e.parquet")
        same(read_graph(tmp_path / "e.parquet"), WEIGHTED)

    def test_parquet_with_text_is_refused(self, tmp_path):
        import pyarrow as pa
        from pyarrow import parquet

        path = tmp_path / "e.parquet"
        parquet.write_table(pa.table({"src": ["ann", "bob"], "dst": ["bob", "ann"]}), path, compression="none")
        with pytest.raises(
            InputError,
            match=r"e.parquet are object values; nodes are numbered from 0. For identifiers, run unifews data convert --ids",
        ):
            read_graph(path)
        path.write_bytes(path.read_bytes().replace(b"ann", b"a\xff\xff"))  # no UTF-8 any more
        with pytest.raises(FileFormatError, match=r"e.parquet cannot be read as a parquet table"):
            read_graph(path)

    def test_parquet_with_gaps_is_refused(self, tmp_path):
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.table({"src": [0, None], "dst": [1, 0]}), tmp_path / "e.parquet")
        with pytest.raises(FileFormatError, match="1 empty cells in column 'src'"):
            read_graph(tmp_path / "e.parquet")


class TestMatrices:
    X = np.arange(12, dtype=np.float32).reshape(4, 3)

    def test_an_array_file_is_mapped_not_read(self, tmp_path):
        np.save(tmp_path / "x.npy", self.X)
        matrix = read_matrix(tmp_path / "x.npy")
        assert isinstance(matrix, np.memmap) and np.array_equal(matrix, self.X)

    def test_an_empty_matrix_can_be_opened(self, tmp_path):
        np.save(tmp_path / "x.npy", np.empty((4, 0), np.float32))
        assert read_matrix(tmp_path / "x.npy").shape == (4, 0)

    def test_archives_in_every_dialect(self, tmp_path):
        path = tmp_path / "x.npz"
        rows = sp.csr_array(self.X)
        parts = dict(x_indptr=rows.indptr, x_indices=rows.indices, x_data=rows.data, x_shape=rows.shape)
        for write in (
            lambda: np.savez(path, x=self.X.astype(np.float16)),
            lambda: np.savez(path, **parts),
            lambda: sp.save_npz(path, rows),
        ):
            write()
            matrix = read_matrix(path)
            assert matrix.dtype == np.float32 and np.array_equal(matrix, self.X)
        assert sp.issparse(read_matrix(path, dense=False))

    def test_a_vector_is_no_matrix(self, tmp_path):
        np.save(tmp_path / "x.npy", self.X[0])
        with pytest.raises(ShapeError, match=r"shape \[3\]; features are a matrix"):
            read_matrix(tmp_path / "x.npy")

    def test_words_are_no_features(self, tmp_path):
        np.save(tmp_path / "x.npy", np.array([["a"]]))
        with pytest.raises(FileFormatError, match="features are real numbers"):
            read_matrix(tmp_path / "x.npy")

    def test_broken_rows_are_refused(self, tmp_path):
        np.savez(tmp_path / "x.npz", x_indptr=[0, 1], x_indices=[9], x_data=[1.0], x_shape=[1, 3])
        with pytest.raises(FileFormatError, match=r"x.npz cannot be read as compressed rows"):
            read_matrix(tmp_path / "x.npz")


def damaged(tmp_path, name):
    """A file of the given name that cannot be what its name says."""
    path = tmp_path / name
    if name == "pickled.npy":
        np.save(path, np.array([{"code": 1}], dtype=object), allow_pickle=True)
    elif name == "pickled.npz":
        np.savez(
            path,
            indptr=np.array([{}], dtype=object),
            indices=np.array([{}], dtype=object),
            x=np.array([{}], dtype=object),
        )
    elif name in ("pickle.npy", "pickle.npz"):
        path.write_bytes(pickle.dumps({"edge_index": [[0], [1]]}))
    elif name == "cut.npy":
        np.save(path, np.zeros((2, 100)))
        path.write_bytes(path.read_bytes()[:-8])
    elif name == "cut.npz":
        np.savez(path, indptr=np.arange(99), indices=np.arange(99), x=np.eye(9))
        path.write_bytes(path.read_bytes()[:-300])
    elif name == "other.npz":
        np.savez(path, weights=np.eye(3))
    elif name == "cut.csv.gz":
        path.write_bytes(gzip.compress("\n".join(LINES * 999).encode())[:-20])
    else:
        path.write_text({"words.csv": "0,1\none,two\n", "wide.csv": "1,2,3,4,5\n", "bare.csv": "# nothing\n"}.get(name, "1"))
    return path


BAD_GRAPHS = {
    "pickled.npy": "pickled Python objects",
    "pickle.npy": "not a .npy file",
    "cut.npy": "truncated: 8 bytes are missing",
    "pickled.npz": "pickled Python objects",
    "pickle.npz": "not a .npz archive",
    "cut.npz": "not a .npz archive, or it is truncated",
    "other.npz": "holds no graph: it has weights",
    "cut.csv.gz": "truncated",
    "words.csv": "cannot be read as an edge list.*'one'",
    "wide.csv": "5 columns in its first line",
    "bare.csv": "holds no edges",
    "foreign.parquet": "parquet",
    "graph.xlsx": "no known extension of a graph file",
    "narrow.txt": "1 columns",
}


class TestDamage:
    @pytest.mark.parametrize("name, message", BAD_GRAPHS.items(), ids=BAD_GRAPHS)
    def test_a_bad_graph_file_is_named_and_explained(self, tmp_path, name, message):
        with pytest.raises(FileFormatError, match=message) as caught:
            read_graph(damaged(tmp_path, name))
        assert name in str(caught.value) and "\n" not in str(caught.value)

    @pytest.mark.parametrize("name", ["pickled.npy", "pickle.npy", "cut.npy", "pickled.npz", "cut.npz", "other.npz", "m.mat"])
    def test_a_bad_matrix_file_is_named(self, tmp_path, name):
        with pytest.raises(FileFormatError, match=name):
            read_matrix(damaged(tmp_path, name))

    def test_a_missing_file_is_named(self, tmp_path):
        for read in (read_graph, read_matrix):
            with pytest.raises(MissingFileError, match=r"no file .*nowhere.npz"):
                read(tmp_path / "nowhere.npz")

    def test_bad_edges_in_a_good_file_are_the_graphs_own_error(self, tmp_path):
        (tmp_path / "e.txt").write_text("0 1\n-3 1\n")
        with pytest.raises(GraphError, match="-3, a negative"):
            read_graph(tmp_path / "e.txt")


class TestWriting:
    def test_an_array_is_written_whole_and_alone(self, tmp_path):
        write_array(tmp_path / "a.npy", np.arange(5))
        assert np.array_equal(np.load(tmp_path / "a.npy"), np.arange(5))
        assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]

    def test_a_file_is_replaced_only_on_request(self, tmp_path):
        path = tmp_path / "a.npy"
        write_array(path, np.arange(5))
        with pytest.raises(InputError, match="already exists"):
            write_array(path, np.arange(6))
        write_array(path, np.arange(6), overwrite=True)
        assert len(np.load(path)) == 6

    def test_a_failed_write_leaves_the_old_file(self, tmp_path):
        path = tmp_path / "a.npy"
        write_array(path, np.arange(5))
        with pytest.raises(ValueError, match="Object arrays"):
            write_array(path, np.array([{}]), overwrite=True)
        assert len(np.load(path)) == 5
        assert [file.name for file in tmp_path.iterdir()] == ["a.npy"]
