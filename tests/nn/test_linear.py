"""The entry rule on weights, against an oracle in plain numpy; and masks that stay with the weights they belong to."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.torch import load_file, save_file

from unifews.errors import InputError
from unifews.nn.linear import PrunedLinear

# Multiples of 1/8 and small whole norms: sizes are exact, so ties and zeros are frequent and mean the same everywhere.
eighths = st.integers(-8, 8).map(lambda k: k / 8)
shapes = st.tuples(st.integers(1, 6), st.integers(1, 6))
weights = shapes.flatmap(lambda shape: arrays(np.float32, shape, elements=eighths))


def norms_of(weight, zero=True):
    return arrays(np.float32, weight.shape[1], elements=st.integers(0 if zero else 1, 4).map(float))


weights_and_norms = weights.flatmap(lambda weight: st.tuples(st.just(weight), norms_of(weight)))


def layer_of(weight, keep=None):
    layer = PrunedLinear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
    if keep is not None:
        layer.keep = torch.from_numpy(keep)
    return layer


def decided(weight, norms, keep=None, **how):
    layer = layer_of(weight, keep)
    layer.decide(torch.from_numpy(norms), **how)
    return layer.keep.numpy()


def largest(size, count):
    """True at the `count` largest entries, of equal ones the first."""
    order = sorted(range(size.size), key=lambda i: (-size.flat[i], i))
    keep = np.zeros(size.size, dtype=bool)
    keep[order[:count]] = True
    return keep.reshape(size.shape)


@given(weights_and_norms, st.floats(0, 1, exclude_max=True))
def test_a_target_keeps_the_largest_entries_and_exactly_as_many_as_asked(given_, sparsity):
    weight, norms = given_
    keep = decided(weight, norms, sparsity=sparsity)
    if not norms.any():
        assert keep.all()
        return
    count = max(1, weight.size - round(sparsity * weight.size))
    assert keep.sum() == count
    assert np.array_equal(keep, largest(np.abs(weight) * norms, count))


@given(weights_and_norms, st.sampled_from([0.0, 0.125, 0.5, 1.0, 3.0, 1e9]))
def test_a_threshold_is_relative_to_the_input_and_capped(given_, threshold):
    """|W[i,j]|·‖x_j‖ ≥ threshold·‖x‖_F / inputs, and never above what the largest entry can meet."""
    weight, norms = given_
    keep = decided(weight, norms, threshold=threshold)
    if not norms.any():
        assert keep.all()
        return
    size = np.abs(weight) * norms
    scale = float(np.float32(np.sqrt(np.square(norms).sum()))) / len(norms)
    delta = min(threshold * scale, 0.999 * float(size.max()))
    assert np.array_equal(keep, size >= np.float32(delta))
    assert keep[np.unravel_index(size.argmax(), size.shape)]


@given(
    weights.flatmap(lambda w: st.tuples(st.just(w), arrays(bool, w.shape), st.lists(norms_of(w), min_size=1, max_size=4))),
    st.sampled_from([{"sparsity": 0.0}, {"sparsity": 0.5}, {"sparsity": 0.9}, {"threshold": 0.5}, {"threshold": 1e9}]),
)
def test_monotone_never_brings_a_weight_back(given_, how):
    weight, before, batches = given_
    layer = layer_of(weight, before)
    for norms in batches:
        layer.decide(torch.from_numpy(norms), **how, monotone=True)
        after = layer.keep.numpy()
        assert not (after & ~before).any()
        if "sparsity" in how and norms.any():  # what is asked for, or less where less was there
            assert after.sum() == min(before.sum(), max(1, weight.size - round(how["sparsity"] * weight.size)))
        if before.any():
            assert after.any()
        before = after


def test_monotone_keeps_weights_of_size_zero_before_removed_ones():
    """Four weights, two of them removed; the two that are left stand on columns that are zero in this batch."""
    weight = np.array([[1, 1, 1, 1]], dtype=np.float32)
    before = np.array([[False, False, True, True]])
    after = decided(weight, np.array([5, 5, 0, 0], dtype=np.float32), before, sparsity=0.5, monotone=True)
    assert np.array_equal(after, before)


def test_a_weight_may_come_back_while_masks_regrow():
    weight = np.array([[1, 2]], dtype=np.float32)
    layer = layer_of(weight)
    layer.decide(torch.tensor([1.0, 1.0]), sparsity=0.5)
    assert layer.keep.tolist() == [[False, True]]
    layer.decide(torch.tensor([9.0, 1.0]), sparsity=0.5)
    assert layer.keep.tolist() == [[True, False]]
    layer.decide(torch.tensor([9.0, 1.0]), threshold=0.1)
    assert layer.keep.tolist() == [[True, True]]


@pytest.mark.parametrize("how", [{"sparsity": 0.5}, {"threshold": 0.7}])
@pytest.mark.parametrize("monotone", [False, True])
@pytest.mark.parametrize("norms", [[0, 0, 0], [1e-9, 0, 0], [1, float("nan"), 1], [1, float("inf"), 1]])
def test_an_input_that_says_nothing_leaves_the_mask_as_it_is(how, monotone, norms):
    before = np.array([[True, False, True]])
    norms = np.array(norms, dtype=np.float32)
    after = decided(np.array([[3, 2, 1]], dtype=np.float32), norms, before, **how, monotone=monotone)
    assert np.array_equal(after, before)


@pytest.mark.parametrize("how", [{"sparsity": 0.5}, {"threshold": 0.01}])
def test_weights_on_empty_columns_go_first(how):
    weight = np.array([[1, 100], [1, 100]], dtype=np.float32)
    assert np.array_equal(decided(weight, np.array([1, 0], np.float32), **how), [[True, False], [True, False]])


@pytest.mark.parametrize("how", [{}, {"sparsity": 0.5, "threshold": 0.5}])
def test_one_way_to_prune_is_asked_for(how):
    with pytest.raises(InputError, match="by `sparsity` or by `threshold`"):
        PrunedLinear(2, 2).decide(torch.ones(2), **how)


# ------------------------------------------------------------------------------------------------------ tall inputs


def by_the_rule(weight, x, delta):
    """|W[i,j]| · ‖x[:,j]‖ ≥ δ over all rows, the norms in float64."""
    return np.abs(weight) * np.linalg.norm(x.astype(np.float64), axis=0) >= delta


def decided_on(weight, x, **how):
    layer = layer_of(weight)
    layer.due = how
    layer(torch.from_numpy(x))
    return layer.keep.numpy()


TALL = (1_000, 16_384, 33_000, 50_000, 169_343)


@pytest.mark.parametrize("rows", TALL)
def test_an_absolute_threshold_is_of_all_rows(rows):
    """Rows that repeat with a period that no step between sampled rows divides: every sample has the norms of the whole."""
    rng = np.random.default_rng(0)
    period = 13
    rows -= rows % (period * max(1, rows // 16_384))  # whole periods in the whole and in the sample
    base = rng.integers(-3, 4, (period, 24)).astype(np.float32)
    x = np.tile(base, (rows // period, 1))
    weight = rng.normal(size=(16, 24)).astype(np.float32)
    size = np.sort((np.abs(weight) * np.linalg.norm(x.astype(np.float64), axis=0)).flatten())
    for rank in (40, 200, 340):
        delta = (size[rank] + size[rank + 1]) / 2
        keep = decided_on(weight, x, threshold=delta, absolute=True)
        assert np.array_equal(keep, by_the_rule(weight, x, delta)), rows


@pytest.mark.parametrize("rows", TALL)
def test_an_absolute_threshold_on_random_rows(rows):
    """Within what a sample of 16,384 rows can tell: entries within 3 % of δ may fall on either side."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, 8)).astype(np.float32) * np.linspace(0.5, 2, 8, dtype=np.float32)
    weight = rng.normal(size=(32, 8)).astype(np.float32)
    norms = np.linalg.norm(x, axis=0)
    delta = float(np.median(np.abs(weight) * norms))
    clear = np.abs(np.abs(weight) * norms / delta - 1) > 0.03
    keep = decided_on(weight, x, threshold=delta, absolute=True)
    assert np.array_equal(keep[clear], by_the_rule(weight, x, delta)[clear])


def test_rows_that_are_there_twice_weigh_as_the_formula_says():
    """‖[x; x]‖ = √2 ‖x‖: the same mask by √2 · δ, and by a share or a relative threshold the same one as before."""
    rng = np.random.default_rng(2)
    x = np.tile(rng.integers(-3, 4, (13, 24)).astype(np.float32), (1_300, 1))  # 16,900 rows, all of which are looked at
    weight = rng.normal(size=(16, 24)).astype(np.float32)
    delta = float(np.median(np.abs(weight) * np.linalg.norm(x, axis=0))) * 1.001
    for times in (2, 4, 8):
        more = np.tile(x, (times, 1))
        once = decided_on(weight, x, threshold=delta, absolute=True)
        again = decided_on(weight, more, threshold=delta * times**0.5, absolute=True)
        assert np.array_equal(once, again) and 0 < once.sum() < once.size
        assert decided_on(weight, more, threshold=delta, absolute=True).sum() > once.sum()
        for how in ({"sparsity": 0.7}, {"threshold": 0.8}):
            assert np.array_equal(decided_on(weight, x, **how), decided_on(weight, more, **how))


# ------------------------------------------------------------------------------------------------------------- the layer


def pruned_layer(seed=211):
    torch.manual_seed(seed)
    layer = PrunedLinear(7, 5)
    layer.decide(torch.rand(7), sparsity=0.6)
    return layer


def test_it_multiplies_what_is_kept():
    layer, x = pruned_layer(), torch.randn(11, 7)
    weight = np.where(layer.keep.numpy(), layer.weight.detach().numpy(), 0)
    expected = x.numpy() @ weight.T + layer.bias.detach().numpy()
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, rtol=1e-5, atol=1e-6)
    assert layer.kept == layer.keep.sum() == 14 and layer.is_pruned and not PrunedLinear(7, 5).is_pruned
    assert "kept=14 of 35" in repr(layer)


def test_removed_weights_get_no_gradient():
    layer = pruned_layer()
    layer(torch.randn(11, 7)).square().sum().backward()
    gradient = layer.weight.grad
    assert not gradient[~layer.keep].any() and gradient[layer.keep].all()


def test_with_feedback_removed_weights_get_the_gradient_they_would_have():
    layer, x = pruned_layer(), torch.randn(11, 7)
    plain = layer(x)
    layer.feedback = True
    out = layer(x)
    assert torch.equal(out, plain)  # what is removed is still not multiplied
    out.square().sum().backward()
    weight = layer.effective.detach().clone().requires_grad_()
    torch.nn.functional.linear(x, weight, layer.bias.detach()).square().sum().backward()
    assert torch.allclose(layer.weight.grad, weight.grad) and layer.weight.grad.all()


def test_settling_makes_zeros_of_what_was_removed():
    layer, x = pruned_layer(), torch.randn(11, 7)
    layer.feedback, layer.due = True, {"sparsity": 0.1}
    before = layer.effective.detach().clone()
    layer.settle()
    assert torch.equal(layer.weight, before) and layer.kept == 14 and layer.is_pruned
    assert torch.equal(layer(x), torch.nn.functional.linear(x, before, layer.bias))


def test_what_is_due_is_decided_by_the_batch_before_it_is_multiplied():
    layer, other = pruned_layer(), pruned_layer()
    x = torch.randn(11, 7) * torch.tensor([9.0, 1, 1, 1, 1, 1, 0])
    layer.due = {"sparsity": 0.8}
    out = layer(x)
    other.decide(x.norm(dim=0), sparsity=0.8)
    assert torch.equal(layer.keep, other.keep) and torch.equal(out, other(x)) and layer.kept == 7
    assert layer.due is None
    layer(torch.randn(11, 7))  # the next batch decides nothing
    assert torch.equal(layer.keep, other.keep)


def test_masks_travel_with_the_weights(tmp_path):
    layer = pruned_layer()
    assert layer.state_dict()["keep"].dtype == torch.bool
    save_file(layer.state_dict(), tmp_path / "layer.safetensors")
    loaded, copied = PrunedLinear(7, 5), deepcopy(layer)
    loaded.load_state_dict(load_file(tmp_path / "layer.safetensors"), strict=True)
    x = torch.randn(3, 7)
    for other in (loaded, copied):
        assert torch.equal(other.keep, layer.keep) and torch.equal(other(x), layer(x))
    copied.decide(torch.ones(7), sparsity=0.0)
    assert layer.kept == 14  # a copy is its own


def test_a_state_without_its_mask_is_refused():
    state = pruned_layer().state_dict()
    del state["keep"]
    with pytest.raises(RuntimeError, match=r'Missing key.*"keep"'):
        PrunedLinear(7, 5).load_state_dict(state)
