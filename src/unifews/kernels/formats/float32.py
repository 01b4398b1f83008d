"""Rows of float32: nothing is rounded."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from unifews.kernels.formats.base import Floats, RowFormat, StoredRows


class Float32(RowFormat):
    name: ClassVar[str] = "float32"
    code: ClassVar[int] = 0
    bytes_per_block: ClassVar[int] = 64
    typical: ClassVar[float] = 0.0
    rounding: ClassVar[float] = 0.0

    def encode(self, values: Floats) -> StoredRows:
        stored = self.empty(len(values), values.shape[1] // 16)
        stored.rows.view(np.float32)[:] = values
        return stored

    def decode(self, stored: StoredRows, blocks: int) -> Floats:
        return stored.rows.view(np.float32)[:, : 16 * blocks].copy()
