"""The axes a propagation runs on: orthonormal whatever they are, as many as the target leaves work for, honestly counted."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import unifews as uf
from unifews.core.diffusion import Diffusion
from unifews.propagation.basis import FEW_AXES, MANY_AXES, VERY_WIDE, principal
from unifews.propagation.complement import complement
from unifews.propagation.features import FeatureMatrix
from unifews.propagation.gram import eigen_macs
from unifews.propagation.operator import stationary


def words(n, f, density, seed=907):
    return sp.random_array((n, f), density=density, rng=np.random.default_rng(seed), dtype=np.float32, format="csr")


@pytest.fixture(scope="module")
def graph():
    return uf.powerlaw(1_100, 6_000, num_features=1, seed=3).graph


@given(f=st.integers(2, 40), data=st.data())
def test_the_complement_is_orthonormal_and_orthogonal_to_the_axes(f, data):
    found = data.draw(st.integers(1, f - 1))
    count = data.draw(st.integers(1, f - found))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    axes = np.linalg.qr(rng.standard_normal((f, found)))[0].astype(np.float32)
    if data.draw(st.booleans()):  # axes that are inputs themselves: the reflector must not divide by nothing
        axes = np.eye(f, dtype=np.float32)[:, rng.permutation(f)[:found]]
    more = complement(axes, rng.random(f), count)
    whole = np.concatenate([axes, more], axis=1)
    assert more.shape == (f, count)
    np.testing.assert_allclose(whole.T @ whole, np.eye(found + count), atol=1e-5)


def test_the_complement_takes_the_columns_with_most_left():
    axes = np.eye(6, dtype=np.float32)[:, :2]
    more = complement(axes, np.array([9.0, 9.0, 1.0, 5.0, 0.0, 3.0]), 2)
    np.testing.assert_allclose(np.abs(more), np.eye(6)[:, [3, 5]], atol=1e-6)


@pytest.mark.parametrize(
    "sparsity", [pytest.param(0.1, marks=pytest.mark.slow), pytest.param(0.5, marks=pytest.mark.slow), 0.8, 0.9, 0.97]
)
def test_a_target_is_met_on_thousands_of_features(graph, sparsity):
    out = uf.propagate(graph, words(1_100, 1_500, 0.02), hops=3, edge_sparsity=sparsity)
    assert out.trace.edge_sparsity == pytest.approx(sparsity, abs=0.01)
    assert not out.trace.notes
    k = out.basis.shape[1]
    np.testing.assert_allclose(out.basis.T @ out.basis, np.eye(k), atol=1e-4)


def test_axes_that_fill_up_hold_part_of_the_features(graph):
    """At .2, 1,200 of 1,500 axes: the output is nearer to the unpruned one than the 512 searched for alone bring it."""
    x = words(1_100, 1_500, 0.02)
    exact = uf.propagate(graph, x, hops=3).embedding
    error = {
        name: float(np.linalg.norm(uf.propagate(graph, x, hops=3, **how).embedding - exact) / np.linalg.norm(exact))
        for name, how in {"searched": {"rank": MANY_AXES}, "filled": {"edge_sparsity": 0.2}}.items()
    }
    assert error["filled"] < 0.6 * error["searched"]


def test_very_wide_features_get_few_axes_and_the_trace_says_so(graph):
    out = uf.propagate(graph, words(1_100, VERY_WIDE + 104, 0.004), hops=2, edge_sparsity=0.5)
    assert out.trace.rank == FEW_AXES
    assert "more than the 50.0% asked for" in out.trace.notes[0]


@pytest.mark.parametrize("deflate", [False, True])
def test_sparse_features_have_the_axes_of_dense_ones(graph, deflate):
    diffusion = Diffusion(graph, 0.5)
    phi = stationary(diffusion) if deflate else None
    sparse = words(1_100, 200, 0.05) @ sp.diags_array(np.linspace(3, 0.1, 200, dtype=np.float32))
    one, two = (principal(FeatureMatrix(x, 1_100), diffusion, phi, None, 0.9, 2) for x in (sparse, sparse.toarray()))
    # Eigenvectors may differ where eigenvalues nearly meet; the energy the leading axes hold may not.
    rows = sparse.toarray() - (0 if phi is None else np.outer(phi, one.mean))
    for k in (16, 64, 200):
        held = [np.linalg.norm(rows @ basis.axes[:, :k]) for basis in (one, two)]
        assert held[0] == pytest.approx(held[1], rel=1e-3)


def test_zeros_cost_no_multiply_adds_on_the_way_to_the_axes(graph):
    diffusion = Diffusion(graph, 0.5)
    x = words(1_100, 96, 0.05)
    sparse, dense = (principal(FeatureMatrix(each, 1_100), diffusion, None, None, 0.9, 2).macs for each in (x, x.toarray()))
    assert sparse == x.nnz * 96 + eigen_macs(96)
    assert dense == 1_100 * 96 * 97 // 2 + eigen_macs(96)
