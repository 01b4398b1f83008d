"""A model that still trains, in words and tensors: its weights and masks, its settings, and where its schedule stands."""

from __future__ import annotations

import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from unifews.core.config import from_dict
from unifews.errors import InputError, ShapeError
from unifews.nn.config import Phase, PruningConfig
from unifews.nn.convs import PrunedConv
from unifews.nn.convs.rgcn import PrunedStack
from unifews.nn.linear import PrunedWeight
from unifews.nn.masked import Thinned
from unifews.nn.session import Session
from unifews.nn.sparsify import sparsify
from unifews.serving import model_folder as folders
from unifews.serving.model_folder import TENSORS, TRAINING
from unifews.serving.optimizer_state import optimizer_words, put_into
from unifews.serving.packed_arrays import Arrays, packed_exactly, unpacked_all, unpacked_exactly
from unifews.serving.program import Unsound
from unifews.serving.rebuild import rebuilt, words_of

M = TypeVar("M", bound=nn.Module)
State = dict[str, Tensor]
_PRODUCTS = 1 << 10  # that one layer makes, at most
_FREE = ("columns", "removed")  # decisions of a layer, as long as its data
_EARLIER = {"hysteresis": 1.0, "norm_momentum": None}  # what a model did whose file does not say it


def write(
    folder: Path,
    model: nn.Module,
    optimizer: Optimizer | None,
    record: dict[str, Any] | None,
    *,
    settled: bool,
    overwrite: bool,
) -> None:
    """Write a model folder in one step: it is complete or absent."""
    _check(model)
    arrays: Arrays = {}
    words = {
        "class": type(model).__name__,
        "built": words_of(model),
        **_session_words(model),
        "state": _state_words(_state_of(model, settled), arrays),
        "optimizer": None if optimizer is None else optimizer_words(optimizer, arrays),
        "training": record,
    }
    folders.write(TRAINING, folder, words, arrays, overwrite=overwrite)


def _check(model: nn.Module) -> None:
    name = type(model).__name__
    if any(isinstance(module, Thinned) for module in model.modules()):
        raise InputError(
            "the edges of this model were chosen by a method, which no folder holds; save its `model`, and the graph that its "
            "`thin(...)` gives."
        )
    if not any(isinstance(module, PrunedConv | PrunedWeight) for module in model.modules()):
        raise InputError(
            f"{name} has no masks; uf.save is for sparsified models. torch.save(model.state_dict(), ...) keeps a plain one."
        )
    if any(hasattr(module, "unifews_report") for module in model.modules()):
        raise InputError(
            f"{name} is accelerated and has no masks to save; keep it with torch.save(model.state_dict(), ...), which the PyG "
            f"model loads too."
        )


# --------------------------------------------------------------------------------------------------------------- words


def _state_of(model: nn.Module, settled: bool) -> State:
    state: State = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor) or isinstance(value, UninitializedParameter):
            raise InputError(f"{name} of {type(model).__name__} is no tensor with a shape, so it cannot be saved as one.")
        state[name] = value.detach()
    if settled:
        names: dict[int, list[str]] = {}
        for name, value in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(value), []).append(name)
        for module in model.modules():
            own = names[id(module.matrix)] if isinstance(module, PrunedWeight) else []
            if len(own) == 1:  # what two layers share, the other may have kept
                state[own[0]] = torch.where(module.keep, state[own[0]], 0.0)  # type: ignore[arg-type]
    return state


def _state_words(state: State, into: Arrays) -> dict[str, Any]:
    words = {}
    for name, value in state.items():
        try:
            words[name], parts = packed_exactly(value)
        except InputError as problem:
            raise InputError(f"{name} cannot be saved: {problem}.") from None
        into.update({f"{name}.{part}": array for part, array in parts.items()})
    return words


def _session_words(model: nn.Module) -> dict[str, Any]:
    names = {module: name for name, module in model.named_modules()}
    session, convs = _session(model), []
    if session is not None:
        session.settle_order()
        convs = [[names[conv], conv.stands_for.__name__, conv.seen_width] for conv in session.convs]
    return {
        "pruning": None if session is None else asdict(session.pruning),
        "requested": "" if session is None else session.requested,
        "phase": "regrow" if session is None else session.phase,
        "convs": convs,
        "feedback": [name for module, name in names.items() if isinstance(module, PrunedWeight) and module.feedback],
        "trains": [name for module, name in names.items() if module.training],
    }


def _session(model: nn.Module) -> Session | None:
    return next((module.session for module in model.modules() if isinstance(module, PrunedConv)), None)


# ------------------------------------------------------------------------------------------------------------- reading


def read(folder: Path, into: nn.Module | None) -> nn.Module:
    """The model of a folder, built again or put into one that is there; its state is checked before it is touched."""
    config, arrays = folders.read(TRAINING, folder)
    try:
        return _read(config, arrays, into, folder)
    except Unsound as problem:
        raise folders.damaged(TRAINING, folder, problem) from None


def read_optimizer(folder: Path, into: Optimizer) -> None:
    """Put the optimizer's state of a folder into one that is there."""
    config, arrays = folders.read(TRAINING, folder)
    if config.get("optimizer") is None:
        raise InputError(f"{folder} holds no optimizer; it was saved without one: uf.save(model, folder, optimizer=...).")
    try:
        put_into(into, config["optimizer"], arrays)
    except Unsound as problem:
        raise folders.damaged(TRAINING, folder, problem) from None


def _read(config: dict[str, Any], arrays: Arrays, into: nn.Module | None, folder: Path) -> nn.Module:
    state, pruning = _state(config.get("state"), arrays), _pruning(config.get("pruning"))
    name, built = config.get("class"), config.get("built")
    if not isinstance(name, str):
        raise Unsound("does not say of which class it is")
    if arrays and config.get("optimizer") is None:
        raise Unsound(f"has no use for {sorted(arrays)[0][:40]!r} of {TENSORS}")
    if into is None and built is None:
        raise InputError(
            f"{folder} holds a {name[:40]} that cannot be built from its file: its class is your own, it was changed after it "
            f"was built, or it has settings that are not kept; make one like it and call uf.load(folder, into=model)."
        )
    model = rebuilt(built, len(state)) if into is None else into
    plain = _session(model) is None
    if pruning is None and not plain:
        raise InputError(f"{folder} holds a {name[:40]} without message-passing layers, and `into` has some.")
    # A plain `into` is changed only once everything fits, so it is tried on a copy without memory.
    trial = model if into is None else _like(model)
    if pruning is not None and plain:
        trial = sparsify(trial, **asdict(pruning), inplace=True)
    _add_newer_masks(trial, state)
    _check_state(trial, state, exact=into is not None)
    _check_session(trial, config, state)
    if into is None:
        trial.load_state_dict(state, strict=True, assign=True)
        model = trial
    else:
        model = sparsify(model, **asdict(pruning), inplace=True) if pruning is not None and plain else model
        model.load_state_dict(state, strict=True)
    _go_on(model, config, pruning)
    record = config.get("training")
    if record is not None and not hasattr(type(model), "record"):
        model.record = record
    return model


def _state(said: Any, arrays: Arrays) -> State:
    if not isinstance(said, dict):
        raise Unsound("has no state")
    return unpacked_all(said, "", arrays, unpacked_exactly)


def _pruning(stored: Any) -> PruningConfig | None:
    """The pruning options of a file: those it lacks, of an earlier release, take their defaults."""
    if stored is None:
        return None
    if not isinstance(stored, dict):
        raise Unsound("has no pruning options")
    try:
        return from_dict(PruningConfig, _EARLIER | stored, kind="pruning option")
    except InputError as error:
        raise Unsound(f"has pruning options that cannot be used ({str(error)[:120]})") from None


def _like(model: M) -> M:
    """A copy without memory."""
    memo: dict[int, Any] = {}
    for value in (*model.parameters(), *model.buffers()):
        meta = torch.empty_like(value, device="meta")
        memo[id(value)] = nn.Parameter(meta, value.requires_grad) if isinstance(value, nn.Parameter) else meta
    return copy.deepcopy(model, memo)


def _add_newer_masks(model: nn.Module, state: State) -> None:
    """Masks of matrices that the release which wrote the file did not prune: nothing is removed there."""
    for path, module in model.named_modules():
        if isinstance(module, PrunedStack):
            state.setdefault(f"{path}.keep", torch.ones(module.keep.shape, dtype=torch.bool))


def _check_state(model: nn.Module, state: State, *, exact: bool) -> None:
    """Every tensor of the model is there, of its shape and type, and no other."""
    wanted = model.state_dict()
    free = {
        f"{name}.{part}".lstrip(".") for name, module in model.named_modules() if isinstance(module, PrunedConv)
        for part in _FREE
    }  # fmt: skip
    kind = type(model).__name__
    missing, more = [name for name in wanted if name not in state], [name for name in state if name not in wanted]
    if missing or more:
        said = f"has no {missing[0]}" if missing else f"has {more[0][:60]}, which this {kind} does not"
        raise _unfit(f"the saved model {said}", kind, exact)
    for name, value in wanted.items():
        found = state[name]
        if found.shape != value.shape and not (name in free and found.ndim == 1):
            shapes = f"{name} is {list(found.shape)} in the saved model and {list(value.shape)} in this {kind}"
            raise _unfit(shapes, kind, exact)
        if found.dtype != value.dtype and (exact or not (found.is_floating_point() and value.is_floating_point())):
            raise _unfit(f"{name} is {found.dtype} in the saved model and {value.dtype} in this {kind}", kind, exact)


def _unfit(problem: str, kind: str, exact: bool) -> Exception:
    """Whose mistake it is depends on who made the model."""
    if exact:
        return ShapeError(f"{problem}; give `into` a {kind} made with the same arguments as the one that was saved.")
    return Unsound(f"does not fit together: {problem}")


def _check_session(model: nn.Module, config: dict[str, Any], state: State) -> None:
    phase, convs, requested = config.get("phase"), config.get("convs"), config.get("requested")
    if phase not in list(get_args(Phase)) or not isinstance(requested, str) or not isinstance(convs, list):
        raise Unsound("has no schedule")
    layers = {name: module for name, module in model.named_modules() if isinstance(module, PrunedConv)}
    kinds = {name: module.stands_for.__name__ for name, module in layers.items()}
    sound = all(isinstance(one, list) and len(one) == 3 and isinstance(one[0], str) for one in convs)
    if not sound or {one[0]: one[1] for one in convs} != kinds or len(convs) != len(kinds):
        raise Unsound(f"says that it has other layers than its {len(kinds)}")
    if not all(type(one[2]) is int and 0 <= one[2] < 2**31 for one in convs):
        raise Unsound("has layers of a width that cannot be")
    names = {name for name, _ in model.named_modules()}
    for key in ("feedback", "trains"):
        said = config.get(key)
        if not isinstance(said, list) or not all(isinstance(one, str) and one in names for one in said):
            raise Unsound(f"has {key!r} of modules that it does not have")
    for name in layers:
        _check_decisions(*(state[f"{name}.{part}".lstrip(".")] for part in ("removed", "nodes", "passes")))


def _check_decisions(removed: Tensor, nodes: Tensor, passes: Tensor) -> None:
    n = int(nodes)
    if not 0 <= n < 2**31 or int(passes) < 0:
        raise Unsound("has decisions of a pass, or on a graph, that cannot be")
    if len(removed) and (bool((removed.diff() < 0).any()) or int(removed[0]) < 0 or int(removed[-1]) >= _PRODUCTS * n * n):
        raise Unsound(f"leaves out edges that a graph of {n:,} nodes does not have")


def _go_on(model: nn.Module, config: dict[str, Any], pruning: PruningConfig | None) -> None:
    """Where the schedule stands, and what is about modules and not in their tensors."""
    modules = dict(model.named_modules())
    session = _session(model)
    if session is not None and pruning is not None:
        session.pruning, session.requested, session.phase = pruning, config["requested"], config["phase"]
        session.forget()
        session.convs = [modules[name] for name, _, _ in config["convs"]]  # type: ignore[misc]
        for name, _, width in config["convs"]:
            modules[name].seen_width, modules[name].seen_edges = width, 0
        session.share_anew()
    for name, module in modules.items():
        module.training = name in config["trains"]
        if isinstance(module, PrunedWeight):
            module.feedback, module.due, module.rows = name in config["feedback"], None, 0
