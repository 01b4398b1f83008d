"""GEBT: what training would remove is known early; search until it no longer changes, then train what is left.

The search trains the weights, of which the smallest are zeroed after every step (they may come back), and a factor a for every
undirected edge, which ADMM pulls towards having as many zeros as asked for:

    loss + ρ·mean((a + U - Z)²),    Z ← prune(a + U),    U ← U + a - Z.

After every epoch the masks that pruning by size would give, of weights and of edges, are compared with those of the last three:
the largest Hamming distance, as a share of the largest so far. Once the mean of both is small enough, the ticket is
drawn, and the epochs that are left train it.

Differences from the authors' code: vectors over edges, O(m), not a dozen n × n matrices; the pull is a mean over edges, not
over all pairs of nodes; one backward pass teaches weights and edges; edges are told by size, so that one of a negative factor
does not vanish unseen; distances are shares of the largest, where theirs are of the first, which may be small by chance; what
is trained last are the weights that the ticket was drawn with, which they forget to load.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unifews.errors import InputError
from unifews.methods.contract import Stage
from unifews.methods.registry import method
from unifews.methods.settings import check_number
from unifews.methods.stages import Asked, Training, Trains, keep_pairs, keep_weights, largest_of, left, near_one, pairs

if TYPE_CHECKING:
    from torch import Tensor

    from unifews.nn.masked import Thinned

_LOOKBACK = 3
_FIRST = 6  # epochs before a ticket can be drawn


@method(
    "gebt",
    prunes=("edges", "weights"),
    backbones=("gcn", "gcnii"),
    paper="You et al., Early-Bird GCNs: Graph-Network Co-Optimization towards More Efficient GCN Training, AAAI 2022",
)
@dataclass(frozen=True)
class Gebt(Trains):
    """Settings: the distance at which the ticket is drawn; the share of the epochs after which it is in any case; the rate
    that edges learn at; ρ. Chosen by validation (docs/adr/0017)."""

    distance: float = 0.1
    search: float = 0.5
    edge_lr: float = 1e-3
    rho: float = 1e-3

    def __post_init__(self) -> None:
        check_number("distance", self.distance)
        check_number("search", self.search, 0, 0.95, above=True)
        check_number("edge_lr", self.edge_lr, above=True)
        check_number("rho", self.rho)

    def stages(self, asked: Asked) -> Iterator[Stage]:
        """Shares are met to the undirected edge."""
        if asked.epochs < 2:
            raise InputError(f"method 'gebt' searches, then trains; give epochs=2 or more instead of {asked.epochs}.")
        search = _Search(asked, self)
        yield search
        late = f"gebt: masks still changed after {search.done} epochs; the ticket was drawn then"
        found = asked.thinned(*[late] * (not search.drawn))
        search.draw(found)
        yield Training(found, asked.epochs - search.done)


class _Search(Training):
    """Weights and edges together, until what would be removed stays the same."""

    def __init__(self, asked: Asked, gebt: Gebt) -> None:
        import torch

        super().__init__(asked.thinned(), max(1, int(gebt.search * asked.epochs)))
        self.asked, self.gebt, self.done, self.drawn = asked, gebt, 0, False
        self.group, ends = pairs(self.thinned)
        self.moves = [_Moves() for share in (asked.edges, asked.weights) if share]
        if asked.edges:
            first = near_one(asked.generator(17), ends.shape[1:])
            self.z, self.u = first.clone(), torch.zeros_like(first)
            self.thinned.give_factors(first.requires_grad_(), learnt=False, group=self.group)
            self.optimizer = torch.optim.Adam([self.factors], lr=gebt.edge_lr)

    @property
    def factors(self) -> Tensor:
        assert self.thinned.raw is not None
        return self.thinned.raw

    def loss(self) -> Tensor | None:
        if not self.asked.edges:
            return None
        pull: Tensor = self.gebt.rho * (self.factors + self.u - self.z).square().mean()
        return pull

    def after_step(self, step: int) -> None:
        import torch

        if self.asked.edges:
            self.optimizer.step()
            self.optimizer.zero_grad()
            with torch.no_grad():
                wanted = self.factors + self.u
                self.z = torch.where(self._stay(wanted), wanted, 0.0)
                self.u = wanted - self.z
        if self.asked.weights:
            for weight, keep in zip(self.thinned.weights, self._weights(), strict=True):
                weight.matrix.data.mul_(keep)

    def after_epoch(self, epoch: int, val: float) -> bool:
        self.done = epoch + 1
        masks = [[self._stay(self.factors)]] if self.asked.edges else []
        masks += [self._weights()] if self.asked.weights else []
        distances = [moves.distance(now) for moves, now in zip(self.moves, masks, strict=True)]
        self.drawn = self.done > _FIRST and sum(distances) / len(distances) < self.gebt.distance
        return self.drawn

    def counts(self, epoch: int) -> bool:
        """The ticket's weights are those of the epoch that it is drawn in."""
        return self.drawn or self.done == self.epochs

    def draw(self, found: Thinned) -> None:
        """Put weights and masks into a model."""
        found.model.load_state_dict(self.thinned.model.state_dict())
        if self.asked.edges:
            keep_pairs(found, self.asked, self.group, self._stay(self.factors))
        if self.asked.weights:
            keep_weights(found, self._weights())

    def _stay(self, factors: Tensor) -> Tensor:
        """Undirected edges by size."""
        from unifews.nn.linear import largest

        return largest(factors.detach().abs(), left(len(factors), self.asked.edges))

    def _weights(self) -> list[Tensor]:
        """Weights by size, over all layers."""
        return largest_of([weight.matrix.abs() for weight in self.thinned.weights], self.asked.weights)


class _Moves:
    """How far masks have moved lately."""

    def __init__(self) -> None:
        self.before: deque[list[Tensor]] = deque(maxlen=_LOOKBACK)
        self.unit = 0.0

    def distance(self, now: list[Tensor]) -> float:
        """Summed over parts, the largest Hamming distance to the last masks, as a share of the largest so far."""
        found = float(sum(max(int((a != b[i]).sum()) for b in self.before) for i, a in enumerate(now))) if self.before else 0.0
        self.before.append(now)
        self.unit = max(self.unit, found)
        return found / self.unit if self.unit else 0.0
