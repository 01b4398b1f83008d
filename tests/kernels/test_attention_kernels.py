"""The kernels of layers that attend, at every instruction set, against the plain-numpy ones."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unifews.kernels import LANES, aligned, native
from unifews.kernels import reference_attention as reference

several = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
seeds = st.integers(0, 2**32 - 1)


class Problem:
    """A random directed graph with empty rows, heads and their lanes, rows for senders and receivers."""

    def __init__(self, seed):
        self.rng = rng = np.random.default_rng(seed)
        self.n, self.blocks, self.heads = (int(rng.integers(1, high)) for high in (150, 11, 17))
        if rng.random() < 0.6:
            self.heads = int(rng.choice([1, 4, 8]))
        a = (rng.random((self.n, self.n)) < rng.choice([0.0, 0.05, 0.3])) & (rng.random((self.n, 1)) < 0.8)
        indptr = np.concatenate([[0], np.cumsum(a.sum(axis=1))]).astype(np.int64)
        self.rows = dict(start=indptr[:-1], end=indptr[1:])
        self.indices = np.nonzero(a)[1].astype(np.int32)
        self.m = len(self.indices)
        turn = (np.arange(LANES) % self.heads).astype(np.int32)
        self.lane = turn if rng.random() < 0.5 else rng.integers(0, self.heads, LANES).astype(np.int32)
        self.layout = dict(heads=self.heads, lane=self.lane, blocks=self.blocks)
        self.at = rng.permutation(self.m).astype(np.int64) if rng.random() < 0.5 else None
        self.x, self.y = self.wide(), self.wide()
        self.loops = bool(rng.random() < 0.6)

    def wide(self):
        x = aligned(self.n, self.blocks * LANES)
        x[:] = self.rng.standard_normal(x.shape)
        return x

    def att(self):
        att = aligned(self.blocks * LANES)
        att[:] = self.rng.standard_normal(att.shape)
        return att

    def by_edge(self):
        return self.rng.standard_normal((self.m, self.heads)).astype(np.float32)

    def by_node(self):
        return self.rng.standard_normal((self.n, self.heads)).astype(np.float32) if self.loops else None

    def partial(self):
        return aligned(-(-self.n // reference.CHUNK), self.blocks * LANES)


def both(name, arguments, outputs, *, exact=()):
    """Run a kernel on one and three threads and its oracle, each with its own output arrays; the same bits, the same values."""
    results = []
    for run, threads in ((getattr(native, name), 1), (getattr(native, name), 3), (getattr(reference, name), 1)):
        mine = {}
        for key, value in outputs.items():
            mine[key] = None if value is None else aligned(*value.shape, dtype=value.dtype.type, zero=True)
        run(**arguments, **mine, threads=threads)
        results.append(mine)
    one, many, plain = results
    for key, value in one.items():
        if value is None:
            continue
        assert np.array_equal(value, many[key])
        if key in exact:
            assert np.array_equal(value, plain[key])
        else:
            np.testing.assert_allclose(value, plain[key], rtol=1e-4, atol=1e-4)
    return one


@several
@given(seed=seeds, slope=st.sampled_from([0.0, 0.2, 1.5]), signs=st.booleans())
def test_scores_and_their_signs(level, seed, slope, signs):
    p = Problem(seed)
    bits = np.zeros((p.m, p.blocks), np.uint16) if signs else None
    own_bits = np.zeros((p.n, p.blocks), np.uint16) if signs and p.loops else None
    both(
        "attention_scores",
        dict(**p.rows, indices=p.indices, **p.layout, x=p.x, y=p.y, att=p.att(), slope=slope),
        dict(score=p.by_edge(), own=p.by_node(), signs=bits, own_signs=own_bits),
        exact=("signs", "own_signs"),
    )


@several
@given(seed=seeds)
def test_slopes(level, seed):
    p = Problem(seed)
    signs = p.rng.integers(0, 2**16, (p.m, p.blocks)).astype(np.uint16)
    own_signs = p.rng.integers(0, 2**16, (p.n, p.blocks)).astype(np.uint16) if p.loops else None
    given_ = dict(grad=p.by_edge(), own_grad=p.by_node(), signs=signs, own_signs=own_signs, x=p.x, att=p.att(), slope=0.2)
    both("attention_slopes", dict(**p.rows, at=p.at, **p.layout, **given_), dict(out=p.wide(), partial=p.partial()))


@several
@given(seed=seeds, scale=st.sampled_from([0.1, 1.0, 30.0]))
def test_softmax_and_back(level, seed, scale):
    p = Problem(seed)
    own = p.by_node()
    loop = p.rng.integers(0, 3, p.n).astype(np.float32) if p.loops else None
    found = both(
        "row_softmax",
        dict(**p.rows, heads=p.heads, score=scale * p.by_edge(), own=None if own is None else scale * own, loop=loop),
        dict(alpha=p.by_edge(), own_alpha=p.by_node()),
    )
    total = np.zeros((p.n, p.heads))
    np.add.at(total, np.repeat(np.arange(p.n), p.rows["end"] - p.rows["start"]), found["alpha"])
    total += 0 if own is None else found["own_alpha"]
    somebody = (p.rows["end"] > p.rows["start"]) | (False if loop is None else loop > 0)
    np.testing.assert_allclose(total, np.where(somebody[:, None], 1.0, 0.0) * np.ones(p.heads), rtol=1e-5, atol=1e-6)
    both(
        "row_softmax_back",
        dict(**p.rows, heads=p.heads, **found, grad=p.by_edge(), own_grad=p.by_node()),
        dict(out=p.by_edge(), own_out=p.by_node()),
    )


@several
@given(seed=seeds)
def test_products_by_head(level, seed):
    p = Problem(seed)
    edges = dict(**p.rows, indices=p.indices, at=p.at, **p.layout)
    both("head_dots", dict(**edges, x=p.x, y=p.y), dict(out=p.by_edge()))
    slots = p.x.shape[1]
    width, other = (int(p.rng.integers(1, 2 * slots)) for _ in range(2))
    base = p.rng.standard_normal((p.n, other)).astype(np.float32)
    head = p.rng.integers(0, p.heads, width).astype(np.int32)
    from_ = p.rng.integers(-1, other, width).astype(np.int32)
    place = np.full(slots, -1, dtype=np.int32)
    some = p.rng.permutation(min(slots, width))
    place[: len(some)] = some
    both(
        "head_diffuse",
        dict(**edges, alpha=p.by_edge(), own=p.by_node(), head=head, from_=from_, base=base, table=p.x, place=place),
        dict(out=np.zeros((p.n, width), np.float32)),
    )
    to = p.rng.integers(-1, other, slots).astype(np.int32)
    by_node = np.zeros((p.n, p.heads), np.float32)
    both("own_dots", dict(heads=p.heads, lane=p.lane, from_=to, x=p.x, y=base), dict(out=by_node))
    both("column_squares", dict(**p.rows, at=p.at, **p.layout, alpha=p.by_edge(), x=p.x), dict(partial=p.partial()))


@several
@given(seed=seeds)
def test_columns_taken(level, seed):
    p = Problem(seed)
    index = p.rng.integers(-1, p.x.shape[1], int(p.rng.integers(0, 40))).astype(np.int32)
    both("take_columns", dict(x=p.x, index=index), dict(out=np.zeros((p.n, len(index)), np.float32)), exact=("out",))


def test_powers_are_exact_to_seven_digits(level):
    """Scores a head apart from the largest by up to 80: what softmax leaves of them, against float64."""
    score = np.linspace(-80, 0, 4001, dtype=np.float32)[:, None]
    ends = np.array([[0], [len(score)]], dtype=np.int64)
    alpha = np.empty_like(score)
    native.row_softmax(ends[0], ends[1], 1, score, None, None, alpha, None, 1)
    exact = np.exp(score.astype(np.float64))
    np.testing.assert_allclose(alpha, exact / exact.sum(), rtol=1e-6)
