"""`compress`: a trained model becomes a frozen one, checked against itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from unifews.core.graph import Graph
from unifews.errors import InputError, UnifewsError
from unifews.nn.convs.base import PrunedConv
from unifews.nn.decoupled import Decoupled
from unifews.nn.frozen.fold import folded
from unifews.nn.frozen.model import FrozenModel, features_of
from unifews.nn.frozen.program import Program
from unifews.nn.frozen.schemes import scheme_words
from unifews.nn.frozen.symbolic import Builder, takes_weights, traced
from unifews.nn.frozen.wiring import as_edges
from unifews.nn.linear import PrunedWeight
from unifews.nn.session import Session

_TOLERANCE = 1e-4  # of the largest score


def compress(
    model: nn.Module,
    x: Any,
    edge_index: Any,
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
        x, edge_index, edge_weight: the graph that it was trained on, or any other it can be tried on. The frozen model is
            compared with ``model.eval()`` on it (1e-4 of the largest score; an error if it differs), and bound to it.
        record: what is known of its training, plain values; saved with it.
        threads: that it uses; all cores unless given. ``fast.threads`` changes it.

    The model itself is left as it is.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"`model` is a {type(model).__name__}; give a torch module that was sparsified and trained.")
    if record is not None and not isinstance(record, dict):
        raise InputError(f"`record` is a dictionary of plain values; got a {type(record).__name__}.")
    session = _session(model)
    _check_is_trained(model, session)
    if not isinstance(model, Decoupled):
        x = x if isinstance(x, Tensor) else features_of(x)
        if not isinstance(edge_index, Tensor):
            edge_index, edge_weight = as_edges(edge_index, edge_weight)
    with _judging(model, session), torch.no_grad():
        with _watched(model) as widths:
            expected = _judged(model, x, edge_index, edge_weight)
        program = folded(_program(model, x.shape[-1], widths, edge_weight is not None))
    fast = FrozenModel(program, requested=_requested(model, session), record=record)
    fast.threads = threads
    fast.bind(x, edge_index, edge_weight)
    _compare(fast.predict(), expected, program, type(model).__name__)
    return fast


def _program(model: nn.Module, features: int, widths: dict[nn.Module, int], weighted: bool) -> Program:
    if isinstance(model, Decoupled):
        return _decoupled(model, features)
    if weighted:
        return traced(model, features, widths, weighted=True)
    plain = traced(model, features, widths, weighted=False)
    if not takes_weights(model):
        return plain
    try:
        other = traced(model, features, widths, weighted=True)
    except UnifewsError:  # it has an argument for weights, and no layer that takes them
        return plain
    # With weights it does the same steps, or else what was compared is only the one without.
    return other if [step.op for step in other.steps] == [step.op for step in plain.steps] else plain


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
    undecided = pruning.prunes_edges and not all(bool(conv.decided) for conv in session.convs)
    if undecided or (pruning.prunes_weights and not session.passes):
        raise InputError(
            f"this {type(model).__name__} is sparsified but not trained yet, so nothing has been decided; train it, then "
            f"compress it."
        )


def _requested(model: nn.Module, session: Session | None) -> str:
    if session is not None:
        return str(session.pruning)
    pruned = any(module.is_pruned for module in model.modules() if isinstance(module, PrunedWeight))
    how = (model.propagation or {}) if isinstance(model, Decoupled) else {}
    said = [f"{name}={how[name]:g}" for name in ("edge_sparsity", "threshold", "relative_threshold") if how.get(name)]
    return ", ".join([*said, *(["weights"] if pruned else [])]) or "unpruned"


@contextmanager
def _judging(model: nn.Module, session: Session | None) -> Iterator[None]:
    """The model as it is judged; afterwards it is as it was."""
    training = [module for module in model.modules() if module.training]
    seen = {module: module.rows for module in model.modules() if isinstance(module, PrunedWeight)}
    before = {} if session is None else dict(vars(session))
    try:
        model.eval()
        if session is not None:
            session.node_lock = None  # edges that are there only while a model is judged do not belong to it
        yield
    finally:
        for module in training:
            module.training = True
        for weight, rows in seen.items():
            weight.rows = rows
        if session is not None:
            vars(session).update(before)


@contextmanager
def _watched(model: nn.Module) -> Iterator[dict[nn.Module, int]]:
    """Columns of what each layer gives while the model is called."""
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


def _judged(model: nn.Module, x: Any, edge_index: Any, edge_weight: Any) -> Tensor:
    if isinstance(model, Decoupled):
        if edge_weight is not None:
            edge_index = Graph.from_edge_index(edge_index, num_nodes=x.shape[0], edge_weight=edge_weight)
        out = model(x, edge_index)
    else:
        how = takes_weights(model)
        if edge_weight is not None and how is None:
            raise InputError(f"forward of {type(model).__name__} has no place for edge weights; leave `edge_weight` out.")
        weight = {} if edge_weight is None or how == "*" else {"edge_weight": edge_weight}
        more = () if edge_weight is None or how != "*" else (edge_weight,)
        try:
            out = model(x, edge_index, *more, **weight)
        except (RuntimeError, InputError):  # not every layer takes sparse features: GIN adds a node's own to its neighbours'
            if x.layout == torch.strided:
                raise
            out = model(x.to_dense(), edge_index, *more, **weight)
    if not isinstance(out, Tensor) or out.ndim != 2:
        raise InputError(
            f"forward of {type(model).__name__} gives no matrix of scores, one row per node; what is frozen gives one."
        )
    return out.detach().cpu().float()


def _compare(found: Tensor, expected: Tensor, program: Program, name: str) -> None:
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
            f"{_TOLERANCE:g}, so it does something that its steps do not show; check that its scores are finite and the same "
            f"in every call."
        )
