"""`compress`: a frozen model from a trained one, compared with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from unifews.core.graph import Graph
from unifews.core.schemes import scheme_to_plain
from unifews.errors import InputError, UnifewsError
from unifews.kernels import threads_to_use
from unifews.nn.convs.base import PrunedConv, session_of
from unifews.nn.decoupled import DecoupledModel
from unifews.nn.linear import PrunedWeight
from unifews.nn.session import Session
from unifews.serving.fold import folded
from unifews.serving.inputs import Call, GivenGraph, as_tensors, call_of, data_of, graph_given, with_weights
from unifews.serving.model import FrozenModel
from unifews.serving.model_copy import private_copy, unwrapped
from unifews.serving.packed_arrays import Json
from unifews.serving.program import Program
from unifews.serving.tracer import Tracer, evaluating, traced

_TOLERANCE = 1e-4  # of the largest score


def compress(
    model: nn.Module,
    x: Any,
    edge_index: Any = None,
    edge_weight: Any = None,
    *,
    record: Json | None = None,
    threads: int | None = None,
) -> FrozenModel:
    """Freeze a trained model for inference: packed weights, kept edges, folded BatchNorm.

    Args:
        model: a sparsified PyG model, or a decoupled one of `train`; built of message-passing layers, linear layers, norms,
            activations, sums, products and concatenations. GCNConv, SAGEConv, GINConv, GCN2Conv, GATConv, GATv2Conv, GraphConv,
            SGConv, TAGConv, APPNP, ChebConv and MixHopConv become steps; any other layer runs with its own code, on all nodes
            once per graph, and cannot be saved in a file.
        x, edge_index, edge_weight: the training graph, or any other to compare on; or a PyG ``Data`` object as x alone. The
            frozen model is compared with ``model.eval()`` on it (an error if they differ by more than 1e-4 of the largest
            score), and bound to it.
        record: metadata of its training, JSON values; saved with it.
        threads: number of threads; default: all cores. ``fast.threads`` changes it.

    Its forward takes x, edge_index and perhaps edge_weight, by these names or in this order, or one ``data`` object with these
    attributes (a one-dimensional floating-point ``edge_attr`` counts as weights there). The frozen model is always called with
    x, edge_index and edge_weight. Heterogeneous graphs, edge features, edge types and poolings over a ``batch`` are refused.

    The model is not modified: a copy is evaluated and traced, without patching torch, so other threads may evaluate, save or
    compress the same model meanwhile. If another thread trains it, the frozen weights may mix those of several training steps:
    call `compress` between steps. Forward hooks run when the copy is evaluated and are not frozen.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"`model` is a {type(model).__name__}; give a torch module that was sparsified and trained.")
    if record is not None and not isinstance(record, dict):
        raise InputError(f"`record` is a dictionary of JSON values; got a {type(record).__name__}.")
    if threads is not None:
        threads = threads_to_use(threads)
    model = unwrapped(model)
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError(
            f"{type(model).__name__} is a TorchScript module, which has no Python code to trace; compress the original model."
        )
    session = session_of(model)
    _check_is_trained(model, session)
    given, call = graph_given(x, edge_index, edge_weight), None
    if isinstance(model, DecoupledModel):
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
    """The program of a model, and the result of the model itself on this graph."""
    model = private_copy(model).eval()  # other threads may call or train the model
    with _record_widths(model) as widths:
        expected = _evaluated(model, call, given)
    return folded(_program(model, call, given, widths)), expected


def _program(model: nn.Module, call: Call | None, given: GivenGraph, widths: dict[nn.Module, int]) -> Program:
    features = given.x.shape[-1]
    if call is None:
        assert isinstance(model, DecoupledModel)
        return _decoupled(model, features)
    weighted = given.edge_weight is not None
    plain = traced(model, features, widths, call, given, weighted=weighted)
    if call.takes_data:
        return _weighted_if_used(plain, given, type(model).__name__)
    if weighted or call.weight is None:
        return plain
    try:
        other = traced(model, features, widths, call, given, weighted=True)
    except UnifewsError:  # it has an argument for weights, but no layer takes them
        return plain
    # Only if the steps are the same: the comparison runs without weights.
    return other if [step.op for step in other.steps] == [step.op for step in plain.steps] else plain


def _weighted_if_used(program: Program, given: GivenGraph, name: str) -> Program:
    """Set `weighted` by whether a step uses weights; weights given by the user must be used."""
    weighted = any(step.uses_weights for step in program.steps)
    if given.edge_weight is not None and given.data is None and not weighted:
        raise InputError(
            f"forward of {name} does not use data.edge_weight; leave `edge_weight` out, or give compress(model, data) the Data "
            f"object that the model is called with."
        )
    return replace(program, weighted=weighted)


def _decoupled(model: DecoupledModel, features: int) -> Program:
    builder, value = Tracer(features), 0
    if model.propagation is not None:
        how = {**model.propagation, "scheme": scheme_to_plain(model.propagation["scheme"])}
        value = builder.add("propagate", [0], {"how": how, "exponent": int(model.exponent)})
        if model.axes is not None:
            value = builder.add("rotate", [value], {}, {"axes": model.axes})
    builder.inline(model.head, value, "head")
    return Program(features, tuple(builder.steps), weighted=model.propagation is not None)


def _check_is_trained(model: nn.Module, session: Session | None) -> None:
    if not any(isinstance(module, PrunedConv | PrunedWeight) for module in model.modules()):
        raise InputError(
            f"{type(model).__name__} has no masks, so there is nothing to freeze; call uf.sparsify(model, ...), train the "
            f"result, and compress that."
        )
    if session is None:
        return
    pruning = session.pruning
    session.discard_stale_edges()
    undecided = pruning.prunes_edges and not all(bool(conv.decided) for conv in session.convs)
    if undecided or (pruning.prunes_weights and not session.passes):
        raise InputError(
            f"this {type(model).__name__} is sparsified but not trained yet, so no decisions are stored; train it (an average "
            f"of models: call it once in evaluation mode), then compress it."
        )


def _requested(model: nn.Module, session: Session | None) -> str:
    if session is not None:
        return str(session.config)
    pruned = any(module.is_pruned for module in model.modules() if isinstance(module, PrunedWeight))
    how = (model.propagation or {}) if isinstance(model, DecoupledModel) else {}
    amounts = ("edge_sparsity", "threshold", "relative_threshold", "max_error")
    requested = [f"{name}={how[name]:g}" for name in amounts if how.get(name)]
    return ", ".join([*requested, *(["weights"] if pruned else [])]) or "unpruned"


@contextmanager
def _record_widths(model: nn.Module) -> Iterator[dict[nn.Module, int]]:
    """Record the number of columns that each layer returns while the model, a private copy, is called."""
    widths: dict[nn.Module, int] = {}

    def record_width(module: nn.Module, _: Any, out: Any) -> None:
        if isinstance(out, Tensor) and out.ndim == 2:
            widths[module] = out.shape[1]

    hooks = [module.register_forward_hook(record_width) for module in model.modules() if isinstance(module, PrunedConv)]
    try:
        yield widths
    finally:
        for hook in hooks:
            hook.remove()


def _evaluated(model: nn.Module, call: Call | None, given: GivenGraph) -> Tensor:
    """The result of the model itself on this graph."""
    name, x = type(model).__name__, given.x
    with evaluating(name):
        try:
            out = _called(model, call, given)
        except (RuntimeError, InputError):  # some layers take no sparse features, such as GIN
            if call is None or x.layout == torch.strided:
                raise
            out = _called(model, call, replace(given, x=x.to_dense()))
    if not isinstance(out, Tensor) or out.ndim != 2:
        raise InputError(f"forward of {name} does not return a matrix of scores with one row per node, as a frozen model does.")
    if len(out) != x.shape[0]:
        raise InputError(
            f"forward of {name} returns {len(out):,} rows for {x.shape[0]:,} nodes, as a pooling does, and a frozen model "
            f"returns one row per node; compress the layers before the pooling and pool the scores of the frozen model."
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
    return call.apply(model, given.x, given.edge_index, given.edge_weight)


def _has_hooks(model: nn.Module, session: Session | None) -> bool:
    """Whether any module has forward hooks other than those of the session."""
    hooks = (
        hook for module in model.modules() for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    )
    return any(session is None or getattr(hook, "__self__", None) is not session for hook in hooks)


def _compare(found: Tensor, expected: Tensor, program: Program, name: str, *, hooks: bool) -> None:
    if found.shape != expected.shape:
        raise InputError(
            f"{name} returns scores of shape {list(expected.shape)} and its frozen form {list(found.shape)}, so its "
            f"forward has effects that tracing does not record; remove its side effects."
        )
    difference = found - expected
    if program.decides:  # rounding may decide about single products near a threshold, so norms are compared
        error, scale = float(difference.norm()), float(expected.norm())
    else:
        error, scale = float(difference.abs().max()), float(expected.abs().max())
    if not error <= _TOLERANCE * scale + 1e-30:
        raise InputError(
            f"the frozen form of {name} differs from it by {error / max(scale, 1e-30):.2g} of its scores, more than "
            f"{_TOLERANCE:g}, so its forward has effects that tracing does not record; "
            + ("forward hooks are not frozen: remove those that change inputs or outputs of a layer, or " if hooks else "")
            + "check that its scores are finite and deterministic."
        )
