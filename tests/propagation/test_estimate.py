"""Whether pruning pays: the estimate of an unpruned run, and the sentence where a pruned one is slower."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import unifews as uf
from unifews.core.diffusion import Diffusion
from unifews.core.schemes import resolve
from unifews.core.trace import HopTrace, Trace
from unifews.propagation import estimate, inmemory, tiles
from unifews.propagation.estimate import unpruned_seconds
from unifews.propagation.operator import HopOperator
from unifews.resources import cores

MADE = uf.powerlaw(400, 3_000, num_features=40, seed=11)
PRUNED = [
    dict(edge_sparsity=0.5),
    dict(threshold=0.01),
    dict(relative_threshold=0.5),
    dict(rank=8),
]


def operator(scheme="appnp", graph=MADE.graph, threads=1):
    scheme, hops = resolve(scheme, 5)
    return HopOperator(Diffusion(graph, 0.5), scheme, hops, threads)


@pytest.mark.parametrize("how", PRUNED, ids=str)
def test_a_pruned_run_knows_about_what_an_unpruned_one_takes(how):
    assert uf.propagate(MADE.graph, MADE.x, hops=3, **how).trace.unpruned_seconds > 0


@pytest.mark.parametrize("how", [{}, dict(edge_sparsity=0)], ids=str)
def test_an_unpruned_run_is_compared_with_nothing(how):
    trace = uf.propagate(MADE.graph, MADE.x, hops=3, **how).trace
    assert trace.unpruned_seconds is None and trace.slower is None


@pytest.mark.parametrize("scheme", ["appnp", "sgc"])
@pytest.mark.parametrize("width", [1, 15, 16, 17, 40, 300])
@pytest.mark.parametrize("step", ["whole", "some"])
def test_it_reads_the_values_and_leaves_them_alone(scheme, width, step, monkeypatch):
    if step == "some":
        monkeypatch.setattr(estimate, "_SMALL", 500)
        monkeypatch.setattr(estimate, "_ROWS", 16)
    raw = np.random.default_rng(3).standard_normal(400 * width + 1).astype(np.float32)
    values = raw[1:].reshape(400, width)  # not at the start of a cache line
    before = raw.copy()
    assert unpruned_seconds(operator(scheme), 40, values) > 0
    assert np.array_equal(raw, before)


def test_a_graph_without_edges_is_not_timed():
    graph = uf.Graph.from_edge_index(np.empty((2, 0), dtype=np.int64), 5)
    assert unpruned_seconds(operator(graph=graph), 4, np.ones((5, 4), dtype=np.float32)) is None


def test_a_few_rows_are_timed_of_a_graph_with_many(monkeypatch):
    monkeypatch.setattr(estimate, "_SMALL", 64)
    monkeypatch.setattr(estimate, "_ROWS", 8)
    rows = [estimate._some(400, 7, trial) for trial in range(7)]
    assert all(len(each) <= 64 for each in rows)
    assert sorted(np.concatenate(rows).tolist()) == list(range(400))
    assert unpruned_seconds(operator(), 40, np.ones((400, 16), dtype=np.float32)) > 0


class Clocks:
    """A hop takes a second of CPU time, and more on the wall where its threads are kept waiting."""

    def __init__(self, monkeypatch, waits):
        self.wall = self.cpu = 0.0
        self.waits, self.asked = waits, []
        monkeypatch.setattr(estimate, "perf_counter", lambda: self.wall)
        monkeypatch.setattr(estimate, "thread_time", lambda: self.cpu)
        monkeypatch.setattr(estimate, "_fresh_memory", lambda: 0.0)
        monkeypatch.setattr(tiles.native, "full_hop", self.full_hop)

    def full_hop(self, *, threads, **_):
        self.asked.append(threads)
        self.cpu += 1.0
        self.wall += 1.0 / threads + self.waits


@pytest.fixture(autouse=True)
def idle(monkeypatch):
    """Whatever else this machine does."""
    monkeypatch.setattr(estimate.os, "getloadavg", lambda: (1.0, 1.0, 1.0))


@pytest.mark.parametrize("waits, hop", [(0.0, 0.5), (0.2, 0.7), (50.0, 1.0)])
def test_threads_that_wait_for_each_other_do_not_count(waits, hop, monkeypatch):
    clocks = Clocks(monkeypatch, waits)
    op = operator(threads=2)
    assert unpruned_seconds(op, 16, np.ones((400, 16), dtype=np.float32)) == pytest.approx(op.hops * hop)
    assert set(clocks.asked) == {1, 2}


def test_a_busy_machine_gives_no_estimate(monkeypatch):
    monkeypatch.setattr(estimate.os, "getloadavg", lambda: (1.6 * cores(), 0.0, 0.0))
    assert unpruned_seconds(operator(threads=2), 16, np.ones((400, 16), dtype=np.float32)) is None


def trace(seconds, whole):
    hop = HopTrace(0, 10, 5, 0, 5, 10, 0, 0.1, seconds)
    return Trace((hop,), unpruned_seconds=whole)


@pytest.mark.parametrize(
    "seconds, whole, words",
    [
        (
            1.7,
            1.0,
            "an estimated 1.7 times as long as unpruned propagation (1.7 s, 1 s); "
            "pruning saves operations here, not time; max_error=0.05 (--max-error .05) saves hops",
        ),
        (12.0, 1.0, "an estimated 12 times as long"),
        (1.1, 1.0, None),
        (0.5, 1.0, None),
        (0.04, 0.01, None),
        (9.0, None, None),
    ],
)
def test_what_is_said_of_it(seconds, whole, words):
    found = trace(seconds, whole)
    assert (found.slower is None) if words is None else (words in found.slower)
    assert ("times as long" in str(found)) == (words is not None)
    assert found.to_dict()["unpruned_seconds"] == whole
    assert found.notes == ()


def test_rotating_back_counts(monkeypatch):
    out = uf.propagate(MADE.graph, MADE.x, hops=3, edge_sparsity=0.5)
    out.trace = replace(out.trace, unpruned_seconds=out.trace.seconds, basis_seconds=out.trace.basis_seconds + 100)
    assert out.trace.slower is not None
    before = out.trace.seconds
    assert out.embedding.shape == (400, 40) and out.trace.seconds > before and out.trace.unpruned_seconds is not None


def test_what_is_slower_is_said_in_the_run_itself(monkeypatch):
    monkeypatch.setattr(inmemory, "unpruned_seconds", lambda *_: 1e-9)
    monkeypatch.setattr("unifews.core.trace._NOTICED", 0.0)
    assert "times as long as unpruned" in str(uf.propagate(MADE.graph, MADE.x, hops=3, edge_sparsity=0.5).trace)
    monkeypatch.setattr(inmemory, "unpruned_seconds", lambda *_: 1e9)
    assert "times as long as unpruned" not in str(uf.propagate(MADE.graph, MADE.x, hops=3, edge_sparsity=0.5).trace)
