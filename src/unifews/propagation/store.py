"""Where the state of a propagation lives: here in memory; `folder` has the form that another process can resume."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from unifews.core.trace import HopTrace
from unifews.kernels import aligned
from unifews.propagation.budget import Budget
from unifews.propagation.engines import Engine
from unifews.propagation.operator import HopOperator
from unifews.propagation.tiles import Floats, Shape, scaled
from unifews.theory.certificates import Certificate

Budgets = list[Budget | None]


@dataclass(frozen=True)
class GroupResult:
    """A group of columns after its hops; its coordinates are where the store has them."""

    hops: list[HopTrace]
    growth: int
    """The coordinates were divided by two to the power of this."""
    budget: dict[str, Any] | None = None
    """The state of its budget."""
    traffic: tuple[list[int], list[int]] | None = None
    """Bytes sent at each hop by all workers, and what unpruned hops send."""
    tiles: list[dict[str, Any]] | None = None
    """With `max_error`, the `TileResult` of each of its tiles, for JSON."""
    peak: float = 0.0
    """In files: the largest magnitude of the coordinates, and the checksum of the file."""
    crc: int = 0

    @classmethod
    def of(cls, engine: Engine, hops: list[HopTrace], peak: float = 0.0, crc: int = 0) -> GroupResult:
        traffic = engine.op.traffic(engine.width, engine.sent)
        return cls(hops, engine.growth, engine.facts().get("budget"), traffic, peak=peak, crc=crc)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "hops": [plain(hop) for hop in self.hops]}

    @classmethod
    def of_dict(cls, kept: dict[str, Any]) -> GroupResult:
        traffic = kept["traffic"]
        return cls(**{**kept, "hops": [HopTrace(**hop) for hop in kept["hops"]], "traffic": traffic and tuple(traffic)})


class GroupStore(Protocol):
    """The state of one group of columns."""

    def allocate(self, n: int, columns: int) -> Floats:
        """The array that the output adds up in, which is met row after row."""

    def finished(self) -> GroupResult | None:
        """What an earlier call made of the group, if it finished it."""

    def resume(self, engine: Engine) -> list[HopTrace]:
        """Bring the engine to where an earlier call left it; the hops done."""

    def checkpoint(self, engine: Engine, hops: list[HopTrace]) -> None:
        """Called after every hop."""

    def finish(self, engine: Engine, hops: list[HopTrace]) -> GroupResult:
        """Take the result of the engine."""


class StateStore(Protocol):
    """The state of all groups of columns."""

    def budgets(self, budget: Budget | None, make: Callable[[], Budgets]) -> Budgets:
        """The budgets of the groups before any hop, made once."""

    def release(self, op: HopOperator) -> None:
        """Before the hops: memory that is needed no longer."""

    def group(self, shapes: list[Shape]) -> AbstractContextManager[GroupStore]: ...


class InMemory:
    """Everything in memory; nothing is there to be resumed."""

    def __init__(self, n: int, groups: list[list[Shape]], *, pruned: bool, every_hop: bool = False) -> None:
        self.every_hop = every_hop
        # Unpruned groups are many and narrow: each goes to its place, so that all of them never stand twice.
        width = sum(shape.width for group in groups for shape in group)
        self.whole = np.empty((n, width), dtype=np.float32) if len(groups) > 1 and not pruned else None
        self.values: dict[int, tuple[Floats, int]] = {}
        self.snapshots: dict[int, list[tuple[Floats, int]]] = {}
        self._certificates: dict[int, Certificate] = {}

    def budgets(self, budget: Budget | None, make: Callable[[], Budgets]) -> Budgets:
        return make()

    def release(self, op: HopOperator) -> None:
        pass

    @contextmanager
    def group(self, shapes: list[Shape]) -> Iterator[InMemory]:
        yield self

    def allocate(self, n: int, columns: int) -> Floats:
        return aligned(n, columns)

    def finished(self) -> GroupResult | None:
        return None

    def resume(self, engine: Engine) -> list[HopTrace]:
        self.checkpoint(engine, [])
        return []

    def checkpoint(self, engine: Engine, hops: list[HopTrace]) -> None:
        """The embedding of every hop, if it is wanted."""
        if self.every_hop:
            self.snapshots.setdefault(engine.first, []).append((engine.snapshot(len(hops)), engine.growth))

    def finish(self, engine: Engine, hops: list[HopTrace]) -> GroupResult:
        self.values[engine.first] = engine.result(self.whole), engine.growth
        if engine.certificate:
            self._certificates[engine.first] = engine.certificate
        return GroupResult.of(engine, hops)

    @property
    def certificates(self) -> list[Certificate]:
        """If an error bound was wanted, that of each group."""
        return [each for _, each in sorted(self._certificates.items())]

    def joined(self) -> tuple[Floats, int]:
        """The columns of all groups side by side, and the power of two that they are divided by; called once."""
        parts, whole = self.values, self.whole
        self.values, self.whole = {}, None
        return side_by_side(parts, whole)

    def joined_hops(self) -> list[tuple[Floats, int]]:
        """The same for S^l Z, l = 0..L, without the stationary part."""
        columns, hops = list(self.snapshots), zip(*self.snapshots.values(), strict=True)
        return [side_by_side(dict(zip(columns, parts, strict=True))) for parts in hops]


def side_by_side(parts: dict[int, tuple[Floats, int]], whole: Floats | None = None) -> tuple[Floats, int]:
    """Columns of several parts, by the first of each, as one matrix over one power of two; `whole` has them already."""
    ordered = [part for _, part in sorted(parts.items(), key=lambda item: item[0])]
    if len(ordered) == 1:
        return ordered[0]
    values = [part for part, _ in ordered]
    growth = [grown for _, grown in ordered]
    if whole is None:
        whole = np.concatenate(values, axis=1)
        ends = np.cumsum([part.shape[1] for part in values])[:-1]
        values = np.split(whole, ends, axis=1)
    level(values, growth)
    return whole, max(growth)


def level(parts: Sequence[Floats], growth: Sequence[int]) -> None:
    """Parts of a matrix, each divided by its own power of two, all over the largest of them, in place."""
    for part, grown in zip(parts, growth, strict=True):
        if grown < max(growth):
            part *= np.float32(math.ldexp(1, grown - max(growth)))


def remaining(exponent: int, peak: float) -> int:
    """The power of two that a result stays divided by: 0 wherever float32 holds it whole."""
    return 0 if 2.0**-100 < scaled(peak, exponent) < 2.0**120 else exponent


def peak_of(values: Floats) -> float:
    """The largest magnitude."""
    return max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))


def plain(hop: HopTrace) -> dict[str, Any]:
    """A hop, for JSON."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in asdict(hop).items()}
