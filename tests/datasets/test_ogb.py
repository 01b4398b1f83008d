"""OGB's raw layout, written small and read back: tables and archives, mapped or unpacked, whole or damaged."""

from __future__ import annotations

import gzip
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from tiny import assert_same, known, record_for, tiny

import unifews as uf
from unifews.datasets import load, ogb
from unifews.datasets.ogb import read_ogb
from unifews.datasets.registry import Ogb, find
from unifews.errors import FileFormatError, MissingFileError
from unifews.storage.archive import open_member

ARXIV = Ogb("ogbn_tiny", "tiny-zip", "time", "http://localhost/tiny.zip")


def one_way(graph):
    edges = graph.to_edge_index()
    return edges[:, edges[0] < edges[1]]


def write_csv(path, rows, form="%d"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        np.savetxt(file, np.asarray(rows).reshape(len(rows), -1), fmt=form, delimiter=",")


def write_splits(folder, dataset, split):
    for part, nodes in zip(("train", "valid", "test"), dataset.splits[0], strict=True):
        write_csv(folder / "split" / split / f"{part}.csv.gz", nodes)


def write_tables(folder, dataset, split="time"):
    """The layout of ogbn-arxiv and ogbn-products."""
    raw = folder / "raw"
    edges = one_way(dataset.graph)
    write_csv(raw / "edge.csv.gz", edges.T)
    write_csv(raw / "node-feat.csv.gz", dataset.x, "%.9g")
    write_csv(raw / "node-label.csv.gz", dataset.y)
    write_csv(raw / "num-node-list.csv.gz", [dataset.num_nodes])
    write_csv(raw / "num-edge-list.csv.gz", [edges.shape[1]])
    write_splits(folder, dataset, split)
    return folder


def write_archives(folder, dataset, save=np.savez, dtype=np.float32):
    """The layout of ogbn-papers100M: labels are floats, nan where there is none."""
    (folder / "raw").mkdir(parents=True)
    edges = one_way(dataset.graph)
    counts = dict(num_nodes_list=np.array([dataset.num_nodes]), num_edges_list=np.array([edges.shape[1]]))
    nodes = dict(node_feat=dataset.x.astype(dtype), node_year=dataset.y[:, None])
    save(folder / "raw" / "data.npz", edge_index=edges, **nodes, **counts)
    labels = np.where(dataset.y < 0, np.nan, dataset.y).astype(np.float32)[:, None]
    save(folder / "raw" / "node-label.npz", node_label=labels)
    write_splits(folder, dataset, "time")
    return folder


def unlabelled(dataset):
    """The same with two nodes less in the test set, and without labels."""
    split = dataset.splits[0]
    y = dataset.y.copy()
    y[split.test[:2]] = -1
    return replace(dataset, y=y, splits=(split._replace(test=split.test[2:]),))


def test_tables(tmp_path):
    dataset = tiny()
    read = read_ogb(write_tables(tmp_path / "a", dataset, "sales_ranking"), "tiny", "sales_ranking", tmp_path / "work")
    assert_same(read, dataset)
    assert read.graph.is_symmetric and read.about.split == "stored"


def test_tables_longer_than_a_block(tmp_path, monkeypatch):
    monkeypatch.setattr(ogb, "_BYTES", 70)
    seen = []
    folder = write_tables(tmp_path / "a", tiny())
    assert_same(read_ogb(folder, "tiny", "time", tmp_path / "work", lambda *step: seen.append(step)), tiny())
    assert ("reading node-feat.csv.gz", 24, 24) in seen and all(done <= total for _, done, total in seen)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_archives(tmp_path, save, dtype):
    dataset = unlabelled(tiny())
    folder = write_archives(tmp_path / "a", dataset, save, dtype)
    read = read_ogb(folder, "tiny", "time", tmp_path / "work")
    assert_same(read, dataset)
    assert isinstance(read.x, np.memmap) and (read.y == -1).sum() == 2
    in_place = save is np.savez and dtype == np.float32
    assert (str(read.x.filename) == str(folder / "raw" / "data.npz")) == in_place


def test_the_graph_is_sorted_once(tmp_path, monkeypatch):
    folder = write_archives(tmp_path / "a", tiny())
    read_ogb(folder, "tiny", "time", tmp_path / "work")
    monkeypatch.setattr(ogb, "convert_files", None)
    assert_same(read_ogb(folder, "tiny", "time", tmp_path / "work"), tiny())


@pytest.mark.parametrize(
    "damage, sentence",
    [
        (
            lambda a: (a / "raw" / "edge.csv.gz").write_bytes(gzip.compress(b"1" * (1 << 21))),
            "edge.csv.gz cannot be read as text: line 1 is longer than 1,048,576 bytes",
        ),
        (lambda a: (a / "raw" / "node-label.csv.gz").unlink(), "node-label.csv.gz is missing, so the OGB files beside it"),
        (lambda a: cut(a / "raw" / "edge.csv.gz"), "edge.csv.gz cannot be read as a table of numbers: it is truncated"),
        (lambda a: write_csv(a / "raw" / "edge.csv.gz", [[0, 99]]), "an edge names node 99, but a graph of 24 nodes"),
        (lambda a: write_csv(a / "raw" / "edge.csv.gz", [[0, 1, 2]]), "instead of pairs of nodes"),
        (lambda a: write_csv(a / "raw" / "node-feat.csv.gz", np.ones((7, 5))), "one row of features for each of 24 nodes"),
        (lambda a: write_csv(a / "raw" / "node-label.csv.gz", [0] * 7), "7 rows of labels"),
        (lambda a: write_csv(a / "raw" / "num-node-list.csv.gz", [12, 12]), "holds 2 graphs"),
        (lambda a: (a / "raw" / "edge.csv.gz").write_bytes(gzip.compress(b"a,b\n")), "cannot be read as a table of numbers"),
        (lambda a: (a / "raw" / "edge.csv.gz").write_bytes(gzip.compress(b"")), "edge.csv.gz is empty"),
        (lambda a: write_csv(a / "split" / "time" / "train.csv.gz", [0, 0]), "names 1 nodes more than once"),
    ],
)
def test_damaged_tables(tmp_path, damage, sentence):
    folder = write_tables(tmp_path / "a", tiny())
    damage(folder)
    with pytest.raises(FileFormatError, match=sentence):
        read_ogb(folder, "tiny", "time", tmp_path / "work")


def cut(path):
    path.write_bytes(path.read_bytes()[:-12])


# ----------------------------------------------------------------------------------------------- arrays inside archives


def test_a_plain_member_is_mapped_where_it_lies(tmp_path):
    np.savez(tmp_path / "a.npz", first=np.arange(5), second=np.arange(12.0).reshape(3, 4), empty=np.empty((0, 4)))
    second = open_member(tmp_path / "a.npz", "second", tmp_path)
    assert isinstance(second, np.memmap) and np.array_equal(second, np.arange(12.0).reshape(3, 4))
    assert open_member(tmp_path / "a.npz", "empty", tmp_path).shape == (0, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_a_compressed_member_is_unpacked_once(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", a=np.arange(5000))
    (tmp_path / "work").mkdir()
    for _ in range(2):
        assert np.array_equal(open_member(tmp_path / "a.npz", "a", tmp_path / "work"), np.arange(5000))
    assert len(list((tmp_path / "work").iterdir())) == 1
    np.savez_compressed(tmp_path / "a.npz", a=np.arange(5000) + 1)  # another archive of the same name
    assert open_member(tmp_path / "a.npz", "a", tmp_path / "work")[0] == 1


def test_members_that_cannot_be_opened(tmp_path):
    path = tmp_path / "a.npz"
    with pytest.raises(MissingFileError, match="there is no file"):
        open_member(path, "a", tmp_path)
    np.savez(path, a=np.arange(5000), o=np.array([object()]))
    with pytest.raises(FileFormatError, match=r"holds no array 'b'; it has a, o"):
        open_member(path, "b", tmp_path)
    with pytest.raises(FileFormatError, match="pickled Python objects"):
        open_member(path, "o", tmp_path)
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(FileFormatError, match=r"not a \.npz archive, or it is truncated or half-downloaded"):
        open_member(path, "a", tmp_path)


# ------------------------------------------------------------------------------------------------------------- by name


def test_files_that_are_here_are_converted_once(tmp_path, monkeypatch):
    known(monkeypatch, record_for(tiny(), ogb=ARXIV))
    write_tables(tmp_path / "data" / "ogbn_tiny", tiny())
    monkeypatch.setenv("UNIFEWS_DATA", str(tmp_path / "data"))
    dataset = uf.load_dataset("tiny", cache=tmp_path / "cache")
    assert_same(dataset, tiny())
    assert dataset.about.source == f"OGB files in {tmp_path / 'data' / 'ogbn_tiny'}"
    monkeypatch.setattr(load, "read_ogb", None)
    assert_same(uf.load_dataset("tiny", cache=tmp_path / "cache"), tiny())


def test_huge_files_are_mapped_where_they_lie(tmp_path, monkeypatch):
    known(monkeypatch, record_for(tiny(), ogb=replace(ARXIV, huge=True)))
    write_archives(tmp_path / "tiny-zip", tiny())
    monkeypatch.setenv("UNIFEWS_DATA", str(tmp_path))
    dataset = uf.load_dataset("tiny", cache=tmp_path / "cache")
    assert_same(dataset, tiny())
    assert str(dataset.x.filename).endswith("data.npz") and not (tmp_path / "cache" / "tiny").exists()


def test_the_path_of_a_folder_of_raw_files(tmp_path, monkeypatch):
    known(monkeypatch, record_for(tiny(), ogb=ARXIV))
    write_tables(tmp_path / "ogbn_tiny", tiny())
    assert_same(uf.load_dataset(tmp_path / "ogbn_tiny", cache=tmp_path / "cache"), tiny())


def test_a_download_is_unpacked_converted_and_gone(tmp_path, monkeypatch):
    write_tables(tmp_path / "tiny-zip", tiny())
    with zipfile.ZipFile(tmp_path / "tiny.zip", "w") as packed:
        for path in sorted((tmp_path / "tiny-zip").rglob("*.gz")):
            packed.write(path, path.relative_to(tmp_path))
        packed.writestr("tiny-zip/RELEASE_v1.txt", "")
        packed.writestr("tiny-zip/raw/../../../evil.txt", "outside")
    known(monkeypatch, record_for(tiny(), ogb=ARXIV))
    monkeypatch.delenv("UNIFEWS_DATA", raising=False)
    monkeypatch.setattr(ogb, "download", lambda url, path, progress: path.write_bytes((tmp_path / "tiny.zip").read_bytes()))
    dataset = uf.load_dataset("tiny", cache=tmp_path / "cache")
    assert_same(dataset, tiny())
    assert dataset.about.source == ARXIV.url
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [".locks", "tiny"]
    assert not list(tmp_path.rglob("evil.txt"))


def test_half_a_download_is_told_and_leaves_nothing(tmp_path, monkeypatch):
    known(monkeypatch, record_for(tiny(), ogb=ARXIV))
    monkeypatch.setattr(ogb, "download", lambda url, path, progress: path.write_bytes(b"PK\x03\x04 half"))
    with pytest.raises(FileFormatError, match=r"the download cannot be read as a \.zip archive"):
        uf.load_dataset("tiny", source="ogb", cache=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".locks"]


def test_papers100m_is_not_downloaded_unasked(tmp_path, monkeypatch):
    monkeypatch.setattr(ogb, "download", None)
    monkeypatch.delenv("UNIFEWS_DATA", raising=False)
    with pytest.raises(MissingFileError, match=r"too large to start automatically.*Download .*papers100M-bin\.zip") as told:
        uf.load_dataset("ogbn-papers100M", cache=tmp_path)
    assert f"unzip it to {tmp_path / find('papers100m').ogb.folder}" in str(told.value)
