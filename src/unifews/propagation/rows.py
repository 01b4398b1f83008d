"""What all workers share before their hops, the basis of the columns, and after them, the file that each writes rows of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from unifews.core.trace import HopTrace
from unifews.propagation.assembly import RESULT, Assembly, basis_of, empty_basis
from unifews.propagation.basis import Basis
from unifews.propagation.features import Floats
from unifews.propagation.shared import SharedArray, SharedWork
from unifews.propagation.task import PropagationTask

Rows = Iterator[tuple[NDArray[np.int64], list[Floats]]]
"""Numbers of rows, and their coordinates in each group of columns."""


def shared_basis(common: SharedWork, task: PropagationTask) -> Basis:
    """As one process finds it: by the first worker, for all."""
    with common.group.agreed():
        basis = basis_of(common.work, task) if common.work else empty_basis(task)
    for array in basis.arrays():
        common.group.broadcast(array)
    macs, seconds = common.group.all_gather((basis.macs, basis.seconds))[0]
    return replace(basis, macs=macs, seconds=seconds)


def write(common: SharedWork, assembly: Assembly, rows: Rows, hops: list[HopTrace], began: float) -> None:
    """This worker's rows of the result; the manifest then has a `summary`."""
    needs, group = assembly.needs, common.group
    sheet = SharedArray(common.folder / RESULT, (needs.op.graph.num_nodes, needs.features.f))
    if common.is_first:
        sheet.create()
    group.barrier()
    sheet.put((numbers, assembly.rows(parts)) for numbers, parts in rows)
    group.barrier()
    common.keep(summary=assembly.summary(hops, began, group.size))
