"""Small datasets to write and read again, and where the real ones are."""

from __future__ import annotations

import numpy as np
import pytest
from real_data import FOLDER
from scipy.sparse import csr_array

from unifews.core.graph import Graph
from unifews.datasets.dataset import About, Dataset, Split
from unifews.datasets.registry import RECORDS, Record


def needs_data(test):
    """Marks a test that reads the real graphs."""
    here = pytest.mark.skipif(not FOLDER.is_dir(), reason="the real graphs are not on this machine (UNIFEWS_DATA)")
    return pytest.mark.data(here(test))


def tiny(name="tiny", *, sparse=False, splits=1, seed=53):
    """24 nodes in 3 classes, undirected, with 5 features."""
    rng = np.random.default_rng(seed)
    graph = Graph.from_edge_index(rng.integers(0, 24, (2, 60)), 24).undirected()
    x = rng.normal(size=(24, 5)).astype(np.float32) * (rng.random((24, 5)) < 0.4)
    y = np.arange(24, dtype=np.int64) % 3
    parts = [np.split(rng.permutation(24), [12, 18]) for _ in range(splits)]
    about = About("a test", split="stored" if splits else "stratified", notes=("made by hand",))
    return Dataset(name, graph, csr_array(x) if sparse else x, y, tuple(Split.of(*p, num_nodes=24) for p in parts), about)


def record_for(dataset, **changes):
    """A record that fits `dataset`."""
    counts = (dataset.num_nodes, dataset.graph.num_edges, dataset.num_features, dataset.num_classes)
    fields = dict(split="stored", convention="as it is", sparse=not isinstance(dataset.x, np.ndarray)) | changes
    return Record(dataset.name, "made by hand", *counts, **fields)


def known(monkeypatch, record):
    """Make `record` one of the known datasets for the time of a test."""
    monkeypatch.setitem(RECORDS, record.name, record)
    return record


def write_npz(path, dataset):
    """The file of docs/FORMAT.md."""
    x = (
        {"x": dataset.x}
        if isinstance(dataset.x, np.ndarray)
        else {
            "x_indptr": dataset.x.indptr,
            "x_indices": dataset.x.indices,
            "x_data": dataset.x.data,
            "x_shape": dataset.x.shape,
        }
    )
    splits = {f"{part}_idx": nodes for split in dataset.splits[:1] for part, nodes in split._asdict().items()}
    np.savez(path, indptr=dataset.graph.indptr, indices=dataset.graph.indices, y=dataset.y, **x, **splits)


def dense(x):
    return np.asarray(x) if isinstance(x, np.ndarray) else x.toarray()


def assert_same(a, b):
    """Equal in everything but name and provenance."""
    assert np.array_equal(a.graph.indptr, b.graph.indptr) and np.array_equal(a.graph.indices, b.graph.indices)
    assert a.x.dtype == b.x.dtype == np.float32 and np.array_equal(dense(a.x), dense(b.x))
    assert a.y.dtype == b.y.dtype and np.array_equal(a.y, b.y)
    assert len(a.splits) == len(b.splits)
    for one, other in zip(a.splits, b.splits, strict=True):
        assert all(np.array_equal(p, q) for p, q in zip(one, other, strict=True))
