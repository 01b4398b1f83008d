"""Link prediction: some of the edges are hidden, and a model tells them from pairs that have none."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unifews.core.graph import Graph
from unifews.errors import InputError
from unifews.nn.networks import LinkPredictor
from unifews.training.layered import OnGraph, is_ready, schedule, step
from unifews.training.loop import Watch, climb, seeded
from unifews.training.metrics import judge
from unifews.training.result import Fitted

VAL, TEST = 0.05, 0.1
_ROUNDS = 100  # of drawing pairs until enough have no edge


@dataclass(frozen=True)
class LinkSplit:
    """Pairs i < j, int64 [2, k]: those with an edge, and to judge by as many without one.

    Val is judged by the graph of the training edges, test by that of training and val edges, as PyG's RandomLinkSplit does.
    """

    train: Tensor
    val: Tensor
    test: Tensor
    train_without: Tensor
    val_without: Tensor
    test_without: Tensor

    @classmethod
    def of(cls, graph: Graph, seed: int) -> LinkSplit:
        """5 % of the undirected edges to choose by, 10 % to judge by."""
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
    """Edges can be hidden and told from pairs that have none."""
    if graph.is_weighted:
        raise InputError(f"the edges of {name} have weights, and a pair without an edge has none; train links unweighted.")
    if not graph.is_symmetric:
        raise InputError(f"{name} is directed, and links are predicted both ways; take graph.undirected() first.")
    edges, nodes = graph.num_edges // 2, graph.num_nodes
    if int(VAL * edges) < 1:
        raise InputError(f"{name} has {edges} edges; links need at least {round(1 / VAL)} to hide some of them.")
    if 4 * edges > nodes * (nodes - 1):
        raise InputError(f"{name} has an edge between most of its pairs of nodes; there are too few without one to learn by.")


class OnLinks(OnGraph):
    """A dataset whose edges are both what is sent along and what is asked for."""

    @property
    def metric(self) -> str:
        return "auc"

    def model(self, outputs: int, seed: int) -> nn.Module:
        """The encoder prunes itself; the decoder is left whole."""
        recipe = self.spec.recipe
        encoder = super().model(recipe.width, seed)
        with seeded(seed):
            return LinkPredictor(encoder, recipe.width, recipe.dropout)

    def fit(self, number: int, seed: int, watch: Watch | None) -> tuple[Fitted, nn.Module]:
        """Train and judge; the model's trace is that of the pass that the test score comes from."""
        began = perf_counter()
        spec, n = self.spec, self.data.num_nodes
        split = LinkSplit.of(self.data.graph, seed)
        model = self.model(0, seed)
        assert isinstance(model, LinkPredictor)
        seen, later = both_ways(split.train), both_ways(torch.cat([split.train, split.val], 1))
        taken = np.sort(_keys(split.train.numpy(), n))

        def learn(number: int, optimizer: torch.optim.Optimizer) -> float:
            schedule(model, spec, number)
            rng = np.random.default_rng([seed, number])
            fresh = torch.from_numpy(_without_edge(taken, n, split.train.shape[1], rng))
            return step(model, optimizer, lambda: _loss(*_asked(model, model.encoder(self.x, seen), split.train, fresh)))

        def look() -> tuple[float, float]:
            logits, there = self.told(model, seen, split.val, split.val_without)
            return _auc(logits, there), float(_loss(logits, there))

        ready = partial(is_ready, spec)  # scores fall while weights go, and a rate lowered then would not bring them back
        with seeded(seed):
            best, epochs = climb(model, spec.recipe, learn, look, counts=ready, lowers=ready, watch=watch)
        asked = (
            (seen, split.train, split.train_without), (seen, split.val, split.val_without),
            (later, split.test, split.test_without),
        )  # fmt: skip
        at = [_auc(*self.told(model, edges, pairs, without)) for edges, pairs, without in asked]
        return Fitted(at[0], at[1], at[2], best, epochs, perf_counter() - began), model

    @torch.no_grad()
    def told(self, model: LinkPredictor, edges: Tensor, pairs: Tensor, without: Tensor) -> tuple[Tensor, Tensor]:
        model.eval()
        return _asked(model, model.encoder(self.x, edges), pairs, without)


def both_ways(pairs: Tensor) -> Tensor:
    """edge_index of undirected pairs."""
    return torch.cat([pairs, pairs.flip(0)], 1)


def _asked(model: LinkPredictor, z: Tensor, pairs: Tensor, without: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of pairs with and without an edge, and which is which."""
    there = torch.cat([torch.ones(pairs.shape[1]), torch.zeros(without.shape[1])])
    return model.decode(z, torch.cat([pairs, without], 1)), there


def _loss(logits: Tensor, there: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(logits, there)


def _auc(logits: Tensor, there: Tensor) -> float:
    return judge("auc", logits[:, None].numpy(), there[:, None].numpy())


def _keys(pairs: NDArray[np.int64], nodes: int) -> NDArray[np.int64]:
    keys: NDArray[np.int64] = pairs[0] * nodes + pairs[1]
    return keys


def _without_edge(taken: NDArray[np.int64], nodes: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Random pairs i < j, int64 [2, count], whose keys are not among the sorted `taken`."""
    found = np.empty((2, 0), dtype=np.int64)
    for _ in range(_ROUNDS):
        if found.shape[1] >= count:
            break
        drawn = np.sort(rng.integers(0, nodes, (2, 2 * count + 8)), axis=0)
        keys = _keys(drawn, nodes)
        at = np.searchsorted(taken, keys)
        new = (drawn[0] != drawn[1]) & (taken[np.minimum(at, len(taken) - 1)] != keys)
        found = np.concatenate([found, drawn[:, new]], axis=1)
    return found[:, :count]
