"""`max_error` runs all hops of the scheme, unless fewer of them save time."""

from __future__ import annotations

import numpy as np
import pytest

import unifews as uf
from unifews.propagation import tolerance


@pytest.fixture(autouse=True)
def gain(monkeypatch):
    """As it is, whatever a module of tests that was imported before has set."""
    monkeypatch.setattr(tolerance, "GAIN", 0.75)


def test_a_small_graph_is_propagated_unpruned():
    data = uf.powerlaw(300, 1500, num_features=20)
    out = uf.propagate(data.graph, data.x, max_error=0.05)
    assert out.plan is None and out.error == 0
    assert np.array_equal(out.embedding, uf.propagate(data.graph, data.x, basis="input").embedding)
    assert "propagated unpruned: fewer hops and their estimates would take as long" in str(out.trace)


def test_a_large_one_is_not():
    data = uf.powerlaw(5000, 300_000, num_features=20)
    assert uf.propagate(data.graph, data.x, max_error=0.05).plan is not None
    assert uf.propagate(data.graph, data.x, uf.Sgc(skip="diagonal"), max_error=0.001).plan is None  # of too many hops


def test_what_is_asked_for_by_hand_is_done():
    data = uf.powerlaw(300, 1500, num_features=20)
    assert uf.propagate(data.graph, data.x, max_error=0.05, degree=3).plan.hops == (3,)
    assert uf.propagate(data.graph, data.x, max_error=0.05, precision="int8").plan.formats == ("int8",)
    assert uf.propagate(data.graph, data.x, uf.HeatKernel(3.0), max_error=0.05).plan is not None
