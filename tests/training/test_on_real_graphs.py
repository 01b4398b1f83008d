"""What only real graphs show: that a tenth of edges and weights is enough. Read where they are, skipped where they are not."""

from __future__ import annotations

import pytest
from real_data import FOLDER

import unifews as uf

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="the real graphs are not on this machine (UNIFEWS_DATA)"),
]


@pytest.mark.parametrize("model", ["appnp", "sgc"])
def test_a_tenth_of_edges_and_weights_classifies_cora(model, monkeypatch):
    monkeypatch.setenv("UNIFEWS_DATA", str(FOLDER))
    run = uf.train("cora-lcc", model, edge_sparsity=0.9, weight_sparsity=0.9, epochs=40)
    assert run.trace.edge_sparsity == pytest.approx(0.9, abs=0.01)
    assert run.trace.weight_sparsity == pytest.approx(0.9, abs=1e-3)
    assert run.accuracy.test > 82  # the largest class alone gives 29
    assert run.trace.macs < 0.11 * run.trace.dense_macs
