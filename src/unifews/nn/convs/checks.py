"""Checks of what a layer is called with: features, edges, precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unifews.errors import InputError, ShapeError
from unifews.nn.ops.linear import check_tensor


def is_pair(x: Any) -> bool:
    """Whether these are features of senders and receivers."""
    return isinstance(x, tuple | list) and len(x) == 2 and any(isinstance(part, Tensor) for part in x)


def check_features(x: Any, weight: Tensor | None, path: str) -> None:
    """Check for one matrix of features of the width and type of the layer's weights [outputs, inputs]."""
    shape = "[nodes, columns]" if weight is None else f"[nodes, {weight.shape[1]}]"
    if not isinstance(x, Tensor):
        what = "no features" if x is None else f"a {type(x).__name__} as features"
        raise InputError(f"{path} is called with {what}; give a torch tensor x {shape} (torch.from_numpy converts an array).")
    if x.ndim != 2:
        raise ShapeError(f"{path} is called with features of shape {list(x.shape)}; give a matrix x {shape}.")
    if weight is not None and x.shape[1] != weight.shape[1]:
        raise ShapeError(
            f"{path} is called with features of {x.shape[1]:,} columns and its weights take {weight.shape[1]:,}; give x "
            f"{shape}, or build the layer for {x.shape[1]:,}."
        )
    if not x.is_floating_point():
        raise InputError(f"{path} is called with {x.dtype} features; they must be floating-point, use x.float().")
    check_precision(x, weight, path)
    if weight is not None and x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise InputError(
            f"{path} is called with {x.dtype} features and its weights are {weight.dtype}; use x.to({weight.dtype})."
        )


def check_dense(x: Tensor, path: str) -> None:
    """Reject sparse features in layers that aggregate before their weights."""
    if x.layout != torch.strided:
        raise InputError(
            f"{path} is called with {x.layout} features, and this layer aggregates them before its weights, which needs dense "
            "features; use x.to_dense(), or put a linear layer before it."
        )


def check_precision(x: Tensor, weight: Tensor | None, path: str) -> None:
    """Reject half precision on the CPU, which has no kernel with accurate sums."""
    if x.device.type != "cpu":
        return
    if torch.is_autocast_enabled("cpu"):
        raise InputError(
            f"{path} is called under torch.autocast, which converts its messages to {torch.get_autocast_dtype('cpu')} on the "
            f"CPU, where sums lose precision; call the model within torch.autocast('cpu', enabled=False)."
        )
    for what, value, remedy in (("features", x, "x.float()"), ("weights", weight, "model.float()")):
        if value is not None and value.dtype in (torch.float16, torch.bfloat16):
            raise InputError(
                f"{path} has {value.dtype} {what} on the CPU, where sums of messages lose precision; use {remedy}."
            )


def check_edges(edge_index: Any, path: str) -> None:
    if not isinstance(edge_index, Tensor):
        raise InputError(
            f"{path} is called with a {type(edge_index).__name__} as edges; give edge_index [2, m] or a torch sparse matrix."
        )
    check_tensor(edge_index, "edge_index")
