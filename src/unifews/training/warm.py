"""What a process loads on first use (parts of torch and scipy, a second or so) belongs to nobody's training time."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from unifews.core.graph import Graph
from unifews.datasets.dataset import Split
from unifews.nn.decoupled import Mlp
from unifews.propagation import propagate
from unifews.training.loop import fit
from unifews.training.recipe import Recipe, WeightPruning


@cache
def warm_up() -> None:
    """Propagate and train something tiny, once in a process; whoever sets times side by side calls it first."""
    nodes = np.arange(12)
    x = np.eye(12, 4, dtype=np.float32) + 1
    propagate(Graph.from_edge_index(np.stack([nodes, (nodes + 1) % 12])).undirected(), x, hops=2, edge_sparsity=0.5).embedding  # noqa: B018
    with torch.random.fork_rng(devices=[]):
        head = Mlp(4, 2, width=2)
        split = Split(nodes[:6], nodes[6:9], nodes[9:])
        fit(head, torch.from_numpy(x), nodes % 2, split, Recipe(width=2, epochs=2), pruning=WeightPruning(0.5))


@cache
def warm_up_layers() -> None:
    """The same for models whose layers propagate; PyG is imported here."""
    from unifews.nn.models import build
    from unifews.nn.sparsify import sparsify

    with torch.random.fork_rng(devices=[]):
        model = sparsify(build("gcn", 4, 2, width=4), edge_sparsity=0.5, weight_sparsity=0.5, ramp=1)
        ends = torch.arange(12)
        for _ in range(2):
            model(torch.eye(12, 4) + 1, torch.stack([ends, (ends + 1) % 12])).sum().backward()
