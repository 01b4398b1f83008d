"""Magnitudes over all processes of a `Communicator`, so that every rank takes the same decision. One process alone gets its own
values back, unchanged.

Every function is called by all ranks, in the same order.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from unifews.distributed.communicator import Communicator


def joint_norms(comm: Communicator, norms: Tensor) -> Tensor:
    """Norms over the rows of all ranks from the norms over each one's own rows: (Σ norm²)^½."""
    if comm.size == 1:
        return norms
    squares = np.ascontiguousarray(norms.detach().cpu().double().square().numpy())
    return torch.from_numpy(comm.all_reduce(squares)).sqrt().to(norms)


def joint_sum(comm: Communicator, count: int) -> int:
    return count if comm.size == 1 else int(comm.all_reduce(np.array([count], dtype=np.int64))[0])


def joint_mean(comm: Communicator, values: Tensor) -> float:
    """The mean of the values of all ranks; 0 where there are none."""
    if comm.size == 1:
        return float(values.mean()) if len(values) else 0.0
    total, count = comm.all_reduce(np.array([float(values.double().sum()), float(values.numel())]))
    return float(total / count) if count else 0.0


def joint_rows(comm: Communicator, rows: Tensor) -> tuple[Tensor, slice]:
    """The rows of all ranks, one rank's after the other's, and where this rank's are."""
    if comm.size == 1:
        return rows, slice(None)
    counts = np.zeros(comm.size, dtype=np.int64)
    counts[comm.rank] = len(rows)
    ends = np.cumsum(comm.all_reduce(counts))
    mine = slice(int(ends[comm.rank]) - len(rows), int(ends[comm.rank]))
    every = np.zeros((int(ends[-1]), *rows.shape[1:]))
    every[mine] = rows.detach().cpu().double().numpy()
    return torch.from_numpy(comm.all_reduce(every)).to(rows), mine
