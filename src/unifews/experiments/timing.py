"""Interleaved timing, the spread, and the peak of memory."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

Contestant = Callable[[], Any]


def interleave(
    contestants: dict[str, Contestant], trials: int, progress: Callable[[str], None] | None = None
) -> dict[str, list[float]]:
    """Seconds of each contestant, `trials` times in turn, so that a slow minute of the machine hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for trial in range(trials):
        for name, run in contestants.items():
            if progress:
                progress(f"trial {trial + 1} of {trials}: {name}")
            gc.collect()
            began = perf_counter()
            result = run()
            took = perf_counter() - began
            del result
            times[name].append(took)
    return times


def summary(seconds: list[float]) -> dict[str, float]:
    return {"median": statistics.median(seconds), "low": min(seconds), "high": max(seconds)}


def ratio(rival: list[float], ours: list[float], factor: float = 1.0) -> dict[str, float]:
    """How many times faster `ours` is: ratio of medians, with the lowest and highest ratio of any one trial."""
    each = [factor * a / b for a, b in zip(rival, ours, strict=True)]
    return {
        "median": factor * statistics.median(rival) / statistics.median(ours),
        "low": min(each),
        "high": max(each),
    }


def peak_bytes(run: Contestant) -> int | None:
    """Most memory held during a call beyond what was held before it; None where the system does not tell."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not (status.exists() and reset.exists()):
        return None
    gc.collect()
    reset.write_text("5")  # forget the high-water mark
    before = _kilobytes(status, "VmRSS")
    result = run()
    peak = _kilobytes(status, "VmHWM") - before
    del result
    return peak * 1024


def _kilobytes(status: Path, name: str) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])
