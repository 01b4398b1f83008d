"""On every real graph and backbone, trained a little: what is frozen gives what the masked dense model gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from frozen_models import assert_close
from real_data import FOLDER

import unifews as uf
from unifews.nn.models import build
from unifews.training.layered import features

LARGE = ("arxiv-sub", "physics", "cs")
WIDE = 300  # columns are enough where features are taken dense, or axes are found of them: that is tried elsewhere

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="the real graphs are not on this machine (UNIFEWS_DATA)"),
]


FAST = ("chameleon-filtered", "cora-lcc", "photo", "texas")
NAMES = sorted(path.stem for path in FOLDER.glob("*.npz"))


@pytest.fixture(scope="module", params=[name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in NAMES])
def data(request):
    data = uf.load_dataset(str(FOLDER / f"{request.param}.npz"))
    rare = np.bincount(data.y[data.y >= 0]) < 10  # too few for a split
    return replace(data, y=np.where((data.y >= 0) & rare[data.y], 0, data.y), splits=())


@pytest.fixture(scope="module")
def edge_index(data):
    return torch.from_numpy(data.graph.to_edge_index())


@pytest.mark.parametrize("name", ["gcn", "gat", "sage", "gcnii", "gin"])
def test_layers(name, data, edge_index):
    torch.manual_seed(7)
    if name == "gin":  # which sums features before any weights, and so takes them dense
        data = replace(data, x=data.x[:, :WIDE])
    x, y = features(data, sparse=name != "gin"), torch.from_numpy(data.y)
    plain = build(name, data.num_features, data.num_classes, width=16 if data.name in LARGE else 64)
    model = uf.sparsify(plain, edge_sparsity=0.5, entries="unit", weight_sparsity=0.9, ramp=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x, edge_index), y, ignore_index=-1).backward()
        optimizer.step()
    fast = uf.compress(model, x, edge_index)
    kept, whole = fast.weights
    assert kept < 0.5 * whole  # GCNII's matrices have a diagonal that stays
    compare(model.eval(), data, fast, x, edge_index)


def test_a_decoupled_model(data):
    data = replace(data, x=data.x[:, :WIDE])
    width = 16 if data.name in LARGE else 64
    how = dict(edge_sparsity=0.5, weight_sparsity=0.9, hops=3, epochs=2, width=width, split="stratified")
    model = uf.train(data, "appnp", **how).model
    compare(model, data, uf.compress(model, data.x, data.graph), data.x, data.graph)


@torch.no_grad()
def compare(model, data, fast, *given):
    expected = model(*given)
    assert_close(fast.predict(), expected)
    nodes = np.random.default_rng(7).choice(data.num_nodes, 20, replace=False)
    assert_close(fast.predict(nodes), expected[torch.from_numpy(nodes)])
