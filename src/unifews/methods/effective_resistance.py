"""Effective resistance: edges are drawn with odds w_e·R_e, so that the Laplacian of the sample approximates that of the graph.

R_uv = (e_u - e_v)ᵀ L⁺ (e_u - e_v) is the resistance between u and v if every edge is a resistor of 1/w. With random signs
q in rows of Q [k, m] and Z = Q W^½ B L⁺, ‖Z(e_u - e_v)‖²/k estimates it (Spielman and Srivastava); each row of Z is one linear
system in L, solved by conjugate gradients. Edges that connect what nothing else connects have w·R = 1 and are kept first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unifews.core import csr
from unifews.core.config import option
from unifews.core.graph import Graph
from unifews.methods.base import EdgeSelection, EdgeSelector
from unifews.methods.registry import method
from unifews.methods.selection import amount, sampled, undirected_edges

_RESIDUAL = 1e-3  # of a linear system, relative: the estimate itself has an error of √(2/k)
_MOST_STEPS = 500


@method(
    "effective-resistance",
    prunes=("edges",),
    backbones=("gcn", "gat", "sage", "gcnii", "gin"),
    paper="Spielman and Srivastava, Graph Sparsification by Effective Resistances, SIAM Journal on Computing 2011",
)
@dataclass(frozen=True)
class EffectiveResistance(EdgeSelector):
    """Of a directed graph, the resistances are those of the graph with all reverse edges."""

    stream: ClassVar[int] = 13
    vectors: int = option(32, "random vectors of the estimate, whose relative error is √(2/vectors)", ge=1)
    factors: bool = option(True, "multiply messages by the factors that make the sample unbiased")

    def select(
        self, graph: Graph, *, x: Any = None, sparsity: float | None = None, keep: int | None = None, rng: np.random.Generator
    ) -> EdgeSelection:
        """Both directions of an edge together."""
        removed, whole = amount(graph, sparsity, keep), graph.undirected()
        group, ends = undirected_edges(graph.indices, csr.targets(graph.indptr), graph.num_nodes)
        weight = np.ones(ends.shape[1])
        if whole.weight is not None:
            place, _ = undirected_edges(whole.indices, csr.targets(whole.indptr), graph.num_nodes)
            weight[place] = whole.weight
        odds = weight * resistances(whole, ends, weight, self.vectors, rng)
        return EdgeSelection(*sampled(self.card, odds, group, removed, self.factors, rng))


def resistances(
    graph: Graph, ends: NDArray[np.int64], weight: NDArray[np.float64], vectors: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Estimated effective resistance of each edge [pairs], by its ends [2, pairs] and weight [pairs]."""
    right = np.zeros((graph.num_nodes, vectors), dtype=np.float32)
    for column in right.T:
        flow = np.sqrt(weight) * rng.choice((-1.0, 1.0), len(weight))
        column += np.bincount(ends[0], flow, graph.num_nodes) - np.bincount(ends[1], flow, graph.num_nodes)
    solution = _solve(graph, right)
    found = np.zeros(ends.shape[1])
    for column in solution.T:
        found += np.square(column[ends[0]] - column[ends[1]])
    return np.maximum(found / vectors, np.finfo(np.float32).tiny)


def _solve(graph: Graph, right: NDArray[np.float32]) -> NDArray[np.float32]:
    """L⁺ right [n, k] by conjugate gradients, every column by itself, preconditioned by degrees; L = D - A."""
    adjacency = graph.to_scipy()
    degree = np.asarray(adjacency.sum(axis=1), dtype=np.float32)[:, None]
    inverse = np.divide(1, degree, out=np.zeros_like(degree), where=degree > 0)
    solution, rest = np.zeros_like(right), right.copy()
    ahead = inverse * rest
    direction, size = ahead.copy(), _dots(rest, ahead)
    goal = _RESIDUAL**2 * size
    for _ in range(_MOST_STEPS):
        if (size <= goal).all():
            break
        image = degree * direction - adjacency @ direction
        step = _ratio(size, _dots(direction, image)) * (size > goal)
        solution += step * direction
        rest -= step * image
        ahead = inverse * rest
        size, before = _dots(rest, ahead), size
        direction = ahead + _ratio(size, before) * direction
    return solution


def _dots(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float32]:
    found: NDArray[np.float32] = np.einsum("ij,ij->j", left, right)
    return found


def _ratio(over: NDArray[np.float32], under: NDArray[np.float32]) -> NDArray[np.float32]:
    ratio: NDArray[np.float32] = np.divide(over, under, out=np.zeros_like(over), where=under > 0)
    return ratio
