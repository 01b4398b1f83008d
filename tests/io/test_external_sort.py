"""Graphs built through files: the bytes that memory gives, whatever the buckets, and wherever the work was interrupted."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unifews.core import csr
from unifews.core.graph import Graph
from unifews.errors import FileFormatError, GraphError, InputError
from unifews.io.edge_lists import EdgeList
from unifews.io.external_sort import build
from unifews.resources import Memory, format_bytes, in_order, parse_bytes, parse_count
from unifews.storage import journal, state_files
from unifews.storage.journal import open_journal


class Given:
    """Arrays in memory, a few edges at a time."""

    def __init__(self, edges, weight=None, chunk=7):
        self.edges, self.weight, self.chunk, self.weighted = edges, weight, chunk, weight is not None

    def __len__(self):
        return -(-self.edges.shape[1] // self.chunk)

    def read(self, chunk):
        part = slice(chunk * self.chunk, (chunk + 1) * self.chunk)
        return EdgeList(*self.edges[:, part], None if self.weight is None else self.weight[part])

    def sample(self):
        return None

    def drop(self, chunks):
        pass


class Sampled(Given):
    """Where edges end is told by a few of them, which are not typical at all."""

    def sample(self):
        return self.read(0), len(self)


@pytest.fixture(autouse=True)
def swift(monkeypatch):
    """Nobody pulls the plug in these tests, so the disk need not be waited for."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def in_memory(edges, n, weight, undirected):
    graph = Graph.from_edge_index(edges, n, weight)
    return graph.undirected() if undirected else graph


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def assert_same(place, graph, tmp):
    graph.save(tmp / "expected", overwrite=True)
    assert contents(place) == contents(tmp / "expected")


@st.composite
def lists(draw):
    """Nodes, edges with self-loops and copies, weights of any size or none, isolated nodes at the end."""
    n = draw(st.integers(1, 40))
    m = draw(st.integers(0, 80))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    edges = rng.integers(0, max(1, n - draw(st.integers(0, 3))), (2, m))
    kind = draw(st.sampled_from(["none", "any", "ones", "zeros"]))
    weight = {"none": None, "any": rng.random(m) * 10, "ones": np.ones(m), "zeros": rng.integers(0, 2, m) * 0.3}[kind]
    return n, edges, None if weight is None else weight.astype(np.float32)


@pytest.mark.slow
@settings(max_examples=150)
@given(lists(), st.booleans(), st.sampled_from([3_000, 40_000, 10**7]), st.integers(1, 50), st.integers(1, 3))
def test_the_bytes_are_those_of_memory(tmp_path_factory, case, undirected, share, chunk, threads):
    n, edges, weight = case
    tmp = tmp_path_factory.mktemp("build")
    with open_journal(tmp / "g", {}) as work:
        source = Given(edges, weight, chunk)
        try:
            place = build(work, "graph", source, Memory(10**9, threads, share), num_nodes=n, undirected=undirected)
        except InputError as error:  # many weights of one edge have to be in memory together
            assert weight is not None and share == 3_000 and "listed so often" in str(error)
            return
        assert_same(place, in_memory(edges, n, weight, undirected), tmp)
        assert [file.name for file in work.folder.iterdir() if file.name not in ("lock", "manifest.json")] == ["graph"]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", [Given, Sampled])
def test_a_node_with_more_neighbours_than_fit_memory(tmp_path, weighted, kind):
    rng = np.random.default_rng(31)
    edges = np.stack([rng.permutation(6_000), np.full(6_000, 17)])
    edges = np.concatenate([edges, rng.integers(0, 6_000, (2, 3_000))], axis=1)
    weight = rng.random(9_000).astype(np.float32) if weighted else None
    with open_journal(tmp_path / "g", {}) as work:
        place = build(work, "graph", kind(edges, weight, 500), Memory(10**9, 2, 50_000), num_nodes=6_000, undirected=True)
        assert_same(place, in_memory(edges, 6_000, weight, True), tmp_path)


def test_an_edge_listed_more_often_than_fits_memory(tmp_path):
    edges = np.tile(np.array([[0, 1], [1, 2]]), 5_000)
    with open_journal(tmp_path / "g", {}) as work:
        place = build(work, "graph", Given(edges, None, 500), Memory(10**9, 1, 20_000), undirected=True)
        assert_same(place, in_memory(edges, None, None, True), tmp_path)
        assert Graph.open(place).merged_duplicates == 9_998
    with (
        pytest.raises(InputError, match=r"listed so often, up to 5,000 times, that its weights do not fit memory=1.0 GB. Give"),
        open_journal(tmp_path / "w", {}) as work,
    ):
        build(work, "graph", Given(edges, np.ones(10_000, np.float32), 500), Memory(10**9, 1, 20_000))


def test_numbers_beyond_31_bits_take_8_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(csr, "index_dtype", lambda n: np.int64 if n > 100 else np.int32)
    rng = np.random.default_rng(37)
    edges = rng.integers(0, 300, (2, 900))
    with open_journal(tmp_path / "g", {}) as work:
        place = build(work, "graph", Given(edges), Memory(10**9, 2, 9_000), num_nodes=300, undirected=True)
        assert np.load(place / "indices.npy").dtype == np.int64
        assert_same(place, in_memory(edges, 300, None, True), tmp_path)


class Stop(BaseException):
    """As good as a kill: nothing after it is done."""


def interrupted(monkeypatch, after):
    """Every write to a file, and every note, may be the last: the one that has the number `after` is cut in half."""
    writes = itertools.count()
    append, cut = state_files.append, after

    def half(file, array, crc):
        if next(writes) == cut:
            append(file, array[: len(array) // 2], crc)
            raise Stop
        return append(file, array, crc)

    monkeypatch.setattr(state_files, "append", half)
    return writes


@pytest.mark.parametrize("undirected, weighted", [(True, False), (False, True)])
def test_wherever_it_is_interrupted_the_next_call_gives_the_same_bytes(tmp_path, monkeypatch, undirected, weighted):
    rng = np.random.default_rng(41)
    edges = rng.integers(0, 60, (2, 90))
    weight = rng.random(90).astype(np.float32) if weighted else None
    expected = in_memory(edges, None, weight, undirected)
    monkeypatch.setattr(journal, "SAVE_INTERVAL", 0)

    def run(name):
        with open_journal(tmp_path / name, {}) as work:
            memory = Memory(10**9, 1, 2_000 if weighted else 1_000)
            place = build(work, "graph", Given(edges, weight, 30), memory, undirected=undirected)
            assert_same(place, expected, tmp_path)

    writes = interrupted(monkeypatch, -1)
    run("whole")
    total = next(writes)
    assert total > 20
    monkeypatch.undo()
    for after in range(total):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", lambda descriptor: None)
            patch.setattr(journal, "SAVE_INTERVAL", 0)
            interrupted(patch, after)
            with pytest.raises(Stop):
                run(f"{after}")
        run(f"{after}")


def begun(tmp_path, monkeypatch, after=14):
    """A working folder in which the edges are distributed, or nearly so."""
    edges = np.random.default_rng(43).integers(0, 60, (2, 90))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stop), open_journal(tmp_path / "g", {}) as work:
        patch.setattr(journal, "SAVE_INTERVAL", 0)
        interrupted(patch, after)
        build(work, "graph", Given(edges, None, 30), Memory(10**9, 1, 800))
    return Given(edges, None, 30)


def test_what_something_else_wrote_is_not_gone_on_with(tmp_path, monkeypatch):
    source = begun(tmp_path, monkeypatch)
    file = next(iter(sorted((tmp_path / "g.work" / "graph-buckets").glob("*.keys"))))
    file.write_bytes(bytes(len(file.read_bytes())))
    with pytest.raises(FileFormatError, match=r"keys has changed since.*--restart"), open_journal(tmp_path / "g", {}) as work:
        build(work, "graph", source, Memory(10**9, 1, 800))
    with open_journal(tmp_path / "g", {}, restart=True) as work:
        assert_same(build(work, "graph", source, Memory(10**9, 1, 800)), in_memory(source.edges, None, None, False), tmp_path)


def test_less_memory_than_it_was_planned_for_is_told(tmp_path, monkeypatch):
    source = begun(tmp_path, monkeypatch)
    with pytest.raises(InputError, match="planned for more than"), open_journal(tmp_path / "g", {}) as work:
        build(work, "graph", source, Memory(10**9, 1, 100))
    with open_journal(tmp_path / "g", {}) as work:  # more is fine
        assert_same(build(work, "graph", source, Memory(10**9, 2, 10**6)), in_memory(source.edges, None, None, False), tmp_path)


def test_a_full_disk_is_told_and_destroys_nothing(tmp_path, monkeypatch):
    source = Given(np.random.default_rng(47).integers(0, 60, (2, 90)))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Exception, match=r"disk of .*g.work is full.*continues where"):
        append = state_files.append

        def full(file, array, crc):
            if "indices" in file.name:
                raise OSError(28, "No space left on device", str(file))
            return append(file, array, crc)

        patch.setattr(state_files, "append", full)
        with open_journal(tmp_path / "g", {}) as work:
            build(work, "graph", source, Memory(10**9, 1, 800))
    with open_journal(tmp_path / "g", {}) as work:
        assert_same(build(work, "graph", source, Memory(10**9, 1, 800)), in_memory(source.edges, None, None, False), tmp_path)


@pytest.mark.parametrize(
    "edges, n, message",
    [
        (np.empty((2, 0), int), None, "without edges needs num_nodes"),
        (np.empty((2, 0), int), 0, "at least one node"),
        (np.array([[0], [9]]), 5, "names node 9, but a graph of 5 nodes has numbers 0 … 4; num_nodes must be at least 10"),
        (np.array([[0], [2**60]]), None, r"at most 2\^39 nodes.*Pass ids=True"),
        (np.array([[0], [2**36]]), None, r"1 edge, but node numbers up to 68,719,476,736"),
        (np.array([[0], [2**36]]), 2**36 + 1, r"of 68,719,476,737 nodes takes about 561 GB of disk"),
    ],
)
def test_edges_that_make_no_graph(tmp_path, edges, n, message):
    with pytest.raises((GraphError, InputError), match=message), open_journal(tmp_path / "g", {}) as work:
        build(work, "graph", Given(edges), Memory(10**9, 1, 10**6), num_nodes=n)
    assert not list(tmp_path.iterdir())


def test_weights_that_overflow(tmp_path):
    weight = np.full(2, 3e38, dtype=np.float32)
    with pytest.raises(GraphError, match="more than float32 can hold"), open_journal(tmp_path / "g", {}) as work:
        build(work, "graph", Given(np.array([[0, 0], [1, 1]]), weight), Memory(10**9, 1, 10**6))


def test_amounts():
    sizes = [parse_bytes(text, "memory") for text in ("1kB", "1.5 MiB", "2gb", "3e3", 17)]
    assert sizes == [1000, 1572864, 2 * 10**9, 3000, 17]
    assert [parse_count(text, "nodes") for text in ("2e9", "1_000", 5, 5.0)] == [2 * 10**9, 1000, 5, 5]
    texts = [format_bytes(size) for size in (5, 1499, 9_960_000, 12e12, 5e15)]
    assert texts == ["5 bytes", "1.5 kB", "10 MB", "12 TB", "5000 TB"]
    for wrong in ("much", "-1GB", "0", "2XB", True, "inf"):
        with pytest.raises(InputError, match="`memory` is an amount such as"):
            parse_bytes(wrong, "memory")
    for wrong in ("2.5", "many", "inf", "nan"):
        with pytest.raises(InputError, match="`edges` is a whole number"):
            parse_count(wrong, "edges")


def test_too_little_memory_says_how_much_is_needed(monkeypatch):
    monkeypatch.setattr("unifews.resources.resident", lambda: 60_000_000)  # tests may have loaded anything
    with pytest.raises(InputError, match=r"memory=10 MB is too little for sorting: .* Give [0-9.]+ [MG]B or more"):
        Memory.of("10MB", what="sorting")
    assert Memory.of("400MB").threads >= 1 and Memory.of("64GB").chunk == 1 << 20


def test_results_come_in_order_and_not_far_ahead():
    started = []
    results = in_order(lambda i: started.append(i) or i, range(50), 2)
    assert next(results) == 0 and len(started) <= 3
    assert list(results) == list(range(1, 50))
