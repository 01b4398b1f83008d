"""Checkpoints of a group of columns on disk, from which another process can resume (docs/adr/0019)."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from unifews.core.trace import HopTrace
from unifews.propagation.budget import Budget, Target
from unifews.propagation.engines import Engine
from unifews.propagation.tiles import Shape
from unifews.storage import state_files
from unifews.storage.journal import Journal

_WORTH = 5.0  # seconds of hops between checkpoints, for each second that writing a checkpoint takes


class Checkpoint:
    """Where the hops of a group stand, on disk, in two files that take turns: one is whole whenever the process may die."""

    def __init__(self, work: Journal, shape: Shape, checkpoint_every_hop: bool) -> None:
        """`checkpoint_every_hop`: an interruption loses at most one hop; otherwise as often as costs little."""
        self.work, self.shape, self.checkpoint_every_hop = work, shape, checkpoint_every_hop
        self.since, self.cost = perf_counter(), 0.0

    @property
    def is_due(self) -> bool:
        return self.checkpoint_every_hop or perf_counter() - self.since >= _WORTH * self.cost

    def resume(self, engine: Engine) -> list[HopTrace]:
        kept = self.work.get("state")
        if kept is None or kept["column"] != self.shape.column:
            return []
        state_files.load(self._file(kept["slot"]), engine.arrays(), kept["crc"])
        engine.resume(kept["engine"])
        return [HopTrace(**hop) for hop in kept["hops"]]

    def save(self, engine: Engine, hops: list[HopTrace]) -> None:
        """Keep the state, if it is due."""
        if not self.is_due:
            return
        began = perf_counter()
        before = self.work.get("state")
        slot = 1 - before["slot"] if before else 0
        crc = state_files.save(self._file(slot), engine.arrays())
        facts = {"hops": [plain(hop) for hop in hops], "engine": engine.facts()}
        self.work.record(state={"column": self.shape.column, "slot": slot, "crc": crc, **facts})
        self.since = perf_counter()
        self.cost = self.since - began

    def _file(self, slot: int) -> Path:
        return self.work.folder / f"state-{slot}"

    @staticmethod
    def clear(work: Journal) -> None:
        for file in work.folder.glob("state-*"):
            file.unlink()


def resumed(budget: Target, kept: list[dict[str, Any]]) -> list[Budget | None]:
    """Budgets of groups of columns, from how far each had come."""
    again = [replace(budget) for _ in kept]
    for each, state in zip(again, kept, strict=True):
        each.resume(state)
    return [*again]


def budget_state(budget: Budget | None) -> dict[str, Any] | None:
    """How far a budget has come, for JSON."""
    return budget.state() if isinstance(budget, Target) else None


def plain(hop: HopTrace) -> dict[str, Any]:
    """A hop, for JSON."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in asdict(hop).items()}
