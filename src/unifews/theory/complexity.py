"""What pruned products cost, in multiply-adds ([P] section 4.3, complexity).

[P] also quotes that both factors' sparsity would multiply to (1-η_w)²; that is other work's result for other models, and no
counter here has seen it, so it is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from unifews.core.checks import check_sparsity
from unifews.errors import InputError


def propagation_macs(edges: int, features: int, hops: int = 1, *, sparsity: float = 0.0) -> int:
    """(1-η_a)·L·m·f: one multiply-add for each kept edge, feature and hop; edges are off-diagonal and directed.

    The paper's counts for papers100M are a 32-bit counter that wrapped: 20 hops are 8,264 G, not 17.7 G.

    >>> propagation_macs(12_623, 1_433, hops=20)
    361775180
    """
    return _share(_product(edges=edges, features=features, hops=hops), sparsity)


def transform_macs(rows: int, widths: Sequence[int], *, sparsity: float = 0.0) -> int:
    """(1-η_w)·n·Σ f_i·f_{i+1} over the layers of a dense transformation, biases left out.

    >>> transform_macs(169_343, [128, 512, 40])
    14566207488
    """
    if len(widths) < 2:
        raise InputError(f"`widths` are those of the input and of every layer, at least two; got {list(widths)}.")
    layers = (_product(rows=rows, width=here, next_width=there) for here, there in pairwise(widths))
    return _share(sum(layers), sparsity)


def _product(**factors: int) -> int:
    total = 1
    for name, value in factors.items():
        if isinstance(value, bool) or int(value) != value or value < 0:
            raise InputError(f"`{name}` is a count and must be a whole number, 0 or more; got {value!r}.")
        total *= int(value)
    return total


def _share(total: int, sparsity: float) -> int:
    sparsity = check_sparsity("sparsity", sparsity)
    return total if sparsity == 0 else round((1 - sparsity) * total)
