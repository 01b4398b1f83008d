"""The inputs of a model: which argument of its forward is x, which edge_index, which edge_weight.

Roles follow from names, types and shapes before the model runs. Ambiguous signatures are rejected.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from inspect import Parameter
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from unifews.errors import InputError, ShapeError
from unifews.nn.convs.base import PrunedConv
from unifews.serving.graph_steps import as_tensor, check_weight, edge_tensors
from unifews.serving.model import features_of

_DATA_NAMES = ("data", "batch", "graph", "batch_data", "graph_data")
_EDGE_NAMES = ("edge_index", "adj", "adj_t", "adjs", "edges", "edge_idx")
_OTHER_NAMES = {
    *("batch", "batch_size", "edge_attr", "edge_attrs", "edge_feat", "edge_features", "edge_type", "edge_types"),
    *("edge_weight", "node_type", "pos", "ptr", "z"),
}
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_CALL = "a frozen model is called with x, edge_index and edge_weight=None"
_REMEDY = {
    "batch": "compress the layers before the pooling, and pool the scores of the frozen model",
    "edge_attr": "edge features are not supported; if it is one weight per edge, name the argument edge_weight",
    "edge_type": "edge types are not supported; call the sparsified model itself, in eval mode",
}


@dataclass(frozen=True, eq=False)
class GivenGraph:
    """The graph that `compress` was called with."""

    x: Any
    edge_index: Any
    edge_weight: Any
    data: Data | None = None
    """The PyG object that holds them, if any."""

    @property
    def weight_name(self) -> str:
        """The attribute of a Data object that holds the weights."""
        return "edge_attr" if self.data is not None and getattr(self.data, "edge_weight", None) is None else "edge_weight"


def graph_given(x: Any, edge_index: Any, edge_weight: Any) -> GivenGraph:
    """The parts of a graph of one type of nodes and edges, from a PyG Data object where x is one."""
    for name, value in (("x", x), ("edge_index", edge_index), ("edge_weight", edge_weight)):
        if isinstance(value, Mapping | HeteroData):
            raise InputError(
                f"`{name}` is a {type(value).__name__}, one entry per type of nodes or edges, and a frozen model has one type "
                f"of each; call the sparsified heterogeneous model itself, in eval mode, or use data.to_homogeneous()."
            )
    data = x if isinstance(x, Data) else None
    if data is not None:
        if edge_index is not None or edge_weight is not None:
            raise InputError("a Data object has its own edges; leave `edge_index` and `edge_weight` out.")
        edge_index = data.edge_index if data.edge_index is not None else getattr(data, "adj_t", None)
        x, edge_weight = data.x, _weight_of(data)
    for name, value in (("x", x), ("edge_index", edge_index)):
        if value is None:
            where = "the Data object has none" if data is not None else "it is None"
            raise InputError(f"compress needs `{name}`, and {where}; give the graph that the model was trained on.")
    return GivenGraph(x, edge_index, edge_weight, data)


def as_tensors(given: GivenGraph) -> GivenGraph:
    """The same graph as tensors of consistent shapes."""
    x, edge_index, edge_weight = given.x, given.edge_index, given.edge_weight
    if isinstance(x, tuple | list) and any(isinstance(part, Tensor | None) for part in x):
        raise InputError(
            f"`x` is a {type(x).__name__} of {len(x)} parts, and a frozen model has one set of nodes; give x [nodes, columns]."
        )
    x = x if isinstance(x, Tensor) else features_of(x)
    if x.ndim != 2:
        raise ShapeError(f"x has shape {list(x.shape)}; features are a matrix, one row per node.")
    if not len(x):
        raise ShapeError("x has no rows; give the graph that the model was trained on.")
    if not isinstance(edge_index, Tensor):
        edge_index, edge_weight = edge_tensors(edge_index, edge_weight)
    if edge_index.layout == torch.strided and (edge_index.ndim != 2 or len(edge_index) != 2):
        raise ShapeError(f"`edge_index` has shape {list(edge_index.shape)}; it is [2, edges], senders and receivers.")
    if edge_weight is not None:
        edge_weight = _checked_weight(as_tensor("edge_weight", edge_weight), edge_index, len(x))
    return replace(given, x=x, edge_index=edge_index, edge_weight=edge_weight)


def _weight_of(data: Data) -> Any:
    """Its edge weights: `edge_weight`, or an `edge_attr` of one float per edge."""
    if getattr(data, "edge_weight", None) is not None:
        return data.edge_weight
    attr = data.edge_attr
    return attr if isinstance(attr, Tensor) and attr.ndim == 1 and attr.is_floating_point() else None


def _checked_weight(weight: Tensor, edge_index: Tensor, nodes: int) -> Tensor:
    check_weight(weight, edge_index, nodes)
    if not weight.is_floating_point():
        raise InputError(
            f"`edge_weight` holds {weight.dtype} values, as `batch` or edge types do; if they are weights, give "
            f"edge_weight.float()."
        )
    return weight


# ------------------------------------------------------------------------------------------------------------- the forward


@dataclass(frozen=True)
class Call:
    """How the inputs are passed to a forward."""

    names: tuple[str, str] | None
    """Keywords of x and edge_index; None: the first two arguments."""
    weight: str | None
    """``"edge_weight"``: by that name; ``"*"``: as one more argument; None: never."""
    takes_data: bool = False
    """Whether it takes one Data object instead."""

    def apply(self, model: nn.Module, x: Any, edge_index: Any, edge_weight: Any = None) -> Any:
        """Call a model with these inputs; an edge_weight of None is left out."""
        args: tuple[Any, ...] = (x, edge_index) if self.names is None else ()
        kwargs = {} if self.names is None else dict(zip(self.names, (x, edge_index), strict=True))
        if edge_weight is not None and self.weight == "*":
            args = (*args, edge_weight)
        elif edge_weight is not None:
            kwargs["edge_weight"] = edge_weight
        return model(*args, **kwargs)


def call_of(model: nn.Module, given: GivenGraph) -> tuple[Call, GivenGraph]:
    """How this model is called with this graph, and the graph with the weights that the model takes.

    An error names the argument that is not available.
    """
    kind = type(model).__name__
    for conv in model.modules():
        if isinstance(conv, PrunedConv) and getattr(conv, "edge_dim", None) is not None and given.edge_weight is None:
            raise unsupported_edge_features(conv.path, conv)
    parameters = inspect.signature(model.forward).parameters
    named = [p.name for p in parameters.values() if p.kind not in (*_VARIABLE, Parameter.KEYWORD_ONLY)]
    needed = [p.name for p in parameters.values() if p.default is Parameter.empty and p.kind not in _VARIABLE]
    spare = any(p.kind is Parameter.VAR_POSITIONAL for p in parameters.values())
    only = needed == named[:1] and not spare and not {"x", *_EDGE_NAMES} & set(named)
    if only and (len(named) == 1 or named[0] in _DATA_NAMES):
        return _one_argument(kind, parameters[named[0]], given), given
    weight = "edge_weight" if "edge_weight" in parameters else "*" if spare else None
    names = _names(kind, named, spare)
    given = with_weights(given, weight, kind)
    for name in needed:
        if name in (names or named[:2]) or (name == "edge_weight" and given.edge_weight is not None):
            continue
        if name == "edge_weight":
            raise InputError(f"forward of {kind} needs `edge_weight`; pass it to compress too, one weight per edge.")
        raise unsupported_input(kind, f"needs `{name}`", name)
    if given.edge_weight is not None and weight is None:
        other = next((name for name in named[2:] if name.startswith("edge_")), None)
        hint = f", or, if `{other}` is for weights, name it edge_weight" if other is not None else ""
        raise InputError(f"forward of {kind} has no argument for edge weights; leave `edge_weight` out{hint}.")
    return Call(None if names is None or list(names) == named[:2] else names, weight), given


def with_weights(given: GivenGraph, weight: str | None, kind: str) -> GivenGraph:
    """The graph with the weights of its Data object only if the model has an argument `edge_weight`."""
    if given.data is None or given.edge_weight is None:
        return given
    if weight is None:
        return replace(given, edge_weight=None)
    if weight == "*" or given.weight_name != "edge_weight":
        raise InputError(
            f"{kind} may take edge weights, but it is ambiguous whether data.{given.weight_name} is meant; use "
            f"compress(model, data.x, data.edge_index), with data.{given.weight_name} as the third input if it is."
        )
    return given


def _one_argument(kind: str, parameter: Parameter, given: GivenGraph) -> Call:
    annotation = (
        parameter.annotation if isinstance(parameter.annotation, str) else getattr(parameter.annotation, "__name__", "")
    )
    if given.data is None and parameter.name not in _DATA_NAMES and annotation.split(".")[-1] not in ("Data", "Batch"):
        raise InputError(
            f"forward of {kind} takes one argument, `{parameter.name}`, and {_CALL}; name it data if it is a PyG Data "
            f"object, or write forward(x, edge_index, edge_weight=None)."
        )
    return Call(None, None, takes_data=True)


def _names(kind: str, named: list[str], spare: bool) -> tuple[str, str] | None:
    """The arguments for x and edge_index; None where they are part of ``*args``."""
    hetero = next((name for name in named if name.endswith("_dict")), None)
    if hetero is not None:
        raise InputError(
            f"forward of {kind} takes `{hetero}`, one entry per type of nodes or edges, and a frozen model has one type of "
            f"each; call the sparsified heterogeneous model itself, in eval mode."
        )
    if len(named) < 2 and spare:
        return None
    x = "x" if "x" in named else next((name for name in named[:2] if name not in _EDGE_NAMES), "")
    edges = next((name for name in _EDGE_NAMES if name in named), None)
    edges = edges or next((name for name in named[:2] if name != x), "")
    if not x or not edges or x in _DATA_NAMES or {x, edges} & _OTHER_NAMES:
        raise InputError(
            f"forward of {kind} takes ({', '.join(named)}), so it is not clear which are the features and the edges, and "
            f"{_CALL}; name its arguments x and edge_index."
        )
    return x, edges


def unsupported_input(kind: str, does: str, name: str) -> InputError:
    role = next((role for role in _REMEDY if name.startswith(role)), None)
    remedy = _REMEDY[role] if role else "give it a default, or do what needs it outside of the model"
    return InputError(f"forward of {kind} {does}, and {_CALL}; {remedy}.")


def unsupported_edge_features(path: str, conv: PrunedConv) -> InputError:
    """The error for a layer with weights for edge features."""
    return InputError(
        f"{path} has weights for edge features (edge_dim={conv.edge_dim}), which a frozen model is not called with; build it "
        f"without edge_dim, or call the sparsified model itself, in eval mode."
    )


# ------------------------------------------------------------------------------------------------------------- Data objects


class SymbolicData:
    """The Data object that a forward is traced with.

    It has x, edge_index and edge weights, a placeholder for every other tensor of the object, and nothing that depends on this
    graph alone, such as its number of nodes.
    """

    def __init__(self, kind: str, data: Data, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)
        self._kind, self._data = kind, data

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._data, name)  # an AttributeError, or None, where the object has none
        if found is None or name.startswith("__"):
            return found
        raise unsupported_input(self._kind, f"reads data.{name}", name)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __contains__(self, name: str) -> bool:
        return name in self._data


def data_of(given: GivenGraph) -> Data:
    """The Data object to call a forward with; a shallow copy, since the forward may write to it."""
    if given.data is not None:
        return copy.copy(given.data)
    weight = {} if given.edge_weight is None else {"edge_weight": given.edge_weight}
    return Data(x=given.x, edge_index=given.edge_index, **weight)


def attributes(given: GivenGraph) -> tuple[dict[str, str], list[str]]:
    """Attributes of the Data object by role (``"x"``, ``"edge_index"``, ``"edge_weight"``), and its other attributes."""
    data = data_of(given)
    roles = {"x": "x", "edge_index": "edge_index"} if data.edge_index is not None else {"x": "x", "adj_t": "edge_index"}
    if given.edge_weight is not None:
        roles[given.weight_name] = "edge_weight"
    return roles, [str(key) for key in data.keys() if key not in roles]  # noqa: SIM118, a method of Data
