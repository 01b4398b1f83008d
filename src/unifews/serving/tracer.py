"""A torch module as a program: its forward is traced with torch.fx, and every operation in it becomes a step."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch_geometric.nn import JumpingKnowledge, MessagePassing
from torch_geometric.nn import Linear as Dense
from torch_geometric.nn import norm as norms

from unifews.errors import InputError, UnifewsError
from unifews.nn.convs.base import PrunedConv, session_of
from unifews.nn.linear import PrunedWeight
from unifews.nn.session import Session
from unifews.serving.conv_steps import FREEZES, diffuse, matrix
from unifews.serving.fold import batch_norm
from unifews.serving.functions import ACTIVATIONS, FUNCTIONS, LAST, SLOPES
from unifews.serving.fx_graph import symbolic_graph
from unifews.serving.inputs import (
    Call,
    GivenGraph,
    SymbolicData,
    attributes,
    data_of,
    unsupported_edge_features,
    unsupported_input,
)
from unifews.serving.model_copy import private_copy
from unifews.serving.program import InvalidModel, Layer, Program, ProgramBuilder, StepValue

_HERE, _TORCH = (f"{Path(path).parent}/" for path in (__file__, torch.__file__))
_IDENTITY_MODULES = (nn.Dropout, nn.AlphaDropout, nn.Identity)


def traced(
    model: nn.Module, features: int, widths: dict[nn.Module, int], call: Call, given: GivenGraph, *, weighted: bool
) -> Program:
    """The program of a private copy of a model.

    Args:
        model: the copy; not used by anything else.
        features: columns of x.
        widths: columns of the results of its layers when it was called.
        call: how its forward is called.
        given: the graph that it was called with.
        weighted: whether it is called with edge weights.
    """
    builder, kind = Tracer(features, widths), type(model).__name__
    inputs: dict[str, Placeholder] = {"x": StepValue(0), "edge_index": Given.EDGES}
    if weighted:
        inputs["edge_weight"] = Given.EDGE_WEIGHT
    if call.takes_data:
        result = builder.walk(*_with_data(model, inputs, given), kind)
    else:
        result = builder.walk(_Outer(model, call.apply), inputs, kind)
    if result != len(builder.steps):  # the last step is the result
        builder.sum([result])
    session = session_of(model)
    thinner = None if session is None else session.thinner
    return Program(features, tuple(builder.steps), weighted, None if thinner is None else thinner.rule)


def _with_data(model: nn.Module, inputs: Mapping[str, Placeholder], given: GivenGraph) -> tuple[_Outer, dict[str, Placeholder]]:
    """A model that takes one Data object, as a function of the tensors of that object."""
    (roles, others), data = attributes(given), data_of(given)
    names = [*roles, *others]
    values: dict[str, Placeholder] = {
        **{name: inputs[role] for name, role in roles.items()},
        **{name: UnavailableTensor(name) for name in others},
    }
    called = lambda m, *tensors: m(SymbolicData(type(model).__name__, data, dict(zip(names, tensors, strict=True))))  # noqa: E731
    return _Outer(model, called), values


class _Outer(nn.Module):
    """A module, and how it is called with the values of a trace."""

    def __init__(self, model: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *values: Any) -> Any:
        return self.call(self.model, *values)


class Tracer(ProgramBuilder):
    """Appends the steps of the forward of a module."""

    def __init__(self, features: int, widths: dict[nn.Module, int] | None = None) -> None:
        super().__init__(features)
        self._layer_widths = widths or {}

    def inline(self, module: nn.Module, x: int, path: str) -> int:
        """Append the steps of another module applied to this value."""
        return self.walk(_Outer(module, lambda m, value: m(value)), {"x": StepValue(x)}, path)

    def walk(self, outer: _Outer, inputs: Mapping[str, Any], name: str) -> int:
        """Append the steps of a module applied to these inputs; returns the number of its result."""
        graph = _graph(outer, list(inputs), name)
        needed = _needed(graph)
        known: dict[fx.Node, Any] = {}
        given = iter(inputs.values())
        for node in graph.nodes:
            if node.op == "placeholder":
                known[node] = next(given)
            elif node.op == "get_attr":
                known[node] = _attribute(outer, str(node.target))
            elif node.op == "output":
                result = fx.node.map_arg(node.args[0], lambda n: known[n])
                if not isinstance(result, StepValue):
                    raise InputError(f"{name} returns a {type(result).__name__}; a frozen model returns one matrix.")
                return result.number
            elif node in needed:
                args = fx.node.map_arg(node.args, lambda n: known[n])
                kwargs = fx.node.map_arg(node.kwargs, lambda n: known[n])
                for one in _flat([*args, *kwargs.values()]):
                    if isinstance(one, UnavailableTensor):
                        raise unsupported_input(name, f"reads data.{one.name}", one.name)
                try:
                    known[node] = self._convert(outer, node, args, kwargs)
                except (_UnsupportedOperation, InvalidModel) as problem:
                    raise InputError(
                        f"{name} {problem}{_place(node)}, and a frozen model has no step for that; write it with linear "
                        f"layers, activations, sums, products or concatenations of columns, or do it outside of the model."
                    ) from None
                if _writes(node) and isinstance(node.args[0], fx.Node):
                    known[node.args[0]] = known[node]
        raise AssertionError("a graph ends with its output")

    def _convert(self, outer: nn.Module, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if node.op == "call_module":
            path = str(node.target)
            module, path = outer.get_submodule(path), path.removeprefix("model.")
            if isinstance(module, MessagePassing):
                return StepValue(self._conv(module, path, args, kwargs))
            x, *rest = [*args, *kwargs.values()] or [None]
            if any(one is not None for one in rest):
                raise _UnsupportedOperation(f"calls {path} with more than one argument")
            return StepValue(self._module(module, path, x))
        if node.target is getattr:
            if _is_value(args[0]):
                raise _UnsupportedOperation(f"reads .{args[1]} of a matrix")
            return getattr(*args)
        name = str(node.target) if node.op == "call_method" else _name(node.target)
        if name is None:
            raise _UnsupportedOperation(f"calls {getattr(node.target, '__name__', node.target)}")
        if not any(_is_value(arg) for arg in _flat([*args, *kwargs.values()])):
            # Constants: parameters, and values computed from them.
            made = getattr(args[0], name)(*args[1:], **kwargs) if node.op == "call_method" else node.target(*args, **kwargs)  # type: ignore[operator]
            return made.detach() if isinstance(made, Tensor) else made
        convert = FUNCTIONS.get(name)
        if convert is None:
            raise _UnsupportedOperation(f"uses {name}(…)")
        try:
            found = convert(self, *args, **kwargs)
        except TypeError:  # arguments that the step does not have
            found = None
        if found is None:
            raise _UnsupportedOperation(f"uses {name}(…) in a way that no step supports")
        return found

    def _module(self, module: nn.Module, path: str, given: Any) -> int:
        if isinstance(module, JumpingKnowledge):
            if module.mode == "lstm" or not all(isinstance(value, StepValue) for value in given):
                raise _UnsupportedOperation(f"calls {path}, a JumpingKnowledge by {module.mode}")
            return self.add(module.mode, [value.number for value in given])
        if not isinstance(given, StepValue):
            raise _UnsupportedOperation(f"calls {path} with something that is not a matrix of the model")
        x = given.number
        if isinstance(module, _IDENTITY_MODULES):
            return x
        if isinstance(module, nn.Linear | Dense):
            return self.linear(x, matrix(module), module.bias)
        if isinstance(module, norms.BatchNorm):
            module = module.module
        if isinstance(module, nn.BatchNorm1d):
            if module.running_mean is None:
                raise _UnsupportedOperation(f"calls {path}, a BatchNorm without running statistics")
            return self.affine(x, **batch_norm(module))
        if isinstance(module, nn.LayerNorm) or (isinstance(module, norms.LayerNorm) and module.mode == "node"):
            if isinstance(module, nn.LayerNorm) and tuple(module.normalized_shape) != (self.width(x),):
                raise _UnsupportedOperation(f"calls {path}, a LayerNorm over several axes")
            return self.add("layer_norm", [x], {"eps": float(module.eps)}, {"scale": module.weight, "shift": module.bias})
        if isinstance(module, norms.LayerNorm):
            raise _UnsupportedOperation(f"calls {path}, a LayerNorm over all nodes of a graph (mode='node' is supported)")
        if isinstance(module, nn.Softmax | nn.LogSoftmax) and module.dim in LAST:
            return self.add("softmax", [x], {"log": isinstance(module, nn.LogSoftmax)})
        kind = ACTIVATIONS.get(type(module))
        if kind is None or (isinstance(module, nn.Softplus) and (module.beta, module.threshold) != (1, 20)):
            raise _UnsupportedOperation(f"calls {path}, a {type(module).__name__}")
        if kind == "gelu" and module.approximate == "tanh":
            kind = "gelu_tanh"
        return self.activate(x, kind, getattr(module, SLOPES[kind][0]) if kind in SLOPES else 0.0)

    def _conv(self, conv: MessagePassing, path: str, args: Any, kwargs: Any) -> int:
        if not isinstance(conv, PrunedConv):
            raise InputError(f"{path} is a {type(conv).__name__} that is not sparsified; call uf.sparsify on the whole model.")
        given = dict(inspect.signature(conv.stands_for.forward).bind(conv, *args, **kwargs).arguments)
        if getattr(conv, "edge_dim", None) is not None and given.get("edge_attr") is None:
            raise unsupported_edge_features(path, conv)
        freeze = FREEZES.get(type(conv))
        if freeze is None and type(conv).freeze is PrunedConv.freeze:
            return self._own(conv, path, args, kwargs)
        x = given.get("x")
        if isinstance(x, tuple | list) and len(x) == 2 and x[0] == x[1]:
            given["x"] = x[0]
        for name in ("x", "x_0"):
            if not isinstance(given.get(name, StepValue(0)), StepValue):
                raise InputError(
                    f"{path} is called with a {name} that is not one matrix of the model; a frozen layer takes one."
                )
            given[name] = given.get(name, StepValue(0)).number
        if given.get("edge_index") is not Given.EDGES or given.get("edge_weight") not in (None, Given.EDGE_WEIGHT):
            raise _computed_edges(path)
        if given.get("size") is not None:
            raise InputError(f"{path} is called with a size; a frozen layer has one set of nodes.")
        made = conv.freeze(self, given) if freeze is None else freeze(self, conv, given)
        return self._own(conv, path, args, kwargs) if made is None else made

    def diffuse(self, conv: PrunedConv, given: Mapping[str, Any], x: int, bias: Tensor | None = None, **how: Any) -> int:
        """Append the product T x + b of a layer over the messages that it keeps; `how`: norm, loops, weighted_loops."""
        return diffuse(self, conv, given, x, bias, **{"norm": "sum", "loops": None, "weighted_loops": None, **how})

    def _own(self, conv: PrunedConv, path: str, args: Any, kwargs: Any) -> int:
        """A layer that has no step runs with its own code."""
        if Given.EDGES not in _flat([*args, *kwargs.values()]):
            raise _computed_edges(path)
        if conv not in self._layer_widths:
            raise InputError(
                f"{path} is a {conv.stands_for.__name__} that does not return one row per node; it cannot be frozen."
            )
        layer, values = OwnLayer.of(conv, path, args, kwargs, self._layer_widths[conv])
        return self.add("layer", values, {"layer": layer})


def _computed_edges(path: str) -> InputError:
    return InputError(
        f"{path} is called with edges that the model computes itself; a frozen model uses the edges that it is called with."
    )


class _UnsupportedOperation(Exception):
    """An operation that has no step."""


def _graph(outer: _Outer, inputs: Sequence[str], name: str) -> fx.Graph:
    try:
        graph = symbolic_graph(outer, inputs)
    except fx.proxy.TraceError as error:
        raise InputError(
            f"forward of {name} branches on the values or the shape of its inputs ({first_line(error)}), so it is not one list "
            f"of steps; move the branch out of forward."
        ) from error
    except UnifewsError:
        raise
    except Exception as error:
        raise InputError(
            f"forward of {name} cannot be traced ({type(error).__name__}: {first_line(error)}); a frozen model "
            f"is called as model(x, edge_index, edge_weight=None) and made of layers and simple functions of their results."
        ) from error
    return graph


def _needed(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that the result depends on, and those that write to their inputs."""
    found: set[fx.Node] = set()
    stack = [node for node in graph.nodes if node.op == "output" or _writes(node)]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return found


def _writes(node: fx.Node) -> bool:
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    return node.op in ("call_method", "call_function") and name.endswith("_") and not name.endswith("__")


def _place(node: fx.Node) -> str:
    """File and line of an operation in the user's code: the innermost frame that is not in torch or this package."""
    lines = [line.strip() for line in (node.stack_trace or "").splitlines() if line.strip().startswith("File ")]
    lines = [line for line in lines if _TORCH not in line and _HERE not in line]
    if not lines:
        return ""
    parts = lines[-1].split(",")
    file = parts[0].removeprefix("File ").strip('"').rsplit("/", 1)[-1]
    return f" ({file},{parts[1]})"


def _attribute(root: nn.Module, path: str) -> Any:
    found: Any = root
    for part in path.split("."):
        found = getattr(found, part)
    return found.detach() if isinstance(found, Tensor) else found


def _is_value(arg: Any) -> bool:
    return isinstance(arg, StepValue | Given)


def _flat(args: Any) -> list[Any]:
    return [one for arg in args for one in (_flat(arg) if isinstance(arg, tuple | list) else [arg])]


def _name(function: Any) -> str | None:
    """The name of a function of torch or of Python's operators."""
    name = getattr(function, "__name__", "")
    homes = (torch, functional, operator, torch.special, torch.Tensor)
    return name if any(getattr(home, name, None) is function for home in homes) else None


# -------------------------------------------------------------------------------------- layers that run with their own code


class Given(Enum):
    """Placeholders of the edges and their weights while a model is traced."""

    EDGES = "edges"
    EDGE_WEIGHT = "edge weights"


@dataclass(frozen=True)
class UnavailableTensor:
    """Placeholder of a tensor of a Data object that a frozen model is not called with."""

    name: str


Placeholder = StepValue | Given | UnavailableTensor


@dataclass(frozen=True, eq=False)
class OwnLayer(Layer):
    """A copy of a pruned layer, and its arguments: `StepValue` for the step's inputs, `Given` for the graph."""

    conv: PrunedConv
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    lock: Lock = field(default_factory=Lock)

    @classmethod
    def of(cls, conv: PrunedConv, path: str, args: Any, kwargs: Any, width: int) -> tuple[OwnLayer, list[int]]:
        """The layer, and the numbers of the values that it is called with."""
        kind, session = conv.stands_for.__name__, conv.session
        if getattr(conv, "cached", False):
            raise InputError(f"{path} is a {kind} that caches the first graph it is called with; build it with cached=False.")
        pruning = session.pruning
        if pruning.prunes_edges and session.kind.by_edge and pruning.inherit and len(session.convs) > 1:
            raise InputError(
                f"{path} is a {kind}, which runs with its own code in a frozen model and cannot pass on there which edges it "
                f"removed; sparsify the model with entries='unit' or inherit=False."
            )
        alone = Session(session.config, [], [], max_error=session.max_error)
        alone.phase = "frozen"
        own = private_copy(conv, alone).eval()  # without the session of the whole model
        alone.convs, alone.weights = [own], [module for module in own.modules() if isinstance(module, PrunedWeight)]
        numbers: list[int] = []
        weighted = False

        def place(one: Any) -> Any:
            nonlocal weighted
            weighted = weighted or one is Given.EDGE_WEIGHT
            if isinstance(one, StepValue):
                numbers.append(one.number)
                return StepValue(len(numbers) - 1)
            return type(one)(map(place, one)) if type(one) in (tuple, list) else one

        called = tuple(map(place, args)), {name: place(value) for name, value in kwargs.items()}
        weights = [(module.kept, module.matrix.numel()) for module in alone.weights]
        kept, whole = (sum(column) for column in zip(*weights, strict=True)) if weights else (0, 0)
        return cls(path, kind, width, (kept, whole), weighted, own, *called), numbers

    def run(self, values: Sequence[Tensor], edge_index: Tensor, edge_weight: Tensor | None) -> Tensor:
        def fill(one: Any) -> Any:
            if isinstance(one, StepValue):
                return values[one.number]
            if isinstance(one, Given):
                return edge_index if one is Given.EDGES else edge_weight
            return type(one)(map(fill, one)) if type(one) in (tuple, list) else one

        args, kwargs = tuple(map(fill, self.args)), {name: fill(value) for name, value in self.kwargs.items()}
        with self.lock, evaluating(f"{self.path} ({self.kind})"):  # it writes to itself and to its session while it runs
            self.conv.session.begin(self.conv)
            out: Tensor = self.conv(*args, **kwargs)
        return out.detach()


def first_line(error: BaseException) -> str:
    """The first line of the message of an exception, shortened."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


@contextmanager
def evaluating(what: str) -> Iterator[None]:
    """Turn an exception of a model's own code into an `InputError` whose message begins with `what`."""
    try:
        yield
    except (UnifewsError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"{what} cannot be evaluated on this graph ({type(error).__name__}: {first_line(error)}); check that it runs in "
            f"eval mode with this x, edge_index and edge_weight."
        ) from error
