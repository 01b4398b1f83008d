"""The kernels of layers that train, at every instruction set, against the plain-numpy ones."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unifews.kernels import LANES, aligned, native
from unifews.kernels import reference_layers as reference


def problem(seed, wide=False, weighted=True, blocks=None):
    """A random directed graph, some rows of it empty, as arguments of the kernels; rows of some blocks; block sizes."""
    rng = np.random.default_rng(seed)
    n, blocks = int(rng.integers(1, 150)), blocks or int(rng.integers(1, 20))
    a = (rng.random((n, n)) < rng.choice([0.0, 0.05, 0.4])) & (rng.random((n, 1)) < 0.8)
    indptr = np.concatenate([[0], np.cumsum(a.sum(axis=1))]).astype(np.int64)
    indices = np.nonzero(a)[1].astype(np.int64 if wide else np.int32)
    weight = rng.standard_normal(len(indices)).astype(np.float32) if weighted else None
    x, size = aligned(n, blocks * LANES), aligned(n, blocks)
    x[:] = rng.standard_normal(x.shape) * 10.0 ** rng.uniform(-2, 1, (n, 1))
    reference.block_sizes(x, blocks, size)
    edges = dict(start=indptr[:-1], end=indptr[1:], indices=indices, weight=weight)
    return edges, blocks, x, size, rng


def outputs(shape):
    return [aligned(*shape) for _ in range(2)]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1), wide=st.booleans(), weighted=st.booleans(), scaled=st.booleans())
def test_gather(level, seed, wide, weighted, scaled):
    edges, blocks, x, _, rng = problem(seed, wide, weighted)
    gain = rng.standard_normal(len(x)).astype(np.float32) if scaled else None
    ours, plain = outputs(x.shape)
    native.gather(**edges, blocks=blocks, gain=gain, x=x, out=ours, threads=2)
    reference.gather(**edges, blocks=blocks, gain=gain, x=x, out=plain)
    np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-4)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1), wide=st.booleans(), weighted=st.booleans(), more=st.integers(0, 40))
def test_scatter(level, seed, wide, weighted, more):
    edges, blocks, x, _, _ = problem(seed, wide, weighted)
    ours, plain = outputs((len(x) + more, x.shape[1]))  # senders may be more than receivers
    ours[:] = np.nan
    native.scatter(**edges, blocks=blocks, x=x, out=ours, threads=2)
    reference.scatter(**edges, blocks=blocks, x=x, out=plain)
    np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-4)
    again = np.empty_like(ours)
    for threads in (1, 3, 16):
        native.scatter(**edges, blocks=blocks, x=x, out=again, threads=threads)
        np.testing.assert_array_equal(ours, again)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1), wide=st.booleans(), weighted=st.booleans(), by_sender=st.booleans())
def test_gather_kept(level, seed, wide, weighted, by_sender):
    edges, blocks, x, size, rng = problem(seed, wide, weighted)
    # Cuts far from any decision of float32 rounding: products are compared, so a tie by rounding would be a coin toss.
    cut = (np.exp2(rng.integers(-6, 6, len(x))) * 1.0000123).astype(np.float32)
    ours, plain = outputs(x.shape)
    arguments = dict(**edges, blocks=blocks, gain=None, x=x, size=size, cut=cut, by_sender=by_sender)
    kept = native.gather_kept(**arguments, out=ours, threads=2)
    assert kept == reference.gather_kept(**arguments, out=plain)
    np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-4)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_a_cut_of_zero_keeps_everything_and_an_infinite_one_nothing(level, seed):
    edges, blocks, x, size, _ = problem(seed)
    ours, plain = outputs(x.shape)
    native.gather(**edges, blocks=blocks, gain=None, x=x, out=plain, threads=1)
    for cut, expected, result in ((0.0, len(edges["indices"]) * blocks, plain), (np.inf, 0, np.zeros_like(plain))):
        cuts = np.full(len(x), cut, dtype=np.float32)
        kept = native.gather_kept(
            **edges, blocks=blocks, gain=None, x=x, size=size, cut=cuts, by_sender=False, out=ours, threads=2
        )
        assert kept == expected
        np.testing.assert_allclose(ours, result, rtol=1e-5, atol=1e-5)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_threads_do_not_change_a_bit(level, seed):
    edges, blocks, x, size, rng = problem(seed)
    cut = np.exp2(rng.integers(-3, 3, len(x))).astype(np.float32)
    one, many = outputs(x.shape)
    for threads, out in ((1, one), (3, many)):
        native.gather_kept(
            **edges, blocks=blocks, gain=None, x=x, size=size, cut=cut, by_sender=False, out=out, threads=threads
        )
    assert np.array_equal(one, many)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1), wide=st.booleans())
def test_sizes_and_dots(level, seed, wide):
    edges, blocks, x, size, rng = problem(seed, wide)
    again, y = aligned(*size.shape), aligned(*x.shape)
    native.block_sizes(x, blocks, again, 2)
    np.testing.assert_allclose(again, size, rtol=1e-5)
    y[:] = rng.standard_normal(x.shape)
    del edges["weight"]
    ours, plain = (np.zeros(len(edges["indices"]), dtype=np.float32) for _ in range(2))
    native.edge_dots(**edges, blocks=blocks, x=x, y=y, out=ours, threads=2)
    reference.edge_dots(**edges, blocks=blocks, x=x, y=y, out=plain)
    np.testing.assert_allclose(ours, plain, rtol=1e-3, atol=1e-3)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1), wide=st.booleans(), weighted=st.booleans(), some=st.booleans(), loops=st.booleans())
def test_diffuse(level, seed, wide, weighted, some, loops):
    edges, _, _, _, rng = problem(seed, wide, weighted)
    n, width = len(edges["start"]), int(rng.integers(1, 150))
    y = rng.standard_normal((n, width)).astype(np.float32)
    columns = rng.permutation(width)[: int(rng.integers(1, width + 1))].astype(np.int64) if some else None
    blocks = -(-(width if columns is None else len(columns)) // LANES)
    loop = rng.standard_normal(n).astype(np.float32) if loops else None
    table, plain_table = outputs((n, blocks * LANES))
    native.pick_columns(y=y, columns=columns, blocks=blocks, table=table, threads=2)
    reference.pick_columns(y=y, columns=columns, blocks=blocks, table=plain_table)
    assert np.array_equal(table, plain_table)
    one, many, plain = (np.full_like(y, np.nan) for _ in range(3))
    rest = rng.standard_normal(n).astype(np.float32) if columns is not None and rng.integers(2) else None
    arguments = dict(**edges, blocks=blocks, columns=columns, table=table, y=y, loop=loop, rest=rest)
    native.diffuse(**arguments, out=one, threads=1)
    native.diffuse(**arguments, out=many, threads=3)
    reference.diffuse(**arguments, out=plain)
    assert np.array_equal(one, many)
    np.testing.assert_allclose(one, plain, rtol=1e-4, atol=1e-4)
