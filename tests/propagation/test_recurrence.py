"""Lanczos recurrences on stored rows against dense linear algebra, on small graphs."""

from __future__ import annotations

import numpy as np
import pytest
from cases import SKIPS, adjacency, features, graph_of
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import degrees, keep_of, off_diagonal

from unifews import Filter, HeatKernel, PersonalizedPageRank
from unifews.core.diffusion import Diffusion
from unifews.kernels import LANES
from unifews.kernels.formats import FORMATS
from unifews.propagation.features import FeatureMatrix
from unifews.propagation.lanczos import column_sums, series_of
from unifews.propagation.operator import HopOperator
from unifews.propagation.recurrence import Recurrence
from unifews.propagation.symmetric import SymmetricOperator
from unifews.propagation.tiles import cut

FLOAT32 = FORMATS["float32"]


def started(a, x, scheme, r=0.5, format=FLOAT32, hops=20):
    """The recurrence of the first tile."""
    op = SymmetricOperator.of(operator := HopOperator(Diffusion(graph_of(a), r), scheme, hops, 1), series_of(operator))
    matrix = FeatureMatrix(x, len(a))
    shape = cut(matrix.f)[0]
    recurrence = Recurrence(op, matrix, shape, column_sums(op, matrix)[:, : shape.width])
    lost = recurrence.start(format)
    return recurrence, lost[: shape.width]


def run(recurrence, hops):
    shift = 0.3
    for _ in range(hops):
        recurrence.hop(shift)
        shift = recurrence.next_shift()
    return recurrence.state


def basis_of(recurrence, k):
    """p_k of each column, in values q = D^-r x, float64 [n, width]."""
    state, blocks = recurrence.state, recurrence.shape.blocks
    values = [state.format.decode(each, blocks).astype(float) for each in state.stored]
    return sum(mix * each for mix, each in zip(state.basis[k], values, strict=False))[:, : recurrence.shape.width]


def symmetric(a, skip):
    """S for r = 1/2, and f of it by its eigenvalues."""
    return off_diagonal(a, 0.5) + np.diag(keep_of(skip, a))


def applied(a, x, f, r, skip):
    """f(S) x: S of any r is D^(r-1/2) S_(1/2) D^(1/2-r)."""
    values, vectors = np.linalg.eigh(symmetric(a, skip))
    d = degrees(a)[:, None]
    return d ** (r - 0.5) * (vectors @ (f(values)[:, None] * (vectors.T @ (d ** (0.5 - r) * np.asarray(x, dtype=float)))))


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    skip=st.sampled_from(SKIPS),
    r=st.sampled_from([0.0, 0.5, 1.0]),
    weighted=st.booleans(),
    width=st.sampled_from([1, 5, 16, 20, 130]),
)
def test_as_many_hops_as_nodes_give_the_function(seed, skip, r, weighted, width):
    """The Krylov space of a column is exhausted then, and its coefficients are exact."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 7))
    a = adjacency(rng, n, 0.6, weighted=weighted)
    if not a.any():
        a[0, 1] = a[1, 0] = 1
    x = rng.standard_normal((n, width)).astype(np.float32)
    scheme = Filter(lambda t: np.exp(t) + t, skip=skip)
    recurrence, _ = started(a, x, scheme, r)
    run(recurrence, n)
    accuracy = recurrence.estimate(1e-3)
    result = np.zeros((n, x.shape[1]), dtype=np.float32)
    recurrence.finish(accuracy.found.coefficients, result)
    connected, tile = a.any(axis=1), slice(0, recurrence.shape.width)
    expected = applied(a, x, scheme.response, r, skip)
    lost = np.linalg.norm((result - expected)[connected, tile], axis=0) / np.linalg.norm(expected[connected, tile], axis=0)
    assert np.median(lost) < 1e-5 and lost.max() < 1e-3
    assert (lost <= np.maximum(accuracy.errors, 1e-3)).all()
    assert width < 16 or np.median(accuracy.errors) < 1e-3
    assert not result[~connected].any(), "isolated nodes are left alone"


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), r=st.sampled_from([0.0, 0.5, 1.0]), hops=st.integers(2, 6))
def test_the_basis_is_orthonormal_and_the_coefficients_are_its_matrix(seed, r, hops):
    rng = np.random.default_rng(seed)
    a = adjacency(rng, 40, 0.15)
    x = rng.standard_normal((40, 10)).astype(np.float32)
    recurrence, _ = started(a, x, HeatKernel(2.0), r)
    state = run(recurrence, hops)
    d, s = degrees(a) * a.any(axis=1), off_diagonal(a, 0.0) + np.diag(keep_of("diagonal", a))
    basis = np.stack([basis_of(recurrence, k) for k in range(hops + 1)])
    for column in range(10):
        p = basis[:, :, column]
        np.testing.assert_allclose(p @ (d[:, None] * p.T), np.eye(hops + 1), atol=2e-3)
        np.testing.assert_allclose(p @ d, 0, atol=1e-3 * np.sqrt(d.sum()), err_msg="no stationary part")
        j = p @ (d[:, None] * (s @ p.T))
        np.testing.assert_allclose(np.diag(j)[:hops], [each[column] for each in state.a], atol=2e-3)
        np.testing.assert_allclose(np.diag(j, 1), [each[column] for each in state.b], atol=2e-3)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("r", [0.0, 0.5, 1.0])
def test_what_is_lost_to_rounding_is_measured(name, r):
    """Against the same rows in float32."""
    rng, kind = np.random.default_rng(5), FORMATS[name]
    a, x = adjacency(rng, 60, 0.1), rng.standard_normal((60, 20)).astype(np.float32)
    exact, _ = started(a, x, HeatKernel(2.0), r)
    rounded, lost = started(a, x, HeatKernel(2.0), r, kind)
    weight = exact.op.weight[:, None].astype(float)
    values = [each.state.format.decode(each.state.stored[0], each.shape.blocks)[:, :20] for each in (exact, rounded)]
    expected = np.sqrt((weight * np.square(values[1] - values[0].astype(float))).sum(axis=0))
    np.testing.assert_allclose(lost, expected, rtol=0.02, atol=1e-6)
    assert (lost < {"float32": 1e-6, "bfloat16": 2.0**-8, "int8": 2.0**-5, "int4": 0.3}[name]).all()


@pytest.mark.parametrize("name", ["int8", "bfloat16"])
def test_the_error_of_rounding_is_about_what_is_estimated(name):
    """Many hops, so that truncation is nothing: the root mean square over columns, on an ordinary graph."""
    rng = np.random.default_rng(3)
    a, x = adjacency(rng, 300, 0.03), rng.standard_normal((300, 64)).astype(np.float32)
    scheme = PersonalizedPageRank(0.2)
    recurrence, _ = started(a, x, scheme, format=FORMATS[name])
    run(recurrence, 10)
    accuracy = recurrence.estimate(1e-3)
    result = np.zeros(x.shape, dtype=np.float32)
    recurrence.finish(accuracy.found.coefficients, result)
    connected = a.any(axis=1)
    expected = applied(a, x, scheme.response, 0.5, "diagonal")
    settled = np.sqrt(degrees(a))[:, None] * recurrence.mean[:64]
    norm = np.linalg.norm((expected - settled)[connected], axis=0)
    true = np.linalg.norm((result - expected)[connected], axis=0) / norm
    rms = [float(np.sqrt(np.square(each).mean())) for each in (true, accuracy.rounding)]
    assert 0.3 * rms[1] < rms[0] < 1.1 * rms[1], rms
    np.testing.assert_allclose(accuracy.found.norm / recurrence.scale[:64], norm, rtol=0.02)


def test_zero_and_stationary_columns_take_no_part():
    rng = np.random.default_rng(0)
    a = adjacency(rng, 30, 0.3)
    x = rng.standard_normal((30, 4)).astype(np.float32)
    x[:, 1], x[:, 2] = 0, 5 * np.sqrt(degrees(a))
    recurrence, _ = started(a, x, HeatKernel(2.0))
    run(recurrence, 4)
    accuracy = recurrence.estimate(1e-3)
    assert accuracy.active.tolist() == [True, False, False, True]
    assert accuracy.errors[[1, 2]].tolist() == [0, 0]
    result = np.zeros(x.shape, dtype=np.float32)
    recurrence.finish(accuracy.found.coefficients, result)
    connected = a.any(axis=1)
    np.testing.assert_allclose(result[connected][:, [1, 2]], x[connected][:, [1, 2]], rtol=1e-6)


def test_a_finished_column_stays_exact_while_others_go_on():
    """A column in one eigenvector: b_0 = 0."""
    rng = np.random.default_rng(2)
    a = adjacency(rng, 25, 0.3)
    a[0, 1] = a[1, 0] = 1
    values, vectors = np.linalg.eigh(symmetric(a, "diagonal"))
    x = rng.standard_normal((25, 3)).astype(np.float32)
    x[:, 1] = vectors[:, 5]
    scheme = HeatKernel(2.0)
    recurrence, _ = started(a, x, scheme)
    state = run(recurrence, 9)
    assert state.b[0][1] < 1e-3 < state.b[0][0]
    accuracy = recurrence.estimate(1e-3)
    result = np.zeros(x.shape, dtype=np.float32)
    recurrence.finish(accuracy.found.coefficients, result)
    connected = a.any(axis=1)
    np.testing.assert_allclose(result[connected, 1], (np.exp(-2 * (1 - values[5])) * x[:, 1])[connected], atol=1e-5)
    assert accuracy.errors[1] < 1e-3 or np.isinf(accuracy.errors[1])  # "not known" where rounding is all that is left


def test_errors_of_coefficients_do_not_grow_from_hop_to_hop():
    """40 hops on a long path, of columns whose coefficients are far apart: eigenvalues stay in the spectrum."""
    n = 200
    a = np.diag(np.ones(n - 1), 1) + np.diag(np.ones(n - 1), -1)
    rng = np.random.default_rng(4)
    x = rng.standard_normal((n, 24)).astype(np.float32)
    for _ in range(2):
        x[:, ::2] = symmetric(a, "diagonal") @ x[:, ::2]
    recurrence, _ = started(a, x, PersonalizedPageRank(0.02))
    state = run(recurrence, 40)
    for column in range(24):
        diagonal, off = ([each[column] for each in part] for part in (state.a, state.b))
        j = np.diag(diagonal) + np.diag(off[:-1], 1) + np.diag(off[:-1], -1)
        assert np.abs(np.linalg.eigvalsh(j)).max() < 1 + 1e-4


@pytest.mark.parametrize("smooth", [0, 4, 12])
@pytest.mark.parametrize("name", FORMATS)
def test_a_column_that_rounding_has_spoilt_is_not_called_accurate(smooth, name):
    """The smoother a column, the more a recurrence amplifies what is rounded."""
    n, rng = 200, np.random.default_rng(4)
    a = np.diag(np.ones(n - 1), 1) + np.diag(np.ones(n - 1), -1)
    x = rng.standard_normal((n, 24)).astype(np.float32)
    for _ in range(smooth):
        x[:, ::2] = symmetric(a, "diagonal") @ x[:, ::2]
    scheme = PersonalizedPageRank(0.02)
    expected = applied(a, x, scheme.response, 0.5, "diagonal")
    for hops in (5, 15, 40):
        recurrence, _ = started(a, x, scheme, format=FORMATS[name])
        run(recurrence, hops)
        accuracy = recurrence.estimate(0.05)
        result = np.zeros(x.shape, dtype=np.float32)
        recurrence.finish(accuracy.found.coefficients, result)
        settled = np.sqrt(degrees(a))[:, None] * recurrence.mean[:24]
        true = np.linalg.norm(result - expected, axis=0) / np.linalg.norm(expected - settled, axis=0)
        claimed = accuracy.errors < 0.2
        assert (true[claimed] < 3 * accuracy.errors[claimed] + 0.01).all()


def test_features_of_very_different_size_do_not_disturb_each_other():
    """Columns are scaled to norm 1: int8 steps are shared by 16 of them."""
    rng = np.random.default_rng(6)
    a, x = adjacency(rng, 50, 0.2), features(rng, 50, LANES)
    scales = np.logspace(0, -6, LANES).astype(np.float32)
    lost = [started(a, each, HeatKernel(1.0), format=FORMATS["int8"])[1] for each in (x, x * scales)]
    np.testing.assert_allclose(lost[0], lost[1], rtol=0.3)
