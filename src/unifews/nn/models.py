"""The models of the paper, made of PyG's own layers; torch is imported when one is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from unifews.errors import InputError, unknown_name

if TYPE_CHECKING:
    from unifews.nn.stack import Network

Build = Callable[..., "Network"]

Numbers = Callable[[int], dict[str, Any]]

MODELS: dict[str, Build] = {}
"""Builders by name: (inputs, outputs, width, layers, dropout), and what only this model has as keywords."""
_NUMBERS: dict[str, Numbers] = {}

_SHALLOW = 3  # layers that learn with four fifths of their inputs dropped; of eight none does
_SOON = 12  # epochs: later a shallow network knows its training nodes by heart (docs/adr/0021)
_LATER = 3  # epochs a layer, where there are many of them and they learn slowly (docs/adr/0022)


def _stacked(layers: int) -> dict[str, Any]:
    """Numbers of layers that follow each other without anything leading past them."""
    return ({"dropout": 0.8, "weight_decay": 2e-2} if layers <= _SHALLOW else {"dropout": 0.5}) | _ramp(layers)


def _ramp(layers: int) -> dict[str, Any]:
    return {"weight_ramp": max(_SOON, _LATER * layers)}


def model(name: str, numbers: Numbers = _stacked) -> Callable[[Build], Build]:
    """The decorated function builds the model of this name; nothing else has to know of it.

    `numbers`: by which one of so many layers is trained, where they differ from other models' (`numbers_of`).
    """

    def put(make: Build) -> Build:
        MODELS[name], _NUMBERS[name] = make, numbers
        return make

    return put


def numbers_of(name: str, layers: int) -> dict[str, Any]:
    """Dropout and weight decay by which a model is trained, and epochs over which its weights go (docs/adr/0021)."""
    return _NUMBERS[name](layers)


def own_settings(name: str) -> dict[str, Any]:
    """What only this model has, with defaults: the keywords of its builder."""
    parameters = inspect.signature(MODELS[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def build(
    name: str, inputs: int, outputs: int, *, width: int = 512, layers: int = 2, dropout: float = 0.5, **own: Any
) -> Network:
    """A model by name: ``"gcn"``, ``"gat"`` (GATv2), ``"sage"``, ``"gcnii"`` or ``"gin"``.

    ``model(x [n, inputs], edge_index, edge_weight=None)`` gives scores [n, outputs]. `layers` counts message-passing layers;
    between them BatchNorm(momentum 0.9) → ReLU → Dropout, none after the last and none before the first.
    `own`: ``heads=8`` of gat, ``alpha=0.1, theta=0.5`` of gcnii.
    """
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    for size, value in (("inputs", inputs), ("outputs", outputs), ("width", width), ("layers", layers)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"`{size}` of a model is a whole number of at least 1; got {value!r}.")
    if not 0 <= dropout < 1:
        raise InputError(f"`dropout` is a number from 0 to below 1; got {dropout!r}.")
    known = own_settings(name)
    for setting in own:
        if setting not in known:
            takes = f"its own settings are {', '.join(known)}" if known else "it has none of its own"
            raise InputError(f"`{setting}` is no setting of {name}; {takes}.")
    made = MODELS[name](inputs, outputs, width, layers, dropout, **own)
    sizes = dict(inputs=inputs, outputs=outputs, width=width, layers=layers, dropout=dropout)
    made.built = {"model": name, **sizes, **known, **own}
    return made


@model("gcn")
def gcn(inputs: int, outputs: int, width: int, layers: int, dropout: float) -> Network:
    from torch_geometric.nn import GCNConv

    from unifews.nn.stack import Stack

    return Stack([GCNConv(a, b) for a, b in pairwise(_widths(inputs, outputs, width, layers))], dropout)


@model("gat")
def gat(inputs: int, outputs: int, width: int, layers: int, dropout: float, *, heads: int = 8) -> Network:
    """GATv2: heads of width / heads side by side in hidden layers, one head in the last."""
    from torch_geometric.nn import GATv2Conv

    from unifews.nn.stack import Stack

    if layers > 1 and (heads < 1 or width % heads):
        raise InputError(f"{heads} heads cannot share a width of {width} evenly; give a width that is a multiple of `heads`.")
    *hidden, last = pairwise(_widths(inputs, outputs, width, layers))
    convs = [GATv2Conv(a, b // heads, heads=heads) for a, b in hidden]
    return Stack([*convs, GATv2Conv(*last, heads=1, concat=False)], dropout, weighted=False)


@model("sage")
def sage(inputs: int, outputs: int, width: int, layers: int, dropout: float) -> Network:
    from torch_geometric.nn import SAGEConv

    from unifews.nn.stack import Stack

    convs = [SAGEConv(a, b) for a, b in pairwise(_widths(inputs, outputs, width, layers))]
    return Stack(convs, dropout, weighted=False)


def _between(layers: int) -> dict[str, Any]:
    """Numbers of GCNII, which has a matrix before and one after its layers and bears less dropout."""
    return {"dropout": 0.5} | _ramp(layers)


@model("gcnii", _between)
def gcnii(
    inputs: int, outputs: int, width: int, layers: int, dropout: float, *, alpha: float = 0.1, theta: float = 0.5
) -> Network:
    """GCN2Conv layers between two linear ones; α is what each takes from the first representation, β_l = ln(θ/l + 1)."""
    from torch_geometric.nn import GCN2Conv

    from unifews.nn.stack import Residual

    convs = [GCN2Conv(width, alpha, theta, layer=i + 1) for i in range(layers)]
    return Residual(convs, inputs, outputs, width, dropout)


@model("gin")
def gin(inputs: int, outputs: int, width: int, layers: int, dropout: float) -> Network:
    from torch import nn
    from torch_geometric.nn import GINConv

    from unifews.nn.stack import Stack

    convs = [
        GINConv(nn.Sequential(nn.Linear(a, width), nn.ReLU(), nn.Linear(width, b)))
        for a, b in pairwise(_widths(inputs, outputs, width, layers))
    ]
    return Stack(convs, dropout, weighted=False)


def _widths(inputs: int, outputs: int, width: int, layers: int) -> list[int]:
    return [inputs, *[width] * (layers - 1), outputs]
