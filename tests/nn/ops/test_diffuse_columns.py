"""The columns of a product that are not sent keep a factor of their own, forward and backward, against dense autograd."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.nn import GCNConv

import unifews as uf
from unifews.nn.convs import gcn
from unifews.nn.edges import LayerEdges
from unifews.nn.ops import call_kernel, gather
from unifews.nn.products.diffusion import DiffusionProduct


def graph(seed, n, m):
    """Edges with self-loops, duplicates and isolated nodes."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, max(1, n - 2), (2, m), generator=draw), draw


def dense(edges, n):
    """T without its diagonal, [n, n]."""
    matrix = torch.zeros(n, n)
    values = torch.ones(edges.count) if edges.weight is None else edges.weight
    return matrix.index_put((edges.adjacency.receivers, edges.adjacency.indices.long()), values, accumulate=True)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 30), m=st.integers(0, 80), width=st.integers(1, 40), weighted=st.booleans())
def test_diffuse_with_a_factor_for_the_other_columns(seed, n, m, width, weighted):
    ends, draw = graph(seed, n, m)
    weight = torch.rand(m, generator=draw) if weighted else None
    edges = LayerEdges.of(ends, weight, n, "gcn", loops=1.0)
    columns = torch.randperm(width, generator=draw)[: max(1, width // 2)]
    rest = torch.rand(n, generator=draw)
    y = torch.randn(n, width, generator=draw, requires_grad=True)
    plain = y.detach().clone().requires_grad_()
    sent = torch.zeros(width, dtype=torch.bool).index_fill(0, columns, True)
    expected = torch.where(sent, dense(edges, n) @ plain + edges.loop[:, None] * plain, rest[:, None] * plain)
    ours = gather.diffuse(y, edges.adjacency, edges.weight, edges.loop, columns, rest)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    direction = torch.randn(n, width, generator=draw)
    ours.backward(direction)
    expected.backward(direction)
    torch.testing.assert_close(y.grad, plain.grad, rtol=1e-4, atol=1e-5)


def test_factors_in_the_order_of_the_reversed_lists_are_kept_until_they_change():
    ends, _ = graph(0, 20, 60)
    edges = LayerEdges.of(ends, None, 20, "gcn", loops=1.0)
    order = edges.adjacency.back_order
    weight = edges.weight.clone()
    first = gather.reordered(weight, order)
    assert gather.reordered(weight, order) is first
    weight.mul_(2)
    torch.testing.assert_close(gather.reordered(weight, order), 2 * first)


def test_products_by_columns_take_one_pass(monkeypatch):
    """Of a column that is not sent nothing is added afterwards."""
    ends, draw = graph(1, 30, 90)
    edges = LayerEdges.of(ends, None, 30, "gcn", loops=1.0)
    product = DiffusionProduct(torch.randn(30, 8, generator=draw), edges)
    seen = []
    monkeypatch.setattr(gather, "call_kernel", lambda *args, **kwargs: seen.append(1) or call_kernel(*args, **kwargs))
    columns = torch.tensor([1, 4])
    out = product._in_columns_renormalized(columns)
    assert len(seen) == 2  # the table of the columns, and the product
    others = torch.tensor([0, 2, 3, 5, 6, 7])
    torch.testing.assert_close(out[:, others], product.y[:, others])


@pytest.mark.parametrize("renormalize", [True, False])
def test_a_constant_operand_is_summed_once(renormalize, monkeypatch):
    """The first layer with sparse weights gives the values and gradients of T (x Wᵀ) in the columns it sends."""
    n = 400
    ends, draw = graph(2, n, 2_000)
    x, direction = torch.randn(n, 32, generator=draw), torch.randn(n, 48, generator=draw)
    torch.manual_seed(0)
    layer = uf.sparsify(
        GCNConv(32, 48), edge_sparsity=0.5, weight_sparsity=0.9, ramp=1, feedback=False, renormalize=renormalize
    )
    layer(x, ends)
    monkeypatch.setattr("unifews.nn.ops.linear._MIN_PRODUCT", 1)
    used = []
    whole = gcn.PrunedGCNConv._summed_first
    monkeypatch.setattr(gcn.PrunedGCNConv, "_summed_first", lambda *args: used.append(1) or whole(*args))
    uf.set_schedule(layer, "frozen")

    def run():
        layer.zero_grad()
        out = layer(x, ends)
        out.backward(direction)
        return out.detach(), layer.lin.weight.grad.clone(), layer.bias.grad.clone()

    fast = run()
    assert used
    monkeypatch.setattr(gcn.PrunedGCNConv, "_sums_first", lambda *args: False)
    for ours, plain in zip(fast, run(), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


def test_small_kernels_run_on_one_thread(monkeypatch):
    from unifews.nn import ops

    seen = []
    kernel = lambda *, x, out, threads: seen.append(threads)  # noqa: E731
    monkeypatch.setattr(ops, "threads_to_use", lambda threads: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for rows in (100, 100_000):
        call_kernel(kernel, dict(out=torch.empty(rows, 16)), x=torch.empty(rows, 16))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    call_kernel(kernel, dict(out=torch.empty(rows, 16)), x=torch.empty(rows, 16))
    assert seen == [1, 3, 1]
