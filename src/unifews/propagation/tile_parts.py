"""`max_error` by workers that each have some of the rows (docs/adr/0020).

Before a hop, rows of the iterate that it gathers are sent as they are stored, so messages shrink with the row format. Sums over
rows are added up worker after worker, in the same order everywhere; estimates and choices are those of the first worker.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from unifews.core.schemes import SpectralFilter
from unifews.distributed.partition import Part
from unifews.kernels.formats import RowFormat, StoredRows
from unifews.propagation.features import FeatureMatrix, Floats, exponent_of
from unifews.propagation.halo import PartitionOperator
from unifews.propagation.spectral import Doubles
from unifews.propagation.store import peak_of
from unifews.propagation.symmetric import SymmetricOperator


class PartRows(FeatureMatrix):
    """The rows of one worker, by their numbers there."""

    def __init__(self, whole: FeatureMatrix, part: Part) -> None:
        self.is_torch, self.device, self.sparse = False, None, None
        self.n, self.f, self.exponent = part.owned, whole.f, whole.exponent
        self.dense = whole.dense[part.own] if whole.dense is not None and isinstance(part.own, slice) else None
        self._whole, self._nodes = whole, part.nodes

    def rows(self, first: int, last: int) -> Floats:
        return super().rows(first, last) if self.dense is not None else self._whole.some(self._nodes[first:last])

    def some(self, rows: NDArray[np.int64]) -> Floats:
        return self._whole.some(self._nodes[rows])


@dataclass(frozen=True)
class PartitionedRows(SymmetricOperator):
    """S on the rows of one worker, and behind them copies of the rows of others, whose weights are 0 here."""

    sent: list[int] = field(default_factory=list, compare=False)
    """Bytes that this worker has sent before each hop of the tile at hand."""

    @property
    def part(self) -> Part:
        assert isinstance(self.hop, PartitionOperator)
        return self.hop.part

    def reduced(self, sums: Doubles) -> Doubles:
        comm = self.part.comm
        table = np.zeros((comm.size, *sums.shape))
        table[comm.rank] = sums
        sums[...] = comm.all_reduce(table).sum(axis=0)
        self._add_sent(max(len(self.sent) - 1, 0), sums.nbytes * (comm.size - 1))
        return sums

    def shared(self, values: Doubles) -> Doubles:
        values = np.array(values, order="C")
        self.part.comm.broadcast(values)
        return values

    def decided(self, choice: int) -> int:
        return int(self.shared(np.array([float(choice)]))[0])

    def refresh(self, number: int, format: RowFormat, stored: StoredRows, blocks: int) -> None:
        part, used = self.part, format.used(stored, blocks)
        outgoing = np.concatenate([each[part.rows] for each in used], axis=1)
        came = part.comm.all_to_all(outgoing, part.sent, part.received)
        self._add_sent(number, outgoing.nbytes)
        first = 0
        for each in used:
            last = first + each.shape[1]
            each[part.owned :] = came[:, first:last]
            first = last

    def matrix(self, values: Floats) -> FeatureMatrix:
        some = FeatureMatrix(values, len(values))
        some.exponent = exponent_of(self.part.comm.maximum(peak_of(values)))
        return some

    def _add_sent(self, hop: int, count: int) -> None:
        self.sent.extend([0] * (hop + 1 - len(self.sent)))
        self.sent[hop] += count

    def traffic(self, width: int) -> tuple[list[int], list[int]]:
        """Bytes that all workers have sent at each hop of a tile, and what unpruned hops send; the next tile begins at 0."""
        comm = self.part.comm
        rows = int(comm.all_reduce(np.array([len(self.part.rows)]))[0])
        sent = comm.all_reduce(np.array(self.sent, dtype=np.int64)).tolist()
        self.sent.clear()
        hops = len(sent) if isinstance(self.hop.scheme, SpectralFilter) else max(len(sent), self.hop.hops)
        return sent + [0] * (hops - len(sent)), [4 * width * rows] * hops
