"""An upper bound on the error of a pruned iterative model, layer by layer ([P] Proposition 4.4)."""

from __future__ import annotations

import math

from unifews.errors import InputError
from unifews.theory.perron import ROUNDING


class LayerCertificate:
    """Bounds ‖Ĥ - H‖_F over layers H' = act(T H W), edges and weights pruned: Ĥ' = act(T̂ Ĥ Ŵ).

    With Υ = T - T̂, M = W - Ŵ, P̂ = T̂Ĥ and ℓ the Lipschitz constant of the activation, from

        P̂Ŵ - PW = (T(Ĥ - H) - ΥĤ)W - P̂M

    follows  e' = ℓ·(‖T‖₂‖W‖₂·e + ‖ΥĤ‖_F·‖W‖₂ + ‖P̂M‖_F),  starting from e = 0 at the input.

    [P] lets only one layer be pruned and starts it from an exact H, writes ‖W‖_F for ‖W‖₂, and O(ε‖H‖ + δ_w) for a sum whose
    last term is q_w·δ_w. Here ‖ΥĤ‖ and ‖P̂M‖ are measured, or bounded by the functions of `unifews.theory.removal`: with
    [P]'s weight rule |W[j,i]|·‖P̂[:,j]‖ < δ_w, ‖P̂M‖_F ≤ δ_w·√Σ_i q_i² for q_i weights removed from output i.
    """

    def __init__(self) -> None:
        self.bound = 0.0
        """‖Ĥ - H‖_F is at most this after the layers recorded so far."""

    def layer(
        self,
        *,
        weight_norm: float,
        removed_edges: float = 0.0,
        removed_weights: float = 0.0,
        diffusion_norm: float = 1.0,
        lipschitz: float = 1.0,
        skip_norm: float = 0.0,
    ) -> float:
        """Record one layer; returns `bound`.

        Args:
            weight_norm: ‖W‖₂ of the unpruned weights, or ‖W‖_F.
            removed_edges: ‖ΥĤ‖_F or a bound on it.
            removed_weights: ‖P̂M‖_F or a bound on it.
            diffusion_norm: ‖T‖₂, 1 for r = ½ on an undirected graph; `HopMatrix.norm` otherwise.
            lipschitz: of the activation, 1 for ReLU; times max |γ|/√(var + eps) for a batch norm in evaluation mode.
            skip_norm: ‖W_s‖₂ of a residual branch H W_s added before the activation, 1 for the identity.
        """
        given = {
            "weight_norm": weight_norm, "removed_edges": removed_edges, "removed_weights": removed_weights,
            "diffusion_norm": diffusion_norm, "lipschitz": lipschitz, "skip_norm": skip_norm,
        }  # fmt: skip
        for name, value in given.items():
            if not value >= 0 or math.isinf(value):
                raise InputError(f"`{name}` is a norm and must be finite and 0 or more; got {value}.")
        inherited = (diffusion_norm * weight_norm + skip_norm) * self.bound
        self.bound = ROUNDING * lipschitz * (inherited + removed_edges * weight_norm + removed_weights)
        return self.bound
