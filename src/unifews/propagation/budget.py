"""How much to prune: thresholds and the ways to choose them.

A budget gives δ once per hop and records what the hop kept. All thresholds are in message units: an entry is pruned when
``influence_l · |T[u,v]| · ‖operand‖ < δ``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

WORTHWHILE = 0.01  # share of a hop's products below which the hop is not worth its time


@dataclass(frozen=True)
class Messages:
    """A sample of the messages of one hop: enough to know their distribution, not all m of them."""

    magnitude: NDArray[np.float32]
    """Influence × message size of each sampled entry that may still be sent; float32 [k], any order."""
    width: NDArray[np.float32]
    """Features each of them covers, float32 [k]."""
    total: float
    """Features all sampled edges cover on the input axes, less exact zeros: the sample's 100 %."""

    def by_size(self) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Magnitudes in ascending order, and the share of the products in the 1, 2, .. largest."""
        if len(self.width) == 0 or self.width.min() == self.width.max():  # the usual case, and sorting alone is quick
            each = float(self.width[0]) if len(self.width) else 0.0
            return np.sort(self.magnitude), np.arange(1.0, len(self.width) + 1) * (each / max(self.total, 1e-30))
        order = np.argsort(self.magnitude)
        return self.magnitude[order], np.cumsum(self.width[order][::-1], dtype=np.float64) / max(self.total, 1e-30)


class Budget(ABC):
    needs_sample: ClassVar[bool] = False
    needs_mean: ClassVar[bool] = False

    @abstractmethod
    def threshold(self, hop: int, sample: Messages | None, mean: float, exponent: int) -> float:
        """δ for this hop, in the units of the sample and the mean; true magnitudes are 2^exponent times those."""

    def record(self, hop: int, kept: float) -> None:  # noqa: B027
        """What share of the nonzero products this hop kept."""

    def inherit(self, other: Budget) -> None:  # noqa: B027
        """Take over what the budget of another group of columns did not use, or pay for what it used too much."""

    def state(self) -> dict[str, Any]:
        """What the hops so far have changed, for JSON."""
        return {}

    def resume(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Continue from the `state` of another budget."""


@dataclass(frozen=True)
class Absolute(Budget):
    """One δ for all hops, Algorithm 1 of the paper."""

    delta: float

    def threshold(self, hop: int, sample: Messages | None, mean: float, exponent: int) -> float:
        return math.ldexp(self.delta, -exponent) if math.isfinite(self.delta) else self.delta

    def __str__(self) -> str:
        return f"threshold {self.delta:g}"


@dataclass(frozen=True)
class Relative(Budget):
    """δ_l = ratio × mean message size of hop l, the scaling of the authors' iterative layers."""

    needs_mean = True
    ratio: float

    def threshold(self, hop: int, sample: Messages | None, mean: float, exponent: int) -> float:
        return self.ratio * mean

    def __str__(self) -> str:
        return f"relative threshold {self.ratio:g}"


@dataclass
class Contraction:
    """How messages shrink from hop to hop, as far as it was seen."""

    influence: NDArray[np.float64]
    _means: list[tuple[float, int]] = field(default_factory=list, init=False)

    def see(self, sample: Messages, exponent: int) -> None:
        mean = float(np.dot(sample.magnitude, sample.width)) / max(sample.total, 1e-30)
        self._means.append((mean, exponent))

    def expected(self, hop: int) -> float:
        """Expected ratio of message sizes from one hop to the next, at most 1."""
        fade = self.influence[min(hop + 1, len(self.influence) - 1)] / max(self.influence[hop], 1e-300)
        contraction = 0.8
        if hop and self._means[hop - 1][0] > 0 and self.influence[hop - 1] > 0:
            (before, old), (now, new) = self._means[hop - 1 : hop + 1]
            seen = math.ldexp(now / before, new - old) * self.influence[hop - 1] / max(self.influence[hop], 1e-300)
            contraction = seen**0.5  # averaging shrinks messages less with every hop
        return float(np.clip(fade * contraction, 1e-3, 1.0))


@dataclass
class Target(Budget):
    """Remove a given share on average over the hops, in one run.

    The budget of kept products is shared out over the hops that are left by looking ahead: the sample gives F, the share
    kept as a function of δ; magnitudes are expected to shrink by `decay` per hop (influence times the contraction seen
    last), and thresholds to follow them with exponent ``1 - focus``. δ solves

        Σ_k F(δ · decay^(-focus·k)) = what is left of the budget,    k = 0 .. hops left - 1

    and, since this is solved anew at each hop, what was kept too much or too little is made up for by the later hops.
    A hop that would keep less than `WORTHWHILE`, and all after it, keep nothing: visiting every edge for the sake of so few
    costs more time than spending their part of the budget on earlier hops.

    ``focus=0`` keeps the same share at every hop; ``focus=1`` keeps one δ for all hops, which spends the budget on the
    early hops, where messages are largest.
    """

    needs_sample = True
    sparsity: float
    hops: int
    influence: NDArray[np.float64]
    focus: float = 0.0
    part: float = 1.0
    """Share of the columns this budget is for, where they are propagated in groups."""
    _left: float = field(init=False)
    _over: float = field(default=0.0, init=False)
    _given_up: bool = field(default=False, init=False)
    _contraction: Contraction = field(init=False)

    def __post_init__(self) -> None:
        self._contraction = Contraction(self.influence)
        self._left = (1 - self.sparsity) * self.hops

    def threshold(self, hop: int, sample: Messages | None, mean: float, exponent: int) -> float:
        assert sample is not None
        if self._given_up:
            return math.inf
        self._contraction.see(sample, exponent)
        ascending, share = sample.by_size()
        magnitude = ascending[::-1]
        kept = np.concatenate([[0.0], share])
        # δ = the value of the last entry kept, so that exactly the planned share reaches it.
        shrink, least = self._shrink(hop), self._least
        lowest, highest = 0, len(magnitude)  # number of sampled entries kept at this hop
        while lowest < highest:
            middle = (lowest + highest + 1) // 2
            delta = magnitude[middle - 1]
            planned = kept[len(magnitude) - np.searchsorted(ascending, delta * shrink, side="left")]
            if planned[planned >= least].sum() <= self._left:
                lowest = middle
            else:
                highest = middle - 1
        if lowest == len(magnitude):
            return 0.0
        if kept[lowest] < least:
            self._given_up = True
            return math.inf
        return float(magnitude[lowest - 1])

    @property
    def _least(self) -> float:
        return self.part * min(WORTHWHILE, (1 - self.sparsity) / 4)

    def _shrink(self, hop: int) -> NDArray[np.float64]:
        """Thresholds of this hop and those after it, as multiples of this hop's."""
        with np.errstate(over="ignore"):  # so far ahead nothing reaches its threshold
            return np.asarray(self._contraction.expected(hop) ** (-self.focus * np.arange(self.hops - hop)), dtype=np.float64)

    def divide(self, groups: list[Messages], fading: NDArray[np.float64]) -> list[Target]:
        """Budgets for groups of columns that are propagated one after the other, by one plan for all of them.

        `groups` are the messages of the first hop, `fading` [hops, groups] what becomes of their size by itself; thresholds
        follow the mean of all with exponent ``1 - focus``, as they do hop by hop. What the plan has no use for, because
        features that are mostly zero send little at first, is dealt out by width: later hops will have use for it.
        """
        fading = np.asarray(fading * (self.influence / max(self.influence[0], 1e-300))[:, None], dtype=np.float64)
        weight = np.array([float(np.dot(each.magnitude, each.width)) for each in groups])
        mean = fading @ (weight / max(weight.sum(), 1e-30))
        level = np.maximum(mean / max(mean[0], 1e-300), 1e-12) ** (1 - self.focus)
        order = [each.by_size() for each in groups]
        least = self._least

        def planned(delta: float) -> NDArray[np.float64]:
            """Share kept of each group at each hop [hops, groups]."""
            cuts = [
                np.searchsorted(sizes, delta * level / np.maximum(fading[:, g], 1e-300)) for g, (sizes, _) in enumerate(order)
            ]
            kept = [np.concatenate([[0.0], share])[len(share) - cut] for cut, (_, share) in zip(cuts, order, strict=True)]
            shares = np.stack(kept, axis=1)
            shares[shares.sum(axis=1) < least] = 0
            return shares

        largest = max((float(sizes[-1]) for sizes, _ in order if len(sizes)), default=0.0)
        low, high = 0.0, 2 * largest * float(fading.max() / level.min())  # keeps everything, keeps nothing
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if planned(middle).sum() > self._left else (low, middle)
        width = np.array([float(each.width.sum()) for each in groups])
        part, plan = width / max(width.sum(), 1e-30), planned(high).sum(axis=0)
        budgets = [replace(self, part=float(own)) for own in part]
        for budget, left in zip(budgets, plan + max(self._left - plan.sum(), 0.0) * part, strict=True):
            budget._left = float(left)
        return budgets

    def inherit(self, other: Budget) -> None:
        if isinstance(other, Target):
            self._left = max(self._left + other._left - other._over, 0.0)

    def record(self, hop: int, kept: float) -> None:
        self._over += max(kept - self._left, 0.0)
        self._left = max(self._left - kept, 0.0)

    def state(self) -> dict[str, Any]:
        means = [[float(mean), int(exponent)] for mean, exponent in self._contraction._means]
        return {
            "part": float(self.part),
            "left": float(self._left),
            "over": float(self._over),
            "given up": self._given_up,
            "means": means,
        }

    def resume(self, state: dict[str, Any]) -> None:
        self.part, self._left, self._over = state["part"], state["left"], state["over"]
        self._given_up = state["given up"]
        self._contraction._means = [(mean, exponent) for mean, exponent in state["means"]]

    def __str__(self) -> str:
        return f"edge sparsity {self.sparsity:g}"
