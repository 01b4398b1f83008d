"""Weights that `sparsify` leaves as they are."""

from __future__ import annotations

from torch import nn

from unifews.nn.linear import PrunedParameter, PrunedWeight

_NAMED = 3  # of those that are listed


def unpruned_weights(model: nn.Module) -> str:
    """A sentence on the matrices of a sparsified model that have no mask; empty if there are none.

    Vectors, attention vectors of several heads and embeddings are no matrices here.
    """
    masked = [module for module in model.modules() if isinstance(module, PrunedWeight)]
    pruned = {id(_parameter(module)) for module in masked}
    left = []
    for path, module in model.named_modules():
        for name, value in module.named_parameters(recurse=False):
            is_matrix = value.ndim > 1 and min(value.shape[-2:]) > 1
            if is_matrix and id(value) not in pruned and not name.startswith("att") and not isinstance(module, nn.Embedding):
                shape = " x ".join(map(str, value.shape))
                left.append(f"{path}.{name}".lstrip(".") + f" of {_kind(module)} ({shape})")
    if left:
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        return f"weights are pruned in linear layers and RGCNConv; not pruned: {', '.join(left[:_NAMED])}{more}"
    return "" if masked else f"{_kind(model)} has no matrix of weights, so none is pruned"


def _parameter(weight: PrunedWeight) -> object:
    return getattr(weight._of[0], weight._name) if isinstance(weight, PrunedParameter) else weight.weight


def _kind(module: nn.Module) -> str:
    return getattr(module, "stands_for", type(module)).__name__
