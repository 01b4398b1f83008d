"""Graphs and filters on which the estimate of `propagate(max_error=ε)` was not developed: `honesty.py --held-out`.

Other families, seeds and exponents than those of honesty.py: stochastic block models (also heterophilous), random trees, small
worlds, power laws, grids with weights, many components. Add to them, and do not tune the estimate on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from unifews import Appnp, Filter, Graph, HeatKernel, PersonalizedPageRank, Sgc, powerlaw
from unifews.core.schemes import Scheme

SCHEMES: dict[str, Scheme] = {
    "APPNP .05": Appnp(alpha=0.05),
    "APPNP .3": Appnp(alpha=0.3),
    "SGC diagonal": Sgc("diagonal"),
    "SGC identity+loop": Sgc("identity+loop"),
    "PPR .04": PersonalizedPageRank(0.04),
    "PPR .25": PersonalizedPageRank(0.25),
    "heat 3": HeatKernel(3),
    "heat 12": HeatKernel(12),
    "high pass": Filter(lambda t: 1 - 0.9 * np.exp(2 * (t - 1))),
    "low pass": Filter(lambda t: 1 / (1 + np.exp(-8 * (t - 0.4)))),
}


def _graph(edges: Any, n: int, weight: Any = None) -> Graph:
    """Undirected, without self-loops; weights are those of the first copy of an edge."""
    low, high = np.minimum(*edges), np.maximum(*edges)
    _, first = np.unique(low.astype(np.int64) * n + high, return_index=True)
    first = first[low[first] != high[first]]
    low, high = low[first], high[first]
    both = np.stack([np.concatenate([low, high]), np.concatenate([high, low])])
    return Graph.from_edge_index(both, n, None if weight is None else np.tile(weight[first], 2).astype(np.float32))


def _features(graph: Graph, labels: Any, rng: np.random.Generator) -> Any:
    """Noise around a mean of each class, words by class, a few nodes only, and columns of very different size."""
    n, classes = graph.num_nodes, int(labels.max()) + 1
    means = rng.standard_normal((classes, 12))[labels] * rng.uniform(0.05, 2, 12) + rng.standard_normal((n, 12))
    words = (rng.random((n, 12)) < rng.uniform(0.002, 0.1, (classes, 12))[labels]).astype(float)
    few = np.zeros((n, 4))
    few[rng.integers(0, n, 4), np.arange(4)] = 1
    sizes = rng.standard_normal((n, 8)) * np.logspace(-5, 3, 8) + rng.uniform(-1, 1, 8)
    return np.concatenate([means, words, few, sizes], axis=1)


def _made(edges: Callable[[np.random.Generator], tuple[Any, int, Any, Any]], seed: int) -> Callable[[], tuple[Graph, Any]]:
    def make() -> tuple[Graph, Any]:
        rng = np.random.default_rng(seed)
        pairs, n, labels, weight = edges(rng)
        graph = _graph(pairs, n, weight)
        return graph, _features(graph, labels, rng)

    return make


def _blocks(inside: float, outside: float, classes: int = 5, n: int = 1200) -> Callable[[np.random.Generator], Any]:
    """A stochastic block model with so many edges of a node inside of its class, and outside."""

    def edges(rng: np.random.Generator) -> tuple[Any, int, Any, Any]:
        labels = rng.integers(0, classes, n)
        ends = rng.integers(0, n, (2, 40 * n))
        same = labels[ends[0]] == labels[ends[1]]
        chance = np.where(same, inside / 80 * classes, outside / 80 * classes / (classes - 1))
        return ends[:, rng.random(len(same)) < chance], n, labels, None

    return edges


def _tree(rng: np.random.Generator) -> tuple[Any, int, Any, Any]:
    n = 1500
    return np.stack([np.arange(1, n), (rng.random(n - 1) * np.arange(1, n)).astype(int)]), n, rng.integers(0, 3, n), None


def _small_world(rng: np.random.Generator) -> tuple[Any, int, Any, Any]:
    n, at = 1000, np.arange(1000)
    pairs = np.concatenate([np.stack([at, (at + step) % n]) for step in (1, 2, 3)], axis=1)
    moved = rng.random(pairs.shape[1]) < 0.05
    pairs[1, moved] = rng.integers(0, n, int(moved.sum()))
    return pairs, n, at // 200, None


def _weighted_grid(rng: np.random.Generator) -> tuple[Any, int, Any, Any]:
    at = np.arange(28 * 45).reshape(28, 45)
    pairs = np.concatenate(
        [np.stack([at[1:].ravel(), at[:-1].ravel()]), np.stack([at[:, 1:].ravel(), at[:, :-1].ravel()])], axis=1
    )
    return pairs, at.size, (at // 150).ravel(), np.exp(rng.normal(0, 1.5, pairs.shape[1]))


def _many_components(rng: np.random.Generator) -> tuple[Any, int, Any, Any]:
    """Cliques, paths and random graphs of 2 to 60 nodes, and isolated nodes."""
    parts, start, labels = [], 0, []
    for number in range(60):
        size = int(rng.integers(2, 60))
        at = np.arange(start, start + size)
        kinds = np.stack([at[:-1], at[1:]]), at[np.stack(np.triu_indices(size, 1))], at[rng.integers(0, size, (2, 2 * size))]
        parts.append(kinds[number % 3])
        labels += [number % 4] * size
        start += size
    return np.concatenate(parts, axis=1), start + 25, np.array(labels + [0] * 25), None


def _attachment(exponent: float, weighted: bool) -> Callable[[np.random.Generator], Any]:
    """Ends in proportion to rank^-exponent: other power laws than those of `uf.powerlaw`."""

    def edges(rng: np.random.Generator) -> tuple[Any, int, Any, Any]:
        n = 1500
        chance = np.arange(1, n + 1) ** -exponent
        ends = rng.choice(n, (2, 6 * n), p=chance / chance.sum())
        return ends, n, rng.integers(0, 6, n), rng.pareto(1.5, 6 * n) + 0.1 if weighted else None

    return edges


def _powerlaw(homophily: float) -> Callable[[], tuple[Graph, Any]]:
    def make() -> tuple[Graph, Any]:
        found = powerlaw(3000, 40_000, num_features=40, homophily=homophily, seed=4242)
        return found.graph, found.x

    return make


GRAPHS: dict[str, Callable[[], tuple[Graph, Any]]] = {
    "blocks homophilous": _made(_blocks(10, 2), 101),
    "blocks heterophilous": _made(_blocks(1, 12), 102),
    "blocks bipartite": _made(_blocks(0.2, 15, classes=2), 103),
    "tree": _made(_tree, 104),
    "small world": _made(_small_world, 105),
    "weighted grid": _made(_weighted_grid, 106),
    "many components": _made(_many_components, 107),
    "attachment .6": _made(_attachment(0.6, False), 108),
    "attachment .9 weighted": _made(_attachment(0.9, True), 109),
    "powerlaw .5": _powerlaw(0.5),
}
