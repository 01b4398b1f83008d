"""GenCAT(α, σ): graphs whose classes, edges and features go together as those of a given graph do.

Maekawa et al., "GenCAT: Generating attributed graphs with controlled relationships between classes, attributes, and
topology" (2023). Of a graph with k classes it keeps the class sizes, the mean M and deviation D (k × k) of the share of a
node's neighbours in each class, and the mean H (f × k) of each attribute in each class; degrees follow a power law.

1. degrees    d_i ∝ i^-1/(α-1), at most n/10
2. classes    as many nodes of each as its share of the size
3. membership U[i] ~ N(M[c], D[c]), clipped to (0, 1], of sum 1
4. tempering  U[i] ← U[i]^(1/θ_c), of sum 1, θ_c such that the mean of U ⊙ U' in class c is nearest M[c]
              U' = U, or turned over in a class that has less than 1/k of its neighbours in itself
5. edges      node i sends each of its edges to a class l ~ U[i], and there to a node j ~ U'[j, l]
6. attributes X = U Vᵀ + N(0, σ²), V being H tempered like U; each attribute is scaled to [0, 1]

Differences from the authors' code, unless `compat=True`: the exponent is the requested one (theirs is lowered until
there are enough edges and ends near 1.5 whatever α was; here the least degree grows instead), class sizes are kept (theirs
come out equal), and partners are drawn by the edges they still lack, all nodes together instead of one after another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unifews.core.graph import Graph
from unifews.datasets.dataset import About, Dataset
from unifews.errors import InputError, ShapeError

Floats = NDArray[np.float64]
Attributes = Literal["normal", "bernoulli"]

_LEAST = 1e-3  # membership is never nothing: every class can be reached
_TEMPERATURES = np.arange(0.01, 1.0, 0.01)
_SAMPLE = 4096  # nodes of a class that its temperature is fitted on
_ROUNDS = 20  # tries to place what is left of the degrees
_TOP_UP = 200  # further tries, at any node, until the number of edges is met

# Cora's largest component, as returned by `statistics(load_dataset("cora-lcc"))`, in three digits.
_SIZES = (344, 214, 406, 726, 379, 285, 131)
_PREFERENCE = (
    (0.738, 0.030, 0.014, 0.085, 0.051, 0.038, 0.044),
    (0.040, 0.770, 0.063, 0.081, 0.016, 0.028, 0.002),
    (0.010, 0.025, 0.919, 0.033, 0.001, 0.010, 0.001),
    (0.062, 0.022, 0.018, 0.821, 0.055, 0.017, 0.004),
    (0.065, 0.013, 0.002, 0.065, 0.839, 0.012, 0.004),
    (0.060, 0.018, 0.024, 0.054, 0.019, 0.787, 0.039),
    (0.155, 0.001, 0.004, 0.030, 0.008, 0.084, 0.717),
)
_DEVIATION = (
    (0.320, 0.139, 0.081, 0.183, 0.142, 0.121, 0.141),
    (0.154, 0.313, 0.186, 0.203, 0.087, 0.103, 0.023),
    (0.057, 0.093, 0.188, 0.129, 0.025, 0.069, 0.012),
    (0.176, 0.105, 0.102, 0.300, 0.169, 0.106, 0.037),
    (0.196, 0.080, 0.028, 0.189, 0.297, 0.070, 0.036),
    (0.156, 0.083, 0.114, 0.164, 0.096, 0.312, 0.141),
    (0.218, 0.011, 0.034, 0.103, 0.047, 0.174, 0.309),
)
_FEATURES = 1433
# Its H is too large to be written down, so it is drawn. How often a word occurs is log-normal, of Cora's mean (18 words in a
# text) and spread. How much that varies between classes, over its mean, has a variance of 0.85 in Cora, where words of a text
# go together; drawn one by one, words tell more, and 0.55 gives a linear classifier Cora's accuracy of 0.75 on them alone.
_WORD = (-4.94, 1.08)
_BETWEEN = 0.55
_CORA_ALPHA = 2.5  # nearest to its degrees: the largest 168, one in seven nodes with 1


@dataclass(frozen=True, eq=False)
class Statistics:
    """What GenCAT keeps of a graph with k classes and f attributes."""

    sizes: Floats
    """Share of the nodes in each class [k]."""
    preference: Floats
    """M [k, k]: mean share of a node's neighbours in each class, by the node's class."""
    deviation: Floats
    """D [k, k]: its standard deviation."""
    attributes: Floats | None = None
    """H [f, k]: mean of each attribute in each class; None: made up, see `gencat`."""

    def __post_init__(self) -> None:
        k = len(self.sizes)
        for name, shape in (("preference", self.preference.shape), ("deviation", self.deviation.shape)):
            if shape != (k, k):
                raise ShapeError(f"`{name}` has shape {list(shape)}; with {k} classes it must be [{k}, {k}].")
        if self.attributes is not None and (self.attributes.ndim != 2 or self.attributes.shape[1] != k):
            raise ShapeError(f"`attributes` has shape {list(self.attributes.shape)}; it must be [f, {k}], a column per class.")
        parts = [self.sizes, self.preference, self.deviation, *([] if self.attributes is None else [self.attributes])]
        if not all(np.isfinite(part).all() and (part >= 0).all() for part in parts) or self.sizes.sum() <= 0:
            raise InputError("the statistics of a graph are finite numbers of at least 0, and not all classes are empty.")

    @property
    def num_classes(self) -> int:
        return len(self.sizes)


def statistics(dataset: Dataset) -> Statistics:
    """The statistics of a dataset; nodes without a label are left out, and so are those without a labelled neighbour."""
    if dataset.is_multilabel:
        raise InputError(f"GenCAT needs one class per node, and nodes of {dataset.name} have several labels.")
    k = dataset.num_classes
    known = dataset.y >= 0
    one_hot = np.zeros((dataset.num_nodes, k))
    one_hot[known, dataset.y[known]] = 1
    near = dataset.graph.to_scipy() @ one_hot
    total = near.sum(axis=1)
    share = near / np.maximum(total, 1e-300)[:, None]
    size = one_hot.sum(axis=0)
    if not (size > 0).all():
        raise InputError(f"class {int(np.argmin(size))} of {dataset.name} has no nodes, so it has no statistics.")
    member = one_hot * (total > 0)[:, None]
    count = np.maximum(member.sum(axis=0), 1)[:, None]
    mean = member.T @ share / count
    square = member.T @ share**2 / count
    x = dataset.x
    attributes = np.asarray((x.T @ one_hot) / size)
    # A class all of whose neighbours are unlabelled prefers none.
    mean[mean.sum(axis=1) == 0] = 1 / k
    return Statistics(size / size.sum(), mean, np.sqrt(np.maximum(square - mean**2, 0)), np.maximum(attributes, 0))


def cora_statistics(features: int = _FEATURES, seed: int = 907) -> Statistics:
    """Class sizes, M and D of Cora's largest component; H drawn so that words are as frequent and as telling as Cora's."""
    sizes = np.array(_SIZES, dtype=np.float64)
    attributes = _words(features, len(_SIZES), _rng(seed, "words"))
    return Statistics(sizes / sizes.sum(), np.array(_PREFERENCE), np.array(_DEVIATION), attributes)


def gencat(
    nodes: int = 1000,
    edges: int | None = 5000,
    alpha: float = 2.1,
    sigma: float = 1.0,
    *,
    statistics: Statistics | None = None,
    features: int | None = None,
    classes: int | None = None,
    attributes: Attributes = "normal",
    scaled: bool = True,
    seed: int = 907,
    compat: bool = False,
    name: str | None = None,
) -> Dataset:
    """An undirected graph with classes and features; the defaults are one of the paper's four graphs.

    - `edges` counts undirected edges, as the paper does; the graph stores each in both directions. None: about as many as
      a power law of least degree 1 has.
    - `alpha`: the number of nodes of degree d falls like d^-alpha, up to n/10. With `edges`, the least degree is what
      makes up their number.
    - `sigma`: deviation of the noise on the features, before each is `scaled` to [0, 1].
    - `statistics`: the distribution of classes, edges and features, default: Cora's; see `statistics` and `cora_statistics`.
      With another number of `classes` than Cora's 7, all of them are alike: equal sizes, Cora's mean homophily.
      Where they have no features, or another number of `features` is given, H is drawn as for Cora.
    - `attributes`: "normal" as above; "bernoulli" makes features 0 or 1, compressed rows, 1 with probability (U Vᵀ)[i, a].
    - `compat`: degrees and class sizes as in the authors' code, see above.
    """
    _check(nodes, edges, alpha, sigma, features, classes, attributes, seed)
    like = _resolve(statistics, features, classes, seed)
    k = like.num_classes
    if nodes < 10 * k:
        raise InputError(f"`nodes` is {nodes:,}, too few for {k} classes; give at least {10 * k}.")
    notes: list[str] = []
    if compat:
        degree, exponent = _lowered_degrees(nodes, edges or 0, alpha, _rng(seed, "degrees"))
        notes.append(
            f"degrees drawn with exponent {exponent:.2f} for {alpha:g}, and classes of equal size, as in the authors' code"
        )
        sizes = np.full(k, 1 / k)
    else:
        degree = _degrees(nodes, edges, alpha, _rng(seed, "degrees"))
        sizes = like.sizes / like.sizes.sum()
    y = _classes(nodes, sizes, _rng(seed, "classes"))
    u, receive = _memberships(y, like, _rng(seed, "membership"))
    pairs = _pairs(u, receive, degree, None if compat else edges, _rng(seed, "edges"))
    graph = Graph.from_edge_index(np.concatenate([pairs, pairs[::-1]], axis=1), nodes)
    assert like.attributes is not None
    x = _features(u, y, like.attributes, sigma, attributes, scaled, _rng(seed, "features"))
    about = About(source=f"generated by GenCAT(alpha={alpha:g}, sigma={sigma:g}, seed={seed})", notes=tuple(notes))
    return Dataset(name or f"gencat-{alpha:g}-{sigma:g}", graph, x, y, (), about)


def cora_like(seed: int = 907) -> Dataset:
    """A graph with the statistics of the paper's Cora: 2,485 nodes, 10,138 directed edges, 1,433 words that are there or not.

    For machines that cannot download Cora: accuracies are similar to Cora's, but not the same.
    """
    dataset = gencat(
        2485, 5069, _CORA_ALPHA, statistics=cora_statistics(seed=seed), attributes="bernoulli", seed=seed, name="cora-like"
    )
    note = "a generated stand-in with the statistics of Cora's largest component, not Cora"
    about = About(source=f"generated by GenCAT with Cora's statistics (seed={seed})", notes=(note, *dataset.about.notes))
    return Dataset(dataset.name, dataset.graph, dataset.x, dataset.y, (), about)


def _resolve(given: Statistics | None, features: int | None, classes: int | None, seed: int) -> Statistics:
    """Statistics that know the features."""
    if given is None and classes not in (None, len(_SIZES)):
        assert classes is not None
        diagonal = float(np.diag(_PREFERENCE).mean())
        preference = np.full((classes, classes), (1 - diagonal) / max(classes - 1, 1))
        np.fill_diagonal(preference, diagonal if classes > 1 else 1.0)
        deviation = np.full((classes, classes), float(np.mean(_DEVIATION)))
        np.fill_diagonal(deviation, float(np.diag(_DEVIATION).mean()))
        given = Statistics(np.full(classes, 1 / classes), preference, deviation)
    if given is None:
        return cora_statistics(features or _FEATURES, seed)
    if classes is not None and classes != given.num_classes:
        raise InputError(f"`classes` is {classes}, but the statistics are of {given.num_classes}; leave `classes` out.")
    if given.attributes is not None and features in (None, len(given.attributes)):
        return given
    drawn = _words(features or _FEATURES, given.num_classes, _rng(seed, "words"))
    return Statistics(given.sizes, given.preference, given.deviation, drawn)


def _words(f: int, k: int, rng: np.random.Generator) -> Floats:
    """H [f, k]: how often a word occurs, times how much more often in each class."""
    often = rng.lognormal(*_WORD, size=f)
    profile = rng.gamma(1 / _BETWEEN, _BETWEEN, size=(f, k))
    return np.minimum(often[:, None] * profile, 1.0)


# -------------------------------------------------------------------------------------------------------------- degrees


def _degrees(n: int, edges: int | None, alpha: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Degrees of sum 2·edges with a tail of exponent alpha: the quantiles of a power law, at most n/10."""
    quantile = (rng.permutation(n) + rng.random(n)) / n  # one in each n-th of the law, so that its tail is never missing
    most = max(n // 10, 1)

    def drawn(least: float) -> NDArray[np.int64]:
        return np.maximum(np.floor(_pareto(quantile, alpha, least, most) + 0.5).astype(np.int64), 1)

    if edges is None:
        degree = drawn(1.0)
    else:
        low, high = 0.5, float(most)
        fewest, top = int(drawn(low).sum()) // 2, n * most // 2
        if not fewest <= edges <= top:
            raise InputError(
                f"`edges` is {edges:,}, but {n:,} nodes with exponent {alpha:g} have between {fewest:,} and {top:,} of them; "
                f"give another number, or None for {int(drawn(1.0).sum()) // 2:,}."
            )
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if drawn(middle).sum() > 2 * edges else (middle, high)
        degree = drawn(low)
        missing = 2 * edges - int(degree.sum())
        degree[rng.choice(np.flatnonzero(degree < most), size=missing, replace=False)] += 1
    if degree.sum() % 2:  # every edge has two ends
        degree[np.argmax(degree)] -= 1
    return degree


def _lowered_degrees(n: int, edges: int, alpha: float, rng: np.random.Generator) -> tuple[NDArray[np.int64], float]:
    """The authors' loop: the exponent falls until there are enough edges. Degrees, and the exponent they were drawn with."""
    exponent, most = alpha, max(n // 10, 1)
    while True:
        degree = np.round(_pareto(rng.random(n), exponent, 1.0, most)).astype(np.int64)
        found = degree.sum() / 2
        step = 0.01 if edges - found < edges / 5 else 0.1
        if found >= edges or exponent - step < 1.01:
            return degree, exponent
        exponent -= step


def _pareto(quantile: Floats, alpha: float, least: float, most: float) -> Floats:
    """The quantiles of a density ∝ x^-alpha between `least` and `most`."""
    power = 1 - alpha
    values: Floats = (least**power - quantile * (least**power - most**power)) ** (1 / power)
    return values


# -------------------------------------------------------------------------------------------------- classes, memberships


def _classes(n: int, sizes: Floats, rng: np.random.Generator) -> NDArray[np.int64]:
    """A class for each node, in proportion to the sizes, within one node; at least one of each."""
    ends = np.floor(np.cumsum(sizes) * n + 0.5).astype(np.int64)
    count = np.maximum(np.diff(ends, prepend=0), 1)
    count[np.argmax(count)] += n - count.sum()
    return rng.permutation(np.repeat(np.arange(len(sizes)), count))


def _memberships(y: NDArray[np.int64], like: Statistics, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """U, by which a node sends its edges to classes, and U', by which it is found in a class; [n, k] both."""
    k = like.num_classes
    mean = like.preference / np.maximum(like.preference.sum(axis=1, keepdims=True), 1e-300)
    u = np.clip(rng.normal(mean[y], like.deviation[y]), _LEAST, 1.0)
    u /= u.sum(axis=1, keepdims=True)
    receive = np.empty_like(u)
    for c in range(k):
        rows = np.flatnonzero(y == c)
        over = mean[c, c] < 1 / k
        sample = u[rows[:_SAMPLE]]
        losses = []
        for temperature in _TEMPERATURES:
            sent = _tempered(sample, temperature)
            found = _turned_over(sent, c) if over else sent
            # What this class of nodes reaches, if a node is reached in a class as often as it belongs there.
            losses.append(float(np.linalg.norm(mean[c] - (sent * found).mean(axis=0))))
        u[rows] = _tempered(u[rows], _TEMPERATURES[int(np.argmin(losses))])
        receive[rows] = _turned_over(u[rows], c) if over else u[rows]
    return u, receive


def _tempered(q: Floats, temperature: float) -> Floats:
    """q^(1/θ) of sum 1 in each row: θ < 1 makes the largest larger."""
    power = np.exp((np.log(q) - np.log(q).max(axis=1, keepdims=True)) / temperature)
    scaled: Floats = power / power.sum(axis=1, keepdims=True)
    return scaled


def _turned_over(u: Floats, c: int) -> Floats:
    """Memberships by which nodes of class c are found where their edges do not go: 1 - u in c, the rest shared by 1 - u."""
    turned = 1 - u
    rest = np.maximum(turned.sum(axis=1) - turned[:, c], 1e-12)
    scale = u[:, c] / rest
    turned[:, np.arange(u.shape[1]) != c] *= scale[:, None]
    return turned


# ---------------------------------------------------------------------------------------------------------------- edges


def _pairs(
    send: Floats, receive: Floats, degree: NDArray[np.int64], edges: int | None, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Distinct undirected edges [2, m] without self-loops, by the memberships and within the degrees.

    Half of the edges that nodes still lack are sent out at once; what would be a loop, a copy or one too many for either
    end is tried again in the next round. With `edges`, those that no round could place are added beyond the degrees.
    """
    n, k = send.shape
    ladder = np.cumsum(send, axis=1)
    left = degree.copy()
    keys = np.empty(0, dtype=np.int64)
    for attempt in range(_ROUNDS + (_TOP_UP if edges is not None else 0)):
        within = attempt < _ROUNDS
        missing = int(left.sum()) // 2 if edges is None or within else edges - len(keys)
        if missing < 1:
            break
        weight = left if within else degree
        first = rng.permutation(np.repeat(np.arange(n), weight))[:missing]
        target = (ladder[first] < rng.random(len(first))[:, None] * ladder[first, -1:]).sum(axis=1)
        second = np.empty_like(first)
        for c in range(k):
            sent = np.flatnonzero(target == c)
            reach = np.cumsum(receive[:, c] * weight)
            second[sent] = np.searchsorted(reach, rng.random(len(sent)) * reach[-1], side="right")
        key = np.minimum(first, second) * n + np.maximum(first, second)
        fresh = np.zeros(len(key), dtype=bool)
        fresh[np.unique(key, return_index=True)[1]] = True
        fresh &= (first != second) & ~np.isin(key, keys)
        first, second, key = first[fresh], second[fresh], key[fresh]
        if within:
            fits = _turn(np.stack([first, second], axis=1).ravel()) < left[np.stack([first, second], axis=1).ravel()]
            both = fits.reshape(-1, 2).all(axis=1)
            first, second, key = first[both], second[both], key[both]
            left -= np.bincount(np.concatenate([first, second]), minlength=n)
        keys = np.sort(np.concatenate([keys, key]))
    if edges is not None and len(keys) < edges:
        raise InputError(f"`edges` is {edges:,}, too many for {n:,} nodes in {k} classes of such preferences; ask for fewer.")
    return np.stack([keys // n, keys % n])


def _turn(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many equal values stand before each."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    start = np.searchsorted(ordered, ordered, side="left")
    turn = np.empty_like(values)
    turn[order] = np.arange(len(values)) - start
    return turn


# ----------------------------------------------------------------------------------------------------------- attributes


def _features(
    u: Floats, y: NDArray[np.int64], h: Floats, sigma: float, kind: Attributes, scaled: bool, rng: np.random.Generator
) -> Any:
    """X [n, f] from memberships and H."""
    k = u.shape[1]
    total = np.maximum(h.sum(axis=1, keepdims=True), 1e-300)
    share = np.maximum(h / total, 1e-12)
    centre = np.stack([u[y == c].mean(axis=0) for c in range(k)])
    v = _fitted(share, centre)
    if kind == "bernoulli":
        from scipy.sparse import csr_array

        chance = u @ (v * total).T
        return csr_array((rng.random(chance.shape, dtype=np.float32) < chance).astype(np.float32))
    x = (u @ v.T).astype(np.float32)
    deviation = (sigma * rng.uniform(0.99, 1.01, size=(k, len(h)))).astype(np.float32)
    x += rng.standard_normal(x.shape, dtype=np.float32) * deviation[y]
    if scaled:
        x -= x.min(axis=0)
        x /= np.maximum(x.max(axis=0), np.finfo(np.float32).tiny)
    return x


def _fitted(share: Floats, centre: Floats) -> Floats:
    """V [f, k]: each attribute's shares, tempered so that the classes, blurred by membership, are nearest to H."""
    best = np.full(len(share), np.inf)
    fitted = share.copy()
    for temperature in np.arange(0.1, 1.05, 0.05):
        v = _tempered(share, temperature)
        loss = np.linalg.norm(share - v @ centre.T, axis=1)
        better = loss < best
        best[better], fitted[better] = loss[better], v[better]
    return fitted


def _rng(seed: int, stream: str) -> np.random.Generator:
    """An independent generator for each use."""
    return np.random.default_rng([seed, *b"gencat", *stream.encode()])


def _check(
    nodes: int,
    edges: int | None,
    alpha: float,
    sigma: float,
    features: int | None,
    classes: int | None,
    attributes: str,
    seed: int,
) -> None:
    limits: list[tuple[bool, str, Any, str]] = [
        (10 <= nodes <= 2**31 - 1, "nodes", nodes, "be between 10 and 2^31 - 1"),
        (edges is None or edges >= 1, "edges", edges, "be at least 1, or None"),
        (1.01 <= alpha <= 20, "alpha", alpha, "be between 1.01 and 20"),
        (0 <= sigma < float("inf"), "sigma", sigma, "be at least 0"),
        (features is None or features >= 1, "features", features, "be at least 1"),
        (classes is None or classes >= 1, "classes", classes, "be at least 1"),
        (seed >= 0, "seed", seed, "be at least 0"),
    ]
    for fine, name, value, rule in limits:
        if not fine:
            raise InputError(f"`{name}` must {rule}; got {value!r}.")
    if attributes not in ("normal", "bernoulli"):
        raise InputError(f"`attributes` is 'normal' or 'bernoulli'; got {attributes!r}.")
