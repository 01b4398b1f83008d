"""The product T y of a layer: by kernels on the CPU, by torch on other devices, with equal results.

The diagonal, T[u,u]·y[u], is part of every product and never pruned.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unifews.core.entry import BLOCK, survives
from unifews.nn.edges import LayerEdges
from unifews.nn.ops import gather
from unifews.nn.products import Multiplied, Product

_MAX_SAMPLE = 1 << 21  # entries for a quantile
_SENDERS = 16_384  # sampled for the magnitudes of columns
_CHUNK = 1 << 24  # message values in memory at a time on the portable path


@dataclass(frozen=True, eq=False)
class DiffusionProduct(Product):
    """Σ_{v≠u} T[u,v]·y[v] over the kept entries + T[u,u]·y[u], [n, width]; an entry has the magnitude |T[u,v]|·‖y[v]‖."""

    y: Tensor
    edges: LayerEdges
    alive: Tensor | None = None

    @property
    def width(self) -> int:
        return self.y.shape[1]

    def column_sizes(self) -> Tensor:
        return column_sizes(sample_senders(self.y.detach()), self.edges)

    def edge_sizes(self) -> Tensor:
        return self.edges.factor.to(self.y.device) * row_sizes(self.y.detach())[self.edges.adjacency.indices.long()]

    def mean_values(self, size: Tensor) -> Tensor:
        """Self-loops included, as in the authors' code."""
        there, loop = size[size >= 0], self.edges.loop
        return there if loop is None else torch.cat([there, loop.detach().abs() * row_sizes(self.y.detach())])

    def entry_sizes(self, lanes: int) -> Tensor:
        size, edges = block_norms(self.y.detach(), lanes), self.edges
        stride = max(1, edges.count * size.shape[1] // _MAX_SAMPLE)
        sample = edges.factor[::stride, None] * size[edges.adjacency.indices[::stride].long()]
        return sample if self.alive is None else torch.where(self.alive[::stride, None], sample, -1.0)

    def _in_columns(self, columns: Tensor | None) -> Tensor:
        return diffused(self.y, self.edges, columns)

    def _in_columns_renormalized(self, columns: Tensor) -> Tensor:
        assert self.edges.loop is not None
        return diffused(self.y, self.edges, columns, self.edges.has_loop)

    def _along(self, keep: Tensor) -> Tensor:
        return diffused(self.y, self.edges if bool(keep.all()) else self.edges.only(keep))

    def _at_least(self, delta: float, lanes: int) -> Multiplied:
        alive = self.alive
        out, macs, used = diffuse_entries(self.y, self.edges if alive is None else self.edges.only(alive), delta, lanes)
        return Multiplied(out, int(used.sum()), macs, used if alive is None else alive.masked_scatter(alive, used))


def block_norms(y: Tensor, lanes: int) -> Tensor:
    """‖y[v, block]‖ of every row and block of `lanes` columns, [n, blocks]."""
    n, width = y.shape
    blocks = -(-width // lanes)
    rows = torch.nn.functional.pad(y, (0, blocks * lanes - width)).view(n, blocks, lanes)
    return rows.norm(dim=2) if lanes > 1 else rows[:, :, 0].abs()


def diffused(y: Tensor, edges: LayerEdges, columns: Tensor | None = None, rest: Tensor | None = None) -> Tensor:
    """T y, [n, width]: Σ_{v≠u} T[u,v]·y[v] in these columns (None: all) + T[u,u]·y[u] in all.

    `rest` [n]: the factor of y[u] in the other columns; None: T[u,u].
    """
    if columns is not None and len(columns) == y.shape[1]:
        columns = None
    learnt = edges.learnt or (rest is not None and rest.requires_grad)
    if _has_kernels(y) and not learnt and (columns is None or len(columns)):
        return gather.diffuse(y, edges.adjacency, edges.weight, edges.loop, columns, rest)
    if columns is None:
        sent = off_diagonal(y, edges)
    else:
        sent = torch.zeros_like(y)
        sent = sent.index_copy(1, columns, off_diagonal(y[:, columns], edges)) if len(columns) else sent
    if edges.loop is None:
        return sent
    own = edges.loop[:, None] * y
    if rest is not None and columns is not None:
        own = (rest[:, None] * y).index_copy(1, columns, own[:, columns])
    return sent + own


def off_diagonal(y: Tensor, edges: LayerEdges) -> Tensor:
    """Σ_{v≠u} T[u,v]·y[v], [n, width]."""
    return gather.gather(y, edges.adjacency, edges.weight) if _has_kernels(y) else portable_sum(y, edges)


def diffuse_entries(y: Tensor, edges: LayerEdges, delta: float, lanes: int) -> tuple[Tensor, int, Tensor]:
    """`diffused` over the entries (edge, `lanes` columns) of magnitude ≥ δ; their multiply-adds; bool [m]: edges with any."""
    n, width = y.shape
    size = block_norms(y.detach(), lanes)
    sender = edges.adjacency.indices.long()
    factor = edges.factor.to(y.device)
    none = torch.zeros_like(factor, dtype=torch.bool)
    used = survives(factor, size.amax(1)[sender], delta, zeros=True) if size.shape[1] else none
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
        kept = survives(factor[at : at + step, None], size[sender[at : at + step]], delta, zeros=True)
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
            kept = survives(None if weight is None else weight.detach()[:, None], size[sender[here]], delta, zeros=True)
            message = message * kept.repeat_interleave(lanes, dim=1)[:, :width]
        out = out.index_add(0, receiver[here], message)
    return out
