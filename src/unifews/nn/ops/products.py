"""Pruned products of a layer's messages: by kernels on the CPU, by torch on other devices, with equal results.

The diagonal, T[u,u]·y[u], is part of every product and never pruned.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unifews.core.entry import BLOCK
from unifews.nn.edges import LayerEdges
from unifews.nn.ops import gather

_SENDERS = 16_384  # sampled for the magnitudes of columns
_CHUNK = 1 << 24  # message values in memory at a time on the portable path


def diffused(y: Tensor, edges: LayerEdges, columns: Tensor | None = None) -> Tensor:
    """T y, [n, width]: Σ_{v≠u} T[u,v]·y[v] in these columns (None: all) + T[u,u]·y[u] in all."""
    if columns is not None and len(columns) == y.shape[1]:
        columns = None
    if _has_kernels(y) and not edges.learnt and (columns is None or len(columns)):
        return gather.diffuse(y, edges.adjacency, edges.weight, edges.loop, columns)
    if columns is None:
        sent = off_diagonal(y, edges)
    else:
        sent = torch.zeros_like(y)
        sent = sent.index_copy(1, columns, off_diagonal(y[:, columns], edges)) if len(columns) else sent
    return sent if edges.loop is None else sent + edges.loop[:, None] * y


def off_diagonal(y: Tensor, edges: LayerEdges) -> Tensor:
    """Σ_{v≠u} T[u,v]·y[v], [n, width]."""
    return gather.gather(y, edges.adjacency, edges.weight) if _has_kernels(y) else portable_sum(y, edges)


def diffuse_kept_edges(y: Tensor, edges: LayerEdges, keep: Tensor) -> Tensor:
    """The same, along the edges where keep [m] is set."""
    return diffused(y, edges if bool(keep.all()) else edges.only(keep))


def diffuse_entries(y: Tensor, edges: LayerEdges, delta: float, lanes: int) -> tuple[Tensor, int, Tensor]:
    """The same over the entries (edge, `lanes` columns) of magnitude ≥ δ; their multiply-adds, and bool [m]: edges with any."""
    n, width = y.shape
    blocks = -(-width // lanes)
    rows = torch.nn.functional.pad(y.detach(), (0, blocks * lanes - width)).view(n, blocks, lanes)
    size = rows.norm(dim=2) if lanes > 1 else rows[:, :, 0].abs()
    sender = edges.adjacency.indices.long()
    factor = edges.factor.to(y.device)
    used = factor * size.amax(1)[sender] >= delta if blocks else torch.zeros_like(factor, dtype=torch.bool)
    if _has_kernels(y) and lanes == BLOCK and not (edges.weight is not None and edges.weight.requires_grad):
        cut = y.detach().new_full((n,), delta)
        out, _ = gather.gather_kept(y, edges.adjacency, cut, edges.weight)
    else:
        out = portable_sum(y, edges, size, delta, lanes)
    if edges.loop is not None:
        out = out + edges.loop[:, None] * y
    return out, _multiply_adds(size, factor, sender, delta, width, lanes), used


def column_sizes(rows: Tensor, edges: LayerEdges) -> Tensor:
    """‖messages in column j‖ ∝ (Σ_e T_e²·y[v,j]²)^½, [width], over the messages of `sample_senders`."""
    sent = sample_senders(edges.sent).to(rows.dtype)
    size: Tensor = (sent @ rows.square()).sqrt() * (len(edges.sent) / max(len(rows), 1)) ** 0.5
    return size


def sample_senders(y: Tensor) -> Tensor:
    """Evenly spaced rows, at most about 16,384: enough to compare the magnitudes of columns."""
    return y[:: max(1, len(y) // _SENDERS)]


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
        kept = factor[at : at + step, None] * size[sender[at : at + step]] >= delta
        total += int((kept.sum(0) * widths).sum())
    return total


def portable_sum(y: Tensor, edges: LayerEdges, size: Tensor | None = None, delta: float = 0.0, lanes: int = 1) -> Tensor:
    """Any device and precision: messages of a chunk of edges at a time, added to their receivers."""
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
            kept = factor * size[sender[here]] >= delta
            message = message * kept.repeat_interleave(lanes, dim=1)[:, :width]
        out = out.index_add(0, receiver[here], message)
    return out
