"""A small dataset, and every method with the models that it claims."""

from __future__ import annotations

import numpy as np

from unifews import Graph
from unifews.datasets.dataset import About, Dataset
from unifews.methods import registry
from unifews.methods.base import Propagator, propagate_by

CARDS = {card.name: card for card in registry.cards()[0]}
PROPAGATORS = [name for name in CARDS if name != "unifews" and issubclass(registry.find(name), Propagator)]
PAIRS = [(name, model) for name in PROPAGATORS for model in CARDS[name].backbones]


def propagated(method, graph, x, model="sgc", hops=None, r=None, **settings):
    """By a method, a name or an object."""
    return propagate_by(registry.resolve(method), graph, x, model, hops, r, **settings)


def graph_of(n=60, edges=150, seed=617):
    """Undirected, with a hub and an isolated node."""
    rng = np.random.default_rng(seed)
    source, target = rng.integers(0, n - 1, (2, edges))
    hub = np.stack([np.zeros(n // 3, dtype=int), rng.integers(1, n - 1, n // 3)])
    return Graph.from_edge_index(np.concatenate([np.stack([source, target]), hub], axis=1), n).undirected()


def words(n=60, f=12, seed=619):
    """Mostly zeros, none negative."""
    rng = np.random.default_rng(seed)
    return (rng.random((n, f)) * (rng.random((n, f)) < 0.3)).astype(np.float32)


def learnable(n=150, classes=3, seed=631):
    """Neighbours and features that go with the class."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    source, target = rng.integers(0, n, (2, 8 * n))
    keep = (y[source] == y[target]) | (rng.random(len(source)) < 0.1)
    graph = Graph.from_edge_index(np.stack([source[keep], target[keep]]), n).undirected()
    x = np.abs(rng.normal(size=(n, 10))) + 1.5 * np.eye(classes, 10)[y]
    return Dataset("learnable", graph, x.astype(np.float32), y.astype(np.int64), (), About("a test"))
