"""The networks of `unifews.nn.models`: stacks of message-passing layers, and link prediction on top of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from unifews.errors import InputError
from unifews.nn.ops.dropout import dropout

_MOMENTUM = 0.9  # of BatchNorm, as in the authors' code: running statistics follow the last few passes


class Network(nn.Module):
    """Base class of the models: ``forward(x, edge_index, edge_weight=None)`` returns the scores of all nodes."""

    weighted = True
    """Whether its layers take edge weights."""
    built: dict[str, Any] | None = None
    """Arguments of `models.build` by name; saved with the model, to rebuild it."""

    def edge_arguments(self, edge_index: Any, edge_weight: Tensor | None) -> tuple[Any, ...]:
        if edge_weight is None:
            return (edge_index,)
        if not self.weighted:
            raise InputError(f"{type(self.convs[0]).__name__} takes no edge weights; leave `edge_weight` out.")  # type: ignore[index]
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
    """Linear → BatchNorm → ReLU = x₀, then convolutions that also take x₀, then Linear (GCNII)."""

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
    """Columns of the result of a layer."""
    if hasattr(conv, "nn"):
        return int([m for m in conv.nn.modules() if isinstance(m, nn.Linear)][-1].out_features)
    return int(conv.out_channels * (getattr(conv, "heads", 1) if getattr(conv, "concat", False) else 1))


class LinkPredictor(nn.Module):
    """logit(i, j) = decoder(z_i ⊙ z_j), z = encoder(x, edges). The decoder is never pruned."""

    def __init__(self, encoder: nn.Module, width: int, dropout: float) -> None:
        """`encoder`: returns z [n, width]."""
        super().__init__()
        self.encoder = encoder
        self.decoder = nn.Sequential(
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width, 1),
        )

    def forward(self, x: Tensor, edge_index: Any, pairs: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Logits [k] of the pairs [2, k]."""
        return self.decode(self.encoder(x, edge_index, edge_weight), pairs)

    def decode(self, z: Tensor, pairs: Tensor) -> Tensor:
        """Logits [k] of pairs of nodes from their encoding z."""
        logits: Tensor = self.decoder(z[pairs[0]] * z[pairs[1]])
        return logits.squeeze(1)
