"""`unifews thin`."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp
from commands import fine, work_in, wrong
from method_cases import graph_of, words

import unifews as uf


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    work_in(tmp_path, monkeypatch)
    np.savetxt("edges.csv", graph_of().to_edge_index().T, fmt="%d", delimiter=",")
    np.save("x.npy", words())


def test_a_folder_and_a_file():
    shown = fine("thin", "edges.csv", "--sparsity", ".5", "--out", "half")
    assert "50.0% of" in shown.out and "wrote half: Graph(" in shown.out
    half = uf.Graph.open("half")
    assert half.is_symmetric
    report = json.loads(fine("thin", "half", "--method", "k-neighbor:k=1", "--out", "one.npz", "--json").out)
    assert report["num_edges"] == half.num_edges and report["kept"] == sp.load_npz("one.npz").nnz
    fine("thin", "edges.csv", "--keep", "40", "--features", "x.npy", "--out", "half", "--overwrite")
    assert uf.Graph.open("half").num_edges == 40


def test_mistakes():
    wrong("thin", "edges.csv", "--sparsity", ".5", "--out", "half.txt", says="a folder, or a file that ends in .npz")
    wrong("thin", "edges.csv", "--method", "dspr", "--sparsity", ".5", "--out", "half", says="Did you mean 'dspar'?")
    wrong("thin", "edges.csv", "--out", "half", says="--sparsity")
    wrong("thin", "edges.csv", "--sparsity", "50", "--out", "half", says="50")
    wrong("thin", "missing.csv", "--sparsity", ".5", "--out", "half", says="missing.csv")
    fine("thin", "edges.csv", "--sparsity", ".5", "--out", "half")
    wrong("thin", "edges.csv", "--sparsity", ".5", "--out", "half", says="already exists")
