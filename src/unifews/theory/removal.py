"""How large what was removed from one product can be ([P] Lemma 4.1).

Υ = T - T̂ holds the removed entries, each with a message of size below δ. From what is known of them, best first:

    ‖ΥP‖_F  ≤  √Σ_u (Σ_v ‖Υ[u,v]P[v]‖)²  ≤  δ·√Σ_u q_u²  ≤  δ·q        q_u removed entries of row u, q of them in all

and ‖ΥP‖ / ‖P‖ bounds |pᵀΥp| / ‖p‖², for this P alone. [P] concludes from q·δ ≤ ε‖p‖ that L̂ is ε-similar to L, that is,
close for *every* vector. It is not: on a complete graph of 50 nodes with p = (10³, 10⁻⁶, …) and δ = 10⁻⁶ nearly all edges
go, qδ/‖p‖ is 2.4·10⁻⁶, and ‖Υ‖₂ is 0.97. For that there is `unifews.theory.similarity`.

The second and third bound need every removed message to be below δ *now*. Entries that were removed at an earlier hop
and stay removed (`inherit=True`) may carry larger ones, always do with an identity skip: use the first two then.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unifews.errors import InputError


def removed_norm(removed: Any, p: ArrayLike) -> float:
    """‖ΥP‖_F itself: as much work as the entries that were removed."""
    return float(np.linalg.norm(removed @ np.asarray(p, dtype=np.float64)))


def removed_norm_by_size(sizes: ArrayLike) -> float:
    """√Σ_u (Σ_v message size)²; `sizes` holds the sum of the removed messages' sizes for each target, or for each target and
    group of features. A sum of sizes takes 1/width of the work of the sum of messages."""
    return float(np.linalg.norm(np.asarray(sizes, dtype=np.float64)))


def removed_norm_by_count(counts: ArrayLike, threshold: float) -> float:
    """δ·√Σ q_u² for the number of removed entries of each target (and group of features); with one number, δ·q.

    The same for weights: `counts` per output column, ‖P̂M‖_F ≤ δ_w·√Σ_i q_i².
    """
    if not (threshold >= 0 and math.isfinite(threshold)):
        raise InputError(f"`threshold` is a magnitude, finite and 0 or more; got {threshold}.")
    return threshold * float(np.linalg.norm(np.asarray(counts, dtype=np.float64)))


def vector_epsilon(removed_norm: float, p: ArrayLike) -> float:
    """ε for the embedding that was given and no other: bounds ‖ΥP‖/‖P‖ and |pᵀΥp|/‖p‖².

    Never a spectral guarantee, whatever [P] Lemma 4.1 says.
    """
    norm = float(np.linalg.norm(np.asarray(p, dtype=np.float64)))
    if norm == 0:
        return 0.0 if removed_norm == 0 else math.inf
    return removed_norm / norm
