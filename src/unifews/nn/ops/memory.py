"""Memory for the results of kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from unifews.kernels import aligned

_MIN_VALUES = 1 << 20  # 4 MB; below, torch's own allocator is as fast


def empty(*shape: int) -> Tensor:
    """An uninitialised float32 tensor, in huge pages where it is large and the system has them.

    torch requests large tensors from the system anew each time, which clears them in pages of 4 KB: 34 ms for 169,343 x 256
    values, five times what it takes to write them. NumPy requests pages of 2 MB, for which this takes 3 ms. They return to
    the system with the tensor, so nothing is retained between calls. Its storage belongs to NumPy, so ``resize_`` cannot
    enlarge it.
    """
    size = 1
    for length in shape:
        size *= length
    return torch.empty(shape) if size < _MIN_VALUES else torch.from_numpy(aligned(*shape))
