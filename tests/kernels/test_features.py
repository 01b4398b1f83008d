"""Sparse feature matrices: native kernels against plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from unifews.kernels import native, reference_features


@given(n=st.integers(1, 60), f=st.integers(1, 60), seed=st.integers(0, 2**32 - 1), wide=st.booleans())
@settings(max_examples=60, deadline=None)
def test_native_equals_reference(n, f, seed, wide):
    rng = np.random.default_rng(seed)
    x = sp.csr_array(np.where(rng.random((n, f)) < rng.random(), rng.standard_normal((n, f)), 0).astype(np.float32))
    index = np.int64 if wide else np.int32
    arrays = dict(indptr=x.indptr.astype(index), indices=x.indices.astype(index), values=x.data)
    first = int(rng.integers(0, f))
    width = int(rng.integers(1, f - first + 1))
    slabs = [np.full((n, width), np.nan, dtype=np.float32) for _ in range(2)]
    native.dense_columns(**arrays, first=first, out=slabs[0], threads=2)
    reference_features.dense_columns(**arrays, first=first, out=slabs[1], threads=1)
    assert np.array_equal(slabs[0], slabs[1]) and np.array_equal(slabs[0], x.toarray()[:, first : first + width])
    weights = dict(factor=rng.random(n).astype(np.float32), square=rng.random(n).astype(np.float32))
    sums = [np.ones((2, f)) for _ in range(3)]
    for each, threads in zip(sums, (1, 2), strict=False):
        native.sparse_column_sums(**arrays, **weights, sums=each, threads=threads)
    reference_features.sparse_column_sums(**arrays, **weights, sums=sums[2], threads=1)
    assert np.array_equal(sums[0], sums[1]), "the threads do not matter"
    assert np.allclose(sums[0], sums[2], rtol=1e-12, atol=1e-12)


def test_indices_of_two_types_are_refused():
    x = sp.csr_array(np.eye(3, dtype=np.float32))
    with pytest.raises(ValueError, match="one type"):
        native.dense_columns(
            indptr=x.indptr.astype(np.int64),
            indices=x.indices.astype(np.int32),
            values=x.data,
            first=0,
            out=np.empty((3, 3), dtype=np.float32),
            threads=1,
        )
