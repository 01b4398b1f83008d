"""What a method has to offer, by kind; it is a frozen dataclass of settings besides (`registry`).

A *decoupled* method propagates features once, before a head is trained on them. An *iterative* one takes part in the training
of a model whose layers propagate. A method may be both, as `unifews` is. `door.Propagates` and `stages.Trains` are these with
every check in place, for methods that have something to say on the rest only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from unifews.core.graph import Graph
from unifews.core.schemes import Scheme
from unifews.methods.registry import Card
from unifews.propagation.result import Propagated
from unifews.resources import Progress

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module



@runtime_checkable
class Decoupled(Protocol):
    """Propagates once."""

    card: ClassVar[Card]

    def propagate(
        self,
        graph: Graph,
        x: Any,
        scheme: str | Scheme = "sgc",
        hops: int | None = None,
        r: float = 0.5,
        *,
        edge_sparsity: float | None = None,
        threshold: float | None = None,
        seed: int = 42,
        progress: Progress | None = None,
    ) -> Propagated:
        """The embedding and what it cost.

        `edge_sparsity` is met within 0.01, or a note of the trace says by how much not and why; what can never be met raises
        `InputError`. `threshold` stands for the method's own threshold; with neither, its settings decide. The skip connection
        is the method's own, whatever the scheme's says. Of the trace: hops as many as asked for, `kept` products of different
        nodes, each of them counted once, zero features included. The same seed gives the same bits.
        """


class Data(Protocol):
    """The graph that a model is trained on, as tensors. A method sees labels through the loss only."""

    x: Tensor
    edge_index: Tensor
    edge_weight: Tensor | None


class Stage(Protocol):
    """One training of a model: `epochs` of them, with what the method does in between. Its best epoch is where it ends."""

    epochs: int

    @property
    def model(self) -> Module:
        """What is trained; its parameters are the optimiser's."""

    def loss(self) -> Tensor | None:
        """What is added to the loss of a step: a penalty on masks (GLT), the pull of ADMM (GEBT)."""

    def after_step(self, step: int) -> None:
        """After every step of the optimiser: masks are put back on weights (CGP)."""

    def after_epoch(self, epoch: int, val: float) -> bool:
        """After every epoch with its validation score; True ends the stage early (GEBT: the ticket is drawn)."""

    def counts(self, epoch: int) -> bool:
        """Whether this epoch may be the best: it is as sparse as asked for."""


@runtime_checkable
class Iterative(Protocol):
    """Takes part in training."""

    card: ClassVar[Card]

    def prepare(
        self,
        model: Module,
        data: Data,
        *,
        edge_sparsity: float | None = None,
        weight_sparsity: float | None = None,
        epochs: int = 200,
        seed: int = 42,
    ) -> Iterator[Stage]:
        """The trainings to carry out, one after another; the model of the last one is judged and is the result.

        Before the first, the method looks at model and data and says what it cannot do. The next stage is asked for when the
        one before is over, so it may start from what that left (GLT: rewound weights under smaller masks). `epochs` are those
        of all stages together ([P]: search stages count). The model given is left as it was; the one of the last stage prunes
        by itself in later calls, self-loops stay, and `unifews.trace` tells what it keeps.
        """
