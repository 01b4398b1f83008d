"""Edge lists through files: every format gives the graph of memory, in the memory allowed, and a killed process goes on."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import unifews as uf
from unifews.core.graph import Graph
from unifews.datasets import powerlaw_files
from unifews.datasets.convert import convert_dataset, convert_edges
from unifews.datasets.dataset import About, Dataset
from unifews.datasets.folder import open_dataset, save_dataset
from unifews.datasets.powerlaw_files import write_powerlaw
from unifews.datasets.user_files import read_dataset
from unifews.errors import FileFormatError, GraphError, InputError, MissingFileError, ShapeError
from unifews.io.graphs import read_graph
from unifews.storage import journal

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(53)
EDGES = RNG.integers(0, 70, (2, 500))
WEIGHT = RNG.integers(0, 9, 500) / 4


@pytest.fixture(autouse=True)
def swift(monkeypatch, tmp_path):
    """Nobody pulls the plug in these tests, so the disk need not be waited for."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr("unifews.resources.resident", lambda: 60_000_000)  # tests may have loaded anything
    monkeypatch.chdir(tmp_path)


def contents(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in Path(folder).rglob("*") if file.is_file()}


def in_memory(edges=EDGES, weight=None, undirected=True, n=None):
    graph = Graph.from_edge_index(edges, n, weight)
    return graph.undirected() if undirected else graph


def assert_same(folder, graph):
    graph.save("expected", overwrite=True)
    assert contents(folder) == contents("expected")
    assert not Path(f"{folder}.work").exists()


def lines(weight=None, mark=",", names=""):
    rows = [f"{v}{mark}{u}" for v, u in EDGES.T] if weight is None else []
    rows = rows or [f"{v}{mark}{u}{mark}{w}" for (v, u), w in zip(EDGES.T, weight, strict=True)]
    return f"{names}\n".lstrip("\n") + "\n".join(rows) + "\n"


def parquet(path, **columns):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path, row_group_size=90)


FORMATS = {
    "e.csv": lambda p, w: p.write_text(lines(w)),
    "e.tsv": lambda p, w: p.write_text("# of old\n\n" + lines(w, "\t")),
    "e.txt": lambda p, w: p.write_text(lines(w, " ")),
    "bom.csv": lambda p, w: p.write_bytes(b"\xef\xbb\xbf" + lines(w).replace("\n", "\r\n").encode()),
    "named.csv": lambda p, w: p.write_text(lines(w, ",", "source,target" + ("" if w is None else ",weight"))),
    "e.csv.gz": lambda p, w: p.write_bytes(gzip.compress(lines(w).encode())),
    "e.parquet": lambda p, w: parquet(p, src=EDGES[0], dst=EDGES[1], **({} if w is None else {"weight": w})),
    "e.npz": lambda p, w: np.savez(p, edge_index=EDGES, **({} if w is None else {"edge_weight": w})),
    "packed.npz": lambda p, w: np.savez_compressed(p, row=EDGES[0], col=EDGES[1], **({} if w is None else {"weight": w})),
    "csr.npz": lambda p, w: sp.save_npz(p, in_memory(weight=w, undirected=False).to_scipy()),
}


@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_graph_of_memory(monkeypatch, name, weight, undirected):
    monkeypatch.setattr("unifews.resources.Memory.chunk", 64)
    FORMATS[name](Path(name), weight)
    graph = convert_edges(name, "g", undirected=undirected)
    read = read_graph(name)
    assert_same("g", read.undirected() if undirected else read)
    if name != "csr.npz":  # where copies are merged already
        assert_same("g", in_memory(weight=weight, undirected=undirected))
    assert isinstance(graph.indices, np.memmap)


@pytest.mark.parametrize("array", [EDGES, EDGES.T, EDGES.astype(np.uint16), EDGES.astype(np.float64), np.asfortranarray(EDGES)])
def test_arrays_of_any_type_lying_or_standing(array):
    np.save("e.npy", array)
    convert_edges("e.npy", "g", num_nodes=100)
    assert_same("g", in_memory(n=100))


def test_several_files_make_one_list():
    np.save("a.npy", EDGES[:, :100])
    Path("b.csv").write_text("".join(f"{v},{u}\n" for v, u in EDGES[:, 100:300].T))
    Path("c.txt").write_text("".join(f"{v} {u}\n" for v, u in EDGES[:, 300:].T))
    convert_edges(["a.npy", "b.csv", "c.txt"], "g")
    assert_same("g", in_memory())
    Path("w.csv").write_text("0,1,0.5\n")
    with pytest.raises(InputError, match="some of the edge files have weights"):
        convert_edges(["a.npy", "w.csv"], "h")
    with pytest.raises(InputError, match="some of the edge files have weights"):
        convert_edges(["b.csv", "w.csv"], "h")
    with pytest.raises(InputError, match="expected holds a whole graph"):
        convert_edges(["a.npy", "expected"], "h")
    with pytest.raises(InputError, match="no edge files"):
        convert_edges([], "h")
    assert not Path("h.work").exists()


@pytest.mark.parametrize("archive", [True, False])
def test_ogb_s_raw_files(archive):
    raw = Path("ogbn_mine/raw")
    raw.mkdir(parents=True)
    if archive:
        np.savez_compressed(raw / "data.npz", edge_index=EDGES, num_nodes_list=np.array([90]))
    else:
        (raw / "edge.csv.gz").write_bytes(gzip.compress(lines().encode()))
        (raw / "num-node-list.csv.gz").write_bytes(gzip.compress(b"90\n"))
    convert_edges("ogbn_mine", "g")
    assert_same("g", in_memory(n=90))


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=40), st.booleans(), st.integers(31, 40))
def test_any_list(tmp_path_factory, pairs, undirected, n):
    os.chdir(tmp_path_factory.mktemp("any"))
    Path("e.csv").write_text("source,target\n" + "".join(f"{v},{u}\n" for v, u in pairs))
    convert_edges("e.csv", "g", undirected=undirected, num_nodes=n)
    assert_same("g", in_memory(np.array(pairs, dtype=int).reshape(-1, 2).T, None, undirected, n))


# -------------------------------------------------------------------------------------------------------- memory, disk


def child(code):
    """A process of its own, without torch: what it prints, line by line."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)


def whole(code):
    out, _ = child(code).communicate(timeout=300)
    return out.splitlines()


def peak(code):
    """Bytes of memory that a process had at its largest. Not getrusage's: that counts the parent's before it began."""
    told = whole(code + "print(*(line for line in open('/proc/self/status') if line.startswith('VmHWM')))")
    return int(told[0].split()[1]) * 1024


in_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")


@in_proc
def test_memory_stays_below_what_is_allowed():
    edges = np.random.default_rng(59).integers(0, 300_000, (2, 4_000_000), dtype=np.int32)  # 128 MB of keys
    np.save("e.npy", edges)
    Path("e.csv").write_text("".join(f"{v},{u}\n" for v, u in edges[:, :500_000].T.tolist()))
    code = "from unifews.datasets.convert import convert_edges\nconvert_edges(['e.npy', 'e.csv'], 'g', memory='140MB')\n"
    assert 50e6 < peak(code) < 140e6
    both = np.concatenate([edges, edges[:, :500_000]], axis=1)
    expected = in_memory(both)
    graph = Graph.open("g", verify=True)
    assert np.array_equal(graph.indices, expected.indices) and np.array_equal(graph.indptr, expected.indptr)
    assert graph.merged_duplicates == expected.merged_duplicates


@in_proc
def test_a_line_without_an_end_takes_no_memory():
    with gzip.open("e.csv.gz", "wb", compresslevel=1) as file:
        for _ in range(300):
            file.write(b"1" * 1_000_000)
    code = (
        "from unifews.datasets.convert import convert_edges\n"
        "from unifews.errors import FileFormatError\n"
        "try:\n    convert_edges('e.csv.gz', 'g', memory='140MB')\n"
        "except FileFormatError as error:\n    assert 'line 1 is longer than' in str(error)\n"
    )
    assert peak(code) < 140e6


def test_too_little_memory_for_any_plan():
    np.save("e.npy", EDGES)
    with pytest.raises(InputError, match=r"memory=20 MB is too little for sorting edges: .* Give .*B or more"):
        convert_edges("e.npy", "g", memory="20MB")
    with pytest.raises(
        InputError, match=r"memory=900 MB is too little for generating a graph of 2,000,000,000 nodes.*Give 2[0-9] GB"
    ):
        write_powerlaw("p", 2_000_000_000, 4_000_000_000, memory="900MB")
    assert [path.name for path in Path().iterdir()] == ["e.npy"]


Usage = namedtuple("Usage", "total used free")


def test_too_little_disk_is_told_before_anything_is_written(monkeypatch):
    np.save("e.npy", EDGES)
    np.savez("e.npz", edge_index=EDGES, features=np.zeros(10**6))  # which are nothing to us
    np.savez_compressed("packed.npz", edge_index=EDGES)
    Path("e.csv").write_text(lines())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**6, 10**6, 1_000))
    for name in ("e.npy", "e.csv", "e.npz"):
        with pytest.raises(InputError, match=r"of disk while it runs, and .* has 1.0 kB free: [67].* kB more are needed there"):
            convert_edges(name, "g")
    with pytest.raises(InputError, match=r"takes about 16 kB of disk while it runs"):  # 8 of them to unpack it
        convert_edges("packed.npz", "g")
    with pytest.raises(InputError, match=r"generating 400 edges and 100 nodes of 128 features takes about 5. kB of disk"):
        write_powerlaw("p", 100, 400)
    assert not list(Path().glob("*.work"))


# --------------------------------------------------------------------------------------------------------- interrupted


SLOWLY = """
import sys, os
from unifews import resources
from unifews.datasets import convert, powerlaw_files
from unifews.io import edge_buckets
from unifews.storage import journal
journal.SAVE_INTERVAL = 0
resources._CHUNK = (256, 256)
edge_buckets.cut, cut = lambda counts, n, share, per_key: cut(counts, n, share // 40, per_key), edge_buckets.cut
os.fsync = lambda descriptor: None

def tell(stage, done, total):
    print(stage, done, total, flush=True)
"""
CONVERT = SLOWLY + "convert.convert_edges(['e.csv', 'f.csv.gz'], 'g', memory='200MB', progress=tell)"
POWERLAW = (
    SLOWLY
    + "powerlaw_files.powerlaw._EDGES, powerlaw_files.powerlaw._ROWS = 500, 200\n"
    + "powerlaw_files.write_powerlaw('p', 3000, 20000, num_features=5, seed=7, memory='400MB', progress=tell)"
)


def killed(code, step):
    """Run `code` and kill it when it has told of `step` steps; whether it was still running."""
    process = child(code)
    for _ in range(step):
        if not process.stdout.readline():
            break
    os.kill(process.pid, signal.SIGKILL)
    process.stdout.close()
    return process.wait(timeout=60) == -signal.SIGKILL


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_conversion_goes_on_and_ends_with_the_same_bytes(seed):
    rng = np.random.default_rng(61)
    edges, weight = rng.integers(0, 900, (2, 6_000)), rng.random(6_000).round(3)
    text = "".join(f"{v},{u},{w}\n" for (v, u), w in zip(edges.T, weight, strict=True)).encode()
    half = text.index(b"\n", len(text) // 2) + 1
    Path("e.csv").write_bytes(text[:half])
    Path("f.csv.gz").write_bytes(gzip.compress(text[half:]))
    steps = 60
    moments = np.random.default_rng(seed).integers(1, steps, 3)
    assert all(killed(CONVERT, int(moment)) for moment in moments[:1])
    with pytest.raises(FileFormatError, match=r"g is not finished: .*g.work"):
        Graph.open("g")
    with pytest.raises(FileFormatError, match=r"g.work is the working folder of an unfinished graph"):
        Graph.open("g.work")
    for moment in moments[1:]:
        killed(CONVERT, int(moment))
    rest = whole(CONVERT) if not Path("g").exists() or Path("g.work").exists() else []
    assert len(rest) < len(text)
    assert_same("g", in_memory(edges, weight))


@pytest.mark.parametrize("seed", range(2))
def test_a_killed_generator_goes_on_and_ends_with_the_same_bytes(seed, monkeypatch):
    steps = np.random.default_rng(seed).integers(1, 120, 2)
    for step in steps:
        killed(POWERLAW, int(step))
    if not Path("p").exists() or Path("p.work").exists():
        assert whole(POWERLAW)
    monkeypatch.setattr("unifews.datasets.powerlaw._EDGES", 500)
    monkeypatch.setattr("unifews.datasets.powerlaw._ROWS", 200)
    made = uf.powerlaw(3_000, 20_000, num_features=5, seed=7)
    about = About(source="generated by powerlaw(exponent=2.5, homophily=0.7, seed=7)")
    save_dataset(Dataset("p", made.graph, made.x, made.y, (), about), "expected")
    assert contents("p") == contents("expected") and not Path("p.work").exists()


def stopped(monkeypatch, step, call):
    """`call`, given a progress that raises at its step number `step`, as Ctrl-C would."""
    told = []

    def tell(*event):
        told.append(event)
        if len(told) == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call(tell)


@pytest.fixture
def begun(monkeypatch):
    """A conversion that was interrupted half-way."""
    monkeypatch.setattr("unifews.resources.Memory.chunk", 64)
    monkeypatch.setattr("unifews.storage.journal.SAVE_INTERVAL", 0)
    Path("e.csv").write_text(lines())
    stopped(monkeypatch, 5, lambda tell: convert_edges("e.csv", "g", progress=tell))
    assert Path("g.work/manifest.json").is_file()


def test_what_is_done_is_not_done_again(begun):
    told = []
    convert_edges("e.csv", "g", progress=lambda *event: told.append(event))
    assert_same("g", in_memory())
    assert told and not any(stage.startswith("reading") for stage, _, _ in told)


def test_a_changed_input_is_told(begun):
    Path("e.csv").write_text(lines() + "0,1\n")
    with pytest.raises(InputError, match=r"e.csv has changed since the work on g was interrupted.*--restart"):
        convert_edges("e.csv", "g")
    convert_edges("e.csv", "g", restart=True)
    assert_same("g", in_memory(np.concatenate([EDGES, [[0], [1]]], axis=1)))


@pytest.mark.parametrize("change", [dict(undirected=False), dict(num_nodes=99), dict(edges=["e.csv", "e.csv"])])
def test_other_arguments_are_told(begun, change):
    with pytest.raises(InputError, match=r"the interrupted work on g was begun with .*--restart"):
        convert_edges(**{"edges": "e.csv", "out": "g", **change})
    convert_edges("e.csv", "g")
    assert_same("g", in_memory())


def test_damage_to_what_was_kept_is_told(begun):
    manifest = json.loads(Path("g.work/manifest.json").read_text())
    for change, sentence in ((dict(version=9), "format version 9"), (dict(done=[]), "manifest.json is damaged.*--restart")):
        Path("g.work/manifest.json").write_text(json.dumps({**manifest, **change}))
        with pytest.raises(FileFormatError, match=sentence):
            convert_edges("e.csv", "g")
    Path("g.work/manifest.json").write_text("{")
    with pytest.raises(InputError, match=r"g.work exists and is no working folder"):
        convert_edges("e.csv", "g")


def test_two_processes_do_not_work_on_one_thing(begun):
    with (
        journal.open_journal(Path("h"), {}),
        pytest.raises(InputError, match=r"another process is working in h.work"),
        journal.open_journal(Path("h"), {}),
    ):
        pass


def test_interrupted_while_clearing_up(begun, monkeypatch):
    def stop(place, **options):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", stop)
        convert_edges("e.csv", "g", restart=True)
    convert_edges("e.csv", "g")
    assert_same("g", in_memory())


def test_interrupted_when_all_was_done_but_for_clearing_up(monkeypatch):
    np.save("e.npy", EDGES)

    def stop(self):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(journal.Journal, "remove", stop)
        convert_edges("e.npy", "g")
    assert Path("g.work").exists() and Graph.open("g").num_edges
    convert_edges("e.npy", "g")
    assert_same("g", in_memory())


def test_an_existing_graph_is_replaced_only_on_request():
    np.save("e.npy", EDGES)
    convert_edges("e.npy", "g")
    with pytest.raises(InputError, match="g already exists"):
        convert_edges("e.npy", "g", undirected=False)
    assert not Path("g.work").exists() and Graph.open("g").is_symmetric
    convert_edges("e.npy", "g", undirected=False, overwrite=True)
    assert_same("g", in_memory(undirected=False))
    Path("taken").mkdir()
    with pytest.raises(InputError, match="taken already exists and is not a unifews graph"):
        convert_edges("e.npy", "taken", overwrite=True)
    with pytest.raises(MissingFileError, match="there is no folder no"):
        convert_edges("e.npy", "no/where")


# ----------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("0,1\n2,3\n4,5,6\n", r"line 3 has 3 values, and its first line has 2"),
        ("0,1\n2\n", r"line 2 has 1 values"),
        ("# a\n0 1\n\n2 x\n", r"line 4 names node 'x'"),
        (
            "alice,bob\nbob,carol\n",
            r"line 2 names node 'bob', and nodes are numbered from 0. For identifiers, run unifews data convert --ids",
        ),
        ("0,1\n99999999999999999999,2\n", r"line 2 names node '99999999999999999999', .*below 2\^63"),
        ("0,1.5\n1.5,2\n", r"line 1 names node '1.5'"),
        ("0,1,a\n", r"line 1 holds 'a' for a weight|weight|a graph without edges"),
        ("0,1\n-3,1\n", r"edge 1 of e.csv names node -3, a negative number"),
        ("0,1,-2\n", r"edge 0 of e.csv has the weight -2.0; weights are finite"),
        ("0,1,nan\n", r"edge 0 of e.csv has the weight nan"),
        ("0,4000000000000\n", r"at most 2\^39 nodes, numbered from 0 without gaps. Pass ids=True if these are identifiers"),
        ("0,9223372036854775807\n", r"9,223,372,036,854,775,807, and a graph has at most 2\^39 nodes"),
        ("0,1\n2,9223372036854775806\n", r"9,223,372,036,854,775,806, and a graph has at most 2\^39 nodes"),
        ("0,3000000000\n", r"1 edge, but node numbers up to 3,000,000,000: .* Pass ids=True .*, or num_nodes=3000000001 if"),
        ("0,2000000\n1,2\n", r"2 edges, but node numbers up to 2,000,000"),
        ("source,target\n", r"without edges needs num_nodes"),
        ("", r"holds no edges"),
        ("1,2,3,4\n", r"4 columns in its first line"),
    ],
)
def test_lists_that_cannot_be_read_say_where(text, sentence):
    Path("e.csv").write_text(text)
    with pytest.raises((FileFormatError, GraphError, InputError), match=sentence) as told:
        convert_edges("e.csv", "g")
    assert "\n" not in str(told.value) and [path.name for path in Path().iterdir()] == ["e.csv"]


def test_a_number_of_nodes_that_is_given_is_not_questioned():
    Path("e.csv").write_text("0,1100000\n")
    with pytest.raises(GraphError, match="1 edge, but node numbers up to 1,100,000"):
        convert_edges("e.csv", "g")
    assert convert_edges("e.csv", "g", num_nodes=1_100_001).num_nodes == 1_100_001
    np.savez("e.npz", edge_index=[[0], [1_100_000]], num_nodes=1_200_000)
    with pytest.raises(GraphError, match="1 edge, but node numbers up to 1,199,999"):  # the file may be damaged
        convert_edges("e.npz", "h")
    assert convert_edges("e.npz", "h", num_nodes=1_200_000).num_nodes == 1_200_000
    Path("many.csv").write_text("".join(f"{i},{i + 1}\n" for i in range(0, 1_100_000, 50)))  # of 100 nodes, 96 are isolated
    assert convert_edges("many.csv", "m").num_nodes == 1_099_952
    for wrong in (2.5, True, "7", float("nan")):
        with pytest.raises(InputError, match="num_nodes must be an integer"):
            convert_edges("e.csv", "w", num_nodes=wrong)


def test_the_line_is_told_from_the_start_of_the_file(monkeypatch):
    monkeypatch.setattr("unifews.resources.Memory.chunk", 64)
    Path("e.csv").write_text(lines() + "7,8,9\n")
    with pytest.raises(FileFormatError, match="line 501 has 3 values"):
        convert_edges("e.csv", "g")


def test_other_files_that_hold_no_edges():
    np.save("e.npy", np.zeros((3, 4)))
    np.savez("e.npz", x=np.zeros(3))
    np.savez("w.npz", edge_index=EDGES, edge_weight=WEIGHT[:-1])
    np.save("half.npy", EDGES + 0.5)
    np.save("words.npy", EDGES.astype(str))
    np.save("far.npy", np.array([[0], [2**64 - 1]], dtype=np.uint64))
    Path("e.xlsx").write_text("")
    Path("cut.csv.gz").write_bytes(gzip.compress(lines().encode())[:-20])
    for name, error, sentence in (
        ("e.npy", ShapeError, r"shape \[3, 4\]; edges are \[2, m\]"),
        ("e.npz", FileFormatError, "holds no edges: it has x, and edges are edge_index"),
        ("w.npz", ShapeError, r"weights of shape \[499\] for 500 edges"),
        ("half.npy", InputError, r"edge 0 of half.npy names node \d+.5; nodes are whole numbers"),
        ("words.npy", InputError, r"values; nodes are numbered from 0. For identifiers, run unifews data convert --ids"),
        ("far.npy", InputError, r"edge 0 of far.npy names node 18446744073709551615; nodes are whole numbers below 2\^63"),
        ("e.xlsx", FileFormatError, "no known extension of a graph file"),
        ("cut.csv.gz", FileFormatError, "truncated"),
        ("none.csv", MissingFileError, "there is no file none.csv"),
    ):
        with pytest.raises(error, match=sentence):
            convert_edges(name, "g")
    assert not list(Path().glob("g*"))


# ------------------------------------------------------------------------------------------------------------ datasets


@pytest.fixture
def files():
    Path("e.csv").write_text(lines())
    np.save("x.npy", RNG.random((80, 3), dtype=np.float32))
    Path("y.csv").write_text("label\n" + "".join(f"{i % 4}\n" for i in range(80)))
    Path("split.csv").write_text("node,set\n" + "".join(f"{i},{['train', 'val', 'test'][i % 3]}\n" for i in range(80)))
    return "e.csv", "x.npy", "y.csv"


@pytest.mark.parametrize("undirected", [True, False])
def test_a_dataset_through_files_is_that_of_memory(files, undirected):
    convert_dataset(*files, "d", split="split.csv", name="mine", undirected=undirected)
    dataset = read_dataset(*files, split="split.csv", name="mine", undirected=undirected)
    if undirected:
        assert dataset.graph.is_symmetric  # which is told of a graph where it is known
    else:
        dataset.graph.__dict__.pop("is_symmetric")
    save_dataset(dataset, "expected")
    assert contents("d") == contents("expected") and not Path("d.work").exists()


def test_an_interrupted_dataset_goes_on(files, monkeypatch):
    monkeypatch.setattr("unifews.storage.journal.SAVE_INTERVAL", 0)
    stopped(monkeypatch, 2, lambda tell: convert_dataset(*files, "d", progress=tell))
    with pytest.raises(FileFormatError, match=r"d is not finished: .*d.work"):
        open_dataset("d")
    convert_dataset(*files, "d")
    assert open_dataset("d", verify=True).graph.num_edges == in_memory().num_edges
    Path("y.csv").unlink()
    with pytest.raises(MissingFileError, match=r"there is no file y.csv"):
        convert_dataset(*files, "f")


def test_edges_beyond_the_features(files):
    np.save("x.npy", np.ones((40, 3), dtype=np.float32))
    with pytest.raises(
        ShapeError, match=r"e.csv does not fit the 40 rows of x.npy: an edge names node \d+, but a graph of 40 nodes"
    ):
        convert_dataset(*files, "d")
    assert not Path("d.work").exists()


# ----------------------------------------------------------------------------------------------------------- generated


@pytest.mark.parametrize("n, m, f, classes", [(9, 6, 1, 2), (50, 200, 3, 2), (300, 3_001, 3, 300), (2_000, 30_000, 7, 16)])
def test_what_is_written_as_it_is_drawn_is_what_memory_gives(n, m, f, classes, monkeypatch):
    monkeypatch.setattr("unifews.datasets.powerlaw._EDGES", 900)
    monkeypatch.setattr("unifews.datasets.powerlaw._ROWS", 128)
    made = uf.powerlaw(n, m, num_features=f, num_classes=classes, seed=31)
    about = About(source="generated by powerlaw(exponent=2.5, homophily=0.7, seed=31)")
    save_dataset(Dataset("p", made.graph, made.x, made.y, (), about), "expected")
    told = []
    write_powerlaw("p", n, m, num_features=f, num_classes=classes, seed=31, progress=lambda *event: told.append(event))
    assert contents("p") == contents("expected")
    assert {"distributing edges", "sorting edges", "features"} <= {stage for stage, _, _ in told}


def test_too_few_distinct_draws_are_topped_up_as_in_memory(monkeypatch):
    monkeypatch.setattr("unifews.datasets.powerlaw.draws_needed", lambda plan, pairs: pairs // 2)
    made = uf.powerlaw(200, 1_000, num_features=2, num_classes=2, seed=37)
    graph = write_powerlaw("p", 200, 1_000, num_features=2, num_classes=2, seed=37).graph
    assert np.array_equal(graph.indices, made.graph.indices) and np.array_equal(graph.indptr, made.graph.indptr)


def test_other_arguments_of_a_generator_that_was_interrupted(monkeypatch):
    stopped(monkeypatch, 2, lambda tell: write_powerlaw("p", 100, 400, progress=tell))
    with pytest.raises(InputError, match="the interrupted work on p was begun with seed 907 and not 3"):
        write_powerlaw("p", 100, 400, seed=3)
    assert write_powerlaw("p", 100, 400, seed=3, restart=True).num_nodes == 100


@in_proc
def test_the_features_fit_the_memory_too():
    code = (
        "from unifews.datasets.powerlaw_files import write_powerlaw\n"
        "write_powerlaw('p', 200_000, 2_000_000, num_features=300, memory='280MB')\n"  # 240 MB of features
    )
    assert 100e6 < peak(code) < 280e6


def test_damaged_features_of_an_interrupted_generator_are_told(tmp_path, monkeypatch):
    keep = powerlaw_files.Journal.record

    def stop(self, **done):
        keep(self, **done)
        if "features" in done:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(powerlaw_files.Journal, "record", stop)
        write_powerlaw("p", 300, 2000, num_features=5, seed=7)
    file = Path("p.work/dataset/x.npy")
    whole = file.read_bytes()
    for damage in (whole[:-4] + b"\0\0\0\1", whole[:-4], None):
        file.unlink() if damage is None else file.write_bytes(damage)
        with pytest.raises(FileFormatError, match=r"x.npy has changed since the interrupted call.*--restart"):
            write_powerlaw("p", 300, 2000, num_features=5, seed=7)
    file.write_bytes(b"\0" * 128 + whole[128:])  # the header is written anew
    assert write_powerlaw("p", 300, 2000, num_features=5, seed=7).num_features == 5
