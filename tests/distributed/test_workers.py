"""Propagation by several workers: the result of one process, less sent where more is pruned, and no end by a lost worker."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from many_cases import CASES, MISTAKES
from torchrun import torchrun

import unifews as uf
from unifews import Graph, propagate
from unifews.errors import FileFormatError, InputError
from unifews.propagation import features, planner
from unifews.propagation.budget import Target
from unifews.propagation.distributed import dealt
from unifews.propagation.folder import SharedRows
from unifews.storage import journal
from unifews.storage.journal import folder_of

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
write = SharedRows.write
ERRORS = [name for name in CASES if name.startswith("columns") and "max_error" in CASES[name][1]]
COLUMNS = [name for name in CASES if name.startswith("columns") and name not in ERRORS]
NODES = [name for name in CASES if name.startswith("nodes") and name != "nodes error"]  # test_error_by_nodes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Graphs and features in files, and what two workers made of them."""
    place = tmp_path_factory.mktemp("workers")
    data = uf.powerlaw(700, 6_000, num_features=70, num_classes=5, seed=17)
    data.graph.save(place / "plain")
    rng = np.random.default_rng(23)
    edges = rng.integers(0, 700, (2, 5_000))
    Graph.from_edge_index(edges, 700, rng.uniform(0.2, 3, 5_000).astype(np.float32)).save(place / "weighted")
    np.save(place / "x.npy", data.x)
    np.save(place / "x0.npy", data.x)
    np.save(place / "x1.npy", data.x[::-1].copy())
    np.save(place / "wide.npy", np.concatenate([data.x, data.x[::-1] ** 2], axis=1))
    np.save(place / "parts.npy", rng.integers(0, 2, 700))
    np.save(place / "there.npy", np.zeros(3))
    done = torchrun(2, HERE / "many_cases.py", place)
    assert done.code == 0, done.err[-3000:]
    return place


@pytest.fixture(scope="module")
def told(folder):
    return [json.loads((folder / f"told-{rank}.json").read_text()) for rank in (0, 1)]


def alone(folder, name, **more):
    data, how = CASES[name]
    how = {key: value for key, value in how.items() if key not in ("partition", "groups")}
    graph = Graph.open(folder / ("weighted" if data == "weighted" else "plain"))
    return propagate(graph, np.load(folder / f"{'wide' if data == 'wide' else 'x'}.npy"), **how, **more)


def same_as(got, trace, expected):
    scale = float(np.abs(expected.embedding).max())
    np.testing.assert_allclose(got / scale, expected.embedding / scale, atol=1e-6, rtol=0)
    assert trace["exponent"] == expected.exponent
    wanted = expected.trace.to_dict()
    for name in ("requested", "macs", "dense_macs", "rank", "basis_macs"):
        assert trace[name] == wanted[name]
    for mine, one in zip(trace["hops"], wanted["hops"], strict=True):
        for name in ("entries", "kept", "zeros", "macs"):
            assert mine[name] == one[name]
        assert mine["threshold"] == (one["threshold"] and pytest.approx(one["threshold"], rel=1e-6))


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_dealt_out(folder, told, monkeypatch, name):
    groups = CASES[name][1].get("groups")
    shapes = dealt(70, groups or 1, 1 if groups else 2)
    assert len(shapes) == (groups or 2)
    monkeypatch.setattr(planner, "in_memory_groups", lambda *given: [[shape] for shape in shapes])
    monkeypatch.setattr(Target, "inherit", lambda self, other: None)  # nothing is handed over
    same_as(np.load(folder / f"{name}.npy"), told[0][name], alone(folder, name))


@pytest.mark.usefixtures("estimates_on_any_size")
@pytest.mark.parametrize("name", ERRORS)
def test_tiles_dealt_out(folder, told, name):
    """To an allowed error, all is as in one process, to the bit."""
    expected = alone(folder, name)
    assert np.array_equal(np.load(folder / f"{name}.npy"), expected.embedding)
    same_as(expected.embedding, told[0][name], expected)
    for each in told:
        assert each[name]["accuracy"] == [expected.error, expected.column_errors.tolist(), str(expected.plan)]
        assert each[name]["notes"] == list(expected.trace.notes)
    assert (expected.plan.method == "unpruned") == name.endswith(("unpruned", "directed"))


@pytest.mark.parametrize("name", NODES)
def test_nodes_dealt_out(folder, told, name):
    expected = alone(folder, name)
    same_as(np.load(folder / f"{name}.npy"), told[0][name], expected)
    assert [told[1][name][key] for key in ("macs", "traffic")] == [told[0][name][key] for key in ("macs", "traffic")]


def test_what_is_pruned_is_not_sent(told):
    share = {name: told[0][name]["traffic"]["share"] for name in NODES}
    assert share["nodes unpruned"] == 1
    assert share["nodes high target"] < share["nodes target"] < 0.6
    traffic = told[0]["nodes target"]["traffic"]
    assert traffic["workers"] == 2 and traffic["sent_bytes"] == sum(hop["sent_bytes"] for hop in traffic["hops"])
    assert traffic["share"] == traffic["sent_bytes"] / traffic["unpruned_bytes"]


def test_rows_that_no_edge_crosses_for_are_not_counted(folder, told):
    """Unpruned, each worker sends every row that an edge of the other begins at, once a hop, all 70 columns of it."""
    graph = Graph.open(folder / "weighted")
    source, target = graph.to_edge_index()
    first = told[0]["nodes unpruned"]["traffic"]["hops"][0]["unpruned_bytes"] // 280
    counts = []
    for cut in range(1, 700):
        crossing = (source < cut) != (target < cut)
        counts.append(len(np.unique(source[crossing])))
    assert first in counts


@pytest.mark.parametrize(
    "name, words",
    [
        ("hops", ["disagree on hops", "worker 0 has 5, worker 1 has 6"]),
        ("x", ["disagree on x"]),
        ("file", ["disagree on", "x0.npy"]),
        ("way", ["no partition named 'node'", "Did you mean 'nodes'?"]),
        ("lonely", ["worker 1 failed", "`hops` is the number of propagation steps"]),
        ("narrow", ["2 workers are too many for 1 group of columns", "partition='nodes'"]),
        ("groups", ["2 workers are too many for 1 group"]),
        ("no part", ["no nodes for worker 1 of 2"]),
        ("other part", ["gives nodes to worker 2, but the 2 workers are 0 to 1"]),
        ("sparse", ["entries='node'"]),
        ("error in groups", ["`groups` has no effect with max_error"]),
        ("error by nodes in groups", ["`groups` has no effect with max_error"]),
        ("error of one tile", ["2 workers are too many for max_error", "70 features in 1 tile of up to 70 columns; start 1"]),
        ("error of a filter", ["after 63 hops the error is still"]),
        ("error of workers", ["disagree on max_error"]),
        ("there", ["there.npy already exists"]),
    ],
)
def test_a_mistake_is_told_once_and_ends_all(folder, told, name, words):
    assert set(MISTAKES) <= told[0].keys()
    first, second = (each[name] for each in told)
    for part in words:
        assert part in first
    assert not first.startswith("ReportedElsewhere") and second.startswith("ReportedElsewhere")
    assert not folder_of(folder / f"{name}.npy").exists()
    assert (folder / "there.npy").exists() and len(np.load(folder / "there.npy")) == 3


def test_a_lost_worker_is_replaced_and_all_go_on(folder):
    done = torchrun(2, HERE / "dies.py", folder, restarts=4)
    assert done.code == 0, done.err[-3000:]
    for way, same in {
        "columns": "columns target",
        "nodes": "nodes target",
        "error": "columns error",
        "error nodes": "nodes error",
    }.items():
        assert (folder / f"killed {way}.npy").read_bytes() == (folder / f"{same}.npy").read_bytes()
        assert not folder_of(folder / f"killed {way}.npy").exists()
    # It was killed after its third hop, which all may have kept, or all but one.
    assert [(folder / f"steps nodes {rank}").read_text() for rank in (0, 1)] in (["1 5 6 7"] * 2, ["1 4 5 6 7"] * 2)
    assert (folder / "steps columns 1").read_text() == "1 5 6 7"
    assert (folder / "steps error 1").read_text() == "1 3", "its tile was finished"
    assert (folder / "steps error nodes 1").read_text() == "1 3 4", "the first of two tiles was finished"


def test_the_command(folder):
    """What a user types, and what is printed by one of the workers."""
    line = ("-m", "unifews", "propagate", "plain", "-x", "x.npy", "--hops", 5, "--edge-sparsity", 0.8, "--threads", 1)
    done = torchrun(2, *line, "--partition", "nodes", "--out", "by command.npy", "--json", cwd=folder)
    assert done.code == 0, done.err[-3000:]
    told = json.loads(done.out)
    assert told["traffic"]["workers"] == 2 and told["shape"] == [700, 70]
    assert (folder / "by command.npy").read_bytes() == (folder / "nodes target.npy").read_bytes()


def test_the_command_tells_a_mistake_once(folder):
    done = torchrun(2, "-m", "unifews", "propagate", "plain", "-x", "nothing.npy", "--out", "never.npy", cwd=folder)
    assert done.code != 0 and done.out == ""
    assert done.err.count("unifews: there is no file nothing.npy") == 1
    assert not list(folder.glob("never*"))


def test_one_worker_alone(folder, monkeypatch, tmp_path):
    """Without torchrun, one process: interrupted, it goes on; the groups decide about the result, not the workers."""
    monkeypatch.chdir(folder)
    graph, x = Graph.open("plain"), np.load("x.npy", mmap_mode="r")
    for name, how in [
        ("columns target in 5", dict(edge_sparsity=0.8, groups=5)),
        ("nodes target", dict(edge_sparsity=0.8, partition="nodes")),
        ("nodes wide", dict(edge_sparsity=0.8, partition="nodes")),
        ("nodes unpruned", dict(partition="nodes")),
    ]:
        x = np.load("wide.npy" if "wide" in name else "x.npy", mmap_mode="r")
        graph = Graph.open("weighted" if "unpruned" in name else "plain")
        out, steps = tmp_path / f"{name}.npy", []

        def stop(done, total, steps=steps):
            steps.append(done)
            if len(steps) == 5:  # after the basis, and four hops
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            uf.distributed.propagate(graph, x, hops=5, threads=1, out=out, checkpoint_every_hop=True, progress=stop, **how)
        with pytest.raises(InputError, match="begun with hops 5 and not 6"):
            uf.distributed.propagate(graph, x, hops=6, threads=1, out=out, **how)
        uf.distributed.propagate(graph, x, hops=5, threads=1, out=out, checkpoint_every_hop=True, progress=stop, **how)
        assert steps[:7] == [1, 2, 3, 4, 5, 1, 6]
        if name.startswith("columns"):
            assert out.read_bytes() == Path(f"{name}.npy").read_bytes()
        np.testing.assert_allclose(np.load(out), np.load(f"{name}.npy"), atol=2e-6)


@pytest.mark.parametrize("partition", ["columns", "nodes"])
def test_writing_the_result_is_resumed_and_compared(folder, monkeypatch, tmp_path, partition):
    monkeypatch.setattr(journal, "SAVE_INTERVAL", 0.0)
    monkeypatch.setattr(features, "_CHUNK_BYTES", 50 * 4 * 70)
    graph, x, record = Graph.open(folder / "plain"), np.load(folder / "x.npy", mmap_mode="r"), journal.Journal.record
    how = dict(hops=4, edge_sparsity=0.8, threads=1, partition=partition)
    uf.distributed.propagate(graph, x, out=tmp_path / "whole.npy", **how)

    def stop(self, **done):
        record(self, **done)
        if done.get("rows", {"pieces": 0})["pieces"] == 3:
            raise KeyboardInterrupt

    def stopped(out):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(journal.Journal, "record", stop)
            uf.distributed.propagate(graph, x, out=out, **how)
        return folder_of(out) / "embedding.npy"

    stopped(tmp_path / "p.npy")
    written, steps = [], []
    with monkeypatch.context() as patch:
        patch.setattr(SharedRows, "write", lambda self, nodes, rows: written.append(nodes[0]) or write(self, nodes, rows))
        uf.distributed.propagate(graph, x, out=tmp_path / "p.npy", progress=lambda done, _: steps.append(done), **how)
    assert written[0] == 150 and steps[0] == 1 and len(steps) == 2, "no hop and no row is made again"
    assert (tmp_path / "p.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()

    file = stopped(tmp_path / "q.npy")
    data = bytearray(file.read_bytes())
    data[len(data) // 10] ^= 1
    file.write_bytes(data)
    with pytest.raises(FileFormatError, match=r"embedding.npy has changed since the interrupted call"):
        uf.distributed.propagate(graph, x, out=tmp_path / "q.npy", **how)
