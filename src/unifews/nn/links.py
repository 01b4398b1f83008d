"""Which pairs of nodes are linked: an encoder of nodes and a decoder of pairs."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class LinkPredictor(nn.Module):
    """logit(i, j) = decoder(z_i ⊙ z_j), z = encoder(x, edges). The decoder is never pruned."""

    def __init__(self, encoder: nn.Module, width: int, dropout: float) -> None:
        """`encoder`: gives z [n, width]."""
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
        """Logits [k] of pairs of nodes whose encoding is known."""
        logits: Tensor = self.decoder(z[pairs[0]] * z[pairs[1]])
        return logits.squeeze(1)
