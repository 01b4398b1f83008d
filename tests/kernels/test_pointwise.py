"""Kernels that look at one value at a time, at every instruction set, against the plain-numpy ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unifews.kernels import native
from unifews.kernels import reference_layers as reference

SEEDS = st.integers(0, 2**63 - 1)
many = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def dropped(x, seed, level, scale=1.0, threads=1):
    out = np.full_like(x, np.nan)
    native.dropout(x, seed, level, scale, out, threads)
    return out


@many
@given(
    seed=SEEDS,
    count=st.sampled_from([0, 1, 7, 16, 17, 1000, (1 << 15) - 1, 1 << 15, 3 * (1 << 15) + 5]),
    chance=st.sampled_from([0, 1, 2**30, 2**31, 3 * 2**30, 2**32 - 1]),
    threads=st.integers(1, 3),
)
def test_dropout_equals_reference(level, seed, count, chance, threads):
    x = np.random.default_rng(seed % 2**32).standard_normal(count).astype(np.float32)
    plain = np.empty_like(x)
    reference.dropout(x, seed, chance, 1.7, plain)
    np.testing.assert_array_equal(dropped(x, seed, chance, 1.7, threads), plain)


def test_dropout_in_place(level):
    x = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    elsewhere = dropped(x, 5, 2**31)
    native.dropout(x, 5, 2**31, 1.0, x, 2)
    np.testing.assert_array_equal(x, elsewhere)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.7])
def test_draws_look_independent(p):
    """Shares, neighbours, rows below each other and other seeds: each within five standard deviations of chance."""
    n, width = 4096, 256
    kept = [dropped(np.ones(n * width, dtype=np.float32), seed, round(p * 2**32)) for seed in (0, 1, 2, 2**32, 2**62 + 1)]
    for a in kept:
        assert abs(a.mean() - (1 - p)) < 5 * np.sqrt(p * (1 - p) / a.size)
        per_column = a.reshape(n, width).mean(axis=0)
        assert np.abs(per_column - (1 - p)).max() < 6 * np.sqrt(p * (1 - p) / n)
    pairs = [(kept[0][:-lag], kept[0][lag:]) for lag in (1, 2, 16, width, 1 << 15)]
    pairs += [(a, b) for i, a in enumerate(kept) for b in kept[:i]]
    for a, b in pairs:
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(len(a))


SHAPES = st.sampled_from([(0, 3), (1, 1), (2, 16), (7, 5), (255, 17), (257, 48), (1030, 33), (9000, 256)])


def normal(seed, shape):
    return np.random.default_rng(seed % 2**32).standard_normal(shape).astype(np.float32)


@many
@given(seed=SEEDS, shape=SHAPES, threads=st.integers(1, 3))
def test_relu_and_its_bits_equal_reference(level, seed, shape, threads):
    x = normal(seed, shape)
    x.ravel()[::7] = np.nan
    x.ravel()[1::5] = -0.0
    size = -(-x.size // 16)
    (out, bits), (plain, expected) = ((np.full_like(x, 5), np.full(size, 9, np.uint16)) for _ in range(2))
    native.relu(x, out, bits, threads)
    reference.relu(x, plain, expected)
    np.testing.assert_array_equal(out, plain)
    np.testing.assert_array_equal(bits, expected)
    native.masked(x, bits, out, threads)
    reference.masked(x, expected, plain)
    np.testing.assert_array_equal(out, plain)


@many
@given(seed=SEEDS, shape=SHAPES, offset=st.sampled_from([0.0, -3.0, 1e3]), threads=st.integers(1, 3))
def test_columns_equal_reference(level, seed, shape, offset, threads):
    x, grad = normal(seed, shape) + np.float32(offset), normal(seed + 1, shape)
    a, b, c = normal(seed + 2, (3, shape[1]))
    found = [np.full(shape[1], np.nan) for _ in range(4)]
    plain = [np.full(shape[1], np.nan) for _ in range(4)]
    for module, (mean, variance, total, dot), many_threads in ((native, found, threads), (reference, plain, 1)):
        module.column_moments(x, mean, variance, many_threads)
        module.column_dots(grad, x, mean.astype(np.float32), total, dot, many_threads)
    scale = 1e-4 * max(1.0, abs(offset) ** 0.5)
    np.testing.assert_allclose(found[0], plain[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[1], plain[1], rtol=1e-3, atol=scale)
    for mine, theirs in zip(found[2:], plain[2:], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-3 * max(len(x), 1) ** 0.5)
    out, expected = np.full_like(x, np.nan), np.full_like(x, np.nan)
    native.affine(x, a, c, out, threads)
    reference.affine(x, a, c, expected)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5 * max(1.0, abs(offset)))
    native.affine_pair(grad, x, a, b, c, out, threads)
    reference.affine_pair(grad, x, a, b, c, expected)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5 * max(1.0, abs(offset)))


def test_sums_of_columns_do_not_depend_on_the_threads(level):
    x, grad = normal(3, (5003, 40)), normal(4, (5003, 40))
    runs = []
    for threads in (1, 2, 3):
        sums = np.empty((4, 40))
        native.column_moments(x, sums[0], sums[1], threads)
        native.column_dots(grad, x, sums[0].astype(np.float32), sums[2], sums[3], threads)
        runs.append(sums)
    assert all(np.array_equal(runs[0], other) for other in runs[1:])
