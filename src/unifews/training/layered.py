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

from unifews.datasets.dataset import Dataset, Split
from unifews.methods.contract import Stage
from unifews.nn.decoupled import dense_rows
from unifews.nn.models import build, own_settings
from unifews.nn.sparsify import set_node_lock, set_schedule, sparsify, trace
from unifews.nn.trace import ModelTrace
from unifews.training.checks import check_finite
from unifews.training.hands import loss_of
from unifews.training.loop import Watch, climb, seeded
from unifews.training.metrics import judge
from unifews.training.result import Fitted, SeedResult
from unifews.training.spec import LayeredSpec

_SPARSE = 0.2  # share of nonzeros up to which sparse features are multiplied faster than dense ones, forward and backward


class OnGraph:
    """A dataset as these models are fed: features and edges as tensors."""

    def __init__(self, data: Dataset, spec: LayeredSpec, splits: Sequence[Split]) -> None:
        """`splits`: of each seed; of nodes."""
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
        """What the judged passes kept, the mean over seeds."""
        return mean_trace([seed.trace for seed in seeds if seed.trace is not None])

    def sizes(self, seeds: Sequence[SeedResult]) -> tuple[int, ...]:
        """Weights of each matrix."""
        return tuple(layer.weights for layer in self.trace(seeds).layers)

    def plain(self, outputs: int, seed: int) -> nn.Module:
        """The model of the settings with the initial weights of this seed."""
        spec, recipe = self.spec, self.spec.recipe
        own = {name: getattr(spec, name) for name in own_settings(spec.model)}
        with seeded(seed):
            return build(
                spec.model, self.data.num_features, outputs, width=recipe.width, layers=recipe.layers, dropout=recipe.dropout,
                **own,
            )  # fmt: skip

    def model(self, outputs: int, seed: int) -> nn.Module:
        """The same, which prunes itself."""
        spec, recipe = self.spec, self.spec.recipe
        return sparsify(
            self.plain(outputs, seed),
            edge_sparsity=spec.edge_sparsity, edge_threshold=spec.edge_threshold, weight_sparsity=spec.weight_sparsity,
            weight_threshold=spec.weight_threshold, absolute=spec.absolute, entries=spec.entries, budget=spec.budget,
            inherit=spec.inherit, ramp=spec.pruning.ramp_within(recipe.epochs), feedback=spec.weight_feedback, inplace=True,
        )  # fmt: skip

    def fit(self, number: int, seed: int, watch: Watch | None) -> tuple[Fitted, nn.Module]:
        """Train and judge a classifier of nodes; the model's trace is that of the pass that the test score comes from."""
        began = perf_counter()
        spec, recipe, metric, y, split = self.spec, self.spec.recipe, self.metric, self.data.y, self.splits[number]
        model = self.model(self.data.num_classes, seed) if spec.is_own else self.plain(self.data.num_classes, seed)
        # A copy: labels may be a read-only memory map or of a narrower type, and torch takes neither.
        labels = torch.from_numpy(y.astype(np.int64 if y.ndim == 1 else np.float32))
        train, val, test = (torch.from_numpy(part.astype(np.int64)) for part in split)

        def loss(model: nn.Module) -> Tensor:
            return loss_of(self.scores(model)[train], labels[train])

        def look(model: nn.Module) -> tuple[float, float]:
            scores = self.judged(model, val)[val]
            return judge(metric, scores.numpy(), y[split.val]), float(loss_of(scores, labels[val]))

        def learn(number: int, optimizer: torch.optim.Optimizer) -> float:
            schedule(model, spec, number)
            return step(model, optimizer, partial(loss, model))

        ready = partial(is_ready, spec)  # scores fall while weights go, and a rate lowered then would not bring them back
        with seeded(seed):
            if spec.is_own:
                best, epochs = climb(model, recipe, learn, partial(look, model), counts=ready, lowers=ready, watch=watch)
            else:
                best, epochs, model = by_stages(spec, model, self, seed, loss, look, watch)
        at = [judge(metric, self.judged(model, part)[part].numpy(), y[part.numpy()]) for part in (train, val, test)]
        set_node_lock(model, None)
        return Fitted(at[0], at[1], at[2], best, epochs, perf_counter() - began), model

    def scores(self, model: nn.Module) -> Tensor:
        out: Tensor = model(self.x, self.edge_index, self.edge_weight)
        return out

    @torch.no_grad()
    def judged(self, model: nn.Module, nodes: Tensor) -> Tensor:
        """Scores of all nodes from the entries that training left, to judge these by."""
        model.eval()
        if self.spec.node_lock:
            set_node_lock(model, nodes)
        return self.scores(model)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, loss_of_pass: Any) -> float:
    """One training pass and what it teaches; the loss."""
    model.train()
    optimizer.zero_grad(set_to_none=True)
    loss: Tensor = loss_of_pass()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float(loss.detach())


def by_stages(
    spec: LayeredSpec,
    model: nn.Module,
    data: OnGraph,
    seed: int,
    loss: Callable[[nn.Module], Tensor],
    look: Callable[[nn.Module], tuple[float, float]],
    watch: Watch | None,
) -> tuple[int, int, nn.Module]:
    """The trainings that another method asks for, one after another; best epoch of the last, epochs of all, the model."""
    done, best, recipe = 0, 0, spec.recipe
    stages = spec.rule.prepare(
        model, data, edge_sparsity=spec.edge_sparsity, weight_sparsity=spec.weight_sparsity, epochs=recipe.epochs, seed=seed
    )  # fmt: skip
    for stage in stages:
        best, epochs = climb(
            stage.model, replace(recipe, epochs=stage.epochs), partial(_taught, stage, loss), partial(look, stage.model),
            counts=stage.counts, lowers=stage.counts, ends=stage.after_epoch, watch=_told(watch, done, recipe.epochs),
        )  # fmt: skip
        best, done, model = best + done, done + epochs, stage.model
    return best, done, model


def _taught(stage: Stage, loss: Callable[[nn.Module], Tensor], number: int, optimizer: torch.optim.Optimizer) -> float:
    def whole() -> Tensor:
        total, more = loss(stage.model), stage.loss()
        return total if more is None else total + more

    told = step(stage.model, optimizer, whole)
    stage.after_step(number)
    return told


def _told(watch: Watch | None, before: int, epochs: int) -> Watch | None:
    """Epochs are counted on over stages."""
    return None if watch is None else lambda epoch: watch(replace(epoch, number=epoch.number + before, of=epochs))


def schedule(model: nn.Module, spec: LayeredSpec, number: int) -> None:
    """Up to a share `settle` of the epochs removed weights may come back, later only more are removed; edges are always decided
    from scratch, as the authors do (docs/adr/0023)."""
    set_schedule(model, "monotone-weights" if spec.pruning.settles(number, spec.recipe.epochs) else "regrow")


def is_ready(spec: LayeredSpec, number: int) -> bool:
    """Whether an epoch's weights are as sparse as asked for."""
    return spec.pruning.reached(number, spec.recipe.epochs)


def features(data: Dataset, *, sparse: bool = True) -> Tensor:
    """x as float32, dense unless nearly all of it is zero."""
    check_finite(data.name, data.x)
    if sparse and hasattr(data.x, "toarray") and data.x.nnz <= _SPARSE * data.num_nodes * data.num_features:
        starts, columns, values = (
            torch.from_numpy(part.astype(kind)) for part, kind in
            ((data.x.indptr, np.int64), (data.x.indices, np.int64), (data.x.data, np.float32))
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls its CSR tensors beta
            return torch.sparse_csr_tensor(starts, columns, values, size=data.x.shape, check_invariants=True)
    return dense_rows(data.x)


def trace_of(model: nn.Module) -> ModelTrace:
    """Of the model's last pass; a threshold that keeps nothing is not a number that a file takes."""
    found = trace(model)
    hops = tuple(replace(hop, threshold=None) if hop.threshold == float("inf") else hop for hop in found.hops)
    return replace(found, hops=hops)


def mean_trace(traces: Sequence[ModelTrace]) -> ModelTrace:
    """What the judged passes of several seeds kept, counts rounded: thresholds keep more in one than in another."""
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
