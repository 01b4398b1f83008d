"""How a head is trained: the numbers, and when weights are pruned."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from unifews.core.checks import check_sparsity, check_threshold
from unifews.errors import InputError
from unifews.training.checks import real, whole

_LARGEST = 1e38  # float32 holds no more
LINKS: dict[str, Any] = {"width": 256, "layers": 3, "dropout": 0.8, "epochs": 500, "patience": 50}
"""What predicting links is trained by, where it differs; what models that classify nodes are: `zoo.numbers_of`."""


@dataclass(frozen=True)
class Recipe:
    """One setting for all datasets, chosen by validation accuracy (docs/adr/0011); the paper's is `Recipe.paper()`."""

    width: int = 512
    layers: int = 2
    dropout: float = 0.7
    batch: int = 512
    epochs: int = 200
    patience: int = 20
    """Epochs without a better validation score before stopping, counted once pruned weights have recovered; 0 = never."""
    lr: float = 1e-3
    weight_decay: float = 1e-5
    plateau: int = 15
    """Epochs without a better validation score before the learning rate is halved."""

    @classmethod
    def paper(cls, *, layered: bool = False) -> Recipe:
        """The authors' configuration, of decoupled models unless `layered`: 200 epochs, never stopped early."""
        return cls(lr=1e-3 if layered else 1e-2, dropout=0.5, patience=0)

    def __post_init__(self) -> None:
        for name, least in (("width", 1), ("layers", 1), ("batch", 2), ("epochs", 1), ("patience", 0), ("plateau", 1)):
            object.__setattr__(self, name, whole(name, getattr(self, name), least))
        for name, most in (("dropout", 1.0), ("lr", _LARGEST), ("weight_decay", _LARGEST)):
            object.__setattr__(self, name, real(name, getattr(self, name), most))

    @classmethod
    def names(cls) -> list[str]:
        return [field.name for field in fields(cls)]


@dataclass(frozen=True)
class WeightPruning:
    """Which share of the weights goes, and when.

    Masks are decided at the first batch of an epoch. In the first `settle` of the epochs from the dense weights, so that
    weights may come back; after that only more may go. With a target the share grows over the first `ramp`
    epochs, s·(1 - (1 - t)³), and only epochs that have reached it count as results. While weights may come back, `feedback`
    lets those that were removed go on learning (docs/adr/0012). The authors' schedule is ``ramp=1, feedback=False``.
    """

    sparsity: float | None = None
    threshold: float | None = None
    ramp: int = 30
    feedback: bool = True
    settle: float = 0.5

    def __post_init__(self) -> None:
        if self.sparsity is not None and self.threshold is not None:
            raise InputError("weight_sparsity and weight_threshold are ways to say the same thing; give one of them.")
        if self.sparsity is not None:
            check_sparsity("weight_sparsity", self.sparsity)
        if self.threshold is not None:
            check_threshold("weight_threshold", self.threshold)
        if isinstance(self.ramp, bool) or not isinstance(self.ramp, int) or self.ramp < 1:
            raise InputError(f"`weight_ramp` is a whole number of epochs, at least 1; got {self.ramp!r}.")

    def within(self, weights: int, unpruned: int) -> WeightPruning:
        """The same wish as a share of a head with this many weights, where the share was meant of `unpruned` ones.

        A head on fewer axes than the input has is smaller already; only what is still above the budget goes. A threshold
        is no share and stays.
        """
        if not self.sparsity:
            return self
        share = round(1 - (1 - self.sparsity) * unpruned / weights, 12)  # 1 - .1·10 is not 0 in floating point
        return replace(self, sparsity=max(0.0, share))

    @property
    def active(self) -> bool:
        return bool(self.sparsity) or bool(self.threshold)

    def at(self, epoch: int, epochs: int) -> dict[str, Any]:
        """Arguments of `PrunedLinear.decide` for this epoch, counted from 0."""
        monotone = self.settles(epoch, epochs)
        if self.threshold is not None:
            return {"threshold": self.threshold, "monotone": monotone}
        share = 1.0 if self.reached(epoch, epochs) else 1 - (1 - (epoch + 1) / self.ramp_within(epochs)) ** 3
        return {"sparsity": share * (self.sparsity or 0.0), "monotone": monotone}

    def reached(self, epoch: int, epochs: int) -> bool:
        """Whether the weights of this epoch are as sparse as asked for."""
        return not self.sparsity or epoch + 1 >= self.ramp_within(epochs)

    def settles(self, epoch: int, epochs: int) -> bool:
        """Whether what is removed in this epoch stays removed."""
        return epoch >= self.settle * epochs

    def ramp_within(self, epochs: int) -> int:
        """Epochs until the share is reached: half of a short training at most."""
        return max(1, min(self.ramp, epochs // 2))
