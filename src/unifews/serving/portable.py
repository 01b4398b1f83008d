"""A frozen program in plain torch: edges are index tensors, weights are dense, and every message is a row in memory.

Nothing here depends on values, so that it can be written down for other programs (`export`): a self-loop is not taken out of
the edges but given a factor of 0, and what a threshold removes is multiplied by 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unifews.core.entry import BLOCK
from unifews.serving.program import GRAPH_OPS, Program, Step
from unifews.serving.rows import by_row
from unifews.serving.weights import Weight

_NEVER = 3e38  # a threshold above every size, as a float32


class Indexed(nn.Module):
    """`forward(x)`, `forward(x, edge_index)` or `forward(x, edge_index, edge_weight)` gives the scores of all nodes.

    The program does not propagate: `classifier` makes one that starts behind that.
    """

    def __init__(self, program: Program) -> None:
        super().__init__()
        self._steps = program.steps
        for number, step in enumerate(program.steps, start=1):
            for name, array in step.arrays.items():
                tensor = (array.dense if isinstance(array, Weight) else array).clone()
                if name == "columns":
                    tensor = tensor.nonzero().flatten()
                if name != "removed":  # edges of one graph by their numbers
                    self.register_buffer(f"{name}_{number}", tensor)

    def forward(self, x: Tensor, edge_index: Tensor | None = None, edge_weight: Tensor | None = None) -> Tensor:
        values = [x]
        alive: Tensor | None = None
        for number, step in enumerate(self._steps, start=1):
            given = [values[value] for value in step.inputs]
            if step.op not in GRAPH_OPS:
                values.append(self._by_row(number, step, given))
            else:
                assert edge_index is not None
                out, alive = self._around(number, step, given, edge_index, edge_weight, alive)
                values.append(out)
        return values[-1]

    def _array(self, number: int, name: str) -> Tensor | None:
        return getattr(self, f"{name}_{number}", None)

    def _by_row(self, number: int, step: Step, given: list[Tensor]) -> Tensor:
        if step.op == "mean_heads":  # for any number of rows: a length would be written down as it is
            x, heads = given[0], int(step.settings["heads"])
            return x.view(x.shape[0], heads, x.shape[1] // heads).mean(dim=1)
        if step.op != "linear":
            # The same code as the frozen model's, over the buffers of this module.
            arrays = {name: self._array(number, name) for name in step.arrays}
            return by_row(Step(step.op, step.inputs, step.settings, arrays), given, 1)  # type: ignore[arg-type]
        weight = self._array(number, "weight")
        assert weight is not None
        out = torch.nn.functional.linear(given[0], weight, self._array(number, "bias"))
        return out.relu() if step.settings["relu"] else out

    def _around(
        self, number: int, step: Step, given: list[Tensor], edge_index: Tensor, edge_weight: Tensor | None, alive: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """One step that looks at neighbours, and the edges [m] it leaves to the next."""
        there = alive if step.settings["inherit"] else None
        columns = self._array(number, "columns")
        if step.op == "diffuse":
            edges = _diffusion(step, edge_index, edge_weight, given[0])
            factor = edges.weight if there is None else edges.weight * there
            out, used = _sent(step, given[0], factor, edges, columns)
            out = out + edges.loop[:, None] * given[0]
            return _finished(out, self._array(number, "bias"), step.settings["relu"]), used
        edges = _connections(step, edge_index, given[0])
        edges = edges if there is None else Ends(edges.sender, edges.receiver, edges.weight * there, edges.loop)
        return self._attend(number, step, given, edges, columns)

    def _attend(
        self, number: int, step: Step, given: list[Tensor], edges: Ends, columns: Tensor | None
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
        out, used = _sent(step, given[0], alpha, edges, columns)
        return out + (own[:, :, None] * left).flatten(1), used


def classifier(program: Program) -> Program:
    """The program from where it has propagated on: what it is given is an embedding."""
    passes = {"factors": [1.0], "relu": False}
    steps = tuple(Step("sum", step.inputs, passes) if step.op == "propagate" else step for step in program.steps)
    return Program(program.features, steps, program.weighted)


# ---------------------------------------------------------------------------------------------------------------- edges


@dataclass(frozen=True)
class Ends:
    """Edges in the order given."""

    sender: Tensor
    receiver: Tensor
    weight: Tensor
    """Float [m]; 0 for self-loops, which `loop` holds."""
    loop: Tensor
    """Float [n]."""


def _diffusion(step: Step, edge_index: Tensor, edge_weight: Tensor | None, x: Tensor) -> Ends:
    """The edges with the factors that a step multiplies by."""
    how = step.settings
    weighted = edge_weight is not None and how["weighted"]
    loops = how["weighted_loops"] if weighted else how["loops"]
    ends = _split(edge_index, edge_weight if weighted else None, x, loops, how["flow"])
    if how["norm"] == "sum":
        return ends
    if how["norm"] == "mean":
        count = _added(x.new_zeros(x.shape[0]), ends.receiver, torch.ones_like(ends.weight)).clamp(min=1)
        return Ends(ends.sender, ends.receiver, ends.weight / count[ends.receiver], ends.loop / count)
    sign, by = 1.0, ends.receiver
    if how["norm"] == "cheb":
        sign, by, ends = -1.0, ends.sender, Ends(ends.sender, ends.receiver, ends.weight, torch.zeros_like(ends.loop))
    degree = _added(ends.loop, by, ends.weight)
    root = torch.where(degree > 0, degree.clamp(min=torch.finfo(degree.dtype).tiny).rsqrt(), 0.0)
    weight = sign * root[ends.sender] * ends.weight * root[ends.receiver]
    return Ends(ends.sender, ends.receiver, weight, ends.loop * root * root)


def _connections(step: Step, edge_index: Tensor, x: Tensor) -> Ends:
    """The edges without factors."""
    return _split(edge_index, None, x, 1.0 if step.settings["loops"] else None, step.settings["flow"])


def _split(edge_index: Tensor, edge_weight: Tensor | None, x: Tensor, fill: float | None, flow: str) -> Ends:
    """Edges between different nodes, and self-loops: those given, and of weight `fill` where there was none."""
    sender, receiver = (edge_index[0], edge_index[1]) if flow == "source_to_target" else (edge_index[1], edge_index[0])
    is_loop = sender == receiver
    n = x.shape[0]
    if edge_weight is None:
        between = (~is_loop).to(x.dtype)
        count = _added(x.new_zeros(n), receiver, 1 - between)
        loop = count if fill is None else torch.where(count > 0, 1.0, float(fill))
        return Ends(sender, receiver, between, loop)
    between = torch.where(is_loop, 0.0, edge_weight)
    if fill is None:
        return Ends(sender, receiver, between, _added(x.new_zeros(n), receiver, edge_weight - between))
    # All other edges write to a place of their own behind the nodes'.
    place = torch.where(is_loop, receiver, n)
    loop = x.new_full((n + 1,), fill).scatter(0, place, edge_weight)[:n]
    return Ends(sender, receiver, between, loop)


# ------------------------------------------------------------------------------------------------------------- messages


def _sent(step: Step, y: Tensor, factor: Tensor, edges: Ends, columns: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Σ over the neighbours of what a step sends, factor [m] or [m, heads]; and, if sizes decide it, which edges do, [m]."""
    form, delta = step.settings["form"], step.settings["delta"]
    if form == "columns":
        assert columns is not None
        if columns.shape[0] == 0:
            return torch.zeros_like(y), None
        part = _messages(y, factor, edges.sender, columns)
        sums = _added(y.new_zeros(y.shape[0], columns.shape[0]), edges.receiver, part)
        return y.new_zeros(y.shape).index_copy(1, columns, sums), None
    used: Tensor | None = None
    if form == "edges":
        size = factor.abs() if factor.ndim == 1 else _norms(factor, factor.shape[1])[:, 0] / factor.shape[1]
        used = (size * torch.linalg.vector_norm(y, dim=1)[edges.sender] >= _delta(delta)).to(y.dtype)
        factor = factor * (used if factor.ndim == 1 else used[:, None])
    message = _messages(y, factor, edges.sender, None)
    if form in ("block", "feature"):
        stays = _entries(y, factor, message, edges, BLOCK if form == "block" else 1) >= _delta(delta)
        used = (stays.to(y.dtype) @ y.new_ones(stays.shape[1], 1))[:, 0].clamp(max=1.0)
        wide = stays if form == "feature" else stays.repeat_interleave(BLOCK, dim=1)[:, : y.shape[1]]
        message = message * wide.to(y.dtype)
    return _added(torch.zeros_like(y), edges.receiver, message), used


def _messages(y: Tensor, factor: Tensor, sender: Tensor, columns: Tensor | None) -> Tensor:
    """factor·y[sender], [m, columns]."""
    rows = y if columns is None else y[:, columns]
    if factor.ndim == 1:
        return rows.index_select(0, sender) * factor[:, None]
    width = torch.arange(y.shape[1], device=y.device) if columns is None else columns
    return rows.index_select(0, sender) * factor[:, width // (y.shape[1] // factor.shape[1])]


def _entries(y: Tensor, factor: Tensor, message: Tensor, edges: Ends, lanes: int) -> Tensor:
    """The sizes of every entry (edge, `lanes` columns), [m, blocks]."""
    of = y if factor.ndim == 1 else message
    size = of.abs() if lanes == 1 else _norms(torch.nn.functional.pad(of, (0, -of.shape[1] % lanes)), lanes)
    return size if factor.ndim == 2 else size[edges.sender] * factor.abs()[:, None]


def _groups(count: int, size: int, device: torch.device) -> Tensor:
    """Which of `count` groups each of count·size columns is in, as a matrix of 0 and 1: a product with it sums by groups.

    A sum would do the same, but onnxruntime gives one over columns of no rows the wrong shape.
    """
    return torch.eye(count, device=device).repeat_interleave(size, dim=0)


def _norms(x: Tensor, size: int) -> Tensor:
    """‖·‖ of every so many columns."""
    return (x.square() @ _groups(x.shape[1] // size, size, x.device)).sqrt()


def _softmax(score: Tensor, own: Tensor, edges: Ends) -> tuple[Tensor, Tensor]:
    """Over the edges into each node and its own loops: α [m, heads], and of the loops [n, heads]. Edge weights are 0 or 1."""
    there, has_loop = edges.weight[:, None], (edges.loop > 0)[:, None]
    lowest = torch.finfo(score.dtype).min / 2
    # By products: onnxruntime cannot choose between columns of no edges at all.
    place = edges.receiver[:, None].expand(score.shape)
    most = torch.where(has_loop, own, lowest).scatter_reduce(0, place, score + (1 - there) * lowest, "amax")
    power = (score - most[edges.receiver]).clamp(max=0.0).exp() * there
    mine = torch.where(has_loop, edges.loop[:, None] * (own - most).clamp(max=0.0).exp(), 0.0)
    total = _added(mine, edges.receiver, power) + 1e-16
    return power / total[edges.receiver], mine / total


def _delta(delta: Any) -> float:
    return _NEVER if delta is None else float(delta)


def _added(to: Tensor, receiver: Tensor, rows: Tensor) -> Tensor:
    """Rows added where they go.

    By single elements: ONNX's sum over whole rows (ScatterND, which `index_add` becomes) loses some where several go to one
    place and onnxruntime uses several threads.
    """
    place = receiver if rows.ndim == 1 else receiver[:, None].expand(rows.shape)
    return to.scatter_add(0, place, rows)


def _finished(out: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    out = out if bias is None else out + bias
    return out.relu() if relu else out
