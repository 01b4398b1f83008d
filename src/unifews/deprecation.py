"""Old names of modules and arguments: they work for two minor versions, with a DeprecationWarning that gives the new name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar

from unifews.errors import InputError

Function = TypeVar("Function", bound=Callable[..., Any])

REMOVED_IN = "0.4"
MOVED = {
    "unifews.datasets.tables": "unifews.datasets.user_files",
    "unifews.experiments.rivals": "unifews.experiments.compare",
    "unifews.nn.export": "unifews.serving.export",
    "unifews.training.run": "unifews.training.result",
}


class _MovedModules(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        new = MOVED[module.__name__]
        found = import_module(new)
        warnings.warn(
            f"{module.__name__} is now {new}; the old name will be removed in {REMOVED_IN}.", DeprecationWarning, stacklevel=2
        )
        kept = {key: value for key, value in vars(found).items() if not key.startswith("__") or key == "__getattr__"}
        module.__dict__.update(kept)


def install() -> None:
    """Look up the old names after everything else; called once, when the package is imported."""
    if not any(isinstance(finder, _MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(_MovedModules())


def renamed_names(module: str, renamed: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module in which names have changed: {"Old": "unifews.other.module.New"}."""

    def find(name: str) -> Any:
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = renamed[name]
        warnings.warn(
            f"{module}.{name} is now {new}; the old name will be removed in {REMOVED_IN}.", DeprecationWarning, stacklevel=2
        )
        home, _, attribute = new.rpartition(".")
        return getattr(import_module(home), attribute)

    return find


def removed_arguments(**removed: str) -> Callable[[Function], Function]:
    """A decorator: keyword arguments that a function had; the value of each is what replaces it, for the error message."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            for old in removed.keys() & given.keys():
                if given.pop(old) is not None:  # the former default
                    raise InputError(f"`{old}` was removed: {removed[old]}.", setting=old)
            return function(*args, **given)

        return call  # type: ignore[return-value]

    return decorate


def renamed_arguments(**renamed: str) -> Callable[[Function], Function]:
    """A decorator: keyword arguments `old="new"` of a function are still accepted by their old names."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            for old in renamed.keys() & given.keys():
                new = renamed[old]
                if new in given:
                    raise InputError(f"`{old}` is the old name of `{new}`; give `{new}` only.")
                warnings.warn(
                    f"`{old}` is now `{new}`; the old name will be removed in {REMOVED_IN}.", DeprecationWarning, stacklevel=2
                )
                given[new] = given.pop(old)
            return function(*args, **given)

        return call  # type: ignore[return-value]

    return decorate
