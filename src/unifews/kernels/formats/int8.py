"""Rows of 8-bit integers with one step per block of 16 values.

A step is the smallest number of three significant bits (1, 1.25, 1.5 or 1.75 times a power of two) that is at least 1/127 of
the block's largest magnitude, from 2^-44 to 1.75·2^19; the byte e stands for the float32 with the bits (332 + e) << 21. Values
are rounded to whole steps, ties to even, and end at ±127 steps. It is the entry rule carried down to bits: what is smaller than
half a step is removed. Steps that are powers of two would round 1.3 times as much.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unifews.kernels import aligned
from unifews.kernels.formats.base import Bytes, Floats, RowFormat, StoredRows

_SHIFT, _LEAST = 21, (127 - 44) << 2


def _step(e: NDArray[Any]) -> Floats:
    """The step that the byte e stands for."""
    return (e.astype(np.uint32) + np.uint32(_LEAST) << np.uint32(_SHIFT)).view(np.float32)


class Int8(RowFormat):
    name: ClassVar[str] = "int8"
    code: ClassVar[int] = 2
    bytes_per_block: ClassVar[int] = 16
    typical: ClassVar[float] = 0.003
    rounding: ClassVar[float] = 0.5 * 1.25 / 127
    span: ClassVar[tuple[float, float]] = (2.0**-45, 127 * 1.75 * 2.0**19)

    most: ClassVar[int] = 127
    """Steps of the largest value."""

    def _bytes(self, blocks: int) -> int:
        """Of the values of a row; its steps are behind them, or apart."""
        return 16 * blocks

    def _pack(self, whole: NDArray[np.int8]) -> Bytes:
        """The bytes [n, _bytes] of steps [n, blocks, 16]."""
        return whole.reshape(len(whole), 16 * whole.shape[1]).view(np.uint8)

    def _unpack(self, rows: Bytes, blocks: int) -> NDArray[np.int8]:
        return rows.view(np.int8).reshape(len(rows), blocks, 16)

    def _is_apart(self, blocks: int) -> bool:
        """Whether steps have an array of their own: rows of 64 or 128 bytes have no room for them."""
        return self.stride(blocks) < self._bytes(blocks) + 8

    def stride(self, blocks: int) -> int:
        size = self._bytes(blocks)
        return 32 if size == 16 else size if size == 32 else -(-size // 64) * 64

    def empty(self, n: int, blocks: int) -> StoredRows:
        stored = super().empty(n, blocks)
        return StoredRows(stored.rows, aligned(n, 8, dtype=np.uint8).view(np.uint8)) if self._is_apart(blocks) else stored

    def used(self, stored: StoredRows, blocks: int) -> list[Bytes]:
        return [stored.rows[:, : self._bytes(blocks)], self._steps(stored, blocks)]

    def encode(self, values: Floats) -> StoredRows:
        n, blocks = len(values), values.shape[1] // 16
        stored = self.empty(n, blocks)
        parts = np.ascontiguousarray(values, dtype=np.float32).reshape(n, blocks, 16)
        least = np.abs(parts).max(axis=2) * (np.float32(1) / np.float32(self.most))
        e = np.clip((least.view(np.uint32).astype(np.int64) + (1 << _SHIFT) - 1 >> _SHIFT) - _LEAST, 0, 255)
        inverse = np.float32(1) / _step(e)
        whole = np.clip(np.rint(parts * inverse[:, :, None]), -self.most, self.most).astype(np.int8)
        stored.rows[:, : self._bytes(blocks)] = self._pack(whole)
        self._steps(stored, blocks)[:] = e
        return stored

    def decode(self, stored: StoredRows, blocks: int) -> Floats:
        whole = self._unpack(stored.rows[:, : self._bytes(blocks)], blocks).astype(np.float32)
        return (whole * _step(self._steps(stored, blocks))[:, :, None]).reshape(len(whole), 16 * blocks)

    def _steps(self, stored: StoredRows, blocks: int) -> Bytes:
        first = self._bytes(blocks)
        return stored.steps[:, :blocks] if self._is_apart(blocks) else stored.rows[:, first : first + blocks]
