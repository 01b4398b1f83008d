"""The models of the paper, built of PyG's layers; torch is imported when a model is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from unifews.errors import InputError, unknown_name

if TYPE_CHECKING:
    from unifews.nn.networks import Network

Build = Callable[..., "Network"]

Settings = dict[str, Any]
"""Settings by name."""
Hyperparameters = Callable[[int], Settings]

MODELS: dict[str, Build] = {}
"""Builders by name: (inputs, outputs, width, layers, dropout), and settings of this model alone as keywords."""
_HYPERPARAMETERS: dict[str, Hyperparameters] = {}

_MAX_SHALLOW = 3  # number of layers up to which a dropout of 0.8 works
_MIN_RAMP = 12  # epochs: a shallow network overfits later (docs/adr/0021)
_RAMP_PER_LAYER = 3  # epochs per layer, since deep networks learn slowly (docs/adr/0022)


def _stacked(layers: int) -> Settings:
    """Hyperparameters of plain stacks, without residual connections."""
    return ({"dropout": 0.8, "weight_decay": 2e-2} if layers <= _MAX_SHALLOW else {"dropout": 0.5}) | _ramp(layers)


def _ramp(layers: int) -> Settings:
    return {"weight_ramp": max(_MIN_RAMP, _RAMP_PER_LAYER * layers)}


def model(name: str, hyperparameters: Hyperparameters = _stacked) -> Callable[[Build], Build]:
    """Register the decorated function as the builder of the model of this name.

    `hyperparameters`: of training a model of so many layers (`hyperparameters_of`).
    """

    def put(make: Build) -> Build:
        MODELS[name], _HYPERPARAMETERS[name] = make, hyperparameters
        return make

    return put


def hyperparameters_of(name: str, layers: int) -> Settings:
    """Default dropout, weight decay and epochs of the weight ramp of a model (docs/adr/0021)."""
    return _HYPERPARAMETERS[name](layers)


def own_settings(name: str) -> Settings:
    """Settings of this model alone, with defaults: the keywords of its builder."""
    parameters = inspect.signature(MODELS[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def build(
    name: str, inputs: int, outputs: int, *, width: int = 512, layers: int = 2, dropout: float = 0.5, **own: Any
) -> Network:
    """A model by name: ``"gcn"``, ``"gat"`` (GATv2), ``"sage"``, ``"gcnii"`` or ``"gin"``.

    ``model(x [n, inputs], edge_index, edge_weight=None)`` returns scores [n, outputs]. `layers` counts message-passing layers;
    between them BatchNorm(momentum 0.9) → ReLU → Dropout, none after the last and none before the first.
    `own`: ``heads=8`` of gat, ``alpha=0.1, theta=0.5`` of gcnii.
    """
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    for size, value in (("inputs", inputs), ("outputs", outputs), ("width", width), ("layers", layers)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"`{size}` of a model is an integer of at least 1; got {value!r}.")
    if not 0 <= dropout < 1:
        raise InputError(f"`dropout` is a number from 0 to below 1; got {dropout!r}.")
    known = own_settings(name)
    for setting in own:
        if setting not in known:
            takes = f"its own settings are {', '.join(known)}" if known else "it has none of its own"
            raise InputError(f"`{setting}` is not a setting of {name}; {takes}.")
    made = MODELS[name](inputs, outputs, width, layers, dropout, **own)
    sizes = dict(inputs=inputs, outputs=outputs, width=width, layers=layers, dropout=dropout)
    made.built = {"model": name, **sizes, **known, **own}
    return made


@model("gcn")
def gcn(inputs: int, outputs: int, width: int, layers: int, dropout: float) -> Network:
    from torch_geometric.nn import GCNConv

    from unifews.nn.networks import Stack

    return Stack([GCNConv(a, b) for a, b in pairwise(_widths(inputs, outputs, width, layers))], dropout)


@model("gat")
def gat(inputs: int, outputs: int, width: int, layers: int, dropout: float, *, heads: int = 8) -> Network:
    """GATv2: heads of width / heads side by side in hidden layers, one head in the last."""
    from torch_geometric.nn import GATv2Conv

    from unifews.nn.networks import Stack

    if layers > 1 and (heads < 1 or width % heads):
        raise InputError(f"{heads} heads do not divide a width of {width}; give a width that is a multiple of `heads`.")
    *hidden, last = pairwise(_widths(inputs, outputs, width, layers))
    convs = [GATv2Conv(a, b // heads, heads=heads) for a, b in hidden]
    return Stack([*convs, GATv2Conv(*last, heads=1, concat=False)], dropout, weighted=False)


@model("sage")
def sage(inputs: int, outputs: int, width: int, layers: int, dropout: float) -> Network:
    from torch_geometric.nn import SAGEConv

    from unifews.nn.networks import Stack

    convs = [SAGEConv(a, b) for a, b in pairwise(_widths(inputs, outputs, width, layers))]
    return Stack(convs, dropout, weighted=False)


def _residual(layers: int) -> Settings:
    """Hyperparameters of GCNII, which has a linear layer before and after its convolutions and needs less dropout."""
    return {"dropout": 0.5} | _ramp(layers)


@model("gcnii", _residual)
def gcnii(
    inputs: int, outputs: int, width: int, layers: int, dropout: float, *, alpha: float = 0.1, theta: float = 0.5
) -> Network:
    """GCN2Conv layers between two linear ones; α is the weight of the initial representation, β_l = ln(θ/l + 1)."""
    from torch_geometric.nn import GCN2Conv

    from unifews.nn.networks import Residual

    convs = [GCN2Conv(width, alpha, theta, layer=i + 1) for i in range(layers)]
    return Residual(convs, inputs, outputs, width, dropout)


@model("gin")
def gin(inputs: int, outputs: int, width: int, layers: int, dropout: float) -> Network:
    from torch import nn
    from torch_geometric.nn import GINConv

    from unifews.nn.networks import Stack

    convs = [
        GINConv(nn.Sequential(nn.Linear(a, width), nn.ReLU(), nn.Linear(width, b)))
        for a, b in pairwise(_widths(inputs, outputs, width, layers))
    ]
    return Stack(convs, dropout, weighted=False)


def _widths(inputs: int, outputs: int, width: int, layers: int) -> list[int]:
    return [inputs, *[width] * (layers - 1), outputs]
