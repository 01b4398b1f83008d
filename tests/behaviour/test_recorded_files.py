"""One file of each format, written when this version was current: later versions go on reading them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch_geometric.nn as pyg
from calls import DATA, WIDTH, directed, edges

import unifews as uf
from unifews.report.exhibits import read_exhibit
from unifews.training.ledger import Ledger
from unifews.training.run_files import read_toml
from unifews.training.spec import TrainSpec

FILES = Path(__file__).with_name("files")
X = torch.from_numpy(DATA.x)


def scores(name):
    with np.load(FILES / "scores.npz") as file:
        return torch.from_numpy(file[name])


def test_graph_folders():
    for name in ("graph", "graph-without-checksums"):
        found, expected = uf.Graph.open(FILES / name, verify=True), directed()
        for array in ("indptr", "indices", "weight"):
            assert np.array_equal(getattr(found, array), getattr(expected, array))


def test_dataset_folder():
    found = uf.open_dataset(FILES / "dataset", verify=True)
    assert np.array_equal(found.x, DATA.x) and np.array_equal(found.y, DATA.y)
    assert np.array_equal(found.graph.indices, DATA.graph.indices)


def test_model_folder():
    torch.testing.assert_close(uf.load(FILES / "model")(X, edges()), scores("frozen"), rtol=1e-3, atol=1e-4)


def test_checkpoint_folder():
    model = uf.load(FILES / "checkpoint", into=pyg.GCN(WIDTH, 16, 2, 3))
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(X, edges()), scores("trained"), rtol=1e-3, atol=1e-4)


def test_run_file_ledger_and_exhibit():
    spec = TrainSpec.of(read_toml(FILES / "run.toml"))
    assert spec.model == "gcn" and spec.edge_sparsity == 0.5
    ledger = Ledger(FILES / "ledger.jsonl")
    assert len(ledger.records()) > 1 and not ledger.skipped()
    assert read_exhibit(FILES / "exhibit.json").rows
