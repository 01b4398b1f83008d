"""From coordinates in files to the result in one, and what is told of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core import spill
from unifews.core.trace import HopTrace, Trace, Traffic
from unifews.distributed.desk import Desk, Sheet
from unifews.kernels import describe
from unifews.propagation import local
from unifews.propagation.basis import Basis, principal, stationary_mean
from unifews.propagation.checkpoint import plain
from unifews.propagation.features import Floats
from unifews.propagation.operator import stationary
from unifews.propagation.plan import Needs
from unifews.propagation.result import rotate_back

RESULT = "embedding.npy"
Rows = Iterator[tuple[NDArray[np.int64], list[Floats]]]
"""Numbers of rows, and their coordinates in each group of columns."""


@dataclass(frozen=True)
class Done:
    """A group of columns after its hops."""

    hops: list[HopTrace]
    growth: int
    peak: float
    """The largest magnitude of its coordinates."""
    crc: int
    """Of the file that this worker has them in."""
    traffic: tuple[list[int], list[int]] | None = None
    """Bytes sent at each hop by all workers, and what unpruned hops send."""

    @classmethod
    def of(cls, outcome: local.Outcome, crc: int, traffic: tuple[list[int], list[int]] | None = None) -> Done:
        values = outcome.values
        peak = max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))
        return cls(outcome.hops, outcome.growth, peak, crc, traffic)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "hops": [plain(hop) for hop in self.hops]}

    @classmethod
    def of_dict(cls, kept: dict[str, Any]) -> Done:
        traffic = kept["traffic"]
        return cls(**{**kept, "hops": [HopTrace(**hop) for hop in kept["hops"]], "traffic": traffic and tuple(traffic)})


@dataclass(frozen=True)
class Axes:
    """What the columns stand on: the same for all workers, found by the first."""

    basis: Basis | None
    mean: Floats | None
    macs: int
    seconds: float


def axes_of(desk: Desk, needs: Needs) -> Axes:
    """The axes and the mean, as one process finds them."""
    began, op, f = perf_counter(), needs.op, needs.features.f
    axes = np.empty((f, f), dtype=np.float32) if needs.rotate else None
    mean = np.empty(f, dtype=np.float32) if needs.deflate else None
    file, kept = desk.folder / "basis", desk.get("basis")
    with desk.group.agreed():
        if desk.is_first and kept is None:
            macs, phi = 0, stationary(op.diffusion) if needs.deflate else None
            if needs.rotate:
                found = principal(needs.features, op.diffusion, phi, None, None, op.threads)
                axes, mean, macs = np.ascontiguousarray(found.axes), found.mean, found.macs
            elif phi is not None:
                mean = stationary_mean(needs.features, phi, op.threads)
            crc = spill.save(file, [array for array in (axes, mean) if array is not None])
            desk.keep(basis={"macs": macs, "seconds": perf_counter() - began, "crc": crc})
        elif desk.is_first:
            spill.load(file, [array for array in (axes, mean) if array is not None], kept["crc"])
    kept = kept or desk.get("basis")
    for array in (axes, mean):
        if array is not None:
            desk.group.from_first(array)
    return Axes(None if axes is None else Basis(axes, mean, kept["macs"]), mean, kept["macs"], kept["seconds"])


def assembled(
    desk: Desk, needs: Needs, axes: Axes, done: list[Done], hops: list[HopTrace], rows: Rows, began: float
) -> None:  # fmt: skip
    """Write this worker's rows of the result, of which `done` are the groups of columns, and `hops` those of all of them.

    The manifest then has a `summary`.
    """
    op, features, group = needs.op, needs.features, desk.group
    top = max(each.growth for each in done)
    exponent = top + features.exponent
    peak = max(local.scaled(each.peak, each.growth - top) for each in done)
    scale = 1.0
    if exponent and 2.0**-100 < local.scaled(peak, exponent) < 2.0**120:
        scale, exponent = math.ldexp(1, exponent), 0
    turned = None if axes.basis is None else axes.basis.axes

    def made() -> Iterator[tuple[NDArray[np.int64], Floats]]:
        for numbers, read in rows:
            for part, each in zip(read, done, strict=True):
                if each.growth < top:
                    part *= np.float32(math.ldexp(1, each.growth - top))
            values = read[0] if len(read) == 1 else np.concatenate(read, axis=1)
            if scale != 1:
                values *= np.float32(scale)
            yield numbers, np.ascontiguousarray(rotate_back(values, turned))

    n, f = op.graph.num_nodes, features.f
    sheet = Sheet(desk.folder / RESULT, (n, f))
    if desk.is_first:
        sheet.create()
    group.wait()
    sheet.put(made())
    group.wait()
    macs = axes.macs + (2 * n * f * f if turned is not None else 0)
    if needs.deflate and op.scheme.skip != "diagonal":
        macs += op.graph.num_edges * op.hops
    spent = perf_counter() - began - sum(hop.seconds for hop in hops) - axes.seconds
    notes = []
    if len(done) > 1 and needs.budget is not None:
        notes.append(f"columns were propagated in {len(done)} groups; the thresholds told are those of the leading one")
    if exponent:
        notes.append(f"values lie outside float32 and are given divided by 2^{exponent}")
    told = {
        "requested": str(needs.budget) if needs.budget else "unpruned", "kernel": describe(op.threads),
        "rank": f if turned is not None else None, "basis_macs": macs, "basis_seconds": axes.seconds,
        "setup_seconds": max(spent, 0.0), "notes": notes,
    }  # fmt: skip
    by_group = [each.traffic for each in done if each.traffic]
    traffic = [[sum(hop) for hop in zip(*kind, strict=True)] for kind in zip(*by_group, strict=True)] or None
    summary = {"hops": [plain(hop) for hop in hops], "trace": told, "exponent": exponent, "traffic": traffic}
    desk.keep(summary={**summary, "workers": group.size})


def trace_of(summary: dict[str, Any]) -> Trace:
    """What was told of a finished result."""
    hops = tuple(HopTrace(**hop) for hop in summary["hops"])
    traffic = summary["traffic"] and Traffic(summary["workers"], *(tuple(each) for each in summary["traffic"]))
    return Trace(hops, **{**summary["trace"], "notes": tuple(summary["trace"]["notes"])}, traffic=traffic)
