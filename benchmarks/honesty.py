"""Is the error that `propagate(max_error=ε)` estimates the error that it has? True errors over ε, on real graphs, generated
ones and graphs made to mislead the estimate.

The truth is a float64 Chebyshev series of f(S) X that ends below 1e-12. Errors are those of `Propagated.column_errors`: of each
column over its norm without the stationary part and without isolated nodes, which are exact; less what float32 cannot represent
of the column as a whole. A case claims what its `error` says: where a given precision or number of hops leaves it above ε, no
claim is made.

python benchmarks/honesty.py                                        # all graphs; takes an hour
python benchmarks/honesty.py --graphs cora,hub --norms 0.5 --json honesty.json
python benchmarks/honesty.py --held-out                             # graphs and filters the estimate was not developed on
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import held_out
import numpy as np
import scipy.sparse as sp
from data import arguments, folder, load
from rich.console import Console
from rich.table import Table

from unifews import Appnp, Graph, HeatKernel, PersonalizedPageRank, Sgc, powerlaw, propagate
from unifews.core.diffusion import Diffusion
from unifews.core.schemes import Scheme, resolve, response_of
from unifews.errors import InputError
from unifews.propagation.symmetric import INTERVALS, STATIONARY

REAL = "cora,citeseer,pubmed,photo,squirrel-filtered,chameleon-filtered,texas,minesweeper,actor"
COLUMNS = 256  # of a real graph
SCHEMES: dict[str, Scheme] = {
    "APPNP": Appnp(),
    "SGC diagonal": Sgc("diagonal"),
    "SGC identity": Sgc("identity"),
    **{f"PPR {alpha}": PersonalizedPageRank(alpha) for alpha in (0.02, 0.1, 0.5)},
    **{f"heat {time}": HeatKernel(time) for time in (1, 5, 20)},
}
TOLERANCES = (0.01, 0.02, 0.05, 0.1, 0.2)
PRECISIONS = (None, "int8", "bfloat16", "float32")
NORMS = (0.0, 0.5, 1.0)
UNPRUNED = "unpruned"  # all hops in float32, whose error is 0 by definition: they are what the error is relative to
WORST = 3.0  # times ε: what is promised of each column
NEGLIGIBLE = 1e-11  # of a column's squared norm: it counts as stationary
RESOLVED = 2.0**-16  # of ‖f‖·‖x‖: errors of a column of which f leaves less are relative to this
Doubles = np.ndarray[Any, np.dtype[np.float64]]


# ---------------------------------------------------------------------------------------------------------------- graphs


def random_edges(n: int, degree: float, rng: np.random.Generator) -> Doubles:
    return rng.integers(0, n, (2, int(n * degree / 2)))


def ring(n: int) -> Doubles:
    return np.stack([np.arange(n), (np.arange(n) + 1) % n])


def undirected(edges: Any, n: int) -> Graph:
    edges = np.asarray(edges)[:, edges[0] != edges[1]]
    both = np.unique(np.concatenate([edges, edges[::-1]], axis=1), axis=1)
    return Graph.from_edge_index(both, n)


def mixed(graph: Graph, rng: np.random.Generator, columns: int = 16) -> Doubles:
    """Noise, smooth columns, and sparse binary ones."""
    n, t = graph.num_nodes, Diffusion(graph).to_scipy()
    noise, words = rng.standard_normal((n, columns)), (rng.random((n, columns)) < 0.03).astype(float)
    smooth = t @ (t @ (t @ rng.standard_normal((n, columns))))
    return np.concatenate([noise, smooth, words], axis=1)


def from_edges(edges: Callable[[np.random.Generator], tuple[Any, int]]) -> Callable[[], tuple[Graph, Any]]:
    def make() -> tuple[Graph, Any]:
        rng = np.random.default_rng(5)
        graph = undirected(*edges(rng))
        return graph, mixed(graph, rng)

    return make


def grid(rng: np.random.Generator, side: int = 40) -> tuple[Any, int]:
    at = np.arange(side * side).reshape(side, side)
    pairs = [(at[1:], at[:-1]), (at[:, 1:], at[:, :-1])]
    return np.concatenate([np.stack([a.ravel(), b.ravel()]) for a, b in pairs], axis=1), side * side


def star_and_ring(rng: np.random.Generator, n: int = 600) -> tuple[Any, int]:
    return np.concatenate([ring(n), np.stack([np.zeros(n // 2, dtype=int), np.arange(n // 2)])], axis=1), n


def erdos_renyi(rng: np.random.Generator, n: int = 1500) -> tuple[Any, int]:
    return random_edges(n, 10, rng), n


def made(homophily: float) -> Callable[[], tuple[Graph, Any]]:
    def make() -> tuple[Graph, Any]:
        found = powerlaw(2000, 12_000, num_features=48, homophily=homophily, seed=3)
        return found.graph, found.x

    return make


def components() -> tuple[Graph, Any]:
    """Sixty random graphs; columns are noise and a little that is constant on each, which no hop can change."""
    rng = np.random.default_rng(1)
    of = np.sort(rng.integers(0, 60, 1500))
    ends = rng.integers(0, 1500, (2, 200_000))
    graph = undirected(ends[:, of[ends[0]] == of[ends[1]]], 1500)
    levels = rng.standard_normal((60, 32))[of]
    return graph, rng.standard_normal((1500, 32)) + np.repeat([1e-2, 3e-2, 0.1, 0.3], 8) * levels


def two_communities() -> tuple[Graph, Any]:
    """Joined by one edge; columns are noise and a little that distinguishes them."""
    rng = np.random.default_rng(2)
    edges = np.concatenate([random_edges(500, 12, rng), 500 + random_edges(500, 12, rng), [[0], [500]]], axis=1)
    side = np.where(np.arange(1000) < 500, 1.0, -1.0)
    return undirected(edges, 1000), rng.standard_normal((1000, 32)) + np.repeat([1e-2, 3e-2, 0.1, 0.3], 8) * side[:, None]


def bipartite() -> tuple[Graph, Any]:
    rng = np.random.default_rng(3)
    edges = np.stack([rng.integers(0, 400, 4000), 400 + rng.integers(0, 400, 4000)])
    graph = undirected(edges, 800)
    side = np.where(np.arange(800) < 400, 1.0, -1.0)
    return graph, np.concatenate([mixed(graph, rng, 8), rng.standard_normal((800, 8)) + side[:, None]], axis=1)


def eigenvectors() -> tuple[Graph, Any]:
    """Columns in one eigenvector, or in one and a little of another."""
    rng = np.random.default_rng(4)
    graph = undirected(random_edges(400, 8, rng), 400)
    _, vectors = np.linalg.eigh(Diffusion(graph).to_scipy().toarray())
    pairs = rng.permutation(400)[:32].reshape(2, 16)
    return graph, vectors[:, pairs[0]] + np.repeat([0.0, 1e-3, 1e-2, 0.1], 4) * vectors[:, pairs[1]]


def hub() -> tuple[Graph, Any]:
    """One node beside 800 leaves and a few edges among them."""
    rng = np.random.default_rng(5)
    leaves = np.stack([np.zeros(800, dtype=int), np.arange(1, 801)])
    graph = undirected(np.concatenate([leaves, 1 + random_edges(800, 0.5, rng)], axis=1), 801)
    return graph, mixed(graph, rng)


def path_to_a_clique() -> tuple[Graph, Any]:
    """Columns are one node each, on a path that ends in a dense part: hops see it late."""
    path, n = np.stack([np.arange(39), np.arange(1, 40)]), 240
    dense = 40 + np.stack(np.triu_indices(200, 1))[:, ::7]
    x = np.zeros((n, 20))
    x[np.arange(0, 40, 2), np.arange(20)] = 1
    return undirected(np.concatenate([path, dense, [[39], [40]]], axis=1), n), x


def scaled_columns() -> tuple[Graph, Any]:
    graph, x = made(0.7)()
    return graph, np.asarray(x, dtype=float) * np.logspace(0, -6, x.shape[1])


def offsets() -> tuple[Graph, Any]:
    """Columns far from 0, zero and constant columns, columns that only isolated nodes have."""
    rng = np.random.default_rng(6)
    graph = undirected(random_edges(900, 6, rng), 1000)
    x = rng.standard_normal((1000, 24))
    constant, stationary = np.ones(1000), np.sqrt(Diffusion(graph).degree)
    for k, size in enumerate([1, 10, 100, 1e3]):
        x[:, 2 * k] += size * constant
        x[:, 2 * k + 1] += size * stationary
    x[:, 8], x[:, 9], x[:, 10], x[:, 11] = 0, constant, stationary, np.arange(1000) >= 900
    return graph, x


def one_column() -> tuple[Graph, Any]:
    graph, x = made(0.7)()
    return graph, np.asarray(x)[:, :1]


MADE: dict[str, Callable[[], tuple[Graph, Any]]] = {
    "powerlaw .9": made(0.9),
    "powerlaw .2": made(0.2),
    "grid": from_edges(grid),
    "ring": from_edges(lambda rng: (ring(1000), 1000)),
    "star and ring": from_edges(star_and_ring),
    "random": from_edges(erdos_renyi),
    "components": components,
    "two communities": two_communities,
    "bipartite": bipartite,
    "eigenvectors": eigenvectors,
    "hub": hub,
    "path to a clique": path_to_a_clique,
    "scaled columns": scaled_columns,
    "offsets": offsets,
    "one column": one_column,
}


def graph_and_features(name: str) -> tuple[Graph, Any]:
    made = MADE | held_out.GRAPHS
    if name in made:
        graph, x = made[name]()
        return graph, np.asarray(x, dtype=np.float32)
    real = load(name)
    return real.graph, sp.csr_array(real.x[:, :COLUMNS]) if hasattr(real.x, "tocsr") else real.x[:, :COLUMNS]


# -------------------------------------------------------------------------------------------------------------- the truth


@dataclass(frozen=True)
class Truth:
    """P = f(S) X in float64."""

    values: Doubles
    sizes: Doubles
    """Norms of the columns, [f]"""
    rest: Doubles
    """And without the stationary part and isolated nodes; 0 for columns that have nothing else."""

    def errors(self, embedding: Any) -> Doubles:
        lost = np.linalg.norm(np.asarray(embedding, dtype=float) - self.values, axis=0)
        lost = np.maximum(lost - 2.0**-22 * self.sizes, 0.0)
        return np.where(self.rest > 0, lost / np.where(self.rest > 0, self.rest, 1.0), np.where(lost > 0, np.inf, 0.0))


def truths(graph: Graph, x: Any, r: float, schemes: dict[str, Scheme]) -> Iterator[tuple[str, Truth]]:
    """Of several schemes; those with the same skip connection share the Chebyshev polynomials of S."""
    x = np.asarray(x.toarray() if hasattr(x, "toarray") else x, dtype=float)
    for skip in dict.fromkeys(scheme.skip for scheme in schemes.values()):
        names = [name for name, scheme in schemes.items() if scheme.skip == skip]
        low, high = INTERVALS[skip]
        terms = {name: coefficients(schemes[name], low, high) for name in names}
        values = {name: np.zeros_like(x) for name in names}
        operator = matrix(graph, r, skip) * (2 / (high - low)) - sp.eye_array(graph.num_nodes) * ((high + low) / (high - low))
        before, now = operator @ x, x
        for k in range(max(map(len, terms.values()))):
            for name in names:
                if k < len(terms[name]):
                    values[name] += terms[name][k] * now
            now, before = (operator @ now if k == 0 else 2 * (operator @ now) - before), now
        for name in names:
            yield name, measured(graph, x, r, schemes[name], values[name])


def coefficients(scheme: Scheme, low: float, high: float) -> Doubles:
    scheme, hops = resolve(scheme, None)
    f = response_of(scheme, hops)
    terms = np.polynomial.chebyshev.chebinterpolate(lambda t: f(0.5 * (high + low) + 0.5 * (high - low) * t), 400)
    return terms[: 1 + int(np.flatnonzero(np.abs(terms) > 1e-12 * np.abs(terms).max())[-1])]


def matrix(graph: Graph, r: float, skip: Any) -> Any:
    diffusion = Diffusion(graph, r)
    loop = 1 / diffusion.degree
    keep = {"diagonal": loop, "identity": np.ones_like(loop), "identity+loop": 1 + loop, "none": 0 * loop}[skip]
    return (diffusion.to_scipy(loops=False) + sp.diags_array(keep)).tocsr()


def measured(graph: Graph, x: Doubles, r: float, scheme: Scheme, values: Doubles) -> Truth:
    d, connected = Diffusion(graph, r).degree[:, None], graph.degree > 0
    settled = np.zeros(x.shape)
    square = np.square(x * d ** (0.5 - r))[connected].sum(axis=0)
    mean = np.zeros(x.shape[1])
    if scheme.skip in STATIONARY and connected.any():
        mean = (d ** (1 - r) * x)[connected].sum(axis=0) / d[connected].sum()
        found, hops = resolve(scheme, None)
        settled = d**r * mean * response_of(found, hops)(np.array(STATIONARY[scheme.skip]))
        alone = np.square((x - d**r * mean) * d ** (0.5 - r))[connected].sum(axis=0)
    else:
        alone = square
    rest = np.linalg.norm((values - settled)[connected], axis=0)
    given = np.linalg.norm((x - d**r * mean)[connected], axis=0)
    rest = np.maximum(rest, RESOLVED * largest(scheme) * given)
    return Truth(values, np.linalg.norm(values, axis=0), np.where(alone > NEGLIGIBLE * square, rest, 0.0))


def largest(scheme: Scheme) -> float:
    """The largest magnitude of f on the interval of the eigenvalues."""
    found, hops = resolve(scheme, None)
    return float(np.abs(response_of(found, hops)(np.linspace(*INTERVALS[scheme.skip], 1001))).max())


# ------------------------------------------------------------------------------------------------------------------ cases


@dataclass(frozen=True)
class Case:
    graph: str
    scheme: str
    r: float
    tolerance: float
    precision: str | None
    estimated: float
    true: float
    worst: float
    """True error of the worst column"""
    hops: float
    """Mean over tiles"""
    formats: str

    @property
    def claims(self) -> bool:
        return self.estimated <= self.tolerance and self.formats != UNPRUNED

    @property
    def ratio(self) -> float:
        return self.true / self.tolerance

    @property
    def column_ratio(self) -> float:
        return self.worst / (WORST * self.tolerance)


def run(name: str, options: argparse.Namespace) -> Iterator[Case]:
    graph, x = graph_and_features(name)
    schemes = {key: scheme for key, scheme in (SCHEMES | held_out.SCHEMES).items() if key in options.schemes}
    for r in options.norms:
        for key, truth in truths(graph, x, r, schemes):
            for tolerance in options.tolerances:
                for precision in options.precisions:
                    yield case(name, graph, x, key, r, tolerance, precision, truth)


def case(name: str, graph: Graph, x: Any, key: str, r: float, tolerance: float, precision: Any, truth: Truth) -> Case:
    """Where `propagate` refuses, because the error needs more hops than it can combine, nothing is claimed."""
    try:
        out = propagate(graph, x, (SCHEMES | held_out.SCHEMES)[key], r=r, max_error=tolerance, precision=precision, threads=1)
    except InputError:
        return Case(name, key, r, tolerance, precision, math.inf, math.inf, math.inf, math.nan, "refused")
    errors = truth.errors(out.embedding)
    active = errors[truth.rest > 0]
    true = math.sqrt(float(np.square(active).mean())) if len(active) else 0.0
    if np.isinf(errors).any():  # a zero or stationary column is not exact
        true = math.inf
    hops = float(np.mean(out.plan.hops)) if out.plan else 20.0
    formats = "+".join(dict.fromkeys(out.plan.formats)) if out.plan else UNPRUNED
    return Case(name, key, r, tolerance, precision, out.error, true, float(errors.max(initial=0.0)), hops, formats)


def summary(cases: list[Case], console: Console) -> None:
    claims = [each for each in cases if each.claims]
    table = Table("", "cases", "claims", "within", "largest ratio", "median ratio", title="true error over what was allowed")
    for what, ratio in (("root mean square of columns, ε", "ratio"), ("worst column, 3 ε", "column_ratio")):
        for precision in (*PRECISIONS, "all"):
            some = [each for each in claims if precision in ("all", each.precision)]
            ratios = np.array([getattr(each, ratio) for each in some])
            if len(ratios):
                asked = sum(precision in ("all", each.precision) for each in cases)
                shares = f"{(ratios <= 1).mean():.2%}", f"{ratios.max():.2f}", f"{np.median(ratios):.2f}"
                table.add_row(f"{what}, {precision or 'chosen'}", str(asked), str(len(some)), *shares)
    console.print(table)
    bad = sorted((each for each in claims if max(each.ratio, each.column_ratio) > 1), key=lambda each: -each.ratio)
    names = ("graph", "scheme", "r", "ε", "precision", "format", "hops", "estimated", "true", "over ε", "column over 3 ε")
    violations = Table(*names, title=f"{len(bad)} violations")
    for e in bad:
        figures = (f"{e.hops:.1f}", f"{e.estimated:.4f}", f"{e.true:.4f}", f"{e.ratio:.2f}", f"{e.column_ratio:.2f}")
        violations.add_row(e.graph, e.scheme, f"{e.r:g}", f"{e.tolerance:g}", e.precision or "chosen", e.formats, *figures)
    console.print(violations)


def words(text: str) -> list[str]:
    return text.split(",")


def numbers(text: str) -> list[float]:
    return [float(word) for word in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    real = words(REAL) if folder() is not None else []
    parser.add_argument("--held-out", action="store_true", help="the graphs and filters of held_out.py instead")
    parser.add_argument("--graphs", type=words, default=None, help="names of real graphs or of: " + ", ".join(MADE))
    parser.add_argument("--schemes", type=words, default=None, help="of: " + ", ".join(SCHEMES))
    parser.add_argument("--norms", type=numbers, default=list(NORMS), help="r of the diffusion")
    parser.add_argument("--tolerances", type=numbers, default=list(TOLERANCES))
    parser.add_argument(
        "--precisions", type=lambda text: [None if word == "chosen" else word for word in words(text)], default=list(PRECISIONS)
    )
    parser.add_argument("--json", default=None, help="also write the cases to this file")
    small = dict(graphs=["hub", "one column"], schemes=["APPNP", "heat 5"], norms=[0.5], tolerances=[0.05], precisions=[None])
    options = arguments(parser, **small)
    options.graphs = options.graphs or ([*held_out.GRAPHS] if options.held_out else [*real, *MADE])
    options.schemes = options.schemes or ([*held_out.SCHEMES] if options.held_out else [*SCHEMES])
    cases: list[Case] = []
    for name in options.graphs:
        cases += run(name, options)
    summary(cases, Console(width=150))
    if options.json:
        with open(options.json, "w") as file:  # noqa: PTH123
            json.dump([vars(each) for each in cases], file)


if __name__ == "__main__":
    main()
