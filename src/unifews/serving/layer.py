"""What a program knows of a layer that runs by its own code, without importing what that code needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from unifews.errors import InputError, UnifewsError


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


def first_line(error: BaseException) -> str:
    """What an exception says, short enough for a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


@contextmanager
def evaluating(what: str) -> Iterator[None]:
    """An exception of a model's own code becomes one sentence that begins with `what`."""
    try:
        yield
    except (UnifewsError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"{what} cannot be evaluated on this graph ({type(error).__name__}: {first_line(error)}); check that it runs in "
            f"eval mode with this x, edge_index and edge_weight."
        ) from error
