"""A model of this library, or of PyG's ready ones, in the words it is built with, and from such words again.

What is made is a model without memory (torch's meta device), so that a file is believed only where its tensors fit it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from unifews.errors import InputError
from unifews.nn.decoupled import Decoupled
from unifews.nn.mlp import Mlp
from unifews.nn.models import MODELS, build, own_settings
from unifews.nn.stack import Network
from unifews.propagation import propagate
from unifews.serving.program import Unsound
from unifews.serving.pyg_models import READY, alike, ready, ready_words
from unifews.serving.schemes import is_propagation, scheme_of, scheme_words
from unifews.serving.settings import WIDEST, like, sizes


def words_of(model: nn.Module) -> dict[str, Any] | None:
    """What `rebuilt` makes this model of; None for a class of the user's own, or a model changed since it was built."""
    if isinstance(model, Network):
        words = None if model.built is None else {**model.built, "dropout": model.dropout}
    elif type(model) is Mlp:
        words = _mlp_words(model)
    elif type(model) is Decoupled:
        words = _decoupled_words(model)
    elif type(model) in READY.values():
        words = ready_words(model)
    else:
        words = None
    return words if words is not None and _is_made_of(model, words) else None


def rebuilt(words: Any, tensors: int) -> nn.Module:
    """The model on the meta device, neither trained nor sparsified; `tensors` there are for it bound how many layers it has."""
    name = words.get("model") if isinstance(words, dict) else None
    if not isinstance(name, str) or name not in (*MODELS, *READY, "mlp", "decoupled"):
        raise Unsound(f"is a {str(name)[:40]!r}, which this release does not build")
    try:
        with torch.device("meta"):
            if name == "decoupled":
                return _decoupled(words, tensors)
            if name in READY:
                return ready(words, tensors)
            return _mlp(words, tensors) if name == "mlp" else _network(name, words, tensors)
    except (InputError, TypeError, ValueError, OverflowError, ZeroDivisionError, RuntimeError) as error:
        raise Unsound(f"cannot be built as it says ({' '.join(str(error).split())[:100]})") from None


def _is_made_of(model: nn.Module, words: dict[str, Any]) -> bool:
    """Whether what these words make has the same modules and parameters."""
    try:
        other = rebuilt(words, sum(1 for _ in model.modules()))
    except Unsound:
        return False
    if type(other) in READY.values():
        return alike(model, other)
    names = {name for name, _ in other.named_modules()}
    parameters = {name: value.shape for name, value in other.named_parameters()}
    # Masks of parameters are modules that `sparsify` adds.
    return names <= {name for name, _ in model.named_modules()} and parameters == {
        name: value.shape for name, value in model.named_parameters()
    }


# ------------------------------------------------------------------------------------------------------------- networks


def _network(name: str, words: dict[str, Any], tensors: int) -> nn.Module:
    own = own_settings(name)
    if set(words) != {"model", "inputs", "outputs", "width", "layers", "dropout", *own}:
        raise Unsound(f"is a {name} with other settings than it has")
    given = {setting: like(words[setting], default, setting) for setting, default in own.items()}
    return build(name, **sizes(words, tensors), **given)


# ------------------------------------------------------------------------------------------------------------ decoupled


def _mlp_words(head: Mlp) -> dict[str, Any]:
    widths = [layer.out_features for layer in head.linears()]
    return {
        "model": "mlp",
        "inputs": len(head.mean),
        "outputs": widths[-1],
        "width": widths[0],
        "layers": len(widths),
        "dropout": head.dropout,
    }


def _mlp(words: dict[str, Any], tensors: int) -> Mlp:
    if set(words) != {"model", "inputs", "outputs", "width", "layers", "dropout"}:
        raise Unsound("is an mlp with other settings than it has")
    return Mlp(**sizes(words, tensors))


def _decoupled_words(model: Decoupled) -> dict[str, Any] | None:
    if model.by is not propagate or type(model.head) is not Mlp:
        return None
    how = model.propagation
    return {
        "model": "decoupled",
        "head": _mlp_words(model.head),
        "features": None if model.axes is None else len(model.axes),
        "propagation": None if how is None else {**how, "scheme": scheme_words(how["scheme"])},
        "exponent": int(model.exponent),
    }


def _decoupled(words: dict[str, Any], tensors: int) -> Decoupled:
    how, features, exponent = words.get("propagation"), words.get("features"), words.get("exponent")
    if set(words) != {"model", "head", "features", "propagation", "exponent"} or not isinstance(words["head"], dict):
        raise Unsound("is a decoupled model without a head, a propagation or an exponent")
    if how is not None and not is_propagation(how):
        raise Unsound("propagates by something that is no propagation")
    if type(exponent) is not int or abs(exponent) >= 2**31:
        raise Unsound(f"cannot have exponent = {str(exponent)[:40]!r}")
    if features is not None and (type(features) is not int or not 1 <= features <= WIDEST):
        raise Unsound(f"cannot have features = {str(features)[:40]!r}")
    head = _mlp(words["head"], tensors)
    axes = None if features is None else torch.empty(features, len(head.mean))
    how = None if how is None else {**how, "scheme": scheme_of(how.get("scheme"))}
    return Decoupled(head, axes, how, exponent)
