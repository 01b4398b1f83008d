"""One hop S of a scheme as a matrix for vectors: exact float64 products with S and Sᵀ, and ‖S‖₂."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unifews.core import csr
from unifews.core.diffusion import Diffusion
from unifews.core.schemes import SKIPS, Skip
from unifews.errors import unknown_name
from unifews.theory.perron import Bracket, Vector, perron, singular


@dataclass(frozen=True, eq=False)
class HopMatrix:
    """S = diag(keep) + T_off, ``(S x)[u] = keep(u)·x[u] + Σ_{v≠u} T[u,v]·x[v]`` (see `unifews.core.schemes`).

    A product takes one pass over the edges, 1/f of the work of a hop with f features.
    """

    diffusion: Diffusion
    skip: Skip = "diagonal"

    def __post_init__(self) -> None:
        if self.skip not in SKIPS:
            raise unknown_name("skip connection", self.skip, SKIPS)

    @cached_property
    def keep(self) -> Vector:
        """keep(u), float64 [n]: never pruned."""
        loop = 1 / self.diffusion.degree
        return {"diagonal": loop, "identity": 1 + 0 * loop, "identity+loop": 1 + loop, "none": 0 * loop}[self.skip]

    @cached_property
    def _rows(self) -> NDArray[np.int64]:
        return csr.targets(self.diffusion.graph.indptr)

    @cached_property
    def _ends(self) -> tuple[Vector, Vector]:
        degree, r = self.diffusion.degree, self.diffusion.r
        return degree ** (r - 1), degree**-r

    def apply(self, x: Vector) -> Vector:
        """S x, for x [n]."""
        target, source = self._ends
        return self.keep * x + target * self._gather(self._rows, self.diffusion.graph.indices, source * x)

    def transpose(self, x: Vector) -> Vector:
        """Sᵀ x, for x [n]."""
        target, source = self._ends
        return self.keep * x + source * self._gather(self.diffusion.graph.indices, self._rows, target * x)

    def _gather(self, into: NDArray[np.integer], out_of: NDArray[np.integer], x: Vector) -> Vector:
        graph = self.diffusion.graph
        values = x[out_of] if graph.weight is None else graph.weight * x[out_of]
        return np.bincount(into, weights=values, minlength=graph.num_nodes).astype(np.float64, copy=False)

    def norm(self, *, steps: int = 50, tolerance: float = 1e-3) -> Bracket:
        """‖S‖₂, with a proven upper bound.

        An undirected graph with r = ½ and a diagonal skip has ‖T‖₂ = 1 exactly, at no cost. Otherwise T is no contraction:
        an identity skip gives up to 2 - 1/d_max, and ‖T‖₂ can reach (d_max/d_min)^|r-½| ([P] writes 1 for all of them).
        """
        diffusion = self.diffusion
        symmetric = diffusion.r == 0.5 and diffusion.graph.is_symmetric
        if symmetric and self.skip == "diagonal":
            return Bracket(1.0, 1.0)
        # T d^r = d^r, so the first bound of a symmetric S is already max(keep + 1 - 1/d).
        start = diffusion.degree**diffusion.r
        if symmetric:
            return perron(self.apply, start, steps=steps, tolerance=tolerance)
        return singular(self.apply, self.transpose, start, steps=steps, tolerance=tolerance)
