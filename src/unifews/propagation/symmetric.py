"""The operator of a hop in the inner product in which it is symmetric, for every r and skip connection.

Values are kept as q = D^-r x, so that one hop is (S q)[u] = keep(u)·q[u] + Σ_v A[u,v]·q[v] / d(u) whatever r is. S is symmetric
in ⟨q, q'⟩ = Σ_u d(u) q(u) q'(u).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from unifews.core.schemes import Skip, response_of
from unifews.kernels.formats import RowFormat, StoredRows
from unifews.propagation.features import FeatureMatrix
from unifews.propagation.operator import HopOperator
from unifews.propagation.spectral import Doubles, Series
from unifews.propagation.tiles import Floats

INTERVALS: dict[Skip, tuple[float, float]] = {
    "diagonal": (-1.0, 1.0),
    "none": (-1.0, 1.0),
    "identity": (0.0, 2.0),
    "identity+loop": (0.0, 2.0),
}
"""Where the eigenvalues of S are, by skip connection."""
STATIONARY: dict[Skip, float] = {"diagonal": 1.0, "identity+loop": 2.0}
"""The eigenvalue of d^r, where it is an eigenvector."""


class Files(Protocol):
    """Memory-mapped files, for arrays that are only read and written row after row."""

    def iterate(self, number: int, format: RowFormat, n: int, blocks: int) -> StoredRows | None:
        """Where s_k, by its number k, is written, and read after it was gathered; None: in memory."""

    def allocate(self, n: int, columns: int) -> Floats:
        """A new array, used until the tile is finished."""


class Buffers:
    """Memory of finished tiles for the next ones: fresh memory costs as much as a third of a hop."""

    def __init__(self) -> None:
        self._free: list[StoredRows] = []
        self._kind = ("", 0)

    def take(self, format: RowFormat, n: int, blocks: int) -> StoredRows:
        if self._kind != (format.name, blocks):
            self._free, self._kind = [], (format.name, blocks)
        return self._free.pop() if self._free else format.empty(n, blocks)

    def clear(self) -> None:
        self._free, self._kind = [], ("", 0)

    def give(self, format: RowFormat, blocks: int, stored: list[StoredRows]) -> None:
        if self._kind == (format.name, blocks):
            self._free.extend(stored)


@dataclass(frozen=True)
class SymmetricOperator:
    """S on values q = D^-r x, with the weights of the inner product in which it is symmetric, and a function of it."""

    hop: HopOperator
    series: Series
    weight: Floats
    """d(u), and 0 for isolated nodes: they have f(keep(u)) x(u) exactly and take no part."""
    own: Floats | None
    """d(u)^2r, the weights of the caller's norm, where they are others; else None."""
    stationary: float | None
    """f at the eigenvalue of the stationary vector; None: it is no eigenvector, and nothing is split off."""
    files: Files | None = None
    """Where arrays go that are only read and written row after row; None: they stay in memory."""
    buffers: Buffers = field(default_factory=Buffers, compare=False)

    @classmethod
    def of(cls, hop: HopOperator, series: Series, files: Files | None = None) -> SymmetricOperator:
        diffusion, skip = hop.diffusion, hop.scheme.skip
        connected = diffusion.graph.degree > 0
        weight = np.where(connected, diffusion.degree, 0.0)
        own = None if diffusion.r == 0.5 else np.where(connected, diffusion.degree ** (2 * diffusion.r), 0.0).astype(np.float32)
        at = STATIONARY.get(skip)
        f = response_of(hop.scheme, hop.hops)
        return cls(hop, series, weight.astype(np.float32), own, None if at is None else float(f(np.array(at))), files)

    # What workers that each have some of the rows do together (`tile_parts`); here one process has all rows.

    def reduced(self, sums: Doubles) -> Doubles:
        """Sums over rows, added up over all workers, in place."""
        return sums

    def shared(self, values: Doubles) -> Doubles:
        """The first worker's values: those of another machine may differ in the last bit."""
        return values

    def decided(self, choice: int) -> int:
        """The first worker's choice."""
        return choice

    def refresh(self, number: int, format: RowFormat, stored: StoredRows, blocks: int) -> None:
        """Before hop `number`: bring copies of other workers' rows up to date."""

    def matrix(self, values: Floats) -> FeatureMatrix:
        """Rows of a feature matrix."""
        return FeatureMatrix(values, len(values))

    def traffic(self, width: int) -> tuple[list[int], list[int]] | None:
        """Bytes sent at each hop of a tile of so many columns, and by all hops unpruned; None: there is one worker."""
        return None

    @property
    def nodes(self) -> int:
        """Of the graph, on whatever worker."""
        return self.hop.graph.num_nodes

    @cached_property
    def total(self) -> float:
        return float(self.reduced(np.array([self.weight.sum(dtype=np.float64)]))[0])

    @cached_property
    def own_total(self) -> float:
        """The same of the caller's norm."""
        return self.total if self.own is None else float(self.reduced(np.array([self.own.sum(dtype=np.float64)]))[0])

    def alike(self, error: Doubles, nodes: NDArray[np.int64]) -> Doubles:
        """The share of ‖error‖² in one vector that is not zero anywhere, for errors [nodes, columns] of a sample of the rows.

        At least what independent errors have; more where many rows have the same value, and so the same error.
        """
        weight, some = self.weight.astype(np.float64), self.weight[nodes].astype(np.float64)
        scalars = np.array([some.sum(), np.square(weight).sum()])
        sums = np.concatenate([some @ np.square(error), some @ error, np.square(some) @ np.square(error), scalars])
        *parts, (sampled, squares) = np.split(self.reduced(sums), np.cumsum([error.shape[1]] * 3))
        square, along, random = parts
        whole = sampled * square
        share = np.clip((np.square(along) - random) / np.where(whole > 0, whole, 1.0), 0.0, 1.0)
        return np.asarray(np.minimum(share + squares / self.total**2, 1.0))

    @cached_property
    def leading(self) -> float:
        """The squared norm of the stationary vector in the caller's norm, over that in the inner product."""
        return self.own_total / self.total if self.total else 1.0

    @cached_property
    def factors(self) -> tuple[Floats, Floats]:
        """Of x and of x² in Σ weight·q and Σ weight·q²."""
        source = self.hop.diffusion.source
        return self.weight * source, self.weight * source * source

    def release(self) -> None:
        """Free what the sums were computed from, 12 bytes per node; hops do not need it."""
        self.__dict__.pop("factors", None)
        self.hop.diffusion.__dict__.pop("target", None)

    @cached_property
    def target(self) -> Floats:
        """x = target · q."""
        return np.asarray(1 / self.hop.diffusion.source, dtype=np.float32)
