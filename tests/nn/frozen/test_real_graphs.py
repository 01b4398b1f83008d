"""On every real graph and backbone, trained a little: what is frozen gives what the masked dense model gives."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from frozen_models import assert_close

import unifews as uf
from unifews.nn.decoupled import Decoupled
from unifews.training.iterative import features

FOLDER = Path(os.environ.get("UNIFEWS_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data")
LARGE = ("arxiv-sub", "physics", "cs")

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="the real graphs are not on this machine (UNIFEWS_DATA)"),
]


@pytest.fixture(scope="module", params=sorted(path.stem for path in FOLDER.glob("*.npz")))
def data(request):
    data = uf.load_dataset(str(FOLDER / f"{request.param}.npz"))
    rare = np.bincount(data.y[data.y >= 0]) < 10  # too few for a split
    return replace(data, y=np.where((data.y >= 0) & rare[data.y], 0, data.y), splits=())


@pytest.mark.parametrize("model", ["gcn", "gat", "sage", "gcnii", "gin", "appnp"])
def test_it_gives_what_the_masked_model_gives(model, data):
    width = 16 if data.name in LARGE else 64
    how = {"hops": 3} if model == "appnp" else {}
    run = uf.train(data, model, edge_sparsity=0.5, weight_sparsity=0.9, epochs=2, width=width, split="stratified", **how)
    fast = uf.compress(run.model, data.x, data.graph)  # as `unifews train --save` does
    kept, whole = fast.weights
    assert kept < 0.5 * whole
    with torch.no_grad():
        if isinstance(run.model, Decoupled):
            expected = run.model(data.x, data.graph)
        else:
            x = features(data, sparse=model != "gin")
            expected = run.model(x, torch.from_numpy(data.graph.to_edge_index()))
    nodes = np.random.default_rng(7).choice(data.num_nodes, 20, replace=False)
    assert_close(fast.predict(nodes), expected[torch.from_numpy(nodes)])
    assert_close(fast.predict(), expected)
