"""Rows of 4-bit integers, from -7 to 7, with the steps of `int8`: one per block of 16 values.

Two blocks share 16 bytes: byte k holds value k of the first in its lower half, and of the second in its upper half.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from unifews.kernels.formats.base import Bytes
from unifews.kernels.formats.int8 import Int8


class Int4(Int8):
    name: ClassVar[str] = "int4"
    code: ClassVar[int] = 3
    bytes_per_block: ClassVar[int] = 8
    typical: ClassVar[float] = 0.06
    rounding: ClassVar[float] = 0.5 * 1.25 / 7
    span: ClassVar[tuple[float, float]] = (2.0**-45, 7 * 1.75 * 2.0**19)
    most: ClassVar[int] = 7
    is_automatic: ClassVar[bool] = False

    def _bytes(self, blocks: int) -> int:
        return 16 * -(-blocks // 2)

    def _pack(self, whole: NDArray[np.int8]) -> Bytes:
        n, blocks, lanes = whole.shape
        pairs = np.zeros((n, -(-blocks // 2), 2, lanes), dtype=np.uint8)
        pairs.reshape(n, 2 * pairs.shape[1], lanes)[:, :blocks] = whole.view(np.uint8) & 15
        return np.asarray(pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(n, self._bytes(blocks))

    def _unpack(self, rows: Bytes, blocks: int) -> NDArray[np.int8]:
        n, count = len(rows), rows.shape[1] // 16
        pairs = rows.reshape(n, count, 1, 16)
        halves = np.concatenate([pairs << 4, pairs & 0xF0], axis=2).view(np.int8) >> 4  # with the sign of the upper bit
        return halves.reshape(n, 2 * count, 16)[:, :blocks]
