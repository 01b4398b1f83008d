"""Many workers, started by torchrun, on one propagation or one training (docs/adr/0020)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unifews.distributed.api import propagate as propagate
    from unifews.distributed.head import train as train

_HOME = {"propagate": "unifews.distributed.api", "train": "unifews.distributed.head"}

__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'unifews.distributed' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
