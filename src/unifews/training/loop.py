"""One training: mini-batches, a validation score per epoch, the best epoch's weights at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unifews.datasets.dataset import Split
from unifews.errors import InputError
from unifews.nn.decoupled import Mlp
from unifews.nn.linear import PrunedWeight
from unifews.training.hands import Hands, loss_of
from unifews.training.metrics import judge
from unifews.training.recipe import Recipe, WeightPruning
from unifews.training.result import Fitted

_ROWS = 16_384  # of a matrix that are scored at a time
_RECOVERED = 0.95  # of the best score before the target was reached: from then on a score that stands still ends the training


@dataclass(frozen=True)
class Epoch:
    """What there is to see while training goes on."""

    number: int
    of: int
    loss: float
    val: float
    best: float
    kept: int
    weights: int
    lr: float


Watch = Callable[[Epoch], None]


def fit(
    model: Mlp,
    rows: Tensor,
    y: NDArray[Any],
    split: Split,
    recipe: Recipe,
    *,
    metric: str = "accuracy",
    pruning: WeightPruning | None = None,
    seed: int = 0,
    watch: Watch | None = None,
    hands: Hands | None = None,
) -> Fitted:
    """Train `model` on rows [n, f] and leave it at its best epoch.

    The epoch is chosen by the validation score, equal scores by the validation loss. The test set is looked at once, at
    the end. `seed` decides the order of the batches and the dropout; the caller seeds the initial weights. Torch's own
    generator is left as it was found, and what `watch` draws from it changes nothing.
    """
    with seeded(seed):
        return _fit(model, rows, y, split, recipe, metric, pruning or WeightPruning(), watch, hands or Hands())


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's generator starts at `seed` inside, and is where it was afterwards. Everything here runs on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _fit(
    model: Mlp,
    rows: Tensor,
    y: NDArray[Any],
    split: Split,
    recipe: Recipe,
    metric: str,
    pruning: WeightPruning,
    watch: Watch | None,
    hands: Hands,
) -> Fitted:
    began = perf_counter()
    # Copies: labels may be a read-only memory map or of a narrower type, and torch takes neither.
    labels = torch.from_numpy(y.astype(np.int64 if y.ndim == 1 else np.float32))
    train, val, test = (torch.from_numpy(part.astype(np.int64)) for part in split)
    val_here = hands.mine(val)
    val_rows, val_labels = rows[val[val_here]], labels[val]
    net = hands.stepping(model)

    def learn(number: int, optimizer: torch.optim.Optimizer) -> float:
        return _epoch(model, net, rows, labels, train, optimizer, recipe, pruning, number, hands)

    def look() -> tuple[float, float]:
        scores = hands.all(predict(model, val_rows), val_here, len(val))
        return judge(metric, scores.numpy(), y[split.val]), float(loss_of(scores, val_labels))

    best_epoch, epochs = climb(model, recipe, learn, look, counts=lambda i: pruning.reached(i, recipe.epochs), watch=watch)

    def scored(part: Tensor) -> float:
        here = hands.mine(part)
        return judge(metric, hands.all(predict(model, rows[part[here]]), here, len(part)).numpy(), y[part.numpy()])

    at = [scored(part) for part in (train, val, test)]
    return Fitted(at[0], at[1], at[2], best_epoch, epochs, perf_counter() - began)


def climb(
    model: nn.Module,
    recipe: Recipe,
    learn: Callable[[int, torch.optim.Optimizer], float],
    look: Callable[[], tuple[float, float]],
    *,
    counts: Callable[[int], bool] = lambda number: True,
    lowers: Callable[[int], bool] = lambda number: True,
    ends: Callable[[int, float], bool] = lambda number, score: False,
    watch: Watch | None = None,
) -> tuple[int, int]:
    """Epoch after epoch until validation no longer gets better; the model is left at its best one, settled.

    `learn` trains epoch number 0, 1, … and gives its loss; `look` gives validation score and loss, by which, in this order,
    the best of the epochs that count is chosen. Where epochs before them do not count, because weights are still being pruned,
    patience, which ends the training and lowers the learning rate, starts with the first epoch that counts and has recovered:
    its score is at least 0.95 times the best of those before. `lowers`: whether an epoch that is no better lowers the rate.
    `ends` is asked after every epoch with its score, before `counts`, whether it is the last.
    Returns the best epoch and how many there were.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode="max", factor=0.5, patience=recipe.plateau, threshold=1e-4
    )
    pruned = [module for module in model.modules() if isinstance(module, PrunedWeight)]
    best, best_epoch = (-math.inf, -math.inf), -1
    before, recovered = 0.0, -1  # the best score of epochs that do not count, and the first epoch that has come near it
    state: dict[str, Tensor] = {}
    for number in range(recipe.epochs):
        loss = learn(number, optimizer)
        if not math.isfinite(loss):
            raise InputError(
                f"training went astray: the loss of epoch {number + 1} is {loss}. Lower `lr`, which is {recipe.lr:g}."
            )
        score, val_loss = look()
        over, counted = ends(number, score), counts(number)
        if not counted:
            before = max(before, score)
        elif recovered < 0 and score >= _RECOVERED * before:
            recovered = number
        if lowers(number) and (recovered >= 0 or not counted):
            plateau.step(score)
        if counted and (score, -val_loss) > best:
            best, best_epoch = (score, -val_loss), number
            state = {name: value.clone() for name, value in model.state_dict().items()}
        if watch:
            kept, weights = sum(weight.kept for weight in pruned), sum(weight.matrix.numel() for weight in pruned)
            lr = float(optimizer.param_groups[0]["lr"])
            with torch.random.fork_rng(devices=[]):
                watch(Epoch(number, recipe.epochs, loss, score, best[0], kept, weights, lr))
        if over or (recipe.patience and recovered >= 0 and number - max(best_epoch, recovered) >= recipe.patience):
            break
    model.load_state_dict(state)
    for weight in pruned:
        weight.settle()
    return best_epoch, number + 1


def _epoch(
    model: Mlp,
    net: nn.Module,
    rows: Tensor,
    labels: Tensor,
    train: Tensor,
    optimizer: torch.optim.Optimizer,
    recipe: Recipe,
    pruning: WeightPruning,
    number: int,
    hands: Hands,
) -> float:
    """All training rows once, in random order; the mean loss."""
    model.train()
    total = 0.0
    order = train[torch.randperm(len(train))]
    # BatchNorm cannot do with a single row: what is left over joins the batch before it.
    batches = list(torch.split(order, recipe.batch))
    if len(batches) > 1 and len(batches[-1]) < 2:
        batches[-2:] = [torch.cat(batches[-2:])]
    for i, batch in enumerate(batches):
        at = hands.mine(batch)
        x = rows[batch[at]]
        if i == 0 and pruning.active:
            for layer in model.linears():
                layer.due = pruning.at(number, recipe.epochs)
                layer.feedback = pruning.feedback and not layer.due["monotone"]
        optimizer.zero_grad(set_to_none=True)
        loss = hands.loss(net, x, labels[batch[at]], at, len(batch))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += float(loss.detach()) * len(batch)
    return hands.total(total) / len(order)


@torch.no_grad()
def predict(model: nn.Module, rows: Tensor) -> Tensor:
    """Scores of many rows, some at a time."""
    model.eval()
    return torch.cat([model(part) for part in torch.split(rows, _ROWS)])
