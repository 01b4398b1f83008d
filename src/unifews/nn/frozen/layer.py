"""What a program knows of a layer that runs by its own code, without importing what that code needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Layer(ABC):
    """A function of some values and the graph, on all nodes at once."""

    path: str
    kind: str
    width: int
    """Columns of what it gives."""
    weights: tuple[int, int]
    """Weights that are left, and entries of the matrices they are in."""
    weighted: bool
    """Whether it is given edge weights."""

    @abstractmethod
    def run(self, values: Sequence[Tensor], edge_index: Tensor, edge_weight: Tensor | None) -> Tensor:
        """[n, width]."""

    def __repr__(self) -> str:
        return f"{self.kind} at {self.path}"
