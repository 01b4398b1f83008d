"""How a head is trained: its hyperparameters, and when weights are pruned."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from unifews.core.config import Values, option, validate
from unifews.core.entry import Amounts, cubic_ramp

_FLOAT32_LIMIT = 1e38
LINKS: Values = {"width": 256, "layers": 3, "dropout": 0.8, "epochs": 500, "patience": 50}
"""Hyperparameters of link prediction, where they differ; those of models that classify nodes: `models.hyperparameters_of`."""


@dataclass(frozen=True)
class Recipe:
    """One setting for all datasets, chosen by validation accuracy (docs/adr/0011); the paper's is `Recipe.paper()`."""

    width: int = option(512, "hidden units of a layer", ge=1, group="Training", metavar="N")
    layers: int = option(2, "layers of the classifier, or of the model", ge=1, group="Training", metavar="N")
    dropout: float = option(0.7, "dropout probability", ge=0, lt=1, group="Training", metavar="P")
    batch: int = option(512, "nodes per step, of models that propagate once", ge=2, group="Training", metavar="N")
    epochs: int = option(200, "largest number of epochs", ge=1, group="Training", metavar="N")
    patience: int = option(
        20,
        "stop after this many epochs without a better validation score, once pruned weights have recovered (0: never)",
        ge=0,
        group="Training",
        metavar="N",
    )
    lr: float = option(1e-3, "learning rate", gt=0, lt=_FLOAT32_LIMIT, group="Training", metavar="X")
    weight_decay: float = option(1e-5, "weight decay", ge=0, lt=_FLOAT32_LIMIT, group="Training", metavar="X")
    plateau: int = option(
        15, "epochs without a better validation score before the learning rate is halved", ge=1, group="Training", rare=True
    )

    @classmethod
    def paper(cls, *, layered: bool = False) -> Recipe:
        """The authors' configuration, of decoupled models unless `layered`: 200 epochs, never stopped early."""
        return cls(lr=1e-3 if layered else 1e-2, dropout=0.5, patience=0)

    def __post_init__(self) -> None:
        validate(self)

    @classmethod
    def names(cls) -> list[str]:
        return [field.name for field in fields(cls)]


@dataclass(frozen=True)
class WeightPruning:
    """How many weights are removed, and when.

    Masks are decided at the first batch of an epoch. In the first `settle` of the epochs they are decided from the dense
    weights, so that weights may come back; after that only more may be removed. A target sparsity grows over the first `ramp`
    epochs (`cubic_ramp`), and only epochs that have reached it count as results. While weights may come back, `feedback` lets
    removed ones keep learning (docs/adr/0012). The authors' schedule is ``ramp=1, feedback=False``.
    """

    sparsity: float | None = None
    threshold: float | None = None
    ramp: int = 30
    feedback: bool = True
    settle: float = 0.5

    def __post_init__(self) -> None:
        Amounts(weight_sparsity=self.sparsity, weight_threshold=self.threshold)

    def within(self, weights: int, unpruned: int) -> WeightPruning:
        """The same target as a fraction of a head with this many weights, where it was meant of `unpruned` ones.

        A head on fewer components than the input has features is smaller already; only weights above the budget are removed.
        A threshold is no fraction and is unchanged.
        """
        if not self.sparsity:
            return self
        share = round(1 - (1 - self.sparsity) * unpruned / weights, 12)  # 1 - .1·10 is not 0 in floating point
        return replace(self, sparsity=max(0.0, share))

    @property
    def active(self) -> bool:
        return bool(self.sparsity) or bool(self.threshold)

    def at(self, epoch: int, epochs: int) -> dict[str, float | bool]:
        """Arguments of `PrunedLinear.decide` for this epoch, counted from 0."""
        monotone = self.settles(epoch, epochs)
        if self.threshold is not None:
            return {"threshold": self.threshold, "monotone": monotone}
        share = 1.0 if self.reached(epoch, epochs) else cubic_ramp((epoch + 1) / self.ramp_within(epochs))
        return {"sparsity": share * (self.sparsity or 0.0), "monotone": monotone}

    def reached(self, epoch: int, epochs: int) -> bool:
        """Whether the weights of this epoch have the target sparsity."""
        return not self.sparsity or epoch + 1 >= self.ramp_within(epochs)

    def settles(self, epoch: int, epochs: int) -> bool:
        """Whether what is removed in this epoch stays removed."""
        return epoch >= self.settle * epochs

    def ramp_within(self, epochs: int) -> int:
        """Epochs until the target is reached: half of a short training at most."""
        return max(1, min(self.ramp, epochs // 2))
