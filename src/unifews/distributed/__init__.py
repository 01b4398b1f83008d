"""Several processes, started by torchrun, on one propagation or one training (docs/adr/0020)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {"propagate": "unifews.propagation.distributed", "train": "unifews.training.distributed"}

__all__ = ["propagate", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'unifews.distributed' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
