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
