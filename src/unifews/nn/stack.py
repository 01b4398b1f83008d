"""Message-passing layers one after another, as the paper's models are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from unifews.errors import InputError
from unifews.nn.ops.dropout import dropout

_MOMENTUM = 0.9  # of the running statistics, as the authors have it: they follow the last few passes


class Network(nn.Module):
    """What the models here have in common: ``forward(x, edge_index, edge_weight=None)``, scores of all nodes."""

    weighted = True
    """Whether its layers have a place for edge weights."""
    built: dict[str, Any] | None = None
    """What `zoo.build` was given, by name: a folder that holds this model says it, to have it built again."""

    def edge_arguments(self, edge_index: Any, edge_weight: Tensor | None) -> tuple[Any, ...]:
        if edge_weight is None:
            return (edge_index,)
        if not self.weighted:
            raise InputError(f"{type(self.convs[0]).__name__} has no place for edge weights; leave `edge_weight` out.")  # type: ignore[index]
        return edge_index, edge_weight


class Stack(Network):
    """conv → [BatchNorm → ReLU → Dropout → conv]*."""

    def __init__(self, convs: Sequence[MessagePassing], dropout: float, *, weighted: bool = True) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)
        self.norms = nn.ModuleList(nn.BatchNorm1d(_width(conv), momentum=_MOMENTUM) for conv in convs[:-1])
        self.dropout, self.weighted = dropout, weighted

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        edges = self.edge_arguments(edge_index, edge_weight)
        x = self.convs[0](x, *edges)
        for norm, conv in zip(self.norms, self.convs[1:], strict=True):
            x = dropout(norm(x).relu(), self.dropout, self.training)
            x = conv(x, *edges)
        return x


class Residual(Network):
    """Linear → BatchNorm → ReLU = x₀, then convolutions that are given x₀ too, then Linear (GCNII)."""

    def __init__(self, convs: Sequence[MessagePassing], inputs: int, outputs: int, width: int, dropout: float) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, width), nn.Linear(width, outputs)
        self.first_norm = nn.BatchNorm1d(width, momentum=_MOMENTUM)
        self.convs = nn.ModuleList(convs)
        self.norms = nn.ModuleList(nn.BatchNorm1d(width, momentum=_MOMENTUM) for _ in convs)
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        edges = self.edge_arguments(edge_index, edge_weight)
        start: Tensor = self.first_norm(self.first(x)).relu()
        x = dropout(start, self.dropout, self.training)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = dropout(norm(conv(x, start, *edges)).relu(), self.dropout, self.training)
        scores: Tensor = self.last(x)
        return scores


def _width(conv: MessagePassing) -> int:
    """Columns of what a layer gives."""
    if hasattr(conv, "nn"):
        return int([m for m in conv.nn.modules() if isinstance(m, nn.Linear)][-1].out_features)
    return int(conv.out_channels * (getattr(conv, "heads", 1) if getattr(conv, "concat", False) else 1))
