"""Models of this library, and PyG's ready-made ones, as the arguments they are built with, and back.

A rebuilt model is on the meta device (no memory), so that a file is trusted only where its tensors fit. PyG does not record
the arguments of a model: those that can be read off it are saved, if a model built with them has the same modules, settings
and shapes; any other model is loaded with `into`, as one of a custom class.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch_geometric.nn import GAT, GCN, GIN, EdgeCNN, GATv2Conv, GraphSAGE, norm
from torch_geometric.resolver import normalize_string

from unifews.core.schemes import scheme_from_plain, scheme_to_plain
from unifews.errors import InputError
from unifews.nn.decoupled import DecoupledModel, Mlp
from unifews.nn.models import MODELS, build, own_settings
from unifews.nn.networks import Network
from unifews.nn.sparsify import sparsify
from unifews.propagation import propagate
from unifews.serving.packed_arrays import Json
from unifews.serving.program import InvalidModel, is_propagation


def build_config(model: nn.Module) -> Json | None:
    """The arguments that `build_from_config` builds this model with; None for custom classes and modified models."""
    if isinstance(model, Network):
        config = None if model.built is None else {**model.built, "dropout": model.dropout}
    elif type(model) is Mlp:
        config = _mlp_config(model)
    elif type(model) is DecoupledModel:
        config = _decoupled_config(model)
    elif type(model) in PYG_MODELS.values():
        config = _pyg_config(model)
    else:
        config = None
    return config if config is not None and _is_built_by(model, config) else None


def build_from_config(config: Any, tensors: int) -> nn.Module:
    """Build the model on the meta device, not trained and not sparsified; `tensors`, their number, bounds its layers."""
    name = config.get("model") if isinstance(config, dict) else None
    if not isinstance(name, str) or name not in (*MODELS, *PYG_MODELS, "mlp", "decoupled"):
        raise InvalidModel(f"is a {str(name)[:40]!r}, which this release cannot build")
    try:
        with torch.device("meta"):
            if name == "decoupled":
                return _decoupled(config, tensors)
            if name in PYG_MODELS:
                return _pyg_model(config, tensors)
            return _mlp(config, tensors) if name == "mlp" else _network(name, config, tensors)
    except (InputError, TypeError, ValueError, OverflowError, ZeroDivisionError, RuntimeError) as error:
        raise InvalidModel(f"cannot be built with its settings ({' '.join(str(error).split())[:100]})") from None


def _is_built_by(model: nn.Module, config: Json) -> bool:
    """Whether a model built with this config has the same modules and parameters."""
    try:
        other = build_from_config(config, sum(1 for _ in model.modules()))
    except InvalidModel:
        return False
    if type(other) in PYG_MODELS.values():
        return _is_equivalent(model, other)
    names = {name for name, _ in other.named_modules()}
    parameters = {name: value.shape for name, value in other.named_parameters()}
    # `sparsify` adds modules for the masks of parameters.
    return names <= {name for name, _ in model.named_modules()} and parameters == {
        name: value.shape for name, value in model.named_parameters()
    }


# ------------------------------------------------------------------------------------------------------------- networks


def _network(name: str, config: Json, tensors: int) -> nn.Module:
    own = own_settings(name)
    if set(config) != {"model", "inputs", "outputs", "width", "layers", "dropout", *own}:
        raise InvalidModel(f"is a {name} with unknown or missing settings")
    given = {setting: _number_like(config[setting], default, setting) for setting, default in own.items()}
    return build(name, **_sizes(config, tensors), **given)


# ------------------------------------------------------------------------------------------------------------ decoupled


def _mlp_config(head: Mlp) -> Json:
    widths = [layer.out_features for layer in head.linears()]
    size = dict(inputs=len(head.mean), outputs=widths[-1], width=widths[0], layers=len(widths))
    return {"model": "mlp", **size, "dropout": head.dropout}


def _mlp(config: Json, tensors: int) -> Mlp:
    if set(config) != {"model", "inputs", "outputs", "width", "layers", "dropout"}:
        raise InvalidModel("is an mlp with unknown or missing settings")
    return Mlp(**_sizes(config, tensors))


def _decoupled_config(model: DecoupledModel) -> Json | None:
    if model.by is not propagate or type(model.head) is not Mlp:
        return None
    settings = model.propagation
    return {
        "model": "decoupled",
        "head": _mlp_config(model.head),
        "features": None if model.axes is None else len(model.axes),
        "propagation": None if settings is None else {**settings, "scheme": scheme_to_plain(settings["scheme"])},
        "exponent": int(model.exponent),
    }


def _decoupled(config: Json, tensors: int) -> DecoupledModel:
    settings, features, exponent = config.get("propagation"), config.get("features"), config.get("exponent")
    if set(config) != {"model", "head", "features", "propagation", "exponent"} or not isinstance(config["head"], dict):
        raise InvalidModel("is a decoupled model without a head, a propagation or an exponent")
    if settings is not None and not is_propagation(settings):
        raise InvalidModel("has invalid propagation settings")
    if type(exponent) is not int or abs(exponent) >= 2**31:
        raise InvalidModel(f"cannot have exponent = {str(exponent)[:40]!r}")
    if features is not None and (type(features) is not int or not 1 <= features <= _MAX_WIDTH):
        raise InvalidModel(f"cannot have features = {str(features)[:40]!r}")
    head = _mlp(config["head"], tensors)
    axes = None if features is None else torch.empty(features, len(head.mean))
    settings = None if settings is None else {**settings, "scheme": scheme_from_plain(settings.get("scheme"))}
    return DecoupledModel(head, axes, settings, exponent)


# ------------------------------------------------------------------------------------------------------------------------ PyG


_PYG = "torch_geometric.nn."
PYG_MODELS: dict[str, type[nn.Module]] = {_PYG + kind.__name__: kind for kind in (GCN, GraphSAGE, GIN, GAT, EdgeCNN)}
_ACTS: dict[str, Callable[..., nn.Module]] = {
    name: getattr(nn, name)
    for name in "ReLU LeakyReLU ELU SELU CELU PReLU GELU SiLU Mish Tanh Sigmoid Softplus ReLU6 Hardswish".split()  # noqa: SIM905
}
_NORMS: dict[str, Callable[..., nn.Module]] = {
    name: kind
    for kind in (norm.BatchNorm, norm.LayerNorm, norm.InstanceNorm, norm.GraphNorm, norm.PairNorm)
    for name in (kind.__name__.lower(), kind.__name__.lower().replace("norm", ""))
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "aggr": ("mean", "add", "sum", "max", "min"),
    "approximate": ("none", "tanh"),
    "mode": ("graph", "node"),
}
_JK = (None, "last", "cat", "max", "lstm")
_LAYER_DEFAULTS: dict[type[nn.Module], Json] = {
    GCN: {"improved": False, "cached": False, "add_self_loops": True, "normalize": True, "bias": True},
    GraphSAGE: {"aggr": "mean", "normalize": False, "root_weight": True, "project": False, "bias": True},
    GIN: {"eps": 0.0, "train_eps": False},
    GAT: dict(
        v2=False, heads=1, concat=True, negative_slope=0.2, add_self_loops=True, edge_dim=None, bias=True, residual=False
    ),
    EdgeCNN: {"aggr": "max"},
}
"""Settings of the layers with an example value, which has the type of the setting."""
_TRAINING_STATE = "training path seen_width seen_edges unseen feedback due rows known excess chosen fuse".split()  # noqa: SIM905
"""Attributes that are state of training or follow from what is pruned, not settings."""


def _pyg_config(model: Any) -> Json | None:
    """The arguments of a PyG model; None where its layers were replaced or its activation is not one of torch."""
    try:
        return _read_arguments(model)
    except (AttributeError, IndexError):
        return None


def _read_arguments(model: Any) -> Json | None:
    act = model.act
    if act is not None and _ACTS.get(type(act).__name__) is not type(act):
        return None
    first = model.convs[0]
    read: dict[str, Callable[[], Any]] = {
        "bias": lambda: (first.lin_l if isinstance(model, GraphSAGE) else first).bias is not None,
        "v2": lambda: isinstance(first, GATv2Conv),
        "eps": lambda: first.initial_eps,
        "train_eps": lambda: isinstance(first.eps, nn.Parameter),
        "concat": lambda: first.concat or len(model.convs) == 1,  # the last layer has it only if `outputs` is None
    }
    ends = model.jk_mode is not None or getattr(model, "_is_conv_to_out", False)
    return {
        "model": _PYG + type(model).__name__,
        "inputs": model.in_channels,
        "outputs": model.out_channels if ends else None,
        "width": model.hidden_channels,
        "layers": model.num_layers,
        "dropout": model.dropout.p,
        "jk": model.jk_mode,
        "act_first": model.act_first,
        "act": None if act is None else {"name": type(act).__name__, **{n: getattr(act, n) for n in _defaults(type(act))}},
        "norm": None if model.norm is None else {"name": model.norm, **(model.norm_kwargs or {})},
        **{name: read[name]() if name in read else getattr(first, name) for name in _LAYER_DEFAULTS[type(model)]},
    }


def _is_equivalent(model: nn.Module, other: nn.Module) -> bool:
    """Whether a sparsified model and a newly built one have the same modules, settings and shapes."""
    other = sparsify(other, inplace=True)
    mine, theirs = dict(model.named_modules()), dict(other.named_modules())
    if list(mine) != list(theirs) or _shapes(model) != _shapes(other):
        return False
    return all(type(mine[name]) is type(made) and _same_settings(mine[name], made) for name, made in theirs.items())


def _same_settings(one: nn.Module, made: nn.Module) -> bool:
    """Whether all attributes of a newly built module are the same in the other; attributes added by a user are ignored."""
    plain, mine = (bool, int, float, str, list, tuple, dict), vars(one)
    for name, value in vars(made).items():
        if name.startswith("_") or name in _TRAINING_STATE:
            continue
        if type(mine.get(name)) is not type(value) or (isinstance(value, plain) and mine[name] != value):
            return False
    return True


def _shapes(model: nn.Module) -> Json:
    free = (".columns", ".removed")  # their length depends on the data
    return {name: value.shape for name, value in model.state_dict().items() if not name.endswith(free)}


def _pyg_model(config: Json, tensors: int) -> nn.Module:
    """Build a PyG model from the config of a file, whose values are checked."""
    kind = PYG_MODELS[config["model"]]
    own = _LAYER_DEFAULTS[kind]
    if set(config) != {"model", "inputs", "outputs", "width", "layers", "dropout", "jk", "act_first", "act", "norm", *own}:
        raise InvalidModel(f"is a {kind.__name__} with unknown or missing settings")
    outputs = config["outputs"]
    size = _sizes(config if outputs is not None else {**config, "outputs": 1}, tensors)
    called, settings = _named(config["norm"], _NORMS, "norm")
    act, settings_of_act = _named(config["act"], _ACTS, "act")
    return kind(
        size["inputs"],
        size["width"],
        size["layers"],
        outputs,
        dropout=size["dropout"],
        act=None if act is None else _ACTS[act](**settings_of_act),
        act_first=_one_of(config["act_first"], (True, False), "act_first"),
        norm=called,
        norm_kwargs=settings or None,
        jk=_one_of(config["jk"], _JK, "jk"),
        **{name: _setting(config[name], default, name) for name, default in own.items()},
    )


def _named(stored: Any, kinds: dict[str, Callable[..., nn.Module]], what: str) -> tuple[str | None, Json]:
    """The name of one of these classes, as PyG resolves it, and its settings."""
    if stored is None:
        return None, {}
    name = stored.get("name") if isinstance(stored, dict) else None
    found = kinds.get(name if name in kinds else normalize_string(name)) if isinstance(name, str) else None
    if found is None:
        raise InvalidModel(f"cannot have {what} = {str(stored)[:40]!r}")
    known, settings = _defaults(found), {key: value for key, value in stored.items() if key != "name"}
    if not set(settings) <= set(known):
        raise InvalidModel(f"has a {what} with unknown settings")
    return name, {key: _setting(value, known[key], key) for key, value in settings.items()}


def _defaults(kind: Callable[..., Any]) -> Json:
    """The numeric, boolean and choice arguments of a class, with their defaults."""
    given = {p.name: p.default for p in inspect.signature(kind).parameters.values()}
    return {name: value for name, value in given.items() if type(value) in (bool, int, float) or name in _CHOICES}


def _setting(value: Any, default: Any, name: str) -> Any:
    """A value, checked to have the type of its default."""
    if isinstance(default, bool):
        return _one_of(value, (True, False), name)
    if isinstance(default, str):
        return _one_of(value, _CHOICES[name], name)
    if default is None and value is None:
        return None
    if isinstance(default, float):
        return _number_like(value, default, name)
    if _number_like(value, 1, name) < 1:
        raise InvalidModel(f"cannot have {name} = {value}")
    return value


# -------------------------------------------------------------------------------------------------------------- settings


_MAX_WIDTH = 1 << 24


def _sizes(config: Json, tensors: int) -> Json:
    """The sizes that every model has, checked; the number of `tensors` bounds the number of layers."""
    for name in ("inputs", "outputs", "width"):
        if type(config.get(name)) is not int or not 1 <= config[name] <= _MAX_WIDTH:
            raise InvalidModel(f"cannot have {name} = {str(config.get(name))[:40]!r}")
    layers, dropout = config.get("layers"), config.get("dropout")
    if type(layers) is not int or not 1 <= layers <= tensors:
        raise InvalidModel(f"cannot have {str(layers)[:40]!r} layers with {tensors:,} tensors")
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        raise InvalidModel(f"cannot have dropout = {str(dropout)[:40]!r}")
    return {name: config[name] for name in ("inputs", "outputs", "width", "layers", "dropout")}


def _number_like(value: Any, default: Any, name: str) -> Any:
    """A number, checked to have the type of its default."""
    fits = type(value) is int if isinstance(default, int) else type(value) in (int, float) and math.isfinite(value)
    if not fits or not abs(value) <= _MAX_WIDTH:
        raise InvalidModel(f"cannot have {name} = {str(value)[:40]!r}")
    return value


def _one_of(value: Any, choices: tuple[Any, ...], name: str) -> Any:
    """One of these values, of the same type: 1 is not True."""
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise InvalidModel(f"cannot have {name} = {str(value)[:40]!r}")
    return value
