"""Benchmark graphs of any size: heavy-tailed degrees, communities, labels and features that go with them.

Chung-Lu: both ends of an edge are drawn with probability ∝ (i + i₀)^(-1/(γ-1)), i the node's rank, which gives degrees
a tail of exponent γ; the inverse of the cumulated weights is a formula, so a draw is one power and no table.

Communities: rank i belongs to topic i mod K, so "a partner in my topic" is index arithmetic too. A class is a run of
topics, and the classes are arranged on a circle: an edge out of a class often ends in the next one. Such a chain is what
preserves features over many hops in real graphs; where all classes mix alike, only the mean is left after three.

Everything is drawn in chunks, each from its own seed: the result depends on the arguments alone, not on the threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core import csr
from unifews.core.graph import Graph
from unifews.errors import InputError
from unifews.resources import StageProgress, report

_EDGES = 1 << 18  # edges per chunk, whose few temporaries fit the cache
_ROWS = 1 << 14  # feature rows per chunk
ATTEMPTS = 20  # to draw what is missing, before giving up

# How communities and features are built. Fitted by hand to the share of energy on the leading axes of features on
# ogbn-arxiv's graph (arxiv-sub: its edges, substitute features), before propagation and after 1, 2, 4 and 8 hops.
_TOPICS = 8  # topics per class
_IN_TOPIC = 0.95  # share of the edges within a class that are also within a topic
_NEXT = 0.85  # share of the edges out of a class that end in one of its two neighbours
_MEAN = 0.012  # energy of the mean feature vector, as a share of all
_SIGNAL = 0.7  # share of the first axis's variance that is between topics ...
_SIGNAL_DECAY = 0.5  # ... and the power of k at which it falls
_CLASS = 0.3  # share of a centroid's variance that its class decides; the rest is its topic's own


@dataclass(frozen=True, eq=False)
class Generated:
    """A generated graph, undirected, with features float32 [n, f] and labels int64 [n]."""

    graph: Graph
    x: NDArray[np.float32]
    y: NDArray[np.int64]


def powerlaw(
    num_nodes: int,
    num_edges: int,
    *,
    num_features: int = 128,
    num_classes: int = 16,
    exponent: float = 2.5,
    homophily: float = 0.7,
    spectrum: float = 0.08,
    seed: int = 907,
    progress: StageProgress | None = None,
) -> Generated:
    """An undirected graph of `num_edges` directed edges (an odd one is rounded down) with power-law degrees.

    - `exponent` γ > 2: the number of nodes of degree k falls like k^-γ, up to a degree of at most about 2·√num_edges.
    - `homophily`: the share of edges whose ends carry the same label. A share h(1-h)/2 of the nodes carries the label
      of another class than its neighbours and features suggest, so that no classifier is perfect.
    - `spectrum` s: the k-th axis of the features carries variance ∝ k^-s; the leading ones distinguish the classes.
      The default follows arxiv-sub, see below; larger values make features that are closer to low rank.

    Cost: two sorts of the edges and one normal number per feature; memory peaks at about 13 bytes per directed edge,
    or at the graph and the features if that is more. 140 M edges, 2.4 M nodes, 100 features: 25 s on two cores.
    `progress(stage, done, total)` is called after each chunk.
    """
    check(num_nodes, num_edges, num_features, num_classes, exponent, homophily, spectrum, seed)
    model = PowerLawModel.of(num_nodes, num_edges, num_classes, exponent, homophily, seed)
    graph = _graph(model, num_edges // 2, progress)
    features = FeatureModel.of(model, num_features, spectrum)
    x = np.empty((num_nodes, num_features), dtype=np.float32)
    _each(lambda chunk: features.fill(chunk, x[features.rows(chunk)]), len(features), "features", progress)
    return Generated(graph, x, labels(model).astype(np.int64))


@dataclass(frozen=True)
class PowerLawModel:
    """The distribution everything is drawn from."""

    n: int
    classes: int
    topics: int  # in all; topic t belongs to class t // (topics // classes)
    homophily: float  # among communities; the labels' own is a little lower
    flipped: float  # share of nodes with a foreign label
    power: float  # 1 - 1/(γ-1)
    offset: float  # i₀: bounds the largest degree
    seed: int
    order: NDArray[np.int32]  # rank → node number

    @staticmethod
    def of(n: int, m: int, classes: int, exponent: float, homophily: float, seed: int) -> PowerLawModel:
        power = (exponent - 2) / (exponent - 1)
        largest = max(min(2 * sqrt(m), n / 4), 2 * m / n)
        # A topic must be large enough for the partners of its largest node, or copies would eat the tail of degrees.
        topics = classes * max(1, min(_TOPICS, int(2 * n / (classes * largest)), n // classes))
        h = homophily if classes > 1 else 1.0
        flipped = h * (1 - h) / 2
        others = max(classes - 1, 1)
        # Chance of equal labels for two nodes of one class, and of two, once labels have been flipped.
        same = (1 - flipped) ** 2 + flipped**2 / others
        different = 2 * flipped * (1 - flipped) / others + flipped**2 * (classes - 2) / others**2
        among = (h - different) / (same - different) if classes > 1 else 1.0
        order = np.arange(n, dtype=np.int32)
        _rng(seed, "order").shuffle(order)
        return PowerLawModel(n, classes, topics, among, flipped, power, _offset(n, m, power, largest), seed, order)

    def below(self, rank: NDArray[np.float64]) -> NDArray[np.float64]:
        """The share of all edge ends at ranks below `rank`."""
        low, high = self._limits
        share: NDArray[np.float64] = ((np.minimum(rank, self.n) + self.offset) ** self.power - low) / (high - low)
        return share

    def rank(self, share: NDArray[np.float64]) -> NDArray[np.int64]:
        """The inverse of `below`. Works in place."""
        low, high = self._limits
        share *= high - low
        share += low
        share **= 1 / self.power
        share -= self.offset
        return np.clip(share.astype(np.int64), 0, self.n - 1)

    @property
    def _limits(self) -> tuple[float, float]:
        return self.offset**self.power, (self.n + self.offset) ** self.power

    def pairs(self, chunk: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The smaller and the larger end of _EDGES edges; self-loops and copies included."""
        a, b = (self.order[end] for end in self.draw(chunk))
        return np.minimum(a, b), np.maximum(a, b)

    def draw(self, chunk: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Both ends, as ranks, of _EDGES edges."""
        rng = _rng(self.seed, "edges", chunk)
        first, second = self.rank(rng.random(_EDGES)), self.rank(rng.random(_EDGES))
        second -= second % self.topics
        second += self._partner_topic(first % self.topics, rng)
        second[second >= self.n] -= self.topics
        return first, second

    def _partner_topic(self, topic: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """The topic of the other end: the same, another of the class, one of a class nearby, one of any other class."""
        size, per_class = len(topic), self.topics // self.classes
        kind = rng.random(size, dtype=np.float32)
        partner = topic - topic % per_class + rng.integers(per_class, size=size)
        np.copyto(partner, topic, where=kind < self.homophily * _IN_TOPIC)
        away = np.flatnonzero(kind >= self.homophily)
        if self.classes > 1 and len(away):
            step = rng.integers(1, self.classes, size=len(away))
            near = rng.random(len(away), dtype=np.float32) < _NEXT
            step[near] = np.where(step[near] % 2, 1, self.classes - 1)
            partner[away] = (partner[away] + step * per_class) % self.topics
        return partner

    def chance(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.float64]:
        """The probability that a draw is this undirected edge."""
        per_class = self.topics // self.classes
        a, b = first % self.topics, second % self.topics
        step = (b // per_class - a // per_class) % self.classes
        near = (step == 1).astype(np.float64) + (step == self.classes - 1)
        others = max(self.classes - 1, 1)
        partner = (1 - self.homophily) * (_NEXT * near / 2 + (1 - _NEXT) / others)
        partner[step == 0] = self.homophily * (1 - _IN_TOPIC)
        partner /= per_class
        partner[a == b] += self.homophily * _IN_TOPIC
        both: NDArray[np.float64] = partner * (self._one_way(first, second) + self._one_way(second, first))
        return both

    def _one_way(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.float64]:
        """The probability of the first rank, times that of the second given its topic."""
        block = second - second % self.topics
        at_first = self.below(first + np.float64(1)) - self.below(first + np.float64(0))
        return at_first * (self.below(block + np.float64(self.topics)) - self.below(block + np.float64(0)))


def _offset(n: int, m: int, power: float, largest: float) -> float:
    """The i₀ that gives rank 0 the expected degree `largest`: m·i₀^(power-1)·power / ((n+i₀)^power - i₀^power)."""
    low, high = 1e-6, 1e3 * n
    for _ in range(100):
        middle = sqrt(low * high)
        if m * middle ** (power - 1) * power > largest * ((n + middle) ** power - middle**power):
            low = middle
        else:
            high = middle
    return high


def _graph(model: PowerLawModel, pairs: int, progress: StageProgress | None) -> Graph:
    """`pairs` distinct undirected edges, both directions of each stored."""
    keys = np.empty(0, dtype=np.int64)
    drawn = 0
    for attempt in count():
        # The first draw nearly always suffices; a later one doubles what is missing.
        draws = draws_needed(model, pairs) if attempt == 0 else draws_missing(pairs, len(keys))
        buffer = np.empty(len(keys) + draws, dtype=np.int64)
        buffer[: len(keys)] = keys
        _fill(model, buffer[len(keys) :], drawn, progress)
        drawn += chunks_of(draws)
        csr.sort(buffer)
        keys = buffer[: csr.distinct(buffer[: np.searchsorted(buffer, csr.LOOP)])]
        if len(keys) >= pairs:
            break
        if attempt == ATTEMPTS:
            raise too_dense(model, pairs)
    both = np.empty(2 * pairs, dtype=np.int64)
    both[:pairs] = np.delete(keys, surplus(model, len(keys), pairs))
    del keys, buffer
    bits = max(1, (model.n - 1).bit_length())
    for part in csr.chunks(pairs):
        key = both[part]
        mirrored = both[pairs + part.start : pairs + part.stop]
        np.bitwise_and(key, (1 << bits) - 1, out=mirrored)
        mirrored <<= bits
        mirrored |= key >> bits
    rows = csr.compress_keys(both, model.n)
    return Graph(rows.indptr, rows.indices, _symmetric=True, _checked=True)


def draws_missing(pairs: int, found: int) -> int:
    """Further draws where the first ones gave too few distinct edges."""
    return 2 * (pairs - found) + 64


def surplus(model: PowerLawModel, found: int, pairs: int) -> NDArray[np.int64]:
    """Which of the distinct edges, in order, are too many."""
    return _rng(model.seed, "surplus").choice(found, found - pairs, replace=False, shuffle=False)


def draws_needed(model: PowerLawModel, pairs: int) -> int:
    """How many draws give `pairs` distinct edges.

    D draws hit edge e at least once with probability 1 - exp(-D·q(e)), so they give Σ (1 - exp(-D·q(e))) distinct
    edges: the mean of (1 - exp(-D·q)) / q over edges drawn from q itself, which one chunk estimates.
    """
    first, second = model.draw(chunk=-1)
    edge = first != second
    q = model.chance(first[edge], second[edge])
    low, high = pairs, 64 * pairs
    if -np.expm1(-high * q) @ (1 / q) / len(edge) < pairs:
        raise too_dense(model, pairs)
    while high - low > max(1, pairs // 1000):
        middle = (low + high) // 2
        if -np.expm1(-middle * q) @ (1 / q) / len(edge) < pairs:
            low = middle
        else:
            high = middle
    return int(high * 1.002 + 4 * sqrt(high)) + 16  # so that trimming, not topping up, is the rule


def too_dense(model: PowerLawModel, pairs: int) -> InputError:
    return InputError(
        f"num_edges={2 * pairs:,} is too dense for a power law on {model.n:,} nodes in {model.classes:,} classes. "
        f"Ask for fewer edges or more nodes."
    )


def _fill(model: PowerLawModel, keys: NDArray[np.int64], first_chunk: int, progress: StageProgress | None) -> None:
    """Draw edges into `keys`, smaller node number first."""

    def fill(chunk: int) -> None:
        out = keys[chunk * _EDGES : (chunk + 1) * _EDGES]
        low, high = model.pairs(first_chunk + chunk)
        csr.pack(high[: len(out)], low[: len(out)], model.n, out=out)

    _each(fill, chunks_of(len(keys)), "edges", progress)


def chunks_of(draws: int) -> int:
    """How many chunks hold so many draws; the last one may be cut off."""
    return -(-draws // _EDGES)


def labels(model: PowerLawModel) -> NDArray[Any]:
    """The class of each node, in the smallest type that holds it; a few bytes per node of temporary memory."""
    rng = _rng(model.seed, "labels")
    per_class = model.topics // model.classes
    flip = np.empty(model.n, dtype=bool)
    for part in csr.chunks(model.n):
        np.less(rng.random(part.stop - part.start), model.flipped, out=flip[part])
    y = np.empty(model.n, dtype=np.min_scalar_type(model.classes - 1))
    for part in csr.chunks(model.n):
        label = np.arange(part.start, part.stop) % model.topics // per_class
        if model.classes > 1:
            label[flip[part]] += rng.integers(1, model.classes, size=int(flip[part].sum()))
            label %= model.classes
        y[model.order[part]] = label
    return y


@dataclass(frozen=True)
class FeatureModel:
    """x = (mean + centroid[topic] + noise)·Q, where axis k has variance ∝ k^-spectrum and Q is orthogonal; chunk by chunk."""

    seed: int
    shift: NDArray[np.float32]  # [topics, f], the mean and the centroids on the features
    mix: NDArray[np.float32]  # [f, f], what noise is multiplied by
    topic: NDArray[np.int32]  # of each node

    @staticmethod
    def of(model: PowerLawModel, f: int, spectrum: float) -> FeatureModel:
        rng = _rng(model.seed, "axes")
        axis = np.arange(1.0, f + 1)
        variance = axis**-spectrum
        variance *= f / variance.sum()  # one per feature, on average
        share = _SIGNAL * axis**-_SIGNAL_DECAY  # of the variance that is between topics
        by_class = np.repeat(_on_circle(model.classes, f, rng), model.topics // model.classes, axis=0)
        centroid = sqrt(_CLASS) * by_class + sqrt(1 - _CLASS) * rng.standard_normal((model.topics, f))
        centroid *= np.sqrt(share * variance)
        centroid[:, 0] += sqrt(_MEAN * f)
        rotation = np.linalg.qr(rng.standard_normal((f, f)))[0]
        mix = (np.sqrt((1 - share) * variance)[:, None] * rotation).astype(np.float32)
        topic = np.empty(model.n, dtype=np.int32)
        for part in csr.chunks(model.n):
            topic[model.order[part]] = np.arange(part.start, part.stop) % model.topics
        return FeatureModel(model.seed, (centroid @ rotation).astype(np.float32), mix, topic)

    @staticmethod
    def bytes_of(f: int) -> int:
        """What a chunk takes while it is made: the result, the noise, and the means."""
        return 12 * _ROWS * f

    def __len__(self) -> int:
        """The number of chunks."""
        return -(-len(self.topic) // _ROWS)

    def rows(self, chunk: int) -> slice:
        return slice(chunk * _ROWS, min((chunk + 1) * _ROWS, len(self.topic)))

    def fill(self, chunk: int, out: NDArray[np.float32]) -> None:
        """Write the rows of a chunk into `out`."""
        rows = self.rows(chunk)
        noise = _rng(self.seed, "noise", chunk).standard_normal(out.shape, dtype=np.float32)
        np.matmul(noise, self.mix, out=out)
        out += self.shift[self.topic[rows]]


def _on_circle(points: int, f: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """f random functions on a circle of `points`, of mean 0 and variance 1, whose k-th harmonic falls like 1/k."""
    angle = np.arange(points)[:, None] * np.arange(1, points // 2 + 1) * (2 * np.pi / points)
    waves = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
    amplitude = np.tile(1 / np.arange(1.0, points // 2 + 1), 2)[:, None]
    values: NDArray[np.float64] = waves @ (amplitude * rng.standard_normal((waves.shape[1], f)))
    values /= np.maximum(values.std(axis=0), 1e-12)  # a single point has no variance
    return values


def _each(work: Callable[[int], None], chunks: int, stage: str, progress: StageProgress | None) -> None:
    """Run work(0) … work(chunks - 1) on every core; NumPy lets go of the interpreter in the long parts."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, _ in enumerate(pool.map(work, range(chunks)), start=1):
            report(progress, stage, done, chunks)


def _rng(seed: int, stream: str, chunk: int = 0) -> np.random.Generator:
    """An independent generator for each use and chunk."""
    return np.random.default_rng([seed, *stream.encode(), chunk + 1])


def check(n: int, m: int, f: int, classes: int, exponent: float, homophily: float, spectrum: float, seed: int) -> None:
    limits: list[tuple[bool, str, Any, str]] = [
        (2 <= n <= csr.PACKABLE - 1, "num_nodes", n, "be between 2 and 2^31 - 1"),
        (m >= 2, "num_edges", m, "be at least 2, since each edge is stored in both directions"),
        (f >= 1, "num_features", f, "be at least 1"),
        (1 <= classes <= n, "num_classes", classes, "be between 1 and the number of nodes"),
        (exponent > 2, "exponent", exponent, "be above 2, or the mean degree would not exist"),
        (0 <= homophily <= 1, "homophily", homophily, "be in [0, 1]: it is a share of the edges"),
        (spectrum >= 0, "spectrum", spectrum, "be at least 0"),
        (seed >= 0, "seed", seed, "be at least 0"),
    ]
    for fine, name, value, rule in limits:
        if not fine:
            raise InputError(f"`{name}` must {rule}; got {value}.")
