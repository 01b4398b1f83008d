"""Cheaper graph neural networks: skip the entries of their matrix products that do not matter.

Names are imported when first used, so ``import unifews`` costs milliseconds and imports neither torch nor PyG.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unifews import deprecation

if TYPE_CHECKING:
    from unifews.core.diffusion import Diffusion as Diffusion
    from unifews.core.graph import Graph as Graph
    from unifews.core.schemes import Appnp as Appnp
    from unifews.core.schemes import Filter as Filter
    from unifews.core.schemes import HeatKernel as HeatKernel
    from unifews.core.schemes import PersonalizedPageRank as PersonalizedPageRank
    from unifews.core.schemes import Polynomial as Polynomial
    from unifews.core.schemes import Sgc as Sgc
    from unifews.core.trace import Trace as Trace
    from unifews.datasets.convert import convert_edges as convert_edges
    from unifews.datasets.dataset import About as About
    from unifews.datasets.dataset import Dataset as Dataset
    from unifews.datasets.dataset import Split as Split
    from unifews.datasets.folder import open_dataset as open_dataset
    from unifews.datasets.folder import save_dataset as save_dataset
    from unifews.datasets.load import load_dataset as load_dataset
    from unifews.datasets.powerlaw import powerlaw as powerlaw
    from unifews.datasets.powerlaw_files import write_powerlaw as write_powerlaw
    from unifews.datasets.read import read_edges as read_edges
    from unifews.errors import UnifewsError as UnifewsError
    from unifews.experiments.compare import Comparison as Comparison
    from unifews.experiments.compare import compare as compare
    from unifews.io.ids import read_ids as read_ids
    from unifews.kernels.buffers import release_memory as release_memory
    from unifews.methods.thin import thin as thin
    from unifews.nn.sparsify import accelerate as accelerate
    from unifews.nn.sparsify import desparsify as desparsify
    from unifews.nn.sparsify import set_node_lock as set_node_lock
    from unifews.nn.sparsify import set_schedule as set_schedule
    from unifews.nn.sparsify import sparsify as sparsify
    from unifews.nn.sparsify import trace as trace
    from unifews.propagation.api import propagate as propagate
    from unifews.propagation.result import Propagated as Propagated
    from unifews.resources import keep_freed as keep_freed
    from unifews.serving.compress import compress as compress
    from unifews.serving.export import export as export
    from unifews.serving.files import load as load
    from unifews.serving.files import save as save
    from unifews.serving.model import FrozenModel as FrozenModel
    from unifews.training.api import train as train

__version__ = "0.3.0"

deprecation.install()

_HOME = {
    "About": "unifews.datasets.dataset",
    "Appnp": "unifews.core.schemes",
    "Filter": "unifews.core.schemes",
    "HeatKernel": "unifews.core.schemes",
    "PersonalizedPageRank": "unifews.core.schemes",
    "Comparison": "unifews.experiments.compare",
    "Dataset": "unifews.datasets.dataset",
    "Diffusion": "unifews.core.diffusion",
    "FrozenModel": "unifews.serving.model",
    "Graph": "unifews.core.graph",
    "Polynomial": "unifews.core.schemes",
    "Propagated": "unifews.propagation.result",
    "Sgc": "unifews.core.schemes",
    "Split": "unifews.datasets.dataset",
    "Trace": "unifews.core.trace",
    "UnifewsError": "unifews.errors",
    "accelerate": "unifews.nn.sparsify",
    "compare": "unifews.experiments.compare",
    "compress": "unifews.serving.compress",
    "convert_edges": "unifews.datasets.convert",
    "desparsify": "unifews.nn.sparsify",
    "export": "unifews.serving.export",
    "keep_freed": "unifews.resources",
    "load": "unifews.serving.files",
    "load_dataset": "unifews.datasets.load",
    "open_dataset": "unifews.datasets.folder",
    "powerlaw": "unifews.datasets.powerlaw",
    "propagate": "unifews.propagation.api",
    "read_edges": "unifews.datasets.read",
    "read_ids": "unifews.io.ids",
    "release_memory": "unifews.kernels.buffers",
    "save": "unifews.serving.files",
    "save_dataset": "unifews.datasets.folder",
    "set_node_lock": "unifews.nn.sparsify",
    "set_schedule": "unifews.nn.sparsify",
    "sparsify": "unifews.nn.sparsify",
    "thin": "unifews.methods.thin",
    "trace": "unifews.nn.sparsify",
    "train": "unifews.training.api",
    "write_powerlaw": "unifews.datasets.powerlaw_files",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name == "distributed":  # a package with public names of its own, which imports torch
        return import_module("unifews.distributed")
    if name not in _HOME:
        raise AttributeError(f"module 'unifews' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
