"""A head trained by several workers, each with a range of the embedding's rows: the steps are those of one process.

All workers draw the same batches. Each takes the rows of a batch that are in its range, and DistributedDataParallel adds up
their gradients; BatchNorm, dropout and pruning, which depend on all rows of the batch, reduce over the workers.
"""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce  # a sum with a gradient
from torch.nn.parallel import DistributedDataParallel

from unifews.datasets.dataset import Dataset
from unifews.datasets.load import load_dataset
from unifews.distributed.communicator import ProcessGroup, check_same, workers
from unifews.errors import InputError
from unifews.nn.decoupled import Mlp
from unifews.storage.npy import open_array
from unifews.training import api
from unifews.training.api import Watch
from unifews.training.data_parallel import HeadTrainer, loss_of
from unifews.training.job import TrainingJob
from unifews.training.ledger import Ledger
from unifews.training.result import TrainResult
from unifews.training.spec import TrainSpec


def train(
    dataset: Dataset | str | PathLike[str],
    embedding: str | PathLike[str] | NDArray[Any] | None = None,
    *,
    ledger: Ledger | str | PathLike[str] | None = None,
    watch: Watch | None = None,
    **settings: Any,
) -> TrainResult:
    """`unifews.train` of a head on what was propagated already, by all the workers that torchrun has started.

    Args:
        dataset: whose labels and splits are used; a `Dataset`, or what `load_dataset` takes.
        embedding: rows [n, width] to classify, an array or the ``.npy`` file that `propagate` wrote, which is mapped: a
            worker reads its own rows of it (the first one also those of the training set, once). Default: the features.
        ledger, watch: as in `unifews.train`; worker 0 writes and reports.
        **settings: of `unifews.train` for ``model="mlp"``: recipe, seeds, split, weight_sparsity, …; a batch is that of all
            workers together, so the same settings take the same steps, up to rounding, however many they are.
    """
    with workers() as group:
        with group.agreed():
            data = dataset if isinstance(dataset, Dataset) else load_dataset(dataset)
            data = data if embedding is None else on_embedding(data, embedding)
            spec = TrainSpec.of({"dataset": data.name, "model": "mlp", **settings})
            job = TrainingJob.prepare(data, spec)
        trainer = head_trainer(group, job)
        book = Ledger(ledger) if ledger is not None and not isinstance(ledger, Ledger) else ledger
        return api.run_job(job, book, watch=watch if trainer.is_first else None, trainer=trainer)


def head_trainer(group: ProcessGroup, job: TrainingJob) -> DistributedHeadTrainer:
    """The trainer of all workers, once they have agreed on data and settings."""
    if job.spec.model != "mlp":
        raise group.refuse(f"workers train a head, on an embedding or on features: model='mlp', not {job.spec.model!r}.")
    check_same(group, {**job.spec.to_dict(), "data": job.data_id})
    return DistributedHeadTrainer(group, job.data.num_nodes)


def on_embedding(data: Dataset, embedding: str | PathLike[str] | NDArray[Any]) -> Dataset:
    """The dataset with an embedding in place of its features."""
    if isinstance(embedding, str | PathLike):
        file, found = Path(embedding), open_array(embedding)
        # Copy-on-write, because torch requires writable memory.
        rows = np.load(file, mmap_mode="c", allow_pickle=False) if found.size else found
        about = replace(data.about, source=f"{data.about.source}, {file.name}")
    else:
        rows, about = np.asarray(embedding), data.about
    if rows.ndim != 2 or len(rows) != data.num_nodes or rows.dtype.kind != "f":
        raise InputError(
            f"an embedding of {data.name} holds real numbers of shape [{data.num_nodes}, width]; got {rows.dtype} of shape "
            f"{list(rows.shape)}."
        )
    return replace(data, x=rows, about=about)


class DistributedHeadTrainer(HeadTrainer):
    """One of several workers, which has a range of the rows."""

    def __init__(self, group: ProcessGroup, rows: int) -> None:
        self.group, self.is_first = group, group.rank == 0
        self.first, self.last = rows * group.rank // group.size, rows * (group.rank + 1) // group.size
        # Separate from the group that averages gradients, whose calls come in any order.
        self.sums = dist.new_group(backend="gloo")

    def head(self, inputs: int, outputs: int, **shape: Any) -> Mlp:
        return _SharedMlp(self, inputs, outputs, **shape)

    def standardise(self, head: Mlp, rows: Tensor, train: Tensor, *, per_column: bool) -> None:
        if self.is_first:
            super().standardise(head, rows, train, per_column=per_column)
        for buffer in (head.mean, head.scale):
            self.group.broadcast(buffer.numpy())

    def wrap(self, head: Mlp) -> nn.Module:
        return DistributedDataParallel(head, process_group=self.group.process_group)

    def local(self, nodes: Tensor) -> Tensor:
        return ((nodes >= self.first) & (nodes < self.last)).nonzero().flatten()

    def loss(self, net: nn.Module, x: Tensor, labels: Tensor, at: Tensor | slice, count: int) -> Tensor:
        assert isinstance(net, DistributedDataParallel) and isinstance(net.module, _SharedMlp) and isinstance(at, Tensor)
        net.module.place = at, count
        scores = net(x)
        own = loss_of(scores, labels) if len(at) else scores.sum()
        return own * (len(at) * self.group.size / count)  # gradients are averaged over workers, and the sum is wanted

    def total(self, losses: float) -> float:
        return float(self.group.all_reduce(np.array([losses]))[0]) / self.group.size

    def gather(self, scores: Tensor, at: Tensor | slice, count: int) -> Tensor:
        table = torch.zeros(count, scores.shape[1])
        table[at] = scores
        self.group.all_reduce(table.numpy())
        return table

    def plain(self, head: Mlp) -> Mlp:
        assert isinstance(head, _SharedMlp)
        with torch.random.fork_rng(devices=[]):
            plain = Mlp(*head.sides, **head.shape)
        plain.load_state_dict(head.state_dict())
        return plain

    def reduced(self, values: Tensor) -> Tensor:
        """The sum over all workers, with a gradient."""
        total: Tensor = all_reduce(values, group=self.sums)  # type: ignore[no-untyped-call]
        return total


class _SharedMlp(Mlp):
    """A head that gets some rows of a batch and computes what one process with all rows would."""

    place: tuple[Tensor, int]
    """Positions of these rows in the batch, and the size of the batch."""

    def __init__(self, trainer: DistributedHeadTrainer, inputs: int, outputs: int, **shape: Any) -> None:
        super().__init__(inputs, outputs, **shape)
        self.trainer, self.sides, self.shape = trainer, (inputs, outputs), shape
        self.norms = nn.ModuleList(_SharedNorm(norm.num_features, self) for norm in self.norms)  # type: ignore[arg-type]
        for layer in self.linears():
            layer.norms = self._column_norms  # type: ignore[method-assign]

    def drop(self, x: Tensor) -> Tensor:
        if not self.training or not self.dropout:
            return x
        at, count = self.place
        return x * super().drop(torch.ones(count, x.shape[1]))[at]  # drawn for all rows, so that all workers draw the same

    def _column_norms(self, x: Tensor) -> Tensor:
        return self.trainer.reduced(x.square().sum(0)).sqrt()


class _SharedNorm(nn.BatchNorm1d):
    """BatchNorm by the mean and variance over the rows of all workers."""

    def __init__(self, width: int, head: _SharedMlp) -> None:
        super().__init__(width)
        self._head = (head,)  # in a tuple, so that the head is not registered as a submodule of its own layer

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        (head,) = self._head
        reduced, count = head.trainer.reduced, head.place[1]
        mean = reduced(x.sum(0)) / count
        centred = x - mean
        variance = reduced(centred.square().sum(0)) / count
        with torch.no_grad():
            assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
            momentum = self.momentum or 0.0
            self.running_mean.lerp_(mean, momentum)
            self.running_var.lerp_(variance * (count / max(count - 1, 1)), momentum)
            self.num_batches_tracked += 1
        return centred * (variance + self.eps).rsqrt() * self.weight + self.bias
