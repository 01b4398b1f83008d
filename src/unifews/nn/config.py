"""What `sparsify` was asked for, and how a budget is shared over layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from unifews.core.checks import check_sparsity, check_threshold
from unifews.errors import InputError, unknown_name

LayerEntries = Literal["unit", "block", "feature", "node"]
Share = Literal["macs", "layers"]
Phase = Literal["regrow", "monotone", "monotone-weights", "frozen"]
_FAVOUR = 0.25  # of small matrices: 0 would remove the same share everywhere, 1 keep nearly all of them (docs/adr/0022)


@dataclass(frozen=True)
class Pruning:
    """The settings of `sparsify`, checked."""

    edge_sparsity: float | None = None
    edge_threshold: float | None = None
    weight_sparsity: float | None = None
    weight_threshold: float | None = None
    absolute: bool = False
    entries: LayerEntries = "unit"
    budget: Share = "macs"
    inherit: bool = True
    ramp: int = 30
    feedback: bool = True
    hysteresis: float = 4.0
    norm_momentum: float | None = 0.9

    def __post_init__(self) -> None:
        for side in ("edge", "weight"):
            sparsity, threshold = getattr(self, f"{side}_sparsity"), getattr(self, f"{side}_threshold")
            if sparsity is not None and threshold is not None:
                raise InputError(
                    f"give `{side}_sparsity` (a fraction to remove) or `{side}_threshold` (a magnitude), not both; got "
                    f"{sparsity} and {threshold}."
                )
            if sparsity is not None:
                check_sparsity(f"{side}_sparsity", sparsity)
            if threshold is not None:
                check_threshold(f"{side}_threshold", threshold)
        for name, kind in (("entries", LayerEntries), ("budget", Share)):
            if getattr(self, name) not in get_args(kind):
                raise unknown_name(f"`{name}`", getattr(self, name), get_args(kind))
        if isinstance(self.ramp, bool) or not isinstance(self.ramp, int) or self.ramp < 1:
            raise InputError(f"`ramp` is a whole number of training passes, at least 1; got {self.ramp!r}.")
        if not _is_number(self.hysteresis) or not 1 <= self.hysteresis < math.inf:
            raise InputError(
                f"`hysteresis` is a finite factor of at least 1, which decides anew in every pass; got {self.hysteresis!r}."
            )
        if self.norm_momentum is not None and (not _is_number(self.norm_momentum) or not 0 < self.norm_momentum <= 1):
            raise InputError(
                f"`norm_momentum` is above 0 and at most 1, or None to leave BatchNorm as it is; got {self.norm_momentum!r}."
            )

    @property
    def prunes_edges(self) -> bool:
        return bool(self.edge_sparsity) or bool(self.edge_threshold)

    @property
    def prunes_weights(self) -> bool:
        return bool(self.weight_sparsity) or bool(self.weight_threshold)

    def weights_at(self, training_pass: int, shapes: list[tuple[int, int]], monotone: bool) -> list[dict[str, Any]]:
        """Arguments of the weight decisions of all matrices at this training pass, counted from 1.

        With a target the share grows over the first `ramp` passes, s·(1 - (1 - t)³), so that what a layer learns first
        decides what it may forget (docs/adr/0012).
        """
        if self.weight_threshold is not None:
            how = {"threshold": self.weight_threshold, "absolute": self.absolute, "monotone": monotone}
            return [dict(how) for _ in shapes]
        done = min(1.0, training_pass / self.ramp)
        shares = self.weight_shares(shapes, 1 - (1 - done) ** 3)
        return [{"sparsity": share, "monotone": monotone} for share in shares]

    def weight_shares(self, shapes: list[tuple[int, int]], done: float = 1.0) -> list[float]:
        """What each matrix loses when this part of the way to `weight_sparsity` is done."""
        sparsity = (self.weight_sparsity or 0.0) * done
        return [sparsity] * len(shapes) if self.budget == "layers" else weight_shares(shapes, sparsity)

    def __str__(self) -> str:
        parts = []
        for side in ("edge", "weight"):
            for kind in ("sparsity", "threshold"):
                value = getattr(self, f"{side}_{kind}")
                if value:
                    parts.append(f"{side}_{kind}={value:g}")
        return ", ".join(parts) + f" ({self.entries})" if parts else "unpruned"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def water_level(widths: list[int], sparsity: float) -> list[float]:
    """Columns that each layer may propagate, so that ``Σ_l k_l = (1 - η) Σ_l w_l`` and ``k_l = min(w_l, κ)``.

    Every layer is left up to the same number κ of columns: a wide layer gives most, and a narrow one, whose few columns
    carry the classes, is touched last.

    >>> water_level([512, 7], 0.8)
    [96.8, 7.0]
    """
    total = (1 - sparsity) * sum(widths)
    left, shares = total, [0.0] * len(widths)
    for rank, i in enumerate(sorted(range(len(widths)), key=lambda i: widths[i])):
        shares[i] = round(min(float(widths[i]), left / (len(widths) - rank)), 9)
        left -= shares[i]
    return shares


def weight_shares(shapes: list[tuple[int, int]], sparsity: float) -> list[float]:
    """Shares of the weights of matrices [p, q] to remove, so that together ``Σ_l d_l p_l q_l = (1 - η) Σ_l p_l q_l`` stay.

    The density d_l = min(1, κ (1/p_l + 1/q_l)^¼) is higher where a matrix is small: the few weights before the classes cost
    next to nothing, and without nine tenths of them what the layers before have learnt does not arrive (docs/adr/0022).

    >>> [round(share, 3) for share in weight_shares([(500, 512), (512, 3)], 0.9)]
    [0.901, 0.7]
    """
    sizes = [p * q for p, q in shapes]
    claims = [p * q * (1 / p + 1 / q) ** _FAVOUR if p * q else 0.0 for p, q in shapes]
    left, rest, shares = (1 - sparsity) * sum(sizes), sum(claims), [0.0] * len(sizes)
    some = [i for i, size in enumerate(sizes) if size]
    for i in sorted(some, key=lambda i: sizes[i] / claims[i]):  # those that may keep all of theirs first
        stay = min(float(sizes[i]), left * claims[i] / rest)
        shares[i] = max(0.0, round(1 - stay / sizes[i], 12))
        left, rest = left - stay, rest - claims[i]
    return shares


def whole_columns(shares: list[float]) -> list[int]:
    """Shares as whole numbers of columns, at least one each, of the same sum."""
    counts = [max(1, int(share)) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: int(shares[i]) - shares[i])
    for i in by_remainder[: max(0, round(sum(shares)) - sum(counts))]:
        counts[i] += 1
    return counts


def nested_share(depths: Sequence[int], sparsity: float) -> list[float]:
    """Kept shares (1-q)^(d+1) of layers that inherit, d layers before each, with the mean removed over layers = sparsity."""
    low, high = 0.0, 1.0
    for _ in range(60):
        stay = (low + high) / 2
        removed = sum(1 - stay ** (depth + 1) for depth in depths) / len(depths)
        low, high = (stay, high) if removed > sparsity else (low, stay)
    return [high ** (depth + 1) for depth in depths]
