"""The one honest record of what was kept, how many multiply-adds that took, and how long.

Counts are exact Python integers from 64-bit counters (papers100M × 20 hops is 8·10¹² multiply-adds; the reference code's
32-bit counter printed 17.7·10⁹). One multiply-add is one MAC; a FLOP count is twice that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from unifews.resources import format_bytes
from unifews.storage.folder_format import Json

_SLOWER = 1.2  # times the unpruned run's estimated seconds, and
_NOTICED = 0.1  # seconds: a pruned run that takes both longer is reported as slower


@dataclass(frozen=True)
class HopTrace:
    """One hop. Only off-diagonal edges are entries; the skip connection is never pruned and never counted."""

    index: int
    entries: int
    """Decisions there were to take: edges, (edge, block) or (edge, feature) pairs, on the input's feature count."""
    kept: int
    """Entries that were multiplied."""
    zeros: int
    """Entries that are exactly zero: skipped for free, neither kept nor removed."""
    macs: int
    """Multiply-adds of the kept entries, Σ kept · width."""
    dense_macs: int
    """Multiply-adds of the unpruned product on the input axes, edges · features."""
    zero_macs: int
    """What of `dense_macs` would have multiplied exact zeros."""
    threshold: float | None
    """δ of this hop in message units; None = unpruned. Where columns are propagated in groups, that of the leading ones."""
    seconds: float

    @property
    def sparsity(self) -> float:
        """Share of the nonzero products removed: 1 - macs / (dense_macs - zero_macs)."""
        work = self.dense_macs - self.zero_macs
        return 1 - self.macs / work if work else 0.0

    @property
    def removed(self) -> int:
        return self.entries - self.zeros - self.kept


@dataclass(frozen=True)
class LayerTrace:
    """The weights of one layer of the transformation."""

    index: int
    weights: int
    """Entries of the weight matrix."""
    kept: int
    macs: int
    """Multiply-adds of the kept weights over all rows."""
    dense_macs: int

    @property
    def sparsity(self) -> float:
        return 1 - self.kept / self.weights if self.weights else 0.0


@dataclass(frozen=True)
class Traffic:
    """What workers that each hold some of the nodes sent to each other, in bytes."""

    workers: int
    sent: tuple[int, ...]
    """At each hop: blocks of boundary nodes that some entry of another worker needs, and which they are."""
    unpruned: tuple[int, ...]
    """At each hop, what all rows of boundary nodes take."""

    @property
    def share(self) -> float:
        """Sent, of what unpruned hops send."""
        return sum(self.sent) / sum(self.unpruned) if sum(self.unpruned) else 0.0

    def to_dict(self) -> Json:
        pairs = zip(self.sent, self.unpruned, strict=True)
        return {
            "workers": self.workers,
            "sent_bytes": sum(self.sent),
            "unpruned_bytes": sum(self.unpruned),
            "share": self.share,
            "hops": [{"sent_bytes": sent, "unpruned_bytes": unpruned} for sent, unpruned in pairs],
        }

    def __str__(self) -> str:
        if self.workers == 1:
            return "one worker: nothing was sent"
        sent, unpruned = format_bytes(sum(self.sent)), format_bytes(sum(self.unpruned))
        return f"{self.workers} workers sent each other {sent}, {self.share:.1%} of the {unpruned} of unpruned hops"


@dataclass(frozen=True)
class Trace:
    """What a propagation did, hop by hop, and the layers after it, if there are any. Prints as a table."""

    hops: tuple[HopTrace, ...]
    requested: str = "unpruned"
    """The requested amount of pruning, as text."""
    kernel: str = ""
    """Instruction set and threads the kernels ran with."""
    rank: int | None = None
    """Axes propagated; None = the input's own."""
    basis_macs: int = 0
    """Multiply-adds of finding the basis, rotating into it and (once the embedding is read) back: not propagation."""
    basis_seconds: float = 0.0
    setup_seconds: float = 0.0
    """Checking, laying out and finishing: everything that is neither a hop nor the basis."""
    dropped_norm: float = 0.0
    """‖X - X V Vᵀ‖_F over the axes that were not propagated. With T symmetric (undirected graph, r = ½) and no identity skip,
    ‖S‖₂ ≤ 1, and this bounds the error that dropping them causes."""
    notes: tuple[str, ...] = field(default=())
    error_bound: float | None = None
    """If a bound was requested: ‖P̂ - P‖_F is at most this."""
    relative_error_bound: float | None = None
    """And ‖P̂ - P‖_F / ‖P‖_F at most this; infinite where the bound is not below ‖P̂‖_F."""
    estimated_error: float | None = None
    """With `max_error`: the relative error in the norm that was asked for, estimated, or proven with `certify=True`."""
    unpruned_seconds: float | None = None
    """What the unpruned propagation would have taken, estimated from a sample of its rows; None: not estimated."""
    layers: tuple[LayerTrace, ...] = ()
    """The transformation, layer by layer, where a model was trained on the embedding."""
    traffic: Traffic | None = None
    """Between workers, where each of them had some of the nodes."""

    @property
    def edge_sparsity(self) -> float:
        """Plain mean over hops of the share of off-diagonal products removed ([P])."""
        return sum(hop.sparsity for hop in self.hops) / len(self.hops) if self.hops else 0.0

    @property
    def macs(self) -> int:
        """Multiply-adds of the propagation."""
        return sum(hop.macs for hop in self.hops)

    @property
    def dense_macs(self) -> int:
        return sum(hop.dense_macs for hop in self.hops)

    @property
    def weight_sparsity(self) -> float:
        """Share of all weights removed."""
        weights = sum(layer.weights for layer in self.layers)
        return 1 - sum(layer.kept for layer in self.layers) / weights if weights else 0.0

    @property
    def transform_macs(self) -> int:
        return sum(layer.macs for layer in self.layers)

    @property
    def dense_transform_macs(self) -> int:
        return sum(layer.dense_macs for layer in self.layers)

    @property
    def seconds(self) -> float:
        """Everything: basis, set-up and hops."""
        return sum(hop.seconds for hop in self.hops) + self.basis_seconds + self.setup_seconds

    @property
    def slower(self) -> str | None:
        """A warning if pruning took clearly longer than the unpruned propagation would have, else None."""
        whole = self.unpruned_seconds
        if not whole or self.seconds < _SLOWER * whole or self.seconds - whole < _NOTICED:
            return None
        times = self.seconds / whole
        return (
            f"this run took an estimated {times:.{1 if times < 10 else 0}f} times as long as unpruned propagation "
            f"({self.seconds:.2g} s, {whole:.2g} s); pruning saves operations here, not time; "
            "max_error=0.05 (--max-error .05) saves hops and bytes instead"
        )

    def to_dict(self) -> Json:
        return {
            "requested": self.requested,
            "edge_sparsity": self.edge_sparsity,
            "macs": self.macs,
            "dense_macs": self.dense_macs,
            "seconds": self.seconds,
            "rank": self.rank,
            "dropped_norm": self.dropped_norm,
            "basis_macs": self.basis_macs,
            "basis_seconds": self.basis_seconds,
            "setup_seconds": self.setup_seconds,
            "unpruned_seconds": self.unpruned_seconds,
            "kernel": self.kernel,
            "notes": list(self.notes),
            "hops": [
                {
                    "index": hop.index,
                    "entries": hop.entries,
                    "kept": hop.kept,
                    "zeros": hop.zeros,
                    "macs": hop.macs,
                    "sparsity": hop.sparsity,
                    "threshold": None if hop.threshold is None or math.isinf(hop.threshold) else hop.threshold,
                    "seconds": hop.seconds,
                }
                for hop in self.hops
            ],
            **({} if self.estimated_error is None else {"estimated_error": self.estimated_error}),
            **({} if self.error_bound is None else self._certified()),
            **({} if not self.layers else self._transformation()),
            **({} if self.traffic is None else {"traffic": self.traffic.to_dict()}),
        }

    def _certified(self) -> Json:
        bounds = {"error_bound": self.error_bound, "relative_error_bound": self.relative_error_bound}
        return {name: None if value is None or math.isinf(value) else value for name, value in bounds.items()}

    @property
    def certified(self) -> str | None:
        """The bound on the error as text; None if none was requested."""
        if self.error_bound is None or self.relative_error_bound is None:
            return None
        if math.isinf(self.relative_error_bound):
            return f"error at most {self.error_bound:.3g}, more than the norm of the result"
        return f"error at most {self.error_bound:.3g}, {self.relative_error_bound:.3g} of the unpruned norm"

    def _transformation(self) -> Json:
        return {
            "weight_sparsity": self.weight_sparsity,
            "transform_macs": self.transform_macs,
            "dense_transform_macs": self.dense_transform_macs,
            "layers": [asdict(layer) for layer in self.layers],
        }

    def columns(self) -> Iterator[Column]:
        """Of the printed table; that of exact zeros only where there are some."""
        zeros = sum(hop.zeros for hop in self.hops)
        yield Column(5, "hop", lambda hop: f"{hop.index}", "all")
        yield Column(16, "entries", lambda hop: f"{hop.entries:,}", f"{sum(hop.entries for hop in self.hops):,}")
        yield Column(16, "kept", lambda hop: f"{hop.kept:,}", f"{sum(hop.kept for hop in self.hops):,}")
        if zeros:
            yield Column(16, "zero", lambda hop: f"{hop.zeros:,}", f"{zeros:,}")
        yield Column(18, "MACs", lambda hop: f"{hop.macs:,}", f"{self.macs:,}")
        yield Column(8, "removed", lambda hop: f"{hop.sparsity:.1%}", f"{self.edge_sparsity:.1%}")
        yield Column(10, "threshold", lambda hop: "-" if hop.threshold is None else f"{hop.threshold:.3g}")
        yield Column(8, "seconds", lambda hop: f"{hop.seconds:.3f}", f"{self.seconds:.3f}")

    @property
    def ran(self) -> tuple[HopTrace, ...]:
        """The hops that were run: with `max_error`, not all that the scheme has."""
        return tuple(hop for hop in self.hops if hop.kept) if self.estimated_error else self.hops

    def table(self) -> list[str]:
        """Lines with a row per hop that was run, and the totals if there are any."""
        columns = [column.cells(self.ran) for column in self.columns()]
        rows = [" ".join(cells) for cells in zip(*columns, strict=True)]
        return rows if rows[-1].strip() else rows[:-1]

    def summary(self) -> Iterator[str]:
        """Lines below the table: what it does not contain."""
        if self.basis_macs:
            rank = "" if self.rank is None else f"{self.rank} principal components, "
            cost = f"{self.basis_macs:,} MACs in {self.basis_seconds:.3f} s, not in the table"
            yield f"basis: {rank}{cost}; norm of the omitted components {self.dropped_norm:.3g}"
        if self.certified:
            yield f"certified: {self.certified}"
        if self.traffic is not None:
            yield str(self.traffic)
        for layer in self.layers:
            yield f"weights {layer.index}: {layer.kept:,} of {layer.weights:,} kept, {layer.macs:,} MACs"

    def __str__(self) -> str:
        return "\n".join([*self.table(), *self.summary(), *self.notes, *([self.slower] if self.slower else [])])


class Column(NamedTuple):
    """One column of a printed trace."""

    width: int
    """At least; negative: aligned to the left."""
    title: str
    cell: Callable[[Any], str]
    """Of a hop."""
    total: str = ""

    def cells(self, hops: Sequence[HopTrace]) -> list[str]:
        """Title, hops and total, all of the same width."""
        texts = [self.title, *map(self.cell, hops), self.total]
        width = max(abs(self.width), *map(len, texts))
        return [f"{text:{'<' if self.width < 0 else '>'}{width}}" for text in texts]
