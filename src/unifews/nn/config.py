"""How a model prunes itself, and how a budget is shared over its layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

from unifews.core.config import option, project, same_option, validate
from unifews.core.entry import Amounts, cubic_ramp
from unifews.errors import InputError

LayerEntries = Literal["edge", "unit", "block", "feature", "node"]
ENTRY_NAMES: list[str] = list(get_args(LayerEntries))
"""Values of the option `entries`; `unifews.nn.entries.entry_kind` adds those of other kinds."""
WITH_CONTROLS = ("edge", "unit", "node")
"""Kinds whose entries may be chosen at random, or the smallest, as a control."""
Share = Literal["macs", "layers"]
Choice = Literal["largest", "random", "smallest"]
Scope = Literal["auto", "graph", "target"]
Phase = Literal["regrow", "monotone", "monotone-weights", "frozen"]
_SMALL_MATRIX_EXPONENT = 0.25  # 0 would remove the same fraction of every matrix, 1 keep nearly all of small ones (ADR-0022)


Decision = dict[str, float | bool]
"""Arguments of a weight decision: ``sparsity`` or ``threshold``, ``absolute``, ``monotone``."""


@dataclass(frozen=True)
class PruningConfig:
    """The options of `sparsify`."""

    edge_sparsity: float | None = same_option(Amounts, "edge_sparsity")
    edge_threshold: float | None = same_option(Amounts, "edge_threshold")
    weight_sparsity: float | None = same_option(Amounts, "weight_sparsity")
    weight_threshold: float | None = same_option(Amounts, "weight_threshold")
    absolute: bool = option(False, "thresholds are magnitudes, not multiples of a mean", group="Pruning")
    entries: str = option(
        "unit",
        "what one decision covers: of an edge 16 features (block), one (feature), all (node); a column (unit)",
        group="Pruning",
        choices=ENTRY_NAMES,
    )
    choice: Choice = option(
        "largest",
        "which entries are kept; random and smallest ones are controls of the same cost (entries unit, node, edge)",
        group="Pruning",
    )
    scope: Scope = option("auto", "edges are compared within the graph or within each target", group="Pruning", rare=True)
    choice_seed: int = option(0, "seed of --choice random", group="Pruning", rare=True)
    budget: Share = option(
        "macs", "sparsity over all layers, wide ones pruned most (macs), or the same in every layer (layers)", group="Pruning"
    )
    inherit: bool = option(True, "entries removed at one hop or layer are removed at later ones too", group="Pruning")
    ramp: int = option(30, "training passes over which weight sparsity grows to its target", ge=1, group="Pruning")
    feedback: bool = option(True, "removed weights keep learning while they may come back", group="Pruning", rare=True)
    hysteresis: float | None = option(
        None, "a kept column is replaced only by one this many times as large", ge=1, group="Pruning", rare=True
    )
    norm_momentum: float | None = option(
        0.9,
        "least momentum of BatchNorm while training on one graph; None leaves it unchanged",
        gt=0,
        le=1,
        group="Pruning",
        rare=True,
    )
    renormalize: bool = option(
        True,
        "a column that is not sent keeps its own value, not the share of it that the self-loop has (entries unit)",
        group="Pruning",
        rare=True,
    )

    def __post_init__(self) -> None:
        validate(self)
        _ = self.amounts
        if self.entries != "edge" and self.scope != "auto":
            raise InputError(f"scope={self.scope!r} needs entries='edge'; entries is {self.entries!r}.")
        if self.choice != "largest" and self.entries not in WITH_CONTROLS:
            names = ", ".join(map(repr, WITH_CONTROLS))
            raise InputError(f"choice={self.choice!r} needs entries to be one of {names}; entries is {self.entries!r}.")
        if self.scope == "target" and self.edge_threshold is not None:
            raise InputError("a threshold compares all edges, not those of a target; give edge_sparsity, or leave scope out.")

    @cached_property
    def amounts(self) -> Amounts:
        """How much is removed; at most one number for edges and one for weights."""
        return project(Amounts, self)

    @property
    def prunes_edges(self) -> bool:
        return self.amounts.prunes_edges

    @property
    def prunes_weights(self) -> bool:
        return self.amounts.prunes_weights

    @property
    def thins(self) -> bool:
        """Whether edges are chosen before the layers run, which then compute all products of the kept ones."""
        return self.prunes_edges and self.entries == "edge"

    @property
    def in_layers(self) -> PruningConfig:
        """What is left for the layers to decide."""
        if self.entries != "edge":
            return self
        return replace(self, edge_sparsity=None, edge_threshold=None, entries="unit", choice="largest", scope="auto")

    def weights_at(self, training_pass: int, shapes: list[tuple[int, int]], monotone: bool) -> list[Decision]:
        """Arguments of the weight decisions of all matrices at this training pass, counted from 1.

        A target sparsity grows over the first `ramp` passes (`cubic_ramp`), so that a layer learns before it is pruned.
        """
        if self.weight_threshold is not None:
            decision: Decision = {"threshold": self.weight_threshold, "absolute": self.absolute, "monotone": monotone}
            return [dict(decision) for _ in shapes]
        shares = self.weight_shares(shapes, cubic_ramp(min(1.0, training_pass / self.ramp)))
        return [{"sparsity": share, "monotone": monotone} for share in shares]

    def weight_shares(self, shapes: list[tuple[int, int]], done: float = 1.0) -> list[float]:
        """Sparsity of each matrix when this part of the way to `weight_sparsity` is done."""
        sparsity = (self.weight_sparsity or 0.0) * done
        return [sparsity] * len(shapes) if self.budget == "layers" else weight_shares(shapes, sparsity)

    def __str__(self) -> str:
        amounts = str(self.amounts)
        if amounts == "unpruned":
            return amounts
        chosen = "" if self.choice == "largest" else f", {self.choice}"
        return f"{amounts} ({self.entries}{chosen})"


def water_level(widths: list[int], sparsity: float) -> list[float]:
    """Columns that each layer may propagate, so that ``Σ_l k_l = (1 - η) Σ_l w_l`` and ``k_l = min(w_l, κ)``.

    Every layer keeps up to the same number κ of columns: a wide layer is pruned most, and a narrow one, whose few columns
    carry the classes, last.

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
    """Sparsities of weight matrices [p, q], so that ``Σ_l d_l p_l q_l = (1 - η) Σ_l p_l q_l`` weights are kept.

    The density d_l = min(1, κ (1/p_l + 1/q_l)^¼) is higher for small matrices: the few weights before the classes cost next
    to nothing, and without nine tenths of them what earlier layers have learnt is lost (ADR-0022).

    >>> [round(share, 3) for share in weight_shares([(500, 512), (512, 3)], 0.9)]
    [0.901, 0.7]
    """
    sizes = [p * q for p, q in shapes]
    claims = [p * q * (1 / p + 1 / q) ** _SMALL_MATRIX_EXPONENT if p * q else 0.0 for p, q in shapes]
    left, rest, shares = (1 - sparsity) * sum(sizes), sum(claims), [0.0] * len(sizes)
    some = [i for i, size in enumerate(sizes) if size]
    for i in sorted(some, key=lambda i: sizes[i] / claims[i]):  # matrices that keep all of their weights first
        kept = min(float(sizes[i]), left * claims[i] / rest)
        shares[i] = max(0.0, round(1 - kept / sizes[i], 12))
        left, rest = left - kept, rest - claims[i]
    return shares


def whole_columns(shares: list[float]) -> list[int]:
    """The numbers of columns rounded to integers, at least one each, of the same sum."""
    counts = [max(1, int(share)) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: int(shares[i]) - shares[i])
    for i in by_remainder[: max(0, round(sum(shares)) - sum(counts))]:
        counts[i] += 1
    return counts


def nested_share(depths: Sequence[int], sparsity: float) -> list[float]:
    """Fractions (1-q)^(d+1) kept by layers that inherit, with d layers before each, of which the mean removed is `sparsity`."""
    low, high = 0.0, 1.0
    for _ in range(60):
        kept = (low + high) / 2
        removed = sum(1 - kept ** (depth + 1) for depth in depths) / len(depths)
        low, high = (kept, high) if removed > sparsity else (low, kept)
    return [high ** (depth + 1) for depth in depths]
