"""The diffusion matrix T of the paper, kept as the graph and two factors per node."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.graph import Graph
from unifews.errors import InputError


@dataclass(frozen=True, eq=False)
class Diffusion:
    """T = D^-(1-r) Ā D^-r with Ā = A + I and d(u) the row sum of Ā  (paper, section 2).

        T[u, v] = target[u] · A[u, v] · source[v]    off the diagonal
        T[u, u] = diagonal[u] = 1 / d(u)             for every r

    r = 1/2 is the symmetric normalisation, r = 0 the mean over the neighbours (rows sum to 1), r = 1 its transpose for
    an undirected graph (columns sum to 1). No m values are ever formed: a kernel multiplies the factors on the way.
    Since weights are not negative, d(u) ≥ 1 and no division fails, isolated nodes included.
    """

    graph: Graph
    r: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.r, int | float | np.number) or not 0 <= self.r <= 1:
            raise InputError(f"`r`, the exponent of the source's degree, must be in [0, 1]; got {self.r!r}. Usual is r=0.5.")

    @cached_property
    def degree(self) -> NDArray[np.float64]:
        """d(u) ≥ 1, the sum of the weights into u and of its self-loop; float64 [n]."""
        graph = self.graph
        degree = graph.degree.astype(np.float64)
        if graph.weight is not None:
            # reduceat gives the wrong sum for an empty row, so only the others take part.
            rows = graph.degree > 0
            if rows.any():
                degree[rows] = np.add.reduceat(graph.weight, graph.indptr[:-1][rows], dtype=np.float64)
        return _frozen(degree + 1)

    @cached_property
    def target(self) -> NDArray[np.float32]:
        """d(u)^-(1-r), the factor of the receiving node; float32 [n]."""
        return _frozen((self.degree ** (self.r - 1)).astype(np.float32))

    @cached_property
    def source(self) -> NDArray[np.float32]:
        """d(v)^-r, the factor of the sending node; float32 [n]."""
        return _frozen((self.degree**-self.r).astype(np.float32))

    @cached_property
    def diagonal(self) -> NDArray[np.float32]:
        """T[u, u] = 1 / d(u); float32 [n]."""
        return _frozen((1 / self.degree).astype(np.float32))

    def release(self) -> None:
        """Free the degrees that the factors were computed from, 12 bytes per node; they are recomputed when needed."""
        self.__dict__.pop("degree", None)
        self.__dict__.pop("diagonal", None)

    def to_scipy(self, loops: bool = True) -> Any:
        """T as a float64 scipy CSR array, with or without its diagonal: for tests and small experiments."""
        from scipy.sparse import diags_array

        off = diags_array(self.degree ** (self.r - 1)) @ self.graph.to_scipy() @ diags_array(self.degree**-self.r)
        return (off + diags_array(1 / self.degree)).tocsr() if loops else off.tocsr()


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
