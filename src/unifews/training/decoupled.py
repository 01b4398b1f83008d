"""Decoupled models: features are propagated once, then a head is trained on the embedding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from unifews.core.checks import check_finite
from unifews.core.trace import LayerTrace, Trace
from unifews.datasets.dataset import Dataset, Split
from unifews.methods.base import PropagationTask
from unifews.nn.decoupled import DecoupledModel, dense_rows
from unifews.propagation import propagate
from unifews.propagation.result import Propagated
from unifews.resources import Progress
from unifews.training.data_parallel import HeadTrainer
from unifews.training.loop import Watch, fit, seeded
from unifews.training.result import SeedResult
from unifews.training.spec import DecoupledSpec


class DecoupledTraining:
    """A dataset with its embedding, on which a head is trained once per seed."""

    def __init__(
        self, data: Dataset, spec: DecoupledSpec, splits: Sequence[Split], progress: Progress | None, trainer: HeadTrainer
    ) -> None:
        self.data, self.spec, self.splits, self.trainer = data, spec, splits, trainer
        self.axes: Tensor | None = None
        self.exponent, self._trace = 0, Trace(())
        self.call: tuple[Callable[..., Propagated], dict[str, Any] | None] = propagate, None  # an MLP does not propagate
        if spec.model == "mlp":
            self.rows = dense_rows(data.x)
            check_finite(data.name, self.rows.numpy())
        else:
            self._propagate(progress)
        self.sizes_of_head = self._sizes(self.rows.shape[1])

    def _propagate(self, progress: Progress | None) -> None:
        spec, method = self.spec, self.spec.rule
        task = PropagationTask.of(
            method,
            self.data.graph,
            self.data.x,
            spec.scheme,
            spec.hops,
            spec.r,
            edge_sparsity=spec.edge_sparsity,
            threshold=spec.edge_threshold,
            seed=spec.seed,
            progress=progress,
            **{name: getattr(spec, name) for name in method.card.once},
        )
        out = method.propagate(task)
        self.call = method.call(task)
        if spec.head == "embedding" or out.basis is None:
            self.rows = dense_rows(out.embedding)
        else:
            self.rows, self.axes = dense_rows(out.coordinates), dense_rows(out.basis)
        self.exponent, self._trace = out.exponent, out.trace  # the trace last: rotating back has added to it

    @property
    def metric(self) -> str:
        return self.data.about.metric

    def one_seed(self, number: int, seed: int, watch: Watch | None) -> tuple[SeedResult, DecoupledModel]:
        """The result of a seed, counted from 0, and its model."""
        data, spec, rows, recipe, split = self.data, self.spec, self.rows, self.spec.recipe, self.splits[number]
        trainer = self.trainer
        with seeded(seed):
            head = trainer.head(
                rows.shape[1], data.num_classes, width=recipe.width, layers=recipe.layers, dropout=recipe.dropout
            )
        trainer.standardise(head, rows, torch.tensor(split.train), per_column=spec.standardise == "column")
        pruning = spec.pruning  # as a fraction of the head's own weights
        if spec.weight_reference != "head":
            pruning = pruning.within(sum(self.sizes_of_head), sum(self._sizes(data.num_features)))
        fitted = fit(
            head,
            rows,
            data.y,
            split,
            recipe,
            metric=self.metric,
            pruning=pruning,
            seed=seed,
            watch=watch,
            trainer=trainer,
        )
        result = SeedResult(seed=seed, **asdict(fitted), kept=tuple(layer.kept for layer in head.linears()))
        function, how = self.call
        return result, DecoupledModel(trainer.plain(head).eval(), self.axes, how, self.exponent, by=function).eval()

    def trace(self, seeds: Sequence[SeedResult]) -> Trace:
        """Weights and multiply-adds of classifying all nodes, beside those of the unpruned head, which gets all features.

        A threshold keeps a different number of weights in each seed: the mean, rounded.
        """
        layers, data, inputs = [], self.data, self.rows.shape[1]
        for i, weights in enumerate(self._sizes(data.num_features)):
            kept = round(sum(seed.kept[i] for seed in seeds) / len(seeds))
            layers.append(LayerTrace(i, weights, kept, data.num_nodes * kept, data.num_nodes * weights))
        trace = replace(self._trace, layers=tuple(layers))
        if inputs == data.num_features:
            return trace
        own = 1 - sum(layer.kept for layer in layers) / sum(self.sizes_of_head)
        note = (
            f"the head gets {inputs:,} principal components of {data.num_features:,} features: {trace.weight_sparsity:.1%} of "
            f"the unpruned model's weights are removed, {own:.1%} of the head's own"
        )
        return replace(trace, notes=(*trace.notes, note))

    def sizes(self, seeds: Sequence[SeedResult]) -> tuple[int, ...]:
        return self.sizes_of_head

    def _sizes(self, inputs: int) -> tuple[int, ...]:
        """Weights of each layer of a head with so many inputs."""
        recipe = self.spec.recipe
        widths = [inputs, *[recipe.width] * (recipe.layers - 1), self.data.num_classes]
        return tuple(a * b for a, b in pairwise(widths))
