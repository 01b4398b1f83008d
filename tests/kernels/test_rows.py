"""The kernels on stored rows, at every instruction set and number of threads, against the NumPy reference and to the bit."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unifews.kernels import LANES, aligned, native, reference_rows
from unifews.kernels.formats import FORMATS, RowFormat, StoredRows

KINDS = pytest.mark.parametrize("kind", FORMATS.values(), ids=FORMATS)


@contextmanager
def at_level(name):
    before = native.level()
    native.use_level(name)
    try:
        yield
    finally:
        native.use_level(before)


def every_way(run):
    """run(kernels, threads) by the reference, and by the compiled kernels at each level; threads do not change a bit."""
    expected, found = run(reference_rows, 1), []
    for level in native.levels():
        with at_level(level):
            one = run(native, 1)
            for threads in (2, 3):
                for a, b in zip(one, run(native, threads), strict=True):
                    assert a.tobytes() == b.tobytes(), f"{level}, {threads} threads"
        found.append(one)
    return expected, found


def floats(*shape, values=0.0):
    out = aligned(*shape)
    out[:] = values
    return out


@dataclass(repr=False)
class Case:
    """A random graph, weights of the inner product (some zero), and a tile's shape."""

    start: Any
    end: Any
    indices: Any
    edge_weight: Any
    weight: Any
    own: Any
    blocks: int
    width: int
    exact: bool
    """Whether all values are small multiples of a power of two, so that no float32 sum is rounded"""
    rng: Any

    @property
    def n(self):
        return len(self.start)

    @property
    def padded(self):
        return self.blocks * LANES

    def numbers(self, *shape):
        """Values for which sums are exact, or any."""
        if self.exact:
            return (self.rng.integers(-4, 5, shape) / 4).astype(np.float32)
        sizes = 10.0 ** self.rng.uniform(-2, 1, (shape[0],) + (1,) * (len(shape) - 1))
        return (self.rng.standard_normal(shape) * sizes).astype(np.float32)

    def columns(self, *shape):
        """Values per column, zero in the padding."""
        values = self.numbers(*shape)
        values[..., self.width :] = 0
        return floats(*shape, values=values)

    def iterates(self, kind: RowFormat, count):
        return [kind.encode(self.columns(self.n, self.padded)) for _ in range(count)]


@st.composite
def cases(draw, most=80):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.one_of(st.integers(1, 4), st.integers(1, most), st.just(400)))
    exact = draw(st.booleans())
    degree = draw(st.sampled_from([0, 1, 4]))
    lengths = rng.poisson(degree, n) * (rng.random(n) < 0.8)  # some rows are empty; targets may repeat, or be the row itself
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    indices = rng.integers(0, n, indptr[-1]).astype(draw(st.sampled_from([np.int32, np.int64])))
    edge_weight = None
    if draw(st.booleans()):
        edge_weight = rng.choice([0.5, 1, 2], len(indices)) if exact else rng.uniform(0.1, 3, len(indices))
        edge_weight = edge_weight.astype(np.float32)
    weight = (rng.integers(1, 9, n) * (rng.random(n) < 0.85)).astype(np.float32)
    own = np.square(weight) if draw(st.booleans()) else None
    blocks = draw(st.integers(1, 8))
    width = blocks * LANES - draw(st.sampled_from([0, 1, 7, 15]))
    return Case(indptr[:-1], indptr[1:], indices, edge_weight, weight, own, blocks, width, exact, rng)


def blank(kind, case):
    """Rows to store into; every byte is 0xAA."""
    stored = kind.empty(case.n, case.blocks)
    stored.rows[:], stored.steps[:] = 0xAA, 0xAA
    return stored


def same_padding(kind, stored, blocks):
    for part in kind.used(stored, blocks):
        part[:] = 0xAA
    assert (stored.rows == 0xAA).all() and (stored.steps == 0xAA).all(), "padding was written"


def near(got, expected, rtol=2e-4):
    """Sums: relative to the largest of their row."""
    scale = np.abs(expected).max(axis=-1, keepdims=True, initial=0) + 1e-30
    np.testing.assert_allclose(got / scale, expected / scale, rtol=0, atol=rtol)


def check_stored(kind, case, got, sums, expected, expected_sums):
    """Stored values where arithmetic is exact; else values up to one step of the format, and sums."""
    if case.exact:  # but for the sign of zero
        assert np.array_equal(kind.decode(got, case.blocks), kind.decode(expected, case.blocks))
        for mine, theirs in zip(kind.used(got, case.blocks)[1:], kind.used(expected, case.blocks)[1:], strict=True):
            assert np.array_equal(mine, theirs), "steps"
        near(sums, expected_sums, 1e-6)
        return
    mine, theirs = (kind.decode(each, case.blocks).astype(float) for each in (got, expected))
    block = np.abs(theirs).reshape(case.n, case.blocks, LANES).max(axis=2, initial=0).repeat(LANES, axis=1)
    assert (np.abs(mine - theirs) <= (2 * kind.rounding + 1e-4) * block + 1e-30).all()
    near(sums[[0, 1, 3]], expected_sums[[0, 1, 3]], 2e-3 if kind.rounding else 2e-4)
    assert sums[2].sum() == pytest.approx(expected_sums[2].sum(), rel=0.1, abs=1e-12)


@KINDS
@settings(max_examples=40)
@given(case=cases(), column0=st.integers(0, 5), cut=st.floats(0, 1), centred=st.booleans())
def test_encode_rows(kind, case, column0, cut, centred):
    x = np.ascontiguousarray(case.numbers(case.n, column0 + case.width + 3))
    source = np.abs(case.numbers(case.n)) + 0.25
    mean = case.columns(1, case.padded)[0] * centred
    scale = floats(case.padded, values=2.0 ** case.rng.integers(-3, 4, case.padded))
    scale[case.width :] = 0
    at = int(cut * case.n)  # in two pieces, as a file is read

    def run(kernels, threads):
        stored, sums = blank(kind, case), np.zeros((4, case.padded))
        for first, part in ((0, x[:at]), (at, x[at:])):
            kernels.encode_rows(
                format=kind.code,
                x=part,
                row0=first,
                column0=column0,
                width=case.width,
                blocks=case.blocks,
                source=source,
                weight=case.weight,
                own=case.own,
                mean=floats(case.padded, values=mean),
                scale=scale,
                rows=stored.rows,
                steps=stored.steps,
                sums=sums,
                threads=threads,
            )
        return stored.rows, stored.steps, sums

    (rows, steps, expected_sums), found = every_way(run)
    for got_rows, got_steps, sums in found:
        got = StoredRows(got_rows, got_steps)
        check_stored(kind, case, got, sums, StoredRows(rows, steps), expected_sums)
        assert not kind.decode(got, case.blocks)[case.weight == 0].any(), "rows without weight are zero"
        assert not kind.decode(got, case.blocks)[:, case.width :].any(), "columns of the padding are zero"
        same_padding(kind, got, case.blocks)


@KINDS
@settings(max_examples=40)
@given(case=cases(), count=st.sampled_from([1, 2, 3, 9]))
def test_recurrence_hop(kind, case, count):
    iterates = case.iterates(kind, count)
    keep, gain = case.numbers(case.n), case.numbers(case.n)
    factor, mix = case.columns(1, case.padded)[0].copy(), case.columns(count, case.padded)

    def run(kernels, threads):
        stored, sums = blank(kind, case), np.full((4, case.padded), 7.0)
        kernels.recurrence_hop(
            format=kind.code,
            start=case.start,
            end=case.end,
            indices=case.indices,
            edge_weight=case.edge_weight,
            blocks=case.blocks,
            keep=keep,
            gain=gain,
            weight=case.weight,
            own=case.own,
            rows=[each.rows for each in iterates],
            steps=[each.steps for each in iterates],
            factor=floats(case.padded, values=factor),
            mix=mix,
            out=stored.rows,
            out_steps=stored.steps,
            sums=sums,
            threads=threads,
        )
        return stored.rows, stored.steps, sums

    (rows, steps, expected_sums), found = every_way(run)
    for got_rows, got_steps, sums in found:
        got = StoredRows(got_rows, got_steps)
        check_stored(kind, case, got, sums, StoredRows(rows, steps), expected_sums)
        assert not kind.decode(got, case.blocks)[case.weight == 0].any(), "rows without weight are zero"
        same_padding(kind, got, case.blocks)


@KINDS
@settings(max_examples=40)
@given(case=cases(), count=st.sampled_from([1, 2, 7]), column0=st.sampled_from([0, 3, 16]), more=st.sampled_from([0, 5]))
def test_combine_rows(kind, case, count, column0, more):
    iterates = case.iterates(kind, count)
    mix, offset, factor = case.columns(count, case.padded), case.columns(1, case.padded)[0], case.numbers(case.n)

    def run(kernels, threads):
        result = floats(case.n, column0 + case.width + more, values=7.0)
        kernels.combine_rows(
            format=kind.code,
            blocks=case.blocks,
            width=case.width,
            factor=factor,
            weight=case.weight,
            rows=[each.rows for each in iterates],
            steps=[each.steps for each in iterates],
            mix=mix,
            offset=floats(case.padded, values=offset),
            result=result,
            column0=column0,
            threads=threads,
        )
        return (result,)

    (expected,), found = every_way(run)
    inside = np.zeros(expected.shape, dtype=bool)
    inside[case.weight != 0, column0 : column0 + case.width] = True
    for (result,) in found:
        assert (result[~inside] == 7).all(), "other columns, and rows without weight, are left alone"
        if case.exact:
            assert np.array_equal(result, expected)
        else:
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4 * max(np.abs(expected).max(initial=0), 1))


@settings(max_examples=40)
@given(case=cases(), cut=st.floats(0, 1))
def test_column_sums(case, cut):
    x, at = np.ascontiguousarray(case.numbers(case.n, case.width)), int(cut * case.n)

    def run(kernels, threads):
        sums = np.ones((2, case.width))
        for part in (slice(0, at), slice(at, None)):
            kernels.column_sums(x=x[part], factor=case.weight[part], square=case.weight[part], sums=sums, threads=threads)
        return (sums,)

    (expected,), found = every_way(run)
    for (sums,) in found:
        near(sums, expected, 1e-6 if case.exact else 1e-5)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.sampled_from([(1, 1), (3, 7), (70, 128), (1000, 9), (0, 4)]),
    special=st.sampled_from([None, np.nan, -np.nan, np.inf, -np.inf, -0.0]),
)
def test_largest_magnitude(seed, shape, special):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) * 10.0 ** rng.uniform(-30, 30)).astype(np.float32)
    if special is not None and x.size:
        x.flat[rng.integers(x.size)] = special

    def run(kernels, threads):
        return (np.array(kernels.largest_magnitude(x=x, threads=threads)),)

    (expected,), found = every_way(run)
    for (most,) in found:
        assert np.array_equal(most, expected, equal_nan=True)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 30),
    terms=st.integers(1, 60),
    blocks=st.integers(1, 20),
    low=st.sampled_from([-1.0, 0.0]),
)
def test_tridiagonal_series(seed, size, terms, blocks, low):
    """Of matrices whose eigenvalues are in the interval, as Gershgorin's circles are."""
    rng, width = np.random.default_rng(seed), blocks * LANES
    diagonal = floats(size, width, values=low + 1 + rng.uniform(-0.4, 0.4, (size, width)))
    off_diagonal = floats(max(size - 1, 1), width, values=rng.uniform(0, 0.3, (max(size - 1, 1), width)))
    series = rng.standard_normal(terms) / (1 + np.arange(terms))

    def run(kernels, threads):
        out = floats(size, width, values=7.0)
        kernels.tridiagonal_series(
            diagonal=diagonal, off_diagonal=off_diagonal, series=series, centre=low + 1, radius=1.0, out=out, threads=threads
        )
        return (out,)

    (expected,), found = every_way(run)
    for (out,) in found:
        np.testing.assert_allclose(out, expected, atol=1e-5 * max(1.0, np.abs(series).sum()))


@pytest.mark.parametrize("count", [0, 65])
def test_a_number_of_iterates_that_cannot_be_combined_is_refused(count):
    kind, one = FORMATS["float32"], np.ones(3, dtype=np.float32)
    iterates = [kind.encode(np.zeros((3, LANES), dtype=np.float32)) for _ in range(count)]
    with pytest.raises(ValueError, match="64"):
        native.combine_rows(
            format=kind.code,
            blocks=1,
            width=LANES,
            factor=one,
            weight=one,
            rows=[each.rows for each in iterates],
            steps=[each.steps for each in iterates],
            mix=floats(max(count, 1), LANES),
            offset=floats(LANES),
            result=floats(3, LANES),
            column0=0,
            threads=1,
        )
