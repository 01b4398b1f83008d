"""Models that several benchmarks time."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import GCN2Conv

HIDDEN, HEADS = 256, 8


class Gcnii(nn.Module):
    def __init__(self, inputs: int, classes: int, **how: Any) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(inputs, HIDDEN), nn.Linear(HIDDEN, classes)
        self.convs = nn.ModuleList(GCN2Conv(HIDDEN, alpha=0.1, theta=0.5, layer=i + 1, **how) for i in range(2))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = first = self.before(x).relu()
        for conv in self.convs:
            h = conv(h, first, edges).relu()
        out: Tensor = self.after(h)
        return out
