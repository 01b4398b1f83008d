"""Node-parallel propagation: every worker has some rows and the edges into them, and receives other rows before each hop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.diffusion import Diffusion
from unifews.core.trace import HopTrace
from unifews.distributed.communicator import ProcessGroup
from unifews.distributed.partition import Owners, Part, metis, ranges
from unifews.propagation import local
from unifews.propagation.assembly import Assembly, GroupRecord
from unifews.propagation.basis import Basis
from unifews.propagation.budget import Budget, Target
from unifews.propagation.checkpoint import Checkpoint, budget_state, plain, resumed
from unifews.propagation.engines import Engine, FullEngine
from unifews.propagation.halo import PartitionEngine, PartitionOperator, PartitionView
from unifews.propagation.planner import Requirements
from unifews.propagation.rows import Rows, shared_basis, write
from unifews.propagation.sampling import divided
from unifews.propagation.shared import SharedWork
from unifews.propagation.tiles import Shape, cut
from unifews.resources import Progress
from unifews.storage import state_files
from unifews.storage.journal import Journal, open_journal


def by_nodes(
    common: SharedWork, needs: Requirements, every_hop: bool, way: str | NDArray[Any], progress: Progress | None
) -> None:
    """Propagate into the working folder; the manifest then has a `summary`."""
    began, group = perf_counter(), common.group
    shapes = cut(needs.features.f, needs.grouped)
    owners = _owners(common, needs, way)
    basis = shared_basis(common, needs.task)
    needs.op.diffusion.release()
    part = Part.of(needs.op.graph, owners, group)
    with open_journal(common.folder / f"worker-{group.rank}", {"worker": group.rank}) as work, work.writing():
        run = _PartitionRun(common, work, needs, every_hop, basis, part, shapes, progress)
        done = run.all()
        rows = _rows(work, part, needs, shapes)
        write(common, Assembly(needs, basis, done), rows, local.added([each.hops for each in done]), began)


def _owners(common: SharedWork, needs: Requirements, way: str | NDArray[Any]) -> Owners:
    """Who has which nodes. METIS runs once: its result may vary."""
    group, graph = common.group, needs.op.graph
    file, owners = common.folder / "owners", None
    with group.agreed():
        if isinstance(way, np.ndarray):
            owners = Owners.given(way, graph.num_nodes, group.size)
        elif way == "nodes":
            owners = Owners(ranges(graph, group.size))
    if owners is not None:
        return owners
    crc, worker = common.get("owners"), np.empty(graph.num_nodes, dtype=np.int64)
    if crc is None:
        with group.agreed():
            if group.rank == 0:
                common.keep(owners=state_files.save(file, [metis(graph, group.size)]))
        crc = common.get("owners")
    with group.agreed():
        state_files.load(file, [worker], crc)
        return Owners.given(worker, graph.num_nodes, group.size)


class _PartitionRun:
    """The groups of columns, one after the other, the trailing ones first, by all workers at once."""

    def __init__(
        self,
        common: SharedWork,
        work: Journal,
        needs: Requirements,
        every_hop: bool,
        basis: Basis,
        part: Part,
        shapes: list[Shape],
        progress: Progress | None,
    ) -> None:
        self.group, self.work, self.needs, self.part, self.shapes = common.group, work, needs, part, shapes
        self.progress, self.every_hop = progress, every_hop
        op = needs.op
        diffusion = Diffusion(part.graph, op.diffusion.r)
        self.op = PartitionOperator(diffusion, op.scheme, op.hops, op.threads, part)
        self.view = PartitionView(needs.features, basis, self.op, part)

    def all(self) -> list[GroupRecord]:
        done, states = _agreed(self.group, self.work, [shape.column for shape in reversed(self.shapes)])
        budgets = self._budgets(done, states)
        self.op.release()
        for number, shape in enumerate(reversed(self.shapes)):
            if number < len(done):
                continue
            own = budgets[-number - 1]
            state = _Together(self.work, shape, self.every_hop, self.group, states, budgets)
            outcome, traffic = self._one(shape, own, state, number)
            outcome.values = outcome.values[: self.part.owned]
            if own is not None and number + 1 < len(self.shapes):
                following = budgets[-number - 2]
                assert following is not None
                following.inherit(own)
            crc = state_files.save(_coordinates(self.work, shape.column), [np.ascontiguousarray(outcome.values)])
            each = GroupRecord.of(outcome, crc, traffic)
            done.append(replace(each, peak=self.group.maximum(each.peak)))
            kept = {"column": shape.column, "done": done[-1].to_dict(), "budgets": [budget_state(budget) for budget in budgets]}
            self.work.record(groups=[*(self.work.get("groups") or [])[:number], kept])
            states = []
        return done[::-1]

    def _budgets(self, done: list[GroupRecord], states: list[dict[str, Any]]) -> list[Budget | None]:
        """Those of the hop, or the group, from which all workers resume; or new ones."""
        budget = self.needs.budget
        if not isinstance(budget, Target):
            return [budget] * len(self.shapes)
        kept = states[0]["budgets"] if states else self.work.get("groups")[len(done) - 1]["budgets"] if done else None
        if kept is None:
            return divided(self.op, self.view, [[shape] for shape in self.shapes], budget)
        return resumed(budget, kept)

    def _one(
        self, shape: Shape, budget: Budget | None, state: _Together, number: int
    ) -> tuple[local.GroupResult, tuple[list[int], list[int]]]:
        op, part = self.op, self.part
        report = local.later(self.progress, number * op.hops, len(self.shapes) * op.hops)
        rows = int(self.group.all_reduce(np.array([len(part.rows)]))[0])
        everything = [4 * shape.width * rows] * op.hops
        engine: Engine
        if budget is None:
            engine = FullEngine(op, self.view, [shape])
        else:
            engine = PartitionEngine(
                op, self.view, shape, budget, self.needs.task.config.inherit, by_feature=self.needs.task.by_feature
            )
        outcome = local.run(engine, False, report, state)
        return outcome, (engine.sent or everything, everything)


def _coordinates(work: Journal, column: int) -> Path:
    return work.folder / f"coordinates-{column}"


def _rows(work: Journal, part: Part, needs: Requirements, shapes: list[Shape]) -> Rows:
    """This worker's rows, with all their columns."""
    files = [_coordinates(work, shape.column) for shape in shapes]
    step = max(1, needs.features.chunks()[0][1])
    for first in range(0, part.owned, step):
        last = min(first + step, part.owned)
        yield (
            part.nodes[first:last],
            [state_files.rows(file, first, last, shape.width) for file, shape in zip(files, shapes, strict=True)],
        )


# -------------------------------------------------------------------------------------------------------- going on


class _Together(Checkpoint):
    """The state of the hops, kept by all workers after the same hops: each has the last two, so that they share one."""

    def __init__(
        self,
        work: Journal,
        shape: Shape,
        checkpoint_every_hop: bool,
        group: ProcessGroup,
        states: list[dict[str, Any]],
        budgets: list[Budget | None],
    ) -> None:
        super().__init__(work, shape, checkpoint_every_hop)
        self.group, self.states, self.budgets = group, states, budgets

    def resume(self, engine: Engine) -> list[HopTrace]:
        if not self.states:
            return []
        (kept,) = self.states
        with self.group.agreed():
            state_files.load(self._file(kept["slot"]), engine.arrays(), kept["crc"])
        engine.resume(kept["engine"])
        return [HopTrace(**hop) for hop in kept["hops"]]

    def save(self, engine: Engine, hops: list[HopTrace]) -> None:
        if not self.group.maximum(float(self.is_due)):
            return
        began = perf_counter()
        kept = self.work.get("states") or []
        slot = 1 - kept[-1]["slot"] if kept else 0
        state = {
            "column": self.shape.column,
            "slot": slot,
            "hops": [plain(hop) for hop in hops],
            "crc": state_files.save(self._file(slot), engine.arrays()),
            "budgets": [budget_state(budget) for budget in self.budgets],
            "engine": engine.facts(),
        }
        self.work.record(states=[*kept[-1:], state])
        self.since = perf_counter()
        self.cost = self.since - began


def _agreed(group: ProcessGroup, work: Journal, columns: list[int]) -> tuple[list[GroupRecord], list[dict[str, Any]]]:
    """Groups that all workers have done, and the last state within the next one that all of them have, if there is any."""
    groups, states = work.get("groups") or [], work.get("states") or []
    finished = min(group.all_gather(len(groups)))
    mine = {len(state["hops"]): state for state in states if columns[finished : finished + 1] == [state["column"]]}
    common = set.intersection(*(set(each) for each in group.all_gather(sorted(mine))))
    resumed_states = [mine[max(common)]] if common else []
    if states:
        work.record(states=resumed_states)  # the others are overwritten next and must not be resumed from
    done = [GroupRecord.of_dict(each["done"]) for each in groups[:finished]]
    with group.agreed():
        for each, column in zip(done, columns, strict=False):
            if state_files.checksum(_coordinates(work, column)) != each.crc:
                raise state_files.damaged(_coordinates(work, column))
    return done, resumed_states
