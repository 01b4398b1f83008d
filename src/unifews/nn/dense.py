"""PyG's own linear layer, pruned like torch's."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.nn import Linear

from unifews.nn.linear import PrunedWeight


class PrunedDense(PrunedWeight, Linear):  # type: ignore[misc]
    """y = x (W ⊙ keep)ᵀ + b."""

    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        return self.times(x, self.bias)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if "keep" not in self._non_persistent_buffers_set:
            destination[prefix + "keep"] = self.keep  # PyG's layer saves its weight and bias by hand, and no buffer
