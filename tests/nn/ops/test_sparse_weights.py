"""Products with sparse weights and their gradients, against dense autograd; patterns of masks; as torch wants operators."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import unifews as uf
from unifews.errors import InputError
from unifews.nn.linear import PrunedLinear
from unifews.nn.models import build
from unifews.nn.ops import linear, sparse_weights
from unifews.nn.ops.sparse_weights import Pattern, sparse_linear

SHAPES = [
    (1, 1, 1, 0.5),
    (0, 5, 4, 0.3),
    (7, 30, 16, 0.0),
    (300, 64, 48, 0.1),
    (2_000, 256, 128, 0.05),
    (3_000, 130, 7, 0.02),
    (900, 40, 200, 1.0),
]


@pytest.fixture
def always(monkeypatch):
    """The kernels where they are slower, too."""
    for name in ("worth", "worth_gradient"):
        monkeypatch.setattr(sparse_weights, name, lambda *args, **how: True)


def problem(rows, inputs, outputs, density):
    generator = torch.Generator().manual_seed(383)
    x, weight, bias = (torch.randn(*size, generator=generator) for size in ((rows, inputs), (outputs, inputs), (outputs,)))
    keep = torch.rand(weight.shape, generator=generator) < density
    keep[:, ::5] = False  # inputs that no weight reads
    return x, weight, bias, keep, torch.randn(rows, outputs, generator=generator)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("packed", [False, True])
def test_sparse_weights_and_their_gradients(shape, packed, request):
    if packed:
        request.getfixturevalue("always")
    x, weight, bias, keep, direction = problem(*shape)
    weight = weight * keep
    for learns in ((True, True, True), (True, True, None), (False, True, False), (True, False, None)):
        leaves = [
            None if how is None else leaf.clone().requires_grad_(how)
            for leaf, how in zip((x, weight, bias), learns, strict=True)
        ]
        ours, other = sparse_linear(*leaves), torch.nn.functional.linear(*leaves)
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-4)
        asked = [leaf for leaf, how in zip(leaves, learns, strict=True) if how]
        for a, b in zip(*(torch.autograd.grad((y * direction).sum(), asked) for y in (ours, other)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_gradients_at_kept_weights_are_those_of_dense_autograd(shape, packed, axis, request):
    if packed:
        request.getfixturevalue("always")
    x, weight, bias, keep, direction = problem(*shape)
    x, weight, bias = (leaf.requires_grad_() for leaf in (x, weight, bias))
    pattern = Pattern.of(keep if axis else keep.t().contiguous(), axis)
    for sampled in (False, True):
        ours = sparse_linear(
            x, weight * keep if sampled else weight - (weight * ~keep).detach(), bias, pattern, sampled=sampled
        )
        masked = (weight * keep).detach().requires_grad_()
        other = torch.nn.functional.linear(x, masked, bias)
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-4)
        found = torch.autograd.grad((ours * direction).sum(), (x, weight, bias))
        expected = torch.autograd.grad((other * direction).sum(), (x, masked, bias))
        for a, b in zip(found, (expected[0], expected[1] * keep if sampled else expected[1], expected[2]), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-3)


def test_a_kept_weight_of_zero_gets_its_gradient(always):
    x, weight, _, keep, direction = problem(300, 20, 10, 0.5)
    weight = torch.zeros_like(weight).requires_grad_()
    (found,) = torch.autograd.grad((sparse_linear(x, weight, None, Pattern.of(keep), sampled=True) * direction).sum(), weight)
    torch.testing.assert_close(found, (direction.t() @ x) * keep, rtol=1e-4, atol=1e-3)
    assert found[keep].all()


def test_a_pattern_is_cached_until_the_mask_is_written_to():
    keep = torch.rand(6, 9) < 0.5
    first = Pattern.of(keep)
    assert Pattern.of(keep) is first
    keep[0, 0] = ~keep[0, 0]
    assert len(Pattern.of(keep).at) == int(keep.sum()) != len(first.at)


@pytest.mark.slow
def test_as_torch_wants_operators(always):
    torch.manual_seed(401)
    x, weight = torch.randn(40, 9, requires_grad=True), torch.randn(6, 9) * (torch.rand(6, 9) < 0.4)
    pattern = list(Pattern.of(weight != 0))
    weight.requires_grad_()
    for given, sampled in (([], False), (pattern, False), (pattern, True)):
        torch.library.opcheck(torch.ops.unifews.sparse_linear.default, (x, weight, torch.randn(6), given, sampled))
    grad = torch.randn(40, 6, requires_grad=True)
    torch.library.opcheck(torch.ops.unifews.weight_gradient.default, (grad, x, pattern))
    with FlopCounterMode(display=False) as counter:
        sparse_linear(x, weight, None, Pattern(*pattern), sampled=True).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * 40 * int(weight.count_nonzero())


@pytest.mark.parametrize("sampled", [False, True])
def test_second_derivatives(always, sampled):
    x, weight, _, keep, _ = problem(40, 9, 6, 0.5)
    x, weight, pattern = x.requires_grad_(), (weight * keep).requires_grad_(), Pattern.of(keep)
    found = []
    for make in (lambda: sparse_linear(x, weight, None, pattern, sampled=sampled), lambda: x @ (weight * keep).t()):
        to_x, to_weight = torch.autograd.grad(make().square().sum(), (x, weight), create_graph=True)
        total = to_x.square().sum() + (to_weight * keep).square().sum()
        to_x, to_weight = torch.autograd.grad(total, (x, weight))
        found.append((to_x, to_weight * keep))
    for ours, other in zip(*found, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-3, atol=1e-1)


def test_the_kernels_need_floats_on_the_cpu():
    with pytest.raises(InputError, match="float32 on the CPU"):
        sparse_linear(torch.randn(3, 2).double(), torch.randn(4, 2))


@pytest.mark.parametrize("feedback", [False, True])
def test_a_layer_trains_as_its_dense_form(always, feedback):
    """Large enough for the kernels; with feedback removed weights get the gradient too."""
    torch.manual_seed(3)
    layer, x = PrunedLinear(128, 96), torch.randn(1_500, 128)
    layer.decide(torch.rand(128), sparsity=0.9)
    layer.feedback = feedback
    layer(x).square().sum().backward()
    weight = (layer.weight * layer.keep).detach().requires_grad_()
    torch.nn.functional.linear(x, weight, layer.bias.detach()).square().sum().backward()
    expected = weight.grad if feedback else weight.grad * layer.keep
    torch.testing.assert_close(layer.weight.grad, expected, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("name", ["gcn", "gat", "sage", "gcnii", "gin"])
def test_layers_cost_the_weights_that_are_there(name, monkeypatch):
    """Many rows and few weights: the products are by those, and scores and gradients are what all weights would give."""
    torch.manual_seed(389)
    x, edge_index = torch.randn(1_500, 96), torch.randint(0, 1_500, (2, 6_000))
    model = uf.sparsify(
        build(name, 96, 5, width=128, dropout=0.0), edge_sparsity=0.5, entries="unit", weight_sparsity=0.9, ramp=1
    )
    model(x, edge_index).sum().backward()
    uf.set_schedule(model, "frozen")
    found, packed = [], []
    call = sparse_weights.call_kernel
    monkeypatch.setattr(sparse_weights, "call_kernel", lambda *args, **how: packed.append(args[0]) or call(*args, **how))
    for few in (True, False):
        if not few:
            monkeypatch.setattr(linear, "_MIN_PRODUCT", float("inf"))
        model.zero_grad()
        scores = model(x, edge_index)
        scores.square().sum().backward()
        found.append((scores.detach(), {at: value.grad.clone() for at, value in model.named_parameters()}, len(packed)))
    (ours, by_ours, used), (plain, by_plain, in_all) = found
    assert used == in_all and used >= (2 if name in ("gcnii", "gin") else 1)  # forth, and where there are layers before, back
    torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-3)
    for at, value in by_plain.items():
        torch.testing.assert_close(by_ours[at], value, rtol=1e-2, atol=1e-2 * float(value.abs().max() + 1))
