"""Unifews: an entry of a matrix product is kept when its message is large enough; edges per hop, and weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from unifews.core import csr
from unifews.core.graph import Graph
from unifews.core.schemes import Sgc
from unifews.methods.base import EdgeSelection, EdgeSelector, PropagationTask, Propagator, Stage, TrainingTask, WeightSchedule
from unifews.methods.registry import method
from unifews.methods.selection import amount, keep_best, num_kept
from unifews.propagation.api import propagate
from unifews.propagation.basis import GRAM_LIMIT, MANY_AXES, VERY_WIDE
from unifews.propagation.config import BY_ERROR
from unifews.propagation.features import FeatureMatrix
from unifews.propagation.result import Propagated

if TYPE_CHECKING:
    from torch import nn

_MIN_PER_TARGET = 2  # kept edges per target from which edges are compared within their target
_MIN_COMPONENTS = 48  # of SGC: fewer carry too little information about many classes
_INPUT_BASIS_LIMIT = 0.5  # largest sparsity that SGC reaches on the input basis without losing accuracy


@method(
    "unifews",
    prunes=("edges", "weights"),
    backbones=("appnp", "sgc", "mlp", "gcn", "gat", "sage", "gcnii", "gin"),
    paper="Liao et al., Unifews: You Need Fewer Operations for Efficient Graph Neural Networks, ICML 2025",
    once=("skip", "entries", "basis", "rank", "inherit", "head", *BY_ERROR),
    layers=(
        *("weight_ramp", "weight_feedback", "entries", "choice", "scope"),
        *("inherit", "budget", "absolute", "renormalize", "node_lock", "settle"),
    ),
    tasks=("nodes", "links"),
    thresholds=True,
    unpruned=True,
)
@dataclass(frozen=True)
class Unifews(Propagator, EdgeSelector):
    """This library's own method. Its settings are those of `propagate`, `sparsify` and `train` themselves."""

    random: ClassVar[bool] = False

    def check_propagation(self, task: PropagationTask) -> None:
        """`propagate` checks its arguments itself."""

    def check_training(self, task: TrainingTask) -> None:
        """`sparsify` checks its arguments itself."""

    def propagate(self, task: PropagationTask) -> Propagated:
        """`unifews.propagate`."""
        function, how = self.call(task)
        return function(task.graph, task.x, **how, progress=task.progress)

    def call(self, task: PropagationTask) -> tuple[Callable[..., Propagated], dict[str, Any]]:
        """`unifews.propagate` to an allowed error, or with its basis and rank chosen."""
        how = {name: getattr(task, name) for name in ("scheme", "hops", "r", "edge_sparsity", "threshold")}
        if task.options.get("max_error") is not None:
            return propagate, how | {name: task.options[name] for name in BY_ERROR if name in task.options}
        basis, rank = _basis(task)
        inherit = task.options.get("inherit", False) and bool(task.edge_sparsity or task.threshold)
        return propagate, how | {
            "entries": task.options.get("entries", "block"),
            "basis": basis,
            "rank": rank,
            "inherit": inherit,
        }

    def select(
        self, graph: Graph, *, x: Any = None, sparsity: float | None = None, keep: int | None = None, rng: np.random.Generator
    ) -> EdgeSelection:
        """Whole edges by the size of their messages, |T[u,v]| or with x [n, f] |T[u,v]|·‖x[v]‖, for `unifews.thin`.

        Where at least two edges per target are kept, they are compared within their target (docs/adr/0029).
        """
        removed, n, targets = amount(graph, sparsity, keep), graph.num_nodes, csr.targets(graph.indptr)
        weight = np.ones(graph.num_edges) if graph.weight is None else graph.weight.astype(np.float64)
        sent, received = (1 + np.bincount(nodes, weight, n) for nodes in (graph.indices, targets))
        score = weight / np.sqrt(sent[graph.indices] * received[targets])  # T of an undirected graph, and of two sets of nodes
        if x is not None:
            score *= np.sqrt(FeatureMatrix(x, n).row_squares())[graph.indices]
        several = num_kept(graph.num_edges, removed) >= _MIN_PER_TARGET * np.count_nonzero(graph.degree)
        return EdgeSelection(keep_best(graph, score, removed, rng, per_target=bool(several)))

    def stages(self, task: TrainingTask) -> Iterator[Stage]:
        """One training of a model that prunes itself."""
        from unifews.nn.sparsify import sparsify

        amounts = ("edge_sparsity", "edge_threshold", "weight_sparsity", "weight_threshold")
        settings = {name: getattr(task, name) for name in amounts}
        names = ("entries", "choice", "scope", "inherit", "budget", "absolute", "renormalize")
        settings |= {name: task.options[name] for name in names if name in task.options} | {"choice_seed": task.seed}
        schedule = task.schedule
        if schedule is None:
            yield Stage(sparsify(task.model, **settings), task.epochs)
        else:
            model = sparsify(task.model, **settings, ramp=schedule.ramp_within(task.epochs), feedback=schedule.feedback)
            yield _ScheduledStage(model, task.epochs, schedule)


class _ScheduledStage(Stage):
    """Weights are pruned by a schedule over the epochs, each of which is one step on the whole graph."""

    def __init__(self, model: nn.Module, epochs: int, schedule: WeightSchedule) -> None:
        super().__init__(model, epochs)
        self.schedule = schedule

    def before_step(self, step: int) -> None:
        """Up to a fraction `settle` of the epochs removed weights may come back, later only more are removed; edges are always
        decided from scratch, as in the authors' code (docs/adr/0023)."""
        from unifews.nn.sparsify import set_schedule

        set_schedule(self.model, "monotone-weights" if self.schedule.settles(step, self.epochs) else "regrow")

    def counts(self, epoch: int) -> bool:
        return self.schedule.reached(epoch, self.epochs)


def _basis(task: PropagationTask) -> tuple[str, int | None]:
    """The basis that is pruned in, and its rank; None leaves that to `propagate`, which keeps all of up to 1,024 components.

    SGC retains nothing of a node's own features, and what lies outside the leading components of T X vanishes over the hops. So
    it meets a sparsity by leaving components out and sends every message on the others. Where a sparsity leaves work for more
    components of wide features than are searched for, the rest of the basis would be arbitrary: a head learns better from the
    input basis, and nothing has to be found or rotated. SGC can do that only as long as most messages are kept (docs/adr/0011).
    """
    features, sparsity, wanted = task.x.shape[1], task.edge_sparsity, task.options.get("basis")
    rank: int | None = task.options.get("rank")
    if wanted in (None, "input") or rank is not None or not sparsity:
        return "input" if wanted == "input" else "principal", rank
    paid, fades = math.ceil(round((1 - sparsity) * features, 6)), task.scheme == Sgc(skip="diagonal")
    if GRAM_LIMIT < features <= VERY_WIDE:
        free = wanted == "auto" and task.options.get("head") != "coordinates" and paid > MANY_AXES
        return "input" if free and (sparsity <= _INPUT_BASIS_LIMIT or not fades) else "principal", None
    return "principal", min(features, max(_MIN_COMPONENTS, paid)) if fades and features <= GRAM_LIMIT else None
