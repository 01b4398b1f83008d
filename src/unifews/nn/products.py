"""Products of a layer's messages, by what stays of them: on the CPU by kernels, elsewhere by torch, to the same result."""

from __future__ import annotations

import torch
from torch import Tensor

from unifews.core.entry import BLOCK
from unifews.nn import ops
from unifews.nn.edges import Edges

_CHUNK = 1 << 24  # message values that the portable path holds at a time


def all_products(y: Tensor, edges: Edges) -> Tensor:
    """Σ_{v≠u} T[u,v]·y[v], [n, width]."""
    if _has_kernels(y):
        return ops.gather(y, edges.adjacency, edges.weight)
    return _portable(y, edges)


def products_in_columns(y: Tensor, edges: Edges, columns: Tensor) -> Tensor:
    """The same, in these columns only; 0 in the others."""
    if len(columns) == y.shape[1]:
        return all_products(y, edges)
    if not len(columns):
        return torch.zeros_like(y)
    sent = all_products(y[:, columns], edges)
    return torch.zeros_like(y).index_copy(1, columns, sent)


def products_on(y: Tensor, edges: Edges, keep: Tensor) -> Tensor:
    """The same, along the edges where keep [m] is set."""
    return all_products(y, edges if bool(keep.all()) else edges.only(keep))


def products_at_least(y: Tensor, edges: Edges, delta: float, lanes: int) -> tuple[Tensor, int, Tensor]:
    """The same, over the entries (edge, `lanes` columns) of size ≥ δ; their multiply-adds, and which edges [m] have any."""
    n, width = y.shape
    blocks = -(-width // lanes)
    rows = torch.nn.functional.pad(y.detach(), (0, blocks * lanes - width)).view(n, blocks, lanes)
    size = rows.norm(dim=2) if lanes > 1 else rows[:, :, 0].abs()
    sender = edges.adjacency.indices.long()
    factor = edges.factor.to(y.device)
    used = factor * size.amax(1)[sender] >= delta if blocks else torch.zeros_like(factor, dtype=torch.bool)
    if _has_kernels(y) and lanes == BLOCK and not (edges.weight is not None and edges.weight.requires_grad):
        cut = torch.full((n,), delta, dtype=torch.float32)
        out, _ = ops.gather_kept(y, edges.adjacency, cut, edges.weight)
    else:
        out = _portable(y, edges, size, delta, lanes)
    return out, _multiply_adds(size, factor, sender, delta, width, lanes), used


def column_sizes(y: Tensor, edges: Edges) -> Tensor:
    """‖messages in column j‖ = (Σ_e T_e²·y[v,j]²)^½, [width], from one weight per sender."""
    square = edges.factor.to(y.device, y.dtype) ** 2
    sent = torch.zeros(len(y), dtype=y.dtype, device=y.device).index_add(0, edges.adjacency.indices.long(), square)
    size: Tensor = (sent @ y.square()).sqrt()
    return size


def row_sizes(y: Tensor) -> Tensor:
    """‖y[u]‖₂, [n]."""
    size: Tensor = torch.linalg.vector_norm(y, dim=1)
    return size


def _has_kernels(y: Tensor) -> bool:
    return y.device.type == "cpu" and y.dtype == torch.float32


def _multiply_adds(size: Tensor, factor: Tensor, sender: Tensor, delta: float, width: int, lanes: int) -> int:
    total, blocks = 0, size.shape[1]
    widths = torch.full((blocks,), lanes, device=size.device)
    if blocks:
        widths[-1] = width - lanes * (blocks - 1)
    step = max(1, _CHUNK // max(blocks, 1))
    for at in range(0, len(sender), step):
        stays = factor[at : at + step, None] * size[sender[at : at + step]] >= delta
        total += int((stays.sum(0) * widths).sum())
    return total


def _portable(y: Tensor, edges: Edges, size: Tensor | None = None, delta: float = 0.0, lanes: int = 1) -> Tensor:
    """Any device and precision: messages of a chunk of edges at a time, added where they go."""
    width = y.shape[1]
    receiver, sender = edges.adjacency.receivers, edges.adjacency.indices.long()
    out = torch.zeros(edges.adjacency.num_nodes, width, dtype=y.dtype, device=y.device)
    step = max(1, _CHUNK // max(width, 1))
    for at in range(0, len(sender), step):
        here = slice(at, at + step)
        message = y[sender[here]]
        weight = None if edges.weight is None else edges.weight[here].to(y.dtype)
        if weight is not None:
            message = message * weight[:, None]
        if size is not None:
            factor = 1.0 if weight is None else weight.detach().abs()[:, None]
            stays = factor * size[sender[here]] >= delta
            message = message * stays.repeat_interleave(lanes, dim=1)[:, :width]
        out = out.index_add(0, receiver[here], message)
    return out
