"""The state of an optimizer in words and tensors: settings of its groups, and what it holds of every parameter."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from unifews.errors import InputError
from unifews.serving.packed_arrays import Arrays, Parts, packed_exactly, unpacked_exactly
from unifews.serving.program import Unsound

_MARK = "optimizer."  # before the number of the parameter and the name, in the names of tensors


def optimizer_words(optimizer: Optimizer, into: Arrays) -> dict[str, Any]:
    """Words of an optimizer; its tensors are added to `into`."""
    name = type(optimizer).__name__
    said = optimizer.state_dict()
    groups, sizes = [], [len(group["params"]) for group in said["param_groups"]]
    for group in said["param_groups"]:
        settings = {key: list(value) if isinstance(value, tuple) else value for key, value in group.items() if key != "params"}
        for key, value in settings.items():
            if not _is_plain(value):
                raise InputError(f"{name} has {key}={str(value)[:40]}, which no file holds; give a plain number instead.")
        groups.append(settings)
    state: dict[str, Any] = {}
    for number, parameter in enumerate(_parameters(optimizer)):
        state[str(number)] = {
            key: _value_words(name, f"{_MARK}{number}.{key}", key, value, parameter, into)
            for key, value in said["state"].get(number, {}).items()
        }
    return {"class": name, "groups": groups, "sizes": sizes, "state": state}


def _value_words(name: str, place: str, key: str, value: Any, parameter: Tensor, into: Arrays) -> Any:
    if not isinstance(value, Tensor):
        if not _is_plain(value) or isinstance(value, str | list | tuple):
            raise InputError(f"{name} holds a {type(value).__name__} as {key!r}, which no file holds; use another optimizer.")
        return value
    if value.shape not in ((), parameter.shape):
        raise InputError(
            f"{name} holds {key!r} of shape {list(value.shape)} for a parameter of shape {list(parameter.shape)}; what is "
            f"saved is the state of optimizers that hold numbers and tensors like their parameters, as Adam and SGD do."
        )
    how, parts = packed_exactly(value)
    into.update({f"{place}.{part}": array for part, array in parts.items()})
    return how


def put_into(optimizer: Optimizer, words: Any, arrays: Arrays) -> None:
    """Give an optimizer of the same kind, for parameters of the same shapes, the state that was saved."""
    sound = isinstance(words, dict) and all(isinstance(words.get(key), list) for key in ("groups", "sizes"))
    if not sound or not isinstance(words.get("state"), dict):
        raise Unsound("has an optimizer without groups and state")
    name, parameters = type(optimizer).__name__, _parameters(optimizer)
    if words.get("class") != name:
        raise InputError(f"the optimizer that was saved is a {str(words.get('class'))[:40]}, not a {name}; make one like it.")
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    if words["sizes"] != sizes or len(words["groups"]) != len(sizes):
        raise InputError(
            f"the optimizer that was saved has groups of {str(words['sizes'])[:60]} parameters and this one of {sizes}; make "
            f"it of the parameters of the same model, in the same groups."
        )
    state = {number: _state(number, value, words["state"].get(str(number)), arrays) for number, value in enumerate(parameters)}
    if set(words["state"]) != {str(number) for number in range(len(parameters))}:
        raise Unsound("has an optimizer with states of parameters that it does not have")
    groups = [_group(*pair) for pair in zip(optimizer.param_groups, words["groups"], strict=True)]
    numbers = iter(range(len(parameters)))
    for group, size in zip(groups, sizes, strict=True):
        group["params"] = [next(numbers) for _ in range(size)]
    _check_kinds(parameters, state)
    before = optimizer.state, optimizer.param_groups
    try:
        optimizer.load_state_dict({"state": {number: held for number, held in state.items() if held}, "param_groups": groups})
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        optimizer.state, optimizer.param_groups = before
        raise Unsound(f"has an optimizer whose state {name} does not take ({type(error).__name__})") from None


def _check_kinds(parameters: list[Tensor], state: dict[int, dict[str, Any]]) -> None:
    """What is held under one name is of one kind: a tensor like the parameter, a tensor of one number, or a number."""
    kinds: dict[str, set[bool | None]] = {}
    for number, parameter in enumerate(parameters):
        for key, value in state[number].items() if parameter.ndim else ():
            kinds.setdefault(key, set()).add(value.shape == parameter.shape if isinstance(value, Tensor) else None)
    mixed = next((key for key, found in kinds.items() if len(found) > 1), None)
    if mixed is not None:
        raise Unsound(f"has an optimizer with a {mixed[:40]!r} that is one thing here and another there")


def _state(number: int, parameter: Tensor, said: Any, arrays: Arrays) -> dict[str, Any]:
    if not isinstance(said, dict):
        raise Unsound(f"has an optimizer without a state of parameter {number}")
    found: dict[str, Any] = {}
    for key, how in said.items():
        if not isinstance(how, dict):
            if not _is_plain(how) or isinstance(how, str | list):
                raise Unsound(f"has an optimizer with a {key[:40]!r} that is no number")
            found[key] = how
            continue
        try:
            value = unpacked_exactly(how, Parts(f"{_MARK}{number}.{key}.", arrays))
        except Unsound as problem:
            raise Unsound(f"has an optimizer with a {key[:40]!r} that {problem}") from None
        if value.shape not in ((), parameter.shape):
            raise InputError(
                f"the optimizer that was saved holds {key[:40]!r} of shape {list(value.shape)} for parameter {number}, which "
                f"here is {list(parameter.shape)}; make it of the parameters of the same model, in the same order."
            )
        if value.is_floating_point() and value.dtype not in (parameter.dtype, torch.float32):
            raise Unsound(f"has an optimizer with a {key[:40]!r} of type {value.dtype}")
        found[key] = value
    return found


def _group(now: dict[str, Any], said: Any) -> dict[str, Any]:
    """The settings of a group: those that it has, and numbers that a schedule has put beside them."""
    if not isinstance(said, dict) or not set(now) - {"params", "initial_lr"} <= set(said) or "params" in said:
        raise Unsound("has an optimizer with other settings than its class has")
    found: dict[str, Any] = {}
    for key, value in said.items():
        usual = now.get(key, 0.0)
        if not _is_plain(value) or not _alike(value, usual):
            raise Unsound(f"has an optimizer that cannot have {key[:40]} = {str(value)[:40]!r}")
        found[key] = tuple(value) if isinstance(value, list) else value
    return found


def _alike(value: Any, usual: Any) -> bool:
    """Whether a setting is of the kind it usually is; None and flags may take each other's place."""
    if isinstance(usual, bool | None):
        return isinstance(value, bool | None) or (usual is None and isinstance(value, int | float))
    if isinstance(usual, tuple | list):
        return isinstance(value, list) and len(value) == len(usual)
    return isinstance(value, str) if isinstance(usual, str) else isinstance(value, int | float) and not isinstance(value, bool)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(one) and not isinstance(one, list | tuple) for one in value)
    return isinstance(value, bool | str | None) or (isinstance(value, int | float) and math.isfinite(value))


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    """In the order that its state is numbered by."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
