"""PyG's ready models (GCN, GraphSAGE, GIN, GAT, EdgeCNN) in words that are read off a model, and from such words again.

PyG keeps no record of the arguments that a model was made with. Those that can be read off it are written down, and only if
what they make is alike in every layer, setting and shape; a model with others is given by `into`, as one of a user's own class.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn
from torch_geometric.nn import GAT, GCN, GIN, EdgeCNN, GATv2Conv, GraphSAGE, norm
from torch_geometric.resolver import normalize_string

from unifews.nn.sparsify import sparsify
from unifews.serving.program import Unsound
from unifews.serving.settings import like, one_of, sizes

_PLACE = "torch_geometric.nn."
READY: dict[str, type[nn.Module]] = {_PLACE + kind.__name__: kind for kind in (GCN, GraphSAGE, GIN, GAT, EdgeCNN)}
_ACTS: dict[str, Callable[..., nn.Module]] = {
    act.__name__: act
    for act in (
        nn.ReLU,
        nn.LeakyReLU,
        nn.ELU,
        nn.SELU,
        nn.CELU,
        nn.PReLU,
        nn.GELU,
        nn.SiLU,
        nn.Mish,
        nn.Tanh,
        nn.Sigmoid,
        nn.Softplus,
        nn.ReLU6,
        nn.Hardswish,
    )
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
_LAYERS: dict[type[nn.Module], dict[str, Any]] = {
    GCN: {"improved": False, "cached": False, "add_self_loops": True, "normalize": True, "bias": True},
    GraphSAGE: {"aggr": "mean", "normalize": False, "root_weight": True, "project": False, "bias": True},
    GIN: {"eps": 0.0, "train_eps": False},
    GAT: {
        "v2": False,
        "heads": 1,
        "concat": True,
        "negative_slope": 0.2,
        "add_self_loops": True,
        "edge_dim": None,
        "bias": True,
        "residual": False,
    },
    EdgeCNN: {"aggr": "max"},
}
"""Settings of the layers, with a value of the kind that each has."""
_MOVES = (
    "training",
    "path",
    "seen_width",
    "seen_edges",
    "unseen",
    "feedback",
    "due",
    "rows",
    "known",
    "excess",
    "chosen",
)  # what is not a setting, but where training stands


# ------------------------------------------------------------------------------------------------------------ to words


def ready_words(model: Any) -> dict[str, Any] | None:
    """What `ready` makes this model of, if it does; None where its layers were exchanged, or its activation is not torch's."""
    try:
        return _words(model)
    except (AttributeError, IndexError):
        return None


def _words(model: Any) -> dict[str, Any] | None:
    act = model.act
    if act is not None and _ACTS.get(type(act).__name__) is not type(act):
        return None
    first = model.convs[0]
    read: dict[str, Callable[[], Any]] = {
        "bias": lambda: (first.lin_l if isinstance(model, GraphSAGE) else first).bias is not None,
        "v2": lambda: isinstance(first, GATv2Conv),
        "eps": lambda: first.initial_eps,
        "train_eps": lambda: isinstance(first.eps, nn.Parameter),
        "concat": lambda: first.concat or len(model.convs) == 1,  # the last layer has it only without `outputs`
    }
    ends = model.jk_mode is not None or getattr(model, "_is_conv_to_out", False)
    return {
        "model": _PLACE + type(model).__name__,
        "inputs": model.in_channels,
        "outputs": model.out_channels if ends else None,
        "width": model.hidden_channels,
        "layers": model.num_layers,
        "dropout": model.dropout.p,
        "jk": model.jk_mode,
        "act_first": model.act_first,
        "act": None if act is None else {"name": type(act).__name__, **{n: getattr(act, n) for n in _defaults(type(act))}},
        "norm": None if model.norm is None else {"name": model.norm, **(model.norm_kwargs or {})},
        **{name: read[name]() if name in read else getattr(first, name) for name in _LAYERS[type(model)]},
    }


def alike(model: nn.Module, other: nn.Module) -> bool:
    """Whether a sparsified model and one made afresh have the same modules, settings and shapes."""
    other = sparsify(other, inplace=True)
    mine, theirs = dict(model.named_modules()), dict(other.named_modules())
    if list(mine) != list(theirs) or _shapes(model) != _shapes(other):
        return False
    return all(type(mine[name]) is type(made) and _same(mine[name], made) for name, made in theirs.items())


def _same(one: nn.Module, made: nn.Module) -> bool:
    """Whether everything that was set when `made` was made is the same in the other; what a user added does not count."""
    plain, held = (bool, int, float, str, list, tuple, dict), vars(one)
    for name, value in vars(made).items():
        if name.startswith("_") or name in _MOVES:
            continue
        if type(held.get(name)) is not type(value) or (isinstance(value, plain) and held[name] != value):
            return False
    return True


def _shapes(model: nn.Module) -> dict[str, Any]:
    free = (".columns", ".removed")  # decisions, as long as the data
    return {name: value.shape for name, value in model.state_dict().items() if not name.endswith(free)}


# ---------------------------------------------------------------------------------------------------------- from words


def ready(words: dict[str, Any], tensors: int) -> nn.Module:
    """The model of these words, which are a file's: everything is checked before it is used."""
    kind = READY[words["model"]]
    own = _LAYERS[kind]
    if set(words) != {"model", "inputs", "outputs", "width", "layers", "dropout", "jk", "act_first", "act", "norm", *own}:
        raise Unsound(f"is a {kind.__name__} with other settings than it has")
    outputs = words["outputs"]
    size = sizes(words if outputs is not None else {**words, "outputs": 1}, tensors)
    called, settings = _named(words["norm"], _NORMS, "norm")
    act, how = _named(words["act"], _ACTS, "act")
    return kind(
        size["inputs"],
        size["width"],
        size["layers"],
        outputs,
        dropout=size["dropout"],
        act=None if act is None else _ACTS[act](**how),
        act_first=one_of(words["act_first"], (True, False), "act_first"),
        norm=called,
        norm_kwargs=settings or None,
        jk=one_of(words["jk"], _JK, "jk"),
        **{name: _setting(words[name], default, name) for name, default in own.items()},
    )


def _named(said: Any, kinds: dict[str, Callable[..., nn.Module]], what: str) -> tuple[str | None, dict[str, Any]]:
    """The name of one of these kinds, as PyG reads it, and the settings that come with it."""
    if said is None:
        return None, {}
    name = said.get("name") if isinstance(said, dict) else None
    found = kinds.get(name if name in kinds else normalize_string(name)) if isinstance(name, str) else None
    if found is None:
        raise Unsound(f"cannot have {what} = {str(said)[:40]!r}")
    known, settings = _defaults(found), {key: value for key, value in said.items() if key != "name"}
    if not set(settings) <= set(known):
        raise Unsound(f"has a {what} with other settings than it has")
    return name, {key: _setting(value, known[key], key) for key, value in settings.items()}


def _defaults(kind: Callable[..., Any]) -> dict[str, Any]:
    """The numbers, flags and choices among the arguments of a class, and what they are if not given."""
    given = {p.name: p.default for p in inspect.signature(kind).parameters.values()}
    return {name: value for name, value in given.items() if type(value) in (bool, int, float) or name in _CHOICES}


def _setting(value: Any, default: Any, name: str) -> Any:
    """A value of the kind that a setting has."""
    if isinstance(default, bool):
        return one_of(value, (True, False), name)
    if isinstance(default, str):
        return one_of(value, _CHOICES[name], name)
    if default is None and value is None:
        return None
    if isinstance(default, float):
        return like(value, default, name)
    if like(value, 1, name) < 1:
        raise Unsound(f"cannot have {name} = {value}")
    return value
