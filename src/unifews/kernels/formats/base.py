"""What a row format is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from unifews.kernels import aligned

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class StoredRows:
    """n rows of blocks of 16 values, as the kernels read them."""

    rows: Bytes
    """[n, stride]"""
    steps: Bytes
    """[n, 8], or empty: the format has none, or they are behind the blocks of each row."""

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.steps.nbytes


class RowFormat(ABC):
    """How a block of 16 float32 values is stored."""

    name: ClassVar[str]
    code: ClassVar[int]
    """`Format` in native/rows.h."""
    bytes_per_block: ClassVar[int]
    typical: ClassVar[float]
    """Share of a column that is lost, at least, where values are random; less only if most of them are zero."""
    rounding: ClassVar[float]
    """A bound on |stored - value| over the largest magnitude of the block, where that is in `span`."""
    span: ClassVar[tuple[float, float]] = (float(np.finfo(np.float32).tiny), math.inf)
    """Smaller values may be rounded to zero, larger ones are cut off."""
    is_automatic: ClassVar[bool] = True
    """Whether `max_error` chooses it; others are used where `precision` names them."""

    def stride(self, blocks: int) -> int:
        """Bytes from row to row: whole cache lines, or half of one."""
        size = blocks * self.bytes_per_block
        return size if size <= 32 else -(-size // 64) * 64

    def empty(self, n: int, blocks: int) -> StoredRows:
        rows = aligned(n, self.stride(blocks), dtype=np.uint8).view(np.uint8)
        return StoredRows(rows, np.empty(0, dtype=np.uint8))

    def used(self, stored: StoredRows, blocks: int) -> list[Bytes]:
        """The bytes that hold values, without padding: views of [n, bytes]."""
        return [stored.rows[:, : blocks * self.bytes_per_block]]

    @abstractmethod
    def encode(self, values: Floats) -> StoredRows:
        """Rows [n, blocks · 16] in this format: the oracle of the kernels."""

    @abstractmethod
    def decode(self, stored: StoredRows, blocks: int) -> Floats:
        """Back to float32 [n, blocks · 16]."""

    def rounded(self, values: Floats) -> Floats:
        """What is left of values after they are stored."""
        return self.decode(self.encode(values), values.shape[1] // 16)
