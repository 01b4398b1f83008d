"""The matrix that is propagated, Z = (X - φcᵀ) V, on its way into tiles and back out of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.kernels import LANES, aligned, native
from unifews.propagation.basis import Basis
from unifews.propagation.features import FeatureMatrix, Floats
from unifews.propagation.operator import HopOperator
from unifews.propagation.tiles import Shape, Tile


@dataclass
class View:
    """X as it is, or on the axes of a basis, with or without its stationary part.

    What is known before anything is propagated is how to bring the parts back: `direction` holds the stationary part's
    coordinates, to be added in multiples of h(S)φ.
    """

    features: FeatureMatrix
    basis: Basis
    op: HopOperator
    seconds: float = field(default=0.0, init=False)
    energy: float = field(default=0.0, init=False)
    square: Floats | None = field(default=None, init=False)
    """Where `outside` will be asked for: ‖q[u]‖² of the tiles filled so far, float32 [n]."""
    sent: NDArray[np.float64] | None = field(default=None, init=False)
    """Where `sent_outside` will be asked for: ‖Σ_v A[u,v]·q[v]‖² of the tiles propagated so far, unpruned; float64 [n]."""

    def __post_init__(self) -> None:
        self.diffusion, self.threads = self.op.diffusion, self.op.threads
        self.mean = self.basis.mean
        self.phi = None if self.mean is None else self.op.phi

    @property
    def width(self) -> int:
        return self.basis.width(self.features.f)

    @property
    def is_partial(self) -> bool:
        """Whether axes are left out."""
        return self.width < self.features.f

    @property
    def direction(self) -> Floats | None:
        """The stationary part c on the axes, float32 [width]."""
        return None if self.mean is None else self._on_axes(self.mean)

    def _on_axes(self, rows: Floats) -> Floats:
        return rows if self.basis.axes is None else np.asarray(rows @ self.basis.axes, dtype=np.float32)

    def fill(self, tile: Tile, square: Floats | None = None) -> None:
        """Fill a tile's first buffer and its tables of sizes; the second buffer is scratch space of the rotation."""
        began = perf_counter()
        features, shape = self.features, tile.shape
        square = self.square if square is None else square
        columns = slice(shape.column, shape.column + shape.width)
        if self.basis.axes is not None:
            axes = self.axes(shape)
            rotated = tile.buffers[1]
            features.times_into(axes, rotated, self.threads)
            self._ingest(tile, rotated, 0, 0, square)
        elif features.sparse is not None:
            self._ingest(tile, features.columns(columns.start, columns.stop, self.threads), 0, 0, square)
        else:
            for first, last in features.chunks():
                self._ingest(tile, features.rows(first, last), first, shape.column, square)
        self.seconds += perf_counter() - began

    def axes(self, shape: Shape) -> Floats:
        """Those of a tile, with whole blocks of columns."""
        assert self.basis.axes is not None
        axes = aligned(self.features.f, shape.blocks * LANES, zero=True)
        axes[:, : shape.width] = self.basis.axes[:, shape.column : shape.column + shape.width]
        return axes

    def column(self, mix: Floats) -> Floats:
        """Z · mix, one column; float32 [n]."""
        v = mix if self.basis.axes is None else self.basis.axes @ mix
        column = self._times(np.ascontiguousarray(v[:, None], dtype=np.float32))
        return np.asarray(column if self.phi is None or self.mean is None else column - self.phi * (self.mean @ v))

    def _times(self, v: Floats) -> Floats:
        """X · v for one column [f, 1]; float32 [n]."""
        return self.features.times(v, self.threads)[:, 0]

    def sizes(self, nodes: NDArray[Any], shapes: list[Shape]) -> tuple[Floats, Floats]:
        """Block sizes of some nodes before the first hop, as tiles would hold them [k, blocks], and the features in each."""
        values: NDArray[Any] = self.some(nodes)
        source = self.op.at(self.diffusion.source, nodes)
        if self.phi is not None and self.mean is not None:
            values = values - self.op.at(self.phi, nodes)[:, None] * self.mean
        size, width = [], []
        for shape in shapes:
            part = slice(shape.column, shape.column + shape.width)
            on_axes = values[:, part] if self.basis.axes is None else values @ self.basis.axes[:, part]
            for block, columns in enumerate(shape.widths().tolist()):
                at = block * LANES
                size.append(np.linalg.norm(on_axes[:, at : at + columns], axis=1) * source)
                width.append(columns)
        return np.stack(size, axis=1), np.array(width, dtype=np.float32)

    def some(self, nodes: NDArray[Any]) -> Floats:
        """X of some nodes, as it is; float32 [k, f]."""
        return self.features.some(nodes)

    def _ingest(self, tile: Tile, rows: Floats, first: int, column: int, square: Floats | None) -> None:
        shape = tile.shape
        direction = self.direction
        if direction is not None:
            direction = direction[shape.column : shape.column + shape.width]
        self.energy += native.ingest(
            x=rows,
            row0=first,
            column0=column,
            width=shape.width,
            blocks=shape.blocks,
            source=self.diffusion.source,
            offset=self.phi if direction is not None else None,
            direction=direction,
            largest=tile.by_feature,
            q=tile.buffers[0],
            size=tile.size[0] if tile.size else None,
            top=tile.top[0] if tile.top else None,
            square=square,
            threads=self.threads,
        )

    def outside(self) -> NDArray[np.float64]:
        """source²·‖(X - φcᵀ)[u](I - VVᵀ)‖² for every node, squares as tiles hold them, rounded up; float64 [n]."""
        assert self.square is not None, "ask for the squares before tiles are filled"
        features, whole = self.features, self.features.row_squares()
        if self.phi is not None and self.mean is not None:
            phi, along = self.phi.astype(np.float64), features.times(self.mean[:, None], self.threads)[:, 0]
            whole += phi * (phi * float(np.dot(self.mean, self.mean)) - 2 * along)
        whole *= np.square(self.diffusion.source, dtype=np.float64)
        return np.maximum(whole - self.square, 0) + 4e-6 * np.abs(whole)

    def sent_outside(self) -> NDArray[np.float64]:
        """‖Σ_v A[u,v]·source[v]·D[v]‖² for D = (X - φcᵀ)(I - VVᵀ), sparse X, rounded up; float64 [n].

        The rows of the product on all axes, which sparse features make cheap, less their part on the axes.
        """
        assert self.sent is not None and self.features.sparse is not None
        x, graph = self.features.sparse, self.diffusion.graph
        whole, along = np.empty(graph.num_nodes), np.empty(graph.num_nodes)
        native.spread_squares(
            start=graph.indptr[:-1],
            end=graph.indptr[1:],
            indices=graph.indices,
            weight=graph.weight,
            x_indptr=x.indptr.astype(np.int64),
            x_indices=x.indices,
            x_data=np.ascontiguousarray(x.data, dtype=np.float32),
            width=self.features.f,
            source=self.diffusion.source,
            direction=self.mean,
            square=whole,
            along=along,
            threads=self.threads,
        )
        most = whole
        if self.mean is not None:
            part = (self.diffusion.degree - 1) ** 2 * float(np.dot(self.mean, self.mean))  # source·φ = 1
            whole, most = whole - 2 * (self.diffusion.degree - 1) * along + part, whole + part
        return np.maximum(whole - self.sent, 0) + 4e-6 * most

    def dropped_norm(self) -> float:
        """‖(X - φcᵀ)(I - VVᵀ)‖_F, from ‖X - φcᵀ‖² - ‖Z‖²."""
        if not self.is_partial:
            return 0.0
        whole = self.features.square_norm()
        if self.phi is not None and self.mean is not None:
            whole -= float(np.dot(self.phi, self.phi)) * float(np.dot(self.mean, self.mean))
        return float(np.sqrt(max(whole - self.energy, 0.0)))
