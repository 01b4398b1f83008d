"""Message-passing layers that prune their own messages, one module per kind; a module here adds a kind by `@prunes(...)`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from unifews.nn.convs.base import KINDS, PrunedConv

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["KINDS", "PrunedConv"]
