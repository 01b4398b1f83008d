"""Every compiled kernel, at every instruction set, against the plain-numpy one, and to the bit against itself."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unifews.kernels import (
    LANES,
    aligned,
    native,
    reference_attention,
    reference_features,
    reference_hops,
    reference_layers,
    reference_rows,
)

LEVELS = native.levels()
KERNELS = ["ingest", "full_hop", "column_hop", "column_push", "spread_squares", "pruned_hop", "select_edges", "fan", "finish"]


@contextmanager
def at_level(name):
    before = native.level()
    native.use_level(name)
    try:
        yield native
    finally:
        native.use_level(before)


def runs():
    """(name, kernels, threads) of every way to run the compiled kernels."""
    for level in LEVELS:
        for threads in (1, 2, 3):
            with at_level(level) as kernels:
                yield f"{level}, {threads} threads", kernels, threads


def close(a, b, what=""):
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6, err_msg=what)


# ---------------------------------------------------------------------------------------------------------- random cases


@dataclass
class Case:
    """A random graph in compressed rows, its factors, and a feature matrix that fills `blocks` blocks but for some columns."""

    start: Any
    end: Any
    indices: Any
    weight: Any
    keep: Any
    gain: Any
    target: Any
    source: Any
    x: Any
    blocks: int
    rng: Any

    @property
    def edges(self):
        return dict(start=self.start, end=self.end, indices=self.indices, weight=self.weight)

    @property
    def n(self):
        return len(self.start)

    @property
    def width(self):
        return self.x.shape[1]

    def targets(self):
        return np.repeat(np.arange(self.n), self.end - self.start)

    def factors(self):
        """target[u]·A[u,v] of every edge, float64."""
        return self.target[self.targets()].astype(np.float64) * (1 if self.weight is None else self.weight)


def adjacency(kind, n, rng):
    """A[u, v], 0 or 1, without self-loops."""
    a = np.zeros((n, n), dtype=bool)
    if kind == "random":
        a = rng.random((n, n)) < min(1, 3 / n)
    elif kind == "directed":
        a = np.triu(rng.random((n, n)) < min(1, 6 / n))
    elif kind == "hub":
        a[:, 0] = a[0, :] = True
    elif kind == "some isolated":
        a = rng.random((n, n)) < min(1, 4 / n)
        alone = rng.random(n) < 0.4
        a[alone] = a[:, alone] = False
    np.fill_diagonal(a, False)
    return a


@st.composite
def cases(draw, most=90):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.one_of(st.integers(1, 8), st.integers(1, most)))
    a = adjacency(draw(st.sampled_from(["random", "directed", "hub", "some isolated", "no edges"])), n, rng)
    blocks = draw(st.integers(1, 8))
    width = blocks * LANES - draw(st.integers(0, LANES - 1))
    indptr = np.concatenate([[0], np.cumsum(a.sum(axis=1))]).astype(np.int64)
    indices = np.nonzero(a)[1].astype(draw(st.sampled_from([np.int32, np.int64])))
    weight = rng.uniform(0.1, 3, len(indices)).astype(np.float32) if draw(st.booleans()) else None
    d = 1 + np.bincount(np.nonzero(a)[0], weights=weight, minlength=n)
    r = draw(st.sampled_from([0.0, 0.3, 0.5, 1.0]))
    skip = draw(st.sampled_from(["diagonal", "identity", "none"]))
    keep = {"diagonal": 1 / d, "identity": np.ones(n), "none": np.zeros(n)}[skip]
    # Sizes spread over a few orders of magnitude, some rows and some values being exactly zero.
    x = rng.standard_normal((n, width)) * 10.0 ** rng.uniform(-2, 1, (n, 1)) * 10.0 ** rng.uniform(-1, 0, width)
    x *= rng.random((n, 1)) < 0.9
    x *= rng.random((n, width)) < draw(st.sampled_from([0.2, 1.0]))
    f32 = np.float32
    return Case(
        indptr[:-1],
        indptr[1:],
        indices,
        weight,
        keep.astype(f32),
        (d ** (r - 1) * d**-r).astype(f32),
        (d ** (r - 1)).astype(f32),
        (d**-r).astype(f32),
        np.ascontiguousarray(x, dtype=f32),
        blocks,
        rng,
    )


def tile(case, values=None):
    array = aligned(case.n, case.blocks * LANES, zero=True)
    if values is not None:
        array[:] = values
    return array


def in_a_gap(magnitudes, share):
    """δ with about `share` of the magnitudes below it and none close to it, so that rounding cannot change a decision."""
    ordered = np.unique(magnitudes[magnitudes > 0])
    if len(ordered) == 0:
        return 1.0
    edges = np.concatenate([[ordered[0] / 2], ordered, [ordered[-1] * 2]])
    wide = np.flatnonzero(edges[1:] > edges[:-1] * 1.001)
    at = wide[np.argmin(np.abs(wide - share * len(ordered)))]
    return float(np.sqrt(edges[at] * edges[at + 1]))


# ------------------------------------------------------------------------------------------------------- simple kernels


def test_the_reference_has_every_compiled_kernel():
    management = {"levels", "level", "use_level", "openmp", "end_threads"}
    compiled = {name for name in dir(native) if not name.startswith("_")} - management
    assert set(KERNELS) <= compiled
    oracles = (reference_hops, reference_attention, reference_features, reference_layers, reference_rows)
    missing = {name for name in compiled if not any(hasattr(oracle, name) for oracle in oracles)}
    assert not missing, f"no plain-numpy form of {missing}"


def test_an_unknown_instruction_set_is_refused():
    with pytest.raises(ValueError, match="mmx"):
        native.use_level("mmx")


@settings(max_examples=40)
@given(case=cases(), deflate=st.booleans(), largest=st.booleans(), column0=st.integers(0, 5))
def test_ingest(case, deflate, largest, column0):
    n, f32 = case.n, np.float32
    x = case.rng.standard_normal((n, column0 + case.width + 3)).astype(f32)
    offset = case.rng.standard_normal(n).astype(f32) if deflate else None
    direction = case.rng.standard_normal(case.width).astype(f32) if deflate else None
    cut = n // 2  # in two pieces, as a file is read

    def run(kernels, threads):
        q, size, top = tile(case), aligned(n, case.blocks, zero=True), aligned(n, zero=True)
        square = np.ones(n, dtype=f32)
        common = dict(
            column0=column0,
            width=case.width,
            blocks=case.blocks,
            source=case.source,
            offset=offset,
            direction=direction,
            largest=largest,
            q=q,
            size=size,
            top=top,
            square=square,
            threads=threads,
        )
        energy = kernels.ingest(x=x[:cut], row0=0, **common) + kernels.ingest(x=x[cut:], row0=cut, **common)
        return q, size, top, square, energy

    expected = run(reference_hops, 1)
    first = {}
    for name, kernels, threads in runs():
        got = run(kernels, threads)
        for a, b in zip(got, expected, strict=True):
            close(a, b, name)
        level = name.split(",")[0]
        same_bytes(first.setdefault(level, got), got)


def same_bytes(a, b):
    for one, other in zip(a, b, strict=True):
        if one is not None:
            assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


@settings(max_examples=40)
@given(
    case=cases(),
    accumulate=st.booleans(),
    squares=st.booleans(),
    own=st.booleans(),
    previous=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_full_hop(case, accumulate, squares, own, previous):
    def run(kernels, threads):
        q, after = tile(case), tile(case)
        q[:, : case.width] = case.x
        out = tile(case, 1.0) if accumulate else None
        square = np.ones(case.n, dtype=np.float32) if squares else None
        for hop in range(3):
            kernels.full_hop(
                **case.edges,
                blocks=case.blocks,
                keep=case.keep if own else None,
                gain=case.gain if own else None,
                q=q,
                q_out=after,
                coefficient=0.5 + hop,
                out=out,
                square=square,
                threads=threads,
                previous=previous if hop else 0.0,
            )
            q, after = after, q
        return [array for array in (q, out, square) if array is not None]

    compare(run)


def compare(run):
    expected = run(reference_hops, 1)
    first = {}
    for name, kernels, threads in runs():
        got = run(kernels, threads)
        for a, b in zip(got, expected, strict=True):
            scale = max(float(np.abs(b).max(initial=0)), 1e-30)
            close(np.asarray(a) / scale, np.asarray(b) / scale, name)
        same_bytes(first.setdefault(name.split(",")[0], got), got)


@settings(max_examples=20)
@given(case=cases(), columns=st.integers(1, 40))
def test_full_hop_multiplies_by_a_matrix_that_is_not_square(case, columns):
    """Without an own term it is a sparse product, which is how sparse features are rotated."""
    m = len(case.indices)
    sources = case.rng.integers(0, columns, m).astype(case.indices.dtype)
    v = case.rng.standard_normal((columns, case.blocks * LANES))

    def run(kernels, threads):
        q, out = aligned(columns, case.blocks * LANES), tile(case)
        q[:] = v
        kernels.full_hop(
            start=case.start,
            end=case.end,
            indices=sources,
            weight=case.weight,
            blocks=case.blocks,
            keep=None,
            gain=None,
            q=q,
            q_out=out,
            coefficient=0.0,
            out=None,
            square=None,
            threads=threads,
        )
        return [out]

    compare(run)
    dense = np.zeros((case.n, columns))
    np.add.at(dense, (case.targets(), sources), 1 if case.weight is None else case.weight)
    close(run(native, 1)[0], dense @ v.astype(np.float32))


@settings(max_examples=30)
@given(case=cases())
def test_column_hop(case):
    def run(kernels, threads):
        after = np.empty(case.n, dtype=np.float32)
        kernels.column_hop(
            **case.edges, keep=case.keep, gain=case.gain, q=np.ascontiguousarray(case.x[:, 0]), q_out=after, threads=threads
        )
        return [after]

    compare(run)


@settings(max_examples=30)
@given(case=cases(), columns=st.integers(1, 3))
def test_column_push(case, columns):
    x = np.ascontiguousarray(np.resize(case.x, (case.n, columns)))

    def run(kernels, threads):
        out = np.full((case.n, columns), 7.0)
        kernels.column_push(**case.edges, x=x, out=out, threads=threads)
        return [out]

    compare(run)


@settings(max_examples=30)
@given(case=cases(), width=st.sampled_from([1, 7, 50]), binary=st.booleans(), along=st.booleans(), wide=st.booleans())
def test_spread_squares(case, width, binary, along, wide):
    x = (case.rng.random((case.n, width)) < 0.3) * case.rng.standard_normal((case.n, width))
    row, column = np.nonzero(x)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=case.n))]).astype(np.int64)
    data = None if binary else x[row, column].astype(np.float32)
    direction = case.rng.standard_normal(width).astype(np.float32) if along else None

    def run(kernels, threads):
        square, dot = np.full(case.n, 7.0), np.full(case.n, 7.0)
        kernels.spread_squares(
            **case.edges,
            x_indptr=indptr,
            x_indices=column.astype(np.int64 if wide else np.int32),
            x_data=data,
            width=width,
            source=case.source,
            direction=direction,
            square=square,
            along=dot,
            threads=threads,
        )
        return [square, dot]

    compare(run)


@settings(max_examples=30)
@given(case=cases())
def test_fan(case):
    def run(kernels, threads):
        reach, fanout = np.full(case.n, 7, dtype=np.float32), np.full(case.n, 7, dtype=np.int64)
        kernels.fan(**case.edges, target=case.target, reach=reach, fanout=fanout, threads=threads)
        return [reach, fanout]

    compare(run)
    assert np.array_equal(run(native, 2)[1], np.bincount(case.indices, minlength=case.n))


@settings(max_examples=40)
@given(case=cases(), share=st.sampled_from([0.0, 0.3, 0.8, 1.0]), in_place=st.booleans())
def test_select_edges(case, share, in_place):
    norm = np.linalg.norm(case.x, axis=1)
    message = case.factors() * norm[case.indices]
    delta = in_a_gap(message, share) if share else 0.0

    def run(kernels, threads):
        indices = case.indices.copy()
        weight = None if case.weight is None else case.weight.copy()
        end = np.empty(case.n, dtype=np.int64)
        given = dict(indices=indices, weight=weight) if in_place else dict(indices=case.indices, weight=case.weight)
        kept = kernels.select_edges(
            start=case.start,
            end=case.end,
            **given,
            norm=norm,
            target=case.target,
            delta=delta,
            end_out=end,
            indices_out=indices,
            weight_out=weight,
            threads=threads,
        )
        front = np.concatenate([np.arange(a, b) for a, b in zip(case.start, end, strict=True)]).astype(np.int64)
        return [kept, end, indices[front], np.zeros(0) if weight is None else weight[front]]

    compare(run)
    kept, _, indices, _ = run(native, 2)
    assert kept == len(indices) == int(((message >= delta) & (message > 0)).sum())


# ---------------------------------------------------------------------------------------------------------- pruned hops


@dataclass
class Walk:
    """A pruned propagation under way, by one set of kernels."""

    case: Case
    kernels: ModuleType
    threads: int
    by_feature: bool
    inherit: bool
    accumulate: bool
    certify: bool = False
    hops: int = 6
    hop: int = 0
    lagging: float = 0.0
    cached: int = 1 << 22
    counts: list[Any] = field(default_factory=list)

    def __post_init__(self):
        case, n, blocks = self.case, self.case.n, self.case.blocks
        self.buffers = tile(case), tile(case)
        self.out = tile(case) if self.accumulate else None
        self.size = aligned(n, blocks, zero=True), aligned(n, blocks, zero=True)
        self.top = aligned(n, zero=True), aligned(n, zero=True)
        self.stamp = np.zeros((n, blocks), dtype=np.uint16)
        self.coefficient = np.linspace(1, 0.3, self.hops + 1, dtype=np.float32)
        self.reach, self.fanout = np.empty(n, dtype=np.float32), np.empty(n, dtype=np.int64)
        per_edge = 2 * blocks if self.by_feature else 1
        self.alive = np.full(len(case.indices) * per_edge, 255, dtype=np.uint8) if self.inherit else None
        self.bill, self.removed = {}, []
        if self.certify:
            cost, charge = case.target * np.float32(3), np.empty((n, 1))
            reference_hops.column_push(**case.edges, x=cost[:, None], out=charge, threads=1)
            toll = case.target * case.target
            self.bill = dict(cost=cost, charge=charge[:, 0].copy(), toll=toll, removed=np.empty(blocks))
        reference_hops.fan(**case.edges, target=case.target, reach=self.reach, fanout=self.fanout, threads=1)
        reference_hops.ingest(
            x=case.x,
            row0=0,
            column0=0,
            width=case.width,
            blocks=blocks,
            source=case.source,
            offset=None,
            direction=None,
            largest=self.by_feature,
            q=self.buffers[0],
            size=self.size[0],
            top=self.top[0],
            square=None,
            threads=1,
        )

    def step(self, delta):
        case, now = self.case, self.hop % 2
        kept, zero, self.lagging = self.kernels.pruned_hop(
            **case.edges,
            blocks=case.blocks,
            width=case.width,
            hop=self.hop,
            keep=case.keep,
            gain=case.gain,
            target=case.target,
            reach=self.reach,
            fanout=self.fanout,
            delta=delta,
            rouse=self.lagging >= delta,
            by_feature=self.by_feature,
            size=self.size[now],
            top=self.top[now],
            size_out=self.size[1 - now],
            top_out=self.top[1 - now],
            alive=self.alive,
            even=self.buffers[0],
            odd=self.buffers[1],
            stamp=self.stamp,
            out=self.out,
            coefficient=self.coefficient,
            threads=self.threads,
            cached=self.cached,
            **self.bill,
        )
        if self.certify:
            # Less than everything they send would cost, as differences of sums are known to a share of the sums only.
            everything = float(self.bill["charge"] @ np.square(self.size[now], dtype=np.float64).sum(axis=1)) * LANES
            self.removed.append((self.bill["removed"].copy(), everything))
        self.counts.append((kept, zero))
        self.hop += 1

    def values(self, accumulated=False):
        """The values at this hop, or the output with it, on the true scale."""
        case = self.case
        result = np.zeros((case.n, case.width + 2), dtype=np.float32)
        self.kernels.finish(
            blocks=case.blocks,
            width=case.width,
            hop=self.hop,
            keep=case.keep,
            source=case.source,
            offset=None,
            direction=None,
            even=self.buffers[0],
            odd=self.buffers[1],
            stamp=self.stamp,
            out=self.out if accumulated else None,
            coefficient=self.coefficient,
            result=result,
            column0=1,
            threads=self.threads,
        )
        return result

    def messages(self):
        """The magnitude of every entry of the coming hop, float64 [edges, decisions]."""
        case = self.case
        size = self.size[self.hop % 2].astype(np.float64)
        if self.by_feature:
            size = np.abs(self.values()[:, 1:-1].astype(np.float64) * case.source[:, None])
        return case.factors()[:, None] * size[case.indices]

    def flags(self):
        """The bits of `alive` that mean something, as they are now."""
        if self.alive is None or self.by_feature:
            return None if self.alive is None else self.alive.copy()
        return self.alive & (2**self.case.blocks - 1)

    def bills(self):
        return [removed for removed, _ in self.removed]

    def state(self):
        return (*self.buffers, self.out, *self.size, *self.top, self.stamp, self.flags(), np.float32(self.lagging))


SHARES = st.lists(st.sampled_from([0.0, 0.2, 0.6, 0.9, 0.99, 2.0]), min_size=4, max_size=5)


@settings(max_examples=60)
@given(
    case=cases(most=130),
    shares=SHARES,
    by_feature=st.booleans(),
    inherit=st.booleans(),
    accumulate=st.booleans(),
    certify=st.booleans(),
    cached=st.sampled_from([0, 1, 5, 1 << 22]),
)
def test_pruned_hop(case, shares, by_feature, inherit, accumulate, certify, cached):
    """Over several hops and thresholds that fall and rise, so blocks are left behind and roused."""
    oracle = Walk(case, reference_hops, 1, by_feature, inherit, accumulate, certify)
    thresholds, expected = [], []
    for share in shares:
        messages = oracle.messages()
        delta = np.inf if share > 1 else in_a_gap(messages, share) if share else 0.0
        thresholds.append(delta)
        oracle.step(delta)
        kept = (messages >= delta) & (messages > 0)
        if not inherit:
            assert sum(oracle.counts[-1][0]) == int(kept.sum())
        expected.append((oracle.values(), oracle.values(True) if accumulate else None, oracle.stamp.copy(), oracle.flags()))

    first = {}
    for name, kernels, threads in runs():
        walk = Walk(case, kernels, threads, by_feature, inherit, accumulate, certify, cached=cached)
        for delta, (values, output, stamp, flags) in zip(thresholds, expected, strict=True):
            walk.step(delta)
            scale = max(float(np.abs(values).max()), 1e-30)
            close(walk.values() / scale, values / scale, name)
            if accumulate:
                scale = max(float(np.abs(output).max()), 1e-30)
                close(walk.values(True) / scale, output / scale, name)
            assert np.array_equal(walk.stamp, stamp), name
            assert flags is None or np.array_equal(walk.flags(), flags), name
        assert walk.counts == oracle.counts, name
        for mine, theirs in zip((*walk.size, *walk.top), (*oracle.size, *oracle.top), strict=True):
            scale = max(float(theirs.max()), 1e-30)
            close(mine / scale, theirs / scale, name)
        for (mine, _), (theirs, everything) in zip(walk.removed, oracle.removed, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-7 * everything, err_msg=name)
            assert (mine >= theirs * (1 - 1e-5)).all(), name
        assert walk.lagging == pytest.approx(oracle.lagging, rel=1e-4, abs=1e-30)
        same_bytes(first.setdefault(name.split(",")[0], (*walk.state(), *walk.bills())), (*walk.state(), *walk.bills()))


@settings(max_examples=30)
@given(
    case=cases(most=130),
    seed=st.integers(0, 2**16),
    octaves=st.sampled_from([0, 3, 12, 40]),
    exact=st.booleans(),
    marks=st.booleans(),
)
def test_sizes_of_any_range_and_cuts_that_are_met_exactly(case, seed, octaves, exact, marks):
    """Codes and marks of sizes are coarse; what is kept must not show it."""
    rng = np.random.default_rng(seed)
    case.x *= np.exp2(rng.uniform(-octaves, octaves, (case.n, 1))).astype(np.float32)
    oracle, thresholds = Walk(case, reference_hops, 1, False, False, True, False), []
    for _ in range(3):
        messages = oracle.messages()
        some = messages[messages > 0]
        met = exact and len(some)
        thresholds.append(float(np.float32(rng.choice(some))) if met else in_a_gap(messages, rng.uniform()))
        oracle.step(thresholds[-1])
    at_this_level: dict[str, Walk] = {}
    for name, kernels, threads in runs():
        walk = Walk(case, kernels, threads, False, False, True, False, cached=0 if marks else case.n // 2)
        for delta in thresholds:
            walk.step(delta)
        first = at_this_level.setdefault(name.split(",")[0], walk)
        assert walk.counts == first.counts and np.array_equal(walk.stamp, first.stamp), name
        # The oracle's product of the same factors may fall on the other side of a cut that is met exactly.
        assert exact or walk.counts == oracle.counts, name


@settings(max_examples=20)
@given(case=cases(), shares=SHARES, by_feature=st.booleans(), inherit=st.booleans())
def test_adding_up_what_is_removed_changes_nothing_else(case, shares, by_feature, inherit):
    walks = [Walk(case, native, 2, by_feature, inherit, True, certify) for certify in (False, True)]
    for share in shares:
        delta = np.inf if share > 1 else in_a_gap(walks[0].messages(), share) if share else 0.0
        for walk in walks:
            walk.step(delta)
    same_bytes(*(walk.state() for walk in walks))
    assert walks[0].counts == walks[1].counts


@settings(max_examples=30)
@given(case=cases(), shares=SHARES, by_feature=st.booleans())
def test_a_block_that_can_send_is_never_behind(case, shares, by_feature):
    """The invariant of Lazy in kernels.h: whoever takes part in a hop is up to date when it begins."""
    walk = Walk(case, native, 2, by_feature, inherit=False, accumulate=True)
    for share in shares:
        messages = walk.messages()
        delta = in_a_gap(messages, share) if share else 0.0
        size, stamp, hop = walk.size[walk.hop % 2].copy(), walk.stamp, walk.hop
        walk.step(delta)
        sends = np.zeros((case.n, case.blocks), dtype=bool)
        np.logical_or.at(
            sends, case.indices, (case.factors()[:, None] * size[case.indices] >= delta) & (size[case.indices] > 0)
        )
        assert (stamp[sends] >= hop).all()


@settings(max_examples=30)
@given(case=cases(), shares=SHARES, by_feature=st.booleans())
def test_inherited_entries_are_nested(case, shares, by_feature):
    walk = Walk(case, native, 2, by_feature, inherit=True, accumulate=False)
    before = walk.flags()
    for share in shares:
        walk.step(in_a_gap(walk.messages(), share) if share else 0.0)
        assert not (walk.flags() & ~before).any()
        before = walk.flags()


@pytest.mark.parametrize("by_feature", [False, True])
def test_a_zero_threshold_removes_nothing_even_by_inheritance(by_feature):
    """A message that is zero at one hop may matter at the next: only δ removes an entry for good."""
    x = np.zeros((3, LANES), dtype=np.float32)
    x[0] = 1  # 0 → 1 → 2: at the first hop, 1 has nothing to send
    ones = np.ones(3, dtype=np.float32)
    case = Case(
        np.array([0, 0, 1]), np.array([0, 1, 2]), np.array([0, 1], dtype=np.int32), None, ones, ones, ones, ones, x, 1, None
    )
    for kernels in (reference_hops, native):
        walk = Walk(case, kernels, 1, by_feature, inherit=True, accumulate=False)
        walk.step(0.0)
        walk.step(0.0)
        assert walk.values()[:, 1].tolist() == [1, 2, 1]


@settings(max_examples=30)
@given(case=cases(), accumulate=st.booleans(), deflate=st.booleans(), hop=st.integers(0, 4), lazy=st.booleans())
def test_finish(case, accumulate, deflate, hop, lazy):
    rng, f32 = case.rng, np.float32
    even, odd, out = (tile(case, rng.standard_normal((case.n, case.blocks * LANES))) for _ in range(3))
    stamp = rng.integers(0, hop + 1, (case.n, case.blocks)).astype(np.uint16) if lazy else None
    offset = rng.standard_normal(case.n).astype(f32) if deflate else None
    direction = rng.standard_normal(case.width).astype(f32) if deflate else None
    coefficient = rng.random(6).astype(f32)

    def run(kernels, threads):
        result = np.full((case.n, case.width + 3), 9, dtype=f32)
        kernels.finish(
            blocks=case.blocks,
            width=case.width,
            hop=hop,
            keep=case.keep,
            source=case.source,
            offset=offset,
            direction=direction,
            even=even,
            odd=odd,
            stamp=stamp,
            out=out if accumulate else None,
            coefficient=coefficient,
            result=result,
            column0=2,
            threads=threads,
        )
        assert (result[:, :2] == 9).all() and (result[:, -1] == 9).all()
        return [result]

    compare(run)


# ------------------------------------------------------------------------------------------------ positions past 2^31

FAR = 2**31 + 12_345  # more edges before this one than 32 bits can number


@pytest.fixture(scope="module")
def far_graph(tmp_path_factory):
    """A ring of 100 nodes whose rows 64.. lie past position 2^31 of an index file of 8.6 GB, all holes but a page or two."""
    n = 100
    path = tmp_path_factory.mktemp("far") / "indices"
    indices = np.memmap(path, dtype=np.int32, mode="w+", shape=(FAR + 3 * n,))
    assert path.stat().st_blocks * 512 < 1 << 24, "the file system does not keep holes"
    start = np.arange(n, dtype=np.int64) * 2
    start[64:] += FAR
    for u in range(n):
        indices[start[u] : start[u] + 2] = (u - 1) % n, (u + 1) % n
    yield start, start + 2, indices
    path.unlink()


def test_rows_past_two_billion_edges_are_read_where_they_are(far_graph):
    start, end, indices = far_graph
    n = len(start)
    rng = np.random.default_rng(5)
    x = rng.standard_normal((n, 40)).astype(np.float32)
    ones = np.ones(n, dtype=np.float32)
    near = np.stack([(np.arange(n) - 1) % n, (np.arange(n) + 1) % n], axis=1)
    case = Case(start, end, indices, None, 0.5 * ones, 0.25 * ones, 0.5 * ones, ones, x, 3, rng)
    norm = np.linalg.norm(x, axis=1)
    delta = float(0.5 * np.median(norm))

    for level in LEVELS:
        with at_level(level):
            q, after = tile(case), tile(case)
            q[:, :40] = x
            native.full_hop(
                **case.edges,
                blocks=3,
                keep=case.keep,
                gain=case.gain,
                q=q,
                q_out=after,
                coefficient=0.0,
                out=None,
                square=None,
                threads=2,
            )
            close(after[:, :40], 0.5 * x + 0.25 * x[near].sum(axis=1))

            last = np.empty(n, dtype=np.int64)
            kept = native.select_edges(
                **case.edges,
                norm=norm,
                target=case.target,
                delta=0.0,
                end_out=last,
                indices_out=indices,
                weight_out=None,
                threads=2,
            )
            assert kept == 2 * n and np.array_equal(last, end)

            reach, fanout = np.empty(n, dtype=np.float32), np.empty(n, dtype=np.int64)
            native.fan(**case.edges, target=case.target, reach=reach, fanout=fanout, threads=2)
            assert (reach == 0.5).all() and (fanout == 2).all()

            column = np.empty(n, dtype=np.float32)
            native.column_hop(
                **case.edges, keep=case.keep, gain=case.gain, q=np.ascontiguousarray(x[:, 0]), q_out=column, threads=2
            )
            close(column, 0.5 * x[:, 0] + 0.25 * x[near, 0].sum(axis=1))

            size = np.stack([np.linalg.norm(x[:, at : at + LANES], axis=1) for at in (0, 16, 32)], axis=1)
            stays = 0.5 * size[near] >= delta  # [n, 2, blocks]
            for by_feature in (False, True):
                mask = 0.5 * np.abs(x[near]) >= delta / 4 if by_feature else stays.repeat(LANES, axis=2)[:, :, :40]
                walk = far_walk(case, by_feature)
                walk.step(delta / 4 if by_feature else delta)
                assert sum(walk.counts[0][0]) == int(mask.sum() if by_feature else stays.sum())
                close(walk.values()[:, 1:-1], 0.5 * x + 0.25 * (x[near] * mask).sum(axis=1))


def far_walk(case, by_feature):
    """A Walk without inheritance, which alone would need memory for every position."""
    return Walk(case, native, 2, by_feature, inherit=False, accumulate=False)
