"""`save` and `load`: model folders of frozen models and of models in training."""

from __future__ import annotations

from os import PathLike
from typing import Any, TypeVar, overload

from torch import nn
from torch.optim import Optimizer

from unifews.deprecation import removed_arguments
from unifews.errors import InputError
from unifews.serving.model import FrozenModel
from unifews.serving.model_folder import TRAINING, as_path
from unifews.serving.packed_arrays import Json

T = TypeVar("T", nn.Module, Optimizer)


@removed_arguments(settled="uf.save(uf.compress(model, ...), folder) leaves removed weights out")
def save(
    model: nn.Module | FrozenModel,
    folder: str | PathLike[str],
    *,
    optimizer: Optimizer | None = None,
    record: Json | None = None,
    overwrite: bool = False,
) -> None:
    """Write a model as a folder of ``model.safetensors`` and ``config.json`` (docs/FORMAT.md), atomically.

    Args:
        model: a sparsified model, trained or not, a decoupled model or its head, or the result of `compress`.
        folder: where to write; only another model folder is ever replaced.
        optimizer: saved with the model, so that training can be resumed.
        record: metadata of its training, JSON values; ``model.record`` of a loaded model.
        overwrite: replace an existing model.

    `load` restores weights, masks, thresholds, BatchNorm statistics and the state of the schedule exactly.
    """
    if isinstance(model, FrozenModel):
        if optimizer is not None or record is not None:
            raise InputError("a frozen model has no optimizer and its own record; give only `folder` and `overwrite`.")
        model.save(folder, overwrite=overwrite)
        return
    if not isinstance(model, nn.Module):
        raise InputError(f"`model` is a {type(model).__name__}; give a sparsified torch module, or the result of uf.compress.")
    if not isinstance(optimizer, Optimizer | None):
        raise InputError(f"`optimizer` is a {type(optimizer).__name__}; give a torch optimizer, or leave it out.")
    if not isinstance(record, dict | None):
        raise InputError(f"`record` is a dictionary of JSON values; got a {type(record).__name__}.")
    from unifews.serving import checkpoint  # imports PyG, which frozen models do not need

    checkpoint.write(as_path("folder", folder), model, optimizer, record, overwrite=overwrite)


@overload
def load(folder: str | PathLike[str]) -> Any: ...


@overload
def load(folder: str | PathLike[str], into: T) -> T: ...


def load(folder: str | PathLike[str], into: nn.Module | Optimizer | None = None) -> Any:
    """The model in a folder; its content is validated before it is used, and no code in it is executed.

    Args:
        folder: written by `save`, `FrozenModel.save` or ``unifews train --save``.
        into: a model of the same class and shapes, sparsified or not, to load into, for custom classes; or an optimizer of the
            model's parameters, to load its state into.

    A frozen model is not bound to a graph: call it with one, or `bind` one and `predict` single nodes. A model in training is
    rebuilt if it was built by this library (`unifews.nn.models`, and the models of `train`), or if it is PyG's own GCN,
    GraphSAGE, GIN, GAT or EdgeCNN with plain settings; any other needs `into`.
    """
    place = as_path("folder", folder)
    if not TRAINING.describes(place):
        if into is not None:
            raise InputError(f"{folder} holds no model in training, so there is nothing to load into `into`.")
        return FrozenModel.load(place)
    if not isinstance(into, nn.Module | Optimizer | None):
        raise InputError(f"`into` is a {type(into).__name__}; give a torch module or an optimizer.")
    from unifews.serving import checkpoint

    if isinstance(into, Optimizer):
        checkpoint.read_optimizer(place, into)
        return into
    return checkpoint.read(place, into)
