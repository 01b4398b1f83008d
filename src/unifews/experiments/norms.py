"""How much of a GCN's first messages and of its first representation is left after pruning (fig:spar)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from unifews.datasets.dataset import Dataset
from unifews.experiments.measure import measure
from unifews.training.fingerprint import fingerprint

if TYPE_CHECKING:
    from torch import nn


_UNPRUNED: dict[tuple[str, int, int, int], tuple[float, float]] = {}  # of this process: many cells share one


@measure("norms", cost=200.0)
def norms(
    data: Dataset, *, edge_threshold: float = 0.0, weight_threshold: float = 0.0, epochs: int = 200, width: int = 512,
    seed: int = 42,
) -> dict[str, Any]:  # fmt: skip
    """‖τ̂_0‖_F of all first messages that are sent and ‖Ĥ_1‖_F of what the first layer gives before BatchNorm, of a GCN that was
    trained with these relative thresholds (the paper's form), each as a share of the same of a GCN trained unpruned."""
    from unifews.training.api import train
    from unifews.training.spec import paper_form

    common: dict[str, Any] = {"epochs": epochs, "width": width, "seed": seed, "patience": 0}
    run = train(
        data, "gcn", edge_threshold=edge_threshold, weight_threshold=weight_threshold, **paper_form("gcn"), **common
    )  # fmt: skip
    key = (fingerprint(data), epochs, width, seed)
    if key not in _UNPRUNED:
        whole = train(data, "gcn", **common).model
        assert whole is not None
        _UNPRUNED[key] = sizes(whole, data)
    assert run.model is not None
    message, representation = sizes(run.model, data)
    return {
        "message": message / _UNPRUNED[key][0],
        "representation": representation / _UNPRUNED[key][1],
        "edge_removed": 100 * run.trace.edge_sparsity,
        "weight_removed": 100 * run.trace.weight_sparsity,
        "accuracy": run.accuracy.test,
    }


def sizes(model: nn.Module, data: Dataset) -> tuple[float, float]:
    """‖τ_0‖_F over the edges that the first layer uses, the diagonal left out, and ‖H_1‖_F."""
    import torch

    from unifews.nn.edges import LayerEdges
    from unifews.nn.ops.products import row_sizes
    from unifews.training.layered import features

    conv: Any = next(iter(model.convs))  # type: ignore[arg-type]
    x, edge_index = features(data), torch.from_numpy(data.graph.to_edge_index())
    with torch.no_grad():
        model.eval()
        y, out = conv.lin(x), conv(x, edge_index)
        edges = LayerEdges.of(edge_index, None, data.num_nodes, "gcn", loops=1.0)
        size = edges.factor * row_sizes(y)[edges.adjacency.indices.long()]
        used = ~torch.isin(edges.adjacency.keys, conv.removed)
        return math.sqrt(float((size[used].double() ** 2).sum())), float(out.double().norm())
