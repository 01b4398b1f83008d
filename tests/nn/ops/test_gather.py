"""The operators of layers against plain torch, with one message per edge; forward, backward, and as torch wants them."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import unifews as uf
from unifews.errors import GraphError, InputError, ShapeError
from unifews.nn.edges import Adjacency, LayerEdges
from unifews.nn.models import build
from unifews.nn.ops import gather
from unifews.nn.ops.linear import times

SHAPES = [(1, 0, 3), (1, 4, 16), (30, 0, 5), (40, 200, 7), (60, 500, 16), (50, 300, 40), (20, 900, 300)]


def problem(n, m, f, seed=0):
    """Edges with self-loops, copies and isolated nodes among them; rows; weights of both signs."""
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(0, max(1, n - n // 5), (2, m), generator=generator)
    x = torch.randn(n, f, generator=generator, requires_grad=True)
    return edge_index, x, torch.randn(m, generator=generator, requires_grad=True)


def plain(x, edge_index, weight, keep=None):
    """Σ of the messages, each made; `keep` [m, blocks]."""
    width = x.shape[1]
    message = weight[:, None] * x[edge_index[0]]
    if keep is not None:
        message = message * keep.repeat_interleave(16, dim=1)[:, :width]
    return torch.zeros(len(x), width).index_add(0, edge_index[1], message)


@pytest.mark.parametrize("shape", SHAPES)
def test_gather_and_its_gradients(shape):
    edge_index, x, weight = problem(*shape)
    adjacency = Adjacency.build(edge_index, len(x))
    ours, other = gather.gather(x, adjacency, weight[adjacency.order]), plain(x, edge_index, weight)
    torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-4)
    direction = torch.randn_like(ours)
    for a, b in zip(*(torch.autograd.grad((y * direction).sum(), (x, weight)) for y in (ours, other)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_gather_without_weights(shape):
    edge_index, x, _ = problem(*shape)
    ours = gather.gather(x, Adjacency.build(edge_index, len(x)))
    torch.testing.assert_close(ours, plain(x, edge_index, torch.ones(edge_index.shape[1])), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 3, 16), (40, 9, 5), (90, 30, 100), (5, 400, 33)])
def test_sparse_rows_times_weights(shape):
    linear, inputs, outputs = shape
    generator = torch.Generator().manual_seed(379)
    dense = torch.randn(linear, inputs, generator=generator) * (torch.rand(linear, inputs, generator=generator) < 0.2)
    weight = torch.randn(outputs, inputs, generator=generator, requires_grad=True)
    bias, direction = torch.randn(outputs, generator=generator), torch.randn(linear, outputs, generator=generator)
    ours, other = (times(x, weight, bias) for x in (dense.to_sparse_csr(), dense))
    torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-4)
    first = [torch.autograd.grad((y * direction).square().sum(), weight, create_graph=True)[0] for y in (ours, other)]
    torch.testing.assert_close(*first, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(*(torch.autograd.grad(g.square().sum(), weight)[0] for g in first), rtol=1e-3, atol=1e-2)
    with FlopCounterMode(display=False) as counter:
        times(dense.to_sparse_csr(), weight).sum().backward()
    assert counter.get_total_flops() == 4 * int(dense.count_nonzero()) * outputs


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("level", [0.0, 1.0, 3.0, 1e9])
def test_gather_kept_uses_and_differentiates_the_same_entries(shape, level):
    edge_index, x, weight = problem(*shape)
    weight = weight.detach()
    cut = level * torch.rand(len(x), generator=torch.Generator().manual_seed(1))
    adjacency = Adjacency.build(edge_index, len(x))
    size = torch.nn.functional.pad(x.detach(), (0, -x.shape[1] % 16)).view(len(x), -1, 16).norm(dim=2)
    keep = weight.abs()[:, None] * size[edge_index[0]] >= cut[edge_index[1], None]
    ours, kept = gather.gather_kept(x, adjacency, cut, weight[adjacency.order])
    other = plain(x, edge_index, weight, keep)
    assert int(kept) == int(keep.sum())
    torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-4)
    direction = torch.randn_like(ours)
    a, b = (torch.autograd.grad((y * direction).sum(), x)[0] for y in (ours, other))
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_torch_accepts_the_operators():
    edge_index, x, weight = problem(40, 200, 24)
    a = Adjacency.build(edge_index, len(x))
    both = (a.start, a.end, a.indices, a.back_start, a.back_end, a.back_indices, a.back_order, a.forward_order)
    torch.library.opcheck(torch.ops.unifews.gather.default, (x, weight, *both))
    columns, loop = torch.tensor([3, 0, 17]), torch.rand(40)
    for rest in (None, torch.rand(40)):
        torch.library.opcheck(torch.ops.unifews.diffuse.default, (x, columns, weight.detach(), loop, rest, *both))
    torch.library.opcheck(torch.ops.unifews.gather_kept.default, (x, weight.detach(), torch.rand(40), *both))
    torch.library.opcheck(torch.ops.unifews.edge_dots.default, (x.detach(), x.detach(), a.start, a.end, a.indices))


@pytest.mark.slow
def test_compiled_and_counted():
    edge_index, x, _ = problem(40, 200, 24)
    a = Adjacency.build(edge_index, len(x))
    compiled = torch.compile(lambda rows: gather.gather(rows, a).relu(), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), gather.gather(x, a).relu())
    with FlopCounterMode(display=False) as counter:
        gather.gather(x, a)
    assert counter.get_total_flops() == 2 * 200 * 24


def test_a_graph_is_laid_out_once_until_it_changes():
    edge_index, x, _ = problem(40, 200, 24)
    keep = edge_index[0] != edge_index[1]
    edge_index = edge_index[:, keep].contiguous()
    first = LayerEdges.of(edge_index, None, len(x), "sum")
    assert LayerEdges.of(edge_index, None, len(x), "sum") is first
    edge_index[1] = edge_index[1].flip(0)
    changed = LayerEdges.of(edge_index, None, len(x), "mean").adjacency
    assert changed is not first.adjacency
    keep = edge_index[0] != edge_index[1]
    expected = plain(x, edge_index[:, keep], torch.ones(int(keep.sum())))
    torch.testing.assert_close(gather.gather(x, changed), expected, rtol=1e-4, atol=1e-4)


def test_rows_that_do_not_start_on_a_cache_line():
    edge_index = problem(40, 200, 17)[0]
    shifted = torch.randn(40 * 16 + 3)[3:].view(40, 16)
    ours = gather.gather(shifted, Adjacency.build(edge_index, 40))
    torch.testing.assert_close(ours, plain(shifted, edge_index, torch.ones(200)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "edge_index, error",
    [
        (torch.zeros(3, 4, dtype=torch.int64), ShapeError),
        (torch.tensor([[0], [9]]), GraphError),
        (torch.tensor([[-1], [0]]), GraphError),
    ],
)
def test_edges_that_are_none(edge_index, error):
    with pytest.raises(error):
        Adjacency.build(edge_index, 5)


def test_what_the_kernels_cannot_do_is_told():
    edge_index, x, weight = problem(40, 200, 24)
    a = Adjacency.build(edge_index, 40)
    with pytest.raises(InputError, match="float32"):
        gather.gather(x.double(), a)
    with pytest.raises(InputError, match="have no gradient"):
        gather.gather_kept(x, a, torch.zeros(40), weight)


@pytest.mark.parametrize("layout", ["to_sparse_coo", "to_sparse_csr", "to_sparse_csc"])
def test_sparse_features_of_any_layout_meet_few_weights(layout):
    torch.manual_seed(397)
    x, weight = torch.randn(2_000, 128) * (torch.rand(2_000, 128) < 0.1), torch.randn(128, 128) * (torch.rand(128, 128) < 0.05)
    torch.testing.assert_close(times(getattr(x, layout)(), weight, sparse_weight=True), x @ weight.t(), rtol=1e-4, atol=1e-4)
    model, edge_index = uf.sparsify(build("gcn", 128, 3, width=16), weight_sparsity=0.5), torch.randint(0, 2_000, (2, 90))
    if layout == "to_sparse_csr":
        model(getattr(x, layout)(), edge_index)
    else:
        with pytest.raises(InputError, match=r"use x\.to_sparse_csr\(\)"):
            model(getattr(x, layout)(), edge_index)
