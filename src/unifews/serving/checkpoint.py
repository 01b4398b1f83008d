"""Models in training as folders: weights, masks, pruning settings, the state of the schedule and of the optimizer."""

from __future__ import annotations

import copy
import math
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
from unifews.nn.convs.base import session_of
from unifews.nn.convs.rgcn import PrunedStack
from unifews.nn.linear import PrunedWeight
from unifews.nn.masked import MaskedModel
from unifews.nn.sparsify import sparsify
from unifews.serving import model_folder
from unifews.serving.model_folder import TENSORS, TRAINING
from unifews.serving.packed_arrays import Arrays, Json, Parts, packed_exactly, unpacked_all, unpacked_exactly
from unifews.serving.program import InvalidModel
from unifews.serving.rebuild import build_config, build_from_config

M = TypeVar("M", bound=nn.Module)
State = dict[str, Tensor]
_MAX_PRODUCTS = 1 << 10  # of one layer, at most
_DATA_SIZED = ("columns", "removed")  # buffers of a layer whose length depends on the data
_OLD_DEFAULTS = {"hysteresis": 1.0, "norm_momentum": None, "renormalize": False}  # of settings that older files do not have


def write(folder: Path, model: nn.Module, optimizer: Optimizer | None, record: Json | None, *, overwrite: bool) -> None:
    """Write a model folder, atomically."""
    _check(model)
    arrays: Arrays = {}
    config = {
        "class": type(model).__name__,
        "built": build_config(model),
        **_session_config(model),
        "state": _state_config(_state_of(model), arrays),
        "optimizer": None if optimizer is None else _optimizer_config(optimizer, arrays),
        "training": record,
    }
    model_folder.write(TRAINING, folder, config, arrays, overwrite=overwrite)


def _check(model: nn.Module) -> None:
    name = type(model).__name__
    if any(isinstance(module, MaskedModel) for module in model.modules()):
        raise InputError(
            "the edges of this model were selected by a method, which a folder cannot hold; save its `model`, and the graph "
            "that its `thin(...)` returns."
        )
    if not any(isinstance(module, PrunedConv | PrunedWeight) for module in model.modules()):
        raise InputError(
            f"{name} has no masks; uf.save is for sparsified models. Use torch.save(model.state_dict(), ...) for a plain one."
        )
    if any(hasattr(module, "unifews_report") for module in model.modules()):
        raise InputError(
            f"{name} is accelerated and has no masks to save; keep it with torch.save(model.state_dict(), ...), which the PyG "
            f"model loads too."
        )


# ------------------------------------------------------------------------------------------------------------- writing


def _state_of(model: nn.Module) -> State:
    state: State = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor) or isinstance(value, UninitializedParameter):
            raise InputError(f"{name} of {type(model).__name__} is not a tensor with a shape, so it cannot be saved.")
        state[name] = value.detach()
    return state


def _state_config(state: State, into: Arrays) -> Json:
    config = {}
    for name, value in state.items():
        try:
            config[name], parts = packed_exactly(value)
        except InputError as problem:
            raise InputError(f"{name} cannot be saved: {problem}.") from None
        into.update({f"{name}.{part}": array for part, array in parts.items()})
    return config


def _session_config(model: nn.Module) -> Json:
    names = {module: name for name, module in model.named_modules()}
    session, convs = session_of(model), []
    if session is not None:
        session.update_order()
        convs = [[names[conv], conv.stands_for.__name__, conv.seen_width] for conv in session.convs]
    return {
        "pruning": None if session is None else asdict(session.config),
        "requested": "" if session is None else session.requested,
        "phase": "regrow" if session is None else session.phase,
        "convs": convs,
        "feedback": [name for module, name in names.items() if isinstance(module, PrunedWeight) and module.feedback],
        "trains": [name for module, name in names.items() if module.training],
        **({} if session is None or session.max_error is None else {"max_error": session.max_error}),
    }


# ------------------------------------------------------------------------------------------------------------- reading


def read(folder: Path, into: nn.Module | None) -> nn.Module:
    """Read the model of a folder, rebuilt or loaded into an existing one; its state is checked before anything changes."""
    config, arrays = model_folder.read(TRAINING, folder)
    try:
        return _read(config, arrays, into, folder)
    except InvalidModel as problem:
        raise model_folder.damaged(TRAINING, folder, problem) from None


def read_optimizer(folder: Path, into: Optimizer) -> None:
    """Load the optimizer state of a folder into an existing optimizer."""
    config, arrays = model_folder.read(TRAINING, folder)
    if config.get("optimizer") is None:
        raise InputError(f"{folder} holds no optimizer state; save it with uf.save(model, folder, optimizer=...).")
    try:
        _load_optimizer(into, config["optimizer"], arrays)
    except InvalidModel as problem:
        raise model_folder.damaged(TRAINING, folder, problem) from None


def _read(config: Json, arrays: Arrays, into: nn.Module | None, folder: Path) -> nn.Module:
    state, pruning = _state(config.get("state"), arrays), _pruning(config.get("pruning"))
    name, built = config.get("class"), config.get("built")
    if not isinstance(name, str):
        raise InvalidModel("has no class name")
    if arrays and config.get("optimizer") is None:
        raise InvalidModel(f"does not use {sorted(arrays)[0][:40]!r} of {TENSORS}")
    if into is None and built is None:
        raise InputError(
            f"{folder} holds a {name[:40]} that cannot be rebuilt from its file: its class is custom, it was modified "
            f"after it was built, or it has settings that are not saved; build it and call uf.load(folder, into=model)."
        )
    model = build_from_config(built, len(state)) if into is None else into
    plain = session_of(model) is None
    if pruning is None and not plain:
        raise InputError(f"{folder} holds a {name[:40]} without message-passing layers, but `into` has some.")
    # A plain `into` is changed only after all checks, so they run on a copy on the meta device.
    trial = model if into is None else _without_memory(model)
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
    _restore_schedule(model, config, pruning)
    record = config.get("training")
    if record is not None and not hasattr(type(model), "record"):
        model.record = record
    return model


def _state(stored: Any, arrays: Arrays) -> State:
    if not isinstance(stored, dict):
        raise InvalidModel("has no state")
    return unpacked_all(stored, "", arrays, unpacked_exactly)


def _pruning(stored: Any) -> PruningConfig | None:
    """The pruning options of a file; options that an earlier release did not write take their defaults."""
    if stored is None:
        return None
    if not isinstance(stored, dict):
        raise InvalidModel("has no pruning options")
    try:
        return from_dict(PruningConfig, _OLD_DEFAULTS | stored, kind="pruning option")
    except InputError as error:
        raise InvalidModel(f"has pruning options that cannot be used ({str(error)[:120]})") from None


def _without_memory(model: M) -> M:
    """A copy on the meta device."""
    memo: dict[int, Any] = {}
    for value in (*model.parameters(), *model.buffers()):
        meta = torch.empty_like(value, device="meta")
        memo[id(value)] = nn.Parameter(meta, value.requires_grad) if isinstance(value, nn.Parameter) else meta
    return copy.deepcopy(model, memo)


def _add_newer_masks(model: nn.Module, state: State) -> None:
    """Add full masks of matrices that the release which wrote the file did not prune."""
    for path, module in model.named_modules():
        if isinstance(module, PrunedStack):
            state.setdefault(f"{path}.keep", torch.ones(module.keep.shape, dtype=torch.bool))


def _check_state(model: nn.Module, state: State, *, exact: bool) -> None:
    """Check that names, shapes and types of the state are those of the model."""
    wanted = model.state_dict()
    free = {
        f"{name}.{part}".lstrip(".")
        for name, module in model.named_modules()
        if isinstance(module, PrunedConv)
        for part in _DATA_SIZED
    }
    kind = type(model).__name__
    missing, more = [name for name in wanted if name not in state], [name for name in state if name not in wanted]
    if missing or more:
        difference = f"has no {missing[0]}" if missing else f"has {more[0][:60]}, which this {kind} does not"
        raise _mismatch(f"the saved model {difference}", kind, exact)
    for name, value in wanted.items():
        found = state[name]
        if found.shape != value.shape and not (name in free and found.ndim == 1):
            shapes = f"{name} is {list(found.shape)} in the saved model and {list(value.shape)} in this {kind}"
            raise _mismatch(shapes, kind, exact)
        if found.dtype != value.dtype and (exact or not (found.is_floating_point() and value.is_floating_point())):
            raise _mismatch(f"{name} is {found.dtype} in the saved model and {value.dtype} in this {kind}", kind, exact)


def _mismatch(problem: str, kind: str, exact: bool) -> Exception:
    """A model given by the user (`exact`) is an input error, a rebuilt one means a damaged file."""
    if exact:
        return ShapeError(f"{problem}; give `into` a {kind} made with the same arguments as the one that was saved.")
    return InvalidModel(f"is inconsistent: {problem}")


def _check_session(model: nn.Module, config: Json, state: State) -> None:
    phase, convs, requested = config.get("phase"), config.get("convs"), config.get("requested")
    if phase not in list(get_args(Phase)) or not isinstance(requested, str) or not isinstance(convs, list):
        raise InvalidModel("has no valid schedule")
    layers = {name: module for name, module in model.named_modules() if isinstance(module, PrunedConv)}
    kinds = {name: module.stands_for.__name__ for name, module in layers.items()}
    sound = all(isinstance(one, list) and len(one) == 3 and isinstance(one[0], str) for one in convs)
    if not sound or {one[0]: one[1] for one in convs} != kinds or len(convs) != len(kinds):
        raise InvalidModel(f"lists other layers than its {len(kinds)}")
    if not all(type(one[2]) is int and 0 <= one[2] < 2**31 for one in convs):
        raise InvalidModel("has layers of an invalid width")
    names = {name for name, _ in model.named_modules()}
    for key in ("feedback", "trains"):
        stored = config.get(key)
        if not isinstance(stored, list) or not all(isinstance(one, str) and one in names for one in stored):
            raise InvalidModel(f"has {key!r} of modules that it does not have")
    for name in layers:
        _check_decisions(*(state[f"{name}.{part}".lstrip(".")] for part in ("removed", "nodes", "passes")))


def _check_decisions(removed: Tensor, nodes: Tensor, passes: Tensor) -> None:
    n = int(nodes)
    if not 0 <= n < 2**31 or int(passes) < 0:
        raise InvalidModel("has an invalid number of nodes or passes")
    if len(removed) and (bool((removed.diff() < 0).any()) or int(removed[0]) < 0 or int(removed[-1]) >= _MAX_PRODUCTS * n * n):
        raise InvalidModel(f"removes edges that a graph of {n:,} nodes does not have")


def _max_error(stored: Any) -> float | None:
    if stored is not None and not (isinstance(stored, float) and 0 < stored < 1):
        raise InvalidModel("has a max_error that cannot be used")
    return stored


def _restore_schedule(model: nn.Module, config: Json, pruning: PruningConfig | None) -> None:
    """Restore the state of the schedule, and attributes of modules that are not tensors."""
    modules = dict(model.named_modules())
    session = session_of(model)
    if session is not None and pruning is not None:
        session.configure(pruning)
        session.requested, session.phase = config["requested"], config["phase"]
        session.max_error = _max_error(config.get("max_error"))
        session.forget()
        session.convs = [modules[name] for name, _, _ in config["convs"]]  # type: ignore[misc]
        for name, _, width in config["convs"]:
            modules[name].seen_width, modules[name].seen_edges = width, 0
        session.reset_shares()
    for name, module in modules.items():
        module.training = name in config["trains"]
        if isinstance(module, PrunedWeight):
            module.feedback, module.due, module.rows = name in config["feedback"], None, 0


# ----------------------------------------------------------------------------------------------------------------- optimizers


_PREFIX = "optimizer."  # of tensor names: optimizer.<parameter number>.<name>


def _optimizer_config(optimizer: Optimizer, into: Arrays) -> Json:
    """The settings and state of an optimizer; its tensors are added to `into`."""
    name = type(optimizer).__name__
    current = optimizer.state_dict()
    groups, sizes = [], [len(group["params"]) for group in current["param_groups"]]
    for group in current["param_groups"]:
        settings = {key: list(value) if isinstance(value, tuple) else value for key, value in group.items() if key != "params"}
        for key, value in settings.items():
            if not _is_plain(value):
                raise InputError(f"{name} has {key}={str(value)[:40]}, which cannot be saved; use a plain number instead.")
        groups.append(settings)
    state: Json = {}
    for number, parameter in enumerate(_parameters_of(optimizer)):
        state[str(number)] = {
            key: _value_config(name, f"{_PREFIX}{number}.{key}", key, value, parameter, into)
            for key, value in current["state"].get(number, {}).items()
        }
    return {"class": name, "groups": groups, "sizes": sizes, "state": state}


def _value_config(name: str, place: str, key: str, value: Any, parameter: Tensor, into: Arrays) -> Any:
    if not isinstance(value, Tensor):
        if not _is_plain(value) or isinstance(value, str | list | tuple):
            raise InputError(f"{name} holds a {type(value).__name__} as {key!r}, which cannot be saved; use another optimizer.")
        return value
    if value.shape not in ((), parameter.shape):
        raise InputError(
            f"{name} holds {key!r} of shape {list(value.shape)} for a parameter of shape {list(parameter.shape)}; only "
            f"optimizers whose state consists of numbers and tensors of the shape of their parameters (Adam, SGD) can be saved."
        )
    how, parts = packed_exactly(value)
    into.update({f"{place}.{part}": array for part, array in parts.items()})
    return how


def _load_optimizer(optimizer: Optimizer, config: Any, arrays: Arrays) -> None:
    """Load a saved state into an optimizer of the same class, for parameters of the same shapes."""
    sound = isinstance(config, dict) and all(isinstance(config.get(key), list) for key in ("groups", "sizes"))
    if not sound or not isinstance(config.get("state"), dict):
        raise InvalidModel("has an optimizer without groups and state")
    name, parameters = type(optimizer).__name__, _parameters_of(optimizer)
    if config.get("class") != name:
        raise InputError(f"the saved optimizer is a {str(config.get('class'))[:40]}, not a {name}; create one of that class.")
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    if config["sizes"] != sizes or len(config["groups"]) != len(sizes):
        raise InputError(
            f"the saved optimizer has groups of {str(config['sizes'])[:60]} parameters and this one of {sizes}; create "
            f"it from the parameters of the same model, in the same groups."
        )
    state = {
        number: _parameter_state(number, value, config["state"].get(str(number)), arrays)
        for number, value in enumerate(parameters)
    }
    if set(config["state"]) != {str(number) for number in range(len(parameters))}:
        raise InvalidModel("has optimizer states of parameters that do not exist")
    groups = [_group_settings(*pair) for pair in zip(optimizer.param_groups, config["groups"], strict=True)]
    numbers = iter(range(len(parameters)))
    for group, size in zip(groups, sizes, strict=True):
        group["params"] = [next(numbers) for _ in range(size)]
    _check_kinds(parameters, state)
    before = optimizer.state, optimizer.param_groups
    try:
        optimizer.load_state_dict({"state": {number: each for number, each in state.items() if each}, "param_groups": groups})
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        optimizer.state, optimizer.param_groups = before
        raise InvalidModel(f"has an optimizer state that {name} rejects ({type(error).__name__})") from None


def _check_kinds(parameters: list[Tensor], state: dict[int, Json]) -> None:
    """Check that values of one name are of one kind: a tensor of the parameter's shape, a scalar tensor, or a number."""
    kinds: dict[str, set[bool | None]] = {}
    for number, parameter in enumerate(parameters):
        for key, value in state[number].items() if parameter.ndim else ():
            kinds.setdefault(key, set()).add(value.shape == parameter.shape if isinstance(value, Tensor) else None)
    mixed = next((key for key, found in kinds.items() if len(found) > 1), None)
    if mixed is not None:
        raise InvalidModel(f"has an optimizer with a {mixed[:40]!r} of inconsistent kinds")


def _parameter_state(number: int, parameter: Tensor, stored: Any, arrays: Arrays) -> Json:
    if not isinstance(stored, dict):
        raise InvalidModel(f"has an optimizer without a state of parameter {number}")
    found: Json = {}
    for key, how in stored.items():
        if not isinstance(how, dict):
            if not _is_plain(how) or isinstance(how, str | list):
                raise InvalidModel(f"has an optimizer with a {key[:40]!r} that is not a number")
            found[key] = how
            continue
        try:
            value = unpacked_exactly(how, Parts(f"{_PREFIX}{number}.{key}.", arrays))
        except InvalidModel as problem:
            raise InvalidModel(f"has an optimizer with a {key[:40]!r} that {problem}") from None
        if value.shape not in ((), parameter.shape):
            raise InputError(
                f"the saved optimizer has {key[:40]!r} of shape {list(value.shape)} for parameter {number}, which "
                f"here is {list(parameter.shape)}; create it from the parameters of the same model, in the same order."
            )
        if value.is_floating_point() and value.dtype not in (parameter.dtype, torch.float32):
            raise InvalidModel(f"has an optimizer with a {key[:40]!r} of type {value.dtype}")
        found[key] = value
    return found


def _group_settings(now: Json, stored: Any) -> Json:
    """The settings of a group: those of its class, and numbers that a scheduler has added."""
    if not isinstance(stored, dict) or not set(now) - {"params", "initial_lr"} <= set(stored) or "params" in stored:
        raise InvalidModel("has an optimizer with settings that its class does not have")
    found: Json = {}
    for key, value in stored.items():
        default = now.get(key, 0.0)
        if not _is_plain(value) or not _same_kind(value, default):
            raise InvalidModel(f"has an optimizer that cannot have {key[:40]} = {str(value)[:40]!r}")
        found[key] = tuple(value) if isinstance(value, list) else value
    return found


def _same_kind(value: Any, default: Any) -> bool:
    """Whether a setting has the type of its default; None and booleans are interchangeable."""
    if isinstance(default, bool | None):
        return isinstance(value, bool | None) or (default is None and isinstance(value, int | float))
    if isinstance(default, tuple | list):
        return isinstance(value, list) and len(value) == len(default)
    if isinstance(default, str):
        return isinstance(value, str)
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(one) and not isinstance(one, list | tuple) for one in value)
    return isinstance(value, bool | str | None) or (isinstance(value, int | float) and math.isfinite(value))


def _parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """All parameters, in the order by which the state is numbered."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
