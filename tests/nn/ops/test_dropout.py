"""Dropout without a mask: torch's, with other draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unifews.kernels import limit_threads
from unifews.nn.ops.dropout import dropout

ROWS, WIDTH = 300, 64  # enough for the kernel


def ones(**how):
    return torch.ones(ROWS, WIDTH, **how)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_a_share_is_dropped_and_the_rest_scaled(p):
    torch.manual_seed(0)
    out = dropout(ones(), p, True)
    kept = out != 0
    assert abs(float(kept.float().mean()) - (1 - p)) < 0.02
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / (1 - p)))


def test_the_way_back_drops_the_same():
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    out = dropout(x, 0.5, True)
    out.backward(ones())
    assert torch.equal(x.grad, torch.where(out == 0, 0.0, 2.0))


def test_a_gradient_that_is_no_plain_matrix():
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    out = dropout(x, 0.5, True)
    out.sum().backward()  # expanded from one value
    assert torch.equal(x.grad, torch.where(out == 0, 0.0, 2.0))
    y = torch.randn(WIDTH, ROWS, requires_grad=True)
    out = dropout(y.T, 0.5, True)
    (3 * out).sum().backward()
    assert torch.equal(y.grad, torch.where(out == 0, 0.0, 6.0).T)


def test_its_gradient_has_a_gradient():
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    torch.manual_seed(3)
    out = dropout(x, 0.5, True)
    (first,) = torch.autograd.grad((out**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, torch.where(out == 0, 0.0, 6 * 4 * out))


def test_draws_follow_the_seed_and_not_the_threads():
    def drawn(seed, threads):
        torch.manual_seed(seed)
        with limit_threads(threads):
            return [dropout(ones(), 0.5, True) for _ in range(2)]

    one, two, other = drawn(7, 1), drawn(7, 2), drawn(8, 1)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not torch.equal(one[0], one[1]) and not torch.equal(one[0], other[0])


def test_nothing_happens_outside_training_or_at_none():
    x = ones()
    assert dropout(x, 0.5, False) is x
    assert dropout(x, 0.0, True) is x
    assert not dropout(x, 1.0, True).any()


@pytest.mark.parametrize(
    "x", [torch.ones(3, 4), ones(dtype=torch.float64), ones(dtype=torch.bfloat16)], ids=["few", "double", "half"]
)
def test_what_the_kernel_does_not_take_is_torchs(x):
    torch.manual_seed(1)
    mine = dropout(x, 0.5, True)
    torch.manual_seed(1)
    assert torch.equal(mine, torch.nn.functional.dropout(x, 0.5))


def test_the_input_stays_as_it_was():
    x = torch.randn(ROWS, WIDTH)
    before = x.clone()
    dropout(x, 0.5, True)
    assert torch.equal(x, before)


def test_compiled_models_drop_too():
    torch.manual_seed(0)
    out = torch.compile(lambda x: dropout(x, 0.5, True), backend="eager", fullgraph=True)(ones())
    assert 0.45 < float((out == 0).float().mean()) < 0.55 and np.isclose(float(out.max()), 2)
