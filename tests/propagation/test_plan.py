"""The plan of `max_error`: the fastest way by the cost model, shown in the result, and repeated to the bit."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

import unifews as uf
from unifews.errors import InputError
from unifews.propagation import tolerance
from unifews.propagation.cost import built_in
from unifews.propagation.plan import METHODS, ErrorPlan

SMALL = uf.powerlaw(300, 1500, num_features=150, seed=4)


@pytest.fixture(autouse=True)
def all_methods(monkeypatch):
    """Whatever a module of tests that was imported before has set."""
    monkeypatch.setattr(tolerance, "METHODS", METHODS)


def cheap(monkeypatch, method):
    """Costs by which a method is the fastest."""
    made = built_in(1)
    slow = dict.fromkeys(made.edge, (1.0, 1.0))
    if method == "lanczos":
        made = replace(made, edge={**made.edge, "unpruned": (1.0, 1.0)})
    elif method == "unpruned":
        fast = {**slow, "unpruned": (1e-30, 1e-30)}
        made = replace(made, edge=fast, row=fast, call=0.0)
    monkeypatch.setattr(tolerance, "built_in", lambda threads: made)
    monkeypatch.setattr(tolerance, "calibrated", lambda threads: made)


def test_a_small_graph_has_a_polynomial_and_its_error_is_proven():
    out = uf.propagate(SMALL.graph, SMALL.x, max_error=0.05)
    exact = uf.propagate(SMALL.graph, SMALL.x).embedding
    assert out.plan.method == "chebyshev" and max(out.plan.hops) < 12
    assert np.linalg.norm(out.embedding - exact) <= 0.05 * np.linalg.norm(exact)
    assert "proven error" in out.trace.notes[0]


def test_unpruned_is_a_plan(monkeypatch):
    cheap(monkeypatch, "unpruned")
    out = uf.propagate(SMALL.graph, SMALL.x, max_error=0.05)
    assert out.plan.method == "unpruned" and set(out.plan.hops) == {20} and out.error == 0
    assert np.array_equal(out.embedding, uf.propagate(SMALL.graph, SMALL.x, basis="input").embedding)
    assert "propagated unpruned: fewer hops and their estimates would take as long" in str(out.trace)
    assert uf.propagate(SMALL.graph, SMALL.x, uf.HeatKernel(3.0), max_error=0.05).plan.method != "unpruned", "it has no hops"


@pytest.mark.parametrize("method", METHODS)
def test_the_cheapest_one_is_chosen_and_all_are_shown(monkeypatch, method):
    if method != "chebyshev":
        cheap(monkeypatch, method)
    out = uf.propagate(SMALL.graph, SMALL.x, max_error=0.05)
    assert out.plan.method == method
    assert [each.method for each in out.plan.considered] == ["unpruned", "chebyshev", "lanczos"]
    assert out.plan.predicted_seconds == min(each.seconds for each in out.plan.considered) and out.plan.seconds > 0
    assert out.plan.bytes_moved > 0 and any(note.startswith("expected: unpruned") for note in out.trace.notes)


def test_what_is_asked_for_by_hand_is_done():
    assert uf.propagate(SMALL.graph, SMALL.x, max_error=0.05, degree=3).plan.hops == (3, 3)
    assert set(uf.propagate(SMALL.graph, SMALL.x, max_error=0.05, precision="int8").plan.formats) == {"int8"}


def odd():
    """A few columns that need a wider format than the others: the leftovers of many hops."""
    x = SMALL.x.copy()
    for _ in range(12):
        x[:, 20:23] -= uf.Diffusion(SMALL.graph).to_scipy() @ x[:, 20:23]
        x[:, 20:23] /= np.abs(x[:, 20:23]).max()
    return x


@pytest.mark.parametrize(
    "scheme", ["appnp", "sgc", uf.HeatKernel(5.0), uf.Filter(np.exp)], ids=["appnp", "sgc", "heat", "filter"]
)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "how", [dict(max_error=0.05), dict(max_error=0.002), dict(max_error=0.05, r=1.0, error_norm="frobenius")], ids=str
)
def test_a_plan_is_repeated_to_the_bit(monkeypatch, method, scheme, how):
    if method == "unpruned":
        cheap(monkeypatch, method)
    else:
        monkeypatch.setattr(tolerance, "METHODS", (method,) if method == "lanczos" else ("chebyshev", "lanczos"))
    x = odd()
    first = uf.propagate(SMALL.graph, x, scheme, **how)
    monkeypatch.setattr(tolerance, "forecast", None)  # nothing is planned again
    own = {name: value for name, value in how.items() if name == "r"}
    for plan in (first.plan, json.loads(json.dumps(first.plan.to_dict()))):
        again = uf.propagate(SMALL.graph, x, scheme, plan=plan, **own)
        assert np.array_equal(again.embedding, first.embedding) and again.plan == first.plan
        assert again.error == first.error and np.array_equal(again.column_errors, first.column_errors)


def test_columns_that_were_done_again_are_in_the_plan(monkeypatch):
    monkeypatch.setattr(tolerance, "METHODS", ("lanczos",))
    plan = uf.propagate(SMALL.graph, odd(), max_error=0.05).plan
    step = next(step for step in plan.steps if step.redone)
    assert sum(each.width for each in step.again) == len(step.redone) and step.again[0].format != step.format


def test_a_plan_for_something_else_is_refused():
    plan = uf.propagate(SMALL.graph, SMALL.x, max_error=0.05).plan
    other = uf.powerlaw(301, 1500, num_features=150, seed=4)
    for graph, x, how, because in (
        (other.graph, other.x, {}, "for nodes 300, and this is 301"),
        (SMALL.graph, SMALL.x[:, :20], {}, "for features 150, and this is 20"),
        (SMALL.graph, SMALL.x, {"scheme": "sgc"}, "for scheme"),
        (SMALL.graph, SMALL.x, {"r": 0.0}, "for r 0.5"),
        (SMALL.graph, SMALL.x, {"edge_sparsity": 0.5}, "would change it"),
        (SMALL.graph, SMALL.x, {"max_error": 0.1}, "is for max_error=0.05"),
    ):
        with pytest.raises(InputError, match=because):
            uf.propagate(graph, x, plan=plan, **how)
    for bad, because in (({}, "form None"), ("int8", "is a str"), ({**plan.to_dict(), "steps": [{}]}, "damaged")):
        with pytest.raises(InputError, match=because):
            uf.propagate(SMALL.graph, SMALL.x, plan=bad)
    assert ErrorPlan.of_dict(plan.to_dict()) == plan


def test_sparse_features_have_the_same_plan():
    x = np.where(np.random.default_rng(1).random((300, 150)) < 0.1, 1, 0).astype(np.float32)
    dense, sparse = (uf.propagate(SMALL.graph, each, max_error=0.05) for each in (x, sp.csr_array(x)))
    assert dense.plan.hops == sparse.plan.hops and np.allclose(dense.embedding, sparse.embedding, atol=1e-5)


@pytest.mark.parametrize("scheme", ["appnp", uf.PersonalizedPageRank(0.1)], ids=str)
def test_out_of_core_has_the_bits_of_memory(tmp_path, scheme):
    how = dict(max_error=0.05, threads=1)
    expected = uf.propagate(SMALL.graph, SMALL.x, scheme, **how)
    assert expected.plan.method == "chebyshev"
    np.save(tmp_path / "x.npy", SMALL.x)
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    got = uf.propagate(SMALL.graph, x, scheme, out=tmp_path / "p.npy", memory="8GB", **how)
    assert got.plan == expected.plan and np.array_equal(got.embedding, expected.embedding)
    plan = got.plan.to_dict()
    again = uf.propagate(SMALL.graph, x, scheme, out=tmp_path / "q.npy", memory="8GB", plan=plan, threads=1)
    assert np.array_equal(again.embedding, expected.embedding) and again.plan == expected.plan
