"""The contracts of a method: `EdgeSelector`, `Propagator`, `Rewirer` and `Trainer`.

A method is a frozen dataclass under ``@method`` (`unifews.methods.registry`) whose fields are its settings. It subclasses the
contracts that it fulfils, as `unifews` does with two of them. Adding one is adding one file: to this folder, or to a package
that names its class under the entry point ``unifews.methods``. `train`, `compare` and the command line then find it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from unifews.core.checks import check_sparsity, check_threshold
from unifews.core.config import validate
from unifews.core.diffusion import Diffusion
from unifews.core.graph import Graph
from unifews.core.schemes import Appnp, Scheme, Sgc, resolve
from unifews.core.trace import Trace
from unifews.errors import GraphError, InputError, unknown_name
from unifews.methods.registry import Card
from unifews.propagation.features import FeatureMatrix, Floats
from unifews.propagation.result import Propagated
from unifews.resources import Progress

if TYPE_CHECKING:
    from torch import Tensor, nn

    from unifews.nn.masked import MaskedModel


# ---------------------------------------------------------------------------------------------------------- propagated once


@dataclass(frozen=True)
class PropagationTask:
    """A request to propagate features x [n, f] over a graph."""

    graph: Graph
    x: Any
    scheme: Scheme
    hops: int
    r: float
    edge_sparsity: float | None
    threshold: float | None
    """In the method's own units."""
    seed: int
    progress: Progress | None
    options: Mapping[str, Any]
    """Settings of `train` that only this method has (`Card.once`)."""

    @classmethod
    def of(
        cls,
        method: Propagator,
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
        **options: Any,
    ) -> PropagationTask:
        """The request, once the method has accepted it. Default of `r`: the method's own, else 0.5."""
        card = method.card
        if not isinstance(graph, Graph):
            raise GraphError(
                f"`graph` is a {type(graph).__name__}; build one with Graph.from_edge_index(...) or Graph.from_pyg(...)."
            )
        for name in options:
            if name not in card.once:
                raise unknown_name(f"option of method {card.name!r}", name, card.once)
        if edge_sparsity is not None and threshold is not None:
            raise InputError("give one of `edge_sparsity` (a fraction to remove) and `threshold` (the method's own); got both.")
        if edge_sparsity is not None:
            edge_sparsity = check_sparsity("edge_sparsity", edge_sparsity)
        if threshold is not None:
            threshold = check_threshold("threshold", threshold)
        scheme, hops = resolve(scheme, hops)
        r = float(card.defaults.get("r", 0.5)) if r is None else r
        task = cls(graph, x, scheme, hops, r, edge_sparsity, threshold, seed, progress, options)
        method.check_propagation(task)
        return task

    @cached_property
    def features(self) -> FeatureMatrix:
        return FeatureMatrix(self.x, self.graph.num_nodes)

    @cached_property
    def diffusion(self) -> Diffusion:
        return Diffusion(self.graph, self.r)

    @property
    def alpha(self) -> float | None:
        """Teleport probability of APPNP; None for SGC."""
        return self.scheme.alpha if isinstance(self.scheme, Appnp) else None

    @property
    def dense_macs(self) -> int:
        """Multiply-adds of one unpruned hop."""
        return self.graph.num_edges * self.features.f

    @property
    def requested(self) -> str:
        """For the trace."""
        if self.edge_sparsity is not None:
            return f"edge_sparsity={self.edge_sparsity:g}"
        return "its own settings" if self.threshold is None else f"threshold={self.threshold:g}"

    def result(self, values: Floats, trace: Trace) -> Propagated:
        """The embedding as numpy or torch, whichever the features were."""
        features = self.features

        def to_caller(array: Floats) -> Any:
            if not features.is_torch:
                return array
            import torch

            return torch.from_numpy(array).to(features.device)

        return Propagated(values, None, trace, features.exponent, None, to_caller)


class Method:
    """What all contracts share."""

    card: ClassVar[Card]
    """Set by ``@method``."""

    def __post_init__(self) -> None:
        validate(self)


class Propagator(Method):
    """A method that propagates features once; a head is then trained on the embedding.

    To add one, implement `propagate` and list ``"sgc"`` and/or ``"appnp"`` among the backbones::

        @method("half", prunes=("edges",), backbones=("sgc",), paper="...")
        @dataclass(frozen=True)
        class Half(Propagator):
            strength: float = option(1.0, "what it does", ge=0)          # of unifews.core.config

            def propagate(self, task):
                values = ...                                  # float32 [n, f], from task.features and task.diffusion
                hops = [HopTrace(...) for _ in range(task.hops)]
                return task.result(values, Trace(tuple(hops), task.requested))

    Called as ``propagate_by(Half(), graph, x, "sgc", hops)`` or ``unifews.train(data, "sgc", "half")``.
    """

    undirected: ClassVar[bool] = False
    """Whether it needs an undirected graph."""
    unweighted: ClassVar[bool] = False
    """Whether it cannot use edge weights."""
    random: ClassVar[bool] = True
    """Whether the embedding depends on the seed."""

    def propagate(self, task: PropagationTask) -> Propagated:
        """The embedding and its trace.

        `task.edge_sparsity` is met within 0.01, or a note of the trace states the difference and the reason (`missed`); a
        sparsity that can never be met raises `InputError`. `task.threshold` replaces the method's own threshold; with neither,
        the settings decide. The skip connection is the method's own. The trace has `task.hops` hops; `kept` counts the products
        of different nodes, once each, zero features included. The same seed gives the same bits.
        """
        raise NotImplementedError(f"{type(self).__name__} is a Propagator without `propagate(task)`.")

    def check_propagation(self, task: PropagationTask) -> None:
        """Refuse a task that the method cannot do, naming a method that can."""
        scheme, name = task.scheme, self.card.name
        model = "sgc" if isinstance(scheme, Sgc) else "appnp" if isinstance(scheme, Appnp) else str(scheme)
        self.card.check(model)
        if isinstance(scheme, Appnp) and not scheme.tail:
            raise InputError(f"method {name!r} computes APPNP with its tail; leave out tail=False, or take method='unifews'.")
        if self.undirected and not task.graph.is_symmetric:
            raise GraphError(f"method {name!r} needs an undirected graph; take graph.undirected(), or method='unifews'.")
        if self.unweighted and task.graph.is_weighted:
            raise GraphError(f"method {name!r} cannot use edge weights; drop them, or take method='unifews'.")

    def call(self, task: PropagationTask) -> tuple[Callable[..., Propagated], dict[str, Any]]:
        """A function and its keyword arguments by which a trained model propagates: ``function(graph, x, **how)``."""
        names = ("scheme", "hops", "r", "edge_sparsity", "threshold", "seed")
        return partial(propagate_by, self), {name: getattr(task, name) for name in names} | dict(task.options)


def propagate_by(method: Propagator, graph: Graph, x: Any, *args: Any, **keywords: Any) -> Propagated:
    """Propagate features x [n, f] by a method; arguments as of `PropagationTask.of`."""
    return method.propagate(PropagationTask.of(method, graph, x, *args, **keywords))


# ------------------------------------------------------------------------------------------------------------- in training


class GraphTensors(Protocol):
    """The graph that a model is trained on. A method sees labels through the loss only."""

    x: Tensor
    edge_index: Tensor
    edge_weight: Tensor | None


class WeightSchedule(Protocol):
    """When weights are pruned, in a training of so many epochs (`unifews.training.recipe.WeightPruning`)."""

    feedback: bool
    """Whether removed weights are still trained while they may come back."""

    def ramp_within(self, epochs: int) -> int:
        """Epochs until the sparsity is reached."""

    def reached(self, epoch: int, epochs: int) -> bool:
        """Whether the weights of this epoch are as sparse as requested."""

    def settles(self, epoch: int, epochs: int) -> bool:
        """Whether weights removed in this epoch stay removed."""


@dataclass(frozen=True)
class TrainingTask:
    """A request to train a model whose layers propagate."""

    card: Card
    model: nn.Module
    data: GraphTensors
    edge_sparsity: float | None = None
    weight_sparsity: float | None = None
    edge_threshold: float | None = None
    weight_threshold: float | None = None
    epochs: int = 200
    """Of all stages together: those of a search count."""
    seed: int = 42
    schedule: WeightSchedule | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `train` that only this method has (`Card.layers`)."""

    @classmethod
    def of(cls, method: Trainer, model: nn.Module, data: GraphTensors, **wanted: Any) -> TrainingTask:
        """The request, once the method has accepted it."""
        task = cls(method.card, model, data, **wanted)
        method.check_training(task)
        return task

    @property
    def edges(self) -> float:
        """Fraction of the edges to remove; 0 = none."""
        return self.edge_sparsity or 0.0

    @property
    def weights(self) -> float:
        """Fraction of the weights to remove; 0 = none."""
        return self.weight_sparsity or 0.0

    def masked(self, *notes: str) -> MaskedModel:
        """A copy of the model with masks on edges and weights that keep everything."""
        from unifews.nn.masked import MaskedModel

        sides = (("edge", self.edges), ("weight", self.weights))
        amounts = ", ".join(f"{side}_sparsity={sparsity:g}" for side, sparsity in sides if sparsity)
        return MaskedModel(self.model, self.data.edge_index, self.data.x.shape[0], f"{amounts} ({self.card.name})", notes)

    def generator(self, purpose: int) -> np.random.Generator:
        """Random numbers of a method, independent of those of splits, initial weights and dropout, which have the same seed."""
        return np.random.default_rng([self.seed, purpose])


class Stage:
    """One training of `model` over `epochs`, which ends at its best epoch. The hooks do nothing unless overridden."""

    def __init__(self, model: nn.Module, epochs: int) -> None:
        self.model, self.epochs = model, epochs

    def penalty(self) -> Tensor | None:
        """What is added to the loss of a step: a penalty on masks (GLT), the proximal term of ADMM (GEBT)."""
        return None

    def before_step(self, step: int) -> None:
        """Before each step of the optimizer, numbered from 0: sets what may be pruned in it (Unifews)."""

    def after_step(self, step: int) -> None:
        """After each step of the optimizer: applies masks to weights (CGP)."""

    def after_epoch(self, epoch: int, val: float) -> bool:
        """After each epoch with its validation score; True ends the stage early (GEBT)."""
        return False

    def counts(self, epoch: int) -> bool:
        """Whether this epoch may be the best one: it is as sparse as requested."""
        return True


class Trainer(Method):
    """A method that takes part in the training of a model whose layers propagate.

    To add one, implement `stages` and list the models among the backbones::

        @method("magnitude", prunes=("weights",), backbones=("gcn",), paper="...")
        @dataclass(frozen=True)
        class Magnitude(Trainer):
            def stages(self, task):
                model = task.masked()
                model.keep_weights(keep_largest([weight.matrix.abs() for weight in model.weights], task.weights))
                yield Stage(model, task.epochs)               # override hooks of Stage to act between the steps

    Called as ``unifews.train(data, "gcn", "magnitude", weight_sparsity=0.5)``.
    """

    def stages(self, task: TrainingTask) -> Iterator[Stage]:
        """The trainings to carry out, one after another; the model of the last one is evaluated and is the result.

        The next stage is requested when the one before is over, so it may start from its result (GLT: rewound weights under
        smaller masks). `task.model` is left unchanged. The model of the last stage applies its masks in later calls, keeps
        self-loops, and `unifews.trace` reports what it keeps.
        """
        raise NotImplementedError(f"{type(self).__name__} is a Trainer without `stages(task)`.")

    def check_training(self, task: TrainingTask) -> None:
        """Refuse a task that the method cannot do."""
        card, index = self.card, task.data.edge_index
        check_sparsity("edge_sparsity", task.edges)
        check_sparsity("weight_sparsity", task.weights)
        if task.weights and "weights" not in card.prunes:
            raise InputError(f"method {card.name!r} removes no weights; leave weight_sparsity out, or take method='random'.")
        if not (task.edges or task.weights):
            options = " or ".join(f"{side}_sparsity" for side in ("edge", "weight") if f"{side}s" in card.prunes)
            raise InputError(f"method {card.name!r} needs an amount to remove; give {options}, such as 0.5.")
        if index.ndim != 2 or index.shape[0] != 2:
            raise GraphError(f"`edge_index` has shape {list(index.shape)}; expected [2, edges], senders and receivers.")
        if task.edges and not bool((index[0] != index[1]).any()):
            raise InputError("the graph has no edges between different nodes, so none can be removed; leave edge_sparsity out.")


# -------------------------------------------------------------------------------------------------- edges of a graph, once


@dataclass(frozen=True)
class EdgeSelection:
    """Which edges of a graph are kept, in the order of its rows."""

    keep: NDArray[np.bool_]
    """bool [m]."""
    factor: NDArray[np.float32] | None = None
    """Factors of the messages along the edges, float32 [m]; None = 1."""
    notes: tuple[str, ...] = ()
    """Where the sparsity could not be met."""


class EdgeSelector(Trainer):
    """A method that chooses edges of a graph once, before training; one set of edges for all layers.

    To add one, implement `select`; `stages` follows from it::

        @method("first", prunes=("edges",), backbones=("gcn", "sage"), paper="...")
        @dataclass(frozen=True)
        class First(EdgeSelector):
            def select(self, graph, *, x=None, sparsity=None, keep=None, rng):
                keep = np.arange(graph.num_edges) < num_kept(graph.num_edges, amount(graph, sparsity, keep))
                return EdgeSelection(keep)
    """

    stream: ClassVar[int] = 0
    """Which random numbers of the seed it draws (`TrainingTask.generator`)."""

    def select(
        self,
        graph: Graph,
        *,
        x: Any = None,
        sparsity: float | None = None,
        keep: int | None = None,
        rng: np.random.Generator,
    ) -> EdgeSelection:
        """The edges that are kept, by the fraction to remove or by the number to keep; x [n, f] where the choice needs it."""
        raise NotImplementedError(f"{type(self).__name__} is an EdgeSelector without `select(graph, ...)`.")

    def mask_weights(self, model: MaskedModel, sparsity: float, rng: np.random.Generator) -> None:
        """Choose weights too, for a method that prunes them."""
        raise NotImplementedError(f"{type(self).__name__} prunes weights without `mask_weights(model, sparsity, rng)`.")

    def stages(self, task: TrainingTask) -> Iterator[Stage]:
        """Train on the chosen edges. GCN and GCNII normalise with the factors, GIN sums with them, attention is multiplied."""
        import torch

        model, rng = task.masked(), task.generator(self.stream)
        found = self.select(model.graph, x=task.data.x, sparsity=task.edges, rng=rng)
        model.keep.copy_(torch.from_numpy(found.keep))
        model.notes = found.notes
        if found.factor is not None and any(getattr(module, "aggr", None) == "mean" for module in model.modules()):
            note = f"{self.card.name}: a mean over neighbours cannot use the factors of sampled edges, so they are left out"
            model.notes = (note, *model.notes)
        elif found.factor is not None:
            model.set_factors(torch.from_numpy(found.factor), learnt=False)
        if task.weights:
            self.mask_weights(model, task.weights, rng)
        yield Stage(model, task.epochs)


class Rewirer(Method):
    """A method that makes a new graph of the same nodes, with weights of its own; used by `unifews.thin`."""

    def rewire(
        self,
        graph: Graph,
        *,
        sparsity: float | None = None,
        keep: int | None = None,
        rng: np.random.Generator,
        progress: Progress | None = None,
    ) -> Any:
        """A float32 scipy CSR array [n, n], targets by sources, self-loops included if it has them."""
        raise NotImplementedError(f"{type(self).__name__} is a Rewirer without `rewire(graph, ...)`.")
