"""The product with few weights, at every instruction set, against the plain-numpy one; packing; when it is faster."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unifews.errors import InputError, ShapeError
from unifews.kernels import aligned, native
from unifews.kernels import reference_layers as reference
from unifews.kernels.packed_weight import FEW_ROWS, PackedWeight, worth, worth_gradient

many = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def weights(rng, outputs, inputs, density, dead=0.0, shuffled=False):
    """Random weights, some inputs read by none of them, perhaps each output's in random order."""
    dense = rng.standard_normal((outputs, inputs)).astype(np.float32)
    dense *= (rng.random(dense.shape) < density) & (rng.random(inputs) >= dead)
    packed = PackedWeight.pack(dense)
    if shuffled:
        output = np.repeat(np.arange(outputs), np.diff(packed.indptr))
        order = np.lexsort((rng.random(len(output)), output))
        packed = PackedWeight(packed.indptr, packed.indices[order], packed.values[order], packed.shape)
    return packed


def unaligned(rng, n, width):
    """Rows that start at an odd place of memory."""
    return rng.standard_normal(n * width + 1).astype(np.float32)[1:].reshape(n, width)


def sparse_linear(x, w, relu=False, threads=2):
    """The kernel with its output allocated."""
    out = aligned(len(x), w.shape[0])
    native.sparse_linear(np.ascontiguousarray(x, np.float32), w.indptr, w.indices, w.values, None, out, relu, threads)
    return out


@many
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 300),
    inputs=st.integers(1, 400),
    outputs=st.integers(1, 60),
    density=st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0]),
    dead=st.sampled_from([0.0, 0.5, 0.95]),
    biased=st.booleans(),
    relu=st.booleans(),
)
def test_native_equals_reference(level, seed, n, inputs, outputs, density, dead, biased, relu):
    rng = np.random.default_rng(seed)
    w, x = weights(rng, outputs, inputs, density, dead, shuffled=True), unaligned(rng, n, inputs)
    bias = rng.standard_normal(outputs).astype(np.float32) if biased else None
    ours, plain = unaligned(rng, n, outputs), np.empty((n, outputs), dtype=np.float32)
    around = ours.base.copy()  # one float before the rows, and the rows
    native.sparse_linear(x, w.indptr, w.indices, w.values, bias, ours, relu, 2)
    reference.sparse_linear(x, w.indptr, w.indices, w.values, bias, plain, relu)
    np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-4)
    assert ours.base.reshape(-1)[0] == around.reshape(-1)[0]


@pytest.mark.parametrize(
    "n, inputs, outputs, density",
    [
        (1, 1, 1, 1.0),
        (65, 1, 1, 1.0),
        (1, 3000, 2000, 0.02),
        (130, 5000, 3, 0.3),
        (129, 7, 1700, 0.5),
        (200, 9, 9, 0.0),
        (64, 512, 512, 0.1),
        (1000, 512, 512, 0.05),
        (81, 249, 17, 0.9),
    ],
)
def test_extreme_shapes(level, n, inputs, outputs, density):
    rng = np.random.default_rng(n + inputs)
    w, x = weights(rng, outputs, inputs, density), unaligned(rng, n, inputs)
    expected = x.astype(np.float64) @ w.dense().T.astype(np.float64)
    np.testing.assert_allclose(sparse_linear(x, w), expected, rtol=1e-4, atol=1e-4)


def test_no_rows_give_no_rows():
    assert sparse_linear(np.empty((0, 5)), PackedWeight.pack(np.eye(5))).shape == (0, 5)


@many
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 700))
def test_same_bits_whatever_the_threads_and_the_rows_computed_with_it(level, seed, n):
    rng = np.random.default_rng(seed)
    w, x = weights(rng, 37, 300, 0.2), unaligned(rng, n, 300)
    whole = sparse_linear(x, w, threads=1)
    for threads in (2, 3, 8):
        assert (sparse_linear(x, w, threads=threads) == whole).all()
    some = rng.permutation(n)[: rng.integers(1, n + 1)]
    assert (sparse_linear(x[some], w) == whole[some]).all()


def weight_gradient(x, g, w, threads=2):
    out = np.full(len(w.indices), np.nan, dtype=np.float32)
    native.weight_gradient(x, g, w.indptr, w.indices, out, threads)
    return out


@many
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 300),
    inputs=st.integers(1, 300),
    outputs=st.integers(1, 60),
    density=st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0]),
    dead=st.sampled_from([0.0, 0.5, 0.95]),
)
def test_native_gradient_equals_reference(level, seed, n, inputs, outputs, density, dead):
    rng = np.random.default_rng(seed)
    w = weights(rng, outputs, inputs, density, dead, shuffled=True)
    x, g = unaligned(rng, n, inputs), unaligned(rng, n, outputs)
    plain = np.empty(len(w.indices), dtype=np.float32)
    reference.weight_gradient(x, g, w.indptr, w.indices, plain)
    np.testing.assert_allclose(weight_gradient(x, g, w), plain, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "n, inputs, outputs", [(1, 1, 1), (130, 3000, 3), (129, 7, 2100), (5000, 9, 9), (4097, 60, 515), (0, 4, 4)]
)
def test_gradients_of_extreme_shapes_have_the_same_bits_whatever_the_threads(level, n, inputs, outputs):
    rng = np.random.default_rng(n + inputs)
    w, x, g = weights(rng, outputs, inputs, 0.3), unaligned(rng, n, inputs), unaligned(rng, n, outputs)
    once = weight_gradient(x, g, w, threads=1)
    expected = (g.astype(np.float64).T @ x.astype(np.float64))[w.dense() != 0]
    np.testing.assert_allclose(once, expected, rtol=1e-4, atol=2e-3)
    for threads in (2, 3, 8):
        assert (weight_gradient(x, g, w, threads=threads) == once).all()


def test_a_gradient_that_is_not_a_number_stays_where_it_is_read(level):
    w = PackedWeight.pack(np.eye(20))
    x, g = np.ones((100, 20), dtype=np.float32), np.ones((100, 20), dtype=np.float32)
    x[41, 3], g[99, 7] = np.nan, np.inf
    found = weight_gradient(x, g, w)
    assert np.isnan(found[3]) and found[7] == np.inf and (np.delete(found, [3, 7]) == 100).all()


@given(n=st.integers(1, 10**6), inputs=st.integers(1, 5000), outputs=st.integers(1, 5000), a=st.floats(0, 1), b=st.floats(0, 1))
def test_a_gradient_that_pays_with_more_weights_pays_with_fewer(n, inputs, outputs, a, b):
    assert worth_gradient(n, inputs, outputs, min(a, b)) >= worth_gradient(n, inputs, outputs, max(a, b))


def test_weights_at_the_same_place_add_up(level):
    w = PackedWeight([0, 600, 601], [2] * 600 + [0], np.ones(601), (2, 3))
    for n in (5, 100):
        x = np.tile(np.array([[5, 7, 2]], dtype=np.float32), (n, 1))
        np.testing.assert_array_equal(sparse_linear(x, w), np.tile([[1200, 5]], (n, 1)))
    np.testing.assert_array_equal(w.dense(), [[0, 0, 600], [1, 0, 0]])


def test_not_a_number_stays_one_and_only_where_it_is_read(level):
    w = PackedWeight.pack(np.diag(np.arange(1, 21)))
    x = np.ones((100, 20), dtype=np.float32)
    x[41, 3], x[3, 17] = np.nan, -np.inf
    out = sparse_linear(x, w, relu=True)
    assert np.isnan(out[41, 3])
    assert out[3, 17] == 0
    assert np.isfinite(np.delete(out, 41, axis=0)).all()
    assert np.isnan(out).sum() == 1


@given(seed=st.integers(0, 2**32 - 1), outputs=st.integers(1, 20), inputs=st.integers(1, 20))
def test_packing_loses_nothing(seed, outputs, inputs):
    rng = np.random.default_rng(seed)
    dense = (rng.standard_normal((outputs, inputs)) * (rng.random((outputs, inputs)) < 0.3)).astype(np.float32)
    packed = PackedWeight.pack(dense)
    assert (packed.dense() == dense).all()
    assert packed.density == np.count_nonzero(dense) / dense.size


@pytest.mark.parametrize(
    "arguments, error, sentence",
    [
        (([0, 1], [0], [1.0], (2, 3)), ShapeError, "2 outputs need 3"),
        (([0, 2, 1], [0], [1.0], (2, 3)), InputError, "must be sorted"),
        (([0, 1, 2], [0], [1.0], (2, 3)), InputError, "number of weights, 1"),
        (([1, 1, 1], [0], [1.0], (2, 3)), InputError, "sorted, from 0"),
        (([0, 1, 1], [3], [1.0], (2, 3)), InputError, "inputs are 0 to 2"),
        (([0, 1, 1], [-1], [1.0], (2, 3)), InputError, "counted from 0"),
        (([0, 1, 1], [2**32], [1.0], (2, 3)), InputError, "below 2\\^31"),
        (([0, 1, 1], [0.5], [1.0], (2, 3)), InputError, "must have integers"),
        (([0, 1, 1], [0], [1.0, 2.0], (2, 3)), ShapeError, "one per index"),
        (([0, 1, 1], [[0]], [1.0], (2, 3)), ShapeError, "list of numbers"),
        (([0], [], [], (0, 3)), ShapeError, "at least one output"),
    ],
)
def test_weights_that_do_not_fit_are_refused(arguments, error, sentence):
    with pytest.raises(error, match=sentence):
        PackedWeight(*arguments)


def test_a_weight_is_a_matrix():
    with pytest.raises(ShapeError, match=r"\[f_out, f_in\]"):
        PackedWeight.pack(np.ones(3))


@pytest.mark.skipif(native.level() == "base", reason="plain vectors need fewer weights to win")
@pytest.mark.parametrize("inputs, outputs", [(512, 512), (128, 256), (1433, 512), (500, 512), (256, 40)])
def test_packed_pays_at_a_third_of_the_weights_and_never_at_all_of_them(inputs, outputs):
    assert worth(64_000, inputs, outputs, 0.1)
    assert worth(64_000, inputs, outputs, 0.3)
    assert not any(worth(n, inputs, outputs, 1.0) for n in (1, 16, 100, 1_000, 1_000_000))


@given(n=st.integers(1, 10**6), inputs=st.integers(1, 5000), outputs=st.integers(1, 5000), a=st.floats(0, 1), b=st.floats(0, 1))
def test_what_pays_with_more_weights_pays_with_fewer(n, inputs, outputs, a, b):
    assert worth(n, inputs, outputs, min(a, b)) >= worth(n, inputs, outputs, max(a, b))


def test_a_row_at_a_time_pays_only_where_few_weights_are_left():
    assert not worth(1, 512, 512, 0.3)
    assert worth(1, 512, 512, 0.02)
    assert worth(FEW_ROWS, 512, 512, 0.1)
    assert worth(FEW_ROWS + 1, 512, 512, 0.1)
