"""From groups of columns, each propagated on its own, to one result and its trace (docs/adr/0019, 0020)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np

from unifews.core.trace import HopTrace, Trace, Traffic
from unifews.kernels import describe
from unifews.propagation import local
from unifews.propagation.basis import Basis
from unifews.propagation.checkpoint import plain
from unifews.propagation.features import Floats
from unifews.propagation.planner import Requirements
from unifews.propagation.result import rotate_back
from unifews.propagation.task import PropagationTask
from unifews.propagation.tiles import scaled
from unifews.storage import state_files
from unifews.storage.journal import Journal

RESULT = "embedding.npy"


def basis_of(work: Journal, task: PropagationTask) -> Basis:
    """That of the working folder, found now unless it was before."""
    facts, file = work.get("basis"), work.folder / "basis"
    if facts is None:
        basis = task.find_basis()
        work.record(basis={"macs": basis.macs, "seconds": basis.seconds, "crc": state_files.save(file, basis.arrays())})
        return basis
    basis = replace(empty_basis(task), macs=facts["macs"], seconds=facts["seconds"])
    state_files.load(file, basis.arrays(), facts["crc"])
    return basis


def empty_basis(task: PropagationTask) -> Basis:
    """Uninitialised arrays of the right shapes."""
    f = task.features.f
    axes = np.empty((f, f), dtype=np.float32) if task.rotates else None
    return Basis(axes, np.empty(f, dtype=np.float32) if task.deflates else None)


@dataclass(frozen=True)
class GroupRecord:
    """A group of columns after its hops."""

    hops: list[HopTrace]
    growth: int
    """Its coordinates were divided by two to the power of this."""
    peak: float
    """The largest magnitude of its coordinates."""
    crc: int
    """Of the file that has them."""
    traffic: tuple[list[int], list[int]] | None = None
    """Bytes sent at each hop by all workers, and what unpruned hops send."""

    @classmethod
    def of(cls, outcome: local.GroupResult, crc: int, traffic: tuple[list[int], list[int]] | None = None) -> GroupRecord:
        values = outcome.values
        peak = max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))
        return cls(outcome.hops, outcome.growth, peak, crc, traffic)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "hops": [plain(hop) for hop in self.hops]}

    @classmethod
    def of_dict(cls, kept: dict[str, Any]) -> GroupRecord:
        traffic = kept["traffic"]
        return cls(**{**kept, "hops": [HopTrace(**hop) for hop in kept["hops"]], "traffic": traffic and tuple(traffic)})


@dataclass
class Assembly:
    """All groups of columns, the leading one first, brought to one power of two and back on the input's axes."""

    needs: Requirements
    basis: Basis
    done: list[GroupRecord]
    exponent: int = field(init=False)
    """The result is divided by two to the power of this; 0 wherever float32 holds it."""

    def __post_init__(self) -> None:
        self._top = max(each.growth for each in self.done)
        self._scale, self.exponent = 1.0, self._top + self.needs.features.exponent
        peak = max(scaled(each.peak, each.growth - self._top) for each in self.done)
        if self.exponent and 2.0**-100 < scaled(peak, self.exponent) < 2.0**120:
            self._scale, self.exponent = math.ldexp(1, self.exponent), 0

    def rows(self, parts: list[Floats]) -> Floats:
        """Rows of the result from those of the groups, which are overwritten; float32 [k, f]."""
        for part, each in zip(parts, self.done, strict=True):
            if each.growth < self._top:
                part *= np.float32(math.ldexp(1, each.growth - self._top))
        values = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        if self._scale != 1:
            values *= np.float32(self._scale)
        return np.ascontiguousarray(rotate_back(values, self.basis.axes))

    def summary(self, hops: list[HopTrace], began: float, workers: int = 1) -> dict[str, Any]:
        """The trace of the result as JSON; `hops` are those of all groups."""
        needs, op, n, f = self.needs, self.needs.op, self.needs.op.graph.num_nodes, self.needs.features.f
        macs = self.basis.macs + (2 * n * f * f if needs.task.rotates else 0)
        if needs.task.carries:
            macs += op.graph.num_edges * op.hops
        spent = perf_counter() - began - sum(hop.seconds for hop in hops) - self.basis.seconds
        notes = []
        if len(self.done) > 1 and needs.budget is not None:
            shown = "the thresholds shown are those of the leading one"
            notes.append(f"columns were propagated in {len(self.done)} groups; {shown}")
        if self.exponent:
            notes.append(f"values lie outside float32 and are given divided by 2^{self.exponent}")
        trace = {
            "requested": needs.task.requested,
            "kernel": describe(op.threads),
            "rank": f if needs.task.rotates else None,
            "basis_macs": macs,
            "basis_seconds": self.basis.seconds,
            "setup_seconds": max(spent, 0.0),
            "notes": notes,
        }
        by_group = [each.traffic for each in self.done if each.traffic]
        traffic = [[sum(hop) for hop in zip(*kind, strict=True)] for kind in zip(*by_group, strict=True)] or None
        facts = {"exponent": self.exponent, "traffic": traffic, "workers": workers}
        return {"hops": [plain(hop) for hop in hops], "trace": trace, **facts}


def trace_of(summary: dict[str, Any]) -> Trace:
    """The trace of a finished result."""
    hops = tuple(HopTrace(**hop) for hop in summary["hops"])
    traffic = summary["traffic"] and Traffic(summary["workers"], *(tuple(each) for each in summary["traffic"]))
    return Trace(hops, **{**summary["trace"], "notes": tuple(summary["trace"]["notes"])}, traffic=traffic)
