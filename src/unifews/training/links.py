"""Link prediction: some of the edges are hidden, and a model classifies pairs of nodes as edges or not."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unifews.core.graph import Graph
from unifews.errors import InputError
from unifews.nn.networks import LinkPredictor
from unifews.training.layered import LayeredTraining
from unifews.training.loop import Watch, seeded
from unifews.training.metrics import evaluate
from unifews.training.result import Fitted

VAL, TEST = 0.05, 0.1
_MAX_DRAWS = 100  # of pairs, until enough have no edge


@dataclass(frozen=True)
class LinkSplit:
    """Pairs i < j, int64 [2, k]: those with an edge, and as many without one.

    Validation sees the graph of the training edges, test that of training and validation edges, as in PyG's RandomLinkSplit.
    """

    train: Tensor
    val: Tensor
    test: Tensor
    train_without: Tensor
    val_without: Tensor
    test_without: Tensor

    @classmethod
    def of(cls, graph: Graph, seed: int) -> LinkSplit:
        """5 % of the undirected edges for validation, 10 % for test."""
        rng = np.random.default_rng(seed)
        edges = graph.to_edge_index()
        pairs = edges[:, edges[0] < edges[1]]
        pairs = pairs[:, rng.permutation(pairs.shape[1])]
        val, test = int(VAL * pairs.shape[1]), int(TEST * pairs.shape[1])
        parts = [pairs[:, val + test :], pairs[:, :val], pairs[:, val : val + test]]
        taken = np.sort(_keys(pairs, graph.num_nodes))
        without = [_without_edge(taken, graph.num_nodes, part.shape[1], rng) for part in parts]
        return cls(*(torch.from_numpy(np.ascontiguousarray(part)) for part in (*parts, *without)))


def check_links(name: str, graph: Graph) -> None:
    """Links of this graph can be predicted."""
    if graph.is_weighted:
        raise InputError(f"the edges of {name} have weights, and a pair without an edge has none; drop the weights.")
    if not graph.is_symmetric:
        raise InputError(f"{name} is directed, and links are predicted both ways; take graph.undirected() first.")
    edges, nodes = graph.num_edges // 2, graph.num_nodes
    if int(VAL * edges) < 1:
        raise InputError(f"{name} has {edges} edges; links need at least {round(1 / VAL)} to hide some of them.")
    if 4 * edges > nodes * (nodes - 1):
        raise InputError(f"{name} has an edge between most of its pairs of nodes; too few without one are left to sample.")


class LinkTraining(LayeredTraining):
    """A dataset whose edges carry the messages and are the labels."""

    @property
    def metric(self) -> str:
        return "auc"

    def fit(self, number: int, seed: int, watch: Watch | None) -> tuple[Fitted, nn.Module]:
        """Train and evaluate; the model's trace is that of the pass that the test score comes from."""
        began = perf_counter()
        recipe, n = self.spec.recipe, self.data.num_nodes
        split = LinkSplit.of(self.data.graph, seed)
        seen, later = both_ways(split.train), both_ways(torch.cat([split.train, split.val], 1))
        taken = np.sort(_keys(split.train.numpy(), n))

        def predictor(encoder: nn.Module) -> LinkPredictor:
            """The encoder is pruned; the decoder is not."""
            with seeded(seed):
                return LinkPredictor(encoder, recipe.width, recipe.dropout)

        def loss(model: nn.Module, number: int) -> Tensor:
            rng = np.random.default_rng([seed, number])
            fresh = torch.from_numpy(_without_edge(taken, n, split.train.shape[1], rng))
            return _loss(*self.logits(model, seen, split.train, fresh))

        def validate(model: nn.Module) -> tuple[float, float]:
            logits, labels = self.evaluated_pairs(model, seen, split.val, split.val_without)
            return _auc(logits, labels), float(_loss(logits, labels))

        best, epochs, model = self.train_stages(self.model(recipe.width, seed), seed, loss, validate, watch, predictor)
        parts = (
            (seen, split.train, split.train_without),
            (seen, split.val, split.val_without),
            (later, split.test, split.test_without),
        )
        at = [_auc(*self.evaluated_pairs(model, *part)) for part in parts]
        return Fitted(at[0], at[1], at[2], best, epochs, perf_counter() - began), model

    def logits(self, model: nn.Module, edges: Tensor, pairs: Tensor, without: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of pairs with and without an edge, and their labels."""
        assert isinstance(model, LinkPredictor)
        labels = torch.cat([torch.ones(pairs.shape[1]), torch.zeros(without.shape[1])])
        return model.decode(model.encoder(self.x, edges), torch.cat([pairs, without], 1)), labels

    @torch.no_grad()
    def evaluated_pairs(self, model: nn.Module, edges: Tensor, pairs: Tensor, without: Tensor) -> tuple[Tensor, Tensor]:
        model.eval()
        return self.logits(model, edges, pairs, without)


def both_ways(pairs: Tensor) -> Tensor:
    """edge_index of undirected pairs."""
    return torch.cat([pairs, pairs.flip(0)], 1)


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(logits, labels)


def _auc(logits: Tensor, labels: Tensor) -> float:
    return evaluate("auc", logits[:, None].numpy(), labels[:, None].numpy())


def _keys(pairs: NDArray[np.int64], nodes: int) -> NDArray[np.int64]:
    keys: NDArray[np.int64] = pairs[0] * nodes + pairs[1]
    return keys


def _without_edge(taken: NDArray[np.int64], nodes: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Random pairs i < j, int64 [2, count], whose keys are not among the sorted `taken`."""
    found = np.empty((2, 0), dtype=np.int64)
    for _ in range(_MAX_DRAWS):
        if found.shape[1] >= count:
            break
        drawn = np.sort(rng.integers(0, nodes, (2, 2 * count + 8)), axis=0)
        keys = _keys(drawn, nodes)
        at = np.searchsorted(taken, keys)
        new = (drawn[0] != drawn[1]) & (taken[np.minimum(at, len(taken) - 1)] != keys)
        found = np.concatenate([found, drawn[:, new]], axis=1)
    return found[:, :count]
