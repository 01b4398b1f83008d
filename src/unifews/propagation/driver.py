"""The loop over groups of columns and hops, the same in memory, out of core and by several workers.

What differs is where the state lives (`StateStore`), and with whom it is shared (`Communicator`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import zip_longest
from time import perf_counter

from unifews.core.trace import HopTrace
from unifews.distributed.communicator import Communicator, SingleProcess
from unifews.propagation import planner
from unifews.propagation.budget import Budget
from unifews.propagation.certify import Prices
from unifews.propagation.engines import BlockEngine, Engine, FullEngine, NodeEngine
from unifews.propagation.halo import PartitionEngine, PartitionOperator
from unifews.propagation.sampling import divided
from unifews.propagation.store import GroupResult, GroupStore, InMemory, StateStore
from unifews.propagation.task import PropagationTask
from unifews.propagation.tiles import Allocate, Floats, Shape
from unifews.propagation.view import View
from unifews.resources import Progress
from unifews.theory.certificates import Certificate


@dataclass(frozen=True)
class Schedule:
    """Which columns are propagated together, and how they are pruned."""

    view: View
    groups: list[list[Shape]]
    """Tiles, the leading columns first."""
    budget: Budget | None
    """None: nothing is pruned."""
    by_columns: bool = False
    """Whether groups are distributed over workers. They are under way at the same time then, so no group takes over what
    another has left of its budget, and the result does not depend on how many workers there are."""
    prices: Prices | None = None
    """What removing costs, if an error bound is wanted."""


@dataclass(frozen=True)
class RunResult:
    """All groups of columns after their hops."""

    groups: list[GroupResult]
    hops: list[HopTrace]
    """Counts are those of all groups; thresholds those of the leading one."""


def run(
    task: PropagationTask, schedule: Schedule, store: StateStore, comm: Communicator, progress: Progress | None = None
) -> RunResult:
    """Propagate all groups of columns, each from where the store has it."""
    view, groups, hops = schedule.view, schedule.groups, schedule.view.op.hops
    split = comm if schedule.by_columns else SingleProcess()
    budgets = store.budgets(schedule.budget, lambda: divided(view.op, view, groups, schedule.budget, split))
    store.release(view.op)
    # The trailing columns go first: they need least, and the leading ones make good use of what is left over.
    order = list(range(len(groups))) if schedule.budget is None else list(range(len(groups)))[::-1]
    mine = order[split.rank :: split.size]
    done: dict[int, GroupResult] = {}
    with split.agreed():
        for turn, number in enumerate(mine):
            own = budgets[number]
            with store.group(groups[number]) as place:
                found = place.finished()
                if found is None:
                    report = _later(progress, turn * hops, len(mine) * hops)
                    found = run_hops(_engine(task, schedule, groups[number], own, place.allocate), place, report)
                elif own is not None and found.budget is not None:
                    own.resume(found.budget)
            done[number] = found
            following = budgets[mine[turn + 1]] if turn + 1 < len(mine) and not schedule.by_columns else None
            if own is not None and following is not None:
                following.inherit(own)
    return _gathered(split, done)


def run_hops(engine: Engine, place: GroupStore, report: Callable[[int], None]) -> GroupResult:
    """All hops of one group of columns."""
    hops = place.resume(engine)
    while engine.continues(len(hops)):
        began = perf_counter()
        hops.append(replace(engine.hop(len(hops)), seconds=perf_counter() - began))
        place.checkpoint(engine, hops)
        report(len(hops))
    return place.finish(engine, hops)


@dataclass(frozen=True)
class InMemoryResult:
    """All columns after their hops, in memory."""

    values: Floats
    growth: int
    """The true values are ``values · 2^growth`` (what would have outgrown float32 was scaled away)."""
    hops: list[HopTrace]
    groups: int
    """Groups of columns with thresholds of their own."""
    snapshots: list[tuple[Floats, int]]
    """S^l Z for l = 0..L, each with its own growth, if asked for; without the stationary part."""
    certificates: list[Certificate]
    """If an error bound was wanted, that of each group."""


def run_in_memory(
    task: PropagationTask,
    view: View,
    budget: Budget | None = None,
    prices: Prices | None = None,
    *,
    every_hop: bool = False,
    progress: Progress | None = None,
) -> InMemoryResult:
    """All columns of a view; without a budget, unpruned."""
    groups = planner.in_memory_groups(task, view.width, budget)
    store = InMemory(task.features.n, groups, pruned=budget is not None, every_hop=every_hop)
    outcome = run(task, Schedule(view, groups, budget, prices=prices), store, SingleProcess(), progress)
    values, growth = store.joined()
    count = 1 if budget is None else len(groups)
    return InMemoryResult(values, growth, outcome.hops, count, store.joined_hops(), store.certificates)


def _engine(
    task: PropagationTask, schedule: Schedule, shapes: list[Shape], budget: Budget | None, allocate: Allocate
) -> Engine:
    view, inherit = schedule.view, task.config.inherit
    if budget is None:
        return FullEngine(view.op, view, shapes, allocate=allocate)
    if task.config.entries == "node":
        return NodeEngine(view.op, view, shapes, budget, inherit, schedule.prices)
    kind = PartitionEngine if isinstance(view.op, PartitionOperator) else BlockEngine
    by_feature = task.config.entries == "feature"
    return kind(view.op, view, shapes, budget, inherit, schedule.prices, by_feature=by_feature, allocate=allocate)


def _later(progress: Progress | None, before: int, steps: int) -> Callable[[int], None]:
    """Progress of one group of columns, as progress of all groups."""
    return lambda done: progress(before + done, steps) if progress else None


def _gathered(split: Communicator, done: dict[int, GroupResult]) -> RunResult:
    """The groups of all workers, the leading columns first; a hop takes as long as the worker that needs most for it."""
    if split.size == 1:
        groups = [done[number] for number in sorted(done)]
        return RunResult(groups, _added([each.hops for each in groups]))
    gathered = split.all_gather({number: each.to_dict() for number, each in done.items()})
    workers = [{int(number): GroupResult.of_dict(each) for number, each in worker.items()} for worker in gathered]
    everything = {number: each for worker in workers for number, each in worker.items()}
    groups = [everything[number] for number in sorted(everything)]
    seconds = [[hop.seconds for hop in _added([each.hops for each in worker.values()])] for worker in workers]
    longest = [max(same) for same in zip_longest(*seconds, fillvalue=0.0)]
    hops = _added([each.hops for each in groups])
    return RunResult(groups, [replace(hop, seconds=most) for hop, most in zip(hops, longest, strict=True)])


def _added(groups: list[list[HopTrace]]) -> list[HopTrace]:
    """The hops of several groups of columns as those of all; a group may have fewer than others."""
    if len(groups) == 1:
        return groups[0]
    return [
        replace(
            parts[0],
            kept=sum(part.kept for part in parts),
            zeros=sum(part.zeros for part in parts),
            macs=sum(part.macs for part in parts),
            zero_macs=sum(part.zero_macs for part in parts),
            seconds=sum(part.seconds for part in parts),
        )
        for parts in ([part for part in same if part] for same in zip_longest(*groups))
    ]
