"""Models whose layers propagate and transform in turn, trained on the whole graph at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from statistics import fmean
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unifews.core.checks import check_finite
from unifews.datasets.dataset import Dataset, Split
from unifews.methods.base import Stage, TrainingTask
from unifews.nn.decoupled import dense_rows
from unifews.nn.models import build, own_settings
from unifews.nn.sparsify import set_node_lock, trace
from unifews.nn.trace import ModelTrace
from unifews.training.data_parallel import loss_of
from unifews.training.loop import Watch, seeded, train_epochs
from unifews.training.metrics import evaluate
from unifews.training.result import Fitted, SeedResult
from unifews.training.spec import LayeredSpec

_MAX_DENSITY = 0.2  # up to which sparse features are multiplied faster than dense ones, forward and backward

Loss = Callable[[nn.Module, int], Tensor]
"""The loss of a training pass of a model, and the number of the epoch."""
Validate = Callable[[nn.Module], tuple[float, float]]
"""Validation score and loss of a model."""


class LayeredTraining:
    """A dataset as tensors, on which a model is trained once per seed."""

    def __init__(self, data: Dataset, spec: LayeredSpec, splits: Sequence[Split]) -> None:
        """`splits`: of the nodes, one per seed."""
        self.data, self.spec, self.splits = data, spec, splits
        self.x = features(data, sparse=spec.model != "gin")  # GIN adds a node's own features to its neighbours'
        self.edge_index = torch.from_numpy(data.graph.to_edge_index())
        self.edge_weight = None if data.graph.weight is None else torch.tensor(data.graph.weight)

    @property
    def metric(self) -> str:
        return self.data.about.metric

    def one_seed(self, number: int, seed: int, watch: Watch | None) -> tuple[SeedResult, nn.Module]:
        """The result of a seed, counted from 0, and its model."""
        fitted, model = self.fit(number, seed, watch)
        found = trace_of(model)
        kept = tuple(layer.kept for layer in found.layers)
        return SeedResult(seed=seed, **asdict(fitted), kept=kept, trace=found), model.eval()

    def trace(self, seeds: Sequence[SeedResult]) -> ModelTrace:
        """Of the evaluated passes, the mean over seeds."""
        return mean_trace([seed.trace for seed in seeds if seed.trace is not None])

    def sizes(self, seeds: Sequence[SeedResult]) -> tuple[int, ...]:
        """Weights of each matrix."""
        return tuple(layer.weights for layer in self.trace(seeds).layers)

    def model(self, outputs: int, seed: int) -> nn.Module:
        """The unpruned model with the initial weights of this seed."""
        spec, recipe = self.spec, self.spec.recipe
        shape: dict[str, Any] = {"width": recipe.width, "layers": recipe.layers, "dropout": recipe.dropout}
        own = {name: getattr(spec, name) for name in own_settings(spec.model)}
        with seeded(seed):
            return build(spec.model, self.data.num_features, outputs, **shape, **own)

    def fit(self, number: int, seed: int, watch: Watch | None) -> tuple[Fitted, nn.Module]:
        """Train and evaluate a classifier of nodes; its trace is that of the pass that the test score comes from."""
        began = perf_counter()
        metric, y, split = self.metric, self.data.y, self.splits[number]
        # A copy: labels may be a read-only memory map or of a narrower type, and torch takes neither.
        labels = torch.from_numpy(y.astype(np.int64 if y.ndim == 1 else np.float32))
        train, val, test = (torch.from_numpy(part.astype(np.int64)) for part in split)

        def loss(model: nn.Module, number: int) -> Tensor:
            return loss_of(self.scores(model)[train], labels[train])

        def validate(model: nn.Module) -> tuple[float, float]:
            scores = self.evaluated(model, val)[val]
            return evaluate(metric, scores.numpy(), y[split.val]), float(loss_of(scores, labels[val]))

        best, epochs, model = self.train_stages(self.model(self.data.num_classes, seed), seed, loss, validate, watch)
        at = [evaluate(metric, self.evaluated(model, part)[part].numpy(), y[part.numpy()]) for part in (train, val, test)]
        set_node_lock(model, None)
        return Fitted(at[0], at[1], at[2], best, epochs, perf_counter() - began), model

    def train_stages(
        self,
        model: nn.Module,
        seed: int,
        loss: Loss,
        validate: Validate,
        watch: Watch | None,
        wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
    ) -> tuple[int, int, nn.Module]:
        """The stages of the method, one after another; `wrap` makes of a stage's model the one that is trained.

        Returns the best epoch of the last stage, counted over all, the epochs of all, and the last model.
        """
        spec, done, best = self.spec, 0, 0
        amounts = ("edge_sparsity", "weight_sparsity", "edge_threshold", "weight_threshold")
        with seeded(seed):
            task = TrainingTask.of(
                spec.rule,
                model,
                self,
                **{name: getattr(spec, name) for name in amounts},
                epochs=spec.recipe.epochs,
                seed=seed,
                schedule=spec.pruning,
                options={name: getattr(spec, name) for name in spec.rule.card.layers},
            )
            for stage in spec.rule.stages(task):
                model = wrap(stage.model)
                best, epochs = train_epochs(
                    model,
                    replace(spec.recipe, epochs=stage.epochs),
                    partial(_learn, stage, model, loss),
                    partial(validate, model),
                    counts=stage.counts,
                    lowers=stage.counts,  # scores fall while weights are removed, which a lower rate would not recover
                    ends=stage.after_epoch,
                    watch=_shifted(watch, done, spec.recipe.epochs),
                )
                best, done = best + done, done + epochs
        return best, done, model

    def scores(self, model: nn.Module) -> Tensor:
        out: Tensor = model(self.x, self.edge_index, self.edge_weight)
        return out

    @torch.no_grad()
    def evaluated(self, model: nn.Module, nodes: Tensor) -> Tensor:
        """Scores of all nodes by the entries that training kept, to evaluate these nodes by."""
        model.eval()
        if self.spec.node_lock:
            set_node_lock(model, nodes)
        return self.scores(model)


def _learn(stage: Stage, model: nn.Module, loss_of_pass: Loss, number: int, optimizer: torch.optim.Optimizer) -> float:
    """One epoch, which is one step of the optimizer; its loss."""
    stage.before_step(number)
    model.train()
    optimizer.zero_grad(set_to_none=True)
    loss, penalty = loss_of_pass(model, number), stage.penalty()
    loss = loss if penalty is None else loss + penalty
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    stage.after_step(number)
    return float(loss.detach())


def _shifted(watch: Watch | None, before: int, epochs: int) -> Watch | None:
    """Counts epochs over all stages."""
    return None if watch is None else lambda epoch: watch(replace(epoch, number=epoch.number + before, of=epochs))


def features(data: Dataset, *, sparse: bool = True) -> Tensor:
    """x as float32, dense unless nearly all of it is zero."""
    check_finite(data.name, data.x)
    if sparse and hasattr(data.x, "toarray") and data.x.nnz <= _MAX_DENSITY * data.num_nodes * data.num_features:
        parts = ((data.x.indptr, np.int64), (data.x.indices, np.int64), (data.x.data, np.float32))
        starts, columns, values = (torch.from_numpy(part.astype(kind)) for part, kind in parts)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls its CSR tensors beta
            return torch.sparse_csr_tensor(starts, columns, values, size=data.x.shape, check_invariants=True)
    return dense_rows(data.x)


def trace_of(model: nn.Module) -> ModelTrace:
    """Of the model's last pass; a threshold that keeps nothing is infinite, which JSON cannot hold."""
    found = trace(model)
    hops = tuple(replace(hop, threshold=None) if hop.threshold == float("inf") else hop for hop in found.hops)
    return replace(found, hops=hops)


def mean_trace(traces: Sequence[ModelTrace]) -> ModelTrace:
    """The mean over the evaluated passes of several seeds, counts rounded."""
    hops = tuple(_mean([found.hops[i] for found in traces]) for i in range(len(traces[0].hops)))
    layers = tuple(_mean([found.layers[i] for found in traces]) for i in range(len(traces[0].layers)))
    return replace(traces[0], hops=hops, layers=layers)


def _mean(records: Sequence[Any]) -> Any:
    changed: dict[str, Any] = {}
    for name, value in vars(records[0]).items():
        values = [getattr(record, name) for record in records]
        if isinstance(value, int | float) and None not in values:
            changed[name] = round(fmean(values)) if isinstance(value, int) else fmean(values)
    return replace(records[0], **changed)
