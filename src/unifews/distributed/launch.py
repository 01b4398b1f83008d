"""Whether this process is one of several; free of torch, so that a command may ask before it knows."""

from __future__ import annotations

import os


def launched() -> bool:
    """Whether torchrun, or its like, has started this process as one of several."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def restarts() -> int:
    """How many times torchrun has started all workers again, after one was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
