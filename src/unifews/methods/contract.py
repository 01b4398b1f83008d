"""Deprecated: the contracts of version 0.1, which `unifews.methods.base` replaces. Methods written against them still run."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from unifews.deprecation import renamed_names
from unifews.methods.base import Propagator, Stage, Trainer

if TYPE_CHECKING:
    from torch import Tensor

    from unifews.methods.base import PropagationTask, TrainingTask
    from unifews.propagation.result import Propagated

Kind = TypeVar("Kind", bound=type[Any])
_RENAMED = {"Decoupled": "Propagator", "Iterative": "Trainer", "Data": "GraphTensors"}
__getattr__ = renamed_names(__name__, {old: f"unifews.methods.base.{new}" for old, new in _RENAMED.items()})


def upgraded(kind: Kind) -> Kind:
    """A class with `propagate(graph, x, ...)` or `prepare(model, data, ...)` of version 0.1, as today's contracts have them."""
    bases: list[type[Any]] = []
    members: dict[str, Any] = {}
    old = getattr(kind, "propagate", None)
    if old is not None and "graph" in inspect.signature(old).parameters:
        bases.append(Propagator)
        members |= {"propagate": _propagate(kind), "check_propagation": _accept}
    if hasattr(kind, "prepare"):
        bases.append(Trainer)
        members |= {"stages": _stages(kind), "check_training": _accept}
    if not bases:
        return kind
    message = "implements the method contract of version 0.1; see unifews.methods.base for propagate(task) and stages(task)"
    warnings.warn(f"{kind.__name__} {message}", DeprecationWarning, stacklevel=4)
    new = [base for base in bases if not issubclass(kind, base)]
    return type(kind.__name__, (kind, *new), members | {"__doc__": kind.__doc__, "__module__": kind.__module__})  # type: ignore[return-value]


def _accept(self: Any, task: Any) -> None:
    """Methods of version 0.1 check what they are given themselves."""


def _propagate(kind: type[Any]) -> Any:
    def propagate(self: Any, task: PropagationTask) -> Propagated:
        names = ("edge_sparsity", "threshold", "seed", "progress")
        wanted = {name: getattr(task, name) for name in names}
        found: Propagated = kind.propagate(self, task.graph, task.x, task.scheme, task.hops, task.r, **wanted)
        return found

    return propagate


def _stages(kind: type[Any]) -> Any:
    def stages(self: Any, task: TrainingTask) -> Iterator[Stage]:
        names = ("edge_sparsity", "weight_sparsity", "epochs", "seed")
        for stage in kind.prepare(self, task.model, task.data, **{name: getattr(task, name) for name in names}):
            yield _OldStage(stage)

    return stages


class _OldStage(Stage):
    """A stage of version 0.1, whose penalty was called `loss` and which had no `before_step`."""

    def __init__(self, stage: Any) -> None:
        super().__init__(stage.model, stage.epochs)
        self.after_step, self.after_epoch, self.counts = stage.after_step, stage.after_epoch, stage.counts  # type: ignore[method-assign]
        self.stage = stage

    def penalty(self) -> Tensor | None:
        found: Tensor | None = self.stage.loss()
        return found
