"""What all workers share before their hops, the axes, and after them, the file that each writes rows of."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from unifews.core.trace import HopTrace
from unifews.distributed.shared import SharedWork, Sheet
from unifews.propagation.assembly import RESULT, Assembly, Axes
from unifews.propagation.features import Floats
from unifews.propagation.plan import Needs

Rows = Iterator[tuple[NDArray[np.int64], list[Floats]]]
"""Numbers of rows, and their coordinates in each group of columns."""


def axes_of(common: SharedWork, needs: Needs) -> Axes:
    """As one process finds them: by the first worker, for all."""
    with common.group.agreed():
        axes = Axes.kept(common.work, needs) if common.work else Axes.room(needs)
    for array in axes.arrays():
        common.group.from_first(array)
    axes.macs, axes.seconds = common.group.tell((axes.macs, axes.seconds))[0]
    return axes


def write(common: SharedWork, assembly: Assembly, rows: Rows, hops: list[HopTrace], began: float) -> None:
    """This worker's rows of the result; the manifest then has a `summary`."""
    needs, group = assembly.needs, common.group
    sheet = Sheet(common.folder / RESULT, (needs.op.graph.num_nodes, needs.features.f))
    if common.is_first:
        sheet.create()
    group.wait()
    sheet.put((numbers, assembly.rows(parts)) for numbers, parts in rows)
    group.wait()
    common.keep(summary=assembly.summary(hops, began, group.size))
