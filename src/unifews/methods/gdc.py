"""GDC top-k: a new graph in which every node receives from the k nodes of its largest personalised PageRank.

S = α Σ_l (1-α)^l T^l with T = D^-½ (A+I) D^-½; node u keeps the k largest entries of row u of S, and its weights are scaled to
sum to 1. S is never formed: some rows at a time are propagated from one-hot features to an allowed error, so memory is that of
a few columns, where the dense diffusion of PyG's `GDC` needs n² numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.config import option
from unifews.core.graph import Graph
from unifews.core.schemes import PersonalizedPageRank
from unifews.errors import GraphError
from unifews.methods.base import Rewirer
from unifews.methods.registry import method
from unifews.methods.selection import amount
from unifews.propagation.api import propagate
from unifews.resources import Progress

_VALUES = 1 << 26  # of the rows of S that are computed at a time: 256 MB


@method(
    "gdc-topk",
    prunes=("edges",),
    backbones=(),
    paper="Gasteiger, Weißenberger and Günnemann, Diffusion Improves Graph Learning, NeurIPS 2019",
)
@dataclass(frozen=True)
class GdcTopK(Rewirer):
    """The graph is undirected."""

    k: int | None = option(None, "nodes that each node receives from, itself included, in place of a sparsity", ge=1)
    alpha: float = option(0.15, "probability of returning to the node", gt=0, lt=1)
    max_error: float = option(0.01, "allowed relative error of a row of S", gt=0, lt=1)
    floor: float = option(1e-4, "entries below this are left out", ge=0, lt=1)

    def rewire(
        self,
        graph: Graph,
        *,
        sparsity: float | None = None,
        keep: int | None = None,
        rng: np.random.Generator,
        progress: Progress | None = None,
    ) -> Any:
        """By `k`, or by the k that gives about as many edges as `sparsity` or `keep` of the graph's own leave."""
        from scipy.sparse import csr_array

        if not graph.is_symmetric:
            raise GraphError("method 'gdc-topk' needs an undirected graph; write graph.undirected().")
        n = graph.num_nodes
        if self.k is not None and sparsity is None and keep is None:
            k = self.k
        else:
            k = 1 + round((1 - amount(graph, sparsity, keep)) * graph.num_edges / max(n, 1))  # and the node itself
        if n == 0:
            return csr_array((0, 0), dtype=np.float32)
        counts, columns, values = zip(*self._rows(graph, k, progress), strict=True)
        indptr = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
        return csr_array((np.concatenate(values), np.concatenate(columns), indptr), shape=(n, n))

    def _rows(
        self, graph: Graph, k: int, progress: Progress | None
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]]:
        """Of some rows of S at a time: how many entries each keeps, their columns, ascending, and their values."""
        from scipy.sparse import csc_array

        n = graph.num_nodes
        step = max(1, min(n, _VALUES // n))
        for first in range(0, n, step):
            rows = np.arange(first, min(first + step, n))
            place = np.arange(len(rows) + 1)
            one_hot = csc_array((np.ones(len(rows), dtype=np.float32), rows, place), shape=(n, len(rows))).tocsr()
            found = propagate(graph, one_hot, PersonalizedPageRank(self.alpha), max_error=self.max_error).embedding
            column, row = np.nonzero(found > self.floor)
            yield _largest(row, column, found[column, row], len(rows), k)
            if progress:
                progress(int(rows[-1]) + 1, n)


def _largest(
    row: NDArray[np.int64], column: NDArray[np.int64], value: NDArray[np.float32], rows: int, k: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """The k largest entries of each row, scaled to sum to 1."""
    order = np.lexsort((column, -value, row))
    starts = np.searchsorted(row[order], np.arange(rows))
    chosen = order[np.arange(len(order)) - starts[row[order]] < k]
    chosen = chosen[np.lexsort((column[chosen], row[chosen]))]
    row, column, value = row[chosen], column[chosen], value[chosen]
    total = np.bincount(row, value, rows)
    return np.bincount(row, minlength=rows), column, (value / total[row]).astype(np.float32)
