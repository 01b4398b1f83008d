"""Sums over neighbours by the kernels themselves: nothing here has a gradient.

The operators of nn/ops/gather.py do the same for torch to differentiate, compile and count; the first call imports torch's
compiler, which takes longer than a thousand predictions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unifews.kernels import LANES, native, threads_to_use
from unifews.nn.adjacency import Adjacency
from unifews.nn.edges import Edges

_SLACK = 8  # floats behind a table of sizes that a vector load may touch


def in_blocks(x: Tensor) -> Tensor:
    """x in whole blocks that start on cache lines, as the kernels want it; x itself where it is so."""
    blocks = max(1, -(-x.shape[1] // LANES))
    if x.shape[1] == blocks * LANES and x.data_ptr() % 64 == 0 and x.is_contiguous():
        return x
    table = torch.zeros(len(x), blocks * LANES)
    table[:, : x.shape[1]] = x
    return table


def gather(x: Tensor, adjacency: Adjacency, weight: Tensor | None) -> Tensor:
    """Σ_e w_e · x[v] into every receiver, [receivers, f]."""
    table = in_blocks(x)
    out = torch.empty(adjacency.num_nodes, table.shape[1])
    native.gather(
        **_lists(adjacency),
        weight=_numbers(weight),
        blocks=table.shape[1] // LANES,
        gain=None,
        x=table.numpy(),
        out=out.numpy(),
        threads=threads_to_use(None),
    )
    return out[:, : x.shape[1]]


def gather_at_least(x: Tensor, adjacency: Adjacency, weight: Tensor | None, delta: float) -> Tensor:
    """The same over the entries (e, block of columns) with |w_e| · ‖x[v, block]‖ ≥ δ."""
    table = in_blocks(x)
    n, blocks, threads = len(table), table.shape[1] // LANES, threads_to_use(None)
    size = torch.empty(n * blocks + _SLACK)[: n * blocks].view(n, blocks)
    native.block_sizes(table.numpy(), blocks, size.numpy(), threads)
    out = torch.empty(adjacency.num_nodes, table.shape[1])
    cut = torch.full((adjacency.num_nodes,), delta, dtype=torch.float32)
    native.gather_kept(
        **_lists(adjacency),
        weight=_numbers(weight),
        blocks=blocks,
        gain=None,
        x=table.numpy(),
        size=size.numpy(),
        cut=cut.numpy(),
        by_sender=False,
        out=out.numpy(),
        threads=threads,
    )
    return out[:, : x.shape[1]]


class Sent(NamedTuple):
    """The columns that are sent, in whole blocks."""

    table: Tensor
    columns: NDArray[np.int64] | None
    """Which they are; None = all."""
    blocks: int

    @classmethod
    def of(cls, y: Tensor, columns: Tensor | None, threads: int) -> Sent:
        """Of y, which is contiguous."""
        chosen = None if columns is None or len(columns) == y.shape[1] else columns.numpy()
        blocks = max(1, -(-(y.shape[1] if chosen is None else len(chosen)) // LANES))
        if chosen is None and y.shape[1] == blocks * LANES and not y.data_ptr() % 64:
            return cls(y, None, blocks)
        table = torch.empty(len(y), blocks * LANES)
        native.pick_columns(y.numpy(), chosen, blocks, table.numpy(), threads)
        return cls(table, chosen, blocks)

    def diffuse(self, edges: Edges, here: slice, y: Tensor, out: Tensor, threads: int) -> None:
        """out = loop · y + the sum over neighbours, of the receivers `here`, whose own rows y are."""
        loop = edges.loop
        native.diffuse(
            **_lists(edges.adjacency, here),
            weight=_numbers(edges.weight),
            blocks=self.blocks,
            columns=self.columns,
            table=self.table.numpy(),
            y=y.numpy(),
            loop=None if loop is None else loop[here].numpy(),
            out=out.numpy(),
            threads=threads,
        )


def diffuse(y: Tensor, edges: Edges, columns: Tensor | None) -> Tensor:
    """T y of the receivers, the sum over neighbours in these columns; new memory."""
    receivers, y, threads = edges.adjacency.num_nodes, y.contiguous(), threads_to_use(None)
    if columns is not None and not len(columns):
        return torch.zeros(receivers, y.shape[1]) if edges.loop is None else edges.loop[:, None] * y[:receivers]
    out = torch.empty(receivers, y.shape[1])
    Sent.of(y, columns, threads).diffuse(edges, slice(None), y[:receivers], out, threads)
    return out


def _lists(adjacency: Adjacency, here: slice = slice(None)) -> dict[str, Any]:
    a = adjacency
    return {"start": a.start[here].numpy(), "end": a.end[here].numpy(), "indices": a.indices.numpy()}


def _numbers(values: Tensor | None) -> NDArray[np.float32] | None:
    return None if values is None else values.contiguous().numpy()
