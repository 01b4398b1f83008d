"""PyG's classes as a source: converted faithfully, out of reach quickly, and never needed twice."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_geometric.datasets as datasets
from test_planetoid import planetoid
from tiny import FOLDER, assert_same, known, needs_data, record_for, tiny

import unifews as uf
from unifews.datasets import load as pyg
from unifews.datasets.load import conform, fetch_pyg, from_data
from unifews.datasets.npz import read_npz
from unifews.datasets.planetoid import read_planetoid
from unifews.datasets.registry import RECORDS, Pyg, Unavailable
from unifews.errors import MissingFileError

CITESEER = Pyg("Planetoid", "https://localhost", {"name": "CiteSeer"})


@pytest.fixture
def reachable(monkeypatch):
    monkeypatch.setattr(pyg, "check_reachable", lambda site: None)


def as_data(dataset):
    """What PyG would hold: edges one way, masks as columns."""
    from torch_geometric.data import Data

    edges = dataset.graph.to_edge_index()
    masks = {}
    for i, part in enumerate(("train", "val", "test")):
        columns = np.stack([np.isin(np.arange(24), split[i]) for split in dataset.splits], axis=1)
        masks[f"{part}_mask"] = torch.from_numpy(columns if len(dataset.splits) > 1 else columns[:, 0])
    one_way = torch.from_numpy(edges[:, edges[0] < edges[1]])
    return Data(x=torch.from_numpy(dataset.x), y=torch.from_numpy(dataset.y), edge_index=one_way, **masks)


@pytest.mark.parametrize("splits", [1, 10])
def test_a_data_object_becomes_a_dataset(splits):
    assert_same(from_data(as_data(tiny(splits=splits)), "tiny"), tiny(splits=splits))


def test_pyg_reads_planetoid_files_as_we_do(tmp_path, monkeypatch, reachable):
    def download(self):
        for name, content in planetoid().items():
            Path(self.raw_dir, f"ind.citeseer.{name}").write_bytes(content)

    monkeypatch.setattr(datasets.Planetoid, "download", download)
    ours = read_planetoid(planetoid(), "citeseer")
    assert_same(fetch_pyg(CITESEER, "citeseer", tmp_path), replace(ours, x=ours.x.toarray()))


@needs_data
def test_pyg_s_processing_gives_what_the_files_hold(tmp_path, monkeypatch, reachable):
    name = "photo"
    dataset, record = read_npz(FOLDER / f"{name}.npz"), RECORDS[name]
    adjacency, x = dataset.graph.to_scipy(), dataset.x

    def download(self):
        np.savez(
            Path(self.raw_dir, Path(record.file).name),
            labels=dataset.y,
            adj_data=adjacency.data,
            adj_indices=adjacency.indices,
            adj_indptr=adjacency.indptr,
            adj_shape=adjacency.shape,
            attr_data=x.data,
            attr_indices=x.indices,
            attr_indptr=x.indptr,
            attr_shape=x.shape,
        )

    monkeypatch.setattr(getattr(datasets, record.pyg.kind), "download", download)
    fetched = conform(fetch_pyg(record.pyg, name, tmp_path), record, "PyG")
    assert_same(fetched, conform(dataset, record, "local"))


@pytest.fixture
def offered(monkeypatch, reachable):
    """A PyG class that makes the tiny dataset, and its record among the known ones."""

    class Tiny:
        def __init__(self, root, **arguments):
            sys.stderr.write("Downloading something")
            Path(root, "raw").mkdir()

        def __getitem__(self, i):
            return as_data(tiny())

    monkeypatch.setattr(datasets, "Tiny", Tiny, raising=False)
    monkeypatch.delenv("UNIFEWS_DATA", raising=False)
    known(monkeypatch, record_for(tiny(), pyg=Pyg("Tiny", "https://localhost")))
    return Tiny


def test_what_pyg_brings_is_kept_and_pyg_s_own_files_are_not(tmp_path, offered, capsys):
    seen = []
    dataset = uf.load_dataset("tiny", cache=tmp_path, progress=lambda *step: seen.append(step))
    assert_same(dataset, tiny())
    assert dataset.about.source == "PyG Tiny" and seen == [("PyG fetches tiny", 0, 1), ("PyG fetches tiny", 1, 1)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".locks", "tiny"]
    assert capsys.readouterr().err == ""
    offered.__init__ = None  # the second time nothing of PyG is touched
    assert_same(uf.load_dataset("tiny", cache=tmp_path), tiny())


def test_the_second_load_imports_no_torch(tmp_path, offered):
    uf.load_dataset("tiny", cache=tmp_path)
    code = f"import sys, unifews\nprint(unifews.open_dataset({str(tmp_path / 'tiny')!r}))\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "24 nodes" in done.stdout, done.stderr


def test_whatever_pyg_raises_becomes_a_reason(tmp_path, offered):
    def fail(self, root, **arguments):
        raise RuntimeError("the archive\nis broken")

    offered.__init__ = fail
    with pytest.raises(MissingFileError, match=r"pyg: Tiny failed \(RuntimeError: the archive is broken\)"):
        uf.load_dataset("tiny", cache=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".locks"]
    assert socket.getdefaulttimeout() is None


def test_a_site_out_of_reach_is_told_in_seconds(tmp_path):
    start = time.perf_counter()
    with pytest.raises(Unavailable, match=r"nowhere\.invalid cannot be reached"):
        fetch_pyg(Pyg("Planetoid", "https://nowhere.invalid", {"name": "Cora"}), "cora", tmp_path)
    assert time.perf_counter() - start < 8
