"""The product with few weights, at every instruction set, against the plain-numpy one; its door; when it is worth it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unifews.errors import InputError, ShapeError
from unifews.kernels import LANES, aligned, native
from unifews.kernels import reference_layers as reference
from unifews.kernels.packed_weight import FEW_ROWS, PackedWeight, sparse_linear, sparse_linear_gathered, worth

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


def graph(rng, n, senders, wide=False, weighted=True):
    a = (rng.random((n, senders)) < rng.choice([0.0, 0.05, 0.3])) & (rng.random((n, 1)) < 0.8)
    indptr = np.concatenate([[0], np.cumsum(a.sum(axis=1))]).astype(np.int64)
    indices = np.nonzero(a)[1].astype(np.int64 if wide else np.int32)
    weight = rng.standard_normal(len(indices)).astype(np.float32) if weighted else None
    return indptr[:-1].copy(), indptr[1:].copy(), indices, weight


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


@many
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 200),
    inputs=st.integers(1, 200),
    wide=st.booleans(),
    weighted=st.booleans(),
    looped=st.booleans(),
    some=st.booleans(),
    relu=st.booleans(),
)
def test_gathered_equals_reference(level, seed, n, inputs, wide, weighted, looped, some, relu):
    rng = np.random.default_rng(seed)
    start, end, indices, weight = graph(rng, n, n + 5, wide, weighted)
    y, w = unaligned(rng, n + 5, inputs), weights(rng, 19, inputs, 0.2)
    loop = rng.standard_normal(n).astype(np.float32) if looped else None
    columns = np.sort(rng.permutation(inputs)[: rng.integers(1, inputs + 1)]) if some else None
    bias = rng.standard_normal(19).astype(np.float32)
    ours = sparse_linear_gathered(
        y, start, end, indices, w, weight=weight, loop=loop, columns=columns, bias=bias, relu=relu, threads=2
    )
    blocks = -(-(inputs if columns is None else len(columns)) // LANES)
    table, plain = aligned(n + 5, blocks * LANES), np.empty((n, 19), dtype=np.float32)
    reference.pick_columns(y, columns, blocks, table)
    reference.sparse_linear_gathered(
        start, end, indices, weight, blocks, columns, table, y, loop, w.indptr, w.indices, w.values, bias, plain, relu
    )
    np.testing.assert_allclose(ours, plain, rtol=1e-3, atol=1e-3)


def test_gathered_has_the_bits_of_diffuse_and_then_the_product():
    rng = np.random.default_rng(8_191)
    start, end, indices, weight = graph(rng, 500, 500)
    y, w, rows = aligned(500, 64), weights(rng, 48, 64, 0.3), aligned(500, 64)
    y[:] = rng.standard_normal(y.shape)
    native.diffuse(start, end, indices, weight, 4, None, y, y, None, rows, 1)
    fused = sparse_linear_gathered(y, start, end, indices, w, weight=weight, threads=2)
    assert (fused == sparse_linear(rows, w)).all()


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


def test_features_and_biases_of_another_width_are_refused():
    w = PackedWeight.pack(np.eye(4))
    with pytest.raises(ShapeError, match=r"shape \[3, 5\], but the weights read 4 inputs"):
        sparse_linear(np.ones((3, 5)), w)
    with pytest.raises(ShapeError, match="4 outputs need one value each"):
        sparse_linear(np.ones((3, 4)), w, bias=np.ones(3))
    with pytest.raises(ShapeError, match=r"\[f_out, f_in\]"):
        PackedWeight.pack(np.ones(3))


def test_results_go_to_memory_that_is_given():
    w, x = PackedWeight.pack(np.eye(4)), np.ones((3, 4), dtype=np.float32)
    out = np.zeros((3, 4), dtype=np.float32)
    assert sparse_linear(x, w, out=out) is out
    assert (out == x).all()
    for bad in (np.zeros((4, 3), dtype=np.float32), np.zeros((3, 4)), np.zeros((4, 3), dtype=np.float32).T):
        with pytest.raises(ShapeError, match=r"writable float32 \[3, 4\]"):
            sparse_linear(x, w, out=bad)


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
