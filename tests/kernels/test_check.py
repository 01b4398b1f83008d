"""The pass over compressed rows from outside: what it finds, and that it leaves no array whatever the numbers are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unifews.core import csr
from unifews.kernels import native, reference_hops

KEY = 0x1234_5678_9ABC_DEF1


def random_rows(rng, n, m, dtype, weighted):
    graph = csr.compress(rng.integers(0, n, m), rng.integers(0, n, m), None, n)
    weight = rng.uniform(0.5, 2, len(graph.indices)).astype(np.float32) if weighted else None
    return graph.indptr.copy(), graph.indices.astype(dtype), weight


def both(indptr, indices, weight, columns, hashed=True):
    arguments = dict(
        indptr=indptr, indices=indices, weight=weight, first=0, last=len(indptr) - 1, columns=columns, hashed=hashed, key=KEY
    )
    return native.check_rows(**arguments, threads=2), reference_hops.check_rows(**arguments, threads=2)


@given(
    n=st.integers(1, 40),
    m=st.integers(0, 160),
    seed=st.integers(0, 2**32 - 1),
    damage=st.integers(0, 4),
    wide=st.booleans(),
    weighted=st.booleans(),
    hashed=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_native_equals_reference_on_damaged_rows(n, m, seed, damage, wide, weighted, hashed):
    rng = np.random.default_rng(seed)
    indptr, indices, weight = random_rows(rng, n, m, np.int64 if wide else np.int32, weighted)
    limits = np.iinfo(indices.dtype)
    for _ in range(damage):
        kind = rng.integers(0, 3)
        if kind == 0:
            indptr[rng.integers(0, n + 1)] = rng.choice([-1, 0, 1, m, m + 1, 2**62, -(2**63)])
        elif kind == 1 and len(indices):
            indices[rng.integers(0, len(indices))] = rng.choice([-1, 0, n - 1, n, limits.max, limits.min])
        elif weight is not None and len(weight):
            weight[rng.integers(0, len(weight))] = rng.choice([np.nan, np.inf, -np.inf, 0, -0.0, -1, 1e-45])
    fast, slow = both(indptr, indices, weight, n, hashed)
    assert tuple(fast) == slow


def test_every_instruction_set_agrees(level):
    rng = np.random.default_rng(7)
    for n, m in ((1, 0), (3000, 20_000), (5, 12)):
        for dtype in (np.int32, np.int64):
            for weighted in (False, True):
                rows = random_rows(rng, n, m, dtype, weighted)
                fast, slow = both(*rows, n)
                assert tuple(fast) == slow


@pytest.mark.parametrize("weighted", [False, True])
def test_symmetry(weighted):
    rng = np.random.default_rng(11)
    for _ in range(50):
        n = int(rng.integers(2, 300))
        edges = rng.integers(0, n, (2, 4 * n))
        edges = np.unique(np.sort(edges[:, edges[0] != edges[1]], axis=0), axis=1)
        if not edges.shape[1]:
            continue
        weight = rng.uniform(0.5, 2, edges.shape[1]).astype(np.float32) if weighted else None
        twice = None if weight is None else np.concatenate([weight, weight])
        rows = csr.compress(*np.concatenate([edges, edges[::-1]], axis=1), twice, n)
        assert csr.examine(rows.indptr, rows.indices, rows.weight).symmetric
        keep = np.ones(2 * edges.shape[1], dtype=bool)
        keep[rng.integers(0, len(keep))] = False
        fewer = csr.compress(*np.concatenate([edges, edges[::-1]], axis=1)[:, keep], None if twice is None else twice[keep], n)
        assert not csr.examine(fewer.indptr, fewer.indices, fewer.weight).symmetric
        if rows.weight is not None:
            other = rows.weight.copy()
            other[0] = np.nextafter(other[0], np.float32(9))
            assert not csr.examine(rows.indptr, rows.indices, other).symmetric


def test_a_cycle_is_not_symmetric_although_degrees_agree():
    nodes = np.arange(64)
    rows = csr.compress(nodes, (nodes + 1) % 64, None, 64)
    assert not csr.examine(rows.indptr, rows.indices).symmetric


def test_passes_over_a_few_rows_add_up(monkeypatch):
    rng = np.random.default_rng(13)
    indptr, indices, weight = random_rows(rng, 500, 4000, np.int32, True)
    whole = csr.examine(indptr, indices, weight)
    indices[3000], weight[17] = 500, np.nan
    found = csr.examine(indptr, indices, weight)
    monkeypatch.setattr(csr, "EXAMINED", 100)
    assert csr.examine(indptr, indices, weight) == found and found.range == 3000 and found.weight == 17
    assert whole.is_canonical and not whole.symmetric and not found.is_sound


def test_a_matrix_may_be_wide_and_have_more_columns_than_int32_can_name():
    indptr, indices = np.array([0, 2, 3]), np.array([0, 2**31 - 1, 5], dtype=np.int32)
    assert csr.examine(indptr, indices, columns=2**33).is_sound
    assert csr.examine(indptr, indices, columns=2**31 - 1).range == 1


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_rows_of_every_length_with_a_fault_at_every_kind_of_place(dtype, weighted):
    """Entries are read some thousand at a time, whatever rows they are of: long rows, empty ones, and many short ones."""
    rng = np.random.default_rng(3)
    lengths = np.concatenate([[0, 0, 3_000, 0, 1_096, 1], rng.integers(0, 12, 300), [0, 90, 0]])
    columns = 4_000
    indptr = np.concatenate([[0], lengths.cumsum()])
    rows = [np.sort(rng.choice(np.setdiff1d(np.arange(columns), [u]), size, replace=False)) for u, size in enumerate(lengths)]
    indices = np.concatenate(rows).astype(dtype)
    weight = rng.uniform(0.5, 2, len(indices)).astype(np.float32) if weighted else None
    fast, slow = both(indptr, indices, weight, columns)
    assert tuple(fast) == slow and slow[:5] == (-1,) * 5
    row = np.repeat(np.arange(len(lengths)), lengths)
    for at in (0, 1, 2_047, 2_048, 2_049, 3_000, 4_096, len(indices) - 1):
        for found, value in enumerate([columns, None, row[at]], start=1):
            damaged = indices.copy()
            damaged[at] = damaged[at - 1] if value is None else value
            fast, slow = both(indptr, damaged, weight, columns)
            assert tuple(fast) == slow
            assert slow[found] == at or (found == 2 and (not at or row[at] != row[at - 1]))
        if weighted:
            damaged = weight.copy()
            damaged[at] = np.nan
            fast, slow = both(indptr, indices, damaged, columns)
            assert tuple(fast) == slow and slow[4] == at
