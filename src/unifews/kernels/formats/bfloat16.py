"""Rows of bfloat16: the upper half of a float32, rounded to nearest, ties to even."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from unifews.kernels.formats.base import Floats, RowFormat, StoredRows


class Bfloat16(RowFormat):
    name: ClassVar[str] = "bfloat16"
    code: ClassVar[int] = 1
    bytes_per_block: ClassVar[int] = 32
    typical: ClassVar[float] = 0.001
    rounding: ClassVar[float] = 2.0**-8

    def encode(self, values: Floats) -> StoredRows:
        stored = self.empty(len(values), values.shape[1] // 16)
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        half = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        stored.rows.view(np.uint16)[:, : half.shape[1]] = half
        return stored

    def decode(self, stored: StoredRows, blocks: int) -> Floats:
        half = stored.rows.view(np.uint16)[:, : 16 * blocks].astype(np.uint32)
        return (half << 16).view(np.float32)
