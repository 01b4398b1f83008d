"""One training: mini-batches, a validation score per epoch, the best epoch's weights at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
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
from unifews.training.data_parallel import HeadTrainer, loss_of
from unifews.training.metrics import evaluate
from unifews.training.recipe import Recipe, WeightPruning
from unifews.training.result import Fitted

_CHUNK_ROWS = 16_384  # rows of a matrix that are scored together
_RECOVERED = 0.95  # fraction of the best score before the target sparsity was reached; patience starts once it is reached again


@dataclass(frozen=True)
class Epoch:
    """The state of a training after an epoch."""

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
    trainer: HeadTrainer | None = None,
) -> Fitted:
    """Train `model` on rows [n, f] and leave it at its best epoch.

    The epoch is chosen by the validation score, ties by the validation loss. The test set is evaluated once, at the end.
    `seed` decides the order of the batches and the dropout; the caller seeds the initial weights. The state of torch's
    generator is restored, and random numbers that `watch` draws change nothing.
    """
    began = perf_counter()
    schedule, workers = pruning or WeightPruning(), trainer or HeadTrainer()
    # Copies: labels may be a read-only memory map or of a narrower type, and torch takes neither.
    labels = torch.from_numpy(y.astype(np.int64 if y.ndim == 1 else np.float32))
    train, val, test = (torch.from_numpy(part.astype(np.int64)) for part in split)
    val_local = workers.local(val)
    val_rows, val_labels = rows[val[val_local]], labels[val]
    net = workers.wrap(model)

    def learn(number: int, optimizer: torch.optim.Optimizer) -> float:
        return _epoch(model, net, rows, labels, train, optimizer, recipe, schedule, number, workers)

    def validate() -> tuple[float, float]:
        scores = workers.gather(predict(model, val_rows), val_local, len(val))
        return evaluate(metric, scores.numpy(), y[split.val]), float(loss_of(scores, val_labels))

    def scored(part: Tensor) -> float:
        local = workers.local(part)
        return evaluate(metric, workers.gather(predict(model, rows[part[local]]), local, len(part)).numpy(), y[part.numpy()])

    with seeded(seed):
        best_epoch, epochs = train_epochs(
            model, recipe, learn, validate, counts=lambda i: schedule.reached(i, recipe.epochs), watch=watch
        )
        at = [scored(part) for part in (train, val, test)]
    return Fitted(at[0], at[1], at[2], best_epoch, epochs, perf_counter() - began)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's generator starts at `seed` inside, and its state is restored afterwards. Everything here runs on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def train_epochs(
    model: nn.Module,
    recipe: Recipe,
    learn: Callable[[int, torch.optim.Optimizer], float],
    validate: Callable[[], tuple[float, float]],
    *,
    counts: Callable[[int], bool] = lambda number: True,
    lowers: Callable[[int], bool] = lambda number: True,
    ends: Callable[[int, float], bool] = lambda number, score: False,
    watch: Watch | None = None,
) -> tuple[int, int]:
    """Train until the validation score no longer improves; the model is left at its best epoch, with its masks final.

    `learn` trains epoch number 0, 1, … and returns its loss; `validate` returns validation score and loss, by which, in this
    order, the best of the epochs that count is chosen. Where earlier epochs do not count, because weights are still being
    pruned, patience, which ends the training and lowers the learning rate, starts with the first epoch that counts and has
    recovered: its score is at least 0.95 times the best of those before. `lowers`: whether an epoch without an improvement
    may lower the learning rate. `ends` is called after every epoch with its score, before `counts`: whether it is the last.
    Returns the best epoch and the number of epochs.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode="max", factor=0.5, patience=recipe.plateau, threshold=1e-4
    )
    pruned = [module for module in model.modules() if isinstance(module, PrunedWeight)]
    best, best_epoch = (-math.inf, -math.inf), -1
    before, recovered = 0.0, -1  # best score of epochs that do not count; first epoch that is near it again
    state: dict[str, Tensor] = {}
    for number in range(recipe.epochs):
        loss = learn(number, optimizer)
        if not math.isfinite(loss):
            raise InputError(
                f"training diverged (the loss of epoch {number + 1} is {loss}); lower `lr`, which is {recipe.lr:g}."
            )
        score, val_loss = validate()
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
    trainer: HeadTrainer,
) -> float:
    """All training rows once, in random order; the mean loss."""
    model.train()
    total = 0.0
    order = train[torch.randperm(len(train))]
    # BatchNorm needs two rows: a single remaining one joins the batch before it.
    batches = list(torch.split(order, recipe.batch))
    if len(batches) > 1 and len(batches[-1]) < 2:
        batches[-2:] = [torch.cat(batches[-2:])]
    for i, batch in enumerate(batches):
        at = trainer.local(batch)
        x = rows[batch[at]]
        if i == 0 and pruning.active:
            for layer in model.linears():
                layer.due = pruning.at(number, recipe.epochs)
                layer.feedback = pruning.feedback and not layer.due["monotone"]
        optimizer.zero_grad(set_to_none=True)
        loss = trainer.loss(net, x, labels[batch[at]], at, len(batch))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += float(loss.detach()) * len(batch)
    return trainer.total(total) / len(order)


@torch.no_grad()
def predict(model: nn.Module, rows: Tensor) -> Tensor:
    """Scores of many rows, in chunks."""
    model.eval()
    return torch.cat([model(part) for part in torch.split(rows, _CHUNK_ROWS)])


class TensorBoard(AbstractContextManager["TensorBoard"]):
    """A `watch` of `train` that writes loss, validation score and kept weights to `folder`/seed-42, …; use it in a `with`."""

    def __init__(self, folder: Path, first_seed: int = 0) -> None:
        """`first_seed`: the number of the first seed, by which the curves are named."""
        self._writer_of = writer()
        self.folder = folder
        self.first = first_seed
        self._open: tuple[int, Any] | None = None

    def __call__(self, number: int, epoch: Epoch) -> None:
        if self._open is None or self._open[0] != number:
            self.close()
            self._open = number, self._writer_of(str(self.folder / f"seed-{self.first + number}"))
        events = self._open[1]
        events.add_scalar("loss/train", epoch.loss, epoch.number)
        events.add_scalar("score/validation", epoch.val, epoch.number)
        events.add_scalar("weights/kept", epoch.kept / max(1, epoch.weights), epoch.number)
        events.add_scalar("learning rate", epoch.lr, epoch.number)

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def __exit__(self, *error: object) -> None:
        self.close()


def writer() -> Any:
    """torch's writer of event files; an error where TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError("TensorBoard is not installed; pip install tensorboard, or leave out the log.") from error
    return SummaryWriter
