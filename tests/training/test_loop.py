"""The loop: repeatable, blind to the test set, and back at its best epoch."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from small import QUICK, small, with_test_labels

from unifews.datasets.dataset import Split
from unifews.errors import InputError
from unifews.nn.decoupled import Mlp
from unifews.training.loop import fit, predict, train_epochs
from unifews.training.metrics import evaluate
from unifews.training.recipe import Recipe, WeightPruning

DATA = small()
SPLIT = DATA.split(263)


def trained(data=DATA, split=None, recipe=QUICK, *, seed=269, metric="accuracy", pruning=None, watch=None, init=271):
    torch.manual_seed(init)
    rows = torch.from_numpy(data.x)
    model = Mlp(data.num_features, data.num_classes, width=recipe.width, layers=recipe.layers, dropout=recipe.dropout)
    split = SPLIT if split is None else split
    model.standardise(rows[torch.tensor(split.train)])
    fitted = fit(model, rows, data.y, split, recipe, metric=metric, pruning=pruning, seed=seed, watch=watch)
    return fitted, model


def same_bits(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def test_a_seed_repeats_to_the_bit_and_another_does_not():
    (first, one), (again, two), (_, three) = trained(), trained(), trained(seed=277)
    assert replace(first, seconds=0) == replace(again, seconds=0)
    assert same_bits(one, two) and not same_bits(one, three)
    assert first.test > 60  # it learns: a third of the nodes is of each class


def test_the_callers_generator_is_left_alone_and_decides_nothing():
    torch.manual_seed(281)
    before = torch.get_rng_state()
    rows, model = torch.from_numpy(DATA.x), Mlp(12, 3, width=16)
    start = torch.get_rng_state()
    fit(model, rows, DATA.y, SPLIT, QUICK, seed=283)
    assert torch.equal(torch.get_rng_state(), start) and not torch.equal(before, start)
    _, quiet = trained()
    _, noisy = trained(watch=lambda epoch: torch.rand(17))
    assert same_bits(quiet, noisy)


@pytest.mark.parametrize("pruning", [None, WeightPruning(sparsity=0.7), WeightPruning(threshold=0.3)])
def test_the_best_epoch_is_restored(pruning):
    seen = []
    fitted, model = trained(pruning=pruning, watch=seen.append)
    counted = [epoch for epoch in seen if pruning is None or pruning.reached(epoch.number, QUICK.epochs)]
    assert fitted.val == max(epoch.val for epoch in counted) == seen[fitted.epoch].val
    for name, part in SPLIT._asdict().items():
        scores = predict(model, torch.from_numpy(DATA.x[part])).numpy()
        assert evaluate("accuracy", scores, DATA.y[part]) == getattr(fitted, name)
    assert fitted.epochs == len(seen) == QUICK.epochs
    assert [epoch.number for epoch in seen] == list(range(QUICK.epochs)) and seen[-1].of == QUICK.epochs
    assert sum(layer.kept for layer in model.linears()) == seen[fitted.epoch].kept  # masks of the same epoch as the weights


def test_among_equal_scores_the_smallest_loss_is_best():
    """One node to validate on: its score is 0 or 100, so only the loss can tell most epochs apart."""
    split = SPLIT._replace(val=SPLIT.val[:1])
    losses = []
    rows = torch.from_numpy(DATA.x)
    torch.manual_seed(293)
    model = Mlp(12, 3, width=16, dropout=0.2)

    def watch(epoch):
        scores = predict(model, rows[split.val])
        losses.append((-epoch.val, float(torch.nn.functional.cross_entropy(scores, torch.from_numpy(DATA.y[split.val])))))
        model.train()

    fitted = fit(model, rows, DATA.y, split, QUICK, seed=293, watch=watch)
    assert fitted.epoch == losses.index(min(losses))


@pytest.mark.parametrize("sparsity", [0.3, 0.75, 0.9])
@pytest.mark.parametrize("epochs", [1, 2, 5, 12])
def test_a_target_is_met_exactly_in_every_layer(sparsity, epochs):
    recipe = replace(QUICK, epochs=epochs, layers=3)
    seen = []
    fitted, model = trained(recipe=recipe, pruning=WeightPruning(sparsity=sparsity), watch=seen.append)
    for layer in model.linears():
        size = layer.weight.numel()
        assert layer.kept == size - round(sparsity * size)
        assert not layer.weight[~layer.keep].any()  # and gone for good
    assert fitted.epoch + 1 >= max(1, epochs // 2)  # epochs before the target is reached are no results
    kept = [epoch.kept for epoch in seen]
    assert kept == sorted(kept, reverse=True)  # the share grows


def test_after_half_of_the_epochs_no_weight_comes_back():
    masks = []
    torch.manual_seed(307)
    model = Mlp(12, 3, width=16, dropout=0.2)

    def watch(epoch):
        masks.append(torch.cat([layer.keep.flatten() for layer in model.linears()]))

    recipe, pruning = replace(QUICK, lr=0.1), WeightPruning(threshold=0.4)
    fit(model, torch.from_numpy(DATA.x), DATA.y, SPLIT, recipe, pruning=pruning, watch=watch)
    came_back = [bool((now & ~before).any()) for before, now in pairwise(masks)]
    assert any(came_back[: QUICK.epochs // 2 - 1]) and not any(came_back[QUICK.epochs // 2 - 1 :])


def test_removed_weights_learn_on_only_if_asked_to():
    """By weight decay and the optimiser's memory they move anyhow; by a gradient of their own they move otherwise."""
    (_, one), (_, two) = (trained(pruning=WeightPruning(0.7, feedback=feedback)) for feedback in (True, False))
    assert not same_bits(one, two)


def test_it_stops_when_nothing_gets_better():
    seen = []
    fitted, _ = trained(recipe=replace(QUICK, epochs=200, patience=6), watch=seen.append)
    assert fitted.epochs == fitted.epoch + 1 + 6 == len(seen) < 200


def test_the_ramp_is_not_cut_short_by_patience():
    pruning = WeightPruning(sparsity=0.9)
    fitted, model = trained(recipe=replace(QUICK, epochs=60, patience=1), pruning=pruning)
    assert fitted.epoch + 1 >= pruning.ramp
    assert sum(layer.kept for layer in model.linears()) == round(0.1 * 16 * 12) + round(0.1 * 16 * 3)


def test_the_learning_rate_is_halved_on_a_plateau():
    seen = []
    trained(recipe=replace(QUICK, epochs=30, plateau=3), watch=seen.append)
    rates = [epoch.lr for epoch in seen]
    assert rates[0] == QUICK.lr and rates == sorted(rates, reverse=True)
    best, since = -1.0, 0
    for before, epoch in zip([QUICK.lr, *rates], seen, strict=False):
        best, since = (epoch.val, 0) if epoch.val > best else (best, since + 1)
        assert epoch.lr == (before / 2 if since > 3 else before)
        since = 0 if since > 3 else since
    assert rates[-1] < QUICK.lr


@pytest.mark.parametrize("pruning", [None, WeightPruning(sparsity=0.5)])
def test_the_test_set_is_judged_and_nothing_else(pruning):
    first, one = trained(pruning=pruning)
    shifted = with_test_labels(DATA, SPLIT, (DATA.y[SPLIT.test] + 1) % 3)
    other, two = trained(shifted, pruning=pruning)
    assert same_bits(one, two)
    assert replace(first, test=0, seconds=0) == replace(other, test=0, seconds=0) and other.test < first.test


@pytest.mark.parametrize("kind, metric", [("labels", "f1"), ("labels", "auc"), ("auc", "auc"), ("auc", "accuracy")])
def test_other_labels_and_metrics(kind, metric):
    data = small(kind)
    split = data.split(0)
    fitted, model = trained(data, split, metric=metric)
    scores = predict(model, torch.from_numpy(data.x[split.test])).numpy()
    assert fitted.test == evaluate(metric, scores, data.y[split.test]) > 55


@pytest.mark.parametrize("rows", [33, 34, 65])
def test_a_single_row_that_is_left_over_joins_the_batch_before_it(rows):
    """BatchNorm would refuse it; batches are of 32."""
    fitted, _ = trained(split=SPLIT._replace(train=SPLIT.train[:rows] if rows < 60 else np.arange(65)), recipe=QUICK)
    assert fitted.epochs == QUICK.epochs


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int16])
def test_labels_of_any_integer_type(dtype):
    first, _ = trained()
    other, _ = trained(replace(DATA, y=DATA.y.astype(dtype)))
    assert replace(first, seconds=0) == replace(other, seconds=0)


@pytest.mark.filterwarnings("error")
def test_read_only_labels_and_splits():
    y, split = DATA.y.copy(), Split(*(part.copy() for part in SPLIT))
    for array in (y, *split):
        array.flags.writeable = False
    trained(replace(DATA, y=y), split)


def test_a_training_that_diverges_is_reported():
    with pytest.raises(InputError, match=r"the loss of epoch \d+ is (nan|inf)\); lower `lr`"):
        trained(recipe=replace(QUICK, lr=1e30))


def scored(scores, *, ramp, patience, plateau=15):
    """A training whose epochs have these validation scores, and count from number `ramp` on: best epoch, epochs, rates."""
    model, rates, given = torch.nn.Linear(1, 1), [], iter(scores)
    recipe = Recipe(epochs=len(scores), patience=patience, plateau=plateau)
    best, epochs = train_epochs(
        model,
        recipe,
        lambda number, optimizer: 0.0,
        lambda: (next(given), 1.0),
        counts=lambda number: number >= ramp,
        lowers=lambda number: number >= ramp,
        watch=lambda epoch: rates.append(epoch.lr),
    )
    return best, epochs, rates


class TestPatienceAfterARamp:
    UP, DIP, LATER = [50.0, 70, 75, 74], [60.0, 62] + [61.0] * 30, [65.0, 72, 80, 88]

    def test_a_dip_while_weights_go_does_not_end_the_training(self):
        scores = self.UP + self.DIP + self.LATER
        best, epochs, rates = scored(scores, ramp=4, patience=10)
        assert (best, epochs) == (len(scores) - 1, len(scores))
        assert set(rates) == {Recipe.lr}  # nor does it lower the learning rate

    def test_it_ends_once_scores_have_recovered_and_stand_still(self):
        scores = self.UP + self.DIP + self.LATER + [87.0] * 40
        best, epochs, _ = scored(scores, ramp=4, patience=10)
        assert scores[best] == 88 and epochs == best + 1 + 10

    def test_patience_starts_with_the_epoch_that_has_recovered(self):
        """The best epoch may be an earlier one that was good by chance."""
        scores = [80.0, 80, 70, 75, 72, 76.0] + [75.9] * 30
        best, epochs, _ = scored(scores, ramp=2, patience=5)
        assert (best, epochs) == (5, 5 + 1 + 5)

    def test_without_a_ramp_it_is_as_ever(self):
        assert scored([50.0, 60, *[59.0] * 30], ramp=0, patience=7)[:2] == (1, 1 + 1 + 7)

    def test_epochs_before_the_target_never_win(self):
        assert scored([90.0, 95, 40, 41], ramp=2, patience=1)[:2] == (3, 4)
