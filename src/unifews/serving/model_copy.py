"""A private copy of a model, so that freezing never writes to objects that other threads use."""

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


def private_copy(model: M, session: Session | None = None) -> M:
    """A copy of a model: modules, parameters, buffers, hooks and the containers and functions that refer to them.

    Tensors have no gradients and no autograd history; tensors and modules that are shared in the model are shared in the copy.
    Any other object (a lock, an open file, a generator) is not copied, so models that `copy.deepcopy` refuses are copied too.
    Wrappers of `torch.compile` and of data parallelism are replaced by the module inside.

    Args:
        model: the module to copy.
        session: the session of the copied layers; default: a copy without the state of a pass.
    """
    return _Copier(session)(model)  # type: ignore[no-any-return]


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside wrappers of `torch.compile` and of data parallelism."""
    while isinstance(module, nn.DataParallel | DistributedDataParallel | OptimizedModule):
        module = module._orig_mod if isinstance(module, OptimizedModule) else module.module
    return module


class _Copier:
    def __init__(self, session: Session | None) -> None:
        self._session = session
        self._made: dict[int, Any] = {}
        self._alive: list[Any] = []
        """The copied objects, kept alive because an id is unique only during the life of an object."""

    def __call__(self, one: Any) -> Any:
        if id(one) in self._made:
            return self._made[id(one)]
        if isinstance(one, nn.Module):
            return self._module(one)
        if isinstance(one, Tensor):
            return self._remember(one, _tensor(one))
        if isinstance(one, Session):
            return self._session_copy(one)
        if type(one) in (list, dict, OrderedDict):
            return self._container(one)
        if type(one) in (tuple, set, frozenset):
            return self._remember(one, type(one)(map(self, tuple(one))))
        if isinstance(one, tuple) and hasattr(one, "_fields"):
            return self._remember(one, type(one)(*map(self, one)))
        if isinstance(one, MethodType):
            owner = self(one.__self__) if isinstance(one.__self__, nn.Module | Session) else one.__self__
            return MethodType(one.__func__, owner)
        if isinstance(one, functools.partial):
            return functools.partial(self(one.func), *map(self, one.args), **{k: self(v) for k, v in one.keywords.items()})
        return self._function(one) if isinstance(one, FunctionType) and one.__closure__ else one

    def _remember(self, one: Any, made: Any) -> Any:
        self._alive.append(one)
        self._made[id(one)] = made
        return made

    def _module(self, module: nn.Module) -> nn.Module:
        if isinstance(module, torch.jit.ScriptModule):  # not a plain Python object
            return self._remember(module, copy.deepcopy(module))  # type: ignore[no-any-return]
        plain = unwrapped(module)
        if plain is not module:
            made: nn.Module = self._remember(module, self(plain))
            return made
        made = self._remember(module, object.__new__(type(module)))
        for name, value in list(vars(module).items()):
            vars(made)[name] = None if name == "_compiled_call_impl" else self(value)
        return made

    def _session_copy(self, session: Session) -> Session:
        """A copy of settings and schedule, without the pass that may be running in another thread."""
        if self._session is not None:
            return self._session
        made = self._remember(session, Session(session.config, [], [], max_error=session.max_error))
        made.phase, made.requested = session.phase, session.requested
        made.convs, made.weights, made.norms = self(session.convs), self(session.weights), self(session.norms)
        return made  # type: ignore[no-any-return]

    def _container(self, one: Any) -> Any:
        made = self._remember(one, type(one)())
        if isinstance(one, list):
            made.extend(map(self, tuple(one)))
        else:
            made.update({self(key): self(value) for key, value in list(one.items())})
        return made

    def _function(self, function: FunctionType) -> FunctionType:
        """The same code with copies of its closure, which may refer to the module (a forward defined in place)."""
        cells = function.__closure__ or ()
        own = tuple(CellType() for _ in cells)
        made = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, own)
        made.__kwdefaults__, made.__qualname__ = function.__kwdefaults__, function.__qualname__
        vars(made).update(vars(function))
        self._remember(function, made)
        for cell, mine in zip(cells, own, strict=True):
            with suppress(ValueError):  # not assigned yet
                mine.cell_contents = self(cell.cell_contents)
        return made


def _tensor(value: Tensor) -> Tensor:
    own = value.detach().clone()
    return nn.Parameter(own, value.requires_grad) if isinstance(value, nn.Parameter) else own
