"""GEBT: which entries training would remove is known early; search until the masks no longer change, then train what is kept.

The search trains the weights, of which the smallest are zeroed after every step (they may come back), and a factor a for every
undirected edge, which ADMM pulls towards having as many zeros as requested:

    loss + ρ·mean((a + U - Z)²),    Z ← prune(a + U),    U ← U + a - Z.

After every epoch the masks that pruning by magnitude would give, of weights and of edges, are compared with those of the last
three: the largest Hamming distance, relative to the largest so far. Once the mean of both is small enough, the ticket is
drawn, and the remaining epochs train it.

Differences from the authors' code: vectors over edges, O(m), not a dozen n × n matrices; the proximal term is a mean over
edges, not over all pairs of nodes; one backward pass for weights and edges; edges are ranked by magnitude, so that one of a
negative factor is not removed unseen; distances are relative to the largest, where theirs are relative to the first, which may
be small by chance; the last training starts from the weights of the ticket, which they do not load.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unifews.core.config import option
from unifews.errors import InputError
from unifews.methods.base import Stage, Trainer, TrainingTask
from unifews.methods.registry import method
from unifews.methods.selection import keep_largest, missed, noisy_ones, num_kept, undirected_edges

if TYPE_CHECKING:
    from torch import Tensor

    from unifews.nn.masked import MaskedModel

_LOOKBACK = 3
_MIN_EPOCHS = 6  # before a ticket can be drawn


@method(
    "gebt",
    prunes=("edges", "weights"),
    backbones=("gcn", "gcnii"),
    paper="You et al., Early-Bird GCNs: Graph-Network Co-Optimization towards More Efficient GCN Training, AAAI 2022",
)
@dataclass(frozen=True)
class Gebt(Trainer):
    """Defaults chosen by validation (docs/adr/0017)."""

    distance: float = option(0.1, "distance of masks at which the ticket is drawn", ge=0)
    search: float = option(0.5, "fraction of the epochs after which it is drawn in any case", gt=0, le=0.95)
    edge_lr: float = option(1e-3, "learning rate of edge factors", gt=0)
    rho: float = option(1e-3, "weight ρ of the proximal term", ge=0)

    def stages(self, task: TrainingTask) -> Iterator[Stage]:
        """Sparsities are met to the undirected edge."""
        if task.epochs < 2:
            raise InputError(f"method 'gebt' searches, then trains; give epochs=2 or more instead of {task.epochs}.")
        search = _TicketSearch(task, self)
        yield search
        late = f"gebt: masks still changed after {search.done} epochs; the ticket was drawn then"
        found = task.masked(*[late] * (not search.drawn))
        search.draw(found)
        yield Stage(found, task.epochs - search.done)


class _TicketSearch(Stage):
    """Weights and edges are trained together until the masks no longer change."""

    model: MaskedModel

    def __init__(self, task: TrainingTask, gebt: Gebt) -> None:
        import torch

        super().__init__(task.masked(), max(1, int(gebt.search * task.epochs)))
        self.task, self.gebt, self.done, self.drawn = task, gebt, 0, False
        sender, receiver = (ends.numpy() for ends in self.model.ends)
        group, ends = undirected_edges(sender, receiver, int(self.model.nodes))
        self.group = torch.from_numpy(group)
        self.distances = [_MaskDistance() for sparsity in (task.edges, task.weights) if sparsity]
        if task.edges:
            first = noisy_ones(task.generator(17), ends.shape[1:])
            self.z, self.u = first.clone(), torch.zeros_like(first)
            self.model.set_factors(first.requires_grad_(), learnt=False, group=self.group)
            self.optimizer = torch.optim.Adam([self.factors], lr=gebt.edge_lr)

    @property
    def factors(self) -> Tensor:
        assert self.model.raw is not None
        return self.model.raw

    def penalty(self) -> Tensor | None:
        if not self.task.edges:
            return None
        proximal: Tensor = self.gebt.rho * (self.factors + self.u - self.z).square().mean()
        return proximal

    def after_step(self, step: int) -> None:
        import torch

        if self.task.edges:
            self.optimizer.step()
            self.optimizer.zero_grad()
            with torch.no_grad():
                target = self.factors + self.u
                self.z = torch.where(self._edge_mask(target), target, 0.0)
                self.u = target - self.z
        if self.task.weights:
            for weight, keep in zip(self.model.weights, self._weight_masks(), strict=True):
                weight.matrix.data.mul_(keep)

    def after_epoch(self, epoch: int, val: float) -> bool:
        self.done = epoch + 1
        masks = [[self._edge_mask(self.factors)]] if self.task.edges else []
        masks += [self._weight_masks()] if self.task.weights else []
        distances = [distance(now) for distance, now in zip(self.distances, masks, strict=True)]
        self.drawn = self.done > _MIN_EPOCHS and sum(distances) / len(distances) < self.gebt.distance
        return self.drawn

    def counts(self, epoch: int) -> bool:
        """The weights of the ticket are those of the epoch that it is drawn in."""
        return self.drawn or self.done == self.epochs

    def draw(self, found: MaskedModel) -> None:
        """Copy weights and masks to a model."""
        found.model.load_state_dict(self.model.model.state_dict())
        if self.task.edges:
            found.keep.copy_(self._edge_mask(self.factors)[self.group])
            why, achieved = "both directions of an edge are removed together", 1 - float(found.keep.double().mean())
            found.notes = (*found.notes, *missed(self.task.card, self.task.edges, achieved, why))
        if self.task.weights:
            found.keep_weights(self._weight_masks())

    def _edge_mask(self, factors: Tensor) -> Tensor:
        """Undirected edges by magnitude."""
        from unifews.nn.linear import largest

        return largest(factors.detach().abs(), num_kept(len(factors), self.task.edges))

    def _weight_masks(self) -> list[Tensor]:
        """Weights by magnitude, over all layers."""
        return keep_largest([weight.matrix.abs() for weight in self.model.weights], self.task.weights)


class _MaskDistance:
    """How much masks have changed over the last epochs."""

    def __init__(self) -> None:
        self.before: deque[list[Tensor]] = deque(maxlen=_LOOKBACK)
        self.unit = 0.0

    def __call__(self, now: list[Tensor]) -> float:
        """Summed over parts, the largest Hamming distance to the last masks, relative to the largest so far."""
        found = float(sum(max(int((a != b[i]).sum()) for b in self.before) for i, a in enumerate(now))) if self.before else 0.0
        self.before.append(now)
        self.unit = max(self.unit, found)
        return found / self.unit if self.unit else 0.0
