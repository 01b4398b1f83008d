"""`sparsify`: a PyG model that prunes its messages and weights in training; `accelerate`: one that only runs faster."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import TypeVar

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch_geometric.nn import Linear as Dense
from torch_geometric.nn import MessagePassing

from unifews.core.checks import check_flags
from unifews.errors import InputError, unknown_name
from unifews.nn.acceleration import AcceleratedLayer, AccelerationReport
from unifews.nn.config import Choice, LayerEntries, Phase, PruningConfig, Scope, Share
from unifews.nn.convs import KINDS, PrunedConv
from unifews.nn.convs.base import PrunedPyGLinear, session_of
from unifews.nn.convs.generic import generic
from unifews.nn.convs.hops import ManyHops
from unifews.nn.functions import FastFunctions, functions_of
from unifews.nn.inheritance import relation_of
from unifews.nn.linear import PrunedLinear, PrunedWeight, unpruned_weights
from unifews.nn.session import Session
from unifews.nn.thinning import check_thinnable
from unifews.nn.trace import ModelTrace

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
    choice: Choice = "largest",
    scope: Scope = "auto",
    choice_seed: int = 0,
    budget: Share = "macs",
    inherit: bool = True,
    ramp: int = 30,
    feedback: bool = True,
    hysteresis: float | None = None,
    norm_momentum: float | None = 0.9,
    renormalize: bool = True,
    max_error: float | None = None,
    replace_functions: bool = True,
    inplace: bool = False,
) -> M:
    """A copy of a PyG model that skips small products in training and evaluation; same signature, same training loop.

    Args:
        model: any module that contains PyG message-passing layers.
        edge_sparsity: fraction of the propagation's multiply-adds to remove, over all layers. Or
        edge_threshold: remove products below this multiple of the layer's mean magnitude (the authors' relative δ_a).
        weight_sparsity: fraction of the weights to remove, over all layers. Or
        weight_threshold: the authors' relative δ_w.
        absolute: thresholds are δ itself, as in the paper, not a multiple of a mean.
        entries: what is pruned: ``"edge"`` edges of the graph, chosen once by degrees; layers run on the others as if there
            were no more (docs/adr/0029). Or, decided in every training pass by the size of messages, ``"node"`` a whole edge,
            as in the paper, ``"block"`` 16 columns of an edge, ``"feature"`` one, ``"unit"`` a column along all edges.
        choice: what is kept: the ``"largest"`` entries, or as controls as many ``"random"`` or ``"smallest"`` ones, at the same
            cost. For ``entries`` "unit", "node" and "edge".
        scope: edges are compared within the ``"graph"`` or within each ``"target"`` (`unifews.nn.thinning.EdgeRule`).
        choice_seed: of ``choice="random"``.
        budget: ``"macs"`` prunes wide layers most; ``"layers"`` removes the same fraction in each, as in the paper.
        inherit: edges removed by a layer do not exist for the next one (`unifews.nn.inheritance`).
        ramp: training passes over which the fraction of removed weights grows to `weight_sparsity`.
        feedback: whether removed weights are still trained while they may be restored (docs/adr/0012).
        hysteresis: a kept column is replaced only by one this many times as large. None: columns are chosen in the first pass
            and kept; with ``renormalize=False`` 4 where a BatchNorm averages over many passes, else 1.
        norm_momentum: least momentum of BatchNorm while training on one graph; None leaves it unchanged.
        renormalize: with ``entries="unit"``, a column of GCNConv or GCN2Conv that is not sent is y, not T[u,u]·y: only the
            self-loop is left of its row of T, and normalised by that T[u,u] = 1.
        max_error: as in `accelerate`; without edge pruning, or with ``entries="edge"`` if both directions of edges are kept.
        replace_functions: as in `accelerate`.
        inplace: change `model` itself.

    With ``entries="edge"`` a graph loses the same edges in every call, in training and evaluation; any other graph, such as a
    mini-batch, is thinned by the same rule. Weights, and entries of the other kinds, are decided by every call in training mode
    with gradients, and any other call uses these decisions. With ``entries="node"``
    these are edges by their ends, for graphs of the same number of nodes; edges that were not in the training graph are kept.
    The other kinds apply to any graph. `set_schedule` restricts later decisions. The authors' form is ``entries="node",
    edge_threshold=..., weight_threshold=..., feedback=False``.
    """
    pruning = PruningConfig(
        edge_sparsity,
        edge_threshold,
        weight_sparsity,
        weight_threshold,
        absolute,
        entries,
        choice,
        scope,
        choice_seed,
        budget,
        inherit,
        ramp,
        feedback,
        hysteresis,
        norm_momentum,
        renormalize,
    )
    return _sparsify(model, pruning, inplace, replace_functions, max_error)


def _sparsify(model: M, pruning: PruningConfig, inplace: bool, replace_functions: bool, max_error: float | None) -> M:
    _check_model(model, pruning)
    check_flags(inplace=inplace, replace_functions=replace_functions)
    if max_error is not None:
        _check_max_error(model, max_error)
        if pruning.in_layers.prunes_edges:
            raise InputError(
                f"max_error runs fewer hops, and entries={pruning.entries!r} decides at every hop; use entries='edge', or "
                f"leave max_error out."
            )
    if pruning.thins:
        layers = ((path, module) for path, module in model.named_modules() if isinstance(module, MessagePassing))
        check_thinnable({path or type(module).__name__: type(module) for path, module in layers})
    model = model if inplace else copy.deepcopy(model)
    session = Session(pruning, [], [], max_error=max_error)
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
        warnings.warn(f"{note}.", UserWarning, stacklevel=3)
    session.attach(model)
    if replace_functions:
        FastFunctions().attach(model)
    return model


def accelerate(model: M, *, max_error: float | None = None, replace_functions: bool = True, inplace: bool = False) -> M:
    """A copy of a PyG model whose layers run on the CPU kernels of this library, without pruning.

    Args:
        model: any module that contains PyG message-passing layers.
        max_error: APPNP, SGConv, SSGConv and TAGConv run fewer hops on undirected graphs, by polynomials g near their own f
            with max |f - g| ≤ max_error · max |f| on the whole spectrum. The error of a layer is then at most this fraction of
            the norm of what it propagates, whatever that is, forward and backward. ``uf.trace(model)`` has the hops and the
            bound (docs/adr/0032). Default: all hops.
        replace_functions: run dropout, ReLU, BatchNorm and dense linear layers on kernels of this library while ``forward`` of
            the model runs, whether it calls modules or ``torch.nn.functional`` (docs/adr/0030). Dropout has the same
            distribution and follows ``torch.manual_seed``, but draws other random numbers than torch's. False: torch's own.
        inplace: change `model` itself.

    GCNConv, GATConv, GATv2Conv, TransformerConv, SAGEConv and GraphConv (mean or sum), GINConv, GCN2Conv, SGConv, SSGConv,
    APPNP, LGConv, TAGConv and ChebConv are replaced, forward and backward; all other layers are unchanged.
    ``print(model.unifews_report)`` lists both. Outputs and gradients equal those of PyG up to rounding. Signature, parameters,
    optimizer and ``state_dict`` are those of the PyG model, so checkpoints of either load into the other; `desparsify` restores
    the PyG layers.

    Kernels are for float32 on the CPU. Any other precision or device runs the same layers in plain torch operations, and a
    replaced attention layer that is called with edge features or ``return_attention_weights`` computes PyG's messages:
    correct, but not faster. Half precision and ``torch.autocast`` on the CPU are rejected.
    """
    _check_model(model, PruningConfig())
    check_flags(inplace=inplace, replace_functions=replace_functions)
    convs = [module for module in model.modules() if isinstance(module, MessagePassing)]
    if not any(_kernel(conv) for conv in convs):
        reasons = "; ".join(sorted({_no_kernel(conv) for conv in convs}))
        known = ", ".join(kind.__name__ for kind, found in KINDS.items() if found.fused)
        raise InputError(f"{type(model).__name__} has nothing to accelerate: {reasons}. There are kernels for {known}.")
    if max_error is not None:
        _check_max_error(model, max_error)
    model = model if inplace else copy.deepcopy(model)
    session, layers = Session(PruningConfig(), [], [], max_error=max_error), []
    buffers = {module: set(module._buffers) for module in model.modules()}
    for path, module in list(model.named_modules()):
        if isinstance(module, MessagePassing):
            name, found = type(module).__name__, _kernel(module)
            if found is None:
                layers.append(AcceleratedLayer(path or name, name, None, _no_kernel(module)))
                continue
            for child in _own_modules(module):
                _mask(child)
            _replace(module, found, model, path, session)
            layers.append(AcceleratedLayer(path or name, name, found.__name__))
    session.weights = [module for conv in session.convs for module in _own_modules(conv) if isinstance(module, PrunedWeight)]
    for module in model.modules():  # PyG's model has no masks to save
        module._non_persistent_buffers_set |= set(module._buffers) - buffers.get(module, set())
    session.attach(model)
    if replace_functions:
        FastFunctions().attach(model)
    model.unifews_report = AccelerationReport(tuple(layers))  # type: ignore[assignment]
    return model


def _check_max_error(model: nn.Module, max_error: float) -> None:
    if isinstance(max_error, bool) or not isinstance(max_error, int | float) or not 0 < max_error < 1:
        raise InputError(
            f"max_error={max_error!r}: the largest relative error of a layer is a number between 0 and 1, such as .05."
        )
    kinds = [kind for kind, found in KINDS.items() if issubclass(found, ManyHops) and found.shortens]
    if not any(type(module) in kinds for module in model.modules()):
        names = ", ".join(kind.__name__ for kind in kinds)
        raise InputError(
            f"max_error is for layers of several hops ({names}), and {type(model).__name__} has none; leave it out."
        )


def _kernel(conv: MessagePassing) -> type[PrunedConv] | None:
    """The class with a kernel for this layer, if there is one."""
    found = KINDS.get(type(conv))
    return found if found is not None and found.fused and found.supports(conv) else None


def _no_kernel(conv: MessagePassing) -> str:
    found = KINDS.get(type(conv))
    if found is None or not found.fused:
        return f"no kernel for {type(conv).__name__}"
    return f"no kernel for {type(conv).__name__} with {found.option(conv)}"


def _own_modules(conv: nn.Module) -> Iterator[nn.Module]:
    """The modules of a layer that its kernel may call by their weights: its children, and those in its lists."""
    for child in conv.children():
        yield from child if isinstance(child, nn.ModuleList) else (child,)


def _mask(module: nn.Module) -> None:
    """Add a mask to the weights of a linear layer."""
    if isinstance(module, nn.Linear | Dense) and type(module) in (nn.Linear, Dense):
        module.__class__ = PrunedLinear if isinstance(module, nn.Linear) else PrunedPyGLinear
        assert isinstance(module, PrunedWeight)
        module.begin_pruning()


def _replace(conv: MessagePassing, kind: type[PrunedConv], model: nn.Module, path: str, session: Session) -> None:
    """Change the class of a message-passing layer to `kind`."""
    name = type(conv).__name__
    conv.__class__ = kind
    assert isinstance(conv, PrunedConv)
    conv.begin_pruning(session, path or name)
    conv.relation = relation_of(model, path)
    session.convs.append(conv)


def desparsify(model: M, *, inplace: bool = False) -> M:
    """Restore an ordinary PyG model, with zeros for removed weights. All edges are used again."""
    _session(model)
    model = model if inplace else copy.deepcopy(model)
    session = _session(model)
    for weight in session.weights:
        weight.settle()
    for conv in session.convs:
        conv.end_pruning()
    for module in model.modules():
        if isinstance(module, PrunedLinear | PrunedPyGLinear):
            module.end_pruning()
            module.__class__ = nn.Linear if isinstance(module, PrunedLinear) else Dense  # type: ignore[assignment]
    session.detach(model)
    functions = functions_of(model)
    if functions is not None:
        functions.detach(model)
    model.__dict__.pop("unifews_report", None)
    return model


def set_schedule(model: nn.Module, phase: Phase) -> None:
    """Set what later training passes may change: ``"regrow"`` decides from scratch each time, so removed entries may be
    restored; ``"monotone"`` only removes more; ``"monotone-weights"`` only removes more weights and decides edges from scratch,
    as the authors in the second half of the epochs; ``"frozen"`` changes nothing."""
    if phase not in _PHASES:
        raise unknown_name("schedule", phase, _PHASES)
    _session(model).phase = phase


def set_node_lock(model: nn.Module, nodes: Tensor | None) -> None:
    """Keep and count all edges into these nodes in the first layer in evaluation, as the authors do (optimistic). None resets
    it. For ``entries="node"``."""
    _session(model).node_lock = nodes


def trace(model: nn.Module) -> ModelTrace:
    """Kept products and weights of the last forward pass of a sparsified model, by layer."""
    session = _session(model)
    if session.now is None:
        raise InputError("the model has not been called yet; call it once before `trace`.")
    return session.trace()


def _session(model: nn.Module) -> Session:
    session = session_of(model)
    if session is None:
        raise InputError(f"{type(model).__name__} is not sparsified; call uf.sparsify(model, ...) first.")
    return session


def _no_layers(name: str, pruning: PruningConfig) -> str:
    """The message for a model without message-passing layers."""
    problem = f"{name} has no PyG message-passing layer such as GCNConv"
    if not pruning.prunes_weights:
        return f"{problem}; there are no edges to prune."
    return (
        f"{problem}, whose passes decide which weights to remove; for a plain head use uf.train(data, 'mlp', "
        f"weight_sparsity=...) or unifews.nn.decoupled.Mlp and `decide` of its layers."
    )


def _check_model(model: nn.Module, pruning: PruningConfig) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"`model` is a {type(model).__name__}; give a torch module that contains PyG layers.")
    if any(isinstance(module, PrunedConv) for module in model.modules()):
        raise InputError("this model is already sparsified; call desparsify(model) first to change its pruning.")
    if not any(isinstance(module, MessagePassing) for module in model.modules()):
        raise InputError(_no_layers(type(model).__name__, pruning))
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
