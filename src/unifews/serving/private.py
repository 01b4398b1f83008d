"""A copy of a model that nothing else can see, so that freezing a model writes to no object of another thread."""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from contextlib import suppress
from types import CellType, FunctionType, MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._dynamo import OptimizedModule
from torch.nn.parallel import DistributedDataParallel

from unifews.nn.session import Session

M = TypeVar("M", bound=nn.Module)


def private(model: M, session: Session | None = None) -> M:
    """A copy of a model: modules, parameters, buffers, hooks and the containers and functions that refer to them.

    Values are those of the moment of the call, without gradients or autograd history; tensors and modules that are shared
    stay shared among the copies. Any other object (a lock, an open file, a generator) is the same in both, so a model that
    `copy.deepcopy` refuses is copied too. A module that `torch.compile` or a data-parallel wrapper returned is replaced by
    the one inside.

    Args:
        model: the module to copy.
        session: what the copy has for the session of its pruned layers; default: a copy without the state of a pass.
    """
    return _Copier(session)(model)  # type: ignore[no-any-return]


def unwrapped(module: nn.Module) -> nn.Module:
    """The module itself, where it is given as `torch.compile` or a data-parallel wrapper returns it."""
    while isinstance(module, nn.DataParallel | DistributedDataParallel | OptimizedModule):
        module = module._orig_mod if isinstance(module, OptimizedModule) else module.module
    return module


class _Copier:
    def __init__(self, session: Session | None) -> None:
        self._session = session
        self._made: dict[int, Any] = {}
        self._alive: list[Any] = []
        """What was copied: an id is its own only as long as the object lives."""

    def __call__(self, one: Any) -> Any:
        if id(one) in self._made:
            return self._made[id(one)]
        if isinstance(one, nn.Module):
            return self._module(one)
        if isinstance(one, Tensor):
            return self._know(one, _tensor(one))
        if isinstance(one, Session):
            return self._pass(one)
        if type(one) in (list, dict, OrderedDict):
            return self._container(one)
        if type(one) in (tuple, set, frozenset):
            return self._know(one, type(one)(map(self, tuple(one))))
        if isinstance(one, tuple) and hasattr(one, "_fields"):
            return self._know(one, type(one)(*map(self, one)))
        if isinstance(one, MethodType):
            owner = self(one.__self__) if isinstance(one.__self__, nn.Module | Session) else one.__self__
            return MethodType(one.__func__, owner)
        if isinstance(one, functools.partial):
            return functools.partial(self(one.func), *map(self, one.args), **{k: self(v) for k, v in one.keywords.items()})
        return self._function(one) if isinstance(one, FunctionType) and one.__closure__ else one

    def _know(self, one: Any, made: Any) -> Any:
        self._alive.append(one)
        self._made[id(one)] = made
        return made

    def _module(self, module: nn.Module) -> nn.Module:
        if isinstance(module, torch.jit.ScriptModule):  # not a Python object alone
            return self._know(module, copy.deepcopy(module))  # type: ignore[no-any-return]
        plain = unwrapped(module)
        if plain is not module:
            made: nn.Module = self._know(module, self(plain))
            return made
        made = self._know(module, object.__new__(type(module)))
        for name, value in list(vars(module).items()):
            vars(made)[name] = None if name == "_compiled_call_impl" else self(value)
        return made

    def _pass(self, session: Session) -> Session:
        """Settings and schedule, and nothing of the pass that may be going on in another thread."""
        if self._session is not None:
            return self._session
        made = self._know(session, Session(session.pruning, [], []))
        made.phase, made.requested = session.phase, session.requested
        made.convs, made.weights, made.norms = self(session.convs), self(session.weights), self(session.norms)
        return made  # type: ignore[no-any-return]

    def _container(self, one: Any) -> Any:
        made = self._know(one, type(one)())
        if isinstance(one, list):
            made.extend(map(self, tuple(one)))
        else:
            made.update({self(key): self(value) for key, value in list(one.items())})
        return made

    def _function(self, function: FunctionType) -> FunctionType:
        """The same code over copies of what it closes over: the module itself, where it is a forward written in place."""
        cells = function.__closure__ or ()
        own = tuple(CellType() for _ in cells)
        made = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, own)
        made.__kwdefaults__, made.__qualname__ = function.__kwdefaults__, function.__qualname__
        vars(made).update(vars(function))
        self._know(function, made)
        for cell, mine in zip(cells, own, strict=True):
            with suppress(ValueError):  # not assigned yet
                mine.cell_contents = self(cell.cell_contents)
        return made


def _tensor(value: Tensor) -> Tensor:
    own = value.detach().clone()
    return nn.Parameter(own, value.requires_grad) if isinstance(value, nn.Parameter) else own
