"""The entry rule of the paper, used for edges and for weights, and how much of each is to be removed.

A product ``factor · operand`` inside a matrix multiplication is an *entry*. It is kept when its magnitude is at least δ:

    |factor| · ‖operand‖ ≥ δ

* edge entry:   factor = T[u, v],  operand = P[v] or some of its features   (eq:sp_decalt, Algorithm 1)
* weight entry: factor = W[j, i],  operand = P[:, j]                         (eq:sp_iter, Algorithm 2)

What one edge entry covers is a choice (ADR-0005): the whole row of the source (``node``, the paper's form), each feature by
itself (``feature``, the authors' C++), or 16 consecutive features, one cache line (``block``, ours).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from unifews.core.config import option, validate
from unifews.errors import InputError

Entries = Literal["block", "feature", "node"]

BLOCK = 16
"""Features in a block: 64 bytes of float32, one cache line."""


@dataclass(frozen=True)
class Amounts:
    """How much is removed: at most one number for edges, and one for weights. 0 and None remove nothing."""

    edge_sparsity: float | None = option(
        None, "fraction of the edge products to remove (0.9: nine in ten)", ge=0, lt=1, group="Pruning", metavar="S"
    )
    edge_threshold: float | None = option(
        None, "remove edge products smaller than this magnitude δ", ge=0, le=math.inf, group="Pruning", metavar="D"
    )
    relative_threshold: float | None = option(
        None, "remove edge products smaller than C times the mean of their hop", ge=0, le=math.inf, group="Pruning", metavar="C"
    )
    max_error: float | None = option(
        None,
        "allowed relative error, in as few hops as reach it (try 0.05)",
        ge=0,
        lt=1,
        group="Pruning",
        metavar="E",
    )
    weight_sparsity: float | None = option(None, "fraction of the weights to remove", ge=0, lt=1, group="Pruning", metavar="S")
    weight_threshold: float | None = option(
        None, "remove weights whose products are smaller than T times the mean", ge=0, le=math.inf, group="Pruning", metavar="T"
    )

    def __post_init__(self) -> None:
        validate(self)
        for names in (_EDGES, _WEIGHTS):
            given = [f"{name}={getattr(self, name):g}" for name in names if getattr(self, name) is not None]
            if len(given) > 1:
                raise InputError(
                    f"{' and '.join(given)} exclude each other; give one of them.", setting=given[-1].split("=")[0]
                )

    @property
    def prunes_edges(self) -> bool:
        return any(getattr(self, name) for name in _EDGES)

    @property
    def prunes_weights(self) -> bool:
        return any(getattr(self, name) for name in _WEIGHTS)

    def __str__(self) -> str:
        given = [f"{name}={value:g}" for name in (*_EDGES, *_WEIGHTS) if (value := getattr(self, name))]
        return ", ".join(given) or "unpruned"


_EDGES = ("edge_sparsity", "edge_threshold", "relative_threshold", "max_error")
_WEIGHTS = ("weight_sparsity", "weight_threshold")


def cubic_ramp(part: float) -> float:
    """Fraction of a target sparsity that is due when this part of the ramp, 0 to 1, is over: ``1 - (1 - t)³`` (ADR-0012)."""
    return 1 - (1 - part) ** 3


def survives(factor: Any, operand_norm: Any, delta: float, *, zeros: bool = False, margin: float = 0.0) -> Any:
    """True where an entry is kept: |factor| · ‖operand‖ ≥ δ. NumPy arrays for arrays, a torch tensor for tensors.

    Args:
        factor: None where `operand_norm` already holds the magnitudes of the entries.
        operand_norm: norms of the operands, of a shape that broadcasts with that of `factor`.
        delta: δ. Ties are kept, so δ = 0 removes nothing (ADR-0002).
        zeros: whether an entry that is exactly zero counts as kept where δ = 0. Propagation skips it whatever δ is, at no cost,
            and does not count it among the removed ones; layers count it like any other.
        margin: fraction of δ by which an entry may be smaller, for magnitudes that were rounded in another order than δ.

    Layers call this function. These sites compute the rule in another order of rounding, or fused with the product, and keep
    their own comparison: the compiled kernels and their references in `unifews.kernels` (|T[u,v]| · ‖x[v]‖ ≥ δ in float32, per
    receiver where the operator is D^-(1-r) A D^-r: A·‖x‖ ≥ δ / factor[u]), weight masks (`nn.linear`: a threshold is capped
    below the largest entry), and programs for export (`serving.portable`: comparisons that ONNX runtimes have, in float32).
    """
    is_tensor = hasattr(operand_norm, "masked_fill")  # without importing torch
    size = operand_norm if is_tensor else np.asarray(operand_norm)
    if factor is not None:
        size = (factor.abs() if is_tensor else np.abs(factor)) * size
    keep = size >= (delta * (1 - margin) if margin else delta)
    keep = keep if zeros else keep & (size > 0)
    return keep if is_tensor else np.asarray(keep)
