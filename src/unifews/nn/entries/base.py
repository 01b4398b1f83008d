"""The contract of entry kinds, and the list of them by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from unifews.nn.config import ENTRY_NAMES, Choice, water_level
from unifews.nn.products import Product, Selection

if TYPE_CHECKING:
    from unifews.nn.convs.base import PrunedConv
    from unifews.nn.session import Session

ENTRY_KINDS: dict[str, EntryKind] = {}
"""The kinds by the value of the option `entries`."""


class EntryKind(ABC):
    """What one decision covers, and how it is taken and stored."""

    name: ClassVar[str]
    """The value of the option `entries`."""
    by_edge: ClassVar[bool] = True
    """Whether a column may be sent along some edges and not along others. Later layers then inherit removed edges, and
    decisions are taken after the weights, as in the authors' code."""
    by_product: ClassVar[bool] = True
    """Whether a layer that computes several products stores a decision for each."""

    @abstractmethod
    def lanes(self, width: int) -> int:
        """Columns of one entry of a product of this width."""

    @abstractmethod
    def select(self, product: Product, conv: PrunedConv) -> Selection:
        """The kept entries: decided from the magnitudes and stored in `conv` if the pass decides
        (``conv.session.deciding``), otherwise by the stored decision."""

    @abstractmethod
    def frozen(self, conv: PrunedConv, call: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The stored decision of one product as settings and arrays of a step (`unifews.serving.program`)."""

    def num_columns(self, conv: PrunedConv) -> int:
        """Length of the layer's buffer `columns` before the first decision."""
        return 0

    def shares(self, session: Session) -> list[float]:
        """Columns, as a measure of multiply-adds, that each layer may keep under a target sparsity."""
        pruning, widths = session.pruning, [layer.width for layer in session.convs]
        sparsity = pruning.edge_sparsity or 0.0
        return [(1 - sparsity) * w for w in widths] if pruning.budget == "layers" else water_level(widths, sparsity)


def ranked(size: Tensor, choice: Choice, noise: Callable[[], Tensor]) -> Tensor:
    """Values whose largest are kept: the magnitudes, or of a control their negatives or a fixed random number of each entry;
    -inf for removed entries (negative magnitudes)."""
    if choice == "largest":
        return size
    return torch.where(size < 0, -torch.inf, -size if choice == "smallest" else noise())


K = TypeVar("K", bound=type[EntryKind])


def entry_kind(cls: K) -> K:
    """Register the decorated class as the kind of its name."""
    ENTRY_KINDS[cls.name] = cls()
    if cls.name not in ENTRY_NAMES:
        ENTRY_NAMES.append(cls.name)
    return cls
