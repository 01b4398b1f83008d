"""What every decoupled method does first and last: check what it was given, and hand over values with their trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from unifews.core.checks import check_sparsity, check_threshold
from unifews.core.diffusion import Diffusion
from unifews.core.graph import Graph
from unifews.core.schemes import Appnp, Scheme, Sgc, resolve
from unifews.core.trace import Trace
from unifews.errors import GraphError, InputError
from unifews.methods.registry import Card
from unifews.propagation.features import FeatureMatrix, Floats
from unifews.propagation.result import Propagated
from unifews.resources import Progress

CLOSE = 0.01
"""How near a share asked for counts as met."""


@dataclass(frozen=True)
class Job:
    """A checked call of `propagate`."""

    features: FeatureMatrix
    diffusion: Diffusion
    alpha: float | None
    """Of APPNP; None = SGC."""
    hops: int
    edge_sparsity: float | None
    threshold: float | None
    seed: int
    progress: Progress | None

    @property
    def graph(self) -> Graph:
        return self.diffusion.graph

    @property
    def dense_macs(self) -> int:
        """Of one unpruned hop."""
        return self.graph.num_edges * self.features.f

    @property
    def requested(self) -> str:
        """In words, as `propagate` has it."""
        if self.edge_sparsity is not None:
            return f"edge_sparsity={self.edge_sparsity:g}"
        return "its own settings" if self.threshold is None else f"threshold={self.threshold:g}"

    def done(self, values: Floats, trace: Trace) -> Propagated:
        """The result, as numpy or torch, whichever the features were."""
        features = self.features

        def to_caller(array: Floats) -> Any:
            if not features.is_torch:
                return array
            import torch

            return torch.from_numpy(array).to(features.device)

        return Propagated(values, None, trace, features.exponent, None, to_caller)


class Propagates:
    """A decoupled method: `propagate` as the contract has it, checked here once; the method itself is `run`."""

    card: ClassVar[Card]
    undirected: ClassVar[bool] = False
    """Whether it needs an undirected graph."""
    unweighted: ClassVar[bool] = False
    """Whether it knows no edge weights."""

    def propagate(
        self,
        graph: Graph,
        x: Any,
        scheme: str | Scheme = "sgc",
        hops: int | None = None,
        r: float | None = None,
        *,
        edge_sparsity: float | None = None,
        threshold: float | None = None,
        seed: int = 42,
        progress: Progress | None = None,
    ) -> Propagated:
        """See `Decoupled`; r is the method's own unless given. What it cannot do is told with a method that can."""
        card = self.card
        if not isinstance(graph, Graph):
            raise GraphError(
                f"`graph` is a {type(graph).__name__}; build one with Graph.from_edge_index(...) or Graph.from_pyg(...)."
            )
        scheme, hops = resolve(scheme, hops)
        model = "sgc" if isinstance(scheme, Sgc) else "appnp" if isinstance(scheme, Appnp) else str(scheme)
        card.check(model, weights=False)
        if isinstance(scheme, Appnp) and not scheme.tail:
            raise InputError(f"method {card.name!r} has APPNP with its tail; leave out tail=False, or take method='unifews'.")
        if self.undirected and not graph.is_symmetric:
            raise GraphError(f"method {card.name!r} needs an undirected graph; take graph.undirected(), or method='unifews'.")
        if self.unweighted and graph.is_weighted:
            raise GraphError(f"method {card.name!r} knows no edge weights; drop them, or take method='unifews'.")
        if edge_sparsity is not None and threshold is not None:
            raise InputError("give one of `edge_sparsity` (a fraction to remove) and `threshold` (the method's own); got both.")
        if edge_sparsity is not None:
            edge_sparsity = check_sparsity("edge_sparsity", edge_sparsity)
        if threshold is not None:
            threshold = check_threshold("threshold", threshold)
        alpha = scheme.alpha if isinstance(scheme, Appnp) else None
        diffusion = Diffusion(graph, float(card.defaults.get("r", 0.5)) if r is None else r)
        features = FeatureMatrix(x, graph.num_nodes)
        return self.run(Job(features, diffusion, alpha, hops, edge_sparsity, threshold, seed, progress))

    def run(self, job: Job) -> Propagated:
        raise TypeError(f"{type(self).__name__} has no `run`: a decoupled method must say how it propagates.")


def missed(card: Card, asked: float | None, achieved: float, why: str) -> tuple[str, ...]:
    """A note where the share asked for was not met."""
    if asked is None or abs(achieved - asked) <= CLOSE:
        return ()
    return (f"{card.name} removed {achieved:.1%} instead of the {asked:.1%} asked for: {why}",)
