"""Watching a training in TensorBoard: loss, validation score and kept weights, a curve per seed."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from unifews.errors import InputError
from unifews.training.loop import Epoch


class TensorBoard:
    """A `watch` of `train` that writes event files to `folder`/seed-42, …; close it, or use it in a `with`."""

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

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()


def writer() -> Any:
    """torch's writer of event files, or one sentence where TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError("TensorBoard is not installed; pip install tensorboard, or leave out the log.") from error
    return SummaryWriter
