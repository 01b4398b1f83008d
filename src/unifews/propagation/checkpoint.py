"""Checkpoints of a group of columns on disk, from which another process can resume (docs/adr/0019)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.trace import HopTrace
from unifews.kernels import aligned
from unifews.propagation import local
from unifews.propagation.budget import Budget, Target
from unifews.propagation.engines import BlockEngine, CarriedRows, Engine, take
from unifews.propagation.operator import HopOperator
from unifews.propagation.tiles import Allocate, Shape, Tile
from unifews.propagation.view import View
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

    # As a `local.Keeper` of pruned hops:

    def resume(self, engine: Engine, budget: Budget, sample: local.Sample | None) -> list[HopTrace]:
        assert isinstance(engine, BlockEngine)
        kept = self.load(engine.arrays())
        if kept is None:
            return []
        engine.resume(kept["engine"])
        if isinstance(budget, Target):
            budget.resume(kept["budget"])
        if sample and kept["alive"] is not None:
            shape, packed = kept["alive"]
            flat = np.unpackbits(np.frombuffer(bytes.fromhex(packed), dtype=np.uint8), count=math.prod(shape))
            sample.alive = flat.reshape(shape).astype(bool)
        return list(kept["hops"])

    def keep(self, engine: Engine, budget: Budget, sample: local.Sample | None, hops: list[HopTrace]) -> None:
        assert isinstance(engine, BlockEngine)
        if len(hops) == engine.op.hops:
            return
        alive = None
        if sample and sample.alive is not None:
            alive = [list(sample.alive.shape), np.packbits(sample.alive).tobytes().hex()]
        self.save(engine.arrays(), hops, {"engine": engine.facts(), "budget": budget_state(budget), "alive": alive})

    # And of any:

    def load(self, arrays: list[NDArray[Any]]) -> dict[str, Any] | None:
        """Read the arrays in place; what else was kept."""
        kept = self.work.get("state")
        if kept is None or kept["column"] != self.shape.column:
            return None
        state_files.load(self._file(kept["slot"]), arrays, kept["crc"])
        return {**kept, "hops": [HopTrace(**hop) for hop in kept["hops"]]}

    def save(self, arrays: list[NDArray[Any]], hops: list[HopTrace], facts: dict[str, Any]) -> None:
        """Keep the state, if it is due."""
        if not self.is_due:
            return
        began = perf_counter()
        before = self.work.get("state")
        slot = 1 - before["slot"] if before else 0
        crc = state_files.save(self._file(slot), arrays)
        state = {"column": self.shape.column, "slot": slot, "hops": [plain(hop) for hop in hops], "crc": crc, **facts}
        self.work.record(state=state)
        self.since = perf_counter()
        self.cost = self.since - began

    def _file(self, slot: int) -> Path:
        return self.work.folder / f"state-{slot}"

    @staticmethod
    def clear(work: Journal) -> None:
        for file in work.folder.glob("state-*"):
            file.unlink()


def whole(
    op: HopOperator,
    view: View,
    shape: Shape,
    state: Checkpoint,
    report: Callable[[int], None],
    *,
    allocate: Allocate = aligned,
    before: Callable[[Tile, int], None] = lambda tile, hop: None,
) -> local.GroupResult:
    """All hops of one group of columns, unpruned, from where they stand; `before` is called with the tile before each hop."""
    n = op.diffusion.graph.num_nodes
    tile = Tile(n, shape, accumulate=op.accumulate, lazy=False, allocate=allocate)
    local.begin(op, view, tile)
    square = np.zeros(n, dtype=np.float32) if op.grows else None
    arrays = [*tile.buffers, *([] if tile.out is None else [tile.out])]
    kept = state.load(arrays)
    hops, growth = (kept["hops"], kept["growth"]) if kept else ([], 0)
    for hop in range(len(hops), op.hops):
        began = perf_counter()
        before(tile, hop)
        growth += local.whole_hop(op, tile, hop, square)
        hops.append(local.whole_trace(op, view, hop, shape.width, perf_counter() - began))
        if hop + 1 < op.hops:
            state.save(arrays, hops, {"growth": growth})
        report(hop + 1)
    carried, growth = CarriedRows.beside([tile], op, view, growth)
    return local.GroupResult(take(tile, op, carried), hops, growth)


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
