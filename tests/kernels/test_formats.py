"""Row formats: what is stored is close to what was given, and the kernels store the bytes of the NumPy oracle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unifews.errors import UnknownNameError
from unifews.kernels import LANES, aligned, native
from unifews.kernels.formats import FORMATS, row_format

KINDS = pytest.mark.parametrize("kind", FORMATS.values(), ids=FORMATS)
SMALLEST, TINY, LARGEST = 1e-45, np.finfo(np.float32).tiny, 1e38


def stored_by_kernel(kind, values, threads=1):
    """The rows that `encode_rows` makes of values [n, width], with every byte set to 0xAA before."""
    n, width = values.shape
    blocks = -(-width // LANES)
    stored, ones = kind.empty(n, blocks), np.ones(n, dtype=np.float32)
    stored.rows[:], stored.steps[:] = 0xAA, 0xAA
    sums = np.zeros((4, blocks * LANES))
    zeros, scale = aligned(blocks * LANES), aligned(blocks * LANES)
    zeros[:], scale[:] = 0, 1
    native.encode_rows(
        format=kind.code,
        x=np.ascontiguousarray(values, dtype=np.float32),
        row0=0,
        column0=0,
        width=width,
        blocks=blocks,
        source=ones,
        weight=ones,
        own=None,
        mean=zeros,
        scale=scale,
        rows=stored.rows,
        steps=stored.steps,
        sums=sums,
        threads=threads,
    )
    return stored, sums


@st.composite
def matrices(draw):
    """Rows of very different size, with zeros, ties, denormal and huge values."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, width = draw(st.integers(1, 9)), draw(st.integers(1, 8 * LANES))
    kind = draw(st.sampled_from(["normal", "ties", "special", "wide range"]))
    if kind == "ties":
        return (rng.integers(-260, 261, (n, width)) / 4 * 2.0 ** rng.integers(-30, 30, (n, 1))).astype(np.float32)
    if kind == "special":
        choices = [0, -0.0, SMALLEST, -SMALLEST, TINY, 3 * TINY, 1, -1, 127.5, 128, LARGEST, -LARGEST]
        return rng.choice(np.array(choices, dtype=np.float32), (n, width))
    spread = 30 if kind == "wide range" else 1
    return (rng.standard_normal((n, width)) * 10.0 ** rng.uniform(-spread, spread, (n, width))).astype(np.float32)


def whole(values):
    """With zeros up to a whole number of blocks."""
    return np.pad(values, ((0, 0), (0, -values.shape[1] % LANES)))


@KINDS
@settings(max_examples=60)
@given(values=matrices())
def test_what_is_stored_is_within_the_rounding_bound(kind, values):
    values = whole(values)
    blocks = values.shape[1] // LANES
    error = np.abs(kind.rounded(values).astype(np.float64) - values).reshape(len(values), blocks, LANES).max(axis=2)
    most = np.abs(values.astype(np.float64)).reshape(*error.shape, LANES).max(axis=2)
    least, largest = kind.span
    assert (error <= kind.rounding * most + (least if kind.rounding else 0))[most <= largest].all()
    assert (np.abs(kind.rounded(values)) <= largest).all()


@KINDS
@settings(max_examples=60)
@given(values=matrices())
def test_rounding_is_odd_and_hardly_changes_what_is_stored(kind, values):
    """Stored values of float32 and bfloat16 are stored as they are; those of the others may get a smaller step."""
    once = kind.rounded(whole(values))
    assert np.array_equal(kind.rounded(-once), -kind.rounded(once))
    if kind.name not in ("int4", "int8"):
        assert np.array_equal(kind.rounded(once), once)


@KINDS
@pytest.mark.parametrize("level", native.levels())
@settings(max_examples=60)
@given(values=matrices(), threads=st.integers(1, 3))
def test_the_kernel_stores_the_bytes_of_the_oracle_and_no_others(kind, level, values, threads):
    before = native.level()
    native.use_level(level)
    try:
        stored, sums = stored_by_kernel(kind, values, threads)
    finally:
        native.use_level(before)
    values = whole(values)
    blocks = values.shape[1] // LANES
    expected = kind.encode(values)
    for got, oracle in zip(kind.used(stored, blocks), kind.used(expected, blocks), strict=True):
        assert np.array_equal(got, oracle)
        got[:] = 0xAA
    assert (stored.rows == 0xAA).all() and (stored.steps == 0xAA).all(), "padding was written"
    with np.errstate(over="ignore"):
        lost = np.square(kind.decode(expected, blocks) - values).sum(axis=0, dtype=np.float32)
    if np.isfinite(lost).all() and np.abs(values).max() < 1e15:
        np.testing.assert_allclose(sums[2], lost, rtol=1e-4, atol=1e-30)


def test_bfloat16_rounds_ties_to_even():
    step = 2.0**-7
    given = np.array([[1 + step / 2, 1 + 1.5 * step, 1 + 0.49 * step, -1 - step / 2] + [0] * 12], dtype=np.float32)
    assert FORMATS["bfloat16"].rounded(given)[0, :4].tolist() == [1, 1 + 2 * step, 1, -1]


def test_int8_rounds_ties_to_even_steps_and_ends_at_127():
    """The largest magnitude, 127, makes a step of 1; beyond the largest step values are cut off."""
    given = np.array([[127, 0.5, 1.5, 2.5, -0.5, -1.5, 0.49, -126.6] + [0] * 8], dtype=np.float32)
    assert FORMATS["int8"].rounded(given)[0, :8].tolist() == [127, 0, 2, 2, 0, -2, 0, -127]
    huge = np.full((1, 16), -1e30, dtype=np.float32)
    assert (FORMATS["int8"].rounded(huge) == -FORMATS["int8"].span[1]).all()


@pytest.mark.parametrize("most, step", [(127, 1), (128, 1.25), (127 * 1.25, 1.25), (160, 1.5), (127 * 1.5, 1.5), (127 * 2, 2)])
def test_int8_takes_the_smallest_step_that_reaches_the_largest_magnitude(most, step):
    given = np.array([[most, step] + [0] * 14], dtype=np.float32)
    stored = FORMATS["int8"].encode(given)
    assert stored.rows[0, 1] == 1 and FORMATS["int8"].rounded(given)[0, 1] == step


def test_int8_has_one_step_per_block():
    """A block does not lose small values to a large one beside it."""
    given = np.concatenate([np.full((1, LANES), 1e6), np.full((1, LANES), 1e-3)], axis=1).astype(np.float32)
    rounded = FORMATS["int8"].rounded(given)
    np.testing.assert_allclose(rounded, given, rtol=2.0**-7)


@pytest.mark.parametrize("blocks", range(1, 9))
@KINDS
def test_rows_start_on_cache_lines_or_halves(kind, blocks):
    stored = kind.empty(5, blocks)
    assert stored.rows.ctypes.data % 64 == 0
    assert stored.rows.shape[1] in {32} or stored.rows.shape[1] % 64 == 0
    assert all(part.shape[0] == 5 for part in kind.used(stored, blocks))
    assert stored.nbytes == 5 * (kind.stride(blocks) + (8 if stored.steps.size else 0))


def test_formats_are_ordered_by_width_and_found_by_name():
    widths = [kind.bytes_per_block for kind in FORMATS.values()]
    assert widths == sorted(widths) and row_format("int8") is FORMATS["int8"]
    with pytest.raises(UnknownNameError, match="bfloat16"):
        row_format("bfloat61")
