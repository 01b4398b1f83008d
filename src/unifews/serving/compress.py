"""`compress`: a trained model becomes a frozen one, checked against itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from unifews.core.graph import Graph
from unifews.errors import InputError, UnifewsError
from unifews.kernels import threads_to_use
from unifews.nn.convs.base import PrunedConv
from unifews.nn.decoupled import Decoupled
from unifews.nn.linear import PrunedWeight
from unifews.nn.session import Session
from unifews.serving.fold import folded
from unifews.serving.inputs import Call, GivenGraph, as_tensors, call_of, data_of, graph_given, with_weights
from unifews.serving.layer import evaluating
from unifews.serving.model import FrozenModel
from unifews.serving.private import private, unwrapped
from unifews.serving.program import Program
from unifews.serving.schemes import scheme_words
from unifews.serving.tracer import Builder, traced

_TOLERANCE = 1e-4  # of the largest score


def compress(
    model: nn.Module,
    x: Any,
    edge_index: Any = None,
    edge_weight: Any = None,
    *,
    record: dict[str, Any] | None = None,
    threads: int | None = None,
) -> FrozenModel:
    """Freeze a trained model: packed weights, kept edges, BatchNorm folded, nothing of training left.

    Args:
        model: a sparsified PyG model, or a decoupled one of `train`; made of message-passing layers, linear layers, norms,
            activations, sums, products and concatenations. GCNConv, SAGEConv, GINConv, GCN2Conv, GATConv, GATv2Conv, GraphConv,
            SGConv, TAGConv, APPNP, ChebConv and MixHopConv become steps; any other layer keeps its own code, runs on all nodes
            once for a graph, and cannot be saved in a file.
        x, edge_index, edge_weight: the graph that it was trained on, or any other it can be tried on; or a PyG ``Data`` object
            for x alone. The frozen model is compared with ``model.eval()`` on it (1e-4 of the largest score; an error if it
            differs), and bound to it.
        record: what is known of its training, plain values; saved with it.
        threads: that it uses; all cores unless given. ``fast.threads`` changes it.

    Its forward takes x, edge_index and perhaps edge_weight, by these names or in this order, or one ``data`` object with these
    attributes (a one-dimensional floating-point ``edge_attr`` counts as weights there). The frozen model is always called with
    x, edge_index and edge_weight. Heterogeneous graphs, edge features, edge types and poolings over a ``batch`` are refused.

    The model itself is left as it is: a copy, of the same size, is evaluated and traced. Nothing of torch is patched meanwhile,
    so other threads may do what they like, also evaluate this model, save it, or compress it. If another thread trains this
    model, what is frozen is sound but of no single training step: call `compress` between steps to know which. Forward hooks
    run when the copy is evaluated and are not frozen.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"`model` is a {type(model).__name__}; give a torch module that was sparsified and trained.")
    if record is not None and not isinstance(record, dict):
        raise InputError(f"`record` is a dictionary of plain values; got a {type(record).__name__}.")
    if threads is not None:
        threads = threads_to_use(threads)
    model = unwrapped(model)
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError(
            f"{type(model).__name__} is a TorchScript module, which has no Python code to trace; compress the model it was "
            f"made of."
        )
    session = _session(model)
    _check_is_trained(model, session)
    given, call = graph_given(x, edge_index, edge_weight), None
    if isinstance(model, Decoupled):
        given = with_weights(given, "edge_weight", type(model).__name__)
    else:
        call, given = call_of(model, as_tensors(given))
    program, expected = _frozen(model, call, given)
    fast = FrozenModel(program, requested=_requested(model, session), record=record)
    fast.threads = threads
    unused = call is not None and call.takes_data and not program.weighted
    fast.bind(given.x, given.edge_index, None if unused else given.edge_weight)
    _compare(fast.predict(), expected, program, type(model).__name__, hooks=_has_hooks(model, session))
    return fast


@torch.no_grad()
def _frozen(model: nn.Module, call: Call | None, given: GivenGraph) -> tuple[Program, Tensor]:
    """The program of a model, and what the model itself returns for this graph."""
    model = private(model).eval()  # calls in another thread, or training, may go on meanwhile
    with _watched(model) as widths:
        expected = _evaluated(model, call, given)
    return folded(_program(model, call, given, widths)), expected


def _program(model: nn.Module, call: Call | None, given: GivenGraph, widths: dict[nn.Module, int]) -> Program:
    features = given.x.shape[-1]
    if call is None:
        assert isinstance(model, Decoupled)
        return _decoupled(model, features)
    weighted = given.edge_weight is not None
    plain = traced(model, features, widths, call, given, weighted=weighted)
    if call.takes_data:
        return _by_use(plain, given, type(model).__name__)
    if weighted or call.weight is None:
        return plain
    try:
        other = traced(model, features, widths, call, given, weighted=True)
    except UnifewsError:  # it has an argument for weights, and no layer that takes them
        return plain
    # With weights it does the same steps, or else what was compared is only the one without.
    return other if [step.op for step in other.steps] == [step.op for step in plain.steps] else plain


def _by_use(program: Program, given: GivenGraph, name: str) -> Program:
    """Whether a program takes weights, where only its steps say so; those that a user gave must be used."""
    weighted = any(step.uses_weights for step in program.steps)
    if given.edge_weight is not None and given.data is None and not weighted:
        raise InputError(
            f"forward of {name} does not use data.edge_weight; leave `edge_weight` out, or give compress(model, data) the Data "
            f"object that the model is called with."
        )
    return replace(program, weighted=weighted)


def _decoupled(model: Decoupled, features: int) -> Program:
    builder, value = Builder(features), 0
    if model.propagation is not None:
        how = {**model.propagation, "scheme": scheme_words(model.propagation["scheme"])}
        value = builder.add("propagate", [0], {"how": how, "exponent": int(model.exponent)})
        if model.axes is not None:
            value = builder.add("rotate", [value], {}, {"axes": model.axes})
    builder.inline(model.head, value, "head")
    return Program(features, tuple(builder.steps), weighted=model.propagation is not None)


def _session(model: nn.Module) -> Session | None:
    return next((module.session for module in model.modules() if isinstance(module, PrunedConv)), None)


def _check_is_trained(model: nn.Module, session: Session | None) -> None:
    if not any(isinstance(module, PrunedConv | PrunedWeight) for module in model.modules()):
        raise InputError(
            f"{type(model).__name__} has no masks, so there is nothing to freeze; call uf.sparsify(model, ...), train that, "
            f"and compress it."
        )
    if session is None:
        return
    pruning = session.pruning
    session.discard_stale_edges()
    undecided = pruning.prunes_edges and not all(bool(conv.decided) for conv in session.convs)
    if undecided or (pruning.prunes_weights and not session.passes):
        raise InputError(
            f"this {type(model).__name__} is sparsified but not trained yet, so nothing has been decided; train it (an "
            f"average of models: call it once in evaluation mode), then compress it."
        )


def _requested(model: nn.Module, session: Session | None) -> str:
    if session is not None:
        return str(session.pruning)
    pruned = any(module.is_pruned for module in model.modules() if isinstance(module, PrunedWeight))
    how = (model.propagation or {}) if isinstance(model, Decoupled) else {}
    said = [f"{name}={how[name]:g}" for name in ("edge_sparsity", "threshold", "relative_threshold") if how.get(name)]
    return ", ".join([*said, *(["weights"] if pruned else [])]) or "unpruned"


@contextmanager
def _watched(model: nn.Module) -> Iterator[dict[nn.Module, int]]:
    """Columns of what each layer returns while the model, a private copy, is called."""
    widths: dict[nn.Module, int] = {}

    def see(module: nn.Module, _: Any, out: Any) -> None:
        if isinstance(out, Tensor) and out.ndim == 2:
            widths[module] = out.shape[1]

    hooks = [module.register_forward_hook(see) for module in model.modules() if isinstance(module, PrunedConv)]
    try:
        yield widths
    finally:
        for hook in hooks:
            hook.remove()


def _evaluated(model: nn.Module, call: Call | None, given: GivenGraph) -> Tensor:
    """What the model itself returns for this graph."""
    name, x = type(model).__name__, given.x
    with evaluating(name):
        try:
            out = _called(model, call, given)
        except (RuntimeError, InputError):  # not every layer takes sparse features: GIN adds a node's own to its neighbours'
            if call is None or x.layout == torch.strided:
                raise
            out = _called(model, call, replace(given, x=x.to_dense()))
    if not isinstance(out, Tensor) or out.ndim != 2:
        raise InputError(f"forward of {name} gives no matrix of scores, one row per node; what is frozen gives one.")
    if len(out) != x.shape[0]:
        raise InputError(
            f"forward of {name} gives {len(out):,} rows for {x.shape[0]:,} nodes, as a pooling does, and a frozen model "
            f"gives one row per node; compress the layers before the pooling and pool what the frozen model returns."
        )
    return out.detach().cpu().float()


def _called(model: nn.Module, call: Call | None, given: GivenGraph) -> Any:
    if call is None:
        edges = given.edge_index
        if given.edge_weight is not None:
            edges = Graph.from_edge_index(edges, num_nodes=given.x.shape[0], edge_weight=given.edge_weight)
        return model(given.x, edges)
    if call.takes_data:
        return model(data_of(given))
    args, kwargs = call.arguments(given.x, given.edge_index, given.edge_weight)
    return model(*args, **kwargs)


def _has_hooks(model: nn.Module, session: Session | None) -> bool:
    """Whether any module has forward hooks, apart from those by which a session follows the calls of its layers."""
    hooks = (
        hook for module in model.modules() for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    )
    return any(session is None or getattr(hook, "__self__", None) is not session for hook in hooks)


def _compare(found: Tensor, expected: Tensor, program: Program, name: str, *, hooks: bool) -> None:
    if found.shape != expected.shape:
        raise InputError(
            f"{name} gives scores of shape {list(expected.shape)} and its frozen form {list(found.shape)}, so it does "
            f"something that its steps do not show; write it without side effects."
        )
    difference = found - expected
    if program.decides:  # rounding may tip single products of just the threshold's size: what counts is the whole
        error, scale = float(difference.norm()), float(expected.norm())
    else:
        error, scale = float(difference.abs().max()), float(expected.abs().max())
    if not error <= _TOLERANCE * scale + 1e-30:
        raise InputError(
            f"the frozen form of {name} differs from it by {error / max(scale, 1e-30):.2g} of its scores, more than "
            f"{_TOLERANCE:g}, so it does something that its steps do not show; "
            + ("forward hooks are not frozen: remove those that change what a layer is given or returns, or " if hooks else "")
            + "check that its scores are finite and the same in every call."
        )
