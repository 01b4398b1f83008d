"""The products of a layer as torch operators: compiled kernels forward and backward, no message per edge in memory.

    unifews::gather        y[u] = Σ_e w_e · x[v] over the edges e = (v → u)
    unifews::diffuse       loop[u] · y[u] + Σ_e w_e · y[v], the sum in some of the columns only, rest[u] · y[u] in the others
    unifews::gather_kept   `gather` over the entries (e, block of 16 columns) with |w_e| · ‖x[v, block]‖ ≥ cut[u]
    unifews::edge_dots     ⟨x[v], g[u]⟩ for every edge: the gradient of w
    unifews::sparse_rows   sparse features times weights; its gradient needs no reversed edges

They support `torch.compile`, `FlopCounterMode` and double backward, not `torch.func`; CPU, float32. Whether an entry is kept is
a constant for the gradient.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula
from torch.utils.weak import WeakTensorKeyDictionary

from unifews.errors import InputError
from unifews.kernels import LANES, native
from unifews.nn.edges import Adjacency
from unifews.nn.ops import call_kernel
from unifews.nn.ops.memory import empty

_reordered = WeakTensorKeyDictionary()
_SLACK = 8  # floats past the end of an array of magnitudes that a vector load may read


def gather(x: Tensor, adjacency: Adjacency, weight: Tensor | None = None) -> Tensor:
    """Σ_e w_e · x[v] into every receiver [n, f]; `weight` [m] in the adjacency's own order (``w[adjacency.order]``)."""
    _check(x)
    y: Tensor = torch.ops.unifews.gather(x, weight, *_both(adjacency))
    return y


def gather_kept(x: Tensor, adjacency: Adjacency, cut: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`gather` of the entries of magnitude ≥ cut[receiver], and their number (int64 scalar)."""
    _check(x)
    if weight is not None and weight.requires_grad:
        raise InputError("the weights of pruned edges have no gradient; detach the weights, or gather all entries.")
    y, kept = torch.ops.unifews.gather_kept(x, weight, cut, *_both(adjacency))
    return y, kept


def diffuse(
    y: Tensor,
    adjacency: Adjacency,
    weight: Tensor | None,
    loop: Tensor | None,
    columns: Tensor | None = None,
    rest: Tensor | None = None,
) -> Tensor:
    """T y = loop · y + `gather` of these columns (int64; None: all), [n, f], in one pass over y and its result.

    `rest` [n]: the factor of y in the other columns; None: loop.
    """
    _check(y)
    if any(value is not None and value.requires_grad for value in (weight, loop, rest)):
        raise InputError("`diffuse` has no gradient for edge weights; use `gather`.")
    out: Tensor = torch.ops.unifews.diffuse(y, columns, weight, loop, rest, *_both(adjacency))
    return out


def _check(x: Tensor) -> None:
    if x.dtype != torch.float32 or x.device.type != "cpu":
        raise InputError(f"the kernels need float32 on the CPU; x is {x.dtype} on {x.device}; convert it.")


def reordered(weight: Tensor | None, order: Tensor) -> Tensor | None:
    """weight[order], for the reversed lists; cached while the factors of a graph, which no pass changes, live."""
    if weight is None or weight.requires_grad or weight.is_inference() or type(weight) is not Tensor:
        return None if weight is None else weight[order]
    found = _reordered.get(weight)  # type: ignore[no-untyped-call]
    if found is None or found[0] != weight._version or found[1]() is not order:
        found = _reordered[weight] = weight._version, weakref.ref(order), weight[order]
    made: Tensor = found[2]
    return made


def _both(a: Adjacency) -> tuple[Tensor, ...]:
    return a.start, a.end, a.indices, a.back_start, a.back_end, a.back_indices, a.back_order, a.forward_order


# --------------------------------------------------------------------------------------------------------- all entries


@torch.library.custom_op("unifews::gather", mutates_args=())
def _gather(
    x: Tensor,
    weight: Tensor | None,
    start: Tensor,
    end: Tensor,
    indices: Tensor,
    back_start: Tensor,
    back_end: Tensor,
    back_indices: Tensor,
    back_order: Tensor,
    forward_order: Tensor,
) -> Tensor:
    rows, blocks = _padded(x)
    out = empty(len(start), rows.shape[1])
    call_kernel(
        native.gather, dict(out=out), start=start, end=end, indices=indices, weight=weight, blocks=blocks, gain=None, x=rows
    )
    return _cropped(out, x.shape[1])


@_gather.register_fake
def _(x: Tensor, weight: Tensor | None, start: Tensor, *structure: Tensor) -> Tensor:
    return x.new_empty(start.shape[0], x.shape[1])


def _gather_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, *structure = inputs
    ctx.save_for_backward(x if weight is not None and weight.requires_grad else None, weight, *structure)


def _gather_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, start, end, indices, back_start, back_end, back_indices, back_order, forward_order = ctx.saved_tensors
    to_x = to_weight = None
    if ctx.needs_input_grad[0]:
        to_x = torch.ops.unifews.gather(
            grad,
            reordered(weight, back_order),
            back_start,
            back_end,
            back_indices,
            start,
            end,
            indices,
            forward_order,
            back_order,
        )
    if ctx.needs_input_grad[1]:
        to_weight = torch.ops.unifews.edge_dots(x, grad, start, end, indices)
    return to_x, to_weight, *[None] * 8


_gather.register_autograd(_gather_backward, setup_context=_gather_context)


@torch.library.custom_op("unifews::edge_dots", mutates_args=())
def _edge_dots(x: Tensor, y: Tensor, start: Tensor, end: Tensor, indices: Tensor) -> Tensor:
    (a, blocks), (b, _) = _padded(x), _padded(y)
    out = a.new_empty(len(indices))
    call_kernel(native.edge_dots, dict(out=out), start=start, end=end, indices=indices, blocks=blocks, x=a, y=b)
    return out


@_edge_dots.register_fake
def _(x: Tensor, y: Tensor, start: Tensor, end: Tensor, indices: Tensor) -> Tensor:
    return x.new_empty(indices.shape[0])


# ----------------------------------------------------------------------------------------------------------- sparse rows


def sparse_rows(table: Tensor, values: Tensor, start: Tensor, end: Tensor, indices: Tensor) -> Tensor:
    """X table, [rows, f]; row i of X has `values` in columns ``indices[start[i] : end[i]]``. Only the table has a gradient."""
    _check(table)
    out: Tensor = torch.ops.unifews.sparse_rows(table, values, start, end, indices)
    return out


@torch.library.custom_op("unifews::sparse_rows", mutates_args=())
def _sparse_rows(table: Tensor, values: Tensor, start: Tensor, end: Tensor, indices: Tensor) -> Tensor:
    rows, blocks = _padded(table)
    out = empty(len(start), rows.shape[1])
    call_kernel(
        native.gather, dict(out=out), start=start, end=end, indices=indices, weight=values, blocks=blocks, gain=None, x=rows
    )
    return _cropped(out, table.shape[1])


@_sparse_rows.register_fake
def _(table: Tensor, values: Tensor, start: Tensor, *rest: Tensor) -> Tensor:
    return table.new_empty(start.shape[0], table.shape[1])


@torch.library.custom_op("unifews::sparse_columns", mutates_args=())
def _sparse_columns(grad: Tensor, values: Tensor, start: Tensor, end: Tensor, indices: Tensor, columns: int) -> Tensor:
    """Xᵀ grad, [columns, f]."""
    rows, blocks = _padded(grad)
    out = rows.new_empty(columns, rows.shape[1])
    call_kernel(native.scatter, dict(out=out), start=start, end=end, indices=indices, weight=values, blocks=blocks, x=rows)
    return _cropped(out, grad.shape[1])


@_sparse_columns.register_fake
def _(grad: Tensor, values: Tensor, start: Tensor, end: Tensor, indices: Tensor, columns: int) -> Tensor:
    return grad.new_empty(columns, grad.shape[1])


def _rows_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    table, *ctx.matrix = inputs
    ctx.columns = table.shape[0]


def _rows_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return torch.ops.unifews.sparse_columns(grad, *ctx.matrix, ctx.columns), *[None] * 4


def _columns_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, *ctx.matrix, _ = inputs


def _columns_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return torch.ops.unifews.sparse_rows(grad, *ctx.matrix), *[None] * 5


_sparse_rows.register_autograd(_rows_backward, setup_context=_rows_context)
_sparse_columns.register_autograd(_columns_backward, setup_context=_columns_context)


# ------------------------------------------------------------------------------------------------------ some of the columns


@torch.library.custom_op("unifews::diffuse", mutates_args=())
def _diffuse(
    y: Tensor,
    columns: Tensor | None,
    weight: Tensor | None,
    loop: Tensor | None,
    rest: Tensor | None,
    start: Tensor,
    end: Tensor,
    indices: Tensor,
    back_start: Tensor,
    back_end: Tensor,
    back_indices: Tensor,
    back_order: Tensor,
    forward_order: Tensor,
) -> Tensor:
    y = y.detach().contiguous()
    picked = None if columns is None else columns.numpy()
    blocks = max(1, -(-(y.shape[1] if columns is None else len(columns)) // LANES))
    table = y
    if columns is not None or y.shape[1] != blocks * LANES or y.data_ptr() % 64:
        table = empty(len(y), blocks * LANES)
        call_kernel(native.pick_columns, dict(table=table), y=y, columns=picked, blocks=blocks)
    out = empty(*y.shape)
    layout = dict(start=start, end=end, indices=indices, weight=weight, blocks=blocks, columns=picked, table=table, y=y)
    call_kernel(native.diffuse, dict(out=out), **layout, loop=loop, rest=None if columns is None else rest)
    return out


@_diffuse.register_fake
def _(y: Tensor, *rest: Tensor | None) -> Tensor:
    return torch.empty_like(y)


def _diffuse_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _diffuse_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    columns, weight, loop, rest, *structure = ctx.saved_tensors
    start, end, indices, back_start, back_end, back_indices, back_order, forward_order = structure
    back = (back_start, back_end, back_indices, start, end, indices, forward_order, back_order)
    to_y = torch.ops.unifews.diffuse(grad, columns, reordered(weight, back_order), loop, rest, *back)
    return to_y, *[None] * 12


_diffuse.register_autograd(_diffuse_backward, setup_context=_diffuse_context)


# ---------------------------------------------------------------------------------------------------------- kept entries


@torch.library.custom_op("unifews::gather_kept", mutates_args=())
def _gather_kept(
    x: Tensor,
    weight: Tensor | None,
    cut: Tensor,
    start: Tensor,
    end: Tensor,
    indices: Tensor,
    back_start: Tensor,
    back_end: Tensor,
    back_indices: Tensor,
    back_order: Tensor,
    forward_order: Tensor,
) -> tuple[Tensor, Tensor]:
    rows, blocks = _padded(x)
    out, kept = _kept(rows, blocks, _sizes(rows, blocks), weight, cut, start, end, indices, by_sender=False)
    return _cropped(out, x.shape[1]), torch.tensor(kept)


@_gather_kept.register_fake
def _(x: Tensor, weight: Tensor | None, cut: Tensor, start: Tensor, *structure: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(start.shape[0], x.shape[1]), x.new_empty((), dtype=torch.int64)


@torch.library.custom_op("unifews::scatter_kept", mutates_args=())
def _scatter_kept(
    grad: Tensor, x: Tensor, weight: Tensor | None, cut: Tensor, back_start: Tensor, back_end: Tensor, back_indices: Tensor
) -> Tensor:
    """The gradient of `gather_kept`: the transposed product over the kept entries, decided by the same x and cut."""
    rows, blocks = _padded(grad)
    size = _sizes(*_padded(x))
    out, _ = _kept(rows, blocks, size, weight, cut, back_start, back_end, back_indices, by_sender=True)
    return _cropped(out, grad.shape[1])


@_scatter_kept.register_fake
def _(grad: Tensor, x: Tensor, *rest: Tensor | None) -> Tensor:
    return torch.empty_like(x)


def _kept_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, cut, _, _, _, back_start, back_end, back_indices, back_order, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, weight, cut, back_start, back_end, back_indices, back_order)


def _kept_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, cut, back_start, back_end, back_indices, back_order = ctx.saved_tensors
    to_x = torch.ops.unifews.scatter_kept(grad, x, reordered(weight, back_order), cut, back_start, back_end, back_indices)
    return to_x, *[None] * 10


_gather_kept.register_autograd(_kept_backward, setup_context=_kept_context)


def _kept(
    rows: Tensor,
    blocks: int,
    size: Tensor,
    weight: Tensor | None,
    cut: Tensor,
    start: Tensor,
    end: Tensor,
    indices: Tensor,
    *,
    by_sender: bool,
) -> tuple[Tensor, int]:
    out = empty(len(start), rows.shape[1])
    layout = dict(start=start, end=end, indices=indices, weight=weight, blocks=blocks, gain=None, x=rows, size=size, cut=cut)
    kept: int = call_kernel(native.gather_kept, dict(out=out), **layout, by_sender=by_sender)
    return out, kept


def _sizes(rows: Tensor, blocks: int) -> Tensor:
    """‖row[block]‖ [n, blocks], with slack behind it."""
    size = rows.new_empty(len(rows) * blocks + _SLACK)[: len(rows) * blocks].view(len(rows), blocks)
    call_kernel(native.block_sizes, dict(size=size), x=rows, blocks=blocks)
    return size


# -------------------------------------------------------------------------------------------------------------- layout


def _padded(x: Tensor) -> tuple[Tensor, int]:
    """Rows padded to whole blocks and aligned to cache lines, as the kernels need them, and the number of blocks."""
    x = x.detach()
    width = x.shape[1]
    blocks = max(1, -(-width // LANES))
    if width != blocks * LANES:
        padded = x.new_zeros(len(x), blocks * LANES)
        padded[:, :width] = x
        return padded, blocks
    x = x.contiguous()
    return (x if x.data_ptr() % 64 == 0 else x.clone()), blocks


def _cropped(rows: Tensor, width: int) -> Tensor:
    return rows if rows.shape[1] == width else rows[:, :width].contiguous()


def _numbers(values: Tensor | None) -> Any:
    return None if values is None else values.detach().contiguous().numpy()


# ---------------------------------------------------------------------------------------------------------------- flops


@register_flop_formula(torch.ops.unifews.gather)  # type: ignore[untyped-decorator]
def _gather_flops(x: Any, weight: Any, start: Any, end: Any, indices: Any, *rest: Any, **extra: Any) -> int:
    """A multiply and an add per edge and column."""
    return 2 * int(indices[0]) * int(x[1])


@register_flop_formula(torch.ops.unifews.sparse_rows)  # type: ignore[untyped-decorator]
def _rows_flops(table: Any, values: Any, *rest: Any, **extra: Any) -> int:
    """A multiply and an add per nonzero and column."""
    return 2 * int(values[0]) * int(table[1])


@register_flop_formula(torch.ops.unifews.sparse_columns)  # type: ignore[untyped-decorator]
def _columns_flops(grad: Any, values: Any, *rest: Any, **extra: Any) -> int:
    """The same for the gradient."""
    return 2 * int(values[0]) * int(grad[1])


@register_flop_formula(torch.ops.unifews.diffuse)  # type: ignore[untyped-decorator]
def _diffuse_flops(
    y: Any, columns: Any, weight: Any, loop: Any, own: Any, start: Any, end: Any, indices: Any, *rest: Any, **extra: Any
) -> int:
    """A multiply and an add per edge and column that is sent."""
    return 2 * int(indices[0]) * int(y[1] if columns is None else columns[0])


@register_flop_formula(torch.ops.unifews.gather_kept)  # type: ignore[untyped-decorator]
def _kept_flops(x: Any, weight: Any, cut: Any, start: Any, end: Any, indices: Any, *rest: Any, **extra: Any) -> int:
    """An upper bound: the number of kept entries, the second output, is not known from shapes."""
    return 2 * int(indices[0]) * int(x[1])
