"""`max_error` out of core: the bits of memory, in the memory allowed, and an interrupted call goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from commands import fine

import unifews as uf
from unifews import Filter, Graph, HeatKernel, propagate
from unifews.core.diffusion import Diffusion
from unifews.errors import FileFormatError, InputError
from unifews.kernels.formats import FORMATS
from unifews.propagation import api, features, lanczos, planner
from unifews.propagation.lanczos import Goal
from unifews.resources import format_bytes, parse_bytes
from unifews.storage import journal
from unifews.storage.pages import room

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("estimates_on_any_size")]


def _data():
    """Some nodes without edges, features in three tiles, a few columns that need more than int8."""
    data, rng = uf.powerlaw(700, 6_000, num_features=300, num_classes=5, seed=17), np.random.default_rng(3)
    source, target = (np.asarray(each) for each in data.graph.to_edge_index())
    connected = (source < 680) & (target < 680)
    edges = np.stack([source[connected], target[connected]])
    once = edges[:, edges[0] < edges[1]]
    weight = rng.uniform(0.2, 3, once.shape[1]).astype(np.float32)
    both = np.concatenate([once, once[::-1]], axis=1)
    plain, x = Graph.from_edge_index(edges, 700), data.x.copy()
    for _ in range(12):  # what propagation leaves little of
        x[:, 40:43] -= Diffusion(plain).to_scipy() @ x[:, 40:43]
        x[:, 40:43] /= np.abs(x[:, 40:43]).max()
    return plain, Graph.from_edge_index(both, 700, np.concatenate([weight, weight])), x


PLAIN, WEIGHTED, X = _data()
FIVE = dict(max_error=0.05, threads=1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api, "resident", lambda: 0)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    PLAIN.save("graph")
    np.save("x.npy", X)
    return tmp_path


def mapped():
    return Graph.open("graph"), np.load("x.npy", mmap_mode="r")


@pytest.fixture
def tight(monkeypatch):
    """One megabyte of `memory` holds the two iterates of a hop and nothing else."""
    needed = lambda self, blocks, outside=False: 900_000 if outside else 10**9  # noqa: E731
    monkeypatch.setattr(planner.TileRequirements, "memory", needed)


def same(got, expected):
    """All that a result has, but its times."""
    assert np.array_equal(got.embedding, expected.embedding) and got.exponent == expected.exponent
    assert (got.error, got.plan) == (expected.error, expected.plan)
    assert np.array_equal(got.column_errors, expected.column_errors)
    for name in ("requested", "notes", "estimated_error", "edge_sparsity", "macs", "dense_macs", "rank", "basis_macs"):
        assert getattr(got.trace, name) == getattr(expected.trace, name)
    counts = [[(hop.entries, hop.kept, hop.zeros, hop.macs) for hop in each.trace.hops] for each in (got, expected)]
    assert counts[0] == counts[1]


CASES = {
    "appnp": dict(),
    "weighted": dict(graph=WEIGHTED, scheme="sgc"),
    "r = 0": dict(r=0.0),
    "r = 1": dict(r=1.0),
    "heat": dict(scheme=HeatKernel(3.0)),
    "filter": dict(scheme=Filter(lambda t: 1 / (2 - t), skip="none")),
    "frobenius": dict(error_norm="frobenius", max_error=0.02),
    "float32": dict(max_error=1e-4),
    "fixed": dict(degree=4, precision="bfloat16"),
    "huge": dict(x=X * np.float32(1e20)),
    "double": dict(x=X.astype(np.float64)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_result_is_that_of_memory(folder, name):
    how, plans = {"graph": PLAIN, "x": np.load("x.npy", mmap_mode="r"), **FIVE, **CASES[name]}, []
    got = propagate(**how, out="p.npy", memory="1GB", plan=plans.append)
    assert [shape.width for shape in plans[0].groups] == [112, 112, 76]
    assert plans[0].held >= max(got.plan.hops) and not plans[0].outside
    same(got, propagate(**how))
    assert sorted(file.name for file in folder.iterdir()) == ["graph", "p.npy", "x.npy"]


@pytest.mark.parametrize("features, tiles", [(32, [32]), (128, [48, 48, 32])])
def test_a_billion_edges_in_eight_gigabytes(features, tiles):
    """50 M nodes and 1.5 B edges, planned without them: one iterate in memory, all else in mapped files."""
    n, m = 50_000_000, 1_500_000_000
    edges = SimpleNamespace(num_nodes=n, num_edges=m, weight=None, indices=SimpleNamespace(itemsize=4))
    op = SimpleNamespace(graph=edges, diffusion=SimpleNamespace(graph=edges), hops=20, accumulate=True, grows=False)
    matrix = SimpleNamespace(n=n, f=features, dense=np.empty((1, features), dtype=np.float32))
    config = SimpleNamespace(entries="block", inherit=False)
    task = SimpleNamespace(op=op, features=matrix, config=config, carries=False, by_feature=False, budget_on=lambda width: None)
    plan = planner.make_tiles(planner.TileRequirements(task, Goal(0.05)), limit=8 * 10**9, taken=300 * 10**6)
    assert [shape.width for shape in plan.groups] == tiles and plan.outside
    assert 96 * n < plan.memory <= 8e9 - room(8e9) - 3e8
    with pytest.raises(InputError, match=r"Give (5\.\d GB) or more") as refused:
        planner.make_tiles(planner.TileRequirements(task, Goal(0.05)), limit=5 * 10**9, taken=300 * 10**6)
    amount = re.findall(r"Give (.*?) or more", str(refused.value))[0]  # what the message asks for is enough
    planner.make_tiles(planner.TileRequirements(task, Goal(0.05)), parse_bytes(amount, "memory"), taken=300 * 10**6)


@pytest.mark.parametrize("memory", [4_321, 99_000, 930_000, 931_000, 943_000_000, 9_090_000_000, 987_654_321_000])
def test_the_memory_asked_for_is_enough_as_it_is_shown(memory):
    shown = parse_bytes(format_bytes(planner.enough(memory)), "memory")
    assert memory + room(shown) <= shown <= max(1.25 * memory + 100, 1100)


@pytest.mark.parametrize("name", CASES)
def test_iterates_in_files(folder, tight, name):
    how, plans, files = {"graph": PLAIN, "x": np.load("x.npy", mmap_mode="r"), **FIVE, **CASES[name]}, [], set()
    look = lambda done, _: files.update(file.name for file in Path("p.npy.work").glob("iterate-*"))  # noqa: E731
    got = propagate(**how, out="p.npy", memory="1MB", plan=plans.append, progress=look)
    assert plans[0].outside and plans[0].held == 0
    assert files >= {f"iterate-{number}" for number in range(max(got.plan.hops))}, "more, if a format did not do"
    same(got, propagate(**how))
    assert sorted(file.name for file in folder.iterdir()) == ["graph", "p.npy", "x.npy"]


def test_columns_that_need_a_wider_format(folder, tight, monkeypatch):
    """A few of them are propagated again; where tiles are large, wide formats have narrower ones."""
    for large in (lanczos._LARGE, 0):
        monkeypatch.setattr(lanczos, "_LARGE", large)
        for max_error in (0.05, 0.003):
            how = FIVE | dict(max_error=max_error)
            expected = propagate(PLAIN, X, **how)
            same(propagate(*mapped(), out="p.npy", memory="1MB", overwrite=True, **how), expected)
            assert expected.plan.redone or max_error == 0.003
        assert len(expected.plan.hops) > 3 or large


def test_rows_in_many_chunks(folder, monkeypatch):
    """Sums add up over the row ranges of all columns."""
    monkeypatch.setattr(features, "_CHUNK_BYTES", 50 * 4 * 300)
    same(propagate(*mapped(), out="p.npy", memory="1GB", **FIVE), propagate(*mapped(), **FIVE))


@pytest.mark.parametrize(
    ("how", "graph", "because"),
    [
        (dict(hops=3), PLAIN, "so few hops"),
        (dict(), Graph.from_edge_index(np.array([[0, 1, 2], [1, 2, 3]]), 700), "the graph is directed"),
        (dict(scheme="sgc", max_error=1e-7), PLAIN, "rounding leaves too much"),
        (dict(scheme="sgc", hops=70, max_error=1e-7), PLAIN, "propagated unpruned"),
    ],
)
def test_all_hops_of_the_scheme_where_fewer_do_not_do(folder, how, graph, because):
    expected = propagate(graph, X, **FIVE | how)
    assert expected.plan.method == "unpruned" and because in expected.trace.notes[-1]
    same(propagate(graph, X, out="p.npy", memory="1GB", **FIVE | how), expected)


def test_the_plan_is_kept_to(folder, monkeypatch):
    made = uf.powerlaw(40_000, 200_000, num_features=140, seed=5)
    monkeypatch.setattr(planner, "_FIXED", 30 << 20)  # what 8 MB chunks of rows take, with something to spare
    np.save("big.npy", made.x)
    made.graph.save("big")
    graph, x = Graph.open("big"), np.load("big.npy", mmap_mode="r")
    expected = propagate(graph, x, max_error=0.01).embedding
    for limit in ("74MB", "130MB"):
        plans, disk = [], []

        def look(done, total, disk=disk):
            disk.append(sum(file.stat().st_size for file in Path("p.npy.work").rglob("*") if file.is_file()))

        tracemalloc.start()
        try:
            got = propagate(
                graph, x, max_error=0.01, out="p.npy", memory=limit, plan=plans.append, progress=look, overwrite=True
            )
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak <= plans[0].memory <= float(limit[:-2]) * 1e6 and max(disk) <= plans[0].disk * 1.02
        assert np.array_equal(got.embedding, expected)


RESIDENT = """
import sys
import numpy as np
from unifews import Graph, propagate
how = dict(out="p.npy", memory="330MB", overwrite=True, **eval(sys.argv[1]))
propagate(Graph.open("big"), np.load("big.npy", mmap_mode="r"), **how)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/self/status")
def test_resident_memory_with_mapped_pages_is_within_the_limit(folder):
    """Features and result alone are 205 MB, and the process has 60 MB or more before it starts."""
    made = uf.powerlaw(400_000, 4_000_000, num_features=64, seed=5)
    np.save("big.npy", made.x)
    made.graph.save("big")
    for how in (dict(max_error=0.05), dict(max_error=0.001), dict(edge_sparsity=0.9), dict()):
        told = subprocess.run([sys.executable, "-c", RESIDENT, repr(how)], capture_output=True, text=True, check=True)
        assert int(told.stdout) * 1024 <= 330e6, how


def test_tiles_of_very_many_nodes_are_narrow():
    """48 columns of int8 with their steps are one cache line, and no format has longer rows."""
    most = lanczos.MANY
    assert [shape.width for shape in lanczos.tile_shapes(128, most)] == [48, 48, 32]
    assert [shape.width for shape in lanczos.tile_shapes(32, most)] == [32]
    assert lanczos.tile_shapes(300, most - 1) == lanczos.cut(300)
    for format in FORMATS.values():
        for shape in lanczos.tile_shapes(300, most):
            parts = lanczos.parts_of(shape, format, most)
            assert max(format.empty(1, part.blocks).nbytes for part in parts) <= 64
            assert sum(part.width for part in parts) == shape.width


def test_narrow_tiles_are_those_of_memory(folder, tight, monkeypatch):
    monkeypatch.setattr(lanczos, "MANY", 100)
    plans = []
    got = propagate(*mapped(), out="p.npy", memory="1MB", plan=plans.append, **FIVE)
    assert {shape.width for shape in plans[0].groups} == {48, 12}
    same(got, propagate(*mapped(), **FIVE))


def test_the_plan_says_what_it_takes(folder):
    told = []
    propagate(*mapped(), out="p.npy", memory="1GB", plan=lambda plan: told.append(str(plan)), **FIVE)
    assert told[0].startswith("300 columns in 3 groups of up to 112; as a rule at most 45 passes over the edges; ")


# ------------------------------------------------------------------------------------------------------------ interruption

CHILD = """
import os, sys
import numpy as np
from unifews import Graph, propagate
from unifews.propagation import tolerance
from unifews.storage import journal
tolerance.METHODS = ("lanczos",)
os.fsync = lambda descriptor: None
journal.SAVE_INTERVAL = 0.0
record = journal.Journal.record

def told(self, **done):
    print("before", *done, flush=True)
    record(self, **done)
    print("after", *done, flush=True)

journal.Journal.record = told
propagate(Graph.open("graph"), np.load("x.npy", mmap_mode="r"), out="p.npy", memory="1GB", **eval(sys.argv[1]))
"""


def child(how, kill=None):
    """The lines of a process that does the work; killed after so many of them."""
    command = [sys.executable, "-c", CHILD, repr(how)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        if kill is None:
            return process.stdout.readlines()
        for _ in range(kill):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        return []


KILLED = {
    "tiles": FIVE,
    "unpruned in the end": FIVE | dict(scheme="sgc", max_error=1e-7),
    **{name: FIVE | dict(precision=name) for name in FORMATS},
}


@pytest.mark.parametrize("how", KILLED.values(), ids=KILLED)
def test_a_killed_process_goes_on_and_ends_with_the_same_bytes(folder, how):
    propagate(*mapped(), out="p.npy", memory="1GB", **how)
    expected = Path("p.npy").read_bytes()
    Path("p.npy").unlink()
    lines = child(how)
    assert Path("p.npy").read_bytes() == expected
    Path("p.npy").unlink()
    for step in np.linspace(2, len(lines) // 3, 4).astype(int).tolist():
        child(how, kill=step)
    rest = child(how)
    assert Path("p.npy").read_bytes() == expected and not Path("p.npy.work").exists()
    assert len(rest) < len(lines)


def stopped(step, **how):
    """Interrupt the work after so many steps: laying out, each of the three tiles, writing the result."""

    def look(done, total):
        assert total == 5
        if done == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        propagate(*mapped(), out="p.npy", memory="1GB", progress=look, **FIVE | how)


def test_no_finished_tile_is_propagated_again(folder, monkeypatch):
    expected, ran, tile = propagate(*mapped(), **FIVE), [], lanczos.propagate_tile
    monkeypatch.setattr("unifews.propagation.tile_files.propagate_tile", lambda *given: ran.append(1) or tile(*given))
    for step in (1, 2, 3, 4, 5):
        stopped(step)
    steps = []
    got = propagate(*mapped(), out="p.npy", memory="1GB", progress=lambda done, _: steps.append(done), **FIVE)
    assert len(ran) == 3 and steps == [1, 5]
    same(got, expected)


def test_a_result_in_its_place_is_not_made_again(folder):
    stopped(5)
    Path("p.npy.work/embedding.npy").replace("p.npy")
    same(propagate(*mapped(), out="p.npy", memory="1GB", **FIVE), propagate(*mapped(), **FIVE))
    assert not Path("p.npy.work").exists()


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (dict(max_error=0.1), r"begun with max_error 0.05 and not 0.1"),
        (dict(max_error=None, edge_sparsity=0.5), r"begun with edge_sparsity None and not 0.5"),
        (dict(error_norm="frobenius"), r"begun with error_norm 'columns' and not 'frobenius'"),
        (dict(precision="float32"), r"begun with precision None and not 'float32'"),
        (dict(scheme=Filter(lambda t: t**3)), r"begun with scheme .* and not"),
    ],
)
def test_other_options_are_refused(folder, other, says):
    stopped(3)
    with pytest.raises(InputError, match=says):
        propagate(*mapped(), **{"out": "p.npy", "memory": "1GB", **FIVE, **other})
    how = {"out": "p.npy", "memory": "1GB", **FIVE, **other}
    propagate(*mapped(), **how, restart=True)
    assert not Path("p.npy.work").exists()


def test_less_memory_than_planned_is_refused(folder):
    stopped(3)
    with pytest.raises(InputError, match=r"planned for more than 80 MB. Give .*, or start over"):
        propagate(*mapped(), out="p.npy", memory="80MB", **FIVE)


def test_a_filter_by_its_function(folder):
    stopped(3, scheme=Filter(lambda t: 1 / (2 - t)))
    with pytest.raises(InputError, match="begun with scheme"):
        propagate(*mapped(), out="p.npy", memory="1GB", scheme=Filter(lambda t: 1 / (3 - t)), **FIVE)
    propagate(*mapped(), out="p.npy", memory="1GB", scheme=Filter(lambda t: 1 / (2 - t)), **FIVE)


@pytest.mark.parametrize("name", ["sums", "layout-224", "tiles-0.work/coordinates"])
@pytest.mark.parametrize("how", ["changed", "missing"])
def test_a_damaged_working_file_is_told(folder, name, how):
    stopped(3)
    file = Path("p.npy.work", name)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data) if how == "changed" else file.unlink()
    with pytest.raises(FileFormatError, match=f"{file.name} has changed since the interrupted call"):
        propagate(*mapped(), out="p.npy", memory="1GB", **FIVE)


def test_a_folder_of_an_earlier_release_is_refused(folder, monkeypatch):
    record = journal.Journal.record
    with monkeypatch.context() as patch:
        left = {"plan": {"groups": [[0, 300, 19]]}}
        patch.setattr(journal.Journal, "record", lambda self, **done: record(self, **{**done, **left}))
        stopped(1)
    with pytest.raises(FileFormatError, match=r"left by an earlier release .* start over with restart=True"):
        propagate(*mapped(), out="p.npy", memory="1GB", **FIVE)


# --------------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (dict(memory="40MB"), r"memory=40 MB is too little for 700 nodes: .* propagates 112 columns at a time, needs .* Give"),
        (dict(certify=True), r"certify is not available out of core"),
        (dict(certify="sampled"), r"certify is not available out of core"),
        (dict(x=sp.csr_array(X)), r"a sparse `x` stays in memory"),
        (dict(max_error=0), r"`max_error` is 0"),
        (dict(degree=30), r"`degree` is 30, more than the 20 hops"),
        (dict(scheme=HeatKernel(4000.0), max_error=1e-6), r"after 63 hops the error is still"),
    ],
)
def test_what_cannot_work_is_one_sentence(folder, how, says):
    graph, x = mapped()
    with pytest.raises(InputError, match=says) as caught:
        propagate(graph, **{"x": x, "out": "p.npy", "memory": "1GB", **FIVE, **how})
    assert "\n" not in str(caught.value) and not Path("p.npy").exists() and not Path("p.npy.work").exists()


def test_wide_features_need_no_axes(folder):
    x = np.random.default_rng(1).standard_normal((700, 1100)).astype(np.float32)
    same(propagate(PLAIN, x, out="p.npy", memory="1GB", **FIVE), propagate(PLAIN, x, **FIVE))


def test_the_command(folder):
    command = ["propagate", "graph", "-x", "x.npy", "-o", "p.npy", "--max-error", 0.05, "--memory", "1GB", "--json"]
    told = fine(*command)
    assert "note: plan: 300 columns in 3 groups of up to 112; as a rule" in told.err
    assert json.loads(told.out)["shape"] == [700, 300]
    assert np.array_equal(np.load("p.npy"), propagate(*mapped(), max_error=0.05).embedding)
