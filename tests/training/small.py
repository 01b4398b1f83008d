"""A dataset that is learnt in a few epochs, and the settings to do so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array

from unifews.core.graph import Graph
from unifews.datasets.dataset import About, Dataset, split_stratified
from unifews.training.recipe import Recipe

NODES, FEATURES, CLASSES = 120, 12, 3
QUICK = Recipe(width=16, batch=32, epochs=12, patience=0, lr=1e-2, dropout=0.2)


def small(kind="classes", *, sparse=False, stored=False, seed=251):
    """120 nodes in 3 classes ("classes"), with 4 labels each ("labels"), or of two classes judged by AUC ("auc")."""
    rng = np.random.default_rng(seed)
    classes = np.arange(NODES) % CLASSES
    # Most neighbours are of a node's own class; features are its class, faintly.
    source, target = rng.integers(0, NODES, (2, 6 * NODES))
    keep = (classes[source] == classes[target]) | (rng.random(len(source)) < 0.1)
    graph = Graph.from_edge_index(np.stack([source[keep], target[keep]]), NODES).undirected()
    x = rng.normal(size=(NODES, FEATURES)) + 2.5 * np.eye(CLASSES, FEATURES)[classes]
    x = (x * (rng.random(x.shape) < 0.8)).astype(np.float32)
    y, metric = classes.astype(np.int64), "accuracy"
    if kind == "labels":
        y, metric = np.stack([classes == 0, classes == 1, classes > 0, rng.random(NODES) < 0.5], 1).astype(np.uint8), "f1"
    elif kind == "auc":
        y, metric = (classes == 1).astype(np.int64), "auc"
    splits = (split_stratified(classes, seed=257),) if stored or kind == "labels" else ()
    about = About("a test", split="stored" if splits else "stratified", metric=metric)
    return Dataset("small", graph, csr_array(x) if sparse else x, y, splits, about)


def with_test_labels(data, split, labels):
    """The same data, but for the labels of the test nodes."""
    y = data.y.copy()
    y[split.test] = labels
    return replace(data, y=y)


def without_times(record):
    """A record without what differs from run to run: times, and the machine."""
    if isinstance(record, dict):
        left = {name: value for name, value in record.items() if name not in ("finished", "machine")}
        return {name: without_times(value) for name, value in left.items() if not name.endswith("seconds")}
    return [without_times(value) for value in record] if isinstance(record, list | tuple) else record
