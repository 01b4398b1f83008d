"""What all workers share before their hops, the frame of the columns, and after them, the file that each writes rows of."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from unifews.core.trace import HopTrace
from unifews.distributed.shared import SharedArray, SharedWork
from unifews.propagation.assembly import RESULT, Assembly, ColumnBasis
from unifews.propagation.features import Floats
from unifews.propagation.planner import Requirements

Rows = Iterator[tuple[NDArray[np.int64], list[Floats]]]
"""Numbers of rows, and their coordinates in each group of columns."""


def frame_of(common: SharedWork, needs: Requirements) -> ColumnBasis:
    """As one process finds them: by the first worker, for all."""
    with common.group.agreed():
        frame = ColumnBasis.kept(common.work, needs) if common.work else ColumnBasis.empty(needs)
    for array in frame.arrays():
        common.group.from_first(array)
    frame.macs, frame.seconds = common.group.gather((frame.macs, frame.seconds))[0]
    return frame


def write(common: SharedWork, assembly: Assembly, rows: Rows, hops: list[HopTrace], began: float) -> None:
    """This worker's rows of the result; the manifest then has a `summary`."""
    needs, group = assembly.needs, common.group
    sheet = SharedArray(common.folder / RESULT, (needs.op.graph.num_nodes, needs.features.f))
    if common.is_first:
        sheet.create()
    group.wait()
    sheet.put((numbers, assembly.rows(parts)) for numbers, parts in rows)
    group.wait()
    common.keep(summary=assembly.summary(hops, began, group.size))
