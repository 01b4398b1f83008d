"""Rows of 8-bit integers with one step per block of 16 values.

The step is the power of two 2^(e - 127) with which the block's largest magnitude is between 64 and 128 steps, stored as the
byte e; values are rounded to whole steps, ties to even, and end at ±127 steps. It is the entry rule carried down to bits: what
is smaller than half a step is removed.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from unifews.kernels import aligned
from unifews.kernels.formats.base import Bytes, Floats, RowFormat, StoredRows


class Int8(RowFormat):
    name: ClassVar[str] = "int8"
    code: ClassVar[int] = 2
    bytes_per_block: ClassVar[int] = 16
    typical: ClassVar[float] = 0.004
    rounding: ClassVar[float] = 2.0**-7

    def _is_apart(self, blocks: int) -> bool:
        """Whether steps have an array of their own: rows of 64 or 128 bytes have no room for them."""
        return self.stride(blocks) < 16 * blocks + 8

    def stride(self, blocks: int) -> int:
        return 32 if blocks == 1 else super().stride(blocks)

    def empty(self, n: int, blocks: int) -> StoredRows:
        stored = super().empty(n, blocks)
        return StoredRows(stored.rows, aligned(n, 8, dtype=np.uint8).view(np.uint8)) if self._is_apart(blocks) else stored

    def used(self, stored: StoredRows, blocks: int) -> list[Bytes]:
        return [*super().used(stored, blocks), self._steps(stored, blocks)]

    def encode(self, values: Floats) -> StoredRows:
        n, blocks = len(values), values.shape[1] // 16
        stored = self.empty(n, blocks)
        parts = np.ascontiguousarray(values, dtype=np.float32).reshape(n, blocks, 16)
        most = np.abs(parts).max(axis=2)
        e = np.maximum((most.view(np.uint32) >> 23).astype(np.int32) - 6, 1)
        whole = np.clip(np.rint(np.ldexp(parts, 127 - e[:, :, None])), -127, 127).astype(np.int8)
        stored.rows[:, : 16 * blocks] = whole.reshape(n, 16 * blocks).view(np.uint8)
        self._steps(stored, blocks)[:] = e
        return stored

    def decode(self, stored: StoredRows, blocks: int) -> Floats:
        whole = stored.rows[:, : 16 * blocks].view(np.int8).reshape(len(stored.rows), blocks, 16).astype(np.float32)
        e = self._steps(stored, blocks).astype(np.int32) - 127
        return np.ldexp(whole, e[:, :, None]).reshape(len(whole), 16 * blocks).astype(np.float32)

    def _steps(self, stored: StoredRows, blocks: int) -> Bytes:
        return stored.steps[:, :blocks] if self._is_apart(blocks) else stored.rows[:, 16 * blocks : 17 * blocks]
