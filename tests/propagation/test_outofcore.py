"""Propagation through files: the result of memory, in the memory allowed, and a killed process goes on."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from cases import SCHEMES, graph_of, problems
from commands import fine, wrong
from hypothesis import given, settings
from hypothesis import strategies as st

import unifews as uf
from unifews import Appnp, Graph, Sgc, propagate
from unifews.errors import FileFormatError, InputError, UnifewsError
from unifews.io.graphs import read_matrix
from unifews.propagation import api, features, planner
from unifews.propagation import folder as folders
from unifews.storage import journal, state_files
from unifews.storage.journal import folder_of

pytestmark = pytest.mark.slow

DATA = uf.powerlaw(700, 6_000, num_features=70, num_classes=5, seed=17)
MANY = dict(scheme="appnp", hops=6, edge_sparsity=0.8, threads=1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A graph folder and its features in files; the working directory."""
    monkeypatch.chdir(tmp_path)
    DATA.graph.save("graph")
    np.save("x.npy", DATA.x)
    return tmp_path


@pytest.fixture
def by_block(monkeypatch):
    """One megabyte of `memory` holds one block of 16 columns."""
    _by_block(monkeypatch)


def _by_block(monkeypatch):
    monkeypatch.setattr(planner.Requirements, "memory", lambda self, blocks, outside=False: blocks * 900_000)
    monkeypatch.setattr(api, "resident", lambda: 0)
    monkeypatch.setattr(folders, "_WORTH", 0.0)  # keep the state after every hop
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def mapped():
    return Graph.open("graph"), np.load("x.npy", mmap_mode="r")


def same_groups(monkeypatch, groups, graph, x, **how):
    """In memory, with the columns grouped in the same way."""
    monkeypatch.setattr(planner, "in_memory_groups", lambda *given: [[shape] for shape in groups])
    return propagate(graph, x, **how)


def counted(trace):
    return [(hop.entries, hop.kept, hop.zeros, hop.macs, hop.threshold) for hop in trace.hops]


@pytest.mark.parametrize("megabytes", [1, 2, 9])
@pytest.mark.parametrize(
    "how",
    [
        MANY,
        dict(scheme="sgc", hops=5, edge_sparsity=0.6, inherit=True),
        dict(scheme=Sgc(skip="identity"), hops=4, threshold=0.02, r=0.3),
        dict(hops=5, edge_sparsity=0.7, entries="feature"),
        dict(hops=5, edge_sparsity=0.7, basis="input"),
        dict(hops=5, threshold=0.01, basis="input"),
        dict(hops=4),
        dict(scheme="sgc", hops=3),
        dict(scheme=Appnp(skip="identity+loop"), hops=70, threshold=0.5),
        dict(scheme=Sgc(skip="identity+loop"), hops=130),
    ],
)
def test_the_result_is_that_of_memory(folder, by_block, monkeypatch, how, megabytes):
    monkeypatch.setattr(folders, "_WORTH", 1e9)  # once is enough here
    plans = []
    graph, x = mapped()
    got = propagate(graph, x, out="p.npy", memory=f"{megabytes}MB", plan=plans.append, **how)
    groups = plans[0].groups
    assert len(groups) == {1: 5, 2: 3, 9: 1}[megabytes]
    expected = same_groups(monkeypatch, groups, graph, x, **how)
    assert np.array_equal(np.load("p.npy"), expected.embedding)
    assert np.array_equal(got.embedding, expected.embedding) and got.exponent == expected.exponent
    assert counted(got.trace) == counted(expected.trace)
    assert (got.trace.rank, got.trace.basis_macs, got.trace.requested) == (
        expected.trace.rank,
        expected.trace.basis_macs,
        expected.trace.requested,
    )
    assert sorted(file.name for file in folder.iterdir()) == ["graph", "p.npy", "x.npy"]


@pytest.mark.parametrize("how", [MANY, dict(hops=4), dict(scheme=Appnp(skip="identity+loop"), hops=70, threshold=0.5)])
def test_sums_may_add_up_in_a_file(folder, by_block, monkeypatch, how):
    graph, x = mapped()
    plain = propagate(graph, x, out="p.npy", memory="2MB", **how)
    needed = lambda self, blocks, outside=False: (1 if outside else 10) * blocks * 900_000  # noqa: E731
    monkeypatch.setattr(planner.Requirements, "memory", needed)
    plans, files = [], []
    look = lambda done, total: files.extend(Path("q.npy.work").rglob("sum"))  # noqa: E731
    got = propagate(graph, x, out="q.npy", memory="2MB", plan=plans.append, progress=look, **how)
    assert plans[0].outside and "of disk, where sums add up too" in str(plans[0])
    assert Path("q.npy.work/columns-0.work/sum") in files and not Path("q.npy.work").exists()
    assert Path("q.npy").read_bytes() == Path("p.npy").read_bytes() and counted(got.trace) == counted(plain.trace)
    assert any("thresholds" in note for note in got.trace.notes) == (how != dict(hops=4)), "an unpruned run has none"


@settings(max_examples=15)
@given(problems(), SCHEMES, st.sampled_from([{}, {"threshold": 0.1}, {"edge_sparsity": 0.5}, {"edge_sparsity": 0.001}]))
def test_any_small_problem(problem, scheme, pruning):
    a, x, rng = problem
    graph, plans = graph_of(a), []
    x = x * np.float32(rng.choice([1, 1e20]))
    how = dict(scheme=scheme, hops=4, basis=str(rng.choice(["principal", "input"])), threads=1, **pruning)
    with TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        _by_block(patch)
        got = propagate(graph, x, out=f"{place}/p.npy", memory="1MB", plan=plans.append, **how).embedding
        expected = same_groups(patch, plans[0].groups, graph, x, **how).embedding
        assert np.array_equal(got, expected)


def test_rows_in_many_chunks(folder, by_block, monkeypatch):
    monkeypatch.setattr("unifews.propagation.features._CHUNK_BYTES", 50 * 4 * 70)
    plans = []
    graph, x = mapped()
    x = x.astype(np.float64)  # read chunk by chunk in memory too, so that rows are multiplied in the same company
    got = propagate(graph, x, out="p.npy", memory="2MB", plan=plans.append, **MANY)
    expected = same_groups(monkeypatch, plans[0].groups, graph, x, **MANY).embedding
    np.testing.assert_allclose(got.embedding, expected, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("how", [MANY, dict(hops=4), dict(hops=4, edge_sparsity=0.5, entries="feature", inherit=True)])
def test_the_plan_is_kept_to(folder, monkeypatch, how):
    made = uf.powerlaw(60_000, 200_000, num_features=70, seed=5)
    monkeypatch.setattr(api, "resident", lambda: 0)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(planner, "_FIXED", 30 << 20)  # what 8 MB chunks of rows take, with something to spare
    np.save("big.npy", made.x)
    made.graph.save("big")
    graph, x = Graph.open("big"), np.load("big.npy", mmap_mode="r")
    del made
    plans, disk = [], []

    def look(done, total):
        disk.append(sum(file.stat().st_size for file in folder_of(Path("p.npy")).rglob("*") if file.is_file()))

    tracemalloc.start()
    try:
        propagate(graph, x, out="p.npy", memory="62MB", plan=plans.append, progress=look, **how)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= plans[0].memory <= 62_000_000
    assert max(disk) <= plans[0].disk * 1.02
    assert len(plans[0].groups) >= 3


def test_the_plan_says_what_it_takes(folder, by_block):
    told = []
    propagate(*mapped(), out="p.npy", memory="2MB", plan=lambda chosen: told.append(str(chosen)), **MANY)
    pattern = r"70 columns in 3 groups of up to 32; (\d+) passes over the edges; .* to read, .* to write; 1.8 MB of memory, .*"
    found = re.fullmatch(pattern, told[0])
    assert found and int(found[1]) == 3 * 6 + 3 * 4 + 1


# ------------------------------------------------------------------------------------------------------------ interruption

CHILD = """
import os, sys
import numpy as np
from unifews import Graph, propagate
from unifews.propagation import api, planner
from unifews.storage import journal
planner.Requirements.memory = lambda self, blocks, outside=False: blocks * 900_000
api.resident = lambda: 0
journal.SAVE_INTERVAL = 0.0
os.fsync = lambda descriptor: None
import unifews.propagation.features as features
features._CHUNK_BYTES = 50 * 4 * 70
keep = journal.Journal.record

def told(self, **done):
    print("before", *done, flush=True)
    keep(self, **done)
    print("after", *done, flush=True)

journal.Journal.record = told
how = eval(sys.argv[1])
propagate(Graph.open("graph"), np.load("x.npy", mmap_mode="r"), out="p.npy", memory="2MB", checkpoint_every_hop=True, **how)
"""


def child(how):
    command = [sys.executable, "-c", CHILD, repr(how)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def whole(how):
    with child(how) as process:
        lines = process.stdout.readlines()
    assert process.returncode == 0
    return lines


def killed(how, step):
    """Kill the work when it has told of `step` steps."""
    with child(how) as process:
        for _ in range(step):
            if not process.stdout.readline():
                break
        os.kill(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("careful, following", [(True, 6), (False, 3)])
@pytest.mark.parametrize("how", [dict(hops=6, edge_sparsity=0.5), dict(hops=6)], ids=["pruned", "unpruned"])
def test_a_checkpoint_at_every_hop_loses_one_at_most(folder, by_block, monkeypatch, how, careful, following):
    monkeypatch.setattr(folders, "_WORTH", 1e9)  # of itself, it keeps the first hop alone
    steps, (graph, x) = [], mapped()

    def stop(done, total):
        steps.append(done)
        if len(steps) == 5:  # after the first step, which is laying out, and four hops
            raise KeyboardInterrupt

    how = how | dict(out="p.npy", memory="9MB", checkpoint_every_hop=careful, progress=stop)
    with pytest.raises(KeyboardInterrupt):
        propagate(graph, x, **how)
    propagate(graph, x, **how)
    assert steps[:7] == [1, 2, 3, 4, 5, 1, following]


def test_there_are_no_checkpoints_in_memory():
    with pytest.raises(InputError, match="`checkpoint_every_hop` needs out-of-core propagation"):
        propagate(DATA.graph, DATA.x, checkpoint_every_hop=True)


@pytest.mark.parametrize(
    "how",
    [MANY, dict(hops=5, scheme="sgc"), dict(hops=5, edge_sparsity=0.5, entries="feature", inherit=True)],
    ids=["pruned", "unpruned", "inherited"],
)
def test_a_killed_process_goes_on_and_ends_with_the_same_bytes(folder, how):
    lines = whole(how)
    expected = Path("p.npy").read_bytes()
    Path("p.npy").unlink()
    for step in np.random.default_rng(len(lines)).integers(5, len(lines) // 3, 3):
        killed(how, int(step))
        if not Path("p.npy").exists():
            with pytest.raises(FileFormatError, match=r"p.npy is not finished: .*p.npy.work"):
                read_matrix("p.npy")
    rest = whole(how)
    assert Path("p.npy").read_bytes() == expected and not Path("p.npy.work").exists()
    assert len(rest) < len(lines)


def stopped(how, step):
    """Interrupt the work in this process after so many steps."""

    def look(done, total):
        if done == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        propagate(*mapped(), out="p.npy", memory="2MB", progress=look, **how)


@pytest.mark.parametrize("how", [MANY, dict(hops=6)])
def test_every_hop_can_be_the_last(folder, by_block, how):
    propagate(*mapped(), out="p.npy", memory="2MB", **how)
    expected = Path("p.npy").read_bytes()
    Path("p.npy").unlink()
    for step in [1, 3, 4, 7, 12, 19, 20]:
        stopped(how, step)
    again = []
    propagate(*mapped(), out="p.npy", memory="2MB", progress=lambda done, total: again.append(done), **how)
    assert Path("p.npy").read_bytes() == expected
    assert again == [1, 20]


def test_a_result_in_its_place_is_not_made_again(folder, by_block):
    stopped(MANY, 20)  # everything is done but the last rename
    (folder / "p.npy.work" / "embedding.npy").replace(folder / "p.npy")
    expected = Path("p.npy").read_bytes()
    propagate(*mapped(), out="p.npy", memory="2MB", **MANY)
    assert Path("p.npy").read_bytes() == expected and not Path("p.npy.work").exists()


def test_a_changed_input_and_other_options_are_told(folder, by_block):
    stopped(MANY, 9)
    call = dict(out="p.npy", memory="2MB")
    with pytest.raises(InputError, match=r"begun with hops 6 and not 5"):
        propagate(*mapped(), **call, **{**MANY, "hops": 5})
    graph, x = mapped()
    with pytest.raises(InputError, match=r"begun with x \[.*70.* and not \[.*50"):
        propagate(graph, x[:, :50], **call, **MANY)
    with pytest.raises(InputError, match=r"begun with x "):
        propagate(graph, x + 1, **call, **MANY)
    with pytest.raises(InputError, match=r"planned for more than 1.0 MB. Give 2"):
        propagate(graph, x, out="p.npy", memory="1MB", **MANY)
    changed = DATA.x.copy()
    changed[350, 7] += 1
    np.save("x.npy", changed)
    with pytest.raises(InputError, match=r"x.npy has changed since the work on p.npy was interrupted"):
        propagate(*mapped(), **call, **MANY)
    propagate(*mapped(), **call, restart=True, **MANY)
    assert not Path("p.npy.work").exists()


@pytest.mark.parametrize("name", ["layout-0", "columns-32.work/state", "basis", "columns-64.work/coordinates"])
def test_a_damaged_working_file_is_told(folder, by_block, name):
    stopped(MANY, 10)
    file = folder / "p.npy.work" / name
    if file.name == "state":
        slot = json.loads((file.parent / "manifest.json").read_text())["done"]["states"][-1]["slot"]
        file = file.with_name(f"state-{slot}")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(FileFormatError, match=f"{file.name} has changed since the interrupted call"):
        propagate(*mapped(), out="p.npy", memory="2MB", **MANY)
    assert not Path("p.npy").exists()


@pytest.mark.parametrize("name", ["embedding.npy", "columns-0.work/coordinates", "columns-64.work/coordinates"])
@pytest.mark.parametrize("step", ["rows", "summary"])
def test_damage_after_the_hops_is_told(folder, by_block, monkeypatch, name, step):
    """While rows are rotated back, and when all of them are."""
    monkeypatch.setattr(journal, "SAVE_INTERVAL", 0.0)
    monkeypatch.setattr(features, "_CHUNK_BYTES", 50 * 4 * 70)
    keep = journal.Journal.record

    def stop(self, **done):
        keep(self, **done)
        if step in done and done.get("rows", {"pieces": 3})["pieces"] == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(journal.Journal, "record", stop)
        propagate(*mapped(), out="p.npy", memory="2MB", **MANY)
    file = folder / "p.npy.work" / name
    data = bytearray(file.read_bytes())
    data[len(data) // 10] ^= 1  # among the rows that are written
    file.write_bytes(data)
    with pytest.raises(FileFormatError, match=f"{name} has changed since the interrupted call"):
        propagate(*mapped(), out="p.npy", memory="2MB", **MANY)
    assert not Path("p.npy").exists()


@pytest.mark.parametrize("name", ["layout-0", "columns-32.work/state", "basis", "columns-64.work/coordinates"])
def test_a_missing_working_file_is_told(folder, by_block, name):
    stopped(MANY, 10)
    for file in (folder / "p.npy.work").glob(f"{name}*"):
        file.unlink()
    with pytest.raises(FileFormatError, match=f"{name}.* has changed since the interrupted call"):
        propagate(*mapped(), out="p.npy", memory="2MB", **MANY)


def test_one_number_changed_in_the_manifest_is_told(folder, by_block):
    """The budget's own numbers decide what is pruned: nothing else would notice."""
    stopped(MANY, 10)
    file = folder / "p.npy.work" / "columns-32.work" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["done"]["states"][-1]["engine"]["budget"]["means"][0][1] += 1
    file.write_text(json.dumps(manifest))
    with pytest.raises(FileFormatError, match=r"manifest.json is damaged.*--restart"):
        propagate(*mapped(), out="p.npy", memory="2MB", **MANY)
    propagate(*mapped(), out="p.npy", memory="2MB", restart=True, **MANY)


@pytest.mark.parametrize("left", [{"plan": {"groups": [[0, 70, 5]]}}, {"plan": None, "shapes": [[0, 70, 5]]}])
def test_a_folder_of_an_earlier_release_is_refused(folder, by_block, monkeypatch, left):
    """Its files were others; none of them is read."""
    keep = journal.Journal.record
    with monkeypatch.context() as patch:
        patch.setattr(journal.Journal, "record", lambda self, **done: keep(self, **{**done, **left}))
        stopped(MANY, 1)
    with pytest.raises(FileFormatError, match=r"p.npy.work was left by an earlier release .* start over with restart=True"):
        propagate(*mapped(), out="p.npy", memory="2MB", **MANY)
    propagate(*mapped(), out="p.npy", memory="2MB", restart=True, **MANY)
    assert Path("p.npy").exists() and not Path("p.npy.work").exists()


def test_a_small_disk_is_told_before(folder, by_block, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=10_000))
    with pytest.raises(InputError, match=r"takes about .* of disk while it runs, and .* has 10 kB free: .* more are needed"):
        propagate(*mapped(), out="p.npy", memory="2MB", **MANY)
    assert not Path("p.npy.work").exists()


def test_a_full_disk_is_told_and_nothing_is_lost(folder, by_block, monkeypatch):
    propagate(*mapped(), out="p.npy", memory="2MB", **MANY)
    expected = Path("p.npy").read_bytes()
    save = state_files.save

    def full(file, arrays):
        if file.parent.name == "columns-32.work" and file.name == "coordinates":
            raise OSError(28, "No space left on device")
        return save(file, arrays)

    monkeypatch.setattr(state_files, "save", full)
    with pytest.raises(UnifewsError, match=r"the disk of p.npy.work is full. What is done is kept there"):
        propagate(*mapped(), out="p.npy", memory="2MB", overwrite=True, **MANY)
    assert Path("p.npy").read_bytes() == expected
    monkeypatch.setattr(state_files, "save", save)
    propagate(*mapped(), out="p.npy", memory="2MB", overwrite=True, **MANY)
    assert Path("p.npy").read_bytes() == expected


# --------------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (dict(memory=None), r"give memory='12GB' too"),
        (dict(out=None), r"give out='p.npy' too"),
        (dict(memory="much"), r"`memory` is an amount such as 500MB, 2GB or 1.5GiB; got 'much'"),
        (dict(memory="90kB"), r"memory=90 kB is too little for 700 nodes: .* Give .* or more"),
        (dict(out="p.txt"), r"must end in .npy"),
        (dict(entries="node"), r"entries='node' decides by all columns .* write entries='block'"),
        (dict(edge_sparsity=None, relative_threshold=0.1), r"relative_threshold compares with the mean over all columns"),
        (dict(certify=True), r"certify is not available"),
        (dict(rank=8), r"rank searches for axes"),
        (dict(every_hop=True), r"every_hop keeps every hop in memory"),
        (dict(x=sp.csr_array(DATA.x)), r"a sparse `x` stays in memory"),
        (dict(x=np.zeros((700, 1025), dtype=np.float32)), r"up to 1,024 features, and `x` has 1,025; write basis='input'"),
        (dict(out="graph.npy"), r"graph.npy already exists"),
        (dict(out="nowhere/p.npy"), r"there is no folder nowhere"),
        (dict(out="taken.npy"), r"taken.npy.work exists and is no working folder"),
    ],
)
def test_what_cannot_work_is_one_sentence(folder, how, says):
    Path("graph.npy").write_text("mine")
    Path("taken.npy.work").mkdir()
    Path("taken.npy.work", "thesis.txt").write_text("mine")
    graph, x = mapped()
    arguments = {"x": x, "out": "p.npy", "memory": "1GB", **MANY, **how}
    with pytest.raises((InputError, FileNotFoundError), match=says) as caught:
        propagate(graph, **arguments)
    assert isinstance(caught.value, UnifewsError) and "\n" not in str(caught.value)
    assert Path("graph.npy").read_text() == Path("taken.npy.work", "thesis.txt").read_text() == "mine"
    assert not Path("p.npy").exists() and not Path("p.npy.work").exists()


# ------------------------------------------------------------------------------------------------------------ command line


def test_the_command_prints_its_plan_and_writes_the_result(folder, by_block, monkeypatch):
    command = ["propagate", "graph", "-x", "x.npy", "-o", "p.npy", "--hops", 6, "--edge-sparsity", 0.8, "--memory", "2MB"]
    told = fine(*command, "--json")
    assert re.match(r"note: plan: 70 columns in 3 groups of up to 32; 31 passes over the edges; ", told.err)
    expected = propagate(*mapped(), out="q.npy", memory="2MB", **MANY)
    assert Path("p.npy").read_bytes() == Path("q.npy").read_bytes()
    report = json.loads(told.out)
    assert report["shape"] == [700, 70] and report["edge_sparsity"] == expected.trace.edge_sparsity
    wrong(*command, says="p.npy already exists; add --overwrite")
    assert "wrote p.npy: float32 [700, 70]" in fine(*command, "--overwrite").out


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--memory", "lots"], "--memory is an amount such as 500MB"),
        (["--memory", "1MB"], "--memory 1.0 MB is too little for 700 nodes"),
        (["--memory", "1GB", "--entries", "node"], "--entries node decides by all columns of a node at once"),
        (["--memory", "1GB", "--coordinates"], "--memory writes the embedding; leave out --coordinates"),
        (["--memory", "1GB", "--undirected"], "--undirected needs the graph in memory"),
    ],
)
def test_a_command_that_cannot_work_says_so(folder, more, says):
    wrong("propagate", "graph", "-x", "x.npy", "-o", "p.npy", "--edge-sparsity", 0.5, *more, says=says)
    assert not Path("p.npy").exists() and not Path("p.npy.work").exists()


# ------------------------------------------------------------------------------------------------- sums in a file, full disk


@pytest.fixture
def outside(by_block, monkeypatch):
    """Sums add up in a file."""
    needed = lambda self, blocks, outside=False: blocks * 10 ** (5 if outside else 7)  # noqa: E731
    monkeypatch.setattr(planner.Requirements, "memory", needed)


def test_a_disk_that_fills_up_before_sums_are_written_is_an_error(folder, outside, monkeypatch):
    propagate(*mapped(), out="p.npy", memory="2MB", hops=3)
    expected = Path("p.npy").read_bytes()

    def full(descriptor, start, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    with (
        monkeypatch.context() as patch,
        pytest.raises(UnifewsError, match=r"the disk of p.npy.work is full. What is done is kept"),
    ):
        patch.setattr(os, "posix_fallocate", full)
        propagate(*mapped(), out="p.npy", memory="2MB", overwrite=True, hops=3)
    propagate(*mapped(), out="p.npy", memory="2MB", overwrite=True, hops=3)
    assert Path("p.npy").read_bytes() == expected


@pytest.mark.parametrize("cannot", [errno.EOPNOTSUPP, AttributeError])
def test_a_file_system_that_reserves_nothing_is_given_zeros(tmp_path, monkeypatch, cannot):
    def refused(descriptor, start, size):
        raise cannot() if cannot is AttributeError else OSError(cannot, os.strerror(cannot))

    monkeypatch.setattr(os, "posix_fallocate", refused)
    monkeypatch.setattr(state_files, "_PIECE", 1000)
    for size in (0, 1, 1000, 2500):
        state_files.allocate(tmp_path / "sum", size)
        assert (tmp_path / "sum").read_bytes() == bytes(size)


LIMITED = """
import resource, sys
from pathlib import Path
from unifews.storage import journal, state_files
if sys.argv[1] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
import numpy as np
try:
    state_files.allocate(Path(sys.argv[2]), 64 << 20)
except OSError as error:
    print(error.errno)
else:
    np.memmap(sys.argv[2], np.float32, "r+")[:] = 1
"""


def limited(kind, path):
    done = subprocess.run([sys.executable, "-c", LIMITED, kind, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_a_limit_of_file_sizes_is_an_error_and_no_signal(tmp_path):
    assert limited("limit", tmp_path / "sum") == errno.EFBIG


def test_a_small_disk_is_an_error_and_no_signal(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(place)], capture_output=True).returncode:
        pytest.skip("mounting a small disk takes rights that this user lacks")
    try:
        assert limited("disk", place / "sum") == errno.ENOSPC
    finally:
        subprocess.run(["umount", str(place)], check=True)
