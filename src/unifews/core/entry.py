"""The one idea of the paper, used for edges and for weights.

A product ``factor · operand`` inside a matrix multiplication is an *entry*. It stays when its magnitude reaches δ:

    |factor| · ‖operand‖ ≥ δ

* edge entry:   factor = T[u, v],  operand = P[v] or some of its features   (eq:sp_decalt, Algorithm 1)
* weight entry: factor = W[j, i],  operand = P[:, j]                         (eq:sp_iter, Algorithm 2)

What one edge entry is, is a choice (ADR-0005): the whole row of the source (``node``, the paper's form), each feature by
itself (``feature``, the authors' C++), or 16 consecutive features, one cache line (``block``, ours).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Entries = Literal["block", "feature", "node"]

BLOCK = 16
"""Features in a block: 64 bytes of float32, one cache line."""


def survives(factor: ArrayLike, operand_norm: ArrayLike, delta: float) -> NDArray[np.bool_]:
    """True where an entry stays.

    Ties stay, so δ = 0 removes nothing (ADR-0002). An entry that is exactly zero is no entry at all: it is skipped
    whatever δ is, costs nothing, and is counted apart from the removed ones.
    """
    magnitude = np.abs(factor) * np.asarray(operand_norm)
    return np.asarray((magnitude >= delta) & (magnitude > 0))
