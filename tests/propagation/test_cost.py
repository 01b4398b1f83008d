"""The cost model: measured once per machine and user, and never trusted when its file is damaged."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import unifews as uf
from unifews.propagation import cost, tolerance
from unifews.propagation.plan import METHODS

SMALL = uf.powerlaw(300, 1500, num_features=20, seed=4)


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(tolerance, "METHODS", METHODS)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cost.calibrated.cache_clear()
    yield
    cost.calibrated.cache_clear()


@pytest.fixture
def calls(monkeypatch):
    """Measurements, which take no time."""
    made = []
    monkeypatch.setattr(cost, "_measured", lambda threads: made.append(threads) or replace(cost.built_in(threads), call=1e-3))
    return made


def test_costs_are_measured_once_and_kept(calls):
    first = cost.calibrated(1)
    cost.calibrated.cache_clear()
    again = cost.calibrated(1)
    assert calls == [1] and again.call == 1e-3 and again.edge == first.edge and again.source == str(cost.path(1))
    assert "nanoseconds" in cost.show(again, 1)


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"key": 1}', None])
def test_a_damaged_file_or_another_machine_is_measured_again(calls, damage):
    cost.calibrated(1)
    kept = json.loads(cost.path(1).read_text())
    kept["key"]["processor"] = "another"
    cost.path(1).write_text(json.dumps(kept) if damage is None else damage)
    cost.calibrated.cache_clear()
    cost.calibrated(1)
    assert calls == [1, 1] and cost.read(1) is not None
    kept["key"] = cost.key(1)
    for wrong in (float("nan"), -1.0, 0.0, "fast"):
        kept["costs"]["call"] = wrong
        cost.path(1).write_text(json.dumps(kept))
        assert cost.read(1) is None


def test_a_folder_that_cannot_be_written_is_no_error(calls, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cost.calibrated(1).source == "measured now" and calls == [1]


def test_short_propagations_measure_nothing(calls, monkeypatch):
    out = uf.propagate(SMALL.graph, SMALL.x, max_error=0.05)
    assert not calls and out.plan.costs == "built in"
    monkeypatch.setattr(tolerance, "CALIBRATED_FROM", 0.0)
    assert uf.propagate(SMALL.graph, SMALL.x, max_error=0.05, threads=1).plan.costs == str(cost.path(1)) and calls == [1]


def test_the_machine_can_be_measured(monkeypatch):
    monkeypatch.setattr(cost, "_SIZES", (200, 2000))
    found = cost._measured(1)
    assert set(found.edge) == set(found.row) == {"unpruned", "int8", "bfloat16", "float32"}
    assert all(each > 0 for kinds in (found.edge, found.row) for pair in kinds.values() for each in pair)
    assert min(found.call, found.hop, found.estimate) > 0


def test_the_model_grows_with_the_graph():
    costs = cost.built_in(2)
    for kind in costs.edge:
        small, more_edges, more_nodes = (costs.kernel(kind, *each, 8) for each in ((1000, 9000), (1000, 90_000), (9000, 9000)))
        assert 0 < small < min(more_edges, more_nodes)
    assert costs.kernel("int8", 10**6, 10**7, 8) < 0.7 * costs.kernel("unpruned", 10**6, 10**7, 8)
