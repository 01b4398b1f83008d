"""Cheaper graph neural networks: skip the entries of their matrix products that do not matter.

Names are imported when first used, so ``import unifews`` costs milliseconds and imports neither torch nor PyG.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unifews.core.diffusion import Diffusion as Diffusion
    from unifews.core.graph import Graph as Graph
    from unifews.core.schemes import Appnp as Appnp
    from unifews.core.schemes import Polynomial as Polynomial
    from unifews.core.schemes import Sgc as Sgc
    from unifews.core.trace import Trace as Trace
    from unifews.datasets.generate import powerlaw as powerlaw
    from unifews.errors import UnifewsError as UnifewsError
    from unifews.propagation.api import propagate as propagate
    from unifews.propagation.result import Propagated as Propagated

__version__ = "0.1.0"

_HOME = {
    "Appnp": "unifews.core.schemes",
    "Diffusion": "unifews.core.diffusion",
    "Graph": "unifews.core.graph",
    "Polynomial": "unifews.core.schemes",
    "Propagated": "unifews.propagation.result",
    "Sgc": "unifews.core.schemes",
    "Trace": "unifews.core.trace",
    "UnifewsError": "unifews.errors",
    "powerlaw": "unifews.datasets.generate",
    "propagate": "unifews.propagation.api",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'unifews' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
