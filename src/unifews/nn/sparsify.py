"""`sparsify`: a PyG model that prunes its own messages and weights while it trains, and back; `accelerate`: one that only runs
faster."""

from __future__ import annotations

import copy
import warnings
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch_geometric.nn import Linear as Dense
from torch_geometric.nn import MessagePassing

from unifews.errors import InputError, unknown_name
from unifews.nn.acceleration import AcceleratedLayer, AccelerationReport
from unifews.nn.config import LayerEntries, Phase, PruningConfig, Share
from unifews.nn.convs import KINDS, PrunedConv
from unifews.nn.convs.generic import generic
from unifews.nn.dense import PrunedDense
from unifews.nn.inheritance import relation_of
from unifews.nn.linear import PrunedLinear, PrunedWeight
from unifews.nn.session import Session
from unifews.nn.trace import ModelTrace
from unifews.nn.unpruned import unpruned_weights

M = TypeVar("M", bound=nn.Module)
_PHASES = ("regrow", "monotone", "monotone-weights", "frozen")


def sparsify(
    model: M,
    *,
    edge_sparsity: float | None = None,
    edge_threshold: float | None = None,
    weight_sparsity: float | None = None,
    weight_threshold: float | None = None,
    absolute: bool = False,
    entries: LayerEntries = "unit",
    budget: Share = "macs",
    inherit: bool = True,
    ramp: int = 30,
    feedback: bool = True,
    hysteresis: float = 4.0,
    norm_momentum: float | None = 0.9,
    inplace: bool = False,
) -> M:
    """A copy of a PyG model that skips the products that do not matter; same signature, same training loop.

    Args:
        model: any module with PyG message-passing layers in it.
        edge_sparsity: share of the propagation's multiply-adds to remove, over all layers. Or
        edge_threshold: products smaller than this multiple of the layer's mean are removed (the authors' relative δ_a).
        weight_sparsity: share of the weights to remove, over all layers. Or
        weight_threshold: the authors' relative δ_w.
        absolute: thresholds are δ itself, as in the paper, not a multiple of a mean.
        entries: what one decision is about: a ``"unit"`` (one column of a layer's messages, along all edges: the default,
            because it is the fastest and the most accurate, docs/adr/0014), a ``"block"`` of 16 columns of one edge, a
            ``"feature"`` of one edge, or a whole edge, ``"node"``, the paper's form.
        budget: ``"macs"`` shares the multiply-adds that may stay so that wide layers give most, of their edges and of their
            weights; ``"layers"`` removes the same share in each (for nested edges: on average), the paper's mean over layers.
        inherit: an edge that one layer removes is not seen by the next on the same edges; parallel layers, such as relations of
            a `HeteroConv`, do not inherit from each other (`unifews.nn.inheritance` has the criterion).
        ramp: training passes over which the share of weights grows to `weight_sparsity`.
        feedback: whether removed weights go on learning while they may come back (docs/adr/0012).
        hysteresis: where a BatchNorm has a momentum below .5, a column that is sent is replaced only by one this many
            times as large (``entries="unit"`` and `edge_sparsity`); 1 decides from scratch in every pass (docs/adr/0024).
        norm_momentum: while training runs on one and the same graph, BatchNorm's running statistics follow with at least this
            momentum; None leaves it as it is.
        inplace: change `model` itself.

    A call in training mode with gradients is a training pass: it decides anew what stays. Any other call uses what was
    decided. With ``entries="node"`` that is a list of edges, known by their ends: it is for graphs of the same number of nodes,
    and an edge never seen in training stays (`trace` says so where most are such); the other forms carry over to any graph.
    Nothing else has to be called; `set_schedule` restricts what later passes may change. The authors' form is
    ``entries="node", edge_threshold=..., weight_threshold=..., feedback=False``.
    """
    pruning = PruningConfig(
        edge_sparsity,
        edge_threshold,
        weight_sparsity,
        weight_threshold,
        absolute,
        entries,
        budget,
        inherit,
        ramp,
        feedback,
        hysteresis,
        norm_momentum,
    )
    _check_model(model, pruning)
    model = model if inplace else copy.deepcopy(model)
    session = Session(pruning, [], [])
    for module in list(model.modules()):
        _mask(module)
    for path, module in list(model.named_modules()):
        if isinstance(module, MessagePassing):
            kind = type(module)
            found = KINDS.get(kind)
            by = found if found is not None and found.supports(module) else generic(kind)  # type: ignore[arg-type]
            _replace(module, by, model, path, session)
    session.weights = [module for module in model.modules() if isinstance(module, PrunedWeight)]
    _check_weights(model, pruning)
    if pruning.prunes_weights and (note := unpruned_weights(model)):
        session.notes = (note,)
        warnings.warn(f"{note}.", UserWarning, stacklevel=2)
    session.attach(model)
    return model


def accelerate(model: M, *, inplace: bool = False) -> M:
    """A copy of a PyG model whose layers run on the CPU kernels of this library, with nothing pruned.

    Args:
        model: any module with PyG message-passing layers in it.
        inplace: change `model` itself.

    GCNConv, GATConv, GATv2Conv, SAGEConv (mean or sum), GINConv and GCN2Conv are replaced, forward and backward; every other
    layer stays PyG's own. ``print(model.unifews_report)`` lists both. Outputs and gradients are those of PyG up to the rounding
    of float32 sums taken in another order. Signature, parameters, optimizer and ``state_dict`` are those of the PyG model, so
    checkpoints of either load into the other; `desparsify` gives the PyG layers back.

    Kernels are for float32 on the CPU. Any other precision or device runs the same layers in plain torch operations, and a
    replaced attention layer that is called with edge features, two sets of nodes or ``return_attention_weights`` runs PyG's own
    messages: right, and not faster. Half precision and ``torch.autocast`` on the CPU are refused.
    """
    _check_model(model, PruningConfig())
    convs = [module for module in model.modules() if isinstance(module, MessagePassing)]
    if not any(_kernel(conv) for conv in convs):
        reasons = "; ".join(sorted({_no_kernel(conv) for conv in convs}))
        known = ", ".join(kind.__name__ for kind, found in KINDS.items() if found.fused)
        raise InputError(f"{type(model).__name__} has nothing to accelerate: {reasons}. There are kernels for {known}.")
    model = model if inplace else copy.deepcopy(model)
    session, layers = Session(PruningConfig(), [], []), []
    buffers = {module: set(module._buffers) for module in model.modules()}
    for path, module in list(model.named_modules()):
        if isinstance(module, MessagePassing):
            name, found = type(module).__name__, _kernel(module)
            if found is None:
                layers.append(AcceleratedLayer(path or name, name, None, _no_kernel(module)))
                continue
            for child in module.children():
                _mask(child)
            _replace(module, found, model, path, session)
            layers.append(AcceleratedLayer(path or name, name, found.__name__))
    session.weights = [module for conv in session.convs for module in conv.children() if isinstance(module, PrunedWeight)]
    for module in model.modules():  # masks that remove nothing are not worth saving, and PyG's model has none
        module._non_persistent_buffers_set |= set(module._buffers) - buffers.get(module, set())
    session.attach(model)
    model.unifews_report = AccelerationReport(tuple(layers))  # type: ignore[assignment]
    return model


def _kernel(conv: MessagePassing) -> type[PrunedConv] | None:
    """The class with a kernel that does what this layer does, if there is one."""
    found = KINDS.get(type(conv))
    return found if found is not None and found.fused and found.supports(conv) else None


def _no_kernel(conv: MessagePassing) -> str:
    found = KINDS.get(type(conv))
    if found is None or not found.fused:
        return f"no kernel for {type(conv).__name__}"
    what = "an explainer" if conv.explain else f"aggr={conv.aggr!r}" if conv.aggr else "an aggregation module"
    return f"no kernel for {type(conv).__name__} with {what}"


def _mask(module: nn.Module) -> None:
    """A linear layer gets a mask of its weights."""
    if isinstance(module, nn.Linear | Dense) and type(module) in (nn.Linear, Dense):
        module.__class__ = PrunedLinear if isinstance(module, nn.Linear) else PrunedDense
        assert isinstance(module, PrunedWeight)
        module.begin_pruning()


def _replace(conv: MessagePassing, kind: type[PrunedConv], model: nn.Module, path: str, session: Session) -> None:
    """A message-passing layer becomes one of `kind`."""
    name = type(conv).__name__
    conv.__class__ = kind
    assert isinstance(conv, PrunedConv)
    conv.begin_pruning(session, path or name)
    conv.relation = relation_of(model, path)
    session.convs.append(conv)


def desparsify(model: M, *, inplace: bool = False) -> M:
    """An ordinary PyG model again, with zeros where weights were removed. Its edges are all used again."""
    _session(model)
    model = model if inplace else copy.deepcopy(model)
    session = _session(model)
    for weight in session.weights:
        weight.settle()
    for conv in session.convs:
        conv.end_pruning()
    for module in model.modules():
        if isinstance(module, PrunedLinear | PrunedDense):
            module.end_pruning()
            module.__class__ = nn.Linear if isinstance(module, PrunedLinear) else Dense  # type: ignore[assignment]
    session.detach(model)
    model.__dict__.pop("unifews_report", None)
    return model


def set_schedule(model: nn.Module, phase: Phase) -> None:
    """What training passes may change from now on: ``"regrow"`` decides from scratch each time, so what was removed may come
    back; ``"monotone"`` only removes more; ``"monotone-weights"`` only removes more weights and decides edges from scratch, as
    the authors in the second half of the epochs; ``"frozen"`` changes nothing."""
    if phase not in _PHASES:
        raise unknown_name("schedule", phase, _PHASES)
    _session(model).phase = phase


def set_node_lock(model: nn.Module, nodes: Tensor | None) -> None:
    """Leave all edges into these nodes in place in the first layer when judging, and count them: the authors' evaluation, which
    flatters a model. None takes it back. For ``entries="node"``."""
    _session(model).node_lock = nodes


def trace(model: nn.Module) -> ModelTrace:
    """What the last forward pass of a sparsified model kept, layer by layer."""
    session = _session(model)
    if session.now is None:
        raise InputError("the model has not been called yet; call it once, then ask for its trace.")
    return session.trace()


def _session(model: nn.Module) -> Session:
    for module in model.modules():
        if isinstance(module, PrunedConv):
            return module.session
    raise InputError(f"{type(model).__name__} is not sparsified; call uf.sparsify(model, ...) first.")


def _nothing_to_send(name: str, pruning: PruningConfig) -> str:
    """A head without a graph is not what `sparsify` is for, and its weights are pruned elsewhere."""
    said = f"{name} holds no PyG message-passing layer such as GCNConv"
    if not pruning.prunes_weights:
        return f"{said}; there are no edges to prune in it."
    return (
        f"{said}, whose passes decide which weights go; for a plain head use uf.train(data, 'mlp', weight_sparsity=...), or "
        f"unifews.nn.mlp.Mlp and `decide` of its layers."
    )


def _check_model(model: nn.Module, pruning: PruningConfig) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"`model` is a {type(model).__name__}; give a torch module that holds PyG layers.")
    if any(isinstance(module, PrunedConv) for module in model.modules()):
        raise InputError("this model is sparsified already; call desparsify(model) first to change what it removes.")
    if not any(isinstance(module, MessagePassing) for module in model.modules()):
        raise InputError(_nothing_to_send(type(model).__name__, pruning))
    _check_lazy(model)


def _check_lazy(model: nn.Module) -> None:
    for name, value in model.named_parameters():
        if isinstance(value, UninitializedParameter):
            raise InputError(f"{name} has no shape yet (a lazy layer); call the model once before sparsifying it.")


def _check_weights(model: nn.Module, pruning: PruningConfig) -> None:
    if not pruning.weight_sparsity:
        return
    pruned = [(path, module.matrix) for path, module in model.named_modules() if isinstance(module, PrunedWeight)]
    shares = pruning.weight_shares([(matrix.shape[0], matrix.shape[1]) for _, matrix in pruned])
    for (path, matrix), share in zip(pruned, shares, strict=True):
        if round(share * matrix.numel()) >= matrix.numel():
            raise InputError(
                f"weight_sparsity={pruning.weight_sparsity:g} would remove all {matrix.numel():,} weights of {path}; give less."
            )


def state_of(model: nn.Module) -> dict[str, Any]:
    """A copy of everything that belongs to a model, masks included, to come back to with `load_state_dict`."""
    return {name: value.clone() for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
