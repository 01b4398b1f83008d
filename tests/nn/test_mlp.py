"""The classifier: its formula, its standardisation, its price."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unifews.core.trace import LayerTrace
from unifews.errors import InputError
from unifews.nn.decoupled import Mlp


def mlp(*sizes, seed=223, **options):
    torch.manual_seed(seed)
    return Mlp(*sizes, **options)


def test_the_formula():
    """(x - mean)·scale → Linear → ReLU → BatchNorm → Linear, by hand; dropout is off while judging."""
    model, x = mlp(6, 3, width=5, layers=2).eval(), np.random.default_rng(227).normal(3, 2, (9, 6)).astype(np.float32)
    model.standardise(torch.from_numpy(x))
    model.layers[0].decide(torch.ones(6), sparsity=0.5)
    model.norms[0].running_mean.uniform_(-1, 1)
    model.norms[0].running_var.uniform_(0.5, 2)
    (w0, b0), (w1, b1) = (
        ((layer.weight * layer.keep).detach().numpy(), layer.bias.detach().numpy()) for layer in model.linears()
    )
    norm = model.norms[0]
    h = np.maximum((x - x.mean(0)) / x.std(0) @ w0.T + b0, 0)
    h = (h - norm.running_mean.numpy()) / np.sqrt(norm.running_var.numpy() + norm.eps)
    np.testing.assert_allclose(model(torch.from_numpy(x)).detach().numpy(), h @ w1.T + b1, rtol=1e-4, atol=1e-5)


def test_dropout_and_batchnorm_are_for_training_only():
    model, x = mlp(6, 3, width=64, dropout=0.5), torch.randn(20, 6)
    model.train()
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))
    torch.testing.assert_close(model(x)[:4], model(x[:4]))  # no row looks at others, but BLAS may round by their number


def test_one_layer_is_linear():
    model = mlp(6, 3, layers=1).eval()
    assert len(model.layers) == 1 and not len(model.norms)
    x = torch.randn(4, 6)
    assert torch.allclose(model(2 * x) - model(x), model(x) - model(0 * x), atol=1e-6)


def test_it_has_layers():
    with pytest.raises(InputError, match="at least 1 layer; got layers=0"):
        Mlp(2, 2, layers=0)


@pytest.mark.parametrize("per_column", [True, False])
def test_standardising(per_column):
    rows = torch.randn(50, 4) * torch.tensor([1.0, 5.0, 0.2, 3.0]) + 7
    model = mlp(4, 2)
    model.standardise(rows, per_column=per_column)
    done = (rows - model.mean) * model.scale
    assert torch.allclose(done.mean(0), torch.zeros(4), atol=1e-4)
    if per_column:
        assert torch.allclose(done.std(0, correction=0), torch.ones(4), rtol=1e-4)
    else:
        assert len(set(model.scale.tolist())) == 1
        assert done.var(0, correction=0).mean().item() == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("per_column", [True, False])
def test_a_constant_column_and_a_constant_matrix_are_centred_only(per_column):
    rows = torch.randn(50, 3)
    rows[:, 1] = 4
    model = mlp(3, 2)
    model.standardise(rows, per_column=per_column)
    assert not ((rows - model.mean) * model.scale)[:, 1].any() and model.scale.isfinite().all()
    model.standardise(torch.full((5, 3), 2.0), per_column=per_column)
    assert model.mean.tolist() == [2, 2, 2] and model.scale.tolist() == [1, 1, 1]


@pytest.mark.parametrize("power", [-100, -70, 0, 70, 110])
@pytest.mark.parametrize("per_column", [True, False])
def test_the_scale_of_the_rows_changes_nothing(power, per_column):
    """An identity skip doubles an embedding at every hop; the squares of such values are far outside float32."""
    rows = torch.randn(50, 4, generator=torch.Generator().manual_seed(229))
    model, other = mlp(4, 2), mlp(4, 2)
    model.standardise(rows, per_column=per_column)
    other.standardise(rows * 2.0**power, per_column=per_column)
    assert torch.equal((rows - model.mean) * model.scale, (rows * 2.0**power - other.mean) * other.scale)


def test_standardisation_is_part_of_the_model():
    model, other = mlp(4, 2), mlp(4, 2, seed=233)
    model.standardise(torch.randn(50, 4) * 3 + 1)
    other.load_state_dict(model.state_dict(), strict=True)
    x = torch.randn(5, 4)
    assert torch.equal(other.eval()(x), model.eval()(x)) and torch.equal(other.mean, model.mean)


def test_the_price_of_passing_rows_through():
    model = mlp(6, 3, width=5, layers=3)
    model.layers[1].decide(torch.ones(5), sparsity=0.6)
    expected = (
        LayerTrace(0, weights=30, kept=30, macs=3000, dense_macs=3000),
        LayerTrace(1, weights=25, kept=10, macs=1000, dense_macs=2500),
        LayerTrace(2, weights=15, kept=15, macs=1500, dense_macs=1500),
    )
    assert model.trace(100) == expected
