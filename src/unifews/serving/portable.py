"""A frozen program in plain torch, for `export`: index tensors of edges, dense weights, every message a row in memory.

Shapes do not depend on values: a self-loop is not removed from the edges but has the factor 0, and what a threshold removes
is multiplied by 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unifews.core.entry import BLOCK
from unifews.serving.products import Weight, bias_and_relu
from unifews.serving.program import GRAPH_OPS, Program, Step
from unifews.serving.rows import by_row

_INFINITE = 3e38  # a threshold above every magnitude, as a float32


class PortableProgram(nn.Module):
    """`forward(x)`, `forward(x, edge_index)` or `forward(x, edge_index, edge_weight)` returns the scores of all nodes.

    The program must not propagate: `classifier` returns the part after the propagation.
    """

    def __init__(self, program: Program) -> None:
        super().__init__()
        self._steps = program.steps
        for number, step in enumerate(program.steps, start=1):
            for name, array in step.arrays.items():
                tensor = (array.dense if isinstance(array, Weight) else array).clone()
                if name == "columns":
                    tensor = tensor.nonzero().flatten()
                if name != "removed":  # keys of edges of one graph
                    self.register_buffer(f"{name}_{number}", tensor)

    def forward(self, x: Tensor, edge_index: Tensor | None = None, edge_weight: Tensor | None = None) -> Tensor:
        values = [x]
        kept: Tensor | None = None
        for number, step in enumerate(self._steps, start=1):
            given = [values[value] for value in step.inputs]
            if step.op not in GRAPH_OPS:
                values.append(self._by_row(number, step, given))
            else:
                assert edge_index is not None
                out, kept = self._graph_step(number, step, given, edge_index, edge_weight, kept)
                values.append(out)
        return values[-1]

    def _array(self, number: int, name: str) -> Tensor | None:
        return getattr(self, f"{name}_{number}", None)

    def _by_row(self, number: int, step: Step, given: list[Tensor]) -> Tensor:
        if step.op == "mean_heads":  # for any number of rows: len(x) would be exported as a constant
            x, heads = given[0], int(step.settings["heads"])
            return x.view(x.shape[0], heads, x.shape[1] // heads).mean(dim=1)
        if step.op != "linear":
            # The code of the frozen model, with the buffers of this module.
            arrays = {name: self._array(number, name) for name in step.arrays}
            return by_row(Step(step.op, step.inputs, step.settings, arrays), given)  # type: ignore[arg-type]
        weight = self._array(number, "weight")
        assert weight is not None
        out = torch.nn.functional.linear(given[0], weight, self._array(number, "bias"))
        return out.relu() if step.settings["relu"] else out

    def _graph_step(
        self, number: int, step: Step, given: list[Tensor], edge_index: Tensor, edge_weight: Tensor | None, kept: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """A step that sums over neighbours, and the edges [m] it keeps for the next."""
        there = kept if step.settings["inherit"] else None
        columns = self._array(number, "columns")
        if step.op == "diffuse":
            edges = _diffusion(step, edge_index, edge_weight, given[0])
            factor = edges.weight if there is None else edges.weight * there
            out, used = _sum_messages(step, given[0], factor, edges, columns)
            out = out + _own_factors(step, edges.loop[:, None], edges, given[0], columns) * given[0]
            return bias_and_relu(out, self._array(number, "bias"), step.settings["relu"]), used
        edges = _split(edge_index, None, given[0], 1.0 if step.settings["loops"] else None, step.settings["flow"])
        edges = edges if there is None else EdgeEnds(edges.sender, edges.receiver, edges.weight * there, edges.loop)
        return self._attend(number, step, given, edges, columns)

    def _attend(
        self, number: int, step: Step, given: list[Tensor], edges: EdgeEnds, columns: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        heads, slope = step.settings["heads"], step.settings["slope"]
        left = given[0].view(given[0].shape[0], heads, given[0].shape[1] // heads)
        if step.op == "gatv2":
            att = self._array(number, "att")
            assert att is not None
            by_head = att.flatten()[:, None] * _groups(heads, left.shape[2], left.device)

            def score(sent: Tensor, received: Tensor) -> Tensor:
                return torch.nn.functional.leaky_relu(sent + received, slope) @ by_head

            around = given[0].index_select(0, edges.sender), given[1].index_select(0, edges.receiver)
            scores, own = score(*around), score(given[0], given[1])
        else:
            source, target = self._array(number, "source"), self._array(number, "target")
            assert source is not None and target is not None
            sent, received = (left * source).sum(-1), (left * target).sum(-1)
            scores = torch.nn.functional.leaky_relu(sent[edges.sender] + received[edges.receiver], slope)
            own = torch.nn.functional.leaky_relu(sent + received, slope)
        alpha, own = _softmax(scores, own, edges)
        out, used = _sum_messages(step, given[0], alpha, edges, columns)
        spread = own.repeat_interleave(left.shape[2], dim=1)
        return out + _own_factors(step, spread, edges, given[0], columns) * given[0], used


def classifier(program: Program) -> Program:
    """The program after its propagation: its input is the embedding."""
    passes = {"factors": [1.0], "relu": False}
    steps = tuple(Step("sum", step.inputs, passes) if step.op == "propagate" else step for step in program.steps)
    return Program(program.features, steps, program.weighted)


# ---------------------------------------------------------------------------------------------------------------- edges


@dataclass(frozen=True)
class EdgeEnds:
    """Edges in the order of edge_index."""

    sender: Tensor
    receiver: Tensor
    weight: Tensor
    """Float [m]; 0 for self-loops, which `loop` holds."""
    loop: Tensor
    """Float [n]."""


def _diffusion(step: Step, edge_index: Tensor, edge_weight: Tensor | None, x: Tensor) -> EdgeEnds:
    """The edges with the normalisation of a step."""
    how = step.settings
    weighted = edge_weight is not None and how["weighted"]
    loops = how["weighted_loops"] if weighted else how["loops"]
    ends = _split(edge_index, edge_weight if weighted else None, x, loops, how["flow"])
    if how["norm"] == "sum":
        return ends
    if how["norm"] == "mean":
        count = _scatter_add(x.new_zeros(x.shape[0]), ends.receiver, torch.ones_like(ends.weight)).clamp(min=1)
        return EdgeEnds(ends.sender, ends.receiver, ends.weight / count[ends.receiver], ends.loop / count)
    sign, by = 1.0, ends.receiver
    if how["norm"] == "cheb":
        sign, by, ends = -1.0, ends.sender, EdgeEnds(ends.sender, ends.receiver, ends.weight, torch.zeros_like(ends.loop))
    degree = _scatter_add(ends.loop, by, ends.weight)
    root = torch.where(degree > 0, degree.clamp(min=torch.finfo(degree.dtype).tiny).rsqrt(), 0.0)
    weight = sign * root[ends.sender] * ends.weight * root[ends.receiver]
    return EdgeEnds(ends.sender, ends.receiver, weight, ends.loop * root * root)


def _split(edge_index: Tensor, edge_weight: Tensor | None, x: Tensor, fill: float | None, flow: str) -> EdgeEnds:
    """Edges between different nodes, and self-loops: those given, and one of weight `fill` where there is none."""
    sender, receiver = (edge_index[0], edge_index[1]) if flow == "source_to_target" else (edge_index[1], edge_index[0])
    is_loop = sender == receiver
    n = x.shape[0]
    if edge_weight is None:
        between = (~is_loop).to(x.dtype)
        count = _scatter_add(x.new_zeros(n), receiver, 1 - between)
        loop = count if fill is None else torch.where(count > 0, 1.0, float(fill))
        return EdgeEnds(sender, receiver, between, loop)
    between = torch.where(is_loop, 0.0, edge_weight)
    if fill is None:
        return EdgeEnds(sender, receiver, between, _scatter_add(x.new_zeros(n), receiver, edge_weight - between))
    # All other edges write to an extra element after the nodes.
    place = torch.where(is_loop, receiver, n)
    loop = x.new_full((n + 1,), fill).scatter(0, place, edge_weight)[:n]
    return EdgeEnds(sender, receiver, between, loop)


# ------------------------------------------------------------------------------------------------------------- messages


def _sum_messages(
    step: Step, y: Tensor, factor: Tensor, edges: EdgeEnds, columns: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Sum over neighbours of the messages that a step sends, factor [m] or [m, heads]; and, where magnitudes decide, the
    edges [m] that send any."""
    form, delta = step.settings["form"], step.settings["delta"]
    if form == "columns":
        assert columns is not None
        if columns.shape[0] == 0:
            return torch.zeros_like(y), None
        part = _messages(y, factor, edges.sender, columns)
        sums = _scatter_add(y.new_zeros(y.shape[0], columns.shape[0]), edges.receiver, part)
        return y.new_zeros(y.shape).index_copy(1, columns, sums), None
    used: Tensor | None = None
    if form == "edges":
        size = factor.abs() if factor.ndim == 1 else _norms(factor, factor.shape[1])[:, 0] / factor.shape[1]
        used = (size * torch.linalg.vector_norm(y, dim=1)[edges.sender] >= _delta(delta)).to(y.dtype)
        factor = factor * (used if factor.ndim == 1 else used[:, None])
    message = _messages(y, factor, edges.sender, None)
    if form in ("block", "feature"):
        keep = _entries(y, factor, message, edges, BLOCK if form == "block" else 1) >= _delta(delta)
        used = (keep.to(y.dtype) @ y.new_ones(keep.shape[1], 1))[:, 0].clamp(max=1.0)
        wide = keep if form == "feature" else keep.repeat_interleave(BLOCK, dim=1)[:, : y.shape[1]]
        message = message * wide.to(y.dtype)
    return _scatter_add(torch.zeros_like(y), edges.receiver, message), used


def _own_factors(step: Step, own: Tensor, edges: EdgeEnds, y: Tensor, columns: Tensor | None) -> Tensor:
    """The factors of self-loops [n, width]: `own`, or where the step renormalises, 1 in columns that are not sent."""
    if not step.settings["renormalize"] or columns is None:
        return own
    sent = torch.zeros_like(y[0]).scatter(0, columns, 1.0)
    return sent * own + (1 - sent) * (edges.loop != 0).to(y.dtype)[:, None]


def _messages(y: Tensor, factor: Tensor, sender: Tensor, columns: Tensor | None) -> Tensor:
    """factor·y[sender], [m, columns]."""
    rows = y if columns is None else y[:, columns]
    if factor.ndim == 1:
        return rows.index_select(0, sender) * factor[:, None]
    width = torch.arange(y.shape[1], device=y.device) if columns is None else columns
    return rows.index_select(0, sender) * factor[:, width // (y.shape[1] // factor.shape[1])]


def _entries(y: Tensor, factor: Tensor, message: Tensor, edges: EdgeEnds, lanes: int) -> Tensor:
    """The magnitude of every entry (edge, `lanes` columns), [m, blocks]."""
    of = y if factor.ndim == 1 else message
    size = of.abs() if lanes == 1 else _norms(torch.nn.functional.pad(of, (0, -of.shape[1] % lanes)), lanes)
    return size if factor.ndim == 2 else size[edges.sender] * factor.abs()[:, None]


def _groups(count: int, size: int, device: torch.device) -> Tensor:
    """The 0/1 matrix [count·size, count] that sums groups of `size` columns.

    A reshape and a sum do the same, but onnxruntime returns the wrong shape for matrices without rows.
    """
    return torch.eye(count, device=device).repeat_interleave(size, dim=0)


def _norms(x: Tensor, size: int) -> Tensor:
    """‖·‖₂ of every group of `size` columns."""
    return (x.square() @ _groups(x.shape[1] // size, size, x.device)).sqrt()


def _softmax(score: Tensor, own: Tensor, edges: EdgeEnds) -> tuple[Tensor, Tensor]:
    """Softmax over the edges into each node and its self-loops: α [m, heads], and of the loops [n, heads]. Edge weights are 0
    or 1."""
    there, has_loop = edges.weight[:, None], (edges.loop > 0)[:, None]
    lowest = torch.finfo(score.dtype).min / 2
    # By products: `where` of onnxruntime fails on columns without edges.
    place = edges.receiver[:, None].expand(score.shape)
    most = torch.where(has_loop, own, lowest).scatter_reduce(0, place, score + (1 - there) * lowest, "amax")
    power = (score - most[edges.receiver]).clamp(max=0.0).exp() * there
    mine = torch.where(has_loop, edges.loop[:, None] * (own - most).clamp(max=0.0).exp(), 0.0)
    total = _scatter_add(mine, edges.receiver, power) + 1e-16
    return power / total[edges.receiver], mine / total


def _delta(delta: Any) -> float:
    return _INFINITE if delta is None else float(delta)


def _scatter_add(to: Tensor, receiver: Tensor, rows: Tensor) -> Tensor:
    """Add rows to those of their receivers.

    By single elements: ONNX's sum over whole rows (ScatterND, which `index_add` becomes) loses updates of the same row when
    onnxruntime uses several threads.
    """
    place = receiver if rows.ndim == 1 else receiver[:, None].expand(rows.shape)
    return to.scatter_add(0, place, rows)
