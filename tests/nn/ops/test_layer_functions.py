"""ReLU, BatchNorm and dense linear layers on kernels: torch's results, gradients and running statistics."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from unifews.nn.ops.batch_norm import batch_norm
from unifews.nn.ops.dense import linear
from unifews.nn.ops.memory import empty
from unifews.nn.ops.relu import relu

ROWS, WIDTH = 1500, 48


def rows(**how):
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(11), **how)


def both(ours, theirs, *given, create_graph=False):
    """Results and gradients, of the gradients too, of a function and the one it replaces."""
    found = []
    for function in (ours, theirs):
        inputs = [value.clone().requires_grad_() for value in given]
        out = function(*inputs)
        grads = torch.autograd.grad((out**3).sum() / len(out), inputs, create_graph=create_graph)
        again = torch.autograd.grad(sum((grad**2).sum() for grad in grads), inputs) if create_graph else ()
        found.append((out, *grads, *again))
    return zip(*found, strict=True)


@pytest.mark.parametrize("create_graph", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("layout", ["plain", "transposed", "slice"])
def test_relu(create_graph, layout):
    x = {"plain": rows(), "transposed": rows().T, "slice": rows()[1:, 3:]}[layout]
    x.flatten()[:3] = torch.tensor([0.0, -0.0, 1e-30])
    for mine, theirs in both(relu, torch.relu, x, create_graph=create_graph):
        assert torch.equal(mine, theirs)


def test_relu_passes_nan_and_its_gradient():
    x = rows()
    x[5] = torch.nan
    found = [(f(x), torch.autograd.grad(f(y := x.clone().requires_grad_()).sum(), y)[0]) for f in (relu, torch.relu)]
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)


@pytest.mark.parametrize("create_graph", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear(create_graph, has_bias):
    given = [rows(), torch.randn(8, WIDTH), *([torch.randn(8)] if has_bias else [])]
    for mine, theirs in both(linear, F.linear, *given, create_graph=create_graph):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-3 * float(theirs.detach().abs().max()))


@pytest.mark.parametrize("create_graph", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("affine", [False, True])
def test_batch_norm(create_graph, affine):
    given = [3 * rows() + 5, *([torch.randn(WIDTH), torch.randn(WIDTH)] if affine else [])]
    for mine, theirs in both(
        lambda x, *wb: batch_norm(x, None, None, *wb, training=True),
        lambda x, *wb: F.batch_norm(x, None, None, *wb, training=True),
        *given,
        create_graph=create_graph,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4 * float(theirs.detach().abs().max()))


@pytest.mark.parametrize("momentum", [0.0, 0.1, 1.0])
def test_running_statistics_are_torchs(momentum):
    found = []
    for function in (batch_norm, F.batch_norm):
        mean, var = torch.full((WIDTH,), 2.0), torch.full((WIDTH,), 3.0)
        for k in range(3):
            function(rows() * (k + 1) + k, mean, var, training=True, momentum=momentum)
        found.append((mean, var))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_batch_norm_uses_running_statistics_in_evaluation():
    mean, var = torch.randn(WIDTH), torch.rand(WIDTH) + 1
    assert torch.equal(batch_norm(rows(), mean, var), F.batch_norm(rows(), mean, var))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_torchs(dtype):
    x, weight = rows().to(dtype), torch.randn(8, WIDTH).to(dtype)
    assert torch.equal(relu(x), torch.relu(x)) and torch.equal(linear(x, weight), F.linear(x, weight))


def test_memory_is_given_back_and_belongs_to_its_tensor():
    a, b = empty(1 << 11, 1 << 10).fill_(1), empty(1 << 11, 1 << 10).fill_(2)
    assert a.is_contiguous() and a.data_ptr() % 64 == 0 and a.dtype == torch.float32
    view = a[3:5]
    del a
    empty(1 << 11, 1 << 10).fill_(7)
    assert bool((view == 1).all()) and bool((b == 2).all())
