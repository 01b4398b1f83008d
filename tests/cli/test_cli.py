"""The command line: what it writes, what it prints where, and what it says when something is wrong."""

from __future__ import annotations

import json
import os
import pickle
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import scipy.sparse as sp
import typer
from commands import call, fine, spawn, wrong
from typer.testing import CliRunner

import unifews as uf
from unifews import cli
from unifews.cli import errors
from unifews.datasets.registry import RECORDS, Record

ROOT = Path(__file__).parents[2]
DATA = uf.powerlaw(300, 2400, num_features=24, num_classes=3, seed=31)
GRAPH, X = DATA.graph, DATA.x
EDGES = GRAPH.to_edge_index()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The same graph in every format, and its features; the working directory."""
    monkeypatch.chdir(tmp_path)
    GRAPH.save("graph")
    np.save("x.npy", X)
    np.savez("both.npz", indptr=GRAPH.indptr, indices=GRAPH.indices, x=X)
    np.savez("edges.npz", edge_index=EDGES)
    sp.save_npz("scipy.npz", GRAPH.to_scipy().tocsr())
    np.save("edges.npy", EDGES)
    Path("edges.csv").write_text("source,target\n" + "".join(f"{v},{u}\n" for v, u in EDGES.T))
    Path("edges.tsv").write_text("".join(f"{v}\t{u}\n" for v, u in EDGES.T))
    return tmp_path


class TestPropagate:
    @pytest.mark.parametrize("graph", ["graph", "edges.npz", "scipy.npz", "edges.npy", "edges.csv", "edges.tsv"])
    def test_every_format_gives_the_library_s_result(self, folder, graph):
        fine("propagate", graph, "--features", "x.npy", "--out", "p.npy", "--edge-sparsity", 0.8, "--hops", 5)
        expected = uf.propagate(GRAPH, X, hops=5, edge_sparsity=0.8).embedding
        assert np.array_equal(np.load("p.npy"), expected)

    def test_parquet_too(self, folder):
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.table({"source": EDGES[0], "target": EDGES[1]}), "edges.parquet")
        fine("propagate", "edges.parquet", "-x", "x.npy", "-o", "p.npy", "--hops", 3)
        assert np.array_equal(np.load("p.npy"), uf.propagate(GRAPH, X, hops=3).embedding)

    def test_a_dataset_folder_holds_features_too(self, folder):
        fine("data", "generate", "powerlaw", "--nodes", 300, "--edges", 3000, "--features", 20, "--out", "made")
        fine("propagate", "made", "--out", "p.npy", "--hops", 3)
        expected = uf.propagate(uf.Graph.open("made/graph"), np.load("made/x.npy"), "appnp", 3).embedding
        assert np.array_equal(np.load("p.npy"), expected)
        np.save("other.npy", np.load("made/x.npy")[:, :5])
        fine("propagate", "made", "-x", "other.npy", "--out", "p.npy", "--hops", 3, "--overwrite")
        assert np.load("p.npy").shape == (300, 5)

    def test_a_known_dataset_by_its_name(self, folder, monkeypatch):
        monkeypatch.setitem(RECORDS, "known", Record("known", "", 300, GRAPH.num_edges, 24, 3, "stratified", "", sparse=False))
        monkeypatch.setenv("UNIFEWS_DATA", str(folder))
        np.savez("known.npz", indptr=GRAPH.indptr, indices=GRAPH.indices, x=X, y=DATA.y)
        fine("propagate", "known", "--out", "p.npy", "--hops", 3)
        assert np.array_equal(np.load("p.npy"), uf.propagate(GRAPH, X, hops=3).embedding)
        np.save("few.npy", X[:, :5])
        fine("propagate", "known", "-x", "few.npy", "--out", "few.p.npy", "--hops", 3)
        assert np.load("few.p.npy").shape == (300, 5)
        np.save("few.npy", X[:5])
        wrong("propagate", "known", "-x", "few.npy", "-o", "q.npy", says="few.npy has 5 rows, but known has 300 nodes")
        GRAPH.save("known")  # what lies here comes first
        wrong("propagate", "known", "-o", "q.npy", says="known holds no features")

    def test_features_may_come_with_the_graph(self, folder):
        fine("propagate", "both.npz", "--out", "p.npy", "--hops", 3)
        assert np.array_equal(np.load("p.npy"), uf.propagate(GRAPH, X, hops=3).embedding)

    def test_the_table_is_that_of_the_trace(self, folder):
        printed = fine("propagate", "graph", "-x", "x.npy", "-o", "p.npy", "--hops", 3, "--edge-sparsity", 0.5).out.splitlines()
        out = uf.propagate(GRAPH, X, hops=3, edge_sparsity=0.5)
        assert out.embedding.shape == X.shape  # rotated back, which counts too
        trace = out.trace
        cells = [[line.split()[:-1] for line in lines[:5]] for lines in (printed, str(trace).splitlines())]  # without seconds
        assert cells[0] == cells[1] and printed[5].startswith("APPNP, 3 hops, ")
        assert printed[6].startswith(f"basis: {trace.rank} principal components, {trace.basis_macs:,} MACs in ")

    def test_sparse_features_stay_sparse(self, folder):
        x = sp.random_array((300, 40), density=0.1, rng=np.random.default_rng(5), dtype=np.float32).tocsr()
        sp.save_npz("sparse.npz", x)
        fine("propagate", "graph", "-x", "sparse.npz", "-o", "p.npy", "--hops", 3, "--edge-threshold", 0.01)
        assert np.array_equal(np.load("p.npy"), uf.propagate(GRAPH, x, hops=3, threshold=0.01).embedding)

    @pytest.mark.parametrize(
        "options, keywords",
        [
            ("--alpha 0.3", dict(scheme=uf.Appnp(alpha=0.3))),
            ("--no-tail", dict(scheme=uf.Appnp(tail=False))),
            ("--skip identity", dict(scheme=uf.Appnp(skip="identity"))),
            ("--scheme sgc", dict(scheme="sgc")),
            ("--scheme sgc --skip diagonal", dict(scheme=uf.Sgc(skip="diagonal"))),
            ("--r 0.2", dict(r=0.2)),
            ("--edge-sparsity 0", {}),
            ("--edge-threshold 0.05", dict(threshold=0.05)),
            ("--relative-threshold 0.7", dict(relative_threshold=0.7)),
            ("--edge-sparsity 0.7 --entries feature", dict(edge_sparsity=0.7, entries="feature")),
            (
                "--edge-sparsity 0.5 --entries node --basis input --inherit",
                dict(edge_sparsity=0.5, entries="node", basis="input", inherit=True),
            ),
            ("--edge-sparsity 0.5 --rank 8", dict(edge_sparsity=0.5, rank=8)),
            ("--threads 1 --edge-sparsity 0.5", dict(edge_sparsity=0.5)),
        ],
    )
    def test_options_mean_what_the_keywords_mean(self, folder, options, keywords):
        fine("propagate", "graph", "-x", "x.npy", "-o", "p.npy", "--hops", 4, *options.split())
        assert np.array_equal(np.load("p.npy"), uf.propagate(GRAPH, X, hops=4, **keywords).embedding)

    @pytest.mark.parametrize(
        "options, keywords",
        [
            ("", {}),
            ("--hops 30 --error-norm frobenius", dict(hops=30, error_norm="frobenius")),
            ("--degree 3 --precision float32", dict(degree=3, precision="float32")),
            ("--scheme sgc --hops 8", dict(scheme="sgc", hops=8)),
            ("--scheme ppr --alpha 0.3", dict(scheme=uf.PersonalizedPageRank(0.3))),
            ("--scheme heat", dict(scheme=uf.HeatKernel())),
            ("--scheme heat --time 2", dict(scheme=uf.HeatKernel(2.0))),
        ],
    )
    @pytest.mark.usefixtures("estimates_on_any_size")
    def test_options_of_an_allowed_error(self, folder, options, keywords):
        command = ("propagate", "graph", "-x", "x.npy", "-o", "p.npy", "--max-error", 0.05, *options.split())
        report = json.loads(fine(*command, "--json").out)
        out = uf.propagate(GRAPH, X, max_error=0.05, **keywords)
        assert out.plan.method != "unpruned" and np.array_equal(np.load("p.npy"), out.embedding)
        assert report["estimated_error"] == out.error and report["largest_column_error"] == out.column_errors.max()
        assert report["plan"]["hops"] == [*out.plan.hops] and report["plan"]["formats"] == [*out.plan.formats]
        assert report["plan"]["bytes_moved"] == out.plan.bytes_moved

    @pytest.mark.usefixtures("estimates_on_any_size")
    def test_the_table_of_an_allowed_error_has_the_hops_that_ran(self, folder):
        printed = fine("propagate", "graph", "-x", "x.npy", "-o", "p.npy", "--max-error", 0.1).out
        out = uf.propagate(GRAPH, X, max_error=0.1)
        hops = max(out.plan.hops)
        rows = [line.split()[0] for line in printed.splitlines() if line.split() and line.split()[0].isdigit()]
        assert rows == [str(hop) for hop in range(hops)]
        assert f"APPNP, {hops} of 20 hops, max error 0.1; 300 nodes" in printed
        assert f"note: estimated error {out.error:.3g}, 0.1 allowed: {out.plan}" in printed
        printed = fine("propagate", "graph", "-x", "x.npy", "-o", "q.npy", "--max-error", 0.1, "--hops", 2).out
        assert "APPNP, 2 hops, max error 0.1" in printed and "note: propagated unpruned: so few hops" in printed

    def test_coordinates_and_axes_make_the_embedding(self, folder):
        fine("propagate", "graph", "-x", "x.npy", "-o", "p.npy", "--hops", 4, "--edge-sparsity", 0.5, "--coordinates")
        expected = uf.propagate(GRAPH, X, hops=4, edge_sparsity=0.5).embedding
        np.testing.assert_allclose(np.load("p.npy") @ np.load("p.basis.npy").T, expected, atol=1e-5)

    def test_the_table_has_every_hop_and_the_file(self, folder):
        result = fine("propagate", "graph", "-x", "x.npy", "-o", "p.npy", "--hops", 4, "--edge-sparsity", 0.5)
        assert result.err == ""
        lines = result.out.splitlines()
        assert [line.split()[0] for line in lines if line.split() and line.split()[0] in "0 1 2 3 all"] == [*"0123", "all"]
        assert "wrote p.npy: float32 [300, 24]" in result.out
        assert "300 nodes" in result.out and "kernel:" in result.out

    def test_json_is_the_trace_and_nothing_else(self, folder):
        result = fine("propagate", "graph", "-x", "x.npy", "-o", "p.npy", "--hops", 4, "--edge-sparsity", 0.5, "--json")
        report = json.loads(result.out)
        out = uf.propagate(GRAPH, X, hops=4, edge_sparsity=0.5)
        assert report["macs"] == out.trace.macs and len(report["hops"]) == 4
        assert report["out"] == "p.npy" and report["shape"] == [300, 24] and report["basis"] is None
        assert report["graph"] == {"path": "graph", "num_nodes": 300, "num_edges": GRAPH.num_edges}

    @pytest.mark.parametrize("option", [("--partition", "nodes"), ("--groups", 1)])
    def test_one_worker_is_told_that_it_is_alone(self, folder, option):
        printed = fine("propagate", "both.npz", "-o", "p.npy", "--hops", 2, *option).err
        assert "note: this is a single worker" in printed and "torchrun starts several" in printed

    def test_json_has_no_infinity(self, folder):
        result = fine("propagate", "graph", "-x", "x.npy", "-o", "p.npy", "--hops", 2, "--edge-threshold", "inf", "--json")
        assert "Infinity" not in result.out and json.loads(result.out)["macs"] == 0

    def test_overwrite_replaces(self, folder):
        Path("p.npy").write_text("old")
        fine("propagate", "graph", "-x", "x.npy", "-o", "p.npy", "--hops", 2, "--overwrite")
        assert np.load("p.npy").shape == X.shape
        assert not list(folder.glob(".*.tmp"))


class TestEdgeLists:
    def test_an_edge_list_is_undirected_as_in_data_convert_and_says_so(self, folder):
        Path("path.txt").write_text("0 1\n1 2\n")
        np.save("few.npy", np.eye(3, dtype=np.float32))
        result = fine("propagate", "path.txt", "-x", "few.npy", "-o", "p.npy", "--hops", 1)
        assert (
            result.err == "note: path.txt is used as an undirected graph: 2 reverse edges were added; --directed adds none.\n"
        )
        fine("data", "convert", "-e", "path.txt", "-o", "converted")
        assert fine("propagate", "converted", "-x", "few.npy", "-o", "q.npy", "--hops", 1).err == ""
        assert Path("p.npy").read_bytes() == Path("q.npy").read_bytes()

    def test_directions_are_kept_where_asked_for(self, folder):
        Path("path.txt").write_text("0 1\n1 2\n")
        np.save("few.npy", np.eye(3, dtype=np.float32))
        assert fine("propagate", "path.txt", "-x", "few.npy", "-o", "p.npy", "--hops", 1, "--directed").err == ""
        assert np.array_equal(
            np.load("p.npy"), uf.propagate(uf.Graph.from_edge_index([[0, 1], [1, 2]]), np.eye(3), hops=1).embedding
        )
        fine("data", "convert", "-e", "path.txt", "-o", "converted", "--directed")
        for options in ([], ["--directed"]):  # a graph says which edges it has
            assert (
                fine("propagate", "converted", "-x", "few.npy", "-o", "q.npy", "--hops", 1, *options, "--overwrite").err == ""
            )
            assert Path("p.npy").read_bytes() == Path("q.npy").read_bytes()

    def test_an_edge_list_is_not_made_undirected_within_a_limit_of_memory(self, folder):
        Path("path.txt").write_text("0 1\n1 2\n")
        np.save("few.npy", np.eye(3, dtype=np.float32))
        words = ["path.txt is an edge list", "unifews data convert", "--directed"]
        wrong("propagate", "path.txt", "-x", "few.npy", "-o", "p.npy", "--memory", "1GB", says=words)

    @pytest.mark.parametrize("name", ["x.csv", "x.csv.gz", "x.tsv", "x.parquet", "x.npz"])
    def test_features_are_read_from_every_format_that_data_convert_reads(self, folder, name):
        x = X[:, :3]
        if name.endswith(".parquet"):
            pyarrow.parquet.write_table(pyarrow.table({f"f{i}": column for i, column in enumerate(x.T)}), name)
        elif name.endswith(".npz"):
            np.savez(name, x=x)
        else:
            np.savetxt(
                name,
                x,
                delimiter="\t" if "tsv" in name else ",",
                fmt="%.9g",
                header="a,b,c".replace(",", "\t" if "tsv" in name else ","),
                comments="",
            )
        np.save("few.npy", x)
        fine("propagate", "graph", "-x", "few.npy", "-o", "p.npy", "--hops", 2)
        fine("propagate", "graph", "-x", name, "-o", "q.npy", "--hops", 2)
        np.testing.assert_allclose(np.load("q.npy"), np.load("p.npy"), rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("lines", ["0 1\n1 2\n", "0 1\n1 0\n1 2\n", "0 1 2.5\n1 0 0.5\n2 1 3\n"])
    def test_undirected_adds_the_reverse_once(self, folder, lines):
        Path("path.txt").write_text(lines)
        np.save("few.npy", np.eye(3, dtype=np.float32))
        assert fine("propagate", "path.txt", "-x", "few.npy", "-o", "p.npy", "--hops", 1, "--undirected").err == ""
        weight = [2.5, 2.5, 3, 3] if "." in lines else None
        graph = uf.Graph.from_edge_index([[0, 1, 1, 2], [1, 0, 2, 1]], edge_weight=weight)
        assert np.array_equal(np.load("p.npy"), uf.propagate(graph, np.eye(3), hops=1).embedding)

    def test_trailing_isolated_nodes_are_kept(self, folder):
        Path("path.txt").write_text("0 1\n1 0\n")
        np.save("few.npy", np.eye(5, dtype=np.float32))
        fine("propagate", "path.txt", "-x", "few.npy", "-o", "p.npy")
        assert np.load("p.npy").shape == (5, 5)
        np.testing.assert_allclose(np.load("p.npy")[4], [0, 0, 0, 0, 1], atol=1e-6)


class TestMistakes:
    @pytest.mark.parametrize(
        "options, says",
        [
            ("--scheme sgd", ["'sgd'", "Did you mean 'sgc'?"]),
            ("--skip identty", "Did you mean 'identity'?"),
            ("--entries blocks", ["--entries", "Did you mean 'block'?"]),
            ("--basis pca", ["--basis", "input, principal"]),
            ("--edge-sparsity 50", ["[0, 1)", "write --edge-sparsity 0.5"]),
            ("--edge-sparsity -0.1", "[0, 1)"),
            ("--edge-sparsity nan", "[0, 1)"),
            ("--edge-threshold -1", "of at least 0"),
            ("--relative-threshold nan", "of at least 0"),
            ("--edge-sparsity 0.5 --edge-threshold 1", ["--edge-sparsity 0.5 and --edge-threshold 1", "give one"]),
            ("--edge-threshold 0.5 --relative-threshold 1", "--edge-threshold 0.5 and --relative-threshold 1"),
            ("--alpha 0", "(0, 1]"),
            ("--alpha 2", "(0, 1]"),
            ("--scheme sgc --alpha 0.2", "--scheme appnp"),
            ("--scheme sgc --no-tail", "--scheme appnp"),
            ("--scheme sgc --tail", "--scheme appnp"),
            ("--restart", "--restart and --checkpoint-every-hop need --memory"),
            ("--checkpoint-every-hop", "--restart and --checkpoint-every-hop need --memory"),
            ("--hops 0", "1 to 60,000"),
            ("--hops two", ["--hops", "integer"]),
            ("--r 1.5", "[0, 1]"),
            ("--r nan", "[0, 1]"),
            ("--rank 0", "at least 1"),
            ("--rank 25", ["--rank", "24 features", "got 25"]),
            ("--rank 4 --basis input", "--rank has no effect with --basis input; leave it out."),
            ("--inherit", ["--inherit has no effect without --edge-sparsity or", "or --max-error; add it, or leave it out."]),
            ("--coordinates", "--coordinates needs a PCA basis"),
            ("--coordinates --edge-sparsity 0.5 --basis input", "--coordinates needs a PCA basis"),
            ("--threads 0", ["--threads", "at least 1"]),
            ("--sparsity 0.5", ["--sparsity", "unifews propagate --help"]),
            ("extra", "extra"),
        ],
    )
    def test_a_wrong_option_is_one_sentence(self, folder, options, says):
        wrong("propagate", "graph", "-x", "x.npy", "-o", "p.npy", *options.split(), says=says)
        assert not Path("p.npy").exists()

    def test_options_are_checked_before_anything_is_read(self, folder):
        wrong("propagate", "nowhere", "-x", "nothing.npy", "-o", "p.npy", "--edge-sparsity", 50, says="[0, 1)")

    @pytest.mark.parametrize(
        "out, says",
        [
            ("nowhere/p.npy", "no folder nowhere"),
            ("p.csv", "must end in .npy"),
            ("x.npy", "one of the inputs"),
            ("there.npy", ["already exists", "--overwrite"]),
            ("folder.npy", "is a folder"),
        ],
    )
    def test_output_that_cannot_be_written(self, folder, out, says):
        Path("there.npy").write_text("mine")
        Path("folder.npy").mkdir()
        before = Path("x.npy").read_bytes()
        wrong("propagate", "graph", "-x", "x.npy", "-o", out, says=says)
        assert Path("there.npy").read_text() == "mine" and Path("x.npy").read_bytes() == before

    def test_overwriting_never_replaces_an_input(self, folder):
        wrong("propagate", "graph", "-x", "x.npy", "-o", "x.npy", "--overwrite", says="one of the inputs")
        assert np.array_equal(np.load("x.npy"), X)

    def test_the_axes_are_not_overwritten_either(self, folder):
        Path("p.basis.npy").write_text("mine")
        options = ["--edge-sparsity", 0.5, "--coordinates"]
        wrong("propagate", "graph", "-x", "x.npy", "-o", "p.npy", *options, says="p.basis.npy already exists")
        assert Path("p.basis.npy").read_text() == "mine" and not Path("p.npy").exists()

    def test_a_protected_folder(self, folder, monkeypatch):
        Path("locked").mkdir()
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "locked")  # root may write anywhere
        wrong("propagate", "graph", "-x", "x.npy", "-o", "locked/p.npy", says="write-protected")

    def test_missing_files(self, folder):
        wrong("propagate", "nowhere.npz", "-x", "x.npy", "-o", "p.npy", says="there is no graph nowhere.npz")
        wrong("propagate", "corra", "-o", "p.npy", says="no graph file, folder or dataset named 'corra'. Did you mean 'cora'?")
        wrong("propagate", "graph", "-x", "nothing.npy", "-o", "p.npy", says="there is no file nothing.npy")
        wrong("propagate", "graph", "-o", "p.npy", says=["graph holds no features", "--features"])
        wrong("propagate", "scipy.npz", "-o", "p.npy", says="scipy.npz holds no features")
        wrong("propagate", "graph", says="--out")
        wrong("propagate", says="GRAPH")

    @pytest.mark.parametrize("graph", ["graph", "scipy.npz", "edges.npz", "edges.csv", "edges.npy"])
    @pytest.mark.parametrize("rows", [200, 290])
    def test_features_of_another_graph(self, folder, graph, rows):
        np.save("few.npy", X[:rows])
        wrong("propagate", graph, "-x", "few.npy", "-o", "p.npy", says=[f"{rows} rows", "few.npy", graph])

    def test_transposed_features(self, folder):
        np.save("xt.npy", X.T)
        wrong("propagate", "graph", "-x", "xt.npy", "-o", "p.npy", says="transposed")

    def test_features_that_are_no_matrix_or_not_finite(self, folder):
        np.save("flat.npy", X[:, 0])
        wrong("propagate", "graph", "-x", "flat.npy", "-o", "p.npy", says="matrix")
        holes = X.copy()
        holes[7, 3] = np.nan
        np.save("holes.npy", holes)
        wrong("propagate", "graph", "-x", "holes.npy", "-o", "p.npy", says=["NaN", "row 7"])

    def test_damaged_and_foreign_files(self, folder):
        Path("short.npy").write_bytes(Path("x.npy").read_bytes()[:-100])
        wrong("propagate", "graph", "-x", "short.npy", "-o", "p.npy", says=["short.npy is truncated", "100 bytes"])
        np.save("objects.npy", np.array([{}, []], dtype=object), allow_pickle=True)
        wrong("propagate", "graph", "-x", "objects.npy", "-o", "p.npy", says="pickled")
        Path("pickle.npy").write_bytes(pickle.dumps(X))
        wrong("propagate", "graph", "-x", "pickle.npy", "-o", "p.npy", says="not a .npy file")
        Path("foreign.npz").write_text("hello")
        wrong("propagate", "foreign.npz", "-x", "x.npy", "-o", "p.npy", says="not a .npz archive")
        wrong("propagate", "foreign.npz", "-o", "p.npy", says="foreign.npz")
        Path("words.csv").write_text("hello,world\nfoo,bar\n")
        wrong("propagate", "words.csv", "-x", "x.npy", "-o", "p.npy", says="words.csv")
        Path("graph.xlsx").write_text("")
        wrong("propagate", "graph.xlsx", "-x", "x.npy", "-o", "p.npy", says="no known extension of a graph file")
        Path("empty").mkdir()
        wrong("propagate", "empty", "-x", "x.npy", "-o", "p.npy", says=["not a unifews graph", "meta.json"])
        assert not Path("p.npy").exists()

    def test_unknown_commands_and_sizes(self):
        wrong("propgate", says=["propgate", "unifews --help"])
        wrong("bench", "propagations", says="propagations")
        wrong("bench", "propagation", "--size", "tinny", says="Did you mean 'tiny'?")
        wrong("bench", "propagation", "--trials", 0, says="at least 1")


class TestSettingsInMessages:
    """Messages of the library name settings as in Python; a command prints them as its flags."""

    PARAMS = (
        SimpleNamespace(name="edge_sparsity", opts=["--edge-sparsity"], param_type_name="option", is_flag=False),
        SimpleNamespace(name="edge_threshold", opts=["--edge-threshold"], param_type_name="option", is_flag=False),
        SimpleNamespace(name="model", opts=["-m", "--model"], param_type_name="option", is_flag=False),
        SimpleNamespace(name="again", opts=["--restart"], secondary_opts=[], param_type_name="option", is_flag=True),
        SimpleNamespace(name="tail", opts=["--tail"], secondary_opts=["--no-tail"], param_type_name="option", is_flag=True),
        SimpleNamespace(name="graph", opts=["graph"], param_type_name="argument"),
    )

    @pytest.mark.parametrize(
        "message, printed",
        [
            ("`edge_sparsity` must be a number.", "--edge-sparsity must be a number."),
            ("edge_sparsity must be a number.", "--edge-sparsity must be a number."),
            ("write edge_sparsity=0.5.", "write --edge-sparsity 0.5."),
            ("use model='sgc' or 'appnp'; not 'gcn'.", "use --model sgc or appnp; not 'gcn'."),
            ("take model='sgc' (--model sgc), or 3.", "take --model sgc, or 3."),
            ("fewer rounds (model='glt:rounds=1').", "fewer rounds (--model glt:rounds=1)."),
            ("write edge_sparsity= instead of model=.", "write --edge-sparsity instead of --model."),
            ("edge_sparsity, or `model`; write threshold=δ.", "--edge-sparsity, or --model; write --edge-threshold δ."),
            ("leave out tail=False, or write tail=True.", "leave out --no-tail, or write --tail."),
            ("start again with again=True.", "start again with --restart."),
        ],
    )
    def test_become_flags(self, message, printed):
        assert errors.in_flags(message, self.PARAMS) == printed

    @pytest.mark.parametrize(
        "message",
        [
            "`graph` and `other` and other=3 and some_name, nodes, a model and the tail.",
            "edge_sparsity.npy, runs/edge_sparsity and 'edge_sparsity' are names of files.",
            "such as 'ndls:model=3', or --model=3.",
        ],
    )
    def test_everything_else_is_unchanged(self, message):
        assert errors.in_flags(message, self.PARAMS) == message

    @pytest.mark.parametrize(
        "options, says",
        [
            ("--certify --memory 1GB", ["certify is not available out of core", "out of core columns"]),
            ("--max-error .1 --certify --memory 1GB", ["certify is not available out of core", "out of core columns"]),
            ("--max-error .1 --coordinates", "--max-error propagates the features themselves; leave out --coordinates"),
            ("--max-error .1 --rank 3", "--max-error propagates all columns; leave out --rank"),
            ("--degree 3", "--degree has no effect without --max-error; add it, or leave it out."),
            ("--scheme ppr", "say which error is allowed, such as --max-error 0.05"),
            ("--scheme ppr --hops 3 --max-error .1", "--hops is 3, but PersonalizedPageRank is no polynomial"),
            ("--scheme heat --alpha .2 --max-error .1", "--alpha belongs to --scheme appnp or ppr; heat has no such setting."),
            ("--scheme appnp --time 3", "--time belongs to --scheme heat; appnp has no such setting."),
            ("--scheme heat --time 0 --max-error .1", "--time, how long the heat diffuses, must be positive; got 0.0."),
        ],
    )
    def test_of_propagate(self, folder, options, says):
        wrong("propagate", "both.npz", "-o", "p.npy", *options.split(), says=says)

    def test_of_a_command_of_a_group(self, folder):
        wrong("data", "convert", "-e", "edges.csv", "--num-nodes", 10, "-o", "made", says="--num-nodes must be at least 300.")


class TestFlags:
    """One name, one help text and one meaning for a flag, whatever command has it."""

    @staticmethod
    def commands():
        """Name and command of every command, those of groups included."""

        def walk(name, command):
            if hasattr(command, "commands"):
                for sub, each in command.commands.items():
                    yield from walk(f"{name} {sub}", each)
            else:
                yield name, command

        return list(walk("unifews", typer.main.get_command(cli.app)))

    @staticmethod
    def flags(name, command):
        return [each for each in command.get_params(typer.Context(command, info_name=name)) if each.param_type_name == "option"]

    def test_one_help_text_per_flag(self):
        texts = {}
        for name, command in self.commands():
            for flag in self.flags(name, command):
                for spelling in (*flag.opts, *flag.secondary_opts):
                    text = re.sub(r" \(needs .*\)", "", flag.help)  # names the flags that the command has
                    texts.setdefault(spelling, {}).setdefault(text, []).append(name)
        assert {spelling: found for spelling, found in texts.items() if len(found) > 1} == {}

    def test_every_command_has_an_example_that_its_flags_allow(self):
        for name, command in self.commands():
            assert command.epilog.startswith(f"Example: {name}"), name
            known = {spelling for flag in self.flags(name, command) for spelling in flag.opts}
            assert {part for part in command.epilog.split() if part.startswith("--")} <= known

    def test_help_texts_are_sentences(self):
        for name, command in self.commands():
            for flag in self.flags(name, command):
                assert (flag.help and flag.help[0] in ".0123456789") or flag.help[0].isupper(), (name, flag.name)
                assert flag.help.endswith(".") and "[" not in flag.help, (name, flag.name)  # brackets are markup

    def test_help_all_is_there_where_flags_are_hidden(self):
        for name, command in self.commands():
            flags = self.flags(name, command)
            assert any(flag.hidden for flag in flags) == any(flag.name == "help_all" for flag in flags), name

    def test_help_shows_the_common_flags_and_help_all_shows_all(self, monkeypatch):
        monkeypatch.setenv("COLUMNS", "100")
        short, full = fine("train", "--help").out, fine("train", "--help-all").out
        assert len(short.splitlines()) <= 40 and "--edge-sparsity" in short and "--weight-ramp" not in short
        for heading in ("Pruning", "Model", "Training", "Output"):
            assert f"─ {heading} ─" in short
        assert "--weight-ramp" in full and "--run-file" in full

    @pytest.mark.parametrize(
        "command, old, new",
        [
            ("propagate graph -x x.npy -o p.npy --hops 2", "--threshold 0.1", "--edge-threshold 0.1"),
            ("data convert -e edges.csv -o made --json", "--nodes=400", "--num-nodes=400"),
            ("data generate gencat -o made --json", "--alpha 2.5", "--exponent 2.5"),
        ],
    )
    def test_former_names_are_accepted_with_a_warning(self, folder, command, old, new):
        first = fine(*command.split(), *new.split(), *(["--overwrite"]))
        again = fine(*command.split(), *old.split(), "--overwrite")
        was, now = old.split("=")[0].split()[0], new.split("=")[0].split()[0]
        assert again.err.startswith(f"warning: {was} is deprecated and will be removed in version 0.4; use {now}.\n")
        if "--json" in command:
            assert json.loads(again.out) == json.loads(first.out)

    def test_a_removed_flag_is_refused_with_the_reason(self, folder):
        says = "--no-deflate was removed: the stationary part"
        wrong("propagate", "graph", "-x", "x.npy", "-o", "p.npy", "--no-deflate", says=says)

    def test_a_current_flag_of_the_same_name_is_left_alone(self, folder):
        assert fine("propagate", "graph", "-x", "x.npy", "-o", "p.npy", "--alpha", 0.2, "--hops", 2).err == ""


class TestTheRest:
    def test_version_names_the_kernels(self):
        from unifews.kernels import native

        out = fine("--version").out
        assert out.startswith(f"unifews {uf.__version__}\n")
        for word in [native.level(), *native.levels(), "threads: ", "OpenMP: "]:
            assert word in out

    @pytest.mark.parametrize("command", ["", "--help", "bench", "propagate --help", "demo --help", "bench propagation --help"])
    def test_help(self, command):
        assert "Usage: unifews" in fine(*command.split()).out

    @pytest.fixture
    def bench(self, monkeypatch):
        calls = []

        def run(size, trials, verify, progress):
            calls.append((size, trials, verify))
            progress("halfway")
            return {"size": size, "seconds": 0.5}

        module = SimpleNamespace(run=run, render=lambda result, console: console.print(f"took {result['seconds']} s"))
        monkeypatch.setitem(sys.modules, "unifews.experiments.bench", module)
        return calls

    def test_bench_hands_its_options_on(self, bench):
        assert fine("bench", "propagation", "--size", "tiny", "--trials", 2, "--verify").out == "took 0.5 s\n"
        assert json.loads(fine("bench", "propagation", "--json").out) == {"size": "small", "seconds": 0.5}
        assert bench == [("tiny", 2, True), ("small", 5, False)]

    def test_the_reference_is_fresh(self):
        script = runpy.run_path(str(ROOT / "docs" / "cli.py"))
        assert script["PAGE"].read_text(encoding="utf-8") == script["page"](), "run `make docs`"

    def test_a_bug_is_a_sentence_too(self, folder, monkeypatch):
        monkeypatch.setattr(cli.propagate, "_load", lambda *args: 1 / 0)
        result = call("propagate", "graph", "-x", "x.npy", "-o", "p.npy")
        assert result.code == 1 and "bug" in result.err and "ZeroDivisionError" in result.err

    def test_no_room_on_the_disk(self, folder, monkeypatch):
        def full(*args):
            raise OSError(28, "No space left on device", "p.npy")

        monkeypatch.setattr(cli.propagate, "_write", full)
        wrong("propagate", "graph", "-x", "x.npy", "-o", "p.npy", says="No space left on device")

    def test_debugging_shows_the_traceback(self, monkeypatch):
        monkeypatch.setenv("UNIFEWS_DEBUG", "1")
        result = CliRunner().invoke(cli.app, ["propagate", "nowhere", "-x", "x.npy", "-o", "p.npy"])
        assert isinstance(result.exception, uf.UnifewsError)


class TestProcess:
    """Real processes: exit codes, what goes to stdout and stderr, what is imported, and signals."""

    def test_result_and_mistake(self, folder):
        done = spawn("propagate", "graph", "-x", "x.npy", "-o", "p.npy", "--json")
        assert done.returncode == 0 and done.stderr == "" and json.loads(done.stdout)["out"] == "p.npy"
        again = spawn("propagate", "graph", "-x", "x.npy", "-o", "p.npy", "--json")
        assert again.returncode == 2 and again.stdout == "" and "already exists" in again.stderr

    def test_no_traceback_unless_asked_for(self, folder):
        assert "Traceback" not in spawn("propagate", "nowhere", "-x", "x.npy", "-o", "p.npy").stderr
        shown = spawn("propagate", "nowhere", "-x", "x.npy", "-o", "p.npy", UNIFEWS_DEBUG="1")
        assert "Traceback" in shown.stderr and shown.returncode == 1

    def test_an_unknown_instruction_set(self, folder):
        done = spawn("propagate", "graph", "-x", "x.npy", "-o", "p.npy", UNIFEWS_KERNELS="mmx")
        assert done.returncode == 2 and "UNIFEWS_KERNELS" in done.stderr and "Traceback" not in done.stderr

    @pytest.mark.parametrize(
        "command, light",
        [("--help", "numpy"), ("data convert --help", "numpy"), ("propagate --help", "torch"), ("train --help", "torch")],
    )
    def test_help_imports_nothing_heavy(self, command, light):
        """Flags of propagate and train come from configuration classes, which import numpy."""
        code = (
            "import sys\n"
            "from unifews.cli import app\n"
            "try:\n"
            f"    app({command.split()!r})\n"
            "finally:\n"
            f"    sys.stderr.write(str({light!r} in sys.modules or 'torch' in sys.modules))\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stderr == "False" and "Example: unifews" in done.stdout

    def test_propagating_needs_no_torch(self, folder):
        code = (
            "import sys\n"
            "from unifews.cli import app\n"
            "try:\n"
            "    app('propagate graph -x x.npy -o p.npy --edge-sparsity .5'.split())\n"
            "finally:\n"
            "    sys.stderr.write(f\"{sorted({'torch', 'torch_geometric'} & set(sys.modules))}\")\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stderr == "[]"

    def test_interrupting_leaves_nothing_behind(self, folder):
        np.save("wide.npy", np.random.default_rng(3).random((300, 2000), dtype=np.float32))
        code = (
            "import sys\n"
            "from unifews import cli\n"
            "load = cli.propagate._load\n"
            "cli.propagate._load = lambda *args: sys.stdout.write('ready\\n') and sys.stdout.flush() or load(*args)\n"
            "cli.app('propagate graph -x wide.npy -o p.npy --hops 50000'.split())\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A job in the background ignores the signal, and would hand that down.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
        assert (process.returncode, out, err) == (130, "", "unifews: interrupted; nothing was written.\n")
        assert not Path("p.npy").exists() and not list(folder.glob(".*.tmp"))

    def test_a_reader_that_leaves_early(self):
        shell = f"{sys.executable} -m unifews propagate --help | head -n 1"
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60)
        assert done.stdout.count("\n") == 1 and done.stderr == ""
