"""`save` and `load`: models as folders, frozen ones and those that still train."""

from __future__ import annotations

from os import PathLike
from typing import Any, TypeVar, overload

from torch import nn
from torch.optim import Optimizer

from unifews.errors import InputError
from unifews.serving.model import FrozenModel
from unifews.serving.model_folder import TRAINING, as_path

T = TypeVar("T", nn.Module, Optimizer)


def save(
    model: nn.Module | FrozenModel,
    folder: str | PathLike[str],
    *,
    optimizer: Optimizer | None = None,
    record: dict[str, Any] | None = None,
    settled: bool = False,
    overwrite: bool = False,
) -> None:
    """Write a model as a folder of ``model.safetensors`` and ``config.json`` (docs/FORMAT.md), complete or not at all.

    Args:
        model: a sparsified model, trained or not, the head of a decoupled one, or what `compress` gave.
        folder: its place; only another model folder is ever replaced.
        optimizer: its state goes with the model, so that training goes on as if it had not stopped.
        record: what is known of its training, plain values; of a loaded model, ``model.record``.
        settled: leave removed weights out, which makes the file smaller; one that comes back later starts from 0.
        overwrite: replace a model that is there.

    Weights, masks, thresholds, BatchNorm statistics and where the schedule stands come back with `load` as they are.
    """
    if isinstance(model, FrozenModel):
        if optimizer is not None or record is not None or settled:
            raise InputError("a frozen model has no optimizer and its own record; save it with a folder and `overwrite` only.")
        model.save(folder, overwrite=overwrite)
        return
    if not isinstance(model, nn.Module):
        raise InputError(f"`model` is a {type(model).__name__}; give a sparsified torch module, or what uf.compress gave.")
    if not isinstance(optimizer, Optimizer | None):
        raise InputError(f"`optimizer` is a {type(optimizer).__name__}; give a torch optimizer, or leave it out.")
    if not isinstance(record, dict | None):
        raise InputError(f"`record` is a dictionary of plain values; got a {type(record).__name__}.")
    from unifews.serving import checkpoint  # PyG, which a frozen model does without

    checkpoint.write(as_path("folder", folder), model, optimizer, record, settled=settled, overwrite=overwrite)


@overload
def load(folder: str | PathLike[str]) -> Any: ...


@overload
def load(folder: str | PathLike[str], into: T) -> T: ...


def load(folder: str | PathLike[str], into: nn.Module | Optimizer | None = None) -> Any:
    """The model that a folder holds; everything in it is checked before it is used, and nothing in it is run.

    Args:
        folder: of `save`, `FrozenModel.save` or ``unifews train --save``.
        into: a model of the same class and shapes, sparsified or not, that is given what was saved, for classes of your own; or
            an optimizer, made of the model's parameters, that is given its state.

    A frozen model is bound to no graph: call it with one, or `bind` one and `predict` single nodes. A model that still trains
    is rebuilt if this library built it (`unifews.nn.models`, and the models of `train`), or if it is PyG's own GCN,
    GraphSAGE, GIN, GAT or EdgeCNN with plain settings; any other is given by `into`.
    """
    place = as_path("folder", folder)
    if not TRAINING.describes(place):
        if into is not None:
            raise InputError(f"{folder} holds no model that still trains, so there is nothing to put into `into`.")
        return FrozenModel.load(place)
    if not isinstance(into, nn.Module | Optimizer | None):
        raise InputError(f"`into` is a {type(into).__name__}; give a torch module or an optimizer.")
    from unifews.serving import checkpoint

    if isinstance(into, Optimizer):
        checkpoint.read_optimizer(place, into)
        return into
    return checkpoint.read(place, into)
