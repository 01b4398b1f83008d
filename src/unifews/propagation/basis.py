"""The axes a propagation runs on.

Propagation is linear, so ``P = h(S) X`` can be computed on rotated features and rotated back:

    X = φ cᵀ + Z Vᵀ + (what is dropped),        h(S) X ≈ (h(S) φ) cᵀ + (h(S) Z) Vᵀ

* **V, principal axes** (eigenvectors of XᵀX, largest first): the energy sits in the leading columns, most entries become
  tiny, and neighbours in a block are of like size, so deciding by the block costs little against deciding by the feature.
* **φ cᵀ, the stationary part**: φ = d^r is the fixed point of every diffusion (T φ = φ), the state that propagation tends
  to. It is the same for all classes, yet it is what hubs mostly send. It is carried exactly, as one column, so only the
  departures from it are ever pruned, and a node that loses all its messages keeps the average instead of nothing.
* **Dropped axes**: for wide features only the leading `rank` axes are propagated; ``‖X - φcᵀ - Z Vᵀ‖_F`` is known exactly
  and bounds the error it causes, since ‖T‖₂ ≤ 1. What a node keeps of its own features there needs no propagation: it is part
  of the embedding (see `Remainder`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unifews.core.diffusion import Diffusion
from unifews.core.entry import BLOCK
from unifews.kernels import LANES, aligned, native
from unifews.propagation.complement import complement, complement_macs
from unifews.propagation.features import FeatureMatrix, Floats
from unifews.propagation.gram import dense_macs, eigen_macs, from_gram
from unifews.propagation.tiles import cut, edges_of, full_hop

GRAM_LIMIT = 1024  # features up to which all axes are found, from an f × f Gram matrix
VERY_WIDE = 4096  # features from which rotating costs more than propagating, so the fewest axes are best
FEW_AXES, MANY_AXES = 80, 512  # the fewest axes kept of wider features, and the most that are searched for


@dataclass(frozen=True)
class Basis:
    """What the columns of the propagated matrix mean; the same for all of them, found once."""

    axes: Floats | None
    """V, float32 [f, k], orthonormal columns, most energetic first; None = the input's own axes."""
    mean: Floats | None
    """c, float32 [f]: the features of the stationary part; None = it is not split off."""
    macs: int = 0
    """Multiply-adds spent on finding both."""
    seconds: float = 0.0

    def width(self, features: int) -> int:
        """Columns that are propagated."""
        return features if self.axes is None else int(self.axes.shape[1])

    def arrays(self) -> list[Floats]:
        return [array for array in (self.axes, self.mean) if array is not None]


def principal(
    x: FeatureMatrix, diffusion: Diffusion, phi: Floats | None, rank: int | None, sparsity: float | None, threads: int
) -> Basis:
    """Principal axes of X - φcᵀ, with c = Xᵀφ / φᵀφ, the best fit of the stationary part.

    Unless given, the rank is: all axes, up to 1,024 features; of wider ones as many as the target `sparsity` leaves work
    for, (1-η)·f but at least 80, which meets the target by leaving axes out alone (the first 512 are principal, others fill
    up, see `complement`), and 512 without a target; beyond 4,096 features 80, because accuracy does not grow past that
    while the cost of rotating does (docs/adr/0005).
    """
    mean = None if phi is None else stationary_mean(x, phi, threads)
    sketch = _Sketch(x, diffusion, phi, mean, threads)
    wanted = rank
    if rank is None and x.f > GRAM_LIMIT:
        paid = MANY_AXES if sparsity is None else int(np.ceil(round((1 - sparsity) * x.f, 6)))
        wanted = FEW_AXES if x.f > VERY_WIDE else max(paid, FEW_AXES)
        rank = min(wanted, MANY_AXES)
    # A few axes of features that a Gram matrix could handle are still cheaper, and better, by a sketch. Dense and sparse
    # features must come to the same result, so their zeros are not looked at here.
    if rank is not None and (x.f > GRAM_LIMIT or (2 * rank <= x.f and sketch.macs(rank, x.n * x.f) < dense_macs(x))):
        axes, macs = sketch.axes(rank), sketch.macs(rank, x.nnz)
    else:
        axes, macs = from_gram(x, phi, mean, rank, threads)
    if wanted is not None and rank is not None and axes.shape[1] == rank < wanted:
        more = complement(axes, x.column_squares(), wanted - rank)
        axes, macs = np.concatenate([axes, more], axis=1), macs + x.nnz + complement_macs(x.f, rank, wanted - rank)
    return Basis(np.ascontiguousarray(axes, dtype=np.float32), mean, macs + (x.nnz if phi is not None else 0))


def stationary_mean(x: FeatureMatrix, phi: Floats, threads: int) -> Floats:
    """c = Xᵀφ / φᵀφ, float32 [f]."""
    return np.asarray(x.transposed_times(phi[:, None], threads)[:, 0] / np.float32(np.dot(phi, phi)))


class _Sketch:
    """Leading axes of wide features by a randomised range finder (Halko, Martinsson & Tropp 2011).

    What matters is the energy that survives propagation, so the axes are those of T X rather than of X: the sketch is
    diffused on the way, Ω → Xᵀ T² X Ω, at the cost of a few hops over as many columns as axes. On bag-of-words features
    that is worth twice the rank (docs/adr/0005). X stays sparse: it is only ever multiplied by thin matrices.
    """

    def __init__(self, x: FeatureMatrix, diffusion: Diffusion, phi: Floats | None, mean: Floats | None, threads: int) -> None:
        self.x, self.diffusion, self.phi, self.mean, self.threads = x, diffusion, phi, mean, threads
        self.gain = diffusion.target * diffusion.source

    def _size(self, rank: int) -> int:
        return min(self.x.f, self.x.n, rank + BLOCK)

    def macs(self, rank: int, nonzeros: int) -> int:
        x, size = self.x, self._size(rank)
        thin = size * (3 * nonzeros + 3 * self.diffusion.graph.num_edges) + (2 * x.f + x.n) * size * size
        return thin + 3 * eigen_macs(size)

    def axes(self, rank: int) -> Floats:
        x, size = self.x, self._size(rank)
        omega = np.random.default_rng(20250713).standard_normal((x.f, size), dtype=np.float32)
        span = _orthonormal(np.concatenate([self._back(part) for part in self._diffused(omega, hops=2)], axis=1))
        y = np.concatenate(list(self._diffused(span, hops=1)), axis=1)
        _, turn = np.linalg.eigh((y.T @ y).astype(np.float64))
        found: Floats = span @ turn[:, ::-1][:, :rank].astype(np.float32)
        return found

    def _diffused(self, v: Floats, hops: int) -> list[Floats]:
        """T^hops (X - φcᵀ) v, in tiles [n, width]."""
        x, diffusion, graph = self.x, self.diffusion, self.diffusion.graph
        parts = []
        for shape in cut(v.shape[1]):
            columns = shape.blocks * LANES
            thin = aligned(x.f, columns, zero=True)
            thin[:, : shape.width] = v[:, shape.column : shape.column + shape.width]
            buffers = [aligned(x.n, columns), aligned(x.n, columns)]
            x.times_into(thin, buffers[1], self.threads)
            native.ingest(
                x=buffers[1],
                row0=0,
                column0=0,
                width=columns,
                blocks=shape.blocks,
                source=diffusion.source,
                offset=self.phi,
                direction=None if self.mean is None else self.mean @ thin,
                largest=False,
                q=buffers[0],
                size=None,
                top=None,
                square=None,
                threads=self.threads,
            )
            for hop in range(hops):
                q, q_out = buffers[hop % 2], buffers[(hop + 1) % 2]
                full_hop(edges_of(graph), q, q_out, self.threads, keep=diffusion.diagonal, gain=self.gain)
            done = buffers[hops % 2]
            done /= diffusion.source[:, None]
            parts.append(done[:, : shape.width])
        return parts

    def _back(self, y: Floats) -> Floats:
        """(X - φcᵀ)ᵀ y, float32 [f, width]."""
        z = self.x.transposed_times(y, self.threads)
        if self.phi is not None and self.mean is not None:
            z -= self.mean[:, None] * (self.phi @ y)
        return z


def _orthonormal(z: Floats) -> Floats:
    """An orthonormal basis of the columns of z, through its small Gram matrix, twice for accuracy (Cholesky-QR2 style)."""
    if not z.any():
        return np.eye(len(z), 1, dtype=np.float32)
    for _ in range(2):
        energy, turn = np.linalg.eigh((z.T @ z).astype(np.float64))
        good = energy > energy[-1] * 1e-10
        z = z @ (turn[:, good] / np.sqrt(energy[good])).astype(np.float32)
    return z
