"""The steps that look at neighbours. Rows come with the receivers first, so an edge list may have fewer rows than senders."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from unifews.core.entry import BLOCK
from unifews.nn.edges import Edges
from unifews.nn.ops import attention, heads
from unifews.nn.ops.heads import Rows
from unifews.nn.ops.products import row_sizes
from unifews.serving import sums
from unifews.serving.program import Step
from unifews.serving.wiring import only

_CHUNK = 1 << 24  # message values at a time


def diffuse(step: Step, y: Tensor, edges: Edges, *, known: bool) -> tuple[Tensor, Tensor | None]:
    """T y + b of the receivers, and, unless that is known beforehand, which edges [m] send anything."""
    used = None
    receivers = edges.adjacency.num_nodes
    if known:
        out = sums.diffuse(y, edges, columns_of(step))
    elif step.settings["form"] == "edges":
        used = edges.factor * row_sizes(y)[edges.adjacency.indices.long()] >= _delta(step)
        out = sums.diffuse(y, only(edges, used), None)
    else:
        out, used = _entries(step, y, edges)
        if edges.loop is not None:
            out = torch.addcmul(out, edges.loop[:, None], y[:receivers])
    return finished(step, out), used


def finished(step: Step, out: Tensor) -> Tensor:
    """The bias and the ReLU of a step, in place."""
    bias = step.tensor("bias")
    if bias is not None:
        out += bias
    return out.relu_() if step.settings["relu"] else out


def columns_of(step: Step) -> Tensor | None:
    flags = step.tensor("columns")
    return None if flags is None else flags.nonzero().flatten()


def _delta(step: Step) -> float:
    delta = step.settings["delta"]
    return math.inf if delta is None else float(delta)


def _entries(step: Step, y: Tensor, edges: Edges) -> tuple[Tensor, Tensor]:
    """Σ over the entries of size ≥ δ, and the edges that have any."""
    delta, width, sender = _delta(step), y.shape[1], edges.adjacency.indices.long()
    if step.settings["form"] == "block":
        blocks = -(-width // BLOCK)
        padded = torch.nn.functional.pad(y, (0, blocks * BLOCK - width)).view(len(y), blocks, BLOCK)
        largest = padded.norm(dim=2).amax(1)
        out = sums.gather_at_least(y, edges.adjacency, edges.weight, delta)
    else:
        size = y.abs()
        largest = size.amax(1)
        receiver = edges.adjacency.receivers
        out = torch.zeros(edges.adjacency.num_nodes, width)
        step_edges = max(1, _CHUNK // width)
        for first in range(0, len(sender), step_edges):
            here = slice(first, first + step_edges)
            weight = _ones(edges, here)
            message = y[sender[here]] * weight
            message = message * (weight.abs() * size[sender[here]] >= delta)
            out.index_add_(0, receiver[here], message)
    return out, edges.factor * largest[sender] >= delta


def _ones(edges: Edges, here: slice) -> Tensor:
    if edges.weight is None:
        return torch.ones(1, 1)
    return edges.weight[here, None]


# ------------------------------------------------------------------------------------------------------------- attention


def attend(
    step: Step, left: Tensor, right: Tensor | None, edges: Edges, keep: Tensor | None, *, known: bool
) -> tuple[Tensor, Tensor | None]:
    """Σ_v α[u,v]·left[v] + α[u,u]·left[u] of the receivers, and, unless known, which edges [m] send anything.

    `right` [receivers, width]: what receivers bring to the scores of "gatv2"; "gat" makes it from `left`.
    """
    how, adjacency, receivers = step.settings, edges.adjacency, edges.adjacency.num_nodes
    count = how["heads"]
    rows = Rows.of(left, count)
    if right is not None:
        att = step.tensor("att")
        scored, against = rows, rows if right is left else Rows.of(right, count)
    else:
        source, target = step.tensor("source"), step.tensor("target")
        assert source is not None and target is not None
        sent, received = rows.dots(source, target)
        scored, against = Rows.of(sent.contiguous(), count), Rows.of(received[:receivers].contiguous(), count)
        att = torch.ones(count, 1)
    assert att is not None
    score, own = heads.scores(scored, against, att, how["slope"], adjacency, loops=edges.loop is not None)
    alpha, own = heads.softmax(score, own, edges.loop, adjacency)
    if known and keep is None:
        columns = columns_of(step)
        if columns is None or not len(columns) or len(columns) == rows.width or rows.lanes is None:
            return _gathered(rows, alpha, own, edges, columns), None
        sub = _lanes(count, rows.channels, tuple(columns.tolist()))
        return attention.head_diffuse(rows.x, alpha, own, rows.lanes, sub, edges.adjacency), None
    used = None
    if how["form"] == "edges":
        if not known:
            size = torch.linalg.vector_norm(alpha, dim=1) / count * rows.norms[adjacency.indices.long()]
            keep = used = size >= _delta(step)
        assert keep is not None
        at = keep.nonzero().flatten()
        return _gathered(rows, alpha[at], own, only(edges, keep), None), used
    lanes = 1 if how["form"] == "feature" else BLOCK
    out, _, used = heads.gather_at_least(rows, alpha, alpha, None, adjacency, _delta(step), lanes)
    return _with_own(out, own, rows, receivers), used


def _gathered(rows: Rows, alpha: Tensor, own: Tensor | None, edges: Edges, columns: Tensor | None) -> Tensor:
    if rows.lanes is not None and columns is None:
        return attention.head_diffuse(rows.x, alpha.contiguous(), own, rows.lanes, rows.lanes, edges.adjacency)
    out = heads.gather(rows, alpha, None, edges.adjacency, columns=columns)
    return _with_own(out, own, rows, edges.adjacency.num_nodes)


def _with_own(out: Tensor, own: Tensor | None, rows: Rows, receivers: int) -> Tensor:
    return out if own is None else out + (own[:, :, None] * rows.by_head[:receivers]).flatten(1)


@lru_cache(64)
def _lanes(count: int, channels: int, columns: tuple[int, ...]) -> attention.Lanes:
    return attention.Lanes.of(count, channels, list(columns))
